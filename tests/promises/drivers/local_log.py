# SPDX-License-Identifier: Apache-2.0
"""The driver of a `LocalLog`."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Sequence
from itertools import pairwise
from random import Random
from typing import Any

import attrs

from compactlib.clock import ManualClock
from compactlib.kv import MemoryStore, SnapshotStore
from compactlib.raftlog import LocalLog, LogOptions, SegmentLimits
from compactlib.testing import Driver, HostLock, Journal, World


@attrs.frozen
class Proposed:
    """A command with a unique text."""

    text: str


@attrs.frozen
class Carried:
    """A command that the log returned with its index, or passed to a decision on the next command."""

    index: int
    term: int
    text: str


@attrs.frozen
class Forgotten:
    """Commands up to an index, which a snapshot of the host covers."""

    index: int


@attrs.frozen
class Begun:
    """The new term of an opening that returned."""

    term: int
    opening: int


class Machine:
    """Records each command, from the first of the log on."""

    def __init__(self, applied_index: int, carried: Iterable[Carried] = ()) -> None:
        self.applied_index = applied_index
        self.carried = list(carried)

    @classmethod
    def of(cls, snapshot: bytes) -> Machine:
        applied_index, carried = json.loads(snapshot)
        return cls(applied_index, [Carried(*each) for each in carried])

    def dump(self) -> bytes:
        return json.dumps([self.applied_index, [attrs.astuple(each) for each in self.carried]]).encode()

    def apply(self, command: Any, payload: bytes) -> Carried:
        text = payload.decode().rstrip()
        self.applied_index = command.index
        self.carried.append(Carried(command.index, command.term, text))
        return self.carried[-1]


@attrs.frozen
class Opened:
    """A started log, its state machine, the host's snapshots, and the number of the opening."""

    log: LocalLog
    machine: Machine
    snapshots: SnapshotStore
    clock: ManualClock
    opening: int

    def close(self) -> None:
        self.log.close()


class LocalLogDriver(Driver[Opened]):
    """A command log of small segments: proposals, decisions, empty decisions, and compactions."""

    def __init__(self) -> None:
        self._host = HostLock()
        self._openings = itertools.count()

    def settings(self) -> Sequence[LogOptions]:
        return [LogOptions(limits=SegmentLimits(max_entries=3), keep_links_seconds=0.0),
                LogOptions(limits=SegmentLimits(max_entries=1, max_bytes=1), max_open_segments=1),
                LogOptions(limits=SegmentLimits(max_entries=5, max_bytes=300), keep_links_seconds=3600.0)]

    def open(self, world: World, settings: LogOptions) -> Opened:
        log = LocalLog(world.folder / "log", attrs.evolve(settings, clock=world.clock, files=world.files))
        try:
            snapshots = SnapshotStore(world.keyed("snapshots", MemoryStore), b"p", clock=world.clock, rng=Random(0))
            snapshot = snapshots.load()
            # In a world that has lost its stores in memory, forgotten commands count as never proposed.
            machine = Machine(log.first_index - 1) if snapshot is None else Machine.of(snapshot.data)
            log.start(machine)
        except BaseException:
            log.close()
            raise
        return Opened(log, machine, snapshots, world.clock, next(self._openings))

    def act(self, store: Opened, rng: Random, journal: Journal) -> None:
        kind = rng.choice(["decide", "compact", "propose", "propose", "look", "propose", "look", "compact"])
        text = f"{rng.getrandbits(60):x}"
        with journal.trying(Begun(store.log.term, store.opening)):
            pass
        if kind == "compact":
            with self._host:  # one snapshot at a time
                _compact(store, rng, journal)
        else:
            for place in range(rng.randint(1, 3)):
                _command(store, kind, f"{text}-{place}" + " " * rng.randrange(80), journal)

    def check(self, store: Opened, journal: Journal, *, damage: str) -> None:
        log, carried = store.log, store.machine.carried
        found, end = {each.text: each for each in carried}, carried[-1].index if carried else 0
        if damage == "missing" and not carried and log.last_index == log.term:
            return  # without its folder, this log cannot be distinguished from a new one
        tried = [change.what for change in journal.changes]
        sure = [change.what for change in journal.changes if change.acknowledged]
        places = {what.text: what.index for what in tried if isinstance(what, Carried)}
        assert len(found) == len(carried), "a command was carried out twice"
        assert set(found) <= {what.text for what in tried if isinstance(what, Proposed)}, "never proposed"
        forgotten = max((what.index for what in tried if isinstance(what, Forgotten)), default=0)
        assert log.first_index <= forgotten + 1, f"the log begins at {log.first_index}, forgotten was {forgotten}"
        for what in sure:
            # After a cut the last writes, and after an older folder all later writes, count as never made.
            is_older = damage in ("cut", "put back")
            is_lost = is_older and isinstance(what, Proposed | Carried) and places.get(what.text, end + 1) > end
            match what:
                case Proposed(text=text) if text not in found:
                    assert is_lost or places.get(text, 0) < log.first_index > 1, f"{text} is not in the log"
                case Carried(index=index, text=text) if index >= log.first_index:
                    assert is_lost or found.get(text) == what, f"{what} is not in the log, {found.get(text)} is"
                case Begun(term=term, opening=opening) if opening != store.opening:
                    assert log.term > term or is_older, f"term {log.term} is not above {term}, which had begun"
        # Each opening takes one term and one index.
        for one, other in pairwise([*carried, Carried(log.last_index + 1, log.term, "the next one")]):
            assert other.index - one.index == 1 + other.term - one.term, f"{one} is followed by {other}"


def _compact(store: Opened, rng: Random, journal: Journal) -> None:
    dumped: list[tuple[int, bytes]] = []

    def look(command: Any) -> None:
        dumped.append((store.machine.applied_index, store.machine.dump()))

    store.log.decide(look)
    index, data = dumped[-1]
    store.snapshots.save(store.log.term, index, data)
    # Some commands of the snapshot may stay, for a host restored from an older snapshot.
    index = rng.randint(min(store.log.first_index - 1, index), index)
    with journal.trying(Forgotten(index)):
        store.log.compact(index)


def _command(store: Opened, kind: str, text: str, journal: Journal) -> None:
    seen: list[Carried] = []

    def make(command: Any) -> bytes | None:
        seen.extend(store.machine.carried[-1:])
        return text.encode() if kind != "look" else None

    def ask() -> Carried | None:
        answer = store.log.decide(make if kind != "propose" else lambda command: text.encode())
        assert answer is None or isinstance(answer, Carried)
        return answer

    answered = None
    if kind == "look":
        answered = ask()
    else:
        with journal.trying(Proposed(text.rstrip())):
            answered = ask()
            assert answered is not None
            assert answered.text == text.rstrip()
    for carried in (*seen[-1:], *([answered] if answered else [])):
        with journal.trying(carried):
            pass
