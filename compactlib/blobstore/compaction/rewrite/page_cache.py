"""Reading what readers may have in the page cache without driving it out, where the platform has the means (Linux).

A compaction reads and writes far more than the cache holds. What was not cached before it came is given up again at
once, in the source and in the new file; what was cached is in use by somebody, and stays, in the new file too.
Advice only: nothing depends on it.
"""

from __future__ import annotations

import os
from collections.abc import Iterable

_NO_WAIT: int = getattr(os, "RWF_NOWAIT", 0)
_CAN_ADVISE = hasattr(os, "posix_fadvise")
READ_AHEAD_BYTES = 4 << 20
"""How far behind what was asked for the system may have read; a guess on the high side."""


class PageCache:
    """What the page cache holds of one open file, and what it need not hold any longer.

    Args:
        descriptor: the file, opened by the caller for this alone.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._can_ask = bool(_NO_WAIT) and _CAN_ADVISE and hasattr(os, "preadv")
        if self._can_ask:
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_RANDOM)

    def cached(self, offsets: Iterable[int]) -> bytes:
        """One byte for each place: 1 if its page is cached, or if nobody can tell; one system call each."""
        one = bytearray(1)
        return bytes(self._is_cached(offset, one) for offset in offsets)

    def _is_cached(self, offset: int, one: bytearray) -> bool:
        if self._can_ask:
            try:
                os.preadv(self._descriptor, [one], offset, _NO_WAIT)
            except BlockingIOError:
                return False
            except OSError:
                # A file system that cannot answer: everything is taken to be in use.
                self._can_ask = False
        return True

    def forget(self, start: int, end: int) -> None:
        """Give up the pages from `start` to `end`, unless nobody could tell what is in use."""
        if self._can_ask and end > start:
            os.posix_fadvise(self._descriptor, start, end - start, os.POSIX_FADV_DONTNEED)


def forget_written(descriptor: int, offset: int, length: int) -> None:
    """Give up the cached pages of a stretch that is durable."""
    if _CAN_ADVISE and length > 0:
        os.posix_fadvise(descriptor, offset, length, os.POSIX_FADV_DONTNEED)
