# SPDX-License-Identifier: Apache-2.0
"""The rewrite of a compaction: from tokens and a base to a metarange, as a task for any executor or in parallel parts.

Ranges and metaranges are immutable and named by their content, so a task is idempotent: it may run twice, concurrently,
or die at any step. Garbage collection removes its orphans.

`MergeInParts` rewrites large branches in any processes. This process writes the changes as objects, in order, and
divides the keys into parts. A part reads its changes and applies them to the base's ranges of its keys. This process
cuts the ranges at the borders of parts again, and publishes the metarange. The ids are those of a merge in one part.
"""

from __future__ import annotations

import pickle
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, suppress
from functools import partial
from itertools import pairwise
from typing import Any, Final, TypeAlias, TypeVar

import attrs

from compactlib._arguments import require_whole
from compactlib.budget import Budget
from compactlib.errors import CompactlibError, InvalidInput
from compactlib.executors import LocalExecutor
from compactlib.kv import KVStore
from compactlib.objects import ObjectRef, ObjectStore, read_checked
from compactlib.observer import Observer
from compactlib.rewrite import Attempt, RewriteOutcome, RewriteResult, RewriteTask
from compactlib.staging.ranges.apply import Apply, batches_of
from compactlib.staging.ranges.committed import CommittedRanges
from compactlib.staging.ranges.files import INCOMING, RangeFiles
from compactlib.staging.ranges.metarange import MetaRange, SplitRule
from compactlib.staging.ranges.rows import ChangeBatch, RangeFormat
from compactlib.staging.tokens import MergedTokens
from compactlib.staging.values import Applied, Changes, MetaRangeId, RangeEntry, StagingToken

OpenStores: TypeAlias = Callable[[], AbstractContextManager[tuple[KVStore, CommittedRanges]]]
"""Opens the key-value store and the committed layer in the process of a task, and closes them after it.

For executors with other processes a function of a module with `contextlib.contextmanager`, which can be pickled.
"""


@attrs.frozen(kw_only=True)
class CompactedTokens(RewriteResult):
    """The result of `CompactTokens`: the metarange and the counts."""

    applied: Applied


@attrs.frozen
class CompactTokens:
    """Apply sealed tokens to a base. O(staged entries + ranges they touch); memory for a few ranges.

    `name` is unique within a call of an executor; `apply` replaces the method of the committed layer.
    """

    name: str
    stores: OpenStores
    base: MetaRangeId | None
    newest_first: tuple[StagingToken, ...]
    apply: Callable[..., Applied] | None = None

    def run(self, attempt: Attempt) -> CompactedTokens:
        """Apply the tokens. An unreadable token or range is an error."""
        began = attempt.clock.monotonic()
        with self.stores() as (store, committed):
            apply = self.apply or committed.apply
            applied = apply(self.base, MergedTokens(store, self.newest_first), budget=attempt.budget,
                            observer=attempt.observer)
        return CompactedTokens(task=self.name, attempt=attempt.id, files=(), bytes_read=applied.bytes_read,
                               bytes_written=applied.bytes_written, seconds=attempt.clock.monotonic() - began,
                               applied=applied)


_MOST_SAMPLES: Final = 10_000
_PieceT = TypeVar("_PieceT", "_ChangesFile", RangeEntry)

RunParts: TypeAlias = Callable[[Callable[[Any], Any], Sequence[Any]], Iterable[Any]]
"""Calls a function with each part, in any processes, and yields the results in the order of the parts.

Function, parts and results are picklable. It raises the errors of the calls; a call may be repeated.
"""


class MergeInParts:
    """Merges changes into a metarange, in parts that run anywhere. Also an `Executor` for the tasks of `compact()`.

    Args:
        committed: the layer to change.
        open_objects: opens the object store of `committed` in the process of a part; picklable.
        run_parts: runs the parts.
        partitions: number of parts, >= 1.
    """

    def __init__(self, committed: CommittedRanges, open_objects: Callable[[], ObjectStore], run_parts: RunParts, *,
                 partitions: int = 8) -> None:
        self._committed: CommittedRanges = committed
        self._open_objects: Callable[[], ObjectStore] = open_objects
        self._run_parts: RunParts = run_parts
        self._partitions: int = require_whole("partitions", partitions, 1)

    def run(self, tasks: Iterable[RewriteTask], *, budget: Budget | None = None,
            observer: Observer | None = None) -> Iterator[RewriteOutcome]:
        """Run the tasks, each a `CompactTokens`, one after another; see `Executor.run`.

        The budget is checked before the parts of a task begin, and charged with their bytes after them.
        """
        listed: list[Any] = [*tasks]
        return LocalExecutor().run([attrs.evolve(task, apply=self.apply) for task in listed], budget=budget,
                                   observer=observer)

    def apply(self, base: MetaRangeId | None, changes: Changes, *, budget: Budget | None = None,
              observer: Observer | None = None) -> Applied:
        """Apply changes as `CommittedRanges.apply` does, without events; also raises the errors of `run_parts`.

        Changes pass through this process and the object store to the parts. The parts read the base's ranges that have
        changes. The budget is checked before they begin.
        """
        given = Budget() if budget is None else budget
        given.check()
        files = self._committed
        metarange = files.read_metarange(base)
        staged: list[_ChangesFile] = []
        try:
            samples = _put(files, changes, staged)
            if not staged:
                return self._committed.apply(base, (), budget=given)
            borders = [b"", *_bounds(metarange, files.rule, samples, self._partitions), None]
            parts = [_Part(above or b"", last, _between(staged, above or b"", last),
                           _between(metarange.entries, above or b"", last)) for above, last in pairwise(borders)]
            merge = partial(_merge_part, self._open_objects, files.prefix, files.rule, metarange.rule,
                            files.range_format)
            merged = list(self._run_parts(merge, parts))
        finally:
            # A garbage collection removes leftovers, as of a process that died.
            with suppress(CompactlibError):
                files.objects.delete([each.ref.key for each in staged])
        if len(merged) != len(parts) or not all(
                part.has(each) for part, (ranges, _) in zip(parts, merged, strict=True) for each in ranges):
            raise InvalidInput(f"run_parts gave {len(merged)} results for {len(parts)} parts, or those of other parts; "
                               f"give one for each part, in their order")
        made, known, counts = list[RangeEntry](), metarange.ids, Counter[str]()
        for ranges, counted in merged:
            made += ranges
            counts.update(counted)
        # The ranges at a border of two parts are read and cut again, until the cuts meet.
        applied = Apply(files, MetaRange(files.rule, made), iter(()), given, known=known).run(base)
        given.charge(sum(each.size_bytes for each in made if each.range_id not in known))
        counts.update(ranges_read=applied.ranges_read, bytes_read=applied.bytes_read)
        counts["ranges_reused"] = min(applied.ranges_reused, counts["ranges_reused"])
        return Applied(metarange_id=applied.metarange_id, ranges_written=applied.ranges_written,
                       bytes_written=applied.bytes_written, **counts)


@attrs.frozen
class _ChangesFile:
    """An object that holds a pickled `ChangeBatch` of these keys."""

    ref: ObjectRef
    min_key: bytes
    max_key: bytes


@attrs.frozen
class _Part:
    """The keys above `above` and up to `last` (`None`: all), with the changes and ranges that may hold them."""

    above: bytes
    last: bytes | None
    changes: Sequence[_ChangesFile]
    ranges: Sequence[RangeEntry]

    def has(self, made: RangeEntry) -> bool:
        """Return whether the keys of a range are keys of this part."""
        return self.above < made.min_key and (self.last is None or made.max_key <= self.last)


def _put(files: RangeFiles, changes: Changes, staged: list[_ChangesFile]) -> list[bytes]:
    """Write the changes as objects, in bounded batches. Return an even sample of their keys."""
    samples: list[bytes] = []
    every = 1
    for batch in batches_of(changes):
        ref = files.objects.create(f"{files.prefix}{INCOMING}{files.new_name()}", pickle.dumps(batch))
        staged.append(_ChangesFile(ref, batch.keys[0], batch.keys[-1]))
        samples += batch.keys[::every]
        if len(samples) > _MOST_SAMPLES:
            samples, every = samples[::2], 2 * every
    return samples


def _bounds(base: MetaRange, rule: SplitRule, samples: Sequence[bytes], count: int) -> list[bytes]:
    """Return the last keys of all parts but the last: each the last key of a range, or a key after all ranges.

    Parts have about equal changes and ranges to read.
    """
    ends = [entry.max_key for entry in base.entries]
    # Under another rule, every range is rewritten.
    read = {base.find(key) for key in samples} - {len(ends)} if base.rule == rule else range(len(ends))
    # All changes together weigh as much as all ranges read.
    weighed = sorted([*samples, *(ends[place] for place in read for _ in range(-(-len(samples) // len(read))))])
    keys = [weighed[len(weighed) * number // count] for number in range(1, count)]
    return sorted({key if base.find(key) == len(ends) else ends[base.find(key)] for key in keys})


def _between(pieces: Sequence[_PieceT], above: bytes, last: bytes | None) -> Sequence[_PieceT]:
    """Return the pieces, given in order, that may have keys above `above` and up to `last`."""
    start = bisect_right(pieces, above, key=lambda each: each.max_key)
    stop = len(pieces) if last is None else bisect_right(pieces, last, key=lambda each: each.min_key)
    return pieces[start:stop]


def _merge_part(open_objects: Callable[[], ObjectStore], prefix: str, rule: SplitRule, base_rule: SplitRule,
                range_format: RangeFormat, part: _Part) -> tuple[list[RangeEntry], Counter[str]]:
    """Return the ranges of a part, of which the caller may cut the first and last again, and the counts."""
    with open_objects() as objects:
        files = RangeFiles(objects, prefix=prefix, rule=rule, range_format=range_format, cache_bytes=0)
        apply = Apply(files, MetaRange(base_rule, part.ranges), filter(None, _changes(objects, part)), Budget())
        return apply.ranges(), apply.counts


def _changes(objects: ObjectStore, part: _Part) -> Iterator[ChangeBatch]:
    for each in part.changes:
        batch: ChangeBatch = pickle.loads(read_checked(objects, each.ref))
        yield batch.part(bisect_right(batch.keys, part.above),
                         len(batch) if part.last is None else bisect_right(batch.keys, part.last))
