# SPDX-License-Identifier: Apache-2.0
"""Around a stored scheduler: owners that pause, threads, lost answers, other settings, clocks that jump, forks."""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import pytest

from compactlib.clock import ManualClock
from compactlib.errors import ClockJumped, Closed, CompactlibError, Stale
from compactlib.kv import KVStore, MemoryStore, OutcomeUnknown, SqliteStore, StoreFailed
from compactlib.kv.snapshots import HEAD_KEY
from compactlib.runtime import Observer, RecordingObserver, SteadyClock
from compactlib.scheduler import (
    AddBlocks,
    BlockMeta,
    CompactedBlocks,
    JobStatus,
    LevelConfig,
    PollRequest,
    SchedulerConfig,
    StatusUpdate,
    StoredScheduler,
    Tick,
)
from compactlib.scheduler.errors import JournalConflict
from compactlib.scheduler.model.poll import Verdict
from compactlib.scheduler.persistence.state_rows import dump_rows
from tests.harness.faulty_store import FaultyStore, KVCrash, KVFault, KVOperation, fault_at
from tests.harness.forks import in_a_fork
from tests.tools.faults.jumps import DAY_SECONDS, Jump as ClockJump, JumpingClock, explore_clock_jumps
from tests.tools.faults.lost_answers import LostAnswer, explore_lost_answers
from tests.tools.interleave.pauses import explore_pauses
from tests.tools.interleave.stage import Stage
from tests.tools.interleave.stores import SteppedStore
from tests.tools.settings import check_settings

LEVELS = (LevelConfig(max_blocks=1), LevelConfig(max_blocks=2, max_age_seconds=30))
CONFIG = SchedulerConfig(levels=LEVELS, cleanup_delay_seconds=20)
PARTITION = b"scheduler"


def opened(kv: KVStore, clock: Any = None, config: SchedulerConfig = CONFIG, **settings: Any) -> StoredScheduler:
    settings.setdefault("rng", random.Random(repr(settings.get("seed", 1))))
    settings.pop("seed", None)
    return StoredScheduler(kv, config, clock=clock or ManualClock(1000.0), **settings)


def blocks(prefix: str, count: int = 1, level: int = 0) -> AddBlocks:
    return AddBlocks(tuple(BlockMeta(id=f"{prefix}-{number}", tenant="A", shard=0, level=level)
                           for number in range(count)))


def rows(scheduler: StoredScheduler) -> list[Any]:
    """The state, whichever command came last: opening it is a command that changes nothing else."""
    [tag, _, *first], *others = dump_rows(scheduler.service.state)
    return [[tag, *first], *others]


def indexed(scheduler: StoredScheduler) -> set[str]:
    index = scheduler.service.state.index
    assert index is not None
    return {block.id for block in index.blocks()}


# ------------------------------------------------------------------------------------- owners that follow each other


@pytest.mark.parametrize("max_transact", [100, 0])
def test_a_former_owner_that_wakes_at_any_request_changes_nothing_of_the_next_one_s(max_transact: int) -> None:
    acknowledged: list[str] = []

    def world(stage: Stage) -> SteppedStore:
        acknowledged.clear()
        inner = MemoryStore(limits=attrs.evolve(MemoryStore().limits, max_transact=max_transact))
        opened(inner, seed=0).apply(blocks("first"))
        return SteppedStore(inner, stage)

    def own(kv: SteppedStore, name: str, commands: int) -> None:
        scheduler = opened(kv, seed=name, checkpoint_every=2)
        for number in range(commands):
            scheduler.apply(blocks(f"{name}{number}"))
            acknowledged.append(f"{name}{number}-0")

    def heir(kv: SteppedStore) -> None:
        own(kv, "heir", 3)
        # And a restart of it.
        own(kv, "again", 1)

    def check(kv: SteppedStore, results: Any) -> None:
        for name, result in results.items():
            assert result is None or isinstance(result, JournalConflict | Stale), (name, result)
        last = opened(kv, seed=9)
        assert {"first-0", *acknowledged} <= indexed(last)
        last.audit()
        last.apply(blocks("last"))
        assert sum(entry.key.startswith(b"chunk/") for entry in kv.scan(PARTITION)) == 1, "nothing is left behind"

    report = explore_pauses({"owner": lambda kv: own(kv, "owner", 3), "heir": heir}, world, check)
    assert report.schedules >= 20


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_two_owners_at_every_step_of_each_other() -> None:
    acknowledged: list[str] = []

    def world(stage: Stage) -> SteppedStore:
        acknowledged.clear()
        return SteppedStore(MemoryStore(), stage)

    def own(kv: SteppedStore, name: str) -> None:
        scheduler = opened(kv, seed=name, checkpoint_every=2)
        for number in range(7):
            scheduler.apply(blocks(f"{name}{number}"))
            acknowledged.append(f"{name}{number}-0")

    def check(kv: SteppedStore, results: Any) -> None:
        for name, result in results.items():
            assert result is None or isinstance(result, JournalConflict | Stale), (name, result)
        last = opened(kv, seed=9)
        assert set(acknowledged) <= indexed(last)
        last.audit()

    report = explore_pauses({"owner": lambda kv: own(kv, "owner"), "heir": lambda kv: own(kv, "heir")}, world, check,
                            both=True)
    assert report.schedules > 1000


@pytest.mark.parametrize("got_in", [True, False])
def test_a_former_owner_that_lost_an_answer_is_never_told_what_is_not_kept(got_in: bool) -> None:
    inner, silent = MemoryStore(), list[bool]()

    def lose_answers(operation: KVOperation) -> KVFault | None:
        if not silent:
            return None
        return (KVFault.UNKNOWN_DONE if got_in else KVFault.UNKNOWN_LOST) if operation.changes else KVFault.FAIL

    old = opened(FaultyStore(inner, lose_answers))
    old.apply(blocks("before"))
    silent.append(True)
    with pytest.raises(OutcomeUnknown):
        old.apply(blocks("unknown"))
    silent.clear()
    # The next owner carries it out if it is there, and removes the journal up to its own snapshot, more than once.
    new = opened(inner, seed=2)
    new.apply(blocks("new"))
    new.checkpoint()
    with pytest.raises(JournalConflict):
        old.apply(blocks("late"))
    last = opened(inner, seed=3)
    assert indexed(last) == indexed(new) == {"before-0", "new-0", *(["unknown-0"] if got_in else [])}


def test_what_a_crash_left_behind_goes_with_the_next_checkpoint_in_few_requests() -> None:
    inner = MemoryStore()
    opened(inner).apply(blocks("a"))
    for number in range(30):
        # Checkpoints of processes that were not fast enough, and whatever lies above this owner's: a later one's.
        inner.set(PARTITION, b"chunk/%016x/%016x/%08x" % (2, number, 0), b"lost")
        inner.set(PARTITION, b"chunk/%016x/%016x/%08x" % (3, number, 0), b"a later owner's")
    kv = FaultyStore(inner)
    scheduler = opened(kv, seed=2)
    chunks = [entry.key[:22] for entry in inner.scan(PARTITION, prefix=b"chunk/")]
    assert chunks.count(b"chunk/%016x" % 2) == 1
    assert chunks.count(b"chunk/%016x" % 3) == 30
    assert sum(operation.name in ("delete", "transact") for operation in kv.operations) == 1
    assert scheduler.term == 2


def test_a_clean_up_that_fails_is_told_and_done_by_the_next_one() -> None:
    inner, watching, failing = MemoryStore(), RecordingObserver(), [True]
    opened(inner).apply(blocks("a"))
    kv = FaultyStore(inner, lambda operation: KVFault.FAIL if failing and operation.name == "transact" else None)
    scheduler = opened(kv, observer=watching, seed=2)
    assert [name for name, _ in watching.events if name.startswith("scheduler")] == ["scheduler_leftovers_stay"]
    failing.clear()
    scheduler.checkpoint()
    assert sum(entry.key.startswith(b"chunk/") for entry in inner.scan(PARTITION)) == 1


def test_a_checkpoint_that_goes_while_it_is_read_is_no_damage() -> None:
    inner = MemoryStore()
    owner = opened(inner)
    owner.apply(blocks("a"))
    once: list[bool] = [True]

    def overtake(operation: KVOperation) -> None:
        if operation.key.startswith(b"chunk/") and operation.name == "get" and once:
            once.clear()
            owner.checkpoint()

    assert indexed(opened(FaultyStore(inner, overtake), seed=2)) == {"a-0"}


# ------------------------------------------------------------------------------------------------ threads and faults


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
def test_any_thread_may_call_any_method(kind: str, tmp_path: Path) -> None:
    kv = MemoryStore() if kind == "memory" else SqliteStore(tmp_path / "kv.sqlite", synchronous="normal")
    scheduler = opened(kv, checkpoint_every=7)
    scheduler.apply(blocks("a", 100))
    wrong: list[BaseException] = []
    tokens: list[int] = []

    def work(number: int) -> None:
        try:
            for turn in range(12):
                response = scheduler.poll(PollRequest(job_capacity=1))
                tokens.extend(lease.token for lease in response.assignments)
                scheduler.apply(blocks(f"{number}/{turn}"))
                if turn % 5 == number:
                    scheduler.checkpoint()
                    scheduler.audit()
        except BaseException as error:
            wrong.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert wrong == []
    assert len(set(tokens)) == len(tokens)
    assert rows(opened(kv, seed=2)) == rows(scheduler)
    kv.close()


def test_one_failed_read_stops_nobody() -> None:
    for name, key in (("get", HEAD_KEY), ("scan", b"chunk/"), ("scan", b"j/")):
        failing: list[bool] = []

        def fail_once(operation: KVOperation, name: str = name, key: bytes = key,
                      failing: list[bool] = failing) -> KVFault | None:
            if failing and operation.name == name and operation.key.startswith(key):
                failing.clear()
                return KVFault.FAIL
            return None

        kv = FaultyStore(MemoryStore(), fail_once)
        scheduler = opened(kv, checkpoint_every=5)
        for number in range(4):
            scheduler.apply(blocks(f"a{number}"))
        failing.append(True)
        for number in range(4, 24):
            scheduler.apply(blocks(f"a{number}"))
        assert not failing
        scheduler.audit()
        assert len(indexed(opened(kv, seed=2))) == 24


def test_an_observer_that_raises_breaks_nothing_and_is_told_outside_of_the_lock() -> None:
    kv, clock = MemoryStore(), ManualClock(1000.0)
    config = attrs.evolve(CONFIG, max_failures=1, max_queue_size=1)
    told: list[str] = []

    class Bad(Observer):
        def event(self, name: str, fields: object) -> None:
            if name.startswith("scheduler"):  # how the store stands is told by each opening
                told.append(name)
            scheduler.audit()  # which would wait for the lock for ever
            raise KeyError("a dashboard's bug")

    scheduler = opened(kv, clock, config, observer=Bad())
    for number in range(4):
        scheduler.apply(blocks(f"b{number}"))
        scheduler.poll(PollRequest(job_capacity=1))
        response = scheduler.poll(PollRequest(job_capacity=1))
        scheduler.poll(PollRequest(tuple(StatusUpdate(lease.name, lease.token, JobStatus.FAILED)
                                         for lease in response.assignments)))
    assert "scheduler_job_quarantined" in told
    before = len(told)
    again = opened(kv, clock, config, observer=Bad(), seed=2)
    assert rows(again) == rows(scheduler)
    assert len(told) == before, "what is replayed was told before"


# --------------------------------------------------------------------------------------------------- lost answers


def test_what_is_told_after_a_lost_answer_is_true() -> None:
    def work(kv: FaultyStore) -> list[tuple[str, object]]:
        told: list[tuple[str, object]] = []
        scheduler = opened(kv, checkpoint_every=3)
        for number in range(7):
            try:
                scheduler.apply(blocks(f"b{number}"))
                told.append((f"b{number}-0", "done"))
            except OutcomeUnknown:
                told.append((f"b{number}-0", "unknown"))
            except CompactlibError:
                told.append((f"b{number}-0", "nothing changed"))
        return told

    def check(kv: KVStore, answer: LostAnswer) -> None:
        if answer.error is not None:
            assert answer.failed_tries != 0 or isinstance(answer.error, OutcomeUnknown), "not opened, and says why"
            assert answer.operation.number < 10
        again = opened(kv, seed=5)
        again.audit()
        found = indexed(again)
        returned: Any = answer.returned or []
        for name, told in returned:
            if told != "unknown":
                assert (name in found) == (told == "done"), (name, told)
        if answer.failed_looks is not None and answer.failed_tries == 0:
            assert sum(told != "done" for _, told in returned) <= 1, "it goes on once the store answers"
        again.apply(blocks("later"))

    def taken_over() -> MemoryStore:
        kv = MemoryStore()
        opened(kv, seed=0).apply(blocks("before"))
        return kv

    assert explore_lost_answers(MemoryStore, work, check).runs > 100
    assert explore_lost_answers(taken_over, work, check).runs > 100


def test_a_store_that_never_answers_does_not_fill_the_memory() -> None:
    lost: list[bool] = []
    inner = MemoryStore()
    kv = FaultyStore(inner, lambda operation: KVFault.UNKNOWN_LOST if lost and operation.changes else None)
    scheduler = opened(kv)
    lost.append(True)
    for number in range(130):
        with pytest.raises(OutcomeUnknown):
            scheduler.apply(blocks(f"lost{number}"))
    lost.clear()
    scheduler.apply(blocks("after"))
    found = indexed(scheduler)
    # One of those that were unknown got in, the last one that was kept.
    assert found == {"lost99-0", "after-0"}
    scheduler.audit()
    assert indexed(opened(inner, seed=2)) == found


def test_a_command_that_was_interrupted_after_it_was_sent_is_found_again() -> None:
    inner, stopping = MemoryStore(), [False]

    class Interrupted(MemoryStore):
        def set_if(self, *arguments: Any) -> None:
            inner.set_if(*arguments)
            if stopping.pop():
                raise KeyboardInterrupt
            stopping.append(False)

        def __getattribute__(self, name: str) -> Any:
            return object.__getattribute__(self, name) if name == "set_if" else getattr(inner, name)

    scheduler = opened(Interrupted())
    stopping[:] = [True]
    with pytest.raises(KeyboardInterrupt):
        scheduler.apply(blocks("a"))
    stopping[:] = [False]
    scheduler.apply(blocks("b"))
    scheduler.audit()
    assert indexed(scheduler) == indexed(opened(inner, seed=2)) == {"a-0", "b-0"}


# ------------------------------------------------------------------------------------------------------- settings


SETTINGS = [
    CONFIG,
    attrs.evolve(CONFIG, max_queue_size=1, max_quarantine_size=1, max_failures=1),
    attrs.evolve(CONFIG, levels=LEVELS[:1], lease_seconds=1.0, cleanup_batch_size=0),
    attrs.evolve(CONFIG, levels=(LevelConfig(max_blocks=3), *LEVELS)),
    attrs.evolve(CONFIG, levels=(LevelConfig(max_blocks=2, max_job_bytes=1, max_range_seconds=1.0),) * 2,
                 max_jobs_per_poll=1, cleanup_delay_seconds=0.0, cleanup_lease_seconds=0.0),
]


class Ledger:
    """What a stored scheduler has acknowledged."""

    def __init__(self) -> None:
        self.kv: KVStore = MemoryStore()
        self.clock = ManualClock(1000.0)
        self.held: list[StatusUpdate] = []
        self.blocks: set[str] = set()
        self.completed: dict[str, CompactedBlocks] = {}
        self.in_flight: tuple[AddBlocks | None, tuple[StatusUpdate, ...]] = None, ()
        self.number = 0
        self.opened = 0

    def complete(self, update: StatusUpdate) -> None:
        results = update.compacted_blocks
        assert results is not None
        self.completed[update.name] = results
        self.blocks -= set(results.source_blocks)
        self.blocks |= {block.id for block in results.new_blocks}

    def settle(self, found: set[str]) -> None:
        """What had no answer has happened as a whole, or not at all."""
        added, said = self.in_flight
        self.in_flight = None, ()
        if added is not None and any(block.id in found for block in added.blocks):
            self.blocks |= {block.id for block in added.blocks}
        for update in said:
            results = update.compacted_blocks
            if update.status is JobStatus.SUCCESS and results and results.new_blocks[0].id in found:
                self.complete(update)

    def open(self, config: SchedulerConfig, rng: random.Random | None = None) -> StoredScheduler:
        self.opened += 1
        return StoredScheduler(self.kv, config, clock=SteadyClock(self.clock), rng=random.Random(self.opened),
                               checkpoint_every=1000 if rng is None else rng.choice([2, 1000]))


def life(ledger: Ledger, config: SchedulerConfig, rng: random.Random) -> None:
    """One life, which may end as a crash does, at any request."""
    inner = ledger.kv
    ledger.kv = FaultyStore(inner, fault_at(rng.randrange(2, 90), rng.choice([
        KVFault.CRASH_BEFORE, KVFault.CRASH_AFTER, KVFault.UNKNOWN_DONE, KVFault.FAIL])))
    try:
        with contextlib.suppress(KVCrash, StoreFailed):
            work(ledger, ledger.open(config, rng), rng)
    finally:
        ledger.kv = inner


def work(ledger: Ledger, scheduler: Any, rng: random.Random) -> None:
    """Some commands; notes what they answered."""
    for _ in range(rng.randrange(12)):
        ledger.clock.advance(rng.choice([0.0, 1.0, 20.0]))
        ledger.number += 1
        if rng.random() < 0.4:
            added = tuple(BlockMeta(id=f"p{ledger.number}-{place}", tenant=rng.choice("AB"), shard=0, level=0)
                          for place in range(3))
            ledger.in_flight = AddBlocks(added), ()
            scheduler.apply(AddBlocks(added))
            ledger.in_flight = None, ()
            ledger.blocks |= {block.id for block in added}
            continue
        said = tuple(ledger.held[:2])
        del ledger.held[:2]
        ledger.in_flight = None, said
        response = scheduler.poll(PollRequest(said, rng.randint(0, 3)))
        ledger.in_flight = None, ()
        for update, answer in zip(said, response.answers, strict=True):
            if answer.verdict is Verdict.ACCEPTED and update.status is JobStatus.SUCCESS:
                ledger.complete(update)
        leases = {lease.name: lease for lease in response.assignments}
        for plan in response.compaction_jobs:
            output = BlockMeta(id=f"{plan.name}@{leases[plan.name].token}", tenant=plan.tenant, shard=0,
                               level=plan.compaction_level + 1)
            status = rng.choice([JobStatus.SUCCESS, JobStatus.SUCCESS, JobStatus.FAILED])
            ledger.held.append(StatusUpdate(plan.name, leases[plan.name].token, status, CompactedBlocks(
                tenant=plan.tenant, shard=0, source_blocks=plan.source_blocks, new_blocks=(output,))))


def audit_ledger(ledger: Ledger, config: SchedulerConfig) -> None:
    scheduler = ledger.open(config)
    scheduler.audit()
    check_ledger(ledger, scheduler.service.state)


def check_ledger(ledger: Ledger, state: Any) -> None:
    state.audit()
    found = {block.id for block in state.index.blocks()}
    ledger.settle(found)
    assert found == ledger.blocks
    doomed = {block_id for entry in state.tombstones for block_id in entry.tombstone.blocks}
    assert not doomed & ledger.blocks, "what is in the index is not to be deleted"
    for name, results in ledger.completed.items():
        assert state.jobs.get(name) is None, "a completed job is not queued again"
        assert state.tombstones.exists(results.tenant, results.shard, results.source_blocks[0])


@pytest.mark.parametrize(("before", "after"), list(itertools.permutations(SETTINGS, 2)))
def test_a_journal_is_replayed_under_its_own_settings_and_goes_on_under_the_new_ones(
        before: SchedulerConfig, after: SchedulerConfig) -> None:
    def opened_again(has_checkpoint: bool) -> StoredScheduler:
        ledger = Ledger()
        scheduler = ledger.open(before)
        work(ledger, scheduler, random.Random(0))
        ledger.clock.advance(31.0)
        scheduler.apply(Tick())
        if has_checkpoint:
            scheduler.checkpoint()
        return ledger.open(after)

    from_journal, from_checkpoint = opened_again(False), opened_again(True)
    assert from_journal.service.state.config == after
    assert rows(from_journal) == rows(from_checkpoint)


def test_nothing_acknowledged_changes_under_other_settings() -> None:
    report = check_settings(Ledger, SETTINGS, life, audit_ledger, histories=16)
    assert report.changes > 30


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_nothing_acknowledged_changes_under_other_settings_in_a_thousand_histories() -> None:
    check_settings(Ledger, SETTINGS, life, audit_ledger, histories=1000, lives=5, first_seed=1000)


# --------------------------------------------------------------------------------------------------------- clocks


def test_a_clock_that_jumps_gives_no_long_lease_and_stops_nobody_for_long() -> None:
    def work(clock: JumpingClock) -> tuple[StoredScheduler, ManualClock, list[float]]:
        scheduler = opened(MemoryStore(), clock)
        scheduler.apply(blocks("a", 2))
        leases: list[float] = []
        for _ in range(6):
            clock.advance(1.0)
            try:
                response = scheduler.poll(PollRequest(job_capacity=1))
                leases += [lease.lease_expires_at - 1_000_000.0 for lease in response.assignments]
            except ClockJumped:
                continue
        return scheduler, clock, leases

    def check(result: Any, jump: ClockJump) -> None:
        if isinstance(result, CompactlibError):
            assert isinstance(result, ClockJumped), "the very first command"
            return
        scheduler, clock, leases = result
        if jump.reading > 1:
            # Nothing was known of the time when it was opened, so that the first reading is believed.
            assert all(0 <= until <= 6 + CONFIG.lease_seconds for until in leases), leases
        # Right again, or confirmed.
        for _ in range(4):
            clock.advance(31.0)
            try:
                scheduler.apply(Tick())
                break
            except ClockJumped:
                continue
        else:
            raise AssertionError("the scheduler does not go on")
        scheduler.audit()

    explore_clock_jumps(work, check)


def test_a_long_stop_is_no_jump_and_a_clock_that_went_back_is_told_by_name() -> None:
    kv, clock = MemoryStore(), ManualClock(1000.0)
    opened(kv, clock).apply(blocks("a"))
    later = ManualClock(1000.0 + 30 * DAY_SECONDS)
    opened(kv, later).apply(blocks("b"))
    earlier = ManualClock(2000.0)
    scheduler = opened(kv, earlier)
    with pytest.raises(ClockJumped, match=r"-2591000\.0 seconds"):
        scheduler.apply(blocks("c"))
    earlier.advance(31.0)
    scheduler.apply(blocks("c"))
    mine = SteadyClock(ManualClock(2000.0), last_known=9e9)
    scheduler = opened(kv, mine)
    mine.accept()
    scheduler.apply(blocks("d"))
    assert indexed(scheduler) == {"a-0", "b-0", "c-0", "d-0"}


# ---------------------------------------------------------------------------------------------------------- forks


@pytest.mark.parametrize("is_busy", [False, True])
def test_a_fork_is_refused_by_name_and_can_close(is_busy: bool) -> None:
    """Also if another thread was in a command when it was made: that thread does not exist there."""
    scheduler = opened(MemoryStore())
    inside, done = threading.Event(), threading.Event()

    def hold() -> None:
        with scheduler._lock:  # noqa: SLF001
            inside.set()
            done.wait()

    def attempt(call: Callable[[], object]) -> object:
        try:
            return call()
        except CompactlibError as error:
            return error
        finally:
            scheduler.close()

    holder = threading.Thread(target=hold, daemon=True)
    if is_busy:
        holder.start()
        inside.wait()
    for call in (lambda: scheduler.apply(Tick()), lambda: scheduler.poll(PollRequest()), scheduler.checkpoint,
                 scheduler.audit):
        refused = in_a_fork(lambda: attempt(call))  # noqa: B023
        assert isinstance(refused, Closed), refused
        assert f"was opened by process {os.getpid()}" in str(refused)
    done.set()
    if is_busy:
        holder.join()
    scheduler.apply(Tick())


def test_failed_stores_are_told_as_what_they_are() -> None:
    failing: list[bool] = []
    kv = FaultyStore(MemoryStore(), lambda operation: KVFault.FAIL if failing else None)
    scheduler = opened(kv)
    failing.append(True)
    for _ in range(3):
        with pytest.raises(StoreFailed):
            scheduler.apply(blocks("a"))
    failing.clear()
    scheduler.apply(blocks("a"))
    assert indexed(scheduler) == {"a-0"}
