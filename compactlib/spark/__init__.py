# SPDX-License-Identifier: Apache-2.0
"""compactlib on Spark: the heavy step as a DataFrame job, and logs as tables.

    spark = SparkSession.builder.master("local[2,4]").getOrCreate()    # any session, classic or Spark Connect
    ship_library(spark)                      # unless compactlib is installed on the workers
    log.compact(executor=SparkExecutor(spark))
    register(spark)
    entries = spark.read.format("compactlib.raftlog").load(folder)

Importing this package does not import PySpark. Functions that need PySpark raise `MissingDependency` (extra "spark").
"""

from typing import TYPE_CHECKING

from compactlib._lazy import offer

if TYPE_CHECKING:
    from compactlib.spark.blocks import BlockFolder as BlockFolder, MergeBlocks as MergeBlocks
    from compactlib.spark.executor import NotVisible as NotVisible, SparkExecutor as SparkExecutor
    from compactlib.spark.jobs import require_spark as require_spark
    from compactlib.spark.session import register as register, ship_library as ship_library
    from compactlib.spark.staging_merge import StagingMerge as StagingMerge
    from compactlib.spark.stores import compact_on_workers as compact_on_workers, plan_many as plan_many
else:
    offer(__name__, {
        "compactlib.spark.blocks": "BlockFolder MergeBlocks",
        "compactlib.spark.executor": "NotVisible SparkExecutor",
        "compactlib.spark.jobs": "require_spark",
        "compactlib.spark.session": "register ship_library",
        "compactlib.spark.staging_merge": "StagingMerge",
        "compactlib.spark.stores": "compact_on_workers plan_many",
    })
