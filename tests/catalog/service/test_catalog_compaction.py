# SPDX-License-Identifier: Apache-2.0
"""A catalog as a `Compaction`: what is planned and why, policies below the bound, what must hold, what is found."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import attrs
import pytest

from compactlib.catalog import (
    Assignments,
    CatalogPlan,
    CatalogService,
    CatalogView,
    CreateSchema,
    Cut,
    CutReport,
    CutToBound,
    HybridClock,
    KeepSeconds,
    KeepVersions,
    NodeId,
    NodeReport,
    Topology,
)
from compactlib.catalog.errors import (
    AssignmentsMissing,
    CatalogMoved,
    DuplicateReport,
    RecordDamaged,
    RecordMissing,
    UnsafeCompaction,
)
from compactlib.catalog.log.recover import recover_history
from compactlib.catalog.model.values import Factor, Floor
from compactlib.clock import ManualClock
from compactlib.contract import Compaction
from compactlib.errors import BudgetSpent, Busy, Closed, Conflict, InvalidInput, StorageError
from compactlib.kv import KVStore, MemoryStore, OutcomeUnknown
from compactlib.outcome import Done, Failed, Skipped
from compactlib.runtime import Budget, RecordingObserver
from tests.catalog.services import cut, grown, plan_to, service_in
from tests.harness.catalog_logs import log_in, sound
from tests.harness.faulty_store import FaultyStore, KVCrash, KVFault, KVOperation
from tests.promises.contract.catalog import OneNode
from tests.tools.faults.kv_faults import KVRun, explore_kv_faults


def with_schemas(count: int, store: KVStore | None = None, **options: Any) -> CatalogService:
    """Versions a second apart, of a schema each."""
    clock = ManualClock(1000.0)
    service = service_in(store, clock=clock, delay_seconds=0, **options)
    for number in range(count):
        service.execute([CreateSchema(f"S{number}")], wait=False)
        clock.advance(1.0)
    return service


def report(name: str, time: int) -> NodeReport:
    return NodeReport(node=NodeId(name), floors=(Floor(Factor.ACTIVE_TRANSACTIONS, time),), transactions_from=time)


def view_of(service: CatalogService, version: int, *names: str, of: Sequence[str] = ("A",), **more: Any) -> CatalogView:
    """What nodes need who need this version."""
    time = service.history.activation(version)
    return service.view(reports=[report(name, time) for name in names or of], topology=Topology.of(*of),
                        low_watermark=service.history.activation(service.history.latest), **more)


# --- what is planned ------------------------------------------------------------------------------------------------


def test_it_never_assumes_that_nobody_needs_anything() -> None:
    service = with_schemas(6)
    outcome = service.compact()
    assert isinstance(outcome, Skipped)
    assert "0 nodes are known" in outcome.reason
    plan = service.plan(view=view_of(service, 5, "A", of="ABC"))
    assert plan.is_empty
    assert "node B, did not answer; node C, did not answer" in plan.why
    assert "give the reports of these nodes" in plan.why
    assert service.compact(plan) == Skipped(plan.why)
    assert service.plan(view=service.view(reports=[report("A", 1 << 50)], topology=Topology.of("A"))).is_empty
    assert service.history.earliest == 0


def test_a_plan_says_what_is_cut_and_everything_that_keeps_it_from_more() -> None:
    service = with_schemas(8)
    service.pins.pin("backup", 4, service.history, ttl_seconds=600)
    plan = service.plan(view=view_of(service, 6))
    assert (plan.target, plan.earliest, plan.latest) == (4, 0, 8)
    assert plan.explanation.factors == (Factor.PIN, Factor.ACTIVE_TRANSACTIONS)
    told = plan.explain()
    assert "history is cut to version 4 (of 0 to 8)" in told
    assert "pinned by 'backup'" in told
    assert "node A" in told
    assert {row["target"] for row in plan.to_dicts()} == {4}
    assert [row["node"] for row in view_of(service, 6, of="AB").to_dicts()] == ["A", "B"]


def test_a_plan_is_plain_data_and_serves_in_another_process() -> None:
    store = MemoryStore()
    service = with_schemas(8, store)
    plan = pickle.loads(pickle.dumps(service.plan(view=view_of(service, 5))))
    again = CatalogService(log_in(store, seed=2), service.clock)
    assert isinstance(again.compact(plan), Done)
    service.poll()
    assert service.history.earliest == 5


def test_what_is_freed_counts_garbage_and_the_marks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also what an earlier cut has left, and a term that is recorded for the first time, and for the second."""
    store = MemoryStore()
    service = with_schemas(6, store)
    left = store.get(b"catalog", b"update/0000000000000000002").value
    for version, term in ((4, 9), (6, 10), (8, 10)):
        while service.history.latest < version:
            service.execute([CreateSchema(f"M{service.history.latest}")], wait=False)
        plan = plan_to(service, version, term=term)
        before = stored(store)
        outcome = service.compact(plan)
        assert isinstance(outcome, Done)
        assert plan.is_exact
        assert before - stored(store) == plan.bytes_freed == outcome.stats.bytes_freed
        assert outcome.stats.bytes_written == plan.bytes_to_copy
        store.set(b"catalog", b"update/0000000000000000002", left)
    assert isinstance(service.reclaim(), Done)
    assert isinstance(service.reclaim(), Skipped)


def stored(store: MemoryStore) -> int:
    return sum(len(entry.key) + len(entry.value) for entry in store.scan(b"catalog"))


def test_a_view_reads_each_record_once() -> None:
    read: list[str] = []

    def note(operation: KVOperation) -> None:
        read.append(operation.name)

    store = MemoryStore()
    with_schemas(20, store)
    budget = Budget()
    service = CatalogService(log_in(FaultyStore(store, note), seed=2), HybridClock(ManualClock(2000.0)))
    service.view(budget=budget)
    first = len(read)
    read.clear()
    service.view()
    assert len(read) <= first
    spent = Budget()
    spent.cancel()
    with pytest.raises(BudgetSpent):
        service.view(budget=spent)
    with pytest.raises(BudgetSpent):
        service.verify(budget=spent)


def test_reports_that_contradict_each_other_and_assignments_that_are_not_known_have_names() -> None:
    service = grown(service_in(), 6)
    plan = plan_to(service, 5)
    time = service.history.activation(5)
    with pytest.raises(DuplicateReport):
        service.plan(view=service.view(reports=[report("A", time), report("A", time)], topology=Topology.of("A"),
                                       low_watermark=time))
    nobody = service.view(reports=plan.reports, topology=plan.topology, low_watermark=time, assignments=Assignments())
    with pytest.raises(AssignmentsMissing):
        service.plan(view=nobody)


# --- policies -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("policy", "target"), [
    (CutToBound(), 6), (KeepVersions(margin=0), 6), (KeepVersions(), 5), (KeepVersions(margin=4), 2),
    (KeepVersions(margin=6), None), (KeepSeconds(seconds=0), 6), (KeepSeconds(seconds=4.5), 4),
    (KeepSeconds(seconds=10_000), None),
])
def test_policies_cut_as_much_as_they_say(policy: Any, target: int | None) -> None:
    service = with_schemas(8)
    plan = service.plan(policy, view=view_of(service, 6))
    assert plan.target == target
    assert plan.policy.name == policy.name
    if target is None:
        (name, value), = plan.policy.settings
        assert f"{name}={value}" in plan.why


def test_the_service_s_own_policy_is_asked_unless_another_one_is_given() -> None:
    service = with_schemas(8, policy=KeepVersions(margin=3))
    view = view_of(service, 8)
    assert [service.plan(view=view).target, service.plan(CutToBound(), view=view).target] == [5, 8]


@attrs.frozen
class Chooses:
    """A policy that wants what it wants."""

    answer: Any
    name = "chooses"

    def choose(self, view: CatalogView, now: float) -> Any:
        return self.answer


@pytest.mark.parametrize("target", [7, 8])
def test_a_policy_cannot_move_the_bound(target: int) -> None:
    service = with_schemas(8)
    view = view_of(service, 6)
    with pytest.raises(UnsafeCompaction, match=f"chooses chose version {target}") as caught:
        service.plan(Chooses(Cut(target, "because")), view=view)
    assert caught.value.target == target
    assert "node A" in caught.value.detail
    assert service.plan(Chooses(Cut(6, "because")), view=view).target == 6


@pytest.mark.parametrize("answer", [None, 3, Cut(99, "?"), Cut(-1, "?"), Cut(2.5, "?"), Cut("3", "?")])  # type: ignore[arg-type]
def test_a_policy_s_answer_that_is_none_is_named(answer: Any) -> None:
    service = with_schemas(8)
    with pytest.raises(InvalidInput, match="the policy chooses chose"):
        service.plan(Chooses(answer), view=view_of(service, 6))


def test_a_policy_is_not_asked_where_nothing_may_be_cut() -> None:
    service = with_schemas(8)
    plan = service.plan(Chooses(Cut(5, "because")), view=view_of(service, 6, "A", of="AB"))
    assert plan.is_empty


def test_what_a_policy_chooses_is_taken_down_to_what_can_be_the_earliest() -> None:
    """An index that is being built in the version it chose does not stop everything."""
    from compactlib.catalog import CreateIndex, MakeIndexAvailable, StartBuildingIndex

    service = grown(service_in(delay_seconds=0), 2)
    service.execute([CreateIndex(schema="PUBLIC", table="T2", name="I", columns=("ID",))], wait=False)
    index = service.catalog(3).find_index("PUBLIC", "I")
    assert index is not None
    for command in (StartBuildingIndex(index.id), MakeIndexAvailable(index.id)):
        service.execute([command], wait=False)
    full = plan_to(service, 5)
    assert full.target == 5
    view = attrs.evolve(service.view(reports=full.reports, topology=full.topology, assignments=full.assignments,
                                     low_watermark=full.low_watermark))
    plan = service.plan(Chooses(Cut(4, "because")), view=view)
    assert plan.target == 2
    assert Factor.INDEX_BUILD in plan.explanation.factors


# --- what must still hold -------------------------------------------------------------------------------------------


def is_refused(service: CatalogService, plan: CatalogPlan, kind: type[Exception], told: str) -> None:
    service.poll()
    before = service.history.earliest
    outcome = service.compact(plan)
    assert isinstance(outcome, Failed)
    assert isinstance(outcome.error, kind)
    assert told in str(outcome.error)
    assert outcome.changed == "no"
    assert service.history.earliest == before


def test_a_plan_of_a_history_that_was_cut_since_is_outdated() -> None:
    store = MemoryStore()
    service, other = with_schemas(8, store), service_in(store, seed=2)
    plan = plan_to(service, 6)
    assert isinstance(cut(other, 3), Done)
    is_refused(service, plan, CatalogMoved, "begins at version 3 now, and began at 0")
    assert isinstance(cut(service, 6), Done)
    sound(service)


def test_a_plan_of_another_catalog_is_refused() -> None:
    service = with_schemas(8)
    older = service_in(clock=ManualClock(500.0), delay_seconds=0)
    for number in range(8):
        older.execute([CreateSchema(f"S{number}")], wait=False)
    for foreign in (plan_to(older, 6), older.plan()):
        with pytest.raises(InvalidInput, match="of another catalog"):
            service.compact(foreign)
    with pytest.raises(InvalidInput, match="of another catalog"):
        service_in().compact(plan_to(service, 6))
    assert not service.status().is_busy


def test_a_forged_target_is_seen_by_the_last_look() -> None:
    service = with_schemas(8)
    plan = service.plan(view=view_of(service, 4))
    forged = attrs.evolve(plan, target=7)
    is_refused(service, forged, UnsafeCompaction, "must stay readable")
    is_refused(service, attrs.evolve(plan, topology=Topology.of("A", "B")), UnsafeCompaction, "must have answered")


class Fence:
    """Counts, and refuses on demand."""

    def __init__(self, error: BaseException | None = None, *, leaving: BaseException | None = None,
                 inside: Callable[[], object] = lambda: None) -> None:
        self.entered = 0
        self.error, self.leaving, self.inside = error, leaving, inside

    @contextmanager
    def guard(self) -> Iterator[None]:
        self.entered += 1
        if self.error is not None:
            raise self.error
        self.inside()
        yield
        if self.leaving is not None:
            raise self.leaving


def test_a_fence_is_entered_around_the_commit_alone() -> None:
    service = with_schemas(8)
    earliest: list[int] = []
    fence = Fence(inside=lambda: earliest.append(service.history.earliest))
    assert isinstance(service.compact(plan_to(service, 5), fence=fence), Done)
    assert (fence.entered, earliest) == (1, [0])
    assert isinstance(service.compact(plan_to(service, 5), fence=fence), Skipped)
    assert fence.entered == 1


def test_a_fence_that_refuses_is_the_failure_and_one_that_fails_behind_the_commit_says_so() -> None:
    service = with_schemas(8)
    for error in (Conflict("a newer token"), StorageError(operation="read", path="the fence", errno=5)):
        outcome = service.compact(plan_to(service, 5), fence=Fence(error))
        assert outcome == Failed(error)
    with pytest.raises(ZeroDivisionError):
        service.compact(plan_to(service, 5), fence=Fence(ZeroDivisionError()))
    late = Conflict("the lease ended meanwhile")
    assert service.compact(plan_to(service, 5), fence=Fence(leaving=late)) == Failed(late, changed="partly")
    service.poll()
    assert service.history.earliest == 5
    sound(service)


def test_of_services_that_compact_by_themselves_the_losers_are_skipped() -> None:
    store = MemoryStore()
    services = [with_schemas(8, store), service_in(store, seed=2, clock=ManualClock(2000.0))]
    for service in services:
        service.poll()
        service.connect(OneNode(service))
    first, second = services
    won: list[object] = []
    outcome = first.compact(policy=Overtaken(lambda: won.append(second.compact())))
    assert isinstance(won[0], Done)
    assert isinstance(outcome, Skipped)
    assert outcome.is_busy
    assert "another process has cut history to version 8" in outcome.reason


@attrs.frozen
class Overtaken:
    """As `CutToBound`, and somebody else acts while it thinks; the first time only."""

    meanwhile: Callable[[], object]
    done: list[int] = attrs.field(factory=list)
    name = "overtaken"

    def choose(self, view: CatalogView, now: float) -> Cut:
        if not self.done:
            self.done.append(1)
            self.meanwhile()
        return CutToBound().choose(view, now)


def test_a_pin_that_is_taken_while_it_plans_makes_it_plan_anew() -> None:
    service = with_schemas(8)
    service.connect(OneNode(service))
    pins = service.pins
    outcome = service.compact(policy=Overtaken(lambda: pins.pin("late", 3, service.history, ttl_seconds=600)))
    assert isinstance(outcome, Done)
    assert service.history.earliest == 3


def test_a_source_that_fails_fails_the_compaction_and_nothing_else() -> None:
    service = with_schemas(8)
    source = OneNode(service)
    service.connect(source)
    error = StorageError(operation="read", path="the membership", errno=5)

    def topology() -> Topology:
        raise error

    source.topology = topology  # type: ignore[method-assign]
    assert service.compact() == Failed(error)
    with pytest.raises(StorageError):
        service.plan()
    del source.topology
    assert isinstance(service.compact(), Done)


def test_a_cut_without_an_answer_is_unknown_and_the_next_call_sees() -> None:
    store = MemoryStore()
    with_schemas(8, store)
    broken = {"is": False}

    def fault(operation: KVOperation) -> KVFault | None:
        if operation.name == "transact" and not broken["is"]:
            broken["is"] = True
            return KVFault.UNKNOWN_DONE
        return KVFault.FAIL if broken["is"] and operation.name == "get" else None

    service = service_in(FaultyStore(store, fault), seed=2, clock=ManualClock(2000.0))
    plan = plan_to(service, 5)
    outcome = service.compact(plan)
    assert isinstance(outcome, Failed)
    assert isinstance(outcome.error, OutcomeUnknown)
    assert outcome.changed == "unknown"
    again = service_in(store, seed=3)
    assert again.history.earliest == 5
    sound(again)


def test_whatever_the_store_does_to_any_request_the_outcome_is_true_and_the_next_call_goes_on() -> None:
    """Every fault at every request of a compaction: what it says has changed has, and nothing is lost."""
    filled = MemoryStore()
    writer = CatalogService(log_in(filled, chunk_bytes=1024), HybridClock(ManualClock(1000.0)), delay_seconds=0)
    for number in range(9):
        writer.execute([CreateSchema(f"a schema with a name that takes some room, number {number}")], wait=False)

    def prepared() -> MemoryStore:
        store = MemoryStore()
        for entry in filled.scan(b"catalog"):
            store.set(b"catalog", entry.key, entry.value)
        return store

    def opened(store: KVStore, seed: int) -> CatalogService:
        service = CatalogService(log_in(store, seed=seed, chunk_bytes=1024, clock=ManualClock(1.0)),
                                 HybridClock(ManualClock(1001.0)), delay_seconds=0)
        service.connect(OneNode(service))
        return service

    outcomes: list[Done[CutReport] | Skipped | Failed] = []

    def compact(store: FaultyStore) -> None:
        service = opened(store, 2)
        plan = service.plan()
        store.acknowledge("planned")
        outcomes.append(service.compact(plan))

    def check(store: KVStore, run: KVRun) -> None:
        again = opened(store, 3)
        is_cut = again.history.earliest == 9
        assert again.history.latest == 9
        assert is_cut or again.history.earliest == 0
        if "planned" in run.acknowledged and not isinstance(run.error, KVCrash):
            assert run.error is None, "a compaction answers"
            outcome = outcomes.pop()
            assert not isinstance(outcome, Skipped)
            changed = "all" if isinstance(outcome, Done) else outcome.changed
            assert is_cut or changed in ("no", "unknown"), outcome
            assert not is_cut or changed in ("all", "partly", "unknown"), outcome
        outcomes.clear()
        assert isinstance(again.compact(), Skipped if is_cut else Done)
        sound(again)
        assert again.verify().findings == ()

    report = explore_kv_faults(prepared, compact, check)
    assert report.operations > 20


# --- budgets, closing -----------------------------------------------------------------------------------------------


def test_a_budget_ends_a_large_snapshot_between_its_pieces_and_the_next_call_goes_on() -> None:
    store = MemoryStore()
    service = CatalogService(log_in(store, chunk_bytes=1024), HybridClock(ManualClock(1000.0)), delay_seconds=0)
    for number in range(40):
        service.execute([CreateSchema(f"a schema with a name that takes some room, {number}.{each}, {'x' * 150}")
                         for each in range(5)], wait=False)
    plan = plan_to(service, 38)
    assert not plan.is_exact
    observer = RecordingObserver()
    outcome = service.compact(plan, budget=Budget(total_bytes=20_000), observer=observer)
    assert isinstance(outcome, Failed)
    assert isinstance(outcome.error, BudgetSpent)
    assert outcome.changed == "no"
    assert len(list(store.scan(b"catalog", prefix=b"chunk/"))) == 16  # which are put in one request
    assert {progress.unit for progress in observer.progresses} == {"bytes"}
    before = stored(store)
    done = service.compact(plan, observer=observer)
    assert isinstance(done, Done)
    left_behind = 16 * (1024 + 16 + len(b"chunk/0000000000000000038/0123456789abcdef/000000"))  # by the first attempt
    assert done.stats.bytes_freed == before - stored(store) - left_behind
    assert observer.progresses[-1].done <= observer.progresses[-1].total
    assert ("catalog_compacted", {"earliest": 38, "before": 0}) in observer.events
    writers = {entry.key.split(b"/")[2] for entry in store.scan(b"catalog", prefix=b"chunk/")}
    assert len(writers) == 1  # the pieces that the first attempt has left are gone
    sound(service)


def test_closing_ends_waiting_and_everything_says_so() -> None:
    service = with_schemas(4)
    told: list[BaseException] = []

    def wait() -> None:
        try:
            service.wait_ready(9, 30)
        except Closed as error:
            told.append(error)

    waiting = threading.Thread(target=wait)
    waiting.start()
    service.close()
    waiting.join(20)
    assert len(told) == 1
    for call in (service.poll, lambda: service.execute([]), service.view, service.compact, service.verify,
                 service.status):
        with pytest.raises(Closed):
            call()
    assert service.catalog(3).version == 3  # what is in memory can still be looked at


def test_who_looks_while_the_service_is_being_closed_is_told_closed() -> None:
    service = with_schemas(8)
    inside, may_go = threading.Event(), threading.Event()

    class Slow:
        @contextmanager
        def guard(self) -> Iterator[None]:
            inside.set()
            assert may_go.wait(20)
            yield

    def look_for_ever() -> None:
        while True:
            service.view()

    plan = plan_to(service, 5)
    compacting = threading.Thread(target=lambda: service.compact(plan, fence=Slow()))
    compacting.start()
    assert inside.wait(20)
    closing = threading.Thread(target=service.close)
    closing.start()
    try:
        with pytest.raises(Closed):
            look_for_ever()  # the closing begins meanwhile
        for call in (service.view, service.plan, service.verify):
            with pytest.raises(Closed):
                call()
    finally:
        may_go.set()
        compacting.join(20)
        closing.join(20)


def test_a_compaction_that_a_listener_or_an_observer_starts_is_busy() -> None:
    service = with_schemas(8)
    answers: list[object] = []

    class Asks(RecordingObserver):
        def event(self, name: str, fields: object) -> None:
            answers.append(service.compact(plan_to(service, 7)))

    assert isinstance(service.compact(plan_to(service, 5), observer=Asks()), Done)
    assert answers
    assert all(isinstance(answer, Skipped) and answer.is_busy for answer in answers)


@pytest.mark.parametrize(("fault", "changed"), [
    (None, "partly"), (KVFault.FAIL, "partly"), (KVFault.UNKNOWN_DONE, "unknown"), (KVFault.UNKNOWN_LOST, "unknown")])
def test_a_reclaim_that_ends_between_two_steps_says_what_has_changed(fault: KVFault | None, changed: str) -> None:
    limits = attrs.evolve(MemoryStore().limits, max_transact=10)
    store, steps, budget = MemoryStore(limits=limits), 0, Budget()
    log = with_schemas(40, store).log
    # What the cut itself leaves behind goes with the next reclaim.
    log.save_snapshot(recover_history(log).catalog(30))

    def choose(operation: KVOperation) -> KVFault | None:
        nonlocal steps
        if operation.name != "transact":
            return None
        steps += 1
        if fault is None:
            budget.cancel()
        return fault if steps == 2 else None

    service = service_in(FaultyStore(store, choose), clock=ManualClock(2000.0))
    outcome = service.reclaim(budget=budget)
    assert isinstance(outcome, Failed)
    assert outcome.changed == changed
    assert isinstance(service.reclaim(), Done)
    sound(service)


def test_the_status_counts_what_reclaiming_has_met() -> None:
    store = MemoryStore()
    with_schemas(6, store)
    fails = {"on": False}
    failing = FaultyStore(store, lambda one: KVFault.FAIL if fails["on"] and one.name == "scan" else None)
    service = service_in(failing, seed=2, clock=ManualClock(2000.0))
    plan = plan_to(service, 5)
    fails["on"] = True
    assert isinstance(service.compact(plan), Done)
    status = service.status()
    assert (status.is_busy, status.failures, status.earliest) == (False, 1, 0)
    assert status.last_error
    assert "1 failures" in repr(status)
    fails["on"] = False
    service.poll()
    assert service.status().earliest == 5


# --- verifying ------------------------------------------------------------------------------------------------------


def test_a_sound_log_has_no_findings_and_what_is_left_over_is_harmless() -> None:
    store = MemoryStore()
    service = with_schemas(8, store)
    service.pins.pin("backup", 6, service.history, ttl_seconds=60)
    kept = store.get(b"catalog", b"update/0000000000000000002").value
    cut(service, 5)
    found = service.verify()
    assert found.findings == ()
    assert found.records == len(list(store.scan(b"catalog"))) - 2  # the marks are read without being counted
    store.set(b"catalog", b"update/0000000000000000002", kept)
    found = service.verify()
    assert [finding.kind for finding in found.findings] == ["leftover"]
    assert found.is_sound
    assert isinstance(service.reclaim(), Done)
    assert service.verify().findings == ()


@pytest.mark.parametrize(("key", "kind"), [
    (b"update/0000000000000000006", "damage"), (b"update/0000000000000000005", "damage"), (b"latest", "damage"),
    (b"format", "damage"), (b"pin/backup", "damage"), (b"term", "damage")])
def test_every_damaged_record_is_found_and_named(key: bytes, kind: str) -> None:
    store = MemoryStore()
    service = with_schemas(8, store)
    service.pins.pin("backup", 6, service.history, ttl_seconds=60)
    assert isinstance(cut(service, 5, term=3), Done)
    record = bytearray(store.get(b"catalog", key).value)
    record[len(record) // 2] ^= 1
    store.set(b"catalog", key, bytes(record))
    report = service.verify()
    assert not report.is_sound
    assert kind in [finding.kind for finding in report.findings]
    assert any(isinstance(finding.error, RecordDamaged) and finding.place == key.decode()
               for finding in report.findings)
    assert key.decode() in str(report)


def test_what_is_missing_is_found_all_of_it() -> None:
    store = MemoryStore()
    service = with_schemas(9, store)
    for version in (3, 4, 7):
        store.delete(b"catalog", b"update/%019d" % version)
    missing = [finding for finding in service.verify().findings if finding.kind == "missing"]
    assert [finding.error.version for finding in missing if isinstance(finding.error, RecordMissing)] == [3, 7]
    assert "up to 4" in missing[0].what


def test_a_log_that_was_put_back_to_an_earlier_state_is_seen_by_who_knew_better() -> None:
    store = MemoryStore()
    service = with_schemas(5, store)
    earlier = {entry.key: entry.value for entry in store.scan(b"catalog")}
    service.execute([CreateSchema("LATER")], wait=False)
    for entry in list(store.scan(b"catalog")):
        store.delete(b"catalog", entry.key)
    for key, value in earlier.items():
        store.set(b"catalog", key, value)
    report = service.verify()
    assert [finding.kind for finding in report.findings] == ["missing"]


def test_a_piece_of_a_snapshot_that_is_missing_is_found() -> None:
    store = MemoryStore()
    service = CatalogService(log_in(store, chunk_bytes=1024), HybridClock(ManualClock(1000.0)), delay_seconds=0)
    for number in range(40):
        service.execute([CreateSchema(f"a schema with a name that takes some room, number {number}")], wait=False)
    assert isinstance(cut(service, 38), Done)
    assert service.verify().is_sound
    store.delete(b"catalog", next(entry.key for entry in store.scan(b"catalog", prefix=b"chunk/")))
    report = service.verify()
    assert not report.is_sound
    assert {finding.kind for finding in report.findings} == {"missing"}


def test_a_log_that_grows_and_is_cut_while_it_is_read_is_sound() -> None:
    store = MemoryStore()
    service, other = with_schemas(30, store), service_in(store, seed=2)
    done = threading.Event()
    reports = []

    def verify() -> None:
        while not done.is_set():
            try:
                reports.append(service.verify())
            except Busy:
                continue

    reading = threading.Thread(target=verify)
    reading.start()
    try:
        for number in range(30):
            other.execute([CreateSchema(f"MORE{number}")], wait=False)
            if number % 5 == 0:
                assert isinstance(cut(other, other.history.latest - 2), Done)
    finally:
        done.set()
        reading.join(60)
    service.poll()
    reports.append(service.verify())
    assert all(report.is_sound for report in reports), [str(report) for report in reports if not report.is_sound][:1]


# --- wrong arguments ------------------------------------------------------------------------------------------------


STRANGE: Sequence[Any] = (42, "text", 2.5, b"bytes", object(), [object()], {"a": 1}, lambda: None)


def test_it_is_a_compaction() -> None:
    """As a type checker sees it, too."""
    service: Compaction = with_schemas(3)
    assert service.plan().is_empty
