"""Reading what readers may have in the page cache without driving it out, where the platform has the means.

A compaction reads and writes far more than the cache holds. What was not cached before it came is given up again at
once, in the source and in the new file; what was cached is in use by somebody, and stays, in the new file too.
Advice only: nothing depends on it.
"""

from __future__ import annotations

import os

_NO_WAIT: int = getattr(os, "RWF_NOWAIT", 0)


class PoliteReader:
    """Reads a file front to back into the caller's buffer, and says whether the bytes were cached before.

    Args:
        descriptor: the file, opened by the caller for this alone: its read-ahead is switched off.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._can_ask = bool(_NO_WAIT) and hasattr(os, "posix_fadvise") and hasattr(os, "preadv")
        if self._can_ask:
            # What was read ahead would look as if somebody else had wanted it.
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_RANDOM)

    def read_into(self, view: memoryview, offset: int) -> tuple[int, bool]:
        """Fill `view` from `offset`; returns how many bytes there were, and whether all were cached (or may have been).

        Raises:
            OSError: the disk refused.
        """
        got = self._cached(view, offset) if self._can_ask else 0
        if got == len(view):
            return got, True
        start = got
        while got < len(view):
            step = os.preadv(self._descriptor, [view[got:]], offset + got)
            if step == 0:
                break
            got += step
        if self._can_ask:
            os.posix_fadvise(self._descriptor, offset + start, got - start, os.POSIX_FADV_DONTNEED)
        return got, not self._can_ask

    def _cached(self, view: memoryview, offset: int) -> int:
        try:
            return os.preadv(self._descriptor, [view], offset, _NO_WAIT)
        except BlockingIOError:
            return 0
        except OSError:
            # A file system that cannot answer: from here on everything is taken to be in use.
            self._can_ask = False
            return 0


def forget_written(descriptor: int, offset: int, length: int) -> None:
    """Give up the cached pages of a stretch that is durable."""
    if hasattr(os, "posix_fadvise") and length > 0:
        os.posix_fadvise(descriptor, offset, length, os.POSIX_FADV_DONTNEED)
