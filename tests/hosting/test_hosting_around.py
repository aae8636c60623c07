# SPDX-License-Identifier: Apache-2.0
"""Around the hosts: kills and power failures, owners that pause, settings, clocks, observers, interrupts, forks."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import attrs
import pytest

from compactlib.clock import ManualClock
from compactlib.errors import Busy, ClockJumped, Closed, CompactlibError, InvalidInput
from compactlib.files import Files
from compactlib.hosting import LocalLog, LogBroken, SchedulerHost, SchedulerMachine, SnapshotStore
from compactlib.kv import KVStore, MemoryStore, OutcomeUnknown, PredicateFailed
from compactlib.outcome import Done, Failed
from compactlib.runtime import Observer, RecordingObserver, SteadyClock
from compactlib.scheduler import AddBlocks, BlockMeta, Command, JobStatus, PollRequest, SchedulerConfig, StatusUpdate
from compactlib.scheduler.persistence.codec import encode_message
from compactlib.testing import RecordingFiles, explore_kills
from tests.harness.faulty_store import FaultyStore, KVFault, KVOperation
from tests.harness.forks import check_fork
from tests.hosting.local_logs import opened, options
from tests.hosting.machines import Journal
from tests.hosting.workload import CONFIG, blocks
from tests.raftlog.wrapped_files import WatchedFiles
from tests.scheduler.persistence.test_scheduler_store_around import SETTINGS, Ledger, check_ledger, work
from tests.tools.faults.jumps import DAY_SECONDS, Jump as ClockJump, JumpingClock, explore_clock_jumps
from tests.tools.faults.lost_answers import LostAnswer, explore_lost_answers
from tests.tools.interleave.pauses import SteppedFiles, explore_pauses
from tests.tools.interleave.stage import Stage
from tests.tools.interleave.stores import SteppedStore
from tests.tools.settings import check_settings

PARTITION = b"scheduler/snapshot"


# ------------------------------------------------------------------------------- killed, succeeded, and power fails


def log_life(name: bytes, commands: int, compact: int = 0) -> Callable[[Path, RecordingFiles], object]:
    def live(folder: Path, files: RecordingFiles) -> None:
        log, machine = opened(folder / "log", files=files)
        with log:
            for number in range(commands):
                payload = b"%s-%d" % (name, number)
                log.propose(payload)
                files.acknowledge(payload)
                if compact and number == commands // 2:
                    log.compact(machine.applied_index - compact)

    return live


def check_log(folder: Path, acknowledged: Sequence[bytes]) -> None:
    if not acknowledged and not (folder / "log").exists():
        return
    log, machine = opened(folder / "log")
    with log:
        found = machine.payloads
        assert [payload for payload in found if payload in acknowledged] == list(acknowledged)
        log.propose(b"later")


def test_a_log_whose_owner_was_killed_and_whose_next_owner_met_a_power_failure() -> None:
    checked = explore_kills(log_life(b"first", 4), log_life(b"next", 4), check_log, limit_per_point=4, max_states=600,
                           seed=2)
    assert checked >= 300


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_a_log_in_thirty_thousand_states_of_kill_and_power_failure() -> None:
    checked = explore_kills(log_life(b"first", 14), log_life(b"next", 14), check_log, limit_per_point=64,
                           max_states=30_000, seed=3)
    assert checked >= 30_000


# ------------------------------------------------------------------------------------------ owners that are paused


def snapshots_of(kv: KVStore, seed: object) -> SnapshotStore:
    return SnapshotStore(kv, b"p", clock=ManualClock(), rng=random.Random(repr(seed)))


@pytest.mark.parametrize("max_transact", [100, 0])
def test_a_former_owner_of_snapshots_that_wakes_at_any_request_harms_nothing(max_transact: int) -> None:
    saved: list[tuple[int, bytes]] = []

    def world(stage: Stage) -> SteppedStore:
        saved.clear()
        inner = MemoryStore(limits=attrs.evolve(MemoryStore().limits, max_transact=max_transact))
        snapshots_of(inner, 0).save(1, b"first" * 3)
        return SteppedStore(inner, stage)

    def owner(kv: SteppedStore, name: str) -> None:
        store = snapshots_of(kv, name)
        for _ in range(2):
            # The same commands in both, with another outcome: names by the command alone would meet.
            index = store.index + 1
            store.save(index, name.encode() * 5)
            saved.append((index, name.encode() * 5))

    def check(kv: SteppedStore, results: Any) -> None:
        for name, result in results.items():
            assert result is None or isinstance(result, PredicateFailed | InvalidInput), (name, result)
        last = snapshots_of(kv, "last")
        loaded = last.load()
        assert loaded is not None
        assert not saved or (loaded.index, loaded.data) == max(saved)
        last.save(last.index + 1, b"later")
        assert sum(1 for _ in kv.scan(b"p")) == 2, "a head and one chunk: nothing was left behind"

    report = explore_pauses({"owner": lambda kv: owner(kv, "owner"), "heir": lambda kv: owner(kv, "heir")}, world,
                            check, both=True)
    assert report.schedules > 100


def test_a_host_that_pauses_at_any_change_of_its_folder_or_its_store_keeps_others_out(memory_path: Path) -> None:
    folders = iter(range(1 << 30))

    class World:
        def __init__(self, stage: Stage) -> None:
            self.folder = memory_path / str(next(folders))
            self.kv: KVStore = MemoryStore()
            self.acknowledged: set[str] = set()
            self.own("before", None)
            self.files, self.kv = SteppedFiles(None, stage), SteppedStore(self.kv, stage)

        def own(self, name: str, files: Files | None) -> None:
            log = LocalLog(self.folder, options(files=files))
            try:
                host = SchedulerHost(log, self.kv, CONFIG, rng=random.Random(name), snapshot_every=0)
                for number in range(2):
                    added = BlockMeta(id=f"{name}-{number}", tenant="A", shard=0, level=0)
                    host.add_blocks([added])
                    self.acknowledged.add(added.id)
                host.snapshot()
                host.add_blocks([BlockMeta(id=f"{name}-last", tenant="A", shard=0, level=0)])
                self.acknowledged.add(f"{name}-last")
            finally:
                log.close()

    def check(world: World, results: Any) -> None:
        for name, result in results.items():
            assert result is None or (name == "heir" and isinstance(result, Busy)), (name, result)
        with SchedulerHost(LocalLog(world.folder, options()), world.kv, CONFIG, snapshot_every=0) as host:
            index = host.machine.service.state.index
            assert index is not None
            assert world.acknowledged == {block.id for block in index.blocks()}

    explore_pauses({"owner": lambda world: world.own("owner", world.files),
                    "heir": lambda world: world.own("heir", world.files)}, World, check, max_schedules=60)


def test_what_is_told_of_a_snapshot_whose_answer_was_lost_is_true() -> None:
    def save_three(kv: FaultyStore) -> list[tuple[int, str]]:
        told: list[tuple[int, str]] = []
        store = snapshots_of(kv, "owner")
        for index in (1, 2, 3, 4):
            try:
                store.save(index, b"state %d" % index)
                told.append((index, "done"))
            except OutcomeUnknown:
                told.append((index, "unknown"))
            except CompactlibError:
                told.append((index, "nothing changed"))
        return told

    def check(kv: KVStore, answer: LostAnswer) -> None:
        loaded = snapshots_of(kv, "later").load()
        told: Any = answer.returned
        done = [index for index, what in told if what == "done"]
        possible = {index for index, what in told if what != "nothing changed"}
        assert loaded is None or loaded.index in possible
        assert not done or (loaded is not None and loaded.index >= done[-1])
        if answer.failed_looks is not None and answer.failed_tries == 0:
            # A late one may get in just before the next, which is then told so; each save reads back what it wrote.
            assert sum(what != "done" for _, what in told) <= max(2, 1 + answer.failed_looks)

    assert explore_lost_answers(MemoryStore, save_three, check).runs > 50


def test_a_snapshot_that_goes_while_it_is_read_is_no_damage() -> None:
    inner = MemoryStore()
    owner = snapshots_of(inner, 1)
    owner.save(1, b"one")
    once = [True]

    def overtake(operation: KVOperation) -> None:
        if operation.key.startswith(b"chunk/") and once:
            once.clear()
            owner.save(2, b"two")

    loaded = snapshots_of(FaultyStore(inner, overtake), 2).load()
    assert loaded is not None
    assert (loaded.index, loaded.data) == (2, b"two")


def test_what_a_snapshot_replaces_and_could_not_be_removed_is_told() -> None:
    failing = [True]
    inner = MemoryStore()
    kv = FaultyStore(inner, lambda operation: KVFault.FAIL if failing and operation.name == "transact" else None)
    store = snapshots_of(kv, 1)
    problems: list[bool] = []
    for index in (1, 2, 3):
        if index == 3:
            failing.clear()
        store.save(index, b"state")
        problems.append(store.cleanup_error is not None)
    assert problems == [False, True, False]
    assert sum(1 for _ in inner.scan(b"p")) == 2


# ---------------------------------------------------------------------------------------------------- settings


class HostLedger(Ledger):
    """What a host has acknowledged; its log lies in a folder."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder = folder

    def host(self, config: SchedulerConfig) -> SchedulerHost:
        self.opened += 1
        log = LocalLog(self.folder, options(clock=SteadyClock(self.clock)))
        return SchedulerHost(log, self.kv, config, snapshot_every=0, rng=random.Random(self.opened))


class HostAsStore:
    """A host with the one method that the ledger's work needs beside `poll`."""

    def __init__(self, host: SchedulerHost) -> None:
        self.host = host
        self.poll = host.poll

    def apply(self, operation: AddBlocks) -> object:
        return self.host.add_blocks(operation.blocks)


def host_life(ledger: HostLedger, config: SchedulerConfig, rng: random.Random) -> None:
    with ledger.host(config) as host:
        work(ledger, HostAsStore(host), rng)
        if rng.random() < 0.3:
            assert not isinstance(host.snapshot(), Failed)
            work(ledger, HostAsStore(host), rng)


def host_audit(ledger: HostLedger, config: SchedulerConfig) -> None:
    with ledger.host(config) as host:
        assert host.machine.service.config == config
        check_ledger(ledger, host.machine.service.state)


def host_worlds(folder: Path) -> Callable[[], HostLedger]:
    numbers = iter(range(1 << 30))
    return lambda: HostLedger(folder / str(next(numbers)))


def test_nothing_acknowledged_changes_in_a_host_under_other_settings(memory_path: Path) -> None:
    check_settings(host_worlds(memory_path), SETTINGS, host_life, host_audit, histories=10)


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_nothing_acknowledged_changes_in_a_host_in_a_thousand_histories(memory_path: Path) -> None:
    check_settings(host_worlds(memory_path), SETTINGS, host_life, host_audit, histories=1000, lives=4, first_seed=1000)


def test_settings_are_a_command_of_the_log_and_are_written_only_when_they_change(memory_path: Path) -> None:
    lasts: list[int] = []
    other = attrs.evolve(CONFIG, max_queue_size=5)
    for config in (CONFIG, CONFIG, other, other, CONFIG):
        log = LocalLog(memory_path / "log", options())
        with SchedulerHost(log, None, config) as host:
            assert host.machine.service.config == config
            lasts.append(host.log.last_index)
    # An opening each, and settings where they are others than before.
    assert lasts == [2, 3, 5, 6, 8]


def test_a_machine_takes_settings_once() -> None:
    machine = SchedulerMachine(CONFIG)
    other = attrs.evolve(CONFIG, max_queue_size=5)
    assert machine.apply(Command(4, 1, 0.0), encode_message(other)) == other
    before = machine.dump()
    machine.apply(Command(4, 1, 0.0), encode_message(CONFIG))
    assert machine.dump() == before
    copy = SchedulerMachine(CONFIG)
    copy.load(before)
    assert (copy.dump(), copy.service.config) == (before, other)


# ---------------------------------------------------------------------------------- clocks, observers, interrupts


def test_a_clock_that_jumps_gives_no_command_a_wrong_time(memory_path: Path) -> None:
    folders = iter(range(1 << 30))

    def propose(clock: JumpingClock) -> list[Command]:
        log, machine = opened(memory_path / str(next(folders)), clock=clock)
        with log:
            for number in range(5):
                clock.advance(1.0)
                try:
                    log.propose(b"%d" % number)
                except ClockJumped:
                    continue
            for _ in range(3):
                clock.advance(31.0)
                try:
                    log.propose(b"last")
                    break
                except ClockJumped:
                    continue
            assert machine.payloads[-1] == b"last", "it goes on once the clock is right again, or stayed so"
        return [command for command, _ in machine.commands]

    def check(commands: Any, jump: ClockJump) -> None:
        assert not isinstance(commands, CompactlibError)
        if jump.reading > 1 and jump.readings == 1:
            assert all(0 <= command.appended_at - 1_000_000.0 <= 100 for command in commands)

    explore_clock_jumps(propose, check)


def test_who_only_looks_is_not_refused_by_a_clock_that_jumped(memory_path: Path) -> None:
    clock = ManualClock(1000.0)
    with SchedulerHost(LocalLog(memory_path / "log", options(clock=clock)), MemoryStore(), CONFIG) as host:
        host.add_blocks(blocks(1, 1))
        clock.set_now(90_000.0)
        with pytest.raises(ClockJumped):
            host.add_blocks(blocks(2, 1))
        assert host.look(lambda service: service.state.applied_index) == host.log.last_index
        assert isinstance(host.snapshot(), Done)
        assert not host.failures


def test_a_long_stop_is_no_jump_and_expires_nothing_at_once(memory_path: Path) -> None:
    clock = ManualClock(1000.0)
    log, _ = opened(memory_path / "log", clock=clock)
    log.propose(b"a")
    log.close()
    clock = ManualClock(1000.0 + 30 * DAY_SECONDS)
    log, machine = opened(memory_path / "log", clock=clock)
    log.propose(b"b")
    clock.advance(31.0)
    log.propose(b"c")
    log.close()
    (before, _), (after, _) = machine.commands[-2:]
    assert (before.appended_at, before.expiry) == (1000.0 + 30 * DAY_SECONDS, 1000.0)
    assert after.expiry == after.appended_at
    log, _ = opened(memory_path / "log", clock=ManualClock(1000.0))
    with pytest.raises(ClockJumped):
        log.propose(b"d")
    log.close()
    mine = SteadyClock(ManualClock(1000.0))
    log, _ = opened(memory_path / "log", clock=mine)
    log.propose(b"d")
    log.close()


class Bad(Observer):
    """Raises whatever it is told, and looks at the host first: under a lock it would wait for ever."""

    def __init__(self) -> None:
        self.host: SchedulerHost | None = None
        self.told: list[str] = []

    def event(self, name: str, fields: object) -> None:
        self.told.append(name)
        if self.host is not None:
            self.host.look(lambda service: None)
        raise KeyError("a dashboard's bug")

    def count(self, name: str, value: int = 1, labels: object = None) -> None:
        self.event(name, {})


def test_observers_that_raise_break_neither_host_nor_log_and_a_replay_tells_nothing(memory_path: Path) -> None:
    config = attrs.evolve(CONFIG, max_failures=1, max_queue_size=1)
    watching, dumped = Bad(), b""
    for opening in range(2):
        watching.host = None
        told = len(watching.told)
        log = LocalLog(memory_path / "log", options(observer=watching))
        with SchedulerHost(log, None, config, observer=watching) as host:
            assert host.machine.dump() == dumped or not opening
            assert "scheduler_job_quarantined" not in watching.told[told:]
            watching.host = host
            for number in range(4):
                host.add_blocks(blocks(100 * opening + 2 * number, 2))
                host.poll(PollRequest(job_capacity=1))
                response = host.poll(PollRequest(job_capacity=1))
                host.poll(PollRequest(tuple(StatusUpdate(lease.name, lease.token, JobStatus.FAILED)
                                            for lease in response.assignments)))
            assert "scheduler_job_quarantined" in watching.told
            assert "command_log_syncs" in watching.told
            dumped = host.look(lambda service: host.machine.dump())
            watching.host = None


def test_a_failed_snapshot_is_told_outside_of_the_lock(memory_path: Path) -> None:
    outcomes: list[object] = []
    asked: list[bool] = []

    class Again(RecordingObserver):
        def event(self, name: str, fields: Any) -> None:
            super().event(name, fields)
            if refusing and not asked:
                asked.append(True)
                outcomes.append(host.snapshot())

    refusing: list[bool] = []
    kv = FaultyStore(MemoryStore(), lambda operation: KVFault.SLOW_DOWN if refusing and operation.changes else None)
    with SchedulerHost(LocalLog(memory_path / "log", options()), kv, CONFIG, observer=Again()) as host:
        host.add_blocks(blocks(0, 2))
        refusing.append(True)
        assert isinstance(host.snapshot(), Failed)
        assert [type(outcome) for outcome in outcomes] == [Failed], "not skipped as if one were under way"


@pytest.mark.parametrize("place", ["machine", "sync"])
def test_an_interrupt_is_an_interrupt_and_the_log_is_opened_again(memory_path: Path, place: str) -> None:
    stopping: list[str] = []

    class Interrupted(Journal):
        def apply(self, command: Command, payload: bytes) -> tuple[int, bytes]:
            done = super().apply(command, payload)
            stop("machine")
            return done

    def stop(at: str) -> None:
        if stopping == [at]:
            stopping.clear()
            raise KeyboardInterrupt

    log, _ = opened(memory_path / "log", Interrupted(), files=WatchedFiles(lambda operation, path: stop(operation)))
    log.propose(b"before")
    stopping.append(place)
    with pytest.raises(KeyboardInterrupt):
        log.propose(b"stopped")
    with pytest.raises(LogBroken):
        log.propose(b"after")
    log.close()
    log, machine = opened(memory_path / "log")
    assert machine.payloads[0] == b"before"
    log.propose(b"after")
    log.close()


def test_those_who_wait_with_an_interrupted_thread_are_told_that_the_log_is_broken(memory_path: Path) -> None:
    entered, gate = threading.Event(), threading.Event()
    is_armed, durable = False, 0

    def interrupt(operation: str, path: str) -> None:
        if operation == "sync" and is_armed:
            if log.durable_index > durable:
                # The second batch.
                raise KeyboardInterrupt
            entered.set()
            assert gate.wait(60)

    log, _ = opened(memory_path / "log", files=WatchedFiles(interrupt))
    is_armed, durable = True, log.durable_index
    ended: dict[bytes, BaseException] = {}

    def run(payload: bytes) -> None:
        try:
            log.propose(payload)
        except BaseException as error:
            ended[payload] = error

    threads = [threading.Thread(target=run, args=(b"%d" % number,)) for number in range(4)]
    threads[0].start()
    assert entered.wait(60)
    for thread in threads[1:]:
        thread.start()
    while len(log._syncs._queue) < 3:  # noqa: SLF001
        threading.Event().wait(0.001)
    gate.set()
    for thread in threads:
        thread.join(60)
    assert sorted(ended) == [b"1", b"2", b"3"]
    assert sorted(type(error).__name__ for error in ended.values()) == ["KeyboardInterrupt", "LogBroken", "LogBroken"]
    with pytest.raises(LogBroken):
        log.propose(b"later")
    log.close()


# ---------------------------------------------------------------------------------------------------------- forks


def test_a_fork_of_a_log_s_owner_is_refused(tmp_path: Path) -> None:
    refused = check_fork(lambda: opened(tmp_path / "log")[0], lambda log: log.propose(b"x"), LocalLog.close)
    assert isinstance(refused, Closed)


def test_a_fork_of_who_saves_snapshots_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    store = snapshots_of(MemoryStore(), 1)
    with monkeypatch.context() as forked:
        forked.setattr("os.getpid", lambda: 4_000_000)
        with pytest.raises(Closed, match="this is process 4000000; a fork"):
            store.save(1, b"state")
    store.save(1, b"state")
