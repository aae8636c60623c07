"""compactlib on Spark: the heavy step as a DataFrame job, and logs as tables.

    from compactlib.executors.tasks import LocalExecutor
    from compactlib.spark import SparkExecutor, local_session, ship_library

    spark = local_session(cores=2)           # or your own session, classic or Spark Connect
    ship_library(spark)                      # not needed where compactlib is installed on the workers
    executor = SparkExecutor(spark)          # goes wherever a LocalExecutor goes
    for outcome in executor.run(tasks):      # each task once: a RewriteResult or a RewriteFailure
        ...                                  # publishing the new files stays with this process
    register(spark)
    entries = spark.read.format("compactlib.raftlog").load(folder)

Importing this package does not import PySpark; what needs it says so with `MissingDependency` (extra "spark").
"""

import importlib
from typing import TYPE_CHECKING, Any

from compactlib.spark.session.register import register

if TYPE_CHECKING:
    from compactlib.spark.executors.executor import DEFAULT_JOBS_AT_ONCE, DEFAULT_MAX_TASKS_PER_JOB, SparkExecutor
    from compactlib.spark.executors.packing import makespan, packed
    from compactlib.spark.executors.shared_executor import SharedExecutor
    from compactlib.spark.executors.simulation import SimulatedRun, SparkCosts, simulate, suggested_partitioning
    from compactlib.spark.rewrites.block_folder import BlockFolder
    from compactlib.spark.rewrites.blocks import MergeBlocks, MergeOptions
    from compactlib.spark.rewrites.object_files import KNOWN_TASKS, ObjectsExecutor, TaskFiles
    from compactlib.spark.rewrites.staging_merge import StagingMerge
    from compactlib.spark.session.library import ship_library, ship_wheel
    from compactlib.spark.session.session import local_session, notebook_session
    from compactlib.spark.stores.many_stores import (
        DEFAULT_STORES_AT_ONCE,
        MappedItem,
        StoreJob,
        StoreOutcome,
        compact_stores,
        map_items,
        outcome_table,
    )
    from compactlib.spark.stores.store_plans import PlanLog, StorePlan, StoresPlan, StoreWork, plan_stores
    from compactlib.spark.stores.streaming import raise_failures, start_compaction_stream

__all__ = [
    "DEFAULT_JOBS_AT_ONCE",
    "DEFAULT_MAX_TASKS_PER_JOB",
    "DEFAULT_STORES_AT_ONCE",
    "KNOWN_TASKS",
    "BlockFolder",
    "MappedItem",
    "MergeBlocks",
    "MergeOptions",
    "ObjectsExecutor",
    "PlanLog",
    "SharedExecutor",
    "SimulatedRun",
    "SparkCosts",
    "SparkExecutor",
    "StagingMerge",
    "StoreJob",
    "StoreOutcome",
    "StorePlan",
    "StoreWork",
    "StoresPlan",
    "TaskFiles",
    "compact_stores",
    "local_session",
    "makespan",
    "map_items",
    "notebook_session",
    "outcome_table",
    "packed",
    "plan_stores",
    "raise_failures",
    "register",
    "ship_library",
    "ship_wheel",
    "simulate",
    "start_compaction_stream",
    "suggested_partitioning",
]

# Loaded when they are asked for: each worker process imports this package, often from an archive, where every module
# has to be compiled anew, and needs next to nothing of it.
_MODULES = {
    "rewrites.block_folder": ("BlockFolder",),
    "rewrites.blocks": ("MergeBlocks", "MergeOptions"),
    "executors.executor": ("DEFAULT_JOBS_AT_ONCE", "DEFAULT_MAX_TASKS_PER_JOB", "SparkExecutor"),
    "session.library": ("ship_library", "ship_wheel"),
    "stores.many_stores": ("DEFAULT_STORES_AT_ONCE", "MappedItem", "StoreJob", "StoreOutcome", "compact_stores",
                           "map_items",
                    "outcome_table"),
    "rewrites.object_files": ("KNOWN_TASKS", "ObjectsExecutor", "TaskFiles"),
    "executors.packing": ("makespan", "packed"),
    "session.session": ("local_session", "notebook_session"),
    "executors.shared_executor": ("SharedExecutor",),
    "executors.simulation": ("SimulatedRun", "SparkCosts", "simulate", "suggested_partitioning"),
    "rewrites.staging_merge": ("StagingMerge",),
    "stores.streaming": ("raise_failures", "start_compaction_stream"),
    "stores.store_plans": ("PlanLog", "StorePlan", "StoreWork", "StoresPlan", "plan_stores"),
}
_HOMES = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
