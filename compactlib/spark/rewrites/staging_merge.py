# SPDX-License-Identifier: Apache-2.0
"""`StagingMerge`: the rewrite of a staging compaction as one Spark job, for large branches.

Changes are put as objects, in order. The keys are divided into parts; a worker reads the changes of one and the ranges
of the base that have some, and writes the ranges that come out. This process cuts anew what the borders between parts
ask for, and publishes the metarange. The ids are those of a merge on one machine.
"""

from __future__ import annotations

import heapq
import pickle
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from operator import itemgetter
from typing import TYPE_CHECKING, Final, TypeVar

import attrs

from compactlib._arguments import require_whole
from compactlib.clock import Clock
from compactlib.errors import InvalidInput
from compactlib.executors.tasks import LocalExecutor
from compactlib.objects import ObjectRef, ObjectStore
from compactlib.objects.store import delete_many, read_checked
from compactlib.rewrite import Attempt, RewriteOutcome, RewriteTask
from compactlib.runtime.budget import Budget
from compactlib.runtime.observe import Observer
from compactlib.spark.executors.items import map_items
from compactlib.spark.executors.jobs import require_spark
from compactlib.staging.committed.change_reader import ChangeReader
from compactlib.staging.committed.committed_ranges import CommittedRanges
from compactlib.staging.committed.formats.metarange import MetaRange
from compactlib.staging.committed.formats.rows import ChangeBatch, RangeFormat, Rows
from compactlib.staging.committed.formats.split import SplitRule
from compactlib.staging.committed.ranges.range_files import INCOMING, RangeFiles
from compactlib.staging.committed.ranges.range_stitch import stitch
from compactlib.staging.committed.ranges.range_writer import ClosedRange, RangeWriter
from compactlib.staging.compaction.rewrite import CompactedTokens, CompactTokens
from compactlib.staging.model.values import Applied, Change, Changes, MetaRangeId, RangeEntry
from compactlib.staging.records.layers import changes_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_SAMPLE_EVERY: Final = 256
_PieceT = TypeVar("_PieceT", "_ChangesFile", RangeEntry)


class StagingMerge:
    """Merges layers of changes into a metarange on Spark. Also an `Executor` for a `Compactor`'s tasks.

    Workers must be able to import the library (`ship_library`). `open_objects`, which is picklable, gives them the
    object store of `committed`. The keys are divided into so many `partitions`, >= 1. `clock` is for the seconds in
    the results.
    """

    def __init__(self, spark: SparkSession, committed: CommittedRanges, open_objects: Callable[[], ObjectStore], *,
                 partitions: int = 8, clock: Clock | None = None) -> None:
        require_spark("merging staging tokens")
        require_whole("partitions", partitions, 1)
        self._spark: SparkSession = spark
        self._committed: CommittedRanges = committed
        self._open_objects: Callable[[], ObjectStore] = open_objects
        self._partitions: int = partitions
        self._clock: Clock | None = clock

    def run(self, tasks: Iterable[RewriteTask], *, budget: Budget | None = None,
            observer: Observer | None = None) -> Iterator[RewriteOutcome]:
        """See `Executor.run`; the tasks are `CompactTokens`. One job after the other.

        The budget is asked before a job begins, and charged with what it wrote; Spark's workers do not see it.
        """
        return LocalExecutor(clock=self._clock).run([_OnSpark(task.name, task, self) for task in tasks], budget=budget,
                                                    observer=observer)

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
            TaskFailed: the Spark job failed.
        """
        given = Budget() if budget is None else budget
        given.check()
        files, rule = self._committed.files, self._committed.rule
        staged = _Staged(files, rule, files.read_metarange(base, rule))
        try:
            staged.put(_newest(newest_first))
            if not staged.changes:
                return self._committed.apply(base, (), budget=given)
            parts = staged.parts(self._partitions)
            merge = _MergePart(self._open_objects, files.prefix, rule, files.range_format)
            mapped = map_items(self._spark, parts, merge, parts=self._partitions,
                               weights=[each.size_bytes for each in parts])
        finally:
            # Those of a process that died are removed by a garbage collection.
            delete_many(files.objects, [each.ref.key for each in staged.changes])
        made = [ClosedRange(entry) for entry in staged.entries(touched=False)]
        counts, untouched = Counter[str](), len(made)
        for each in mapped:
            if each.value is None:
                assert each.error is not None
                raise each.error
            made += each.value.closed
            counts.update(each.value.counts)
        applied = stitch(files, rule, staged.base, base, made, given)
        given.charge(sum(each.entry.size_bytes for each in made if each.is_new))
        read = staged.entries(touched=True)
        return attrs.evolve(
            applied, added=counts["added"], changed=counts["changed"], removed=counts["removed"],
            ranges_reused=min(applied.ranges_reused, untouched),
            ranges_read=applied.ranges_read + len(read),
            bytes_read=applied.bytes_read + sum(entry.size_bytes for entry in read))


@attrs.frozen
class _OnSpark:
    """A `CompactTokens` whose merge is a job of Spark's."""

    name: str
    task: RewriteTask
    on: StagingMerge

    def run(self, attempt: Attempt) -> CompactedTokens:
        task, began = self.task, attempt.clock.monotonic()
        if not isinstance(task, CompactTokens):
            raise InvalidInput(f"task {task.name!r} is a {type(task).__name__}; StagingMerge runs CompactTokens only")
        with task.stores.open() as (tokens, _):
            applied = self.on.merge(task.base, [changes_of(tokens, task.newest_first)], budget=attempt.budget)
        return CompactedTokens(task=task.name, attempt=attempt.id, files=(), bytes_read=applied.bytes_read,
                               bytes_written=applied.bytes_written, seconds=attempt.clock.monotonic() - began,
                               applied=applied)


def _newest(layers: Sequence[Changes]) -> Iterator[tuple[bytes, Change]]:
    """The newest change of each key, in order; a key that one layer has twice comes twice."""
    def numbered(layer: int, changes: Changes) -> Iterator[tuple[bytes, int, Change]]:
        return ((key, layer, change) for key, change in changes)

    last: tuple[bytes, int] | None = None
    for key, layer, change in heapq.merge(*map(numbered, range(len(layers)), layers), key=itemgetter(0)):
        if last is None or key != last[0] or layer == last[1]:
            yield key, change
        last = key, layer


@attrs.frozen
class _ChangesFile:
    """An object that holds a pickled `ChangeBatch` of these keys."""

    ref: ObjectRef
    min_key: bytes
    max_key: bytes


@attrs.frozen
class _Part:
    """The keys above `above`, up to `last` unless that is `None`: the changes and ranges among which theirs are."""

    above: bytes
    last: bytes | None
    changes: Sequence[_ChangesFile]
    ranges: Sequence[RangeEntry]

    @property
    def size_bytes(self) -> int:
        """About how much is to be read."""
        return sum(each.ref.size_bytes for each in self.changes) + sum(entry.size_bytes for entry in self.ranges)


class _Staged:
    """The changes on their way to the workers, and which of the base's ranges they touch."""

    def __init__(self, files: RangeFiles, rule: SplitRule, base: MetaRange) -> None:
        self._files = files
        self._rule = rule
        self.base = base
        self.changes: list[_ChangesFile] = []
        self._samples: list[bytes] = []
        # Under another rule, every range is cut anew.
        self._touched: set[int] = set(range(len(base.entries))) if base.rule != rule else set()

    def put(self, changes: Changes) -> None:
        """Put the changes where workers can read them, a bounded batch at a time."""
        reader = ChangeReader(changes)
        while batch := reader.take(None):
            ref = self._files.objects.create(f"{self._files.prefix}{INCOMING}{self._files.new_name()}",
                                             pickle.dumps(batch))
            self.changes.append(_ChangesFile(ref, batch.keys[0], batch.keys[-1]))
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

    def entries(self, *, touched: bool) -> list[RangeEntry]:
        """The base's ranges that have changes, or the others."""
        return [entry for place, entry in enumerate(self.base.entries) if (place in self._touched) == touched]

    def parts(self, count: int) -> list[_Part]:
        """About so many parts, and more wherever a range without changes lies between."""
        ranges = self.entries(touched=True)
        borders = [b"", *self._bounds(count, [entry.max_key for entry in ranges]), None]
        return [_Part(above or b"", last, changes, touched) for above, last in pairwise(borders)
                for changes, touched in [(_between(self.changes, above or b"", last),
                                          _between(ranges, above or b"", last))]
                if changes or touched]

    def _bounds(self, count: int, ends: list[bytes]) -> list[bytes]:
        """The last keys of all parts but the last: those of ranges, if enough have changes, else of samples."""
        entries = self.base.entries
        flips = {entry.max_key for place, entry in enumerate(entries)
                 if (place in self._touched) != (place + 1 in self._touched or place + 1 == len(entries))}
        chosen = ends if len(ends) >= count else self._samples
        return sorted(flips | {chosen[place * len(chosen) // count] for place in range(1, count)})


def _between(pieces: Sequence[_PieceT], above: bytes, last: bytes | None) -> Sequence[_PieceT]:
    """Those that may have keys above the one and up to the other, of pieces in order."""
    start = bisect_right(pieces, above, key=lambda each: each.max_key)
    stop = len(pieces) if last is None else bisect_right(pieces, last, key=lambda each: each.min_key)
    return pieces[start:stop]


@attrs.frozen
class _Made:
    """The ranges that came out of a part, the first and last of which may be cut anew, and how many keys changed."""

    closed: list[ClosedRange]
    counts: Counter[str]


@attrs.frozen
class _MergePart:
    open_objects: Callable[[], ObjectStore]
    prefix: str
    rule: SplitRule
    range_format: RangeFormat

    def __call__(self, part: _Part) -> _Made:
        with self.open_objects() as objects:
            files = RangeFiles(objects, prefix=self.prefix, range_format=self.range_format, cache_bytes=0)
            writer = RangeWriter(files, self.rule, {entry.range_id for entry in part.ranges}, Budget())
            counts = Counter[str]()
            for rows, changes in _in_order(files, part):
                merged = rows.merged(changes)
                counts.update(added=merged.added, changed=merged.changed, removed=merged.removed)
                writer.add(merged.rows, merged.rows.cut_keys(self.rule.raggedness))
            return _Made(writer.end(), counts)


def _in_order(files: RangeFiles, part: _Part) -> Iterator[tuple[Rows, ChangeBatch]]:
    """The part's records and changes, some at a time: in each pair are those that meet."""
    def batches() -> Iterator[ChangeBatch]:
        for each in part.changes:
            batch: ChangeBatch = pickle.loads(read_checked(files.objects, each.ref))
            yield batch.part(bisect_right(batch.keys, part.above),
                             len(batch) if part.last is None else bisect_right(batch.keys, part.last))

    changes = ChangeReader(batches=filter(None, batches()))
    for entry in part.ranges:
        rows = files.read_range(entry, keep=False)
        stop = len(rows) if part.last is None else rows.find(part.last + b"\0")
        yield from changes.laid_over(rows.part(rows.find(part.above + b"\0"), stop), entry.max_key)
    yield from changes.laid_over(files.range_format.empty, None)
