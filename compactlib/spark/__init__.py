# SPDX-License-Identifier: Apache-2.0
"""compactlib on Spark: the heavy step as a DataFrame job, and logs as tables.

    spark = SparkSession.builder.master("local[2,4]").getOrCreate()    # or another one, classic or Spark Connect
    ship_library(spark)                      # not needed where compactlib is installed on the workers
    log.compact(executor=SparkExecutor(spark))
    register(spark)
    entries = spark.read.format("compactlib.raftlog").load(folder)

Importing this package does not import PySpark; what needs it raises `MissingDependency` (extra "spark").
"""

from typing import TYPE_CHECKING

from compactlib._lazy import offer

if TYPE_CHECKING:
    from compactlib.spark.executors.executor import SparkExecutor as SparkExecutor
    from compactlib.spark.executors.jobs import require_spark as require_spark
    from compactlib.spark.rewrites.blocks import (
        BlockFolder as BlockFolder,
        MergeBlocks as MergeBlocks,
        MergeOptions as MergeOptions,
    )
    from compactlib.spark.rewrites.staging_merge import StagingMerge as StagingMerge
    from compactlib.spark.session.library import ship_library as ship_library
    from compactlib.spark.session.register import register as register
    from compactlib.spark.stores.many_stores import StoreJob as StoreJob, compact_stores as compact_stores
    from compactlib.spark.stores.store_plans import (
        PlanLog as PlanLog,
        StoreWork as StoreWork,
        plan_stores as plan_stores,
    )
    from compactlib.spark.stores.whole_stores import compact_on_workers as compact_on_workers
else:
    offer(__name__, {
        "compactlib.spark.executors.executor": "SparkExecutor",
        "compactlib.spark.executors.jobs": "require_spark",
        "compactlib.spark.rewrites.blocks": "BlockFolder MergeBlocks MergeOptions",
        "compactlib.spark.rewrites.staging_merge": "StagingMerge",
        "compactlib.spark.session.library": "ship_library",
        "compactlib.spark.session.register": "register",
        "compactlib.spark.stores.many_stores": "StoreJob compact_stores",
        "compactlib.spark.stores.store_plans": "PlanLog StoreWork plan_stores",
        "compactlib.spark.stores.whole_stores": "compact_on_workers",
    })
