# SPDX-License-Identifier: Apache-2.0
"""`StagingMerge`: the rewrite of a staging compaction as a Spark DataFrame job, for large branches.

Changes go in as rows, which Spark partitions at known keys and sorts. A row stands for each range of the base that has
changes: the worker that comes to it reads the range and lays the changes over it. At the borders this process cuts anew
what must be, and publishes the metarange. The ids are those of a merge on one machine.
"""

from __future__ import annotations

import pickle
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, TypeAlias

import attrs

from compactlib.clock import Clock, SystemClock
from compactlib.errors import InvalidInput
from compactlib.executors.tasks import checked_names, new_attempt_id, own_error
from compactlib.objects import ObjectRef, ObjectStore
from compactlib.objects.store import delete_many
from compactlib.rewrite import Attempt, RewriteFailure, RewriteOutcome, RewriteTask
from compactlib.runtime.budget import Budget
from compactlib.runtime.observe import Observer, telling
from compactlib.spark.dependencies import require_spark
from compactlib.staging.committed.change_reader import ChangeReader
from compactlib.staging.committed.committed_ranges import CommittedRanges
from compactlib.staging.committed.formats.metarange import MetaRange
from compactlib.staging.committed.ranges.range_files import INCOMING
from compactlib.staging.committed.ranges.range_stitch import stitch
from compactlib.staging.committed.ranges.range_writer import ClosedRange
from compactlib.staging.compaction.rewrite import CompactedTokens, CompactTokens
from compactlib.staging.model.values import Applied, Changes, MetaRangeId, RangeEntry, RangeId

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_Source: TypeAlias = tuple[int, str, int, bytes]

_SAMPLE_EVERY = 256


class StagingMerge:
    """Merges layers of changes into a metarange on Spark. Also an `Executor` for a `Compactor`'s tasks.

    Args:
        spark: the session, classic or Spark Connect; its workers can import the library (`ship_library`).
        committed: the committed layer of this process.
        open_objects: gives the same object store in a worker; picklable.
        partitions: into how many parts the keys are divided, >= 1.
        clock: for the seconds in the results.

    Raises:
        MissingDependency: PySpark is not installed.
        InvalidInput: `partitions` is less than 1.
    """

    def __init__(self, spark: SparkSession, committed: CommittedRanges, open_objects: Callable[[], ObjectStore], *,
                 partitions: int = 8, clock: Clock | None = None) -> None:
        require_spark("merging staging tokens")
        if partitions < 1:
            raise InvalidInput(f"partitions is {partitions}; give at least 1")
        self._spark: SparkSession = spark
        self._committed: CommittedRanges = committed
        self._open_objects: Callable[[], ObjectStore] = open_objects
        self._partitions: int = partitions
        self._clock: Clock = SystemClock() if clock is None else clock

    def run(self, tasks: Iterable[RewriteTask], *, budget: Budget | None = None,
            observer: Observer | None = None) -> Iterator[RewriteOutcome]:
        """See `Executor.run`; the tasks are `CompactTokens`. One job after the other.

        The budget is asked before a job begins, and charged with what it wrote; Spark's workers do not see it.
        """
        lent = Budget() if budget is None else budget
        return self._run(checked_names(tasks), lent, telling(observer))

    def _run(self, tasks: Sequence[RewriteTask], budget: Budget, observer: Observer) -> Iterator[RewriteOutcome]:
        for task in tasks:
            try:
                yield self._compact(task, Attempt(new_attempt_id(), budget, observer, self._clock))
            except Exception as error:  # what Spark raises is this task's outcome
                yield RewriteFailure(task.name, own_error(task.name, error))

    def _compact(self, task: RewriteTask, attempt: Attempt) -> CompactedTokens:
        if not isinstance(task, CompactTokens):
            raise InvalidInput(f"task {task.name!r} is a {type(task).__name__}; StagingMerge runs CompactTokens only")
        began = attempt.clock.monotonic()
        with task.stores.open() as (tokens, _):
            layers = [((key, staged.record) for key, staged in tokens.scan(token)) for token in task.newest_first]
            applied = self.merge(task.base, layers, budget=attempt.budget)
        return CompactedTokens(task=task.name, attempt=attempt.id, files=(), bytes_read=applied.bytes_read,
                               bytes_written=applied.bytes_written, seconds=attempt.clock.monotonic() - began,
                               applied=applied)

    def merge(self, base: MetaRangeId | None, newest_first: Sequence[Changes], *,
              budget: Budget | None = None) -> Applied:
        """The same as `CommittedRanges.apply`, of several layers of changes, of which the newest counts for each key.

        Changes go through this process and the object store to the workers; base ranges are read by the workers, and
        those without changes are not read.

        Raises:
            UnsortedKeys, NilValue: as for `CommittedRanges.apply`.
            BeingCollected: likewise.
            BudgetSpent: nothing more may be done; asked before the job begins.
            RangeNotFound, DamagedRange: as a worker found it.
            Exception: what Spark raises.
        """
        given = Budget() if budget is None else budget
        given.check()
        staged = _Staged(self._committed, self._committed.files.read_metarange(base, self._committed.rule))
        try:
            for layer, changes in enumerate(newest_first):
                staged.add(layer, changes)
            if not staged.sources:
                return self._committed.apply(base, (), budget=given)
            made, counts = self._made(staged)
        finally:
            staged.remove()
        untouched = [ClosedRange(entry) for entry in staged.untouched()]
        files, rule = self._committed.files, self._committed.rule
        applied = stitch(files, rule, staged.base, base, [*untouched, *made], given)
        given.charge(sum(each.entry.size_bytes for each in made if each.is_new))
        touched = staged.touched_entries()
        return attrs.evolve(
            applied, added=counts[0], changed=counts[1], removed=counts[2],
            ranges_reused=min(applied.ranges_reused, len(untouched)), ranges_read=applied.ranges_read + len(touched),
            bytes_read=applied.bytes_read + sum(entry.size_bytes for entry in touched))

    def _made(self, staged: _Staged) -> tuple[list[ClosedRange], list[int]]:
        from compactlib.spark.rewrites import staging_workers as workers
        from compactlib.staging.committed.formats.parquet import ParquetFormat

        files, rule = self._committed.files, self._committed.rule
        bounds = staged.bounds(self._partitions)
        own = files.range_format
        write = workers.WriteRanges(self._open_objects, files.prefix, rule,
                                    own if isinstance(own, ParquetFormat) else ParquetFormat(),
                                    frozenset(entry.range_id for entry in staged.base.entries))
        changes = self._spark.createDataFrame(staged.sources, workers.SOURCE_DDL)
        rows = changes.mapInArrow(workers.LoadRows(self._open_objects, bounds), workers.ROW_DDL)
        if ranges := staged.range_rows(bounds):
            rows = rows.union(self._spark.createDataFrame(ranges, workers.ROW_DDL))
        ordered = rows.repartitionById(len(bounds) + 1, "bucket").sortWithinPartitions("key", "layer")
        closed = ordered.mapInArrow(write, workers.CLOSED_DDL).toArrow().to_pylist()
        for row in closed:
            if row["error"] is not None:
                raise pickle.loads(row["error"])
        counts = [sum(row[name] for row in closed) for name in ("added", "changed", "removed")]
        made = [ClosedRange(RangeEntry(RangeId(row["range_id"]), row["min_key"], row["max_key"], row["count"],
                                       row["size_bytes"]), is_new=row["is_new"], was_there=row["was_there"])
                for row in closed if row["range_id"] is not None]
        return made, counts


class _Staged:
    """The changes on their way to the workers, and which of the base's ranges they touch."""

    def __init__(self, committed: CommittedRanges, base: MetaRange) -> None:
        self._files = committed.files
        self._rule = committed.rule
        self.base = base
        self.sources: list[_Source] = []
        self._refs: list[ObjectRef] = []
        self._samples: list[bytes] = []
        # Under another rule, every range is cut anew.
        self._touched: set[int] = set(range(len(base.entries))) if base.rule != committed.rule else set()

    def add(self, layer: int, changes: Changes) -> None:
        """Put the changes of one layer where workers can read them, a bounded batch at a time."""
        reader = ChangeReader(changes)
        while batch := reader.take(None):
            from compactlib.spark.rewrites.staging_workers import encode_changes

            ref = self._files.objects.create(f"{self._files.prefix}{INCOMING}{self._files.new_name()}",
                                             encode_changes(batch))
            self._refs.append(ref)
            self.sources.append((layer, ref.key, ref.size_bytes, ref.digest.value))
            self._samples += batch.keys[::_SAMPLE_EVERY]
            self._touch(batch.keys)

    def _touch(self, keys: list[bytes]) -> None:
        entries = self.base.entries
        at = 0
        while at < len(keys):
            place = self.base.find(keys[at])
            if place == len(entries):
                # What comes after a last range that only the end has closed belongs to it.
                if entries and not self._rule.closes(entries[-1].max_key, entries[-1].size_bytes):
                    self._touched.add(place - 1)
                return
            self._touched.add(place)
            at = bisect_left(keys, entries[place].max_key + b"\0", at)

    def touched_entries(self) -> list[RangeEntry]:
        """The base's ranges that have changes."""
        return [self.base.entries[place] for place in sorted(self._touched)]

    def range_rows(self, bounds: Sequence[bytes]) -> list[tuple[object, ...]]:
        """The base's ranges that have changes, as rows of the parts of the keys that end at these bounds."""
        from compactlib.spark.rewrites.staging_workers import range_row

        firsts = [b"", *(bound + b"\0" for bound in bounds), None]
        return [range_row(bucket, entry, firsts[bucket] or b"", firsts[bucket + 1])
                for entry in self.touched_entries()
                for bucket in range(bisect_left(bounds, entry.min_key), bisect_left(bounds, entry.max_key) + 1)]

    def untouched(self) -> list[RangeEntry]:
        """The others."""
        return [entry for place, entry in enumerate(self.base.entries) if place not in self._touched]

    def bounds(self, partitions: int) -> tuple[bytes, ...]:
        """The last keys of all buckets but the last: so many as asked for, and wherever an untouched range lies."""
        entries = self.base.entries
        last = len(entries) - 1
        between = {entries[place].max_key for place in range(last)
                   if (place in self._touched) != (place + 1 in self._touched)}
        if entries and last not in self._touched:
            between.add(entries[last].max_key)
        ends = [entry.max_key for entry in self.touched_entries()]
        chosen = ends if len(ends) >= partitions else sorted(self._samples)
        return tuple(sorted(between | {chosen[place * len(chosen) // partitions] for place in range(1, partitions)}))

    def remove(self) -> None:
        """Take the changes away again; those of a process that died are removed by a garbage collection."""
        delete_many(self._files.objects, [ref.key for ref in self._refs])
