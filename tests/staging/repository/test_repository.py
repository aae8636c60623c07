# SPDX-License-Identifier: Apache-2.0
"""A repository by the contract's words: whose plan it is, room, reclaiming, verifying, status, closing, wrong types."""

from __future__ import annotations

import contextlib
import inspect
import pickle
import random
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from compactlib.clock import ManualClock
from compactlib.errors import Busy, Closed, CompactlibError, Conflict, InvalidInput
from compactlib.fences import TokenFence
from compactlib.files import LocalFiles
from compactlib.files.disk import StrPath
from compactlib.kv import MemoryStore
from compactlib.objects import LocalObjects, MemoryObjects
from compactlib.outcome import Done, Failed, Skipped
from compactlib.runtime import Budget
from compactlib.staging import (
    BranchNotFound,
    CommittedRanges,
    CompactionSensor,
    PlainFormat,
    Repository,
    SplitRule,
    StagingOptions,
    StagingWorker,
)
from compactlib.staging.errors import OutdatedPlan
from compactlib.staging.events import StagingEvents
from tests.staging.hooked_objects import HookedObjects
from tests.staging.world import NOW, World, contents

# --- which branch


def test_a_branch_is_given_by_name_or_by_handle() -> None:
    world = World()
    side = world.branch({"a": "1", "b": "2"}, name="side")
    side.delete(b"a")
    assert world.repo.view(branch="side") == world.repo.view(branch=side)
    plan = world.repo.plan(branch=side)
    assert world.repo.plan(view=world.repo.view(branch=side)) == plan
    outcome = world.repo.compact(plan)  # the plan knows its branch
    assert isinstance(outcome, Done)
    assert outcome.stats.branch == "side"
    side.delete(b"b")
    assert isinstance(world.repo.compact(branch=side, policy=NOW), Done)
    for call in (world.repo.view, world.repo.plan, world.repo.compact):
        with pytest.raises(BranchNotFound, match="main"):
            call()


def test_handles_views_and_plans_of_another_branch_or_repository_are_refused() -> None:
    world = World()
    main, side = world.branch({"a": "1"}, staged={"b": "1"}), world.branch({"a": "1"}, name="side", staged={"b": "1"})
    elsewhere = Repository(world.store, world.committed, name="elsewhere", clock=world.clock)
    plan = world.repo.plan()
    before = main.record()
    for refused in (
        lambda: elsewhere.view(branch=main), lambda: elsewhere.compact(branch=main),
        lambda: elsewhere.plan(view=world.repo.view()), lambda: elsewhere.compact(plan),
        lambda: world.repo.plan(view=world.repo.view(), branch=side), lambda: world.repo.compact(plan, branch="side"),
        lambda: world.repo.compact(plan, policy=NOW),
    ):
        with pytest.raises(InvalidInput):
            refused()
    assert main.record() == before
    assert not world.repo.status().is_busy
    assert isinstance(world.repo.compact(pickle.loads(pickle.dumps(plan)), branch=main), Done)


def test_an_outdated_plan_is_stale() -> None:
    world = World()
    main = world.branch({"a": "1", "b": "2"})
    main.delete(b"a")
    plan = world.repo.plan()
    main.put(b"c", b"3")  # staged later: compacted too
    assert isinstance(world.repo.compact(plan), Done)
    outcome = world.repo.compact(plan)
    assert isinstance(outcome, Failed)
    assert isinstance(outcome.error, OutdatedPlan)
    assert (outcome.error.branch, outcome.changed) == ("main", "no")
    assert "its tokens" in str(outcome.error)
    world.repo.delete_branch("main")
    gone = world.repo.compact(plan)
    assert isinstance(gone, Failed)
    assert "was deleted" in str(gone.error)


# --- room, fences, budgets


class Room(LocalFiles):
    """A disk on which so much is free."""

    room = 1 << 30

    def available_bytes(self, path: StrPath) -> int | None:
        return self.room


def test_without_room_nothing_begins_and_both_numbers_are_told(tmp_path: Path) -> None:
    files = Room()
    world = World(objects=LocalObjects(tmp_path, files=files), options=StagingOptions(max_scanned=1_000_000))
    main = world.branch({"a": "1"})
    main.put_many({b"%04d" % number: b"x" * 100 for number in range(500)})
    plan = world.repo.plan()
    assert plan.bytes_available == 1 << 30
    assert plan.bytes_needed is not None
    assert 50_000 < plan.bytes_needed < 100_000
    before = main.record()
    files.room = plan.bytes_needed - 1
    for outcome in (world.repo.compact(plan), world.repo.compact()):
        assert isinstance(outcome, Skipped)
        assert f"about {plan.bytes_needed:,} bytes" in outcome.reason
        assert f"{files.room:,}" in outcome.reason
    for part in range(2):
        main.put_many({b"more %d %04d" % (part, number): b"x" * 100 for number in range(1000)})
    outcome = world.repo.compact()  # it looks at the first entries only
    assert isinstance(outcome, Skipped)
    assert "more than" in outcome.reason
    assert main.record() == before
    files.room = 1 << 30
    assert isinstance(world.repo.compact(), Done)


def test_a_job_that_lost_its_lease_compacts_nothing() -> None:
    class Fence:
        token = 7

        def guard(self, resource: str, token: int) -> Any:
            if token < self.token:
                raise Conflict(f"token {token} of {resource} was replaced by {self.token}")
            return contextlib.nullcontext()

    world = World()
    main = world.branch({"a": "1", "b": "2"})
    main.delete(b"a")
    late = world.repo.compact(fence=TokenFence(cast("Any", Fence()), "main", 6))
    assert isinstance(late, Failed)
    assert (type(late.error), late.changed) == (Conflict, "no")
    assert main.record().compacted_metarange_id is None
    assert contents(main) == {"b": "2"}
    assert isinstance(world.repo.compact(fence=TokenFence(cast("Any", Fence()), "main", 7), policy=NOW), Done)


def test_an_empty_plan_is_skipped_however_old_it_is() -> None:
    world = World()
    main = world.branch({"a": "1", "b": "2"})
    plan = world.repo.plan()
    assert plan.is_empty
    main.delete(b"a")
    assert isinstance(world.repo.compact(), Done)
    assert world.repo.compact(plan) == Skipped(plan.why)


def test_a_fence_that_refuses_after_the_commit_leaves_it_and_says_so() -> None:
    class Expires:
        @contextlib.contextmanager
        def guard(self) -> Iterator[None]:
            yield
            raise Conflict("the lease ran out meanwhile")

    told: list[str] = []

    class Told(StagingEvents):
        def compacted(self, branch: str, record: Any) -> None:
            told.append(branch)

    world = World(events=Told())
    main = world.branch({"a": "1", "b": "2"})
    main.delete(b"a")
    outcome = world.repo.compact(fence=Expires())
    assert isinstance(outcome, Failed)
    assert (type(outcome.error), outcome.changed) == (Conflict, "partly")
    assert main.record().compacted_metarange_id is not None
    assert contents(main) == {"b": "2"}
    assert told == ["main"]
    assert isinstance(world.repo.compact(policy=NOW), Skipped)
    world.repo.audit()


def test_a_view_asks_its_budget() -> None:
    world = World()
    world.branch({"a": "1"}, staged={"a": None})
    budget = Budget()
    budget.cancel()
    with pytest.raises(CompactlibError, match="cancelled"):
        world.repo.view(budget=budget)
    outcome = world.repo.compact(budget=budget)
    assert isinstance(outcome, Failed)
    assert outcome.changed == "no"


def test_a_compaction_that_is_wanted_anyhow_reads_each_range_once_and_each_new_one() -> None:
    objects = HookedObjects(MemoryObjects())
    committed = CommittedRanges(objects, rule=SplitRule(raggedness=3), cache_bytes=0)
    repository = Repository(MemoryStore(), committed)
    main = repository.create_branch("main")
    main.put_many({b"%03d" % number: b"v" for number in range(300)})
    main.commit("three hundred")
    main.delete_many([b"%03d" % number for number in range(0, 300, 7)])
    objects.counts.clear()
    outcome = repository.compact()
    assert isinstance(outcome, Done)
    applied = outcome.stats.applied
    assert objects.counts["get ranges"] == applied.ranges_read + applied.ranges_written > 10


# --- reclaim, verify, status


def test_reclaim_says_what_each_part_did_and_what_it_left() -> None:
    world = World(options=StagingOptions(grace_seconds=60, range_grace_seconds=200))
    main = world.branch({"a": "1", "b": "2"})
    main.delete(b"a")
    assert isinstance(world.repo.compact(), Done)
    outcome = world.repo.reclaim()
    assert isinstance(outcome, Skipped)
    for gate in ("grace_seconds=60", "owns_ranges=False"):
        assert gate in outcome.reason
    world.clock.advance(60)
    outcome = world.repo.reclaim()
    assert isinstance(outcome, Done)
    assert (outcome.stats.tokens.tokens_removed, outcome.stats.tokens.entries_removed) == (1, 1)
    assert outcome.stats.ranges is None
    assert any("owns_ranges" in left for left in outcome.stats.left)
    main.commit("c")
    main.reset()
    world.repo.delete_branch("main")
    world.repo.create_branch("other")
    world.clock.advance(1000)
    owner = world.another_repo(StagingOptions(owns_ranges=True, range_grace_seconds=200))
    owner.adopt_ranges()
    outcome = owner.reclaim()
    assert isinstance(outcome, Done)
    assert outcome.stats.ranges is not None
    assert outcome.stats.ranges.ranges_deleted >= 1
    assert {row["of"] for row in outcome.stats.to_dicts()} == {"tokens", "ranges"}
    assert "ranges" in repr(outcome.stats)


def test_a_reclaim_whose_budget_is_spent_goes_on_the_next_time() -> None:
    world = World(options=StagingOptions(grace_seconds=0, owns_ranges=True))
    main = world.branch({"a": "1", "b": "2"})
    main.delete(b"a")
    world.repo.compact()
    budget = Budget()
    budget.cancel()
    outcome = world.repo.reclaim(budget=budget)
    assert isinstance(outcome, Failed)
    assert isinstance(world.repo.reclaim(), Done)


def test_verify_lists_what_is_damaged_missing_and_contradictory() -> None:
    world = World()
    main = world.branch({f"k{number}": "v" for number in range(20)}, staged={"a": "1", "b": None}, sealed=[{"c": "2"}])
    main.commit("second")
    main.put(b"staged", b"1")
    sound = world.repo.verify()
    assert sound.is_sound
    assert sound.findings == ()
    assert sound.records > 40
    commit_id = main.record().commit_id
    assert commit_id is not None
    inner, objects = world.store, world.objects
    token = main.record().staging_token.encode()
    inner.set(token, b"staged", b"no entry")
    commit = bytearray(inner.get(b"staging/main", b"commits/" + commit_id.encode()).value)
    commit[-6] ^= 1
    found = world.repo.verify()
    assert [(each.kind, str(token) in each.place) for each in found.findings] == [("damage", True)]
    inner.set(b"staging/main", b"commits/" + commit_id.encode(), bytes(commit))
    fresh = World(inner, objects)
    kinds = sorted((each.kind, each.place.split(" ")[0]) for each in fresh.repo.verify().findings)
    assert kinds == [("damage", "key"), ("damage", "key"), ("missing", "commit")]


def test_verify_finds_ranges_that_are_gone_and_a_token_that_is_named_twice() -> None:
    world = World()
    main = world.branch({"a": "1"})
    world.repo.create_branch("side", "main")
    info = next(iter(world.objects.list("ranges/")))
    world.objects.delete(info.key)
    (finding,) = world.repo.verify().findings
    assert (finding.kind, finding.place) == ("missing", info.key)
    token = main.record().staging_token
    world.context.branches.update("side", lambda record: record.sealed_with(token))
    kinds = {each.kind for each in world.repo.verify().findings}
    assert kinds == {"missing", "contradiction"}


def test_verify_lists_a_damaged_metarange_and_what_is_wrong_besides() -> None:
    world = World()
    world.branch({"a": "1"})
    side = world.repo.create_branch("side", "main")
    side.put(b"b", b"2")
    side.commit("more")
    damaged = min(info.key for info in world.objects.list("metaranges/"))
    ranges = [info.key for info in world.objects.list("ranges/")]
    content = bytearray(world.objects.get(damaged))
    content[len(content) // 2] ^= 1
    world.objects.delete(damaged)
    world.objects.create(damaged, bytes(content))
    for key in ranges:
        world.objects.delete(key)
    found = World(world.store, world.objects).repo.verify().findings
    assert min((each.kind, each.place in (damaged, *ranges)) for each in found) == ("damage", True)
    assert {each.kind for each in found} == {"damage", "missing"}
    assert len({each.place for each in found}) == len(found)


def test_verify_looks_again_for_what_a_branch_has_let_go_of() -> None:
    world = World()
    main = world.branch({"a": "1", "b": "2"})
    main.delete(b"a")
    world.repo.compact()
    gone = main.record().compacted_metarange_id
    read = world.committed.verify

    def late(*given: Any, **named: Any) -> Any:
        world.committed.verify = read  # type: ignore[method-assign]
        main.reset()
        world.objects.delete(f"metaranges/{gone}")
        return read(*given, **named)

    world.committed.verify = late  # type: ignore[method-assign]
    assert world.repo.verify().findings == ()


def test_status_counts_what_this_object_did() -> None:
    world = World()
    world.branch({"a": "1", "b": "2"}).delete(b"a")
    told: list[Any] = []

    class Fence:
        def guard(self) -> Any:
            told.append(world.repo.status())
            raise ZeroDivisionError("a host's bug")

    with pytest.raises(ZeroDivisionError):
        world.repo.compact(fence=Fence())
    assert (told[0].is_busy, told[0].compacting) == (True, ("main",))
    world.repo.compact(policy=NOW)
    world.repo.compact()
    status = world.repo.status()
    assert not status.is_busy
    assert dict(status.outcomes) == {"compacted": 1, "skipped": 1}
    assert (status.failures, status.last_error) == (1, "ZeroDivisionError: a host's bug")
    assert pickle.loads(pickle.dumps(status)) == status
    assert "a host's bug" in repr(status)


# --- closing


def test_a_closed_repository_compacts_no_more_and_its_branches_stay() -> None:
    world = World()
    main = world.branch({"a": "1", "b": "2"})
    main.delete(b"a")
    with world.repo as repository:
        plan = repository.plan()
    repository.close()
    calls: list[Callable[[], object]] = [
        repository.view, repository.plan, repository.compact, lambda: repository.compact(plan), repository.reclaim,
        repository.verify, repository.status, repository.audit]
    for call in calls:
        with pytest.raises(Closed):
            call()
    assert contents(main) == {"b": "2"}
    main.put(b"c", b"3")
    assert isinstance(world.another_repo().compact(plan), Done)


def test_closing_ends_what_reads_and_waits_for_it() -> None:
    world = World()
    world.branch({"a": "1"})
    reading, closed, told = threading.Event(), threading.Event(), []
    read = world.committed.verify

    def slowly(*given: Any, budget: Budget, **named: Any) -> Any:
        reading.set()
        with contextlib.suppress(Busy):
            world.repo.close()  # from within: nothing ends
            told.append("closed from within")
        while not budget.cancelled:
            closed.wait(0.001)
        told.append("cancelled")
        return read(*given, budget=budget, **named)

    def verify() -> None:
        try:
            world.repo.verify()
        except Closed:
            told.append("Closed")

    world.committed.verify = slowly  # type: ignore[method-assign, assignment]
    reader = threading.Thread(target=verify)
    reader.start()
    assert reading.wait(30)
    world.repo.close()
    assert "cancelled" in told
    reader.join(30)
    assert told == ["cancelled", "Closed"]


# --- wrong types

SOMETHING = [None, 42, 1.5, "text", b"bytes", ["list"], object()]


def _subjects() -> Iterator[object]:
    world = World()
    yield world.repo
    main = world.branch({"a": "1"})
    yield main
    yield main.head()
    sensor = CompactionSensor()
    yield sensor
    yield StagingWorker(sensor, [world.repo], reclaim_seconds=None, clock=world.clock)


def _calls(subject: object) -> Iterator[tuple[str, inspect.Signature]]:
    for name in dir(subject):
        if name.startswith("_") or name in ("audit", "wait_until_idle"):
            continue
        if isinstance(inspect.getattr_static(type(subject), name, None), property):
            continue
        method = getattr(subject, name)
        if callable(method):
            yield name, inspect.signature(method)


def _valid(parameter: inspect.Parameter) -> object:
    known: dict[str, object] = {"key": b"a", "data": b"1", "name": "other", "branch": "main", "prefix": b"a",
                                "items": {b"a": b"1"}, "keys": [b"a"], "expected": None, "message": "m",
                                "change": lambda record: b"2", "ref": "main", "source": "main", "commit": "main",
                                "commit_id": "0" * 64, "metarange_id": "0" * 40, "repository": "main",
                                "listener": lambda: None, "tombstones": {}, "record": None,
                                "store": MemoryStore(), "committed": CommittedRanges(MemoryObjects())}
    return known[parameter.name]


def test_what_is_made_of_right_types_is_taken() -> None:
    clock = ManualClock()
    Repository(MemoryStore(), CommittedRanges(MemoryObjects(), range_format=PlainFormat(), clock=clock), name="n",
               policy=NOW, options=StagingOptions(), clock=clock, rng=random.Random(1), events=StagingEvents())
