# SPDX-License-Identifier: Apache-2.0
"""The driver of a `SegmentLog`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from random import Random

import attrs

from compactlib.errors import CorruptData
from compactlib.raftlog import (
    DeadEntry,
    Entry,
    EveryNMinors,
    LogOptions,
    LogReader,
    MissingEntry,
    SeedPolicy,
    SegmentLimits,
    SegmentLog,
)
from compactlib.testing import Driver, HostLock, Journal, World
from tests.promises.drivers.tidy import leftovers_of

ABSENT, DEAD, DAMAGED = "absent", "dead", "damaged"
TIDY = (r"\d{16}\.segment", "LOCK", "SNAPSHOT")
"""The files of an open, idle log."""


@attrs.frozen
class Appended:
    """Entries that replace all from the first index on, synced."""

    first: int
    term: int
    count: int

    def indexes(self) -> range:
        return range(self.first, self.first + self.count)


@attrs.frozen
class Snapshot:
    """A snapshot with its live indexes."""

    index: int
    live: tuple[int, ...]


@attrs.frozen
class Upkeep:
    """A compaction or a reclaim, which changes no read."""

    kind: str


def payload_of(index: int, term: int) -> bytes:
    return b"%d in term %d;" % (index, term) * (1 + index % 3)


class SegmentLogDriver(Driver[SegmentLog]):
    """A log in segments alone, with small segments, overwritten tails, snapshots and compactions."""

    def __init__(self) -> None:
        self._host = HostLock()

    def settings(self) -> Sequence[LogOptions]:
        return [LogOptions(limits=SegmentLimits(max_entries=4), trigger=EveryNMinors(0), keep_links_seconds=0.0),
                LogOptions(limits=SegmentLimits(max_entries=7), trigger=EveryNMinors(0), keep_links_seconds=3600.0),
                LogOptions(limits=SegmentLimits(max_entries=2, max_bytes=600), max_open_segments=1)]

    def open(self, world: World, settings: LogOptions) -> SegmentLog:
        return SegmentLog(world.folder, attrs.evolve(settings, clock=world.clock, files=world.files))

    def policy(self) -> SeedPolicy:
        return SeedPolicy()

    def reader(self, world: World) -> LogReader:
        return LogReader(world.folder)

    def check_reader(self, reader: LogReader, journal: Journal) -> None:
        _check_answers(reader, journal, "")
        report = reader.verify()
        assert report.is_sound, report

    def act(self, store: SegmentLog, rng: Random, journal: Journal) -> None:
        kind = rng.choice(["append", "append", "append", "overwrite", "snapshot", "compact", "compact", "reclaim"])
        # The policy's plan is not empty once several segments are mostly dead.
        before = ["append", "snapshot"] if kind == "compact" else []
        with self._host:  # a host appends and takes snapshots on one thread
            for write in before if kind in ("compact", "reclaim") else [kind]:
                self._write(store, write, rng, journal)
        if kind in ("compact", "reclaim"):
            with journal.trying(Upkeep(kind)):
                store.compact(policy=self.policy()) if kind == "compact" else store.reclaim()

    def _write(self, store: SegmentLog, kind: str, rng: Random, journal: Journal) -> None:
        last, state = max(store.last_index, 0), store.state
        floor = max(state.index, 0)
        if kind == "snapshot" and last > floor:
            index = rng.choice([last, rng.randint(floor + 1, last)])
            live = tuple(i for i in range(1, index + 1) if (i > floor or i in state.live) and i % 4 == 0)
            with journal.trying(Snapshot(index, live)):
                store.snapshot(index, live)
            return
        first = max(last - rng.randrange(3), floor) + 1 if kind == "overwrite" else last + 1
        terms = [entry.term for entry in store.entries(max(floor + 1, last))]
        appended = Appended(first, max(terms, default=0) + (kind == "overwrite") or 1, rng.randint(1, 9))
        with journal.trying(appended):
            store.append((i, appended.term, payload_of(i, appended.term)) for i in appended.indexes())
            store.sync()

    def check(self, store: SegmentLog | LogReader, journal: Journal, *, damage: str) -> None:
        _check_answers(store, journal, damage)
        if not damage:
            assert store.verify().is_sound, store.verify()
            if isinstance(store, SegmentLog):
                _require_tidy(store)


def _require_tidy(store: SegmentLog) -> None:
    """Require that the folder has only current segments, and the links to them."""
    store.reclaim()
    folder = Path(store.folder)
    leftovers = leftovers_of(folder, *TIDY)
    assert not leftovers, f"{leftovers} were left"
    files = {path.name for path in folder.glob("*.segment") if not path.is_symlink()}
    unused = files - {f"{ref.number:016d}.segment" for ref in store.refs}
    # The newest segment may be empty, and so may the first until there is a snapshot.
    assert len(unused - {f"{1:016d}.segment"}) <= 1, f"{unused} are unused"


def _check_answers(store: SegmentLog | LogReader, journal: Journal, damage: str) -> None:
    allowed = allowed_of(journal)
    absent_from = None
    for index in range(1, max(allowed, default=0) + 3):
        answer = _answer(store, index)
        expected = allowed.get(index, {ABSENT})
        if answer == DAMAGED:
            assert damage, f"index {index} is damaged"
        elif answer == ABSENT and ABSENT not in expected and damage == "cut":
            absent_from = absent_from or index  # the end of the newest segment
        else:
            assert answer in expected, f"index {index} is {answer}, expected one of {sorted(map(str, expected))}"
            assert absent_from is None or ABSENT in expected, f"index {absent_from} is absent, and {index} is there"


def _answer(store: SegmentLog | LogReader, index: int) -> object:
    """Return the term of the entry at an index, or `ABSENT`, `DEAD` or `DAMAGED`."""
    try:
        found = store.read(index)
    except CorruptData:
        return DAMAGED
    match found:
        case Entry(index=number, term=term, payload=payload):
            assert number == index
            assert bytes(payload) == payload_of(index, term), f"index {index} has a wrong payload"
            return term
        case DeadEntry():
            return DEAD
        case MissingEntry():
            return ABSENT


def allowed_of(journal: Journal) -> dict[int, set[object]]:
    """Return by index the possible terms, or `ABSENT`, or `DEAD`."""
    allowed: dict[int, set[object]] = {}

    def at(index: int) -> set[object]:
        return allowed.setdefault(index, {ABSENT})

    for change in journal.changes:
        match change.what:
            case Appended() as appended:
                for index in {*allowed, *appended.indexes()}:
                    if index < appended.first:
                        continue
                    new: object = appended.term if index in appended.indexes() else ABSENT
                    allowed[index] = {new} if change.acknowledged else at(index) | {new, ABSENT}
            case Snapshot(index=upto, live=live):
                for index in range(1, upto + 1):
                    if index not in live:
                        allowed[index] = {DEAD} if change.acknowledged else at(index) | {DEAD}
    return allowed
