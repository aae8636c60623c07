# SPDX-License-Identifier: Apache-2.0
"""`ZerosAhead`: zeros after the end of a file that grows by small appends, each synced.

A sync of overwritten zeros writes only the bytes. A sync of a longer file also waits for the file system's journal,
which doubles its time.
"""

from __future__ import annotations

import contextlib

from compactlib.errors import StorageError
from compactlib.files.disk import OutFile

_LEAST_BYTES = 4096
_SMALL_BYTES = 64 << 10
_MOST_BYTES = 1 << 20
_SYNCS = 16
_FEWEST_SYNCS = 4
_ZEROS = memoryview(bytes(_MOST_BYTES))


class ZerosAhead:
    """Writes zeros after the end of a file, or of a region of it, for readers that take zeros for the end.

    At most as many zeros as the region has bytes, so that a small file stays small, and at most 1 MiB; none if a few
    appends would use them up. Each byte is written twice; the faster syncs save more than that costs.

    Args:
        start: the offset of the region.
        end: the offset of the end of its bytes.
        limit: the offset of the end of the region; `None` if it is open.
    """

    __slots__ = ("_end", "_filled", "_limit", "_start")

    def __init__(self, start: int, end: int, limit: int | None = None) -> None:
        self._start = start
        self._end = self._filled = end
        self._limit = limit

    @property
    def filled(self) -> int:
        """The offset of the end of bytes and zeros."""
        return max(self._filled, self._end)

    def follow(self, out: OutFile, end: int) -> None:
        """Write zeros if needed, after an append that ends at `end` and before its sync. A full disk gets none."""
        appended, self._end = end - self._end, end
        if end <= self._filled:
            return
        step = min(end - self._start, max(_SYNCS * appended, _SMALL_BYTES), _MOST_BYTES)
        if self._limit is not None:
            step = min(step, self._limit - end)
        if step >= max(_FEWEST_SYNCS * appended, _LEAST_BYTES):
            try:
                out.write_at(end, [_ZEROS[:step]])
                self._filled = end + step
            except StorageError:
                # Zeros that were written in part would take the last room of the disk.
                with contextlib.suppress(StorageError):
                    out.truncate(end)
