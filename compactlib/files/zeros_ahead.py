# SPDX-License-Identifier: Apache-2.0
"""Zeros written ahead of the end of a file that grows by small pieces, each synced.

A sync of bytes that lie where the file had bytes before has nothing to write but them; one that makes the file longer
waits for the file system's journal too, which takes as long again.
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
    """The zeros behind the end of one file, or of one region of it, whose readers take zeros for nothing.

    At most as much as the region holds, so that a small file stays small, and at most 1 MiB; nothing ahead of appends
    so large that a few of them would use it up. Each byte is written twice, and the syncs more than make up for it.

    Args:
        start: where the region begins.
        end: where its bytes end.
        limit: where the region ends, `None` if it does not.
    """

    __slots__ = ("_end", "_filled", "_limit", "_start")

    def __init__(self, start: int, end: int, limit: int | None = None) -> None:
        self._start = start
        self._end = self._filled = end
        self._limit = limit

    @property
    def filled(self) -> int:
        """Up to here there are bytes or zeros."""
        return max(self._filled, self._end)

    def follow(self, out: OutFile, end: int) -> None:
        """Call with the end of what was written, before it is synced. A disk without room for zeros gets none."""
        appended, self._end = end - self._end, end
        if end <= self._filled:
            return
        step = min(end - self._start, max(_SYNCS * appended, _SMALL_BYTES), _MOST_BYTES)
        if self._limit is not None:
            step = min(step, self._limit - end)
        if step >= max(_FEWEST_SYNCS * appended, _LEAST_BYTES):
            with contextlib.suppress(StorageError):
                out.write_at(end, [_ZEROS[:step]])
                self._filled = end + step
