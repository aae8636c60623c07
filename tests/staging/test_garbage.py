"""Garbage collection of ranges and metaranges: what a branch needs stays, what nobody needs goes (C24)."""

from __future__ import annotations

import attrs
import pytest

from compactlib.errors import InvalidInput
from compactlib.kv import MemoryStore
from compactlib.observe import RecordingObserver
from compactlib.outcome import Done, Failed, Skipped
from compactlib.staging.garbage import collect_garbage, live_metaranges
from compactlib.testing import FaultyStore, KVFault, KVOperation
from tests.staging.world import World


def test_commits_of_all_branches_and_their_ancestors_are_live() -> None:
    world = World()
    main = world.branch({"a": "1"})
    for number in range(3):
        main.put(b"k", b"%d" % number)
        main.commit("c")
    side = world.area.create_branch("side", "main")
    side.put(b"s", b"1")
    side.commit("side")
    expected = {commit.metarange_id for branch in (main, side) for _, commit in branch.log()}
    assert set(live_metaranges(world.context)) == expected
    assert len(list(live_metaranges(world.context))) == len(expected) == 5


def test_a_deleted_branch_leaves_garbage_after_the_grace_period() -> None:
    observer = RecordingObserver()
    world = World()
    world.branch({"a": "1"})
    side = world.area.create_branch("side", "main")
    side.put(b"s", b"1")
    side.commit("side")
    world.area.delete_branch("side")
    context = attrs.evolve(world.context, observer=observer)
    assert isinstance(collect_garbage(context, grace_seconds=100), Skipped)
    world.clock.advance(101)
    outcome = collect_garbage(context, grace_seconds=100)
    assert isinstance(outcome, Done)
    assert (outcome.stats.metaranges_deleted, outcome.stats.ranges_deleted) == (1, 1)
    assert observer.counters["staging_ranges_collected", (("repository", "main"),)] == 1
    assert world.area.branch("main").get(b"a").data == b"1"
    world.area.audit()


def test_many_commits_and_compactions_leave_what_is_needed() -> None:
    world = World()
    branch = world.branch({"a": "1"})
    for number in range(6):
        branch.put(b"k%d" % number, b"v")
        world.compact()
        if number % 2:
            branch.commit("c")
        world.clock.advance(1000)
        collect_garbage(world.context, grace_seconds=10)
        assert branch.list().keys == (b"a", *(b"k%d" % each for each in range(number + 1)))
        assert [commit.generation for _, commit in branch.log()] == list(range(1 + (number + 1) // 2, 0, -1))
    for commit_id, _ in branch.log():
        assert list(world.area.at(commit_id).records())


def test_an_error_is_an_outcome_and_nothing_is_deleted_for_it() -> None:
    failing: list[bool] = []

    def choose(operation: KVOperation) -> KVFault | None:
        return KVFault.FAIL if failing and operation.name == "scan" else None

    world = World(FaultyStore(MemoryStore(), choose))
    world.branch({"a": "1"})
    world.clock.advance(1000)
    failing.append(True)
    # Had "the store cannot be read" been taken for "there are no branches", everything would be gone now.
    assert isinstance(collect_garbage(world.context, grace_seconds=1), Failed)
    failing.clear()
    assert world.area.branch("main").get(b"a").data == b"1"
    with pytest.raises(InvalidInput, match="0 or more"):
        collect_garbage(world.context, grace_seconds=-1)
