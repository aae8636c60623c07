# SPDX-License-Identifier: Apache-2.0
"""A scheduler kept in a key-value store: crashes and failures at every operation, owners that follow each other."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest

from compactlib.clock import ManualClock
from compactlib.errors import Busy, Closed, CompactlibError, CorruptData, InvalidInput, Stale, Unsupported
from compactlib.kv import KVEntry, KVStore, MemoryStore, OutcomeUnknown, SqliteStore
from compactlib.kv.snapshots import HEAD_KEY, SnapshotStore
from compactlib.runtime import RecordingObserver
from compactlib.scheduler import (
    AddBlocks,
    BlockMeta,
    Command,
    CompactedBlocks,
    Configure,
    FairTenants,
    JobStatus,
    LevelConfig,
    PollRequest,
    SchedulerConfig,
    StatusUpdate,
    StoredScheduler,
    Tick,
)
from compactlib.scheduler.errors import JournalConflict
from compactlib.scheduler.model.update import Operation
from compactlib.scheduler.persistence.codec import RecordKind, decode_record, encode_command, encode_rows, is_opening
from compactlib.scheduler.persistence.state_rows import dump_rows
from tests.harness.faulty_store import FaultyStore, KVCrash, KVFault, KVOperation, fault_at
from tests.tools.faults.kv_faults import KVRun, explore_kv_faults

CONFIG = SchedulerConfig(levels=(LevelConfig(max_blocks=2, max_age_seconds=30),) * 2, max_queue_size=6, max_failures=2,
                         cleanup_delay_seconds=20)
POLICY = FairTenants(higher_level_share=0.25)
PARTITION = b"scheduler"


def opened(kv: KVStore, clock: ManualClock | None = None, **settings: Any) -> StoredScheduler:
    return StoredScheduler(kv, CONFIG, clock=clock or ManualClock(1000.0), rng=random.Random(1),
                           checkpoint_every=settings.pop("checkpoint_every", 4), policy=POLICY, **settings)


def rows(scheduler: StoredScheduler) -> list[Any]:
    """The state, whichever command came last: opening it is a command that changes nothing else."""
    [tag, _, *first], *others = dump_rows(scheduler.service.state)
    return [[tag, *first], *others]


def drive(scheduler: StoredScheduler, clock: ManualClock, seed: int, steps: int) -> Iterator[list[Any]]:
    """Random work; yields the state after each command. The same commands for the same seed."""
    rng = random.Random(seed)
    held: list[StatusUpdate] = []
    for number in range(steps):
        clock.advance(rng.choice([0.0, 1.0, 20.0]))
        if rng.random() < 0.5:
            scheduler.apply(AddBlocks(tuple(
                BlockMeta(id=f"b{number}-{place}", tenant=rng.choice("AB"), shard=0, level=0) for place in range(3))))
        else:
            updates = tuple(held[:2])
            del held[:2]
            response = scheduler.poll(PollRequest(updates, rng.randint(0, 2)))
            for plan, lease in zip(response.compaction_jobs,
                                   response.assignments[-len(response.compaction_jobs):], strict=False):
                status = rng.choice([JobStatus.IN_PROGRESS, JobStatus.SUCCESS, JobStatus.SUCCESS, JobStatus.FAILED])
                output = BlockMeta(id=f"{plan.name}@{lease.token}", tenant=plan.tenant, shard=0,
                                   level=plan.compaction_level + 1)
                held.append(StatusUpdate(lease.name, lease.token, status, CompactedBlocks(
                    tenant=plan.tenant, shard=0, source_blocks=plan.source_blocks, new_blocks=(output,))))
        scheduler.service.audit()
        yield rows(scheduler)


@pytest.mark.parametrize("every", [1, 3, 1000])
def test_what_is_opened_again_is_what_was_left_and_plans_the_same(every: int, tmp_path: Path) -> None:
    for kv in (MemoryStore(), SqliteStore(tmp_path / f"{every}.sqlite")):
        clock = ManualClock(1000.0)
        scheduler = opened(kv, clock, checkpoint_every=every)
        for state in drive(scheduler, clock, 5, 40):
            expected = state
        scheduler.audit()
        again = opened(kv, clock, checkpoint_every=every)
        assert rows(again) == expected
        command = Command(again.service.state.applied_index + 1, 1, clock.now() + 100)
        request = PollRequest((), 5)
        assert again.service.prepare(command, request) == scheduler.service.prepare(command, request)
        assert list(drive(again, clock, 6, 20))
        kv.close()


def test_opening_and_reading_change_nothing_but_the_term() -> None:
    kv, clock = MemoryStore(), ManualClock(1000.0)
    first = opened(kv, clock)
    states = list(drive(first, clock, 3, 10))
    last = first.service.state.applied_index
    for term in range(2, 12):
        again = opened(kv, clock)
        assert (again.term, rows(again)) == (term, states[-1])
        assert again.service.state.applied == Command(last + term - 1, term, clock.now()), "its opening"
    assert len(list(kv.scan(PARTITION, prefix=b"chunk/"))) == 1
    journal = [(entry.key, is_opening(entry.value)) for entry in kv.scan(PARTITION, prefix=b"j/")]
    assert journal == [(b"j/%016x" % index, index != last) for index in (1, *range(last, last + 11))]


def test_an_owner_that_was_replaced_cannot_write_and_finds_out() -> None:
    kv, clock = MemoryStore(), ManualClock(1000.0)
    old = opened(kv, clock, checkpoint_every=100)
    old.apply(Tick())
    new = opened(kv, clock)
    before = rows(new)
    with pytest.raises(JournalConflict):
        old.apply(Tick())
    with pytest.raises(Stale, match="taken the store over; open the store again"):
        old.poll(PollRequest((), 1))
    with pytest.raises(Stale):
        old.checkpoint()
    with pytest.raises(JournalConflict):
        old.audit()
    assert rows(opened(kv, clock)) == before


def test_an_owner_that_was_replaced_while_it_wrote_a_checkpoint_finds_out() -> None:
    kv, clock = MemoryStore(), ManualClock(1000.0)
    old = opened(kv, clock, checkpoint_every=100)
    old.apply(Tick())
    new = opened(kv, clock)
    new.apply(AddBlocks((BlockMeta(id="a", tenant="A", shard=0, level=0),)))
    with pytest.raises(JournalConflict):
        old.checkpoint()
    assert rows(opened(kv, clock)) == rows(new)


@pytest.mark.parametrize("by", ["command", "checkpoint"])
def test_an_owner_whose_checkpoint_is_replaced_at_once_finds_out(by: str) -> None:
    inner, clock = MemoryStore(), ManualClock(1000.0)
    watching: list[bool] = []
    others: list[StoredScheduler] = []

    def replace_it(operation: KVOperation) -> None:
        if watching and operation.name == "get" and operation.key == HEAD_KEY and not others:
            others.append(opened(inner, clock))

    old = opened(FaultyStore(inner, replace_it), clock, checkpoint_every=100)
    old.apply(Tick())
    watching.append(True)
    old.checkpoint()
    others[0].apply(Tick())
    go_on: Callable[[], object] = old.checkpoint if by == "checkpoint" else lambda: old.apply(Tick())
    with pytest.raises(JournalConflict):
        go_on()
    with pytest.raises(Stale):
        old.checkpoint()
    assert rows(opened(inner, clock)) == rows(others[0])


def test_what_a_late_worker_wrote_is_remembered_over_a_restart() -> None:
    kv, clock = MemoryStore(), ManualClock(1000.0)
    scheduler = opened(kv, clock)
    scheduler.apply(AddBlocks(tuple(BlockMeta(id=name, tenant="A", shard=0, level=0) for name in "ab")))
    scheduler.poll(PollRequest((), 1))
    late = scheduler.poll(PollRequest((), 1))
    clock.advance(100.0)
    holder = scheduler.poll(PollRequest((), 1))
    [plan] = late.compaction_jobs

    def done(token: int, name: str) -> PollRequest:
        output = BlockMeta(id=name, tenant="A", shard=0, level=1)
        return PollRequest((StatusUpdate(plan.name, token, JobStatus.SUCCESS, CompactedBlocks(
            tenant="A", shard=0, source_blocks=plan.source_blocks, new_blocks=(output,))),))

    scheduler.poll(done(late.assignments[0].token, "late"))
    scheduler.checkpoint()
    again = opened(kv, clock)
    again.poll(done(holder.assignments[0].token, "good"))
    tombstones = again.service.state.tombstones
    assert (tombstones.exists("A", 0, "late"), tombstones.exists("A", 0, "good")) == (True, False)


def test_settings_that_were_changed_while_it_ran_hold_until_it_is_opened_with_others() -> None:
    kv, clock = MemoryStore(), ManualClock(1000.0)
    first = opened(kv, clock)
    given = first.service.config
    raised, other = attrs.evolve(given, max_failures=9), attrs.evolve(given, max_failures=1)
    first.apply(Configure(raised))
    first.audit()
    for config, holds in ((given, raised), (given, raised), (other, other), (other, other), (given, given)):
        again = StoredScheduler(kv, config, clock=clock, rng=random.Random(1))
        again.audit()
        assert again.service.config == holds


def test_of_two_that_open_at_once_one_wins() -> None:
    kv, clock = MemoryStore(), ManualClock(1000.0)
    for state in drive(opened(kv, clock), clock, 3, 9):
        expected = state
    waiting: list[StoredScheduler] = []

    def other_opens_first(operation: KVOperation) -> None:
        if operation.name == "set_if" and operation.key == HEAD_KEY and not waiting:
            waiting.append(opened(kv, clock))

    with pytest.raises(JournalConflict):
        opened(FaultyStore(kv, other_opens_first), clock)
    [winner] = waiting
    assert rows(winner) == expected
    assert rows(opened(kv, clock)) == expected


def test_an_audit_in_whose_middle_another_process_takes_over_says_that_and_finds_no_damage() -> None:
    outcomes: list[str] = []
    while not outcomes or outcomes[-1] != "sound":
        kv, left, clock = MemoryStore(), [len(outcomes)], ManualClock(1000.0)
        auditing: list[bool] = []

        def take_over(operation: KVOperation, kv: MemoryStore = kv, left: list[int] = left,
                      clock: ManualClock = clock, auditing: list[bool] = auditing) -> None:
            if auditing and not left[0]:
                auditing.clear()
                opened(kv, clock).apply(Tick())
            left[0] -= bool(auditing)

        scheduler = opened(FaultyStore(kv, take_over), clock)
        scheduler.apply(Tick())
        auditing.append(True)
        try:
            scheduler.audit()
            outcomes.append("sound" if auditing else "sound before")
        except JournalConflict:
            outcomes.append("taken over")
    assert set(outcomes) == {"sound", "taken over"}
    assert len(outcomes) > 5


def test_an_audit_finds_a_state_that_the_store_does_not_give() -> None:
    kv, clock = MemoryStore(), ManualClock(1000.0)
    scheduler = opened(kv, clock, checkpoint_every=6)
    assert list(drive(scheduler, clock, 3, 9))
    scheduler.audit()
    scheduler.service.state.quarantine_dropped += 1
    with pytest.raises(CorruptData, match="key-value store"):
        scheduler.audit()
    scheduler.service.state.quarantine_dropped -= 1
    scheduler.audit()
    last = b"j/%016x" % scheduler.service.state.applied_index
    entry = kv.get(PARTITION, last).value
    kv.set(PARTITION, last, entry[:-1])
    with pytest.raises(CorruptData, match="key-value store"):
        scheduler.audit()


def test_a_poll_that_changes_nothing_writes_nothing() -> None:
    kv = FaultyStore(MemoryStore())
    scheduler = opened(kv)
    before = len(kv.operations)
    assert scheduler.poll(PollRequest((StatusUpdate("nobody", 1, JobStatus.IN_PROGRESS),), 2)).answers
    assert len(kv.operations) == before


def test_a_batch_past_its_age_becomes_a_job_by_polls_alone_over_a_restart_too() -> None:
    kv, clock = MemoryStore(), ManualClock(1000.0)
    config = SchedulerConfig(levels=(LevelConfig(max_blocks=4, max_age_seconds=10),))
    scheduler = StoredScheduler(kv, config, clock=clock)
    blocks = [BlockMeta(id=f"b{number}", tenant="t", shard=1, level=0) for number in range(3)]
    scheduler.apply(AddBlocks(tuple(blocks)))
    clock.advance(11.0)
    assert not scheduler.poll(PollRequest(job_capacity=1)).assignments           # notes their age, durably
    scheduler = StoredScheduler(kv, config, clock=clock)
    found = [scheduler.poll(PollRequest(job_capacity=1)).compaction_jobs for _ in range(3)]
    assert [plan.source_blocks for plans in found for plan in plans] == [("b0", "b1", "b2")]
    scheduler.audit()


# ----------------------------------------------------------------------------------------- crashes and failing stores


def work(kv: FaultyStore) -> None:
    clock = ManualClock(1000.0)
    scheduler = opened(kv, clock, checkpoint_every=3)
    kv.acknowledge(rows(scheduler))
    for state in drive(scheduler, clock, 5, 11):
        kv.acknowledge(state)


def expected_states() -> list[list[Any]]:
    kv = FaultyStore(MemoryStore())
    work(kv)
    return kv.acknowledged


def test_whatever_happens_at_any_operation_nothing_acknowledged_is_lost() -> None:
    states = expected_states()

    def check(kv: KVStore, run: KVRun) -> None:
        again = opened(kv)
        allowed = states[max(len(run.acknowledged) - 1, 0):len(run.acknowledged) + 1]
        assert rows(again) in allowed
        again.audit()
        # And it goes on from there.
        assert list(drive(again, ManualClock(9000.0), 8, 3))

    report = explore_kv_faults(MemoryStore, work, check)
    assert report.runs > 200


def test_the_crash_test_can_fail() -> None:
    # The journal entry is not written where it is looked for: what was acknowledged is lost.
    class Careless(StoredScheduler):
        def _write_entry(self, record: bytes, command: Command, operation: Operation) -> bytes:
            self._kv.set(b"elsewhere", b"x", record)
            self._unsure[record] = command, operation
            return record

    def careless(kv: FaultyStore) -> None:
        scheduler = Careless(kv, CONFIG, clock=ManualClock(1000.0), rng=random.Random(1), checkpoint_every=100)
        kv.acknowledge(rows(scheduler))
        for state in drive(scheduler, ManualClock(1000.0), 5, 6):
            kv.acknowledge(state)

    def check(kv: KVStore, run: KVRun) -> None:
        if run.acknowledged:
            assert rows(opened(kv)) == run.acknowledged[-1]

    with pytest.raises(AssertionError):
        explore_kv_faults(MemoryStore, careless, check, [KVFault.CRASH_BEFORE])


def test_a_store_that_fails_leaves_nothing_queued() -> None:
    failing: list[bool] = []
    kv = FaultyStore(MemoryStore(), lambda operation: KVFault.FAIL if failing and operation.name == "set_if" else None)
    scheduler = opened(kv)
    failing.append(True)
    with pytest.raises(CompactlibError, match="fault"):
        scheduler.apply(AddBlocks((BlockMeta(id="a", tenant="A", shard=0, level=0),)))
    assert len(scheduler.service.state.blocks) == 0
    assert scheduler.service.state.applied_index == 1, "its opening"


def test_an_unknown_outcome_is_looked_up_and_the_owner_goes_on() -> None:
    block = AddBlocks((BlockMeta(id="a", tenant="A", shard=0, level=0),))
    operations = FaultyStore(MemoryStore())
    first = opened(operations)
    number = len(operations.operations) + 1
    first.apply(block)
    for fault, survives in ((KVFault.UNKNOWN_DONE, True), (KVFault.UNKNOWN_LOST, False)):
        inner = MemoryStore()
        kv = FaultyStore(inner, fault_at(number, fault))
        scheduler = opened(kv)
        if survives:
            scheduler.apply(block)
            scheduler.apply(Tick())
        else:
            with pytest.raises(OutcomeUnknown):
                scheduler.apply(block)
            scheduler.apply(Tick())
            scheduler.audit()
        assert scheduler.look(lambda service: len(service.state.blocks)) == survives
        assert len(opened(inner).service.state.blocks) == survives


def test_a_checkpoint_that_fails_does_not_take_the_command_back() -> None:
    watching = RecordingObserver()
    inner = MemoryStore()
    failing: list[bool] = []
    kv = FaultyStore(inner, lambda operation: KVFault.FAIL if failing and operation.key.startswith(b"chunk/") else None)
    scheduler = opened(kv, checkpoint_every=1, observer=watching)
    failing.append(True)
    scheduler.apply(AddBlocks((BlockMeta(id="a", tenant="A", shard=0, level=0),)))
    [(name, fields)] = [each for each in watching.events if each[0].startswith("scheduler")]
    assert name == "scheduler_snapshot_failed"
    assert (scheduler.failures, str(scheduler.last_error)) == (1, fields["error"])
    failing.clear()
    scheduler.apply(AddBlocks((BlockMeta(id="b", tenant="A", shard=0, level=0),)))
    assert len(opened(inner).service.state.blocks) == 2


def test_a_store_that_refuses_checkpoints_is_not_asked_with_each_command() -> None:
    watching, failing = RecordingObserver(), [False]
    kv = FaultyStore(MemoryStore(), lambda operation: (
        KVFault.FAIL if failing[0] and operation.key.startswith(b"chunk/") else None))
    scheduler = opened(kv, checkpoint_every=80, observer=watching)
    start = scheduler.service.state.applied_index
    failing[0] = True
    tried: list[int] = []
    for _ in range(120):
        scheduler.apply(Tick())
        if scheduler.failures > len(tried):
            tried.append(scheduler.service.state.applied_index - start)
    assert tried == [80, 90, 100, 110, 120], "when it is due, and then after an eighth of that"
    failing[0] = False
    for _ in range(10):
        scheduler.apply(Tick())
    assert (scheduler.failures, len(list(kv.scan(PARTITION, prefix=b"j/")))) == (5, 1), "the opening"


def test_a_process_that_dies_is_simply_gone() -> None:
    inner = MemoryStore()
    kv = FaultyStore(inner, fault_at(20, KVFault.CRASH_AFTER))
    with pytest.raises(KVCrash):
        work(kv)
    assert rows(opened(inner)) in expected_states()


# ----------------------------------------------------------------------------------------------------- damaged stores


def stored() -> MemoryStore:
    kv, clock = MemoryStore(), ManualClock(1000.0)
    list(drive(opened(kv, clock, checkpoint_every=7), clock, 3, 20))
    return kv


def read_entries() -> list[KVEntry]:
    """Everything of a store that is read; the opening below the snapshot is only to be there."""
    opening, *entries = sorted(stored().scan(PARTITION), key=lambda entry: entry.key != b"j/%016x" % 1)
    assert is_opening(opening.value)
    assert {entry.key[:2] for entry in entries} == {b"he", b"ch", b"j/"}
    return entries


def test_a_damaged_byte_anywhere_is_found() -> None:
    rng = random.Random(2)
    for entry in read_entries():
        for _ in range(6):
            kv = stored()
            damaged = bytearray(entry.value)
            damaged[rng.randrange(len(damaged))] ^= 1 << rng.randrange(8)
            kv.set(PARTITION, entry.key, bytes(damaged))
            with pytest.raises((CorruptData, Unsupported)):
                opened(kv)


def test_a_record_that_is_cut_or_missing_is_found() -> None:
    for entry in read_entries():
        for size in (0, 1, 10, len(entry.value) - 1):
            kv = stored()
            kv.set(PARTITION, entry.key, entry.value[:size])
            with pytest.raises(CorruptData):
                opened(kv)
    kv = stored()
    kv.delete(PARTITION, next(entry.key for entry in kv.scan(PARTITION, prefix=b"chunk/")))
    with pytest.raises(CorruptData, match="no chunk 0"):
        opened(kv)


def test_an_entry_in_another_place_is_corrupt() -> None:
    kv = MemoryStore()
    scheduler = opened(kv)
    for index in (1, 3, 1 << 70):
        kv.set(PARTITION, b"j/%016x" % 2, encode_command(Command(index, 1, 1000.0), Tick()))
        with pytest.raises(CorruptData, match=f"expected the command of this place, found command {index}"):
            opened(kv)
    assert scheduler.service.state.applied_index == 1
    kv.set(PARTITION, b"j/%016x" % 2, encode_command(Command(2, 1, 1000.0), Tick()))
    assert opened(kv).service.state.applied_index == 3


def test_a_snapshot_of_another_command_than_its_head_says_is_corrupt() -> None:
    kv = MemoryStore()
    scheduler = opened(kv)
    snapshots = SnapshotStore(kv, PARTITION)
    loaded = snapshots.load()
    assert loaded is not None
    snapshots.save(loaded.index + 1, loaded.data)
    with pytest.raises(CorruptData, match=f"a state after {loaded.index + 1}"):
        opened(kv)
    assert scheduler.service.state.applied_index == loaded.index


@pytest.mark.parametrize("damage", [
    lambda rows: rows.pop(0), lambda rows: rows.pop(1),
    lambda rows: rows.insert(1, ["nonsense"]), lambda rows: rows.insert(1, []),
    lambda rows: rows.insert(1, 5), lambda rows: rows.insert(1, ["job", ["state"], 1, 2]), lambda rows: rows.clear(),
    lambda rows: rows[0].pop(), lambda rows: rows.insert(1, ["block", ["cmd", 1, 1, 1.0]]),
    lambda rows: rows.insert(1, ["batch", "A", 0, 0, 1, 2.0, []]), lambda rows: rows.insert(1, ["block", ["meta"]]),
    lambda rows: rows.insert(1, ["tombstone", 1]), lambda rows: rows.insert(1, ["quarantined", ["tick"]]),
])
def test_rows_that_make_no_sense_are_corrupt(damage: Any) -> None:
    kv = stored()
    snapshots = SnapshotStore(kv, PARTITION)
    loaded = snapshots.load()
    assert loaded is not None
    plain = decode_record(loaded.data, RecordKind.STATE, "a test")
    damage(plain)
    snapshots.save(loaded.index, encode_rows(plain))
    with pytest.raises(CorruptData):
        opened(kv)


def of_many_chunks(kv: KVStore, clock: ManualClock, **settings: Any) -> StoredScheduler:
    scheduler = opened(kv, clock, **settings)
    for number in range(4):
        scheduler.apply(AddBlocks(tuple(BlockMeta(id=f"{number}-{place}", tenant="A" * 200, shard=0, level=0)
                                        for place in range(500))))
    return scheduler


def test_a_state_of_many_chunks() -> None:
    kv, clock = MemoryStore(), ManualClock(1000.0)
    scheduler = of_many_chunks(kv, clock)
    scheduler.checkpoint()
    assert len(list(kv.scan(PARTITION, prefix=b"chunk/"))) > 2
    assert rows(opened(kv, clock)) == rows(scheduler)


def test_a_large_state_is_written_after_as_many_more_commands() -> None:
    kv, clock = MemoryStore(), ManualClock(1000.0)
    scheduler = of_many_chunks(kv, clock, checkpoint_every=1)
    scheduler.checkpoint()
    size = sum(len(entry.value) for entry in kv.scan(PARTITION, prefix=b"chunk/"))
    written = set[bytes]()
    for number in range(2 * size // 1024):
        scheduler.add_blocks([BlockMeta(id=f"b{number}", tenant="A", shard=0, level=0)])
        written.add(kv.get(PARTITION, HEAD_KEY).value)
    assert 1 < len(written) < 5
    assert rows(opened(kv, clock)) == rows(scheduler)


def test_settings_that_make_no_sense() -> None:
    with pytest.raises(InvalidInput, match="checkpoint_every is 0"):
        opened(MemoryStore(), checkpoint_every=0)


def test_a_look_is_of_the_owner_and_between_two_commands() -> None:
    first, second = (BlockMeta(id=name, tenant="A", shard=0, level=0) for name in "ab")
    kv = MemoryStore()
    scheduler = opened(kv)
    assert scheduler.add_blocks([first, second]).queued == ("a", "b")
    assert scheduler.add_blocks([first]).duplicate == ("a",)
    assert scheduler.look(lambda service: len(service.state.blocks)) == 2
    with pytest.raises(Busy, match="in the middle of a command"):
        scheduler.look(lambda service: scheduler.poll(PollRequest()))
    other = opened(kv)
    with pytest.raises(JournalConflict):
        scheduler.add_blocks([second])
    with pytest.raises(Stale, match="another process has taken the store over"):
        scheduler.look(len)  # type: ignore[arg-type]
    other.close()
    with pytest.raises(Closed):
        other.look(lambda service: service.config)


def test_a_closed_scheduler_is_not_used_again() -> None:
    scheduler = opened(MemoryStore())
    scheduler.close()
    with pytest.raises(Closed, match="was closed; open the store again"):
        scheduler.apply(Tick())


def test_a_journal_is_read_by_pages() -> None:
    kv, clock = MemoryStore(), ManualClock(1000.0)
    scheduler = opened(kv, clock, checkpoint_every=10_000)
    for number in range(500):
        scheduler.apply(AddBlocks((BlockMeta(id=f"b{number}", tenant="A", shard=0, level=0),)))
    counted = FaultyStore(kv)
    again = opened(counted, clock, checkpoint_every=10_000)
    assert rows(again) == rows(scheduler)
    assert len(counted.operations) <= 13


def test_a_snapshot_is_written_and_read_by_many_chunks_at_once() -> None:
    counted = FaultyStore(MemoryStore())
    data = random.Random(1).randbytes(8 << 20)
    SnapshotStore(counted, b"p", rng=random.Random(1)).save(1, data)
    assert [each.name for each in counted.operations].count("transact") == 2  # of 16 chunks each
    assert len(counted.operations) <= 8
    before = len(counted.operations)
    found = SnapshotStore(counted, b"p").load()
    assert found is not None
    assert found.data == data
    assert len(counted.operations) - before == 3
