# SPDX-License-Identifier: Apache-2.0
"""Changes, read in bounded batches and in step with the ranges they belong to."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from itertools import islice
from typing import Final

from compactlib.staging.committed.formats.rows import ChangeBatch
from compactlib.staging.model.values import Change, Changes

MAX_BATCH: Final = 32_768
"""Changes held in memory at once."""
MAX_BATCH_BYTES: Final = 8 << 20
"""And so many bytes of them, unless the caller says otherwise."""


class ChangeReader:
    """Looks one change ahead, and hands out batches that end where a range does. For one thread.

    Args:
        changes: in strictly ascending order; checked as they are read.
        most_bytes: no more changes are read on top of so many bytes.
    """

    def __init__(self, changes: Changes, *, most_bytes: int = MAX_BATCH_BYTES) -> None:
        self._source: Iterator[tuple[bytes, Change]] = iter(changes)
        self._most_bytes = most_bytes
        self._batch: ChangeBatch = ChangeBatch([], [], [])
        self._at = 0
        self._last = b""
        self._ended = False

    def peek(self) -> bytes | None:
        """The next change's key; `None` when there is none left."""
        if self._at == len(self._batch):
            self._fill()
        return self._batch.keys[self._at] if self._batch.keys else None

    def take(self, up_to: bytes | None) -> ChangeBatch:
        """The next changes whose keys are <= `up_to` (`None`: any), as many as are in memory; may be none."""
        if self.peek() is None:
            return self._batch
        keys = self._batch.keys
        stop = len(keys) if up_to is None else bisect_right(keys, up_to, self._at)
        taken = self._batch.part(self._at, stop)
        self._at = stop
        return taken

    def has_between(self, above: bytes, up_to: bytes) -> bool:
        """Whether a change that is in memory already has a key > `above` and <= `up_to`."""
        keys = self._batch.keys
        place = bisect_right(keys, above, self._at)
        return place < len(keys) and keys[place] <= up_to

    def _fill(self) -> None:
        if not self._ended:
            self._batch = ChangeBatch.of(islice(self._source, MAX_BATCH), after=self._last, most_bytes=self._most_bytes)
            self._at = 0
            self._ended = not self._batch
            self._last = self._batch.keys[-1] if self._batch else self._last
