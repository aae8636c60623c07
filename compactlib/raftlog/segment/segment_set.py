# SPDX-License-Identifier: Apache-2.0
"""The segments of a log in order, the open files behind them, and the leases of those who read."""

from __future__ import annotations

import errno
import itertools
import os
import stat
import threading
from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterable, Mapping, Sequence

import attrs

from compactlib.errors import AuditFailed, Closed, CorruptData, NotFound, StorageError
from compactlib.files.disk import StrPath, list_folder, look_at
from compactlib.raftlog.model.names import kind_of, segment_name, segment_number
from compactlib.raftlog.model.refs import audit_refs, merge_refs
from compactlib.raftlog.model.values import Entry, SegmentRef
from compactlib.raftlog.segment.known import KnownSegment, superseded
from compactlib.raftlog.segment.reader import SegmentReader

DEFAULT_MAX_OPEN = 128
_MAX_OPEN_INDEX_ENTRIES = 2_000_000


@attrs.frozen
class _View:
    """The list at one moment; replaced as a whole, so that a thread never sees half a change."""

    refs: tuple[SegmentRef, ...]
    firsts: tuple[int, ...]
    known: Mapping[int, KnownSegment]


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
        self._replacements = 0
        self._leases: set[Lease] = set()
        self._view = _view_of((), {})
        self._covered: tuple[int, ...] = ()
        self._closed = False
        self.reset(known)

    @property
    def folder(self) -> str:
        """Where the segments are."""
        return self._folder

    @property
    def refs(self) -> tuple[SegmentRef, ...]:
        """The references, oldest first; an immutable snapshot."""
        return self._view.refs

    @property
    def covered(self) -> tuple[int, ...]:
        """Segments of which nothing counted any more when the set was made."""
        return self._covered

    def reset(self, known: Iterable[KnownSegment]) -> None:
        """Start over with these segments, as they are on the disk; leases stay."""
        listed = {segment.ref.number: segment for segment in known}
        merged = merge_refs(sorted(segment.ref for segment in listed.values()))
        self._covered = merged.covered
        with self._lock:
            self._replacements += 1
        self._switch(merged.refs, listed)
        self.forget_readers(list(self._readers))

    def open_entries(self, number: int) -> int:
        """How many index records the open reader of a segment knows of, -1 if none is open."""
        reader = self._readers.get(number)
        return -1 if reader is None else reader.index.entries

    def known(self) -> tuple[KnownSegment, ...]:
        """What is remembered of each segment, oldest first, with the range that counts now."""
        view = self._view
        return tuple(attrs.evolve(view.known[ref.number], ref=ref) for ref in view.refs)

    def known_of(self, number: int) -> KnownSegment | None:
        """What is remembered of one segment, as it was put in; `None` if it is not listed."""
        return self._view.known.get(number)

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
        # `find` written out: this is the path of every random read.
        view = self._view
        place = bisect_right(view.firsts, index) - 1
        if place < 0:
            return None
        ref = view.refs[place]
        if ref.last < index:
            return None
        reader = self._readers.get(ref.number)
        if reader is None:
            reader = self.reader(ref.number)
        return reader.read(index)

    def matching(self, first: int, last: int, term: int) -> int:
        """How many entries from `first` on, up to `last`, are held with this term: for a replay. O(entries), in C.

        Raises:
            NotFound: a segment has gone meanwhile; look again.
        """
        matched = 0
        while first + matched <= last and (ref := self.find(first + matched)) is not None:
            index = self.reader(ref.number).index
            position = index.find(first + matched)
            if position < 0:
                break
            wanted = min(last, ref.last) - first - matched + 1
            indexes = index.columns.indexes[position:position + wanted]
            terms = index.columns.terms[position:position + wanted]
            dense = indexes[-1] - indexes[0] + 1 == len(indexes)
            count = len(indexes) if dense and terms.count(term) == len(indexes) else _leading(indexes, terms, term)
            matched += count
            if count < wanted:
                break
        return matched

    def reader(self, number: int) -> SegmentReader:
        """The open reader of a segment; opens it, and lets the one opened longest ago go if there are too many.

        A segment that was merged into another leads there through its link.

        Raises:
            NotFound: the file is gone; the list has changed meanwhile.
            CorruptData, Unsupported, StorageError: it cannot be opened.
            Closed: the log was closed.
        """
        while True:
            reader = self._readers.get(number)
            if reader is not None:
                return reader
            if self._closed:
                raise Closed(f"the log in {self._folder} was closed; open it again")
            replacements = self._replacements
            refs = self._view.refs
            try:
                reader = open_segment(self._folder, number, newest=bool(refs) and refs[-1].number == number)
            except CorruptData as error:
                if replacements != self._replacements:
                    continue
                if number not in self._view.known:
                    # The newest, of which a disk that refused has left nothing, and which nobody has sealed.
                    raise NotFound(f"segment {number} of {self._folder} holds nothing any more; look the index up "
                                   f"again") from error
                raise
            with self._lock:
                # After a replacement the name may lead elsewhere: what was opened before it must not be kept.
                if replacements == self._replacements and not self._closed:
                    self._keep(number, reader)
                    return reader

    def keep_open(self, number: int, reader: SegmentReader) -> None:
        """Take `reader` as the open one of a segment; readers are closed with their last reference."""
        with self._lock:
            self._keep(number, reader)

    def _keep(self, number: int, reader: SegmentReader) -> None:
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
        view = self._view
        merged = merge_refs(view.refs, [segment.ref]) if _cuts(view.refs, segment.ref) else None
        with self._lock:
            # An open reader does not know what was appended since.
            self._replacements += 1
            self._readers.pop(segment.ref.number, None)
        if merged is not None:
            self._switch(merged.refs, {**view.known, segment.ref.number: segment})
            return merged.covered
        last = len(view.refs)
        self._splice(last - (last > 0 and view.refs[-1].number == segment.ref.number), last, segment)
        return ()

    def hiding(self, drops: Collection[int], above: int) -> frozenset[int]:
        """Which of `drops` must stay, since without them entries above index `above` would count again.

        A segment that a newer one cut still holds in its file what was taken back, and when the log is opened anew
        only the next segment's first index shows it. O(segments).
        """
        view = self._view
        needed: set[int] = set()
        dropped: int | None = None
        last_in_file = -1
        for ref in view.refs:
            if ref.number in drops:
                dropped = ref.number
                continue
            if dropped is not None and min(last_in_file, ref.first - 1) > above:
                needed.add(dropped)
            dropped, last_in_file = None, view.known[ref.number].ref.last
        return frozenset(needed)

    def drop(self, numbers: Iterable[int]) -> None:
        """Take segments out of the list."""
        gone = set(numbers)
        with self._lock:
            self._replacements += 1
        self._switch([ref for ref in self._view.refs if ref.number not in gone], self._view.known)
        self.forget_readers(gone)

    def merge(self, numbers: Iterable[int], by: KnownSegment) -> tuple[int, ...]:
        """Put the segment that holds what was live in others in their place; its name leads to its new file already.

        Returns it if it is covered: what was copied may have been taken back meanwhile, in part or as a whole.
        """
        number, gone = by.ref.number, set(numbers)
        with self._lock:
            # Before the list says that it holds more than the old file did. A reader that uses the list before then
            # finds everything that is live in the new file too.
            self._replacements += 1
            self._readers.pop(number, None)
        refs = self._view.refs
        start = bisect_left(refs, min(gone), key=_number)
        end = bisect_left(refs, max(gone) + 1, key=_number)
        covered: tuple[int, ...] = ()
        is_cut = end < len(refs) and by.ref.last >= refs[end].first
        if gone.issuperset(map(_number, refs[start:end])) and not is_cut:
            self._splice(start, end, by)
        else:
            kept = [ref for ref in refs if ref.number not in gone]
            merged = merge_refs(sorted([*kept, by.ref], key=_number))
            self._switch(merged.refs, {**self._view.known, number: by})
            covered = merged.covered
        self.forget_readers(gone - {number})
        return covered

    def _splice(self, start: int, end: int, by: KnownSegment) -> None:
        """Put one segment in the place of those from `start` to `end`. O(segments), in C."""
        refs, firsts, known = self._view.refs, self._view.firsts, dict(self._view.known)
        for ref in refs[start:end]:
            del known[ref.number]
        known[by.ref.number] = by
        self._show(_View((*refs[:start], by.ref, *refs[end:]), (*firsts[:start], by.ref.first, *firsts[end:]), known))

    def _switch(self, refs: Sequence[SegmentRef], known: Mapping[int, KnownSegment]) -> None:
        self._show(_view_of(refs, known))

    def _show(self, view: _View) -> None:
        # The list before its number: a lease taken between the two holds more than it must, never less. And without a
        # call in between, so that an interrupt comes before or after both.
        epoch = next(self._epochs)
        self._view = view
        self._epoch = epoch

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

    def oldest_lease(self) -> float | None:
        """Since when the oldest lease of a host's is held, in seconds since the epoch."""
        with self._lock:
            return min((lease.since for lease in self._leases if lease.since is not None), default=None)

    def _release(self, lease: Lease) -> None:
        with self._lock:
            self._leases.discard(lease)

    def audit(self) -> None:
        """Check that the references ascend without overlap and that each is known.

        Raises:
            AuditFailed: they do not.
        """
        view = self._view
        audit_refs(view.refs)
        if {ref.number for ref in view.refs} != set(view.known) or view.firsts != tuple(map(_first, view.refs)):
            raise AuditFailed(f"segments known {sorted(view.known)} differ from those listed {view.refs}")

    def close(self) -> None:
        """Let all readers go; none is opened any more, for a scan that was left half-way either."""
        with self._lock:
            self._closed = True
            self._readers.clear()


class Lease:
    """Holds files in place for a reader, in this process. A context manager; releasing again does nothing.

    Attributes:
        epoch: after which change of the list it was taken.
        since: when, in seconds since the epoch; `None` of one that a read takes for itself.
    """

    def __init__(self, segments: SegmentSet, epoch: int) -> None:
        self._segments = segments
        self.epoch = epoch
        self.since: float | None = None

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
        if isinstance(error, CorruptData) or error.errno != errno.ENOENT:
            raise
        raise NotFound(f"segment {path} is gone; look the index up again") from error


def list_segments(folder: StrPath) -> list[int]:
    """The numbers of the segments in a folder, ascending; those merged into others are left out, linked yet or not.

    Raises:
        CorruptData: something else stands in for a segment: a link to somewhere else, a folder, a pipe.
        StorageError: the folder cannot be read.
    """
    names = list_folder(folder)
    merged = superseded(folder, names)
    return [number for name in names if (number := segment_number(name)) is not None
            and _is_own_file(os.path.join(folder, name)) and number not in merged]


def _is_own_file(path: str) -> bool:
    """Whether a segment's name is a file, and not a link to the segment that took its entries.

    Raises:
        CorruptData: it is a link to somewhere else, or no file.
    """
    found = look_at(path)
    try:
        if found is None or not stat.S_ISLNK(found.st_mode):
            if found is not None and not stat.S_ISREG(found.st_mode):
                raise CorruptData(path=path, offset=0, expected="a segment file", found=kind_of(found.st_mode))
            # Or it is gone since the folder was listed; opening it will show that.
            return True
        text = os.readlink(path)
    except FileNotFoundError:
        # Gone since the folder was listed; opening it will show that.
        return True
    except OSError as error:
        raise StorageError.from_os(error, "look at", path) from error
    if segment_number(text) is None:
        raise CorruptData(path=path, offset=0, expected="a segment file, or a link to one beside it",
                          found=f"a symbolic link to {text!r:.200}")
    return False


def _view_of(refs: Iterable[SegmentRef], known: Mapping[int, KnownSegment]) -> _View:
    listed = tuple(refs)
    return _View(listed, tuple(map(_first, listed)), {ref.number: known[ref.number] for ref in listed})


def _leading(indexes: Sequence[int], terms: Sequence[int], term: int) -> int:
    count = 0
    while count < len(indexes) and indexes[count] == indexes[0] + count and terms[count] == term:
        count += 1
    return count


def _cuts(refs: Sequence[SegmentRef], new: SegmentRef) -> bool:
    """Whether the newest segment takes something from an older one, or follows no list that it only prolongs."""
    if refs and refs[-1].number == new.number:
        refs = refs[-2:-1]
    return bool(refs) and (refs[-1].number > new.number or refs[-1].last >= new.first)


def _first(ref: SegmentRef) -> int:
    return ref.first


def _number(ref: SegmentRef) -> int:
    return ref.number
