"""The segments of a log in order, the open files behind them, and the leases of those who read."""

from __future__ import annotations

import itertools
import os
import threading
from bisect import bisect_right
from collections.abc import Iterable, Sequence

import attrs

from compactlib.errors import CompactlibError, CorruptData, NotFound, StorageError
from compactlib.files import StrPath, list_folder
from compactlib.raftlog.commit import superseded
from compactlib.raftlog.model import Entry, SegmentRef
from compactlib.raftlog.names import segment_name, segment_number
from compactlib.raftlog.refs import audit_refs, merge_refs
from compactlib.raftlog.segment import SegmentReader

DEFAULT_MAX_OPEN = 128
_MAX_OPEN_INDEX_ENTRIES = 2_000_000


@attrs.frozen
class KnownSegment:
    """What is remembered of a segment without reading it again.

    Attributes:
        ref: its number and the range that counts.
        entries: index records in the file, overwritten ones included.
        data_bytes: payload bytes in the file, overwritten ones included.
        format: `"native"`, `"ra1"` or `"ra2"`.
    """

    ref: SegmentRef
    entries: int
    data_bytes: int
    format: str


@attrs.frozen
class _View:
    refs: tuple[SegmentRef, ...]
    firsts: tuple[int, ...]


class SegmentSet:
    """Which segment answers for which index, and an open reader for each that is asked.

    Lookups bisect; readers are kept open, up to `max_open` of them (and about 2 million index records), so that
    random reads do not reopen files. Threads may read while one of them changes the list: a change is one assignment.

    Args:
        folder: where the segments are.
        known: the segments, oldest first, ranges as in their files.
        max_open: readers kept open.
    """

    def __init__(self, folder: StrPath, known: Iterable[KnownSegment] = (), *,
                 max_open: int = DEFAULT_MAX_OPEN) -> None:
        self._folder = os.fspath(folder)
        self._max_open = max_open
        self._readers: dict[int, SegmentReader] = {}
        self._lock = threading.Lock()
        self._epochs = itertools.count(1)
        self._epoch = 0
        self._leases: set[Lease] = set()
        self._known: dict[int, KnownSegment] = {}
        self._view = _view_of(())
        self._covered: tuple[int, ...] = ()
        self.reset(known)

    @property
    def refs(self) -> tuple[SegmentRef, ...]:
        """The references, oldest first; an immutable snapshot."""
        return self._view.refs

    @property
    def covered(self) -> tuple[int, ...]:
        """Segments of which nothing counted any more when the set was made."""
        return self._covered

    @property
    def open_readers(self) -> int:
        """How many files are open."""
        return len(self._readers)

    def reset(self, known: Iterable[KnownSegment]) -> None:
        """Start over with these segments, as they are on the disk; leases stay."""
        self._known = {segment.ref.number: segment for segment in known}
        merged = merge_refs(sorted(segment.ref for segment in self._known.values()))
        self._covered = merged.covered
        self._switch(merged.refs)
        self.forget_readers(list(self._readers))

    def is_open(self, number: int) -> bool:
        """Whether a segment has an open reader."""
        return number in self._readers

    def known(self, ref: SegmentRef) -> KnownSegment:
        """What is remembered of a segment, with its present range."""
        return attrs.evolve(self._known[ref.number], ref=ref)

    def find(self, index: int) -> SegmentRef | None:
        """The segment to ask for `index`, if a range covers it. O(log segments)."""
        view = self._view
        place = bisect_right(view.firsts, index) - 1
        if place < 0 or view.refs[place].last < index:
            return None
        return view.refs[place]

    def read(self, index: int) -> Entry | None:
        """The entry of `index`, or `None` if no segment holds it.

        Raises:
            CorruptData: the entry or its segment is damaged.
        """
        ref = self.find(index)
        if ref is None:
            return None
        reader = self._readers.get(ref.number)
        if reader is None:
            reader = self.reader(ref.number)
        return reader.read(index)

    def reader(self, number: int) -> SegmentReader:
        """The open reader of a segment; opens it, and lets the one opened longest ago go if there are too many.

        A segment that was merged into another leads there through its link.

        Raises:
            NotFound: the file is gone; the list has changed meanwhile.
            CorruptData, Unsupported, StorageError: it cannot be opened.
        """
        reader = self._readers.get(number)
        if reader is None:
            reader = open_segment(self._folder, number)
            self.keep_open(number, reader)
        return reader

    def keep_open(self, number: int, reader: SegmentReader) -> None:
        """Take `reader` as the open one of a segment; readers are closed when nobody holds them any more."""
        with self._lock:
            self._readers[number] = reader
            entries = sum(len(kept.index) for kept in self._readers.values()) if len(self._readers) > 1 else 0
            while len(self._readers) > self._max_open or (entries > _MAX_OPEN_INDEX_ENTRIES and len(self._readers) > 1):
                oldest = next(iter(self._readers))
                entries -= len(self._readers.pop(oldest).index)

    def forget_readers(self, numbers: Iterable[int]) -> None:
        """Open these segments anew when they are asked for again."""
        with self._lock:
            for number in numbers:
                self._readers.pop(number, None)

    def put(self, segment: KnownSegment) -> tuple[int, ...]:
        """Add a newest segment, or update the range of the newest; returns the segments that are now covered."""
        merged = merge_refs(self._view.refs, [segment.ref])
        self._known[segment.ref.number] = segment
        self._switch(merged.refs)
        return merged.covered

    def replace(self, numbers: Iterable[int], by: KnownSegment | None = None) -> None:
        """Take segments out of the list, and put the one that holds what was live in them in their place."""
        gone = set(numbers)
        refs = [ref for ref in self._view.refs if ref.number not in gone]
        if by is not None:
            refs.append(by.ref)
            refs.sort()
            self._known[by.ref.number] = by
        self._switch(refs)
        self.forget_readers(gone)

    def _switch(self, refs: Sequence[SegmentRef]) -> None:
        self._view = _view_of(refs)
        listed = {ref.number for ref in refs}
        for number in self._known.keys() - listed:
            del self._known[number]
        self._epoch = next(self._epochs)

    @property
    def epoch(self) -> int:
        """Counts the changes of the list."""
        return self._epoch

    def lease(self) -> Lease:
        """Keep every file that can be read now from being removed until the lease is released."""
        with self._lock:
            lease = Lease(self, self._epoch)
            self._leases.add(lease)
        return lease

    def is_leased(self, epoch: int) -> bool:
        """Whether a lease is held that was taken before the change number `epoch`."""
        with self._lock:
            return any(lease.epoch < epoch for lease in self._leases)

    def _release(self, lease: Lease) -> None:
        with self._lock:
            self._leases.discard(lease)

    def audit(self) -> None:
        """Check that the references ascend without overlap and that each is known.

        Raises:
            CompactlibError: they do not.
        """
        refs = self._view.refs
        audit_refs(refs)
        if {ref.number for ref in refs} != set(self._known) or self._view.firsts != tuple(ref.first for ref in refs):
            raise CompactlibError(f"segments known {sorted(self._known)} differ from those listed {refs}")

    def close(self) -> None:
        """Let all readers go."""
        with self._lock:
            self._readers.clear()


class Lease:
    """Holds files in place for a reader, in this process. A context manager; releasing again does nothing."""

    def __init__(self, segments: SegmentSet, epoch: int) -> None:
        self._segments = segments
        self.epoch = epoch

    def release(self) -> None:
        """Let the files go; what was waiting for it is removed by the next compaction or `reclaim`."""
        self._segments._release(self)

    def __enter__(self) -> Lease:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def __repr__(self) -> str:
        return f"Lease(epoch={self.epoch})"


def open_segment(folder: StrPath, number: int, *, newest: bool = False) -> SegmentReader:
    """Open segment `number`, or the one it was merged into.

    Raises:
        NotFound: there is no such file.
        CorruptData, Unsupported, StorageError: it cannot be opened.
    """
    path = os.path.join(folder, segment_name(number))
    merged = os.path.islink(path)
    try:
        return SegmentReader(path, tail="cut" if newest else "refuse", number=None if merged else number)
    except (CorruptData, StorageError) as error:
        if not merged and os.path.islink(path):
            # It became a link between the look and the opening.
            return open_segment(folder, number)
        if isinstance(error, CorruptData) or os.path.exists(path):
            raise
        raise NotFound(f"segment {path} is gone; look the index up again") from error


def list_segments(folder: StrPath) -> list[int]:
    """The numbers of the segments in a folder, ascending; those merged into others are left out, linked yet or not."""
    names = list_folder(folder)
    merged = superseded(folder, names)
    return [number for name in names if (number := segment_number(name)) is not None and number not in merged
            and not os.path.islink(os.path.join(folder, name))]


def know_segment(number: int, reader: SegmentReader) -> KnownSegment | None:
    """What to remember of an open segment; `None` if it holds nothing."""
    index = reader.index
    if not len(index):
        return None
    ref = SegmentRef(number, index.first, index.last)
    return KnownSegment(ref, index.entries, index.data_bytes, reader.format)


def _view_of(refs: Iterable[SegmentRef]) -> _View:
    listed = tuple(refs)
    return _View(listed, tuple(ref.first for ref in listed))
