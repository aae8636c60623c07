# SPDX-License-Identifier: Apache-2.0
"""A scheduler on a command log: restarts give the same state, snapshots are whole or not there, threads share it."""

from __future__ import annotations

import contextlib
import itertools
import random
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import attrs
import pytest

from compactlib.clock import ManualClock
from compactlib.errors import CorruptData, InvalidInput, Unsupported
from compactlib.files.checksum import crc32
from compactlib.hosting import CommandMachine, LocalLog, PollAgain, SchedulerHost, SchedulerMachine, SnapshotStore
from compactlib.hosting.errors import OutOfStep
from compactlib.kv import KVStore, MemoryStore, OutcomeUnknown, PredicateFailed, SqliteStore
from compactlib.outcome import Done, Failed, Skipped
from compactlib.raftlog import LogOptions, SegmentLimits
from compactlib.runtime import RecordingObserver
from compactlib.scheduler import (
    AddBlocks,
    BlockMeta,
    Command,
    JobStatus,
    PollRequest,
    PollResponse,
    SchedulerConfig,
    SchedulerService,
    StatusUpdate,
)
from compactlib.scheduler.model.poll import Verdict
from compactlib.scheduler.model.update import Configured, PlanUpdate
from compactlib.scheduler.persistence.codec import encode_message
from tests.harness.faulty_store import FaultyStore, KVFault
from tests.hosting.workload import CONFIG, PlainWorker, blocks, success
from tests.tools.faults.kv_faults import KVRun, explore_kv_faults
from tests.tools.faults.plan import FailingFiles, Fault


def hosted(folder: Path, kv: KVStore | None, clock: ManualClock | None = None, every: int = 0) -> SchedulerHost:
    options = LogOptions(limits=SegmentLimits(max_entries=8), clock=clock or ManualClock(1000.0))
    log = LocalLog(folder / "log", options)
    try:
        return SchedulerHost(log, kv, CONFIG, snapshot_every=every, rng=random.Random(7))
    except BaseException:
        log.close()
        raise


def old_blocks() -> list[BlockMeta]:
    """Blocks that any retention removes."""
    return [attrs.evolve(block, min_time=0.0, max_time=0.0) for block in blocks(0, 3)]


def dump(host: SchedulerHost) -> bytes:
    return host.look(lambda service: host.machine.dump())


def test_a_job_from_block_to_block(memory_path: Path) -> None:
    with contextlib.closing(hosted(memory_path, MemoryStore())) as host:
        added = host.add_blocks(blocks(0, 6))
        assert len(added.queued) == 6
        host.poll(PollRequest(job_capacity=1))
        response = host.poll(PollRequest(job_capacity=1))
        (plan,), (assignment,) = response.compaction_jobs, response.assignments
        assert assignment.token == host.look(lambda service: service.state.applied_index)
        answer = host.poll(PollRequest((success(plan, assignment.token),)))
        assert answer.answers[0].verdict is Verdict.ACCEPTED
        assert host.tick().flushed == 0
        assert host.requeue(["nothing"]).unknown == ("nothing",)
        assert host.retain(0.0).blocks == 0


@pytest.mark.parametrize("snapshots", [False, True])
def test_settings_that_were_changed_while_it_ran_hold_until_it_is_opened_with_others(memory_path: Path, *,
                                                                                     snapshots: bool) -> None:
    kv, raised = MemoryStore(), attrs.evolve(CONFIG, max_failures=9)

    def reopened(config: SchedulerConfig) -> SchedulerHost:
        return SchedulerHost(LocalLog(memory_path / "log", LogOptions(clock=ManualClock(1000.0))), kv, config)

    def closed(host: SchedulerHost) -> SchedulerConfig:
        found = host.look(lambda service: service.config)
        if snapshots:
            assert isinstance(host.snapshot(), Done | Skipped)
        host.close()
        return found

    host = reopened(CONFIG)
    assert host.configure(raised) == Configured(CONFIG, raised)
    assert closed(host) == raised
    assert closed(reopened(CONFIG)) == raised
    other = attrs.evolve(CONFIG, max_failures=1)
    assert [closed(reopened(config)) for config in (other, other, CONFIG)] == [other, other, CONFIG]


def test_a_poll_that_changes_nothing_writes_nothing(memory_path: Path) -> None:
    host = hosted(memory_path, MemoryStore(), ManualClock(1234.5))
    before = host.log.last_index
    response = host.poll(PollRequest((StatusUpdate("gone", 1, JobStatus.IN_PROGRESS),), 3))
    assert [answer.verdict for answer in response.answers] == [Verdict.NOT_FOUND]
    assert response.now == 1234.5
    assert host.log.last_index == before
    host.close()


def life(host: SchedulerHost, clock: ManualClock, worker: PlainWorker, steps: int, first: int) -> None:
    for step in range(steps):
        clock.advance(worker.rng.choice([0.1, 1.0, 6.0]))
        if step % 4 == 0:
            host.add_blocks(blocks(first + 10 * step, 7))
        worker.poll(host)
        if worker.rng.random() < 0.1:
            host.tick()


@pytest.mark.parametrize("seed", range(6))
def test_snapshot_and_replay_give_exactly_the_state_before(memory_path: Path, seed: int) -> None:
    rng, clock, kv = random.Random(seed), ManualClock(1000.0), MemoryStore()
    worker = PlainWorker(seed)
    host = hosted(memory_path, kv, clock)
    for opening in range(5):
        life(host, clock, worker, rng.randrange(1, 25), 10_000 * opening)
        if rng.random() < 0.6:
            assert isinstance(host.snapshot(), Done)
            life(host, clock, worker, rng.randrange(10), 10_000 * opening + 5_000)
        before = dump(host)
        host.close()
        host = hosted(memory_path, kv, clock)
        assert dump(host) == before, "the state after a restart is another one"
    # The same plans too: two schedulers, restored from the same, go the same way.
    (memory_path / "twin").mkdir()
    twin = SchedulerService(state=host.machine.service.state)
    machine = SchedulerMachine(CONFIG)
    machine.load(dump(host))
    command = Command(twin.state.applied_index + 1, 99, clock.now())
    request = PollRequest(job_capacity=50)
    assert twin.prepare(command, request) == machine.service.prepare(command, request)
    host.close()


def test_snapshots_come_by_themselves_and_the_log_stays_small(memory_path: Path) -> None:
    clock, kv = ManualClock(1000.0), MemoryStore()
    host = hosted(memory_path, kv, clock, every=20)
    life(host, clock, PlainWorker(1), 150, 0)
    assert host.log.last_index > 150
    assert len(list((memory_path / "log").glob("*.segment"))) < 8
    before = dump(host)
    host.close()
    host = hosted(memory_path, kv, clock)
    assert dump(host) == before
    host.close()


def test_eight_threads_complete_each_job_once(memory_path: Path) -> None:
    with contextlib.closing(SqliteStore(memory_path / "kv", synchronous="normal")) as kv:
        host = hosted(memory_path, kv, every=50)
        host.add_blocks(blocks(0, 240))
        workers = [PlainWorker(seed, diligent=True) for seed in range(8)]
        failed: list[BaseException] = []

        def run(worker: PlainWorker) -> None:
            try:
                idle = 0
                while idle < 5:
                    response = worker.poll(host)
                    idle = 0 if worker.held or response.assignments else idle + 1
            except BaseException as error:
                failed.append(error)

        threads = [threading.Thread(target=run, args=(worker,)) for worker in workers]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(120)
        assert failed == []
        completed = sum((worker.completed for worker in workers), Counter[str]())
        assert set(completed.values()) == {1}
        # 240 blocks in pairs, and what comes of them in threes: 40 from each shard at level 0, then 13.
        assert len(completed) == 120 + 39
        host.close()


def test_crash_at_every_key_value_step_of_a_snapshot(memory_path: Path) -> None:
    folders = itertools.count()
    state: dict[str, bytes] = {}

    def work(kv: FaultyStore) -> None:
        folder = memory_path / str(next(folders))
        folder.mkdir()
        clock, worker = ManualClock(1000.0), PlainWorker(3)
        host = hosted(folder, kv, clock)
        try:
            for first in (0, 1000, 2000):
                life(host, clock, worker, 6, first)
                state[folder.name] = dump(host)
                host.snapshot()
        finally:
            host.close()

    def check(kv: KVStore, run: KVRun) -> None:
        folder = max(memory_path.iterdir(), key=lambda path: int(path.name))
        host = hosted(folder, kv)
        assert folder.name not in state or dump(host) == state[folder.name], "it differs from what was acknowledged"
        host.add_blocks(blocks(50_000, 3))
        outcome = host.snapshot()
        assert isinstance(outcome, Done), outcome
        assert len(list(kv.scan(b"scheduler/snapshot"))) == 2, "a head and one chunk: nothing was left behind"
        host.close()

    report = explore_kv_faults(MemoryStore, work, check)
    assert report.operations == 18


def test_a_store_that_refuses_a_snapshot_costs_nothing_but_the_snapshot(memory_path: Path) -> None:
    observer = RecordingObserver()
    kv = FaultyStore(MemoryStore(), lambda operation: KVFault.SLOW_DOWN if operation.changes else None)
    host = SchedulerHost(LocalLog(memory_path / "log"), kv, CONFIG, snapshot_every=1, observer=observer)
    host.add_blocks(blocks(0, 4))
    outcome = host.snapshot()
    assert isinstance(outcome, Failed)
    assert [name for name, _ in observer.events] == ["scheduler_snapshot_failed"] * 2
    assert (host.failures, host.last_error) == (2, outcome.error)
    host.close()


def test_a_snapshot_is_done_once_it_is_saved_though_the_log_cannot_forget(memory_path: Path) -> None:
    refusing: list[bool] = []
    files = FailingFiles(faults=lambda number: Fault.REFUSED if refusing else None)
    observer, kv = RecordingObserver(), MemoryStore()
    with SchedulerHost(LocalLog(memory_path / "log", LogOptions(files=files)), kv, CONFIG, observer=observer) as host:
        host.add_blocks(blocks(0, 4))
        refusing.append(True)
        assert isinstance(host.snapshot(), Done)
        refusing.clear()
        assert [name for name, _ in observer.events if name.startswith("scheduler")] == ["scheduler_leftovers_stay"]
        assert host.failures == 0
        before = dump(host)
    with SchedulerHost(LocalLog(memory_path / "log"), kv, CONFIG) as host:
        assert dump(host) == before


def test_without_a_store_the_log_is_everything(memory_path: Path) -> None:
    host = hosted(memory_path, None)
    host.add_blocks(blocks(0, 4))
    assert isinstance(host.snapshot(), Skipped)
    before = dump(host)
    host.close()
    host = hosted(memory_path, None)
    assert dump(host) == before
    host.close()


@pytest.mark.parametrize("with_kv", [True, False])
@pytest.mark.parametrize("first", [True, False])
def test_a_scheduler_keeps_the_index_that_it_has_or_has_not(memory_path: Path, *, first: bool, with_kv: bool) -> None:
    kv, seen = MemoryStore() if with_kv else None, set[bytes]()
    for with_index in (first, not first):
        with SchedulerHost(LocalLog(memory_path), kv, CONFIG, with_index=with_index) as host:
            if with_index is first:
                host.add_blocks(old_blocks())
                assert bool(host.retain(1e12).blocks) is first
            assert host.look(lambda service: service.state.index is not None) is first
            seen.add(dump(host))
    assert len(seen) == 1


@pytest.mark.parametrize("first", [True, False])
def test_every_node_of_a_group_has_an_index_if_the_first_opening_had(memory_path: Path, *, first: bool) -> None:
    follower = SchedulerMachine(CONFIG, with_index=not first)

    class Told(LocalLog):
        def start(self, machine: CommandMachine) -> None:
            lead = machine.apply

            def apply(command: Command, payload: bytes) -> Any:
                follower.apply(command, payload)
                return lead(command, payload)

            machine.apply = apply  # type: ignore[method-assign]
            super().start(machine)

    with SchedulerHost(Told(memory_path), None, CONFIG, with_index=first) as host:
        host.add_blocks(old_blocks())
        assert bool(host.retain(1e12).blocks) is first
        assert follower.dump() == dump(host)


def test_a_snapshot_without_its_log_and_a_log_without_its_snapshot(memory_path: Path) -> None:
    kv = MemoryStore()
    host = hosted(memory_path, kv)
    host.add_blocks(blocks(0, 4))
    host.poll(PollRequest(job_capacity=1))
    # The opening, the settings, the blocks, the poll.
    assert host.snapshot() == Done(4)
    assert host.snapshot() == Skipped("nothing has happened since command 4")
    host.close()
    with pytest.raises(OutOfStep, match="stands at command 0, the log holds 5 to 4"):
        hosted(memory_path, MemoryStore())
    (memory_path / "new").mkdir()
    with pytest.raises(OutOfStep, match="stands at command 4"):
        hosted(memory_path / "new", kv)
    with pytest.raises(InvalidInput, match="snapshot_every is -1"):
        hosted(memory_path, kv, every=-1)


def test_commands_that_cannot_be_read(memory_path: Path) -> None:
    for payload in (b"garbage", encode_message(PollRequest()), encode_message(AddBlocks(()))[:-1]):
        machine = SchedulerMachine(CONFIG)
        with pytest.raises(CorruptData, match="command 7"):
            machine.apply(Command(7, 1, 0.0), payload)


def test_a_leader_that_changes_during_a_poll_is_told_to_the_worker(memory_path: Path) -> None:
    host = hosted(memory_path, None)
    host.add_blocks(blocks(0, 4))
    machine = host.machine
    encode = machine.encode

    def late(operation: object) -> bytes:
        # As if the update had been prepared by the leader before.
        assert isinstance(operation, PlanUpdate)
        return encode(attrs.evolve(operation, term=operation.term - 1))

    machine.encode = late  # type: ignore[method-assign]
    with pytest.raises(PollAgain, match="prepared in term 0, and came to be carried out in term 1"):
        host.poll(PollRequest(job_capacity=1))
    machine.encode = encode  # type: ignore[method-assign]
    assert host.poll(PollRequest(job_capacity=1)) != PollResponse()
    host.close()


# -- the store of snapshots

def test_snapshots_of_any_size() -> None:
    kv = MemoryStore(limits=MemoryStore().limits)
    store = SnapshotStore(kv, b"p")
    assert store.load() is None
    for index, size in enumerate((0, 1, 262_144, 262_145, 1_000_000), 1):
        data = random.Random(size).randbytes(size)
        store.save(index, data)
        for reader in (store, SnapshotStore(kv, b"p")):
            loaded = reader.load()
            assert loaded is not None
            assert (loaded.index, loaded.data) == (index, data)
        store.audit()
    with pytest.raises(InvalidInput, match="only move forward"):
        store.save(4, b"")


def test_two_writers_of_snapshots_do_not_overwrite_each_other() -> None:
    kv = MemoryStore()
    one, two = SnapshotStore(kv, b"p"), SnapshotStore(kv, b"p")
    one.save(1, b"one")
    with pytest.raises(PredicateFailed):
        two.save(2, b"two")
    with pytest.raises(CorruptData):
        two.audit()
    loaded = SnapshotStore(kv, b"p").load()
    assert loaded is not None
    assert loaded.data == b"one"


def test_a_snapshot_whose_answer_was_lost() -> None:
    done = FaultyStore(MemoryStore(), lambda operation: KVFault.UNKNOWN_DONE if operation.name == "set_if" else None)
    store = SnapshotStore(done, b"p")
    for index in (1, 2):
        store.save(index, b"state")
        assert store.index == index, "it looked, and found it written"
    lost = FaultyStore(MemoryStore(), lambda operation: KVFault.UNKNOWN_LOST if operation.name == "set_if" else None)
    store = SnapshotStore(lost, b"p")
    with pytest.raises(OutcomeUnknown):
        store.save(1, b"state")
    assert store.index == 0
    with pytest.raises(OutcomeUnknown):
        store.save(1, b"state")


def test_damaged_snapshots_are_never_loaded() -> None:
    kv = MemoryStore()
    SnapshotStore(kv, b"p").save(7, b"the state" * 10)
    for entry in list(kv.scan(b"p")):
        for place in range(len(entry.value)):
            kv.set(b"p", entry.key, entry.value[:place] + bytes([entry.value[place] ^ 1]) + entry.value[place + 1:])
            with pytest.raises((CorruptData, Unsupported)):
                SnapshotStore(kv, b"p").load()
        kv.set(b"p", entry.key, entry.value[:-1])
        with pytest.raises(CorruptData):
            SnapshotStore(kv, b"p").load()
        kv.set(b"p", entry.key, entry.value)
    kv.delete(b"p", next(entry.key for entry in kv.scan(b"p", prefix=b"chunk/")))
    with pytest.raises(CorruptData, match="no chunk 0"):
        SnapshotStore(kv, b"p").load()
    later = b"CLSNAP\0\3" + bytes(50)
    kv.set(b"p", b"head", later + crc32(later).to_bytes(4, "big"))
    with pytest.raises(Unsupported, match="snapshot format version 3; this release reads 2"):
        SnapshotStore(kv, b"p")
