# SPDX-License-Identifier: Apache-2.0
"""`StagingMerge`: run the rewrite of a staging compaction as one Spark job, for large branches."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from compactlib.budget import Budget
from compactlib.errors import CompactlibError
from compactlib.objects import ObjectStore
from compactlib.spark.jobs import on_workers, require_spark
from compactlib.staging import CommittedRanges, MergeInParts

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class StagingMerge(MergeInParts):
    """Merge changes into a metarange on Spark; also an `Executor` for the tasks of `Repository.compact`.

    Workers must be able to import the library (`ship_library`). A failed Spark job raises `TaskFailed`.

    Args:
        open_objects: opens the object store of `committed` on a worker; picklable.
        partitions: the number of parts into which the keys are divided, >= 1.
    """

    def __init__(self, spark: SparkSession, committed: CommittedRanges, open_objects: Callable[[], ObjectStore], *,
                 partitions: int = 8) -> None:
        require_spark("merging staging tokens")
        super().__init__(committed, open_objects, self._on_workers, partitions=partitions)
        self._spark: SparkSession = spark

    def _on_workers(self, merge: Callable[[Any], Any], parts: Sequence[Any]) -> Iterator[Any]:
        named = {f"part {number}": part for number, part in enumerate(parts)}
        found: dict[str, Any] = {}
        for name, value in on_workers(self._spark, merge, named, slots=len(named), budget=Budget()):  # in one job
            if isinstance(value, CompactlibError):
                raise value
            found[name] = value
        return iter([found[name] for name in named])
