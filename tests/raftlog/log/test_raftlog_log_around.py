# SPDX-License-Identifier: Apache-2.0
"""Around the log: killed, and followed by an owner who acknowledges before the power fails; forked; new settings."""

from __future__ import annotations

import contextlib
import errno
import random
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import attrs
import pytest

from compactlib.errors import Closed, StorageError
from compactlib.indexset import IndexSet
from compactlib.raftlog import (
    CostPolicy,
    DeadEntry,
    DropDead,
    Entry,
    EveryNMinors,
    LogOptions,
    LogPolicy,
    MissingEntry,
    RaPolicy,
    SeedPolicy,
    SegmentLimits,
    SegmentLog,
)
from compactlib.raftlog.model.names import segment_name
from compactlib.testing import RecordingFiles, explore_kills
from tests.harness.forks import check_fork, in_a_fork
from tests.raftlog.compaction_logs import counted
from tests.raftlog.wrapped_files import UnsyncedFiles, WatchedFiles
from tests.tools.faults.plan import Crash, FailingFiles, Fault
from tests.tools.settings import check_settings

LOG = "log"

# ------------------------------------------------------------------------------- killed, followed, and then no power


@attrs.frozen
class Promised:
    """What a log has acknowledged: the term of each index, by its last sync, and the snapshot in force."""

    terms: dict[int, int]
    snapshot: int
    live: IndexSet


def small(files: object) -> LogOptions:
    return LogOptions(limits=SegmentLimits(max_entries=4), run_id=counted(), keep_links_seconds=0.0,
                      trigger=EveryNMinors(0), files=files)  # type: ignore[arg-type]


def payload_of(index: int, term: int) -> bytes:
    return b"%d in %d" % (index, term) * (index % 3)


def promise_of(log: SegmentLog) -> Promised:
    state = log.snapshot
    return Promised({entry.index: entry.term for entry in log.entries()}, -1 if state is None else state.index,
                    IndexSet() if state is None else state.live)


def life(folder: Path, files: RecordingFiles, rounds: int = 1) -> None:
    """Appends, overwrites, takes a snapshot, compacts, appends again; acknowledges after each."""
    with SegmentLog(folder / LOG, small(files)) as log:
        for _ in range(rounds):
            last, state = log.last_index or 0, log.snapshot
            term = 1 if not last else max(entry.term for entry in log.entries(last)) + 1
            log.sync()
            files.acknowledge(promise_of(log))
            # What an earlier life may have appended without a sync is taken back first.
            first = max(last - 1, 1 if state is None else state.index + 1)
            log.extend((index, term, payload_of(index, term)) for index in range(first, first + 8))
            log.sync()
            files.acknowledge(promise_of(log))
            held = [entry.index for entry in log.entries()]
            log.record_snapshot(held[-3], [index for index in held[:-3] if index % 3 == 0])
            files.acknowledge(promise_of(log))
            log.compact(policy=log.policy)
            log.append(held[-1] + 1, term, b"after")
            log.sync()
            files.acknowledge(promise_of(log))
            log.append(held[-1] + 2, term, b"never synced")


def require_kept(folder: Path, acknowledged: Sequence[Promised]) -> None:
    if not acknowledged:
        return
    promised = acknowledged[-1]
    with SegmentLog(folder / LOG, small(UnsyncedFiles())) as log:
        state = log.snapshot
        assert (-1 if state is None else state.index) >= promised.snapshot
        newest = max([entry.term for entry in log.entries(log.last_index or 0)], default=0)
        for index, term in promised.terms.items():
            match log.read(index):
                case Entry(found, found_term, payload):
                    assert found == index
                    assert found_term >= term
                    assert payload in (payload_of(index, found_term), b"after", b"never synced")
                case DeadEntry():
                    # Only by a snapshot of which nothing was acknowledged yet, when it was alive by the last one.
                    assert state is not None
                    assert state.index > promised.snapshot
                case MissingEntry():
                    assert newest > term, f"{index} is gone, and nothing newer has taken it back"
        assert log.verify().is_sound
        log.audit()


def kills(max_states: int, limit_per_point: int, rounds: int = 1) -> int:
    work = partial(life, rounds=rounds)
    return explore_kills(work, work, require_kept, max_states=max_states, limit_per_point=limit_per_point)


def test_a_killed_life_another_that_acknowledges_and_then_no_power() -> None:
    """A new segment's name was found, appended to and synced, and was gone after the power failure."""
    assert kills(300, 2) >= 300


@pytest.mark.soak
def test_soak_a_killed_life_another_that_acknowledges_and_then_no_power() -> None:
    assert kills(32_000, 64, rounds=3) >= 30_000


# ------------------------------------------------------------------------------------------------------------- a fork


def test_a_fork_may_not_write_what_its_parent_has_open(tmp_path: Path) -> None:
    """It wrote what the parent had not flushed, and appended beside it: acknowledged entries were replaced."""
    def append(log: SegmentLog) -> None:
        log.append((log.last_index or 0) + 1, 1, b"entry")
        log.sync()
        log.append((log.last_index or 0) + 1, 1, b"not synced, waits in memory")

    def audit(log: SegmentLog) -> None:
        assert log.last_index == 6
        assert log.verify().is_sound
        log.audit()

    assert isinstance(check_fork(lambda: SegmentLog(tmp_path / LOG), append, SegmentLog.close, audit=audit), Closed)


@pytest.mark.parametrize("name", ["refs", "last_index", "lease", "read", "scan", "record_snapshot", "compact",
                                  "reclaim", "sync"])
def test_no_question_to_a_log_in_a_fork_writes(tmp_path: Path, name: str) -> None:
    """What waits in memory was handed to the disk by whoever looked, also in a fork, where it is out of date."""
    with SegmentLog(tmp_path / LOG) as log:
        log.append(1, 1, b"entry")
        log.sync()
        log.append(2, 1, b"waits in memory")
        before = (tmp_path / LOG / segment_name(1)).read_bytes()
        answer = in_a_fork(lambda: ask(log, name) is None)
        assert isinstance(answer, bool | Closed)
        assert (tmp_path / LOG / segment_name(1)).read_bytes() == before


@pytest.mark.parametrize("name", ["refs", "last_index", "sync"])
def test_no_question_to_a_log_in_a_fork_recovers_what_the_disk_refused(tmp_path: Path, name: str) -> None:
    is_refused = False

    def refuse(operation: str, path: str) -> None:
        if is_refused:
            raise StorageError(operation=operation, path=path, errno=errno.EIO)

    with SegmentLog(tmp_path / LOG, LogOptions(files=WatchedFiles(refuse))) as log:
        log.append(1, 1, b"entry")
        log.sync()
        log.append(2, 1, b"is not durable")
        assert log.refs[-1].last == 2
        is_refused = True
        with pytest.raises(StorageError):
            log.sync()
        is_refused = False
        before = (tmp_path / LOG / segment_name(1)).read_bytes()
        answer = in_a_fork(lambda: ask(log, name) is None)
        assert isinstance(answer, bool | Closed)
        assert (tmp_path / LOG / segment_name(1)).read_bytes() == before
        assert log.last_index == 1
        assert (tmp_path / LOG / segment_name(1)).read_bytes() != before


def ask(log: SegmentLog, name: str) -> object:
    calls: dict[str, Callable[[], object]] = {
        "refs": lambda: log.refs, "last_index": lambda: log.last_index, "lease": log.lease, "read": lambda: log.read(2),
        "scan": lambda: list(log.scan()), "record_snapshot": lambda: log.record_snapshot(1), "compact": log.compact,
        "reclaim": log.reclaim, "sync": log.sync}
    return calls[name]()


# ------------------------------------------------------------------------------------------------------- new settings


POLICIES: list[LogPolicy] = [SeedPolicy(), RaPolicy(), CostPolicy(), SeedPolicy(max_sources=2)]
SETTINGS = [
    LogOptions(limits=SegmentLimits(max_entries=entries, max_bytes=size), policy=policy, trigger=trigger,
               keep_links_seconds=keep, max_open_segments=opened, files=UnsyncedFiles())
    for entries, size, policy, trigger, keep, opened in [
        (4, 1 << 20, POLICIES[0], EveryNMinors(0), 0.0, 1),
        (64, 1 << 20, POLICIES[1], EveryNMinors(3), 60.0, 128),
        (8, 100, POLICIES[2], EveryNMinors(1), 1e9, 2),
        (1, 1, POLICIES[3], EveryNMinors(2), 0.0, 3),
        (1000, 1, POLICIES[1], EveryNMinors(0), 0.0, 1),
    ]]


@attrs.frozen
class Held:
    """What a log may hold: every entry, and the snapshot."""

    entries: dict[int, Entry]
    snapshot: int = -1
    live: frozenset[int] = frozenset()

    def answer(self, index: int) -> Entry | DeadEntry | MissingEntry:
        if index <= self.snapshot and index not in self.live:
            return DeadEntry(index, self.snapshot)
        return self.entries.get(index, MissingEntry(index))

    def alive(self, index: int) -> bool:
        return isinstance(self.answer(index), Entry)

    def with_entry(self, entry: Entry) -> Held:
        kept = {index: held for index, held in self.entries.items() if index < entry.index}
        return attrs.evolve(self, entries={**kept, entry.index: entry})

    def is_in(self, log: SegmentLog) -> bool:
        return all(log.read(index) == self.answer(index) for index in range(max(self.entries, default=0) + 20))


class World:
    """A log's folder, and what it may hold: one state, and more while nothing was acknowledged of the last step."""

    def __init__(self, base: Path) -> None:
        self.path = Path(tempfile.mkdtemp(dir=base)) / "log"
        self.held = [Held({})]

    def settle(self, log: SegmentLog) -> None:
        found = [held for held in self.held if held.is_in(log)]
        assert found, f"none of {len(self.held)} states that there may be"
        self.held = found[-1:]

    def append(self, log: SegmentLog, rng: random.Random, term: int) -> None:
        held = self.held[0]
        last = max(held.entries, default=held.snapshot)
        first = rng.randrange(max(held.snapshot + 1, last - 5, 0), max(last, held.snapshot, 0) + 2)
        for index in range(first, first + rng.randrange(1, 12)):
            entry = Entry(index, term, rng.randbytes(rng.choice([0, 5, 40, 5000])))
            self.held.append(self.held[-1].with_entry(entry))
            log.append(*entry)
        log.sync()
        self.held = self.held[-1:]

    def record(self, log: SegmentLog, rng: random.Random) -> None:
        held = self.held[0]
        if held.entries and max(held.entries) > held.snapshot:
            index = rng.randrange(max(held.snapshot, min(held.entries)), max(held.entries) + 1)
            live = [each for each in held.entries if each <= index and held.alive(each) and rng.random() < 0.4]
            self.held.append(attrs.evolve(held, snapshot=index, live=frozenset(live)))
            log.record_snapshot(index, sorted(live))
            self.held = self.held[-1:]


def one_life(world: World, settings: LogOptions, rng: random.Random) -> None:
    """Any few things a host does; closed at the end, or killed before any change to the disk."""
    killed_at = rng.randrange(1, 80) if rng.random() < 0.6 else None
    # Without waiting for the disk: nothing loses its power here.
    files = FailingFiles(UnsyncedFiles(), faults=lambda number: Fault.CRASH_BEFORE if number == killed_at else None)
    with contextlib.suppress(Crash), SegmentLog(world.path, attrs.evolve(settings, files=files)) as log:
        for number in range(rng.randrange(1, 8)):
            match rng.choice(["append", "append", "append", "record", "compact", "reclaim"]):
                case "append":
                    world.append(log, rng, number + 1)
                case "record":
                    world.record(log, rng)
                case "compact":
                    log.compact(policy=rng.choice([None, DropDead(), log.policy]))
                case "reclaim":
                    log.reclaim()


def audit(world: World, settings: LogOptions) -> None:
    with SegmentLog(world.path, settings) as log:
        world.settle(log)
        assert log.verify().is_sound
        log.audit()


def test_what_was_acknowledged_stays_under_any_later_settings(tmp_path: Path) -> None:
    report = check_settings(lambda: World(tmp_path), SETTINGS, one_life, audit, histories=12)
    assert report.changes > 15


@pytest.mark.soak
def test_soak_what_was_acknowledged_stays_under_any_later_settings(tmp_path: Path) -> None:
    report = check_settings(lambda: World(tmp_path), SETTINGS, one_life, audit, histories=1_000, first_seed=1_000)
    assert report.changes > 1_000


@pytest.mark.parametrize("how", ["entries", "scan", "read_many", "plan_read"])
def test_what_was_left_half_way_ends_with_the_log(how: str, tmp_path: Path) -> None:
    options = LogOptions(limits=SegmentLimits(max_entries=2), keep_links_seconds=0)
    log = SegmentLog(tmp_path, options)
    log.extend((index, 1, b"payload") for index in range(10))
    plan = log.plan_read(range(10))
    answers = {"entries": log.entries, "scan": log.scan, "read_many": lambda: log.read_many(range(10)),
               "plan_read": plan.answers}[how]()
    assert next(iter(answers)) == Entry(0, 1, b"payload")
    log.close()
    with SegmentLog(tmp_path, options) as later:
        later.record_snapshot(7, [])
        later.compact(policy=DropDead())
        with pytest.raises(Closed):
            list(answers)
