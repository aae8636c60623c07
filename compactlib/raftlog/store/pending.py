"""What a log has appended and the WAL has not confirmed yet."""

from __future__ import annotations

from collections import deque

import attrs

from compactlib.indexset.index_set import IndexSet


@attrs.frozen(slots=True)
class _Waiting:
    ticket: int
    first: int
    last: int


class Pending:
    """Appended runs that wait for the WAL, in the order of appending. The caller locks."""

    def __init__(self) -> None:
        self._waiting: deque[_Waiting] = deque()

    def add(self, ticket: int, first: int, last: int) -> None:
        """Indexes `first` to `last` were queued, and are durable with `ticket`."""
        self._waiting.append(_Waiting(ticket, first, last))

    def cut(self, after: int) -> None:
        """What lies above `after` was taken back: nobody waits for it any more (notes 5.3)."""
        if self._waiting and max(each.last for each in self._waiting) > after:
            kept = [attrs.evolve(each, last=min(each.last, after)) for each in self._waiting if each.first <= after]
            self._waiting = deque(kept)

    def confirm(self, ticket: int) -> None:
        """Everything up to `ticket` is durable. Amortized O(1) a run."""
        while self._waiting and self._waiting[0].ticket <= ticket:
            self._waiting.popleft()

    def indexes(self) -> IndexSet:
        """What waits. O(runs)."""
        return IndexSet.from_runs((each.first, each.last) for each in self._waiting)

    def __len__(self) -> int:
        return len(self._waiting)
