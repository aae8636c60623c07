# SPDX-License-Identifier: Apache-2.0
"""A log as a dictionary, its history of states, and reads of a log in every way."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TypeAlias

import attrs

from compactlib.errors import CorruptData
from compactlib.raftlog import DamagedEntry, DeadEntry, Entry, LogReader, MissingEntry, SegmentLog

Told: TypeAlias = Entry | DeadEntry | MissingEntry | str
"""A comparable result of a read: `"damaged"` is a `CorruptData` with the index."""


def log_answers(log: LogReader | SegmentLog, indexes: Sequence[int]) -> dict[int, Told]:
    """Return the result of reading each of `indexes` (ascending); all ways to read must agree."""
    single: dict[int, Told] = {}
    for index in indexes:
        try:
            single[index] = log.read(index)
        except CorruptData as error:
            assert error.index == index
            single[index] = "damaged"
    assert dict(told(log.read_many(indexes))) == single
    assert dict(told(log.read_many(indexes[::2]))) == {index: single[index] for index in indexes[::2]}
    wanted = set(indexes)
    scanned = {index: answer for index, answer in told(log.scan(indexes[0], indexes[-1])) if index in wanted}
    assert scanned == {index: answer for index, answer in single.items()
                       if not isinstance(answer, MissingEntry | DeadEntry)}
    found = {answer.index for answer in log.scan() if isinstance(answer, DamagedEntry)}
    assert found >= {index for index, answer in single.items() if answer == "damaged"}
    return single


def told(answers: Iterable[Entry | DeadEntry | MissingEntry | DamagedEntry]) -> Iterator[tuple[int, Told]]:
    """Yield each index with its comparable result."""
    for answer in answers:
        if isinstance(answer, DamagedEntry):
            assert answer.error.index == answer.index
            yield answer.index, "damaged"
        else:
            yield answer.index, answer


@attrs.define
class PlainLog:
    """The expected content of a log, in a dictionary.

    Attributes:
        entries: everything that was written and neither taken back nor declared dead.
        snapshot: at or below it all else is dead; -1 before the first.
    """

    entries: dict[int, Entry] = attrs.field(factory=dict)
    snapshot: int = -1

    @classmethod
    def of(cls, entries: Iterable[tuple[int, int, bytes]]) -> PlainLog:
        """Make a log from appended entries."""
        log = cls()
        for entry in entries:
            log.append(*entry)
        return log

    @property
    def last(self) -> int:
        """The highest index with an entry or a snapshot."""
        return max([self.snapshot, *self.entries])

    def append(self, index: int, term: int, payload: bytes) -> None:
        """Truncate from `index` on, and append an entry."""
        self.entries = {kept: entry for kept, entry in self.entries.items() if kept < index}
        self.entries[index] = Entry(index, term, payload)

    def record_snapshot(self, index: int, live: Iterable[int]) -> None:
        """Declare all entries up to `index` dead, except `live`."""
        alive = set(live)
        assert alive <= self.entries.keys()
        self.snapshot = index
        self.entries = {kept: entry for kept, entry in self.entries.items() if kept > index or kept in alive}

    def answer(self, index: int) -> Told:
        """Return the expected result of reading `index`."""
        if index in self.entries:
            return self.entries[index]
        return DeadEntry(index, self.snapshot) if index <= self.snapshot else MissingEntry(index)

    def check(self, log: LogReader | SegmentLog) -> None:
        """Require the right result for every index, by all ways to read."""
        indexes = range(self.last + 3)
        assert log_answers(log, indexes) == {index: self.answer(index) for index in indexes}
        assert list(log.entries()) == list(self.entries.values())
        assert log.verify().is_sound


@attrs.define
class History:
    """The states of a log, oldest first; an acknowledgement is the number of states so far."""

    states: list[PlainLog] = attrs.field(factory=lambda: [PlainLog()])

    def append(self, index: int, term: int, payload: bytes) -> None:
        state = copy.copy(self.states[-1])
        state.append(index, term, payload)
        self.states.append(state)

    def record_snapshot(self, index: int, live: Sequence[int]) -> None:
        state = copy.copy(self.states[-1])
        state.record_snapshot(index, live)
        self.states.append(state)

    def _may_be(self, number: int) -> Iterator[PlainLog]:
        """Yield a state, and its remainder after the truncation of the next call."""
        state = self.states[number]
        yield state
        following = self.states[number + 1:number + 2]
        if following and following[0].last <= state.last and following[0].snapshot == state.snapshot:
            for end in range(following[0].last - 1, state.last):
                cut = copy.copy(state)
                cut.entries = {index: entry for index, entry in state.entries.items() if index <= end}
                yield cut

    def found(self, log: LogReader | SegmentLog, acknowledged: Sequence[int]) -> PlainLog:
        """Return the state of the log, which has to be at least as new as the acknowledged state."""
        return self.found_in(log.entries(), log.state, acknowledged)

    def found_in(self, held: Iterable[Entry], snapshot: Any, acknowledged: Sequence[int]) -> PlainLog:
        """Return the state with these entries and this snapshot, like `found`."""
        entries = {entry.index: entry for entry in held}
        reached = snapshot.index
        for number in range(max(acknowledged, default=0), len(self.states)):
            for state in self._may_be(number):
                if (state.entries, state.snapshot) == (entries, reached):
                    return state
        raise AssertionError(f"the log holds {list(entries)} with the snapshot at {reached}, which it never did after "
                             f"{self.states[max(acknowledged, default=0)]} was acknowledged")
