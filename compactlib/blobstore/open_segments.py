# SPDX-License-Identifier: Apache-2.0
"""Segment files open for reading: the ones used last, up to a bound."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable

from compactlib.blobstore.names import SegmentName
from compactlib.blobstore.segment import SegmentFile, SegmentHeader
from compactlib.lru import Lru


class OpenSegments:
    """Lends out segment files. A file is closed when it is neither kept here nor held by any reader.

    Args:
        folder: the store's folder.
        header: what the header of a segment has to be, given its name.
        max_open: how many files are kept.
    """

    def __init__(self, folder: str, header: Callable[[SegmentName], SegmentHeader], max_open: int) -> None:
        self._folder = folder
        self._header = header
        self._closed = False
        self._kept: Lru[SegmentName, SegmentFile] = Lru(max_entries=max_open)

    def get(self, name: SegmentName, is_listed: Callable[[SegmentName], bool]) -> SegmentFile:
        """The file of a segment; it can be read while it is held, whatever happens to its name.

        Args:
            name: the segment's.
            is_listed: whether a segment is in the log. One that has left it is not kept: its room would not come back.

        Raises:
            StorageError: it cannot be opened; after a compaction it may be gone.
        """
        file = self._kept.get(name)
        if file is None:
            file = SegmentFile(os.path.join(self._folder, name.log_file), self._header(name))
            self._kept.put(name, file)
            # A compaction may have taken it from the log, and from here, since it was looked up.
            if self._closed or not is_listed(name):
                self._kept.drop(name)
        return file

    def forget(self, names: Iterable[SegmentName]) -> None:
        """Keep these no longer: their segments have left the log, and are to be removed."""
        for name in names:
            self._kept.drop(name)

    def close(self) -> None:
        """Keep none, from now on."""
        self._closed = True
        self._kept.clear()

    def __len__(self) -> int:
        return len(self._kept)
