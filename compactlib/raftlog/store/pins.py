# SPDX-License-Identifier: Apache-2.0
"""Pins: entries kept readable, whatever is compacted, while a holder such as a transfer needs them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from compactlib.errors import CorruptData, NotFound
from compactlib.indexset import IndexSet
from compactlib.raftlog.model.values import DamagedEntry, Entry
from compactlib.raftlog.segment.reader import SegmentReader
from compactlib.raftlog.segment.segment_list import SegmentList


class Pin:
    """Pinned entries. Holds the open files, so that nothing that happens to their names matters. A context manager.

    Compactions keep pinned entries as if they were live.

    Args:
        indexes: what is pinned.
        in_memory: those entries that are in no segment yet.
        in_files: open segments, each with the indexes to be read from it; ascending.
        segments: of the log, which note the pin.
    """

    def __init__(self, indexes: IndexSet, in_memory: Mapping[int, Entry],
                 in_files: Sequence[tuple[SegmentReader, tuple[int, ...]]], segments: SegmentList) -> None:
        self._indexes = indexes
        self._in_memory = dict(in_memory)
        self._in_files = tuple(in_files)
        self._segments = segments
        self._is_released = False
        segments.pin(self, indexes)

    @property
    def indexes(self) -> IndexSet:
        """What was pinned."""
        return self._indexes

    @property
    def found(self) -> IndexSet:
        """What of it the log held."""
        in_files = [IndexSet.from_sorted(indexes) for _, indexes in self._in_files]
        return IndexSet.from_iterable(self._in_memory).union(*in_files)

    def read(self, index: int) -> Entry:
        """A pinned entry. O(segments).

        Raises:
            NotFound: it was not pinned, or the pin was released.
            CorruptData: it is damaged.
        """
        entry = self._in_memory.get(index)
        if entry is not None:
            return entry
        if not self._is_released and index in self._indexes:
            for reader, indexes in self._in_files:
                if indexes[0] <= index <= indexes[-1]:
                    found = reader.read(index)
                    if found is not None:
                        return found
        raise NotFound(f"index {index} is not pinned; pin it while it is live")

    def entries(self) -> Iterator[Entry]:
        """All pinned entries, ascending; neighbours in a file are read together.

        Raises:
            CorruptData: one is damaged; those before it have been given.
        """
        waiting = sorted(self._in_memory.items())
        place = 0
        for reader, indexes in self._in_files:
            for answer in reader.read_many(indexes):
                while place < len(waiting) and waiting[place][0] < answer.index:
                    yield waiting[place][1]
                    place += 1
                if isinstance(answer, DamagedEntry):
                    raise answer.error
                if not isinstance(answer, Entry):
                    raise CorruptData(path=reader.path, offset=0, index=answer.index, expected="a pinned entry",
                                      found="none")
                yield answer
        yield from (entry for _, entry in waiting[place:])

    def release(self) -> None:
        """Let the entries go; releasing again does nothing."""
        self._is_released = True
        self._segments.unpin(self)
        self._in_files = ()
        self._in_memory.clear()

    def __enter__(self) -> Pin:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def __repr__(self) -> str:
        return f"<Pin of {self._indexes!r}{', released' if self._is_released else ''}>"
