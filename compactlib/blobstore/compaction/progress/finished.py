"""Where a place of the log went: positions from before compactions, led through their history.

The store's own replication tokens are sequences and stay valid. This is for hosts that remember log positions (a
backup's cursor, a tailing reader): with the number of the last compaction they know of, they need not start from zero.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence

import attrs

from compactlib.blobstore.compaction.progress.compaction_file import (
    damaged_history,
    next_number,
    read_history,
    read_log,
)
from compactlib.blobstore.compaction.progress.compaction_log import CompactionLog, Cycle, Move
from compactlib.blobstore.errors import HistoryLost
from compactlib.blobstore.model.names import LogPosition
from compactlib.errors import CorruptData, InvalidInput
from compactlib.files.disk import StrPath


@attrs.frozen
class FinishedCompactions:
    """The committed cycles of a store that are still known, by number.

    Attributes:
        cycles: number to cycle; the numbers may have gaps where logs are damaged or were removed.
        number: the store's number: how many cycles were committed so far.
        damaged: what could not be read.
    """

    cycles: dict[int, Cycle]
    number: int
    damaged: tuple[CorruptData, ...] = ()

    @classmethod
    def read(cls, folder: StrPath) -> FinishedCompactions:
        """The history in a store's folder, the compaction in progress included.

        Raises:
            CorruptData: the log of the compaction in progress is damaged.
            StorageError: a file cannot be read.
        """
        current = read_log(folder)
        logs = [*read_history(folder), *([current] if current is not None else [])]
        last = next_number(folder) - 1 if current is None else current.next_number - 1
        return cls(dict(_numbered(logs)), last, tuple(damaged_history(folder)))

    def rebuild(self, position: LogPosition, number: int) -> LogPosition:
        """Where to go on reading, given a position from when the store's number was `number`.

        Every record at or behind `position` that is still in the log is at or behind the answer; a few that were
        before it may be, too. O(compactions since then, times the logarithm of the places that each maps).

        Raises:
            HistoryLost: a compaction since then is not known any more.
            InvalidInput: the number is from the future of this store.
        """
        if not 0 <= number <= self.number:
            raise InvalidInput(f"{number} compactions are not in the past of a store with {self.number}; is the "
                               f"position from another store?")
        for each in range(number + 1, self.number + 1):
            cycle = self.cycles.get(each)
            if cycle is None:
                raise HistoryLost(f"compaction {each} is not known any more, so the position {position} from before "
                                  f"it cannot be followed; begin from the start of the log", number=each)
            position = _moved(position, cycle)
        return position


def _numbered(logs: Iterable[CompactionLog]) -> Iterable[tuple[int, Cycle]]:
    for log in logs:
        yield from enumerate(log.committed, log.number)


def _moved(position: LogPosition, cycle: Cycle) -> LogPosition:
    places: Sequence[LogPosition] = [move.before for move in cycle.moves]
    partial = None if cycle.partial is None else cycle.partial.segment
    if position.segment in cycle.sources or (position.segment == partial and position < cycle.partial):  # type: ignore[operator]
        floor = bisect_right(places, position) - 1
        if floor >= 0 and places[floor].segment == position.segment:
            return cycle.moves[floor].after
        # Nothing of its segment was kept before it: on to what was kept next.
        return _next(cycle.moves, bisect_left(places, position), position)
    # It stays; but records from behind it may have come before it.
    return min(position, _next(cycle.moves, bisect_left(places, position), position))


def _next(moves: Sequence[Move], place: int, otherwise: LogPosition) -> LogPosition:
    return moves[place].after if place < len(moves) else otherwise
