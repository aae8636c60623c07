# SPDX-License-Identifier: Apache-2.0
"""Changes, read in bounded batches and in step with the ranges they belong to."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from itertools import islice
from typing import Final, TypeVar

from compactlib.staging.ranges.rows import ChangeBatch, Rows
from compactlib.staging.values import Changes

MAX_BATCH: Final = 32_768
"""Changes held in memory at once."""
MAX_BATCH_BYTES: Final = 8 << 20
"""And so many bytes of them, unless the caller says otherwise."""

_NONE: Final = ChangeBatch([], [], [])
RowsT = TypeVar("RowsT", bound=Rows)


class ChangeReader:
    """Looks one change ahead, and hands out batches that end where a range does. For one thread.

    Args:
        changes: in strictly ascending order; checked as they are read.
        most_bytes: no more changes are read on top of so many bytes.
        batches: instead of changes: what such a reader has taken, none of them empty.
    """

    def __init__(self, changes: Changes = (), *, most_bytes: int = MAX_BATCH_BYTES,
                 batches: Iterator[ChangeBatch] | None = None) -> None:
        self._batches: Iterator[ChangeBatch] = _checked(changes, most_bytes) if batches is None else batches
        self._batch: ChangeBatch = _NONE
        self._at = 0

    def peek(self) -> bytes | None:
        """The next change's key; `None` when there is none left."""
        if self._at == len(self._batch):
            self._batch, self._at = next(self._batches, _NONE), 0
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

    def laid_over(self, rows: RowsT, up_to: bytes | None) -> Iterator[tuple[RowsT, ChangeBatch]]:
        """A range's rows and the next changes up to a key, some at a time: in each pair are those that meet.

        What lies behind the last change comes at the end, with none.
        """
        at = 0
        while batch := self.take(up_to):
            more = self.peek()
            is_last = more is None or (up_to is not None and more > up_to)
            stop = len(rows) if is_last else rows.find(batch.keys[-1] + b"\0")
            yield rows.part(at, stop), batch
            at = stop
        yield rows.part(at, len(rows)), _NONE

    def has_between(self, above: bytes, up_to: bytes) -> bool:
        """Whether a change that is in memory already has a key > `above` and <= `up_to`."""
        keys = self._batch.keys
        place = bisect_right(keys, above, self._at)
        return place < len(keys) and keys[place] <= up_to


def _checked(changes: Changes, most_bytes: int) -> Iterator[ChangeBatch]:
    source, last = iter(changes), b""
    while batch := ChangeBatch.of(islice(source, MAX_BATCH), after=last, most_bytes=most_bytes):
        yield batch
        last = batch.keys[-1]
