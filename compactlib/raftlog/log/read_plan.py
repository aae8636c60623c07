# SPDX-License-Identifier: Apache-2.0
"""A read decided now and carried out later, across compactions: which segment is asked for which indexes."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence

import attrs

from compactlib._closing import Closing
from compactlib.errors import CorruptData, NotFound
from compactlib.raftlog.arguments import require_ascending
from compactlib.raftlog.model.refs import next_ref
from compactlib.raftlog.model.snapshot_meta import SnapshotMeta
from compactlib.raftlog.model.values import Answer, DamagedEntry, DeadEntry, Entry, MissingEntry, SegmentRef
from compactlib.raftlog.segment.reader import SegmentReader
from compactlib.raftlog.segment.segment_set import Lease


@attrs.frozen
class ReadPart:
    """Indexes that one segment answers, ascending; `number` is `None` for those that no segment holds."""

    number: int | None
    indexes: tuple[int, ...]


def plan_parts(refs: Sequence[SegmentRef], indexes: Sequence[int]) -> tuple[ReadPart, ...]:
    """Share out ascending `indexes` to the segments. O(log segments) a part, and a copy of `indexes`; pure.

    Raises:
        Unsorted: the indexes do not ascend strictly.
    """
    require_ascending(indexes)
    parts: list[ReadPart] = []
    place = 0
    while place < len(indexes) and (ref := next_ref(refs, indexes[place])) is not None:
        for number, stop in ((None, bisect_left(indexes, ref.first, place)),
                             (ref.number, bisect_right(indexes, ref.last, place))):
            if stop > place:
                parts.append(ReadPart(number, tuple(indexes[place:stop])))
                place = stop
    if place < len(indexes):
        parts.append(ReadPart(None, tuple(indexes[place:])))
    return tuple(parts)


class ReadPlan(Closing):
    """Answers for many indexes; stays valid while it is open, whatever compactions do meanwhile.

    A context manager: it holds a lease on the files until it is closed. An index that dies before it is read is
    answered as `DeadEntry`.
    """

    def __init__(self, parts: Sequence[ReadPart], lease: Lease, *, reader: Callable[[int], SegmentReader],
                 state: Callable[[], SnapshotMeta | None],
                 again: Callable[[int], Entry | DeadEntry | MissingEntry]) -> None:
        self._parts = tuple(parts)
        self._lease = lease
        self._reader = reader
        self._state = state
        self._again = again

    @property
    def parts(self) -> tuple[ReadPart, ...]:
        """Which segment is asked for what."""
        return self._parts

    def answers(self) -> Iterator[Answer]:
        """One answer per index, ascending; neighbours in a file are read together, damage is a `DamagedEntry`.

        Raises:
            CorruptData: a whole segment is damaged.
        """
        for part in self._parts:
            state = self._state()
            alive = [index for index in part.indexes if state is None or not state.is_dead(index)]
            found = self._found(part.number, alive)
            for index in part.indexes:
                if state is not None and state.is_dead(index):
                    yield DeadEntry(index, state.index)
                    continue
                answer = next(found)
                # A gap, or an entry that has died since, perhaps by a snapshot that this reader does not know yet.
                yield self._look_again(index) if isinstance(answer, MissingEntry | DamagedEntry) else answer

    def _found(self, number: int | None, alive: Sequence[int]) -> Iterator[Answer]:
        if number is None or not alive:
            return map(MissingEntry, alive)
        try:
            return self._reader(number).read_many(alive)
        except NotFound:
            # Another process has compacted, or links could not be made on a full disk.
            return map(MissingEntry, alive)

    def _look_again(self, index: int) -> Answer:
        try:
            return self._again(index)
        except CorruptData as error:
            return DamagedEntry(index, error)

    def close(self) -> None:
        """Give the lease back; closing again does nothing."""
        self._lease.release()

    def __repr__(self) -> str:
        count = sum(len(part.indexes) for part in self._parts)
        return f"<ReadPlan of {count} indexes in {len(self._parts)} segments>"
