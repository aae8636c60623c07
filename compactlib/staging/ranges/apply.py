# SPDX-License-Identifier: Apache-2.0
"""Apply: make changes to a metarange, and read only the ranges that they touch.

The apply walks the base's ranges and the changes together. It reuses a range without changes unread, if the result is
at a cut, which is where the base has a cut too. A range with a change is read, and cut again from its start. If the new
cut equals the old one, the next range can be reused. If not (the last key of the range was removed, say) the following
range is read too, until the cuts meet. So the result has the cuts and the ids of a metarange written from scratch.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Set
from contextlib import closing
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Final, TypeVar

from compactlib.budget import Budget
from compactlib.observer import Observer, Observers
from compactlib.staging.ranges.files import RangeFiles
from compactlib.staging.ranges.metarange import MetaRange
from compactlib.staging.ranges.rows import ChangeBatch, Rows
from compactlib.staging.values import Applied, Changes, MetaRangeId, RangeEntry, RangeId

if TYPE_CHECKING:
    from concurrent.futures import ThreadPoolExecutor

_LARGE_BYTES: Final = 1 << 20
"""Ranges of at least this size are read and written in the background."""

_MAX_WRITES: Final = 2
"""Ranges in memory that are written or wait for it."""

T = TypeVar("T")


class _Background:
    """A thread that works on large ranges, one after the other. Close it at the end."""

    def __init__(self) -> None:
        self._pool: ThreadPoolExecutor | None = None

    def start(self, size_bytes: int, work: Callable[[], T]) -> Callable[[], T]:
        """Do the work on a range of this size, in the thread if it is large; return what waits for the result."""
        if size_bytes >= _LARGE_BYTES:
            try:
                # Imported here, because the import takes as long as the rest of the package.
                from concurrent.futures import ThreadPoolExecutor

                self._pool = self._pool or ThreadPoolExecutor(1, thread_name_prefix="compactlib-ranges")
                return self._pool.submit(work).result
            except RuntimeError:  # no thread can start, as at the end of the interpreter
                self._pool = None  # it holds the work, which a later thread would repeat
        done = work()
        return lambda: done

    def close(self) -> None:
        """Drop work that has not begun, and wait for the thread's end."""
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)


class RangeWriter:
    """Writes a metarange. Its files are unreachable until `finish` has returned. For one thread; close it at the end.

    A large range is hashed and written in the background while the caller makes the next two. A later write, or `end`,
    raises its error.

    Ranges of the base (`known`) are not written again; those of other metaranges (`elsewhere`) are marked as reused.
    The budget is charged the logical bytes of each range before its write. `ranges_written` and `bytes_written` are set
    by `end`, and count adopted ranges of other writers too.
    """

    def __init__(self, files: RangeFiles, known: Set[RangeId], budget: Budget, *,
                 elsewhere: Set[RangeId] = frozenset()) -> None:
        self.ranges_written: int = 0
        self.bytes_written: int = 0
        self._files = files
        self._known = known
        self._budget: Budget = budget.child()  # for `close`
        self._elsewhere = elsewhere
        self._open: Rows = files.range_format.rows(())
        self._background = _Background()
        self._closed: list[Callable[[], RangeEntry]] = []
        self._writes: deque[Callable[[], object]] = deque()

    @property
    def is_between_ranges(self) -> bool:
        """Whether the next record begins a range."""
        return len(self._open) == 0

    def add(self, rows: Rows, cut_keys: list[bytes]) -> None:
        """Append records with keys above all earlier keys, cut at those of `cut_keys` that are among them."""
        if len(rows) == 0:
            return
        run = self._open.followed_by(rows) if len(self._open) else rows
        places = [place for key in cut_keys if (place := run.find(key)) < len(run) and run.key(place) == key]
        start = 0
        for stop in self._files.rule.cuts(run.ends(), places):
            self._write(run.part(start, stop))
            start = stop
        self._open = run.part(start, len(run)) if start else run

    def adopt(self, entry: RangeEntry) -> None:
        """Append a whole range of the base or of another writer, unread."""
        self._closed.append(lambda: entry)

    def end(self) -> list[RangeEntry]:
        """Close the last range, and return all ranges, which are durable."""
        if len(self._open):
            self._write(self._open)
            self._open = self._files.range_format.rows(())
        entries = [entry_of() for entry_of in self._closed]
        existed = self._known | self._elsewhere
        written = [entry for entry in entries if entry.range_id not in existed]
        self.ranges_written, self.bytes_written = len(written), sum(entry.size_bytes for entry in written)
        return entries

    def finish(self, base_id: MetaRangeId | None) -> MetaRangeId:
        """Close the last range, and publish the metarange, unless it is the base."""
        entries = self.end()
        metarange_id, data = MetaRange(self._files.rule, entries).encode()
        if metarange_id != base_id:
            self._files.write_metarange(metarange_id, data)
            new = [self._files.path_of_range(entry.range_id) for entry in entries
                   if entry.range_id not in self._known]
            self._files.confirm([*new, self._files.path_of_metarange(metarange_id)])
        return metarange_id

    def close(self) -> None:
        """Cancel writes that wait, for the budget too; wait for the one that runs."""
        self._budget.cancel()
        self._background.close()

    def _write(self, rows: Rows) -> None:
        """Append a range of these records."""
        if len(self._writes) == _MAX_WRITES:
            self._writes.popleft()()
        entry_of = self._background.start(rows.size_bytes, partial(self._written, rows))
        self._writes.append(entry_of)
        self._closed.append(entry_of)

    def _written(self, rows: Rows) -> RangeEntry:
        """Write a range, unless it exists; return its entry."""
        range_id = rows.content_id()
        entry = RangeEntry(range_id, rows.key(0), rows.key(len(rows) - 1), len(rows), rows.size_bytes)
        if range_id not in self._known:
            if range_id in self._elsewhere:
                self._files.mark_reuse(range_id)
            else:
                self._budget.spend(entry.size_bytes)
                self._files.write_range(range_id, rows)
        return entry


MAX_BATCH: Final = 32_768
"""Changes held in memory at once."""
MAX_BATCH_BYTES: Final = 8 << 20
"""A batch ends once it has this many bytes."""

_NONE: Final = ChangeBatch([], [], [])


def batches_of(changes: Changes) -> Iterator[ChangeBatch]:
    """Read changes a bounded batch at a time; each is checked, see `ChangeBatch.of`."""
    source, last = iter(changes), b""
    while batch := ChangeBatch.of(islice(source, MAX_BATCH), after=last, most_bytes=MAX_BATCH_BYTES):
        yield batch
        last = batch.keys[-1]


class _Changes:
    """Peeks at the next change, and splits batches at the ends of ranges. For one thread."""

    def __init__(self, batches: Iterator[ChangeBatch]) -> None:
        self._batches = batches
        self._batch = _NONE
        self._at = 0

    def peek(self) -> bytes | None:
        """Return the next change's key; `None` at the end."""
        if self._at == len(self._batch):
            self._batch, self._at = next(self._batches, _NONE), 0
        return self._batch.keys[self._at] if self._batch.keys else None

    def take(self, up_to: bytes | None) -> ChangeBatch:
        """Return the next changes with keys <= `up_to` (`None`: any) that are in memory; may be empty."""
        if self.peek() is None:
            return _NONE
        keys = self._batch.keys
        stop = len(keys) if up_to is None else bisect_right(keys, up_to, self._at)
        taken = self._batch.part(self._at, stop)
        self._at = stop
        return taken

    def has_any(self, above: bytes, up_to: bytes) -> bool:
        """Whether a change in memory has a key > `above` and <= `up_to`."""
        keys = self._batch.keys
        return bisect_right(keys, above, self._at) < bisect_right(keys, up_to, self._at)

    def laid_over(self, rows: Rows, up_to: bytes) -> Iterator[tuple[Rows, ChangeBatch]]:
        """Yield parts of a range's rows up to a key, each with its changes; last the rows after the last change."""
        at = 0
        while batch := self.take(up_to):
            more = self.peek()
            stop = len(rows) if more is None or more > up_to else rows.find(batch.keys[-1] + b"\0")
            yield rows.part(at, stop), batch
            at = stop
        yield rows.part(at, len(rows)), _NONE


class Apply:
    """A running apply.

    `known` are ranges that exist already, by default the base's. The base may also be ranges that parallel writers made
    of parts of another base: the first of a writer may not begin at a cut, and its last may not end at one. `elsewhere`
    are ranges of other metaranges, which are not written again. The observer is notified of progress in ranges of the
    base; changes after the last range count as another range.
    """

    def __init__(self, files: RangeFiles, base: MetaRange, batches: Iterator[ChangeBatch], budget: Budget, *,
                 known: Set[RangeId] | None = None, elsewhere: Iterable[RangeEntry] = (),
                 observer: Observer | None = None) -> None:
        self.counts: Counter[str] = Counter(added=0, changed=0, removed=0, ranges_reused=0, ranges_read=0, bytes_read=0)
        self._observer: Observer = Observers(observer)
        self._work = "apply"
        self._files = files
        self._rule = files.rule
        self._base = base
        self._changes = _Changes(batches)
        self._known: Set[RangeId] = base.ids if known is None else known
        self._writer = RangeWriter(files, self._known, budget, elsewhere={entry.range_id for entry in elsewhere})
        # Reads the next range while one is merged.
        self._reader = _Background()
        self._next_rows: Callable[[], Rows] | None = None

    def run(self, base_id: MetaRangeId | None) -> Applied:
        """Apply all changes, and publish the result, unless it is `base_id`; see `CommittedRanges.apply`."""
        self._work = f"apply to {'nothing' if base_id is None else base_id[:12]}"
        with closing(self._writer) as writer, closing(self._reader):
            self._walk()
            metarange_id = writer.finish(base_id)
        self._notify(len(self._base.entries) + 1)
        return Applied(metarange_id=metarange_id, ranges_written=writer.ranges_written,
                       bytes_written=writer.bytes_written, **self.counts)

    def ranges(self) -> list[RangeEntry]:
        """Apply all changes and return the ranges, durable but not published: a part of a larger result."""
        with closing(self._writer) as writer, closing(self._reader):
            self._walk()
            return writer.end()

    def _walk(self) -> None:
        for place, entry in enumerate(self._base.entries):
            if self._can_stay(entry, is_last=place == len(self._base.entries) - 1):
                self.counts["ranges_reused"] += entry.range_id in self._known
                self._writer.adopt(entry)
            else:
                self._rewrite(place)
            self._notify(place + 1)
        while batch := self._changes.take(None):
            self._merge(self._files.range_format.rows(()), batch, [])

    def _notify(self, done: int) -> None:
        self._observer.event("progress", work=self._work, done=done, total=len(self._base.entries) + 1, unit="ranges")

    def _can_stay(self, entry: RangeEntry, *, is_last: bool) -> bool:
        if not self._writer.is_between_ranges or self._base.rule != self._rule:
            return False
        change = self._changes.peek()
        if change is not None and change <= entry.max_key:
            return False
        # If only its end has closed the last range, the following changes belong to it.
        return (is_last and change is None) or self._rule.closes(entry.max_key, entry.size_bytes)

    def _rewrite(self, place: int) -> None:
        entry, following = self._base.entries[place], self._base.entries[place + 1:place + 2]
        rows = self._next_rows() if self._next_rows is not None else self._read(entry)
        self._next_rows = None
        if following and self._changes.has_any(entry.max_key, following[0].max_key):
            self._next_rows = self._reader.start(following[0].size_bytes, partial(self._read, following[0]))
        self.counts.update(ranges_read=1, bytes_read=entry.size_bytes)
        cut_keys = self._cut_keys(rows)
        for part, batch in self._changes.laid_over(rows, entry.max_key):
            if batch:
                self._merge(part, batch, cut_keys)
            else:
                self._writer.add(part, cut_keys)

    def _read(self, entry: RangeEntry) -> Rows:
        return self._files.read_range(entry, keep=False)

    def _cut_keys(self, rows: Rows) -> list[bytes]:
        """Return the cut keys of a range of the base. Its rule leaves few candidates."""
        rule = self._rule
        if self._base.rule != rule or not len(rows):
            return rows.cut_keys(rule.raggedness)
        last = len(rows) - 1
        before_minimum = bisect_left(rows.ends(), rule.min_bytes) if rule.min_bytes else 0
        early = rows.part(0, min(before_minimum, last)).cut_keys(rule.raggedness)
        return [*early, rows.key(last)] if rule.is_cut(rows.key(last)) else early

    def _merge(self, rows: Rows, batch: ChangeBatch, cut_keys: list[bytes]) -> None:
        merged = rows.merged(batch)
        self.counts.update(added=merged.added, changed=merged.changed, removed=merged.removed)
        self._writer.add(merged.rows, sorted({*cut_keys, *batch.cut_keys(self._rule.raggedness)}))
