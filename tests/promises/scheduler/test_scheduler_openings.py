# SPDX-License-Identifier: Apache-2.0
"""A scheduler that is opened again: its state, its owner, and its settings."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import pytest

from compactlib.clock import ManualClock
from compactlib.commandlog import CommandLog, KVLog, OutOfStep, TakenOver
from compactlib.errors import CorruptData, Stale, StorageError, Unsupported
from compactlib.kv import KVStore, MemoryStore, OutcomeUnknown, SnapshotStore
from compactlib.raftlog import LocalLog, LogOptions
from compactlib.scheduler import BlockMeta, LevelConfig, PollRequest, Scheduler, SchedulerConfig, SchedulerMachine
from compactlib.testing import Request, StoreInFront

PAIRS = SchedulerConfig(levels=(LevelConfig(max_blocks=2),))


def blocks(*names: str) -> list[BlockMeta]:
    return [BlockMeta(id=name, tenant="acme", shard=1, level=0) for name in names]


@pytest.fixture(params=["folder", "store"])
def logs(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[..., CommandLog]:
    """Opens the one log of a test."""
    store, clock = MemoryStore(), ManualClock(1000.0)

    def opened(first_index: int = 1) -> CommandLog:
        if request.param == "folder":
            return LocalLog(tmp_path / "log", LogOptions(clock=clock), first_index=first_index)
        return KVLog(store, first_index=first_index, clock=clock)

    return opened


def test_settings_hold_until_they_are_replaced(logs: Callable[..., CommandLog]) -> None:
    with Scheduler(logs(), None, PAIRS) as scheduler:
        assert scheduler.read(lambda machine: machine.config) == PAIRS
        scheduler.configure(attrs.evolve(PAIRS, max_failures=7))
    with Scheduler(logs()) as scheduler:
        assert scheduler.read(lambda machine: machine.config).max_failures == 7
        index = scheduler.status()["index"]
    with Scheduler(logs(), None, attrs.evolve(PAIRS, max_failures=7)) as scheduler:
        assert scheduler.status()["index"] == index, "equal settings write nothing"
    with Scheduler(logs(), None, PAIRS) as scheduler:
        assert scheduler.read(lambda machine: machine.config) == PAIRS


def test_later_settings_do_not_change_earlier_commands(logs: Callable[..., CommandLog]) -> None:
    with Scheduler(logs(), None, PAIRS) as scheduler:
        scheduler.add_blocks(blocks("a", "b", "c", "d"))
        scheduler.poll(PollRequest(job_capacity=5))
        jobs = scheduler.read(lambda machine: [state for _, state in machine.jobs.phases(0.0)])
        assert len(jobs) == 2
    with Scheduler(logs(), None, attrs.evolve(PAIRS, max_queue_size=1)) as scheduler:
        assert scheduler.read(lambda machine: [state for _, state in machine.jobs.phases(0.0)]) == jobs


def test_tokens_begin_above_the_tokens_of_fences(logs: Callable[..., CommandLog]) -> None:
    first = 1 << 40
    for life in range(2):
        with Scheduler(logs(first if not life else 1), None, PAIRS) as scheduler:
            scheduler.add_blocks(blocks(f"a{life}", f"b{life}"))
            scheduler.poll(PollRequest(job_capacity=1))
            answer = scheduler.poll(PollRequest(job_capacity=1))
            assert all(first < lease.token < first + 100 for lease in answer.assignments)


def test_a_snapshot_of_another_log_is_refused(logs: Callable[..., CommandLog]) -> None:
    snapshots = SnapshotStore(MemoryStore())
    with Scheduler(KVLog(MemoryStore()), snapshots) as other:
        for number in range(20):
            other.add_blocks(blocks(f"{number}"))
        other.snapshot()
    with pytest.raises(OutOfStep, match="restore a snapshot that the log continues"):
        Scheduler(logs(), snapshots)


def test_a_log_that_was_cut_is_refused_without_its_snapshot(logs: Callable[..., CommandLog]) -> None:
    with Scheduler(logs(), SnapshotStore(MemoryStore())) as scheduler:
        scheduler.add_blocks(blocks("a"))
        scheduler.snapshot()
    with pytest.raises(OutOfStep):
        Scheduler(logs())


def test_terms_rise_over_a_log_that_was_cut_to_its_end(logs: Callable[..., CommandLog]) -> None:
    snapshots, terms = SnapshotStore(MemoryStore()), []
    for name in "abc":
        with Scheduler(logs(), snapshots) as scheduler:
            scheduler.add_blocks(blocks(name))
            scheduler.snapshot()
            terms.append(scheduler.term)
    assert terms == [1, 2, 3]


def keys(store: KVStore) -> list[bytes]:
    return [entry.key for partition in (b"commands", b"snapshots") for entry in store.scan(partition)]


def test_thirty_openings_leave_no_thirty_keys() -> None:
    store = MemoryStore()
    for _ in range(30):
        Scheduler(KVLog(store), SnapshotStore(store)).close()
    assert len(keys(store)) <= 3


def test_snapshots_keep_a_log_in_a_store_small() -> None:
    store = MemoryStore()
    with Scheduler(KVLog(store), SnapshotStore(store), PAIRS, snapshot_every=10) as scheduler:
        for number in range(95):
            scheduler.add_blocks(blocks(f"{number}"))
        assert len(keys(store)) <= 10 + 4
    with Scheduler(KVLog(store), SnapshotStore(store)) as scheduler:
        assert scheduler.status()["blocks"] == 95


def test_a_snapshot_that_fails_is_tried_again_after_a_while() -> None:
    class Failing(SnapshotStore):
        def save(self, term: int, index: int, data: bytes) -> None:
            raise StorageError(operation="write", path="a snapshot", errno=28)

    store = MemoryStore()
    with Scheduler(KVLog(store), Failing(store), PAIRS, snapshot_every=80) as scheduler:
        for number in range(95):
            scheduler.add_blocks(blocks(f"{number}"))
        assert scheduler.failures == 2, "at command 80, and ten later"
        assert isinstance(scheduler.last_error, StorageError)
    with Scheduler(KVLog(store), SnapshotStore(store)) as scheduler:
        assert scheduler.status()["blocks"] == 95


def test_a_former_owner_is_refused_with_advice_and_changes_nothing() -> None:
    store = MemoryStore()
    former = Scheduler(KVLog(store), SnapshotStore(store), PAIRS)
    former.add_blocks(blocks("a"))
    owner = Scheduler(KVLog(store), SnapshotStore(store))
    for call in (lambda: former.add_blocks(blocks("b")), lambda: former.poll(PollRequest(job_capacity=1)),
                 lambda: former.retain(0.0)):
        with pytest.raises(TakenOver, match="let the others reach that one, workers over HTTP"):
            call()
    owner.add_blocks(blocks("b"))
    owner.snapshot()
    assert owner.status()["blocks"] == 2


def test_a_former_owners_snapshot_does_not_replace_a_later_one() -> None:
    store = MemoryStore()
    former = Scheduler(KVLog(store), SnapshotStore(store))
    former.add_blocks(blocks("a"))
    owner = Scheduler(KVLog(store), SnapshotStore(store))
    owner.add_blocks(blocks("b"))
    owner.snapshot()
    snapshots = SnapshotStore(store)
    with pytest.raises(Stale, match="another owner has written it"):
        snapshots.save(former.term, 100, b"late")
    again = Scheduler(KVLog(store), SnapshotStore(store))
    assert again.status()["blocks"] == 2


def test_a_missing_command_is_named() -> None:
    store = MemoryStore()
    with Scheduler(KVLog(store)) as scheduler:
        for name in "abc":
            scheduler.add_blocks(blocks(name))
    store.delete(b"commands", b"e/%016x" % 2)
    with pytest.raises(CorruptData, match="expected command 2, found command 3"):
        Scheduler(KVLog(store))


def test_a_store_without_transactions_is_refused() -> None:
    limits = attrs.evolve(MemoryStore().limits, max_transact=3)
    with pytest.raises(Unsupported, match="has no transactions"):
        KVLog(MemoryStore(limits=limits))


def test_a_scheduler_prints_its_queue_with_leases_and_the_last_failure() -> None:
    clock = ManualClock(1000.0)
    with Scheduler(KVLog(MemoryStore(), clock=clock), None, PAIRS) as scheduler:
        scheduler.add_blocks(blocks("a", "b"))
        scheduler.poll(PollRequest(job_capacity=1))
        [lease] = scheduler.poll(PollRequest(job_capacity=1)).assignments
        text = str(scheduler)
        assert lease.name in text
        assert "in progress" in text
        assert "last failure: none" in text


def test_start_during_which_a_later_owner_compacts_is_taken_over() -> None:
    store, pages = MemoryStore(), []

    def step(request: Request, act: Callable[[], Any]) -> Any:
        if request.kind == "scan":
            pages.append(request.key)
            if len(pages) == 2:
                with Scheduler(KVLog(store), SnapshotStore(store)) as later:
                    later.snapshot()
        return act()

    with Scheduler(KVLog(store)) as scheduler:
        for name in "abcdefgh":
            scheduler.add_blocks(blocks(name))
    with pytest.raises(TakenOver):
        Scheduler(KVLog(StoreInFront(store, step, page_size=3)))
    assert len(pages) > 1


def test_log_whose_start_was_taken_over_stays_taken_over() -> None:
    store, machine = MemoryStore(), SchedulerMachine()
    former = KVLog(store)
    with KVLog(store):
        with pytest.raises(TakenOver):
            former.start(machine)
        with pytest.raises(TakenOver):
            former.decide(lambda _: None)


def test_command_without_an_answer_is_carried_out_before_the_next() -> None:
    store, is_cut = MemoryStore(), False

    def step(request: Request, act: Callable[[], Any]) -> Any:
        if is_cut and request.kind == "transact":
            act()
        if is_cut:
            raise OutcomeUnknown(operation=request.kind, path=request.path, detail="the connection was cut")
        return act()

    with Scheduler(KVLog(StoreInFront(store, step))) as scheduler:
        is_cut = True
        with pytest.raises(OutcomeUnknown):
            scheduler.add_blocks(blocks("a"))
        is_cut = False
        scheduler.add_blocks(blocks("b"))
        assert scheduler.status()["blocks"] == 2
    with Scheduler(KVLog(store)) as later:
        assert later.status()["blocks"] == 2
