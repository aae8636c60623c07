# SPDX-License-Identifier: Apache-2.0
"""The worker: triggers become compactions, one per branch at a time; cleanup on a timer; metrics."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from typing import Any

import pytest

from compactlib.clock import ManualClock
from compactlib.errors import BudgetSpent, Busy, Closed, InvalidInput, NotFound
from compactlib.executors import LocalExecutor
from compactlib.kv import MemoryStore
from compactlib.objects import MemoryObjects, MeteredObjects, ObjectStoreFailed
from compactlib.outcome import Done, Failed, Skipped
from compactlib.runtime import Budget, Observer, RecordingObserver
from compactlib.runtime.services.agenda import Refused, Removed
from compactlib.staging import (
    AnyOf,
    Branch,
    BranchNotFound,
    CommittedRanges,
    CompactionSensor,
    DeletesPolicy,
    ListingCostPolicy,
    Repository,
    SealedTokensPolicy,
    StagingChoice,
    StagingOptions,
    StagingView,
    StagingWorker,
    TombstoneCostPolicy,
)
from compactlib.staging.compaction.metrics import StagingMetrics
from compactlib.staging.compaction.outcome import LostRace, PutOff
from compactlib.staging.events import StagingEvents
from compactlib.staging.reclaim import StagingReclaimReport
from compactlib.staging.record import BranchRecord
from tests.harness.faulty_store import FaultyStore, KVFault, KVOperation
from tests.staging.hooked_objects import HookedObjects
from tests.staging.world import NOW, World


def sensed_world(sensor: CompactionSensor, observer: RecordingObserver | None = None) -> World:
    events = sensor.events("main")
    return World(events=events if observer is None else StagingMetrics(observer, "main", events))


def worker_of(sensor: CompactionSensor, world: World, **options: Any) -> StagingWorker:
    return StagingWorker(sensor, [world.repo], reclaim_seconds=None, clock=world.clock, **{"surveys": False, **options})


def test_what_counts_as_a_delete() -> None:
    sensor = CompactionSensor(DeletesPolicy(1000))
    world = sensed_world(sensor)
    branch = world.branch({"a": "1", "b": "2", "c/1": "1"})

    def deletes() -> int:
        return sensor.pressure("main", "main").deletes

    branch.put(b"x", b"1")
    branch.put_many({b"y": b"1", b"z": b"2"})
    branch.delete(b"missing")
    assert deletes() == 0
    branch.delete(b"a")
    assert deletes() == 1
    branch.delete_many([b"x", b"b", b"missing too"])
    assert deletes() == 3
    branch.reset_key(b"y")  # HEAD has no y: a tombstone
    assert deletes() == 4
    branch.reset_key(b"a")  # HEAD has a: a value
    assert deletes() == 4
    for _ in range(3):  # a tombstone that there is already
        branch.delete(b"b")
        branch.delete_many([b"b", b"x"])
        branch.reset_key(b"y")
    assert deletes() == 4


def test_commits_and_resets_of_real_branches_begin_anew() -> None:
    sensor = CompactionSensor(DeletesPolicy(3))
    world = sensed_world(sensor)
    branch = world.branch({"a": "1", "b": "2", "c": "3", "d": "4"})
    branch.delete_many([b"a", b"b"])
    branch.commit("c")
    branch.delete(b"c")
    branch.reset()
    branch.delete_many([b"c", b"d"])
    assert sensor.take() is None
    branch.put(b"c", b"1")
    branch.delete(b"c")
    assert sensor.take() is not None


def test_deletes_lead_to_a_compaction() -> None:
    sensor = CompactionSensor(DeletesPolicy(10))
    world = sensed_world(sensor)
    branch = world.branch({f"k{number:02}": "v" for number in range(20)})
    observer = RecordingObserver()
    worker = worker_of(sensor, world, observer=observer)
    assert worker.run_pending() == []
    branch.delete_many([b"k%02d" % number for number in range(10)])
    (outcome,) = worker.run_pending()
    assert isinstance(outcome, Done)
    assert [fields["why"] for name, fields in observer.events if name == "staging_compaction_triggered"] == [
        "10 deletes, of which 10 are enough"]
    assert branch.record().compacted_metarange_id is not None
    branch.delete_many([b"k%02d" % number for number in range(10, 20)])
    (again,) = worker.run_pending()
    assert isinstance(again, PutOff)
    assert "window_seconds" in again.reason


def test_listings_lead_to_a_compaction() -> None:
    sensor = CompactionSensor(ListingCostPolicy(30))
    world = sensed_world(sensor)
    branch = world.branch({f"k{number:02}": "v" for number in range(10)} | {"z": "1"})
    branch.delete_many([b"k%02d" % number for number in range(10)])
    worker = worker_of(sensor, world)
    for _ in range(2):
        branch.list(limit=1)
    assert worker.run_pending() == []
    branch.list(limit=1)
    (outcome,) = worker.run_pending()
    assert isinstance(outcome, Done)
    assert branch.list(limit=1).scanned <= 2


def test_sealed_tokens_lead_to_a_compaction() -> None:
    sensor = CompactionSensor(SealedTokensPolicy(3))
    world = sensed_world(sensor)
    branch = world.branch({"a": "1"}, sealed=[{"b": "1"}, {"c": "1"}, {"d": "1"}])
    branch.get(b"a")
    (outcome,) = worker_of(sensor, world).run_pending()
    assert isinstance(outcome, Done)
    assert outcome.stats.sealed_before == 3
    assert branch.list().keys == (b"a", b"b", b"c", b"d")


def test_a_plan_that_is_not_worth_its_cost_is_not_carried_out() -> None:
    sensor = CompactionSensor(DeletesPolicy(1))
    world = sensed_world(sensor)
    branch = world.branch({f"k{number:02}": "v" for number in range(10)})
    before = branch.record()
    branch.delete(b"k03")
    policy = TombstoneCostPolicy(long_run=2, bytes_per_tombstone=1)
    (outcome,) = worker_of(sensor, world, policy=policy).run_pending()
    assert isinstance(outcome, Skipped)
    assert "not worth its cost" in outcome.reason
    assert branch.record() == before


def test_branches_that_are_gone_or_nobody_s_are_passed_over() -> None:
    observer = RecordingObserver()
    sensor = CompactionSensor(DeletesPolicy(1))
    world = sensed_world(sensor)
    side = world.branch({"a": "1"}, name="side")
    record = side.record()
    sensor.events("elsewhere").tombstones_written("main", record, 1)
    side.delete(b"a")
    world.repo.delete_branch("side")
    worker = worker_of(sensor, world, observer=observer)
    (outcome,) = worker.run_pending()
    assert isinstance(outcome, Skipped)
    assert "'side'" in outcome.reason
    assert [name for name, _ in observer.events] == ["staging_trigger_dropped", "staging_compaction_triggered"]


def test_workers_share_the_single_flight_of_their_repository() -> None:
    sensor = CompactionSensor(DeletesPolicy(1))
    world = sensed_world(sensor)
    branch = world.branch({"a": "1", "b": "2"})
    first, second = worker_of(sensor, world), worker_of(sensor, world)
    told: list[object] = []

    class Between(Observer):
        def event(self, name: str, fields: object) -> None:
            if name == "staging_compaction" and not told:
                told.append(None)
                branch.delete(b"b")
                told.extend(second.run_pending())

    branch.delete(b"a")
    world.repo.compact(observer=Between())
    busy = told[1]
    assert isinstance(busy, Skipped)
    assert busy.is_busy
    assert first.run_pending() == []


def test_it_reclaims_at_the_start_and_on_the_timer() -> None:
    world = World(options=StagingOptions(grace_seconds=0, orphan_seconds=0))
    branch = world.branch({"a": "1"})
    branch.put(b"b", b"2")
    branch.commit("c")
    worker = StagingWorker(CompactionSensor(), [world.repo], reclaim_seconds=60, surveys=False, clock=world.clock)
    (outcome,) = worker.run_pending()
    assert isinstance(outcome, Done)
    assert isinstance(outcome.stats, StagingReclaimReport)
    assert not list(world.context.tokens.dropped())
    branch.put(b"c", b"3")
    branch.commit("c")
    world.clock.advance(59)
    assert worker.run_pending() == []
    assert list(world.context.tokens.dropped())
    world.clock.advance(1)
    worker.run_pending()
    assert not list(world.context.tokens.dropped())


def test_the_thread_does_the_same_and_begins_anew_after_its_end() -> None:
    sensor = CompactionSensor(DeletesPolicy(1))
    world = sensed_world(sensor)
    branch = world.branch({"a": "1", "b": "2"})
    done = threading.Semaphore(0)

    class Told(Observer):
        def event(self, name: str, fields: object) -> None:
            if name == "staging_compaction_triggered":
                done.release()

    worker = StagingWorker(sensor, [world.repo], policy=NOW, clock=ManualClock(), observer=Told())
    with worker:
        worker.start()
        branch.delete(b"a")
        assert done.acquire(timeout=30)
        worker.wait_until_idle(30)
    assert isinstance(worker.stop(), Done)
    first = branch.record().compacted_metarange_id
    assert first is not None
    branch.delete(b"b")  # nobody is woken
    with pytest.raises(Closed):
        worker.run_pending()
    worker.start()
    worker.wait_until_idle(30)
    worker.stop()
    assert branch.record().compacted_metarange_id != first


def test_work_with_which_nothing_is_to_be_done_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("compactlib.staging.repository.worker._MAX_LISTED", 3)
    sensor = CompactionSensor(DeletesPolicy(1))
    world = sensed_world(sensor)
    worker = worker_of(sensor, world)
    for number in range(10):
        world.branch({"a": "1"}, name=f"b{number}").delete(b"a")
        (outcome,) = worker.run_pending()
        assert isinstance(outcome, Done)
        assert len(worker.status().rows) <= 3


def test_a_process_that_starts_learns_what_earlier_ones_left_and_opens_no_range() -> None:
    failing = [True]

    def choose(operation: KVOperation) -> KVFault | None:
        return KVFault.FAIL if failing[0] and operation.name == "scan" else None

    world = World(FaultyStore(MemoryStore(), choose))
    failing[0] = False
    world.branch({"a": "1", "b": "2"}, staged={"a": None, "b": None}, sealed=[{"c": "1"}])
    world.branch({"a": "1"}, name="quiet", staged={"x": "1"})
    sensor = CompactionSensor(DeletesPolicy(2))
    observer = RecordingObserver()
    repo = Repository(world.store, CommittedRanges(MeteredObjects(world.objects, observer, name="ranges")),
                      clock=world.clock, events=sensor.events("main"))
    worker = StagingWorker(sensor, [repo], reclaim_seconds=None, clock=world.clock, policy=Refuses())
    failing[0] = True
    (failed,) = worker.run_pending()
    assert isinstance(failed, Failed)
    failing[0] = False
    assert worker.survey() == 2
    assert not observer.counters
    world.clock.advance(0.1)
    refused, surveyed, again = worker.run_pending()
    assert refused == again == Skipped("not worth its cost")
    assert isinstance(surveyed, Done)
    assert surveyed.stats.branches == 2
    assert sensor.pressure("main", "main").deletes == 2
    assert sensor.pressure("main", "quiet").deletes == 0
    world.clock.advance(3600)
    assert worker.run_pending() == []


def test_a_survey_finds_more_branches_than_the_sensor_holds_triggers() -> None:
    world = World()
    for number in range(5):
        world.branch({"a": "1"}, name=f"b{number}", staged={"a": None})
    sensor = CompactionSensor(DeletesPolicy(1), buffer=2)
    outcomes = worker_of(sensor, world, surveys=True).run_pending()
    assert [type(outcome) for outcome in outcomes] == [Done] * 6
    assert all(branch.list().tombstones == 0 for branch in world.repo.branches())


class Refuses:
    """A policy that finds nothing worth its cost."""

    name = "refuses"

    def choose(self, view: StagingView, now: float) -> StagingChoice:
        return StagingChoice("not worth its cost", is_empty=True)


# --- a branch is pending until it was compacted


def deletes(count: int) -> tuple[World, CompactionSensor, Branch]:
    """A branch of 99 keys that a worker looks at after so many deletes."""
    sensor = CompactionSensor(DeletesPolicy(count))
    world = sensed_world(sensor)
    return world, sensor, world.branch({f"k{number:02}": "v" for number in range(99)})


def keys(first: int, end: int) -> list[bytes]:
    return [b"k%02d" % number for number in range(first, end)]


def test_what_the_window_holds_back_is_compacted_when_it_ends() -> None:
    world, sensor, branch = deletes(10)
    worker = worker_of(sensor, world)
    branch.delete_many(keys(0, 10))
    assert isinstance(worker.run_pending()[0], Done)
    world.clock.advance(100)
    branch.delete_many(keys(10, 20))
    (put_off,) = worker.run_pending()
    assert isinstance(put_off, PutOff)
    assert "window_seconds" in put_off.reason
    (row,) = worker.status().rows
    assert (row.condition, row.last_told) == ("waiting", put_off.reason)
    assert row.next_due_in_seconds == pytest.approx(200)
    world.clock.advance(199)
    assert worker.run_pending() == []
    world.clock.advance(1)
    (outcome,) = worker.run_pending()
    assert isinstance(outcome, Done)
    assert branch.list(limit=1).tombstones == 0
    world.clock.advance(10_000)
    assert worker.run_pending() == []


def test_a_branch_that_was_compacted_meanwhile_is_left_alone() -> None:
    world, sensor, branch = deletes(1)
    worker = worker_of(sensor, world)
    branch.delete(b"k01")
    assert isinstance(worker.run_pending()[0], Done)
    branch.delete(b"k02")
    assert isinstance(worker.run_pending()[0], PutOff)
    branch.commit("what was pending")
    world.clock.advance(300)
    (clean,) = worker.run_pending()
    assert isinstance(clean, Skipped)
    branch.put(b"x", b"1")
    world.clock.advance(300)
    assert worker.run_pending() == []
    assert branch.record().sealed_tokens == ()


def test_a_compaction_that_lost_or_failed_comes_back_when_the_window_ends() -> None:
    for breaks in ("lost", "failed"):
        world, sensor, branch = deletes(10)

        class Breaks(LocalExecutor):
            times = 1

            def run(self, *arguments: Any, world: World = world, breaks: str = breaks, **options: Any) -> Any:
                if self.times:
                    self.times -= 1
                    if breaks == "failed":
                        raise ObjectStoreFailed(operation="create", key="k", detail="down")
                    context = world.context
                    context.branches.update("main", lambda record: record.sealed_with(context.tokens.issue("main")))
                return super().run(*arguments, **options)

        worker = worker_of(sensor, world, executor=Breaks())
        branch.delete_many(keys(0, 10))
        (broken,) = worker.run_pending()
        assert isinstance(broken, LostRace if breaks == "lost" else Failed)
        world.clock.advance(0.1)
        (put_off,) = worker.run_pending()
        assert isinstance(put_off, PutOff)
        world.clock.advance(300)
        (outcome,) = worker.run_pending()
        assert isinstance(outcome, Done)
        assert branch.list(limit=1).tombstones == 0


def test_a_branch_that_another_one_compacts_comes_back() -> None:
    world, sensor, branch = deletes(1)
    worker = worker_of(sensor, world, policy=NOW)
    busy: list[object] = []

    class Between(Observer):
        def event(self, name: str, fields: object) -> None:
            if name == "staging_compaction" and not busy:
                branch.delete(b"k02")
                busy.extend(worker.run_pending())

    branch.put(b"x", b"1")
    assert isinstance(world.repo.compact(observer=Between()), Done)
    (outcome,) = busy
    assert isinstance(outcome, Skipped)
    assert outcome.is_busy
    world.clock.advance(0.1)
    assert isinstance(worker.run_pending()[0], Done)


def test_a_store_without_room_is_asked_again() -> None:
    sensor = CompactionSensor(DeletesPolicy(1))
    room = [0]

    class Small(MemoryObjects):
        def available_bytes(self) -> int:
            return room[0]

    world = World(objects=Small(), events=sensor.events("main"))
    branch = world.branch({"a": "1", "b": "2"})
    branch.delete(b"a")
    worker = worker_of(sensor, world)
    (put_off,) = worker.run_pending()
    assert isinstance(put_off, PutOff)
    assert "there is room for 0" in put_off.reason
    room[0] = 1 << 20
    assert worker.run_pending() == []
    world.clock.advance(60)
    assert isinstance(worker.run_pending()[0], Done)


def test_what_is_pending_when_a_worker_stops_is_done_when_it_starts_again() -> None:
    world, sensor, branch = deletes(1)

    class Stops:
        name = "stops"
        is_first = True

        def choose(self, view: StagingView, now: float) -> StagingChoice:
            if self.is_first:
                self.is_first = False
                branch.delete(b"k02")  # requested while the first one is compacted
                with pytest.raises(Busy):
                    worker.stop()
                stopped.set()
            return NOW.choose(view, now)

    stopped = threading.Event()
    worker = worker_of(sensor, world, policy=Stops())
    worker.start()
    branch.delete(b"k01")
    assert stopped.wait(30)
    assert isinstance(worker.stop(), Done)
    assert branch.list(limit=9).tombstones
    with worker:
        worker.wait_until_idle(30)
    assert branch.list(limit=9).tombstones == 0


def test_what_one_worker_took_and_could_not_do_another_one_finds() -> None:
    world, sensor, branch = deletes(10)
    first = worker_of(sensor, world, budget=Budget(total_bytes=1))
    branch.delete_many(keys(0, 10))
    (failed,) = first.run_pending()
    assert isinstance(failed, Failed)
    assert isinstance(failed.error, BudgetSpent)
    world.clock.advance(300)
    assert first.run_pending() == []  # its budget is spent for good
    first.stop()
    surveyed, compacted = worker_of(sensor, world, surveys=True).run_pending()
    assert isinstance(surveyed, Done)
    assert isinstance(compacted, Done)
    assert branch.list(limit=1).tombstones == 0


def test_a_policy_that_says_when_is_asked_then_whatever_it_says() -> None:
    world, sensor, branch = deletes(1)
    again_at = [float("inf"), float("-inf")]

    class Says:
        name = "says when"

        def choose(self, view: StagingView, now: float) -> StagingChoice:
            if again_at:
                return StagingChoice("not yet", is_empty=True, again_at=again_at.pop(0))
            return StagingChoice("now")

    worker = worker_of(sensor, world, policy=Says())
    branch.delete(b"k01")
    for seconds in (3600, 0.1):
        (put_off,) = worker.run_pending()
        assert isinstance(put_off, PutOff)
        assert put_off.to_dicts()[0]["outcome"] == "skipped"
        assert worker.run_pending() == []
        world.clock.advance(seconds)
    assert isinstance(worker.run_pending()[0], Done)


def test_counts_follow_the_tombstones_that_there_are() -> None:
    beside: list[Callable[[], None]] = []
    sensor = CompactionSensor(DeletesPolicy(1000))
    world = World(objects=HookedObjects(MemoryObjects(), lambda *_: beside.pop()() if beside else None),
                  events=sensor.events("main"))
    branch = world.branch({f"k{number:02}": "v" for number in range(99)})

    def check(expected: int) -> None:
        assert sensor.pressure("main", "main").deletes == world.repo.view().tombstones == expected

    branch.delete_many(keys(0, 9))
    branch.put(b"large", b"x" * 1000)
    with pytest.raises(BudgetSpent):
        branch.commit("too large", budget=Budget(total_bytes=10))
    branch.delete_many(keys(10, 19))
    check(18)
    branch.put(b"p/1", b"1")
    branch.reset_prefix(b"p/")  # a tombstone more, in a new token
    check(19)
    for change, count in ((lambda: branch.commit("c"), 7), (lambda: world.repo.compact(policy=NOW), 2)):
        beside.append(lambda count=count: branch.delete_many(keys(30 + count, 30 + 2 * count)))  # type: ignore[misc]
        assert isinstance(change(), Done)
        assert not beside
        check(count)
    branch.reset()
    check(0)


# --- repositories come and go


def test_one_constructor_wires_all_of_a_repository() -> None:
    clock, observer = ManualClock(1_000_000.0), RecordingObserver()
    with StagingWorker(clock=clock, observer=observer) as worker:
        heard = Told()
        repo = worker.open(MemoryStore(), CommittedRanges(MemoryObjects(clock=clock)), name="logs", events=heard,
                           options=StagingOptions(owns_ranges=True, grace_seconds=0))
        assert repo.name == "logs"
        with pytest.raises(InvalidInput, match="two repositories are named 'logs'"):
            worker.open(MemoryStore(), CommittedRanges(MemoryObjects()), name="logs")
        main = repo.create_branch("main")
        main.put_many({b"%04d" % number: b"" for number in range(1000)})
        main.delete_many([b"%04d" % number for number in range(1000)])
        worker.wait_until_idle(30)
        assert main.list(limit=1).scanned <= 1
        assert isinstance(worker.run_pending(), list)
    assert worker.sensor.pressure("logs", "main").deletes == 0
    assert heard.tombstones == 1000
    assert sum(value for (name, labels), value in observer.counters.items()
               if name == "store_compactions" and {("outcome", "done"), ("store", "logs")} <= set(labels)) == 1
    assert observer.counters["staging_tombstones_written", (("repository", "logs"),)] == 1000
    told = [name for name, _ in observer.events]
    # Asked for twice, if the worker has looked between the two batches of one request.
    assert 1 <= told.count("staging_compaction_triggered") <= 2
    assert told.count("staging_compaction") == 1
    assert {row.work for row in worker.status().rows} == {"survey logs", "reclaim logs", "logs/main"}
    repo.close()


class Told(StagingEvents):
    tombstones = 0

    def tombstones_written(self, branch: str, record: BranchRecord, count: int) -> None:
        self.tombstones += count


def test_repositories_are_added_and_removed_while_it_works() -> None:
    removals: list[object] = []

    class Removes:
        name = "removes"
        is_asked = False

        def choose(self, view: StagingView, now: float) -> StagingChoice:
            if self.is_asked:
                removals.append(worker.remove("main"))
            return NOW.choose(view, now)

    observer, policy = RecordingObserver(), Removes()
    sensor = CompactionSensor(DeletesPolicy(2))
    world = World(events=sensor.events("main"))
    branch = world.branch({"a": "1", "b": "2", "c": "3"}, staged={"a": None, "b": None})
    worker = StagingWorker(sensor, clock=world.clock, policy=policy, observer=observer)
    assert worker.run_pending() == []
    for _ in range(2):
        worker.add(world.repo)
    with pytest.raises(InvalidInput, match="remove one first"):
        worker.add(world.another_repo())
    assert len(worker.run_pending()) == 3  # surveyed, compacted what was found, reclaimed
    assert branch.list().tombstones == 0
    branch.put_many({b"x": b"1", b"y": b"1"})
    branch.delete_many([b"x", b"y"])
    policy.is_asked = True
    worker.run_pending()
    assert isinstance(removals[0], Refused)
    policy.is_asked = False
    assert {row.condition for row in worker.status().rows} == {"disabled"}
    worker.add(world.repo)  # it stays after all
    world.clock.advance(0.1)
    worker.run_pending()
    assert branch.list().tombstones == 0
    assert worker.remove("main") == Removed("main")
    assert worker.status().rows == ()
    with pytest.raises(NotFound, match="known is none"):
        worker.remove("main")
    branch.put_many({b"x": b"1", b"y": b"1"})
    branch.delete_many([b"x", b"y"])
    assert worker.run_pending() == []
    assert observer.events[-1][0] == "staging_trigger_dropped"
    policy.is_asked = False
    worker.add(world.another_repo())
    assert [type(outcome) for outcome in worker.run_pending()][:2] == [Done, Done]
    assert branch.list().tombstones == 0


def test_what_makes_no_sense_is_refused() -> None:
    world = World()
    with pytest.raises(InvalidInput, match="two repositories"):
        StagingWorker(CompactionSensor(), [world.repo, world.another_repo()])
    with pytest.raises(InvalidInput, match="reclaim_seconds"):
        StagingWorker(CompactionSensor(), [], reclaim_seconds=0)


def test_metrics_and_the_sensor_hear_the_same_events() -> None:
    observer = RecordingObserver()
    sensor = CompactionSensor(AnyOf((DeletesPolicy(2), ListingCostPolicy(10))))
    world = sensed_world(sensor, observer)
    branch = world.branch({"a": "1", "b": "2"}, sealed=[{"c": "3"}])
    branch.delete_many([b"a", b"b"])
    branch.list()
    labels = (("repository", "main"),)
    assert observer.counters["staging_tombstones_written", labels] == 2
    assert observer.counters["staging_tombstones_listed", labels] == 2
    assert sensor.take() is not None
    assert not isinstance(world.repo.compact(), Failed)
    branch.get(b"c")
    sealed = [fields["value"] for name, fields in observer.events if name == "staging_sealed_tokens"]
    assert sealed == [1, 2, 0]  # the compaction's own seal in between
    world.repo.delete_branch("main")


def test_commits_are_counted_and_timed_by_how_they_ended() -> None:
    observer = RecordingObserver()
    world = World()

    def slowly(operation: KVOperation) -> None:
        if operation.name == "set_if":
            world.clock.advance(0.25)

    repo = Repository(FaultyStore(world.store, slowly), world.committed, clock=world.clock, rng=random.Random(5),
                       observer=observer)
    main = repo.create_branch("main")
    main.put(b"a", b"1")
    main.commit("one")  # two compare-and-sets
    main.commit("nothing")
    with pytest.raises(BranchNotFound):
        repo.branch("nowhere").commit("x")
    told = {(name.removeprefix("staging_"), dict(labels)["outcome"]): value
            for (name, labels), value in [*observer.counters.items(), *observer.measured.items()]}
    assert told == {("commits", "committed"): 1, ("commit_seconds", "committed"): [0.5],
                    ("commits", "no_changes"): 1, ("commit_seconds", "no_changes"): [0.0],
                    ("commits", "error"): 1, ("commit_seconds", "error"): [0.0]}
