# SPDX-License-Identifier: Apache-2.0
"""`StagingMerge`: the rewrite of a staging compaction as one Spark job, for large branches."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import attrs

from compactlib.clock import Clock
from compactlib.errors import CompactlibError
from compactlib.executors import portable_error
from compactlib.objects import ObjectStore
from compactlib.spark.jobs import answers, loaded, pickled, require_spark
from compactlib.staging import CommittedRanges, MergeInParts

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class StagingMerge(MergeInParts):
    """Merges changes into a metarange on Spark. Also an `Executor` for the tasks of `Repository.compact`.

    Workers must be able to import the library (`ship_library`). `open_objects`, which is picklable, gives them the
    object store of `committed`. The keys are divided into so many `partitions`, >= 1. `clock` is for the seconds in
    the results. Where the Spark job fails, `TaskFailed` says so.
    """

    def __init__(self, spark: SparkSession, committed: CommittedRanges, open_objects: Callable[[], ObjectStore], *,
                 partitions: int = 8, clock: Clock | None = None) -> None:
        require_spark("merging staging tokens")
        super().__init__(committed, open_objects, self._on_workers, partitions=partitions, clock=clock)
        self._spark: SparkSession = spark

    def _on_workers(self, merge: Callable[[Any], Any], parts: Sequence[Any]) -> Iterator[Any]:
        pieces = list(map(pickled, parts))
        found: dict[int, Any] = {}
        for number, answer in answers(self._spark, _Merged(merge), pieces, in_a_job=max(1, len(pieces))):
            found[number] = loaded(answer, f"part {number}")
            if isinstance(found[number], CompactlibError):
                raise found[number]
        return iter([found[number] for number in range(len(pieces))])


@attrs.frozen
class _Merged:
    """What a worker does with a part: returns its pickled value, or the error that merging it raised."""

    merge: Callable[[Any], Any]

    def __call__(self, data: bytes) -> bytes:
        try:
            return pickled(self.merge(pickle.loads(data)))
        except Exception as error:  # foreign code may raise anything
            return pickled(portable_error("a part of the merge", error, pickled))
