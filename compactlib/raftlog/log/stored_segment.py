# SPDX-License-Identifier: Apache-2.0
"""`StoredSegment`: the entries in a segment's file, dead entries included, for tables and tools."""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import repeat
from typing import NamedTuple

from compactlib._closing import Closing
from compactlib.errors import CorruptData
from compactlib.files.disk import StrPath
from compactlib.raftlog.model.snapshot_meta import SnapshotMeta, read_snapshot_meta
from compactlib.raftlog.model.values import MAX_INDEX, DamagedEntry
from compactlib.raftlog.segment.listing import open_segment


class StoredEntry(NamedTuple):
    """An entry in a segment's file, live or dead.

    Attributes:
        index: its index.
        term: its term.
        offset: of its payload in the file.
        length: bytes of its payload.
        payload: its payload; `None` if payloads were not requested, or if it is damaged.
        error: of a damaged entry.
    """

    index: int  # type: ignore[assignment]  # `tuple.index` is of no use here
    term: int
    offset: int
    length: int
    payload: bytes | None
    error: CorruptData | None


class StoredSegment(Closing):
    """An open segment file. `LogReader` reads the log itself.

    Opening reads the segment's index, and no other segment.

    Args:
        folder: the log's folder.
        number: the segment's number; of a merged segment, the segment into which it was merged is opened.
        newest: whether it is the log's newest segment, which may have a torn end.

    Raises:
        NotFound: there is no such file.
        CorruptData: the header or the index is damaged.
        Unsupported: a later release wrote it.
        StorageError: it cannot be opened.
    """

    def __init__(self, folder: StrPath, number: int, *, newest: bool = False) -> None:
        self._folder = os.fspath(folder)
        self._reader = open_segment(folder, number, newest=newest)
        found = os.fstat(self._reader.fileno())
        self.inode: int = found.st_ino
        self.size_bytes: int = found.st_size

    def snapshot(self) -> SnapshotMeta | None:
        """Read the log's row from the folder. Raises `CorruptData` if it is damaged."""
        return read_snapshot_meta(self._folder)

    def term_of(self, index: int) -> int | None:
        """The term of an entry; `None` if the segment lacks it."""
        place = self._reader.index.find(index)
        return None if place < 0 else self._reader.index.columns.terms[place]

    def entries(self, first: int = 0, last: int = MAX_INDEX, *, payloads: bool = True) -> Iterator[StoredEntry]:
        """Every entry from `first` to `last`, ascending; payloads are read in pieces of 512 KiB and checked.

        Raises:
            StorageError: the file cannot be read.
        """
        columns, positions = self._reader.index.columns, self._reader.index.positions_between(first, last)
        part = slice(positions.start, positions.stop)
        offsets, lengths = columns.offsets[part], columns.lengths[part]
        if not payloads:
            yield from map(StoredEntry, columns.indexes[part], columns.terms[part], offsets, lengths, repeat(None),
                           repeat(None))
            return
        for answer, term, offset, length in zip(self._reader.answers_at(positions), columns.terms[part], offsets,
                                                lengths, strict=True):
            if isinstance(answer, DamagedEntry):
                yield StoredEntry(answer.index, term, offset, length, None, answer.error)
            else:
                yield StoredEntry(answer.index, term, offset, length, answer.payload, None)

    def close(self) -> None:
        """Close the file. Idempotent."""
        self._reader.close()
