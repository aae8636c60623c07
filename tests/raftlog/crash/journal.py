# SPDX-License-Identifier: Apache-2.0
"""A journal of what was promised to the user of a log, and the judge of what a crash left of it.

The same lines are acknowledged to the crash harness and written to a pipe by a process that is going to be killed.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence

import attrs

from compactlib.outcome import Failed
from compactlib.raftlog import DeadEntry, DropDead, LogReader, MissingEntry, SeedPolicy, SegmentLog
from tests.raftlog.compaction_logs import entry_of

Line = str
"""`append I T`, `synced`, `snapshot? I LIVE...`, `snapshot! I LIVE...`: `?` before the call, `!` after it."""


@attrs.define
class Journal:
    """What is durable for certain, and what may be.

    Attributes:
        durable: index to term, after the last sync.
        pending: appends since, in order; a crash keeps the first few of them.
        snapshot: index and live indexes of the last snapshot recorded, index -1 before the first.
        tried: one that was being recorded.
    """

    durable: dict[int, int] = attrs.field(factory=dict)
    pending: list[tuple[int, int]] = attrs.field(factory=list)
    snapshot: tuple[int, frozenset[int]] = (-1, frozenset())
    tried: tuple[int, frozenset[int]] | None = None

    @classmethod
    def read(cls, lines: Sequence[Line]) -> Journal:
        """The journal after these lines."""
        journal = cls()
        for line in lines:
            journal.note(line)
        return journal

    @classmethod
    def of(cls, log: LogReader | SegmentLog) -> Journal:
        """The journal of a log that is known to be well: all that it holds is durable."""
        state = log.snapshot
        snapshot = (-1, frozenset[int]()) if state is None else (state.index, frozenset(state.live))
        return cls(durable={entry.index: entry.term for entry in log.entries()}, snapshot=snapshot)

    def note(self, line: Line) -> None:
        """One more line."""
        word, *rest = line.split()
        numbers = list(map(int, rest))
        if word == "append":
            self.pending.append((numbers[0], numbers[1]))
        elif word == "synced":
            self._all_durable()
        elif word == "snapshot?":
            self.tried = numbers[0], frozenset(numbers[1:])
        else:
            assert word == "snapshot!", line
            self._all_durable()
            self.snapshot, self.tried = (numbers[0], frozenset(numbers[1:])), None

    def _all_durable(self) -> None:
        self.durable, self.pending = self._after(len(self.pending)), []

    def _after(self, count: int) -> dict[int, int]:
        terms = dict(self.durable)
        for index, term in self.pending[:count]:
            if next(reversed(terms), -1) >= index:  # they ascend
                terms = {other: known for other, known in terms.items() if other < index}
            terms[index] = term
        return terms

    def _possible(self, count: int) -> list[dict[int, int]]:
        """After so many appends; and where the next one overwrites, what its cut may have left."""
        terms = self._after(count)
        first = self.pending[count][0] if count < len(self.pending) else max(terms, default=0) + 1
        ends = [first - 1, *(index for index in terms if index >= first)]
        return [terms, *({other: term for other, term in terms.items() if other <= end} for end in ends)]

    def judge(self, log: LogReader | SegmentLog) -> None:
        """Return if the log holds everything promised and nothing that was never written."""
        state = log.snapshot
        found = (-1, frozenset[int]()) if state is None else (state.index, frozenset(state.live))
        assert found in (self.snapshot, self.tried), f"snapshot {found}, expected {self.snapshot} or {self.tried}"
        index, live = found
        read = {entry.index: entry.term for entry in log.entries()}
        fewest = len(self.pending) if found == self.tried else 0
        possible = [terms for count in range(fewest, len(self.pending) + 1) for terms in self._possible(count)]
        kept = [{other: term for other, term in terms.items() if other > index or other in live} for terms in possible]
        assert read in kept, f"{read} in snapshot {index}, expected {kept[0]} and a part of {self.pending}"
        for other in range(max([index, *read], default=0) + 3):
            expected = (entry_of(other, read[other]) if other in read
                        else DeadEntry(other, index) if other <= index else MissingEntry(other))
            assert log.read(other) == expected, other
        assert log.verify().is_sound


@attrs.define
class Life:
    """A log that is written, overwritten, snapshot and compacted at random, journalling what it promises.

    Attributes:
        log: the log, open for writing.
        rng: decides.
        tell: takes the lines of the journal.
        span: how many entries are kept in use, roughly.
    """

    log: SegmentLog
    rng: random.Random
    tell: Callable[[Line], object]
    span: int = 120
    term: int = 1

    def steps(self, count: int) -> Iterator[str]:
        """Do `count` things, one at a time; yields what each was."""
        moves = [*[self.append] * 3, self.overwrite, self.sync, self.snapshot, self.minor, self.major,
                 self.leased_major]
        for _ in range(count):
            move = self.rng.choice(moves)
            move()
            yield move.__name__

    def _append(self, index: int) -> None:
        self.tell(f"append {index} {self.term}")
        entry = entry_of(index, self.term)
        self.log.append(entry.index, entry.term, entry.payload)

    def append(self) -> None:
        """A run of entries, sometimes behind a gap."""
        last = self.log.last_index
        state = self.log.snapshot
        first = max(-1 if last is None else last, -1 if state is None else state.index) + 1
        first += self.rng.choice([0, 0, 0, 3])
        for index in range(first, first + self.rng.randint(1, 25)):
            self._append(index)

    def overwrite(self) -> None:
        """A new leader takes back some entries above the snapshot."""
        last, state = self.log.last_index, self.log.snapshot
        lowest = 0 if state is None else state.index + 1
        if last is not None and last > lowest:
            self.term += 1
            first = self.rng.randint(max(lowest, last - 20), last)
            for index in range(first, first + self.rng.randint(1, 10)):
                self._append(index)

    def sync(self) -> None:
        """Everything so far is durable."""
        self.log.sync()
        self.tell("synced")

    def snapshot(self) -> None:
        """Record one somewhere above the last; each entry that lives below it stays with a chance of its own."""
        last, state = self.log.last_index, self.log.snapshot
        lowest = -1 if state is None else state.index
        if last is None or last <= lowest:
            return
        index = self.rng.randint(lowest + 1, last)
        chance = self.rng.choice([0.0, 0.05, 0.3, 0.9])
        there = [entry.index for entry in self.log.entries(0, index)]
        live = [other for other in there if other > index - self.span and self.rng.random() < chance]
        words = " ".join(map(str, [index, *live]))
        self.tell(f"snapshot? {words}")
        self.log.record_snapshot(index, live)
        self.tell(f"snapshot! {words}")

    def minor(self) -> None:
        """A minor compaction."""
        self._compacted("minor")

    def major(self) -> None:
        """A major compaction."""
        self._compacted("major")

    def leased_major(self) -> None:
        """A major compaction while somebody reads, and what it had to leave after that."""
        with self.log.lease():
            self._compacted("major")
        self.log.reclaim()

    def _compacted(self, kind: str) -> None:
        outcome = self.log.compact(policy=DropDead() if kind == "minor" else SeedPolicy())
        assert not isinstance(outcome, Failed), outcome
        self.log.audit()
