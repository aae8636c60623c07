# SPDX-License-Identifier: Apache-2.0
"""A log as a dictionary, and every state that it went through; the same question put in every way there is."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TypeAlias

import attrs

from compactlib.errors import CorruptData
from compactlib.raftlog import DamagedEntry, DeadEntry, Entry, LogReader, MissingEntry, SegmentLog

Told: TypeAlias = Entry | DeadEntry | MissingEntry | str
"""An answer that can be compared: `"damaged"` stands for a `CorruptData` that names the index."""


def log_answers(log: LogReader | SegmentLog, indexes: Sequence[int]) -> dict[int, Told]:
    """What a log says of each of `indexes` (ascending); every way of asking must agree."""
    single: dict[int, Told] = {}
    for index in indexes:
        try:
            single[index] = log.read(index)
        except CorruptData as error:
            assert error.index == index
            single[index] = "damaged"
    assert dict(told(log.read_many(indexes))) == single
    with log.plan_read(indexes[::2]) as plan:
        assert dict(told(plan.answers())) == {index: single[index] for index in indexes[::2]}
    wanted = set(indexes)
    scanned = {index: answer for index, answer in told(log.scan(indexes[0], indexes[-1])) if index in wanted}
    assert scanned == {index: answer for index, answer in single.items()
                       if not isinstance(answer, MissingEntry | DeadEntry)}
    found = {answer.index for answer in log.scan() if isinstance(answer, DamagedEntry)}
    assert found >= {index for index, answer in single.items() if answer == "damaged"}
    return single


def told(answers: Iterable[Entry | DeadEntry | MissingEntry | DamagedEntry]) -> Iterator[tuple[int, Told]]:
    """Index and comparable answer."""
    for answer in answers:
        if isinstance(answer, DamagedEntry):
            assert answer.error.index == answer.index
            yield answer.index, "damaged"
        else:
            yield answer.index, answer


@attrs.define
class PlainLog:
    """What a log must answer, kept in a dictionary.

    Attributes:
        entries: everything that was written and neither taken back nor declared dead.
        snapshot: at or below it all else is dead; -1 before the first.
    """

    entries: dict[int, Entry] = attrs.field(factory=dict)
    snapshot: int = -1

    @classmethod
    def of(cls, entries: Iterable[tuple[int, int, bytes]]) -> PlainLog:
        """A log to which these were appended in turn."""
        log = cls()
        for entry in entries:
            log.append(*entry)
        return log

    @property
    def last(self) -> int:
        """The highest index that anything can be said of."""
        return max([self.snapshot, *self.entries])

    def append(self, index: int, term: int, payload: bytes) -> None:
        """Take back everything from `index` on, and add it."""
        self.entries = {kept: entry for kept, entry in self.entries.items() if kept < index}
        self.entries[index] = Entry(index, term, payload)

    def record_snapshot(self, index: int, live: Iterable[int]) -> None:
        """Everything up to `index` dies, except `live`."""
        alive = set(live)
        assert alive <= self.entries.keys()
        self.snapshot = index
        self.entries = {kept: entry for kept, entry in self.entries.items() if kept > index or kept in alive}

    def answer(self, index: int) -> Told:
        """What a read of `index` must say."""
        if index in self.entries:
            return self.entries[index]
        return DeadEntry(index, self.snapshot) if index <= self.snapshot else MissingEntry(index)

    def check(self, log: LogReader | SegmentLog) -> None:
        """Every index, asked in every way, gives the right answer."""
        indexes = range(self.last + 3)
        assert log_answers(log, indexes) == {index: self.answer(index) for index in indexes}
        assert list(log.entries()) == list(self.entries.values())
        assert log.verify().is_sound


@attrs.define
class History:
    """Every state that a log went through, oldest first; what is acknowledged is how many of them."""

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
        """A state, and what the cut of the next call may have left of it."""
        state = self.states[number]
        yield state
        following = self.states[number + 1:number + 2]
        if following and following[0].last <= state.last and following[0].snapshot == state.snapshot:
            for end in range(following[0].last - 1, state.last):
                cut = copy.copy(state)
                cut.entries = {index: entry for index, entry in state.entries.items() if index <= end}
                yield cut

    def found(self, log: LogReader | SegmentLog, acknowledged: Sequence[int]) -> PlainLog:
        """Which of the states the log is in: one that is no older than what was acknowledged."""
        return self.found_in(log.entries(), log.state, acknowledged)

    def found_in(self, held: Iterable[Entry], snapshot: Any, acknowledged: Sequence[int]) -> PlainLog:
        """As `found`, of what is held and the snapshot beside it."""
        entries = {entry.index: entry for entry in held}
        reached = snapshot.index
        for number in range(max(acknowledged, default=0), len(self.states)):
            for state in self._may_be(number):
                if (state.entries, state.snapshot) == (entries, reached):
                    return state
        raise AssertionError(f"the log holds {list(entries)} with the snapshot at {reached}, which it never did after "
                             f"{self.states[max(acknowledged, default=0)]} was acknowledged")
