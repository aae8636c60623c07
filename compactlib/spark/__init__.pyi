# SPDX-License-Identifier: Apache-2.0
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
from compactlib.spark.stores.many_stores import (
    StoreJob as StoreJob,
    compact_stores as compact_stores,
)
from compactlib.spark.stores.store_plans import PlanLog as PlanLog, StoreWork as StoreWork, plan_stores as plan_stores
from compactlib.spark.stores.whole_stores import compact_on_workers as compact_on_workers
