# SPDX-License-Identifier: Apache-2.0
"""The compactor: cases with known answers, and its reports."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from compactlib.errors import InvalidInput, Stale
from compactlib.staging import AlwaysPolicy, Branch, SplitRule, StagingOptions
from tests.harness.staging_world import NOW, StagingWorld as World


def sigma() -> tuple[World, Branch]:
    """HEAD{a=1, b=2}; `a` deleted, c=3 put: the start of most cases, before the compaction."""
    world = World()
    branch = world.branch({"a": "1", "b": "2"})
    branch.delete(b"a")
    branch.put(b"c", b"3")
    return world, branch


def compacted(world: World, branch: str = "main", *, force: bool = True) -> Any:
    outcome = world.repo.compact(branch=branch, policy=NOW if force else None)
    assert not outcome.is_empty, outcome
    return outcome


def values(branch: Branch) -> dict[bytes, bytes]:
    return {entry.key: entry.record.data for entry in branch.entries() if entry.record is not None}


def test_the_outcome_and_the_record() -> None:
    world, branch = sigma()
    before, dropped = branch.record(), world.repo.dropped_tokens()
    stats = compacted(world)
    after = branch.record()
    assert stats.sealed_before == 1
    assert (stats.applied.added, stats.applied.changed, stats.applied.removed) == (1, 0, 1)
    assert after.compacted_metarange_id == stats.metarange_id is not None
    assert after.sealed_tokens == ()
    assert after.staging_token != before.staging_token
    assert (after.commit_id, after.compaction_started_at) == (before.commit_id, world.clock.now())
    assert world.repo.dropped_tokens() == dropped + 1


def test_the_second_compaction_builds_on_the_first() -> None:
    world, branch = sigma()
    first = compacted(world)
    branch.put(b"d", b"4")
    second = compacted(world)
    assert (second.applied.added, second.applied.removed) == (1, 0)  # against the first, not against HEAD
    assert second.metarange_id not in (None, first.metarange_id)
    assert values(branch) == {b"b": b"2", b"c": b"3", b"d": b"4"}


def test_nothing_to_do_leaves_the_record_alone() -> None:
    world = World()
    branch = world.branch({"a": "1"})
    before = branch.record()
    outcome = world.repo.compact()
    assert outcome.is_empty
    assert outcome.why == "nothing to compact: 0 entries are staged, and 0 tokens are sealed"
    assert branch.record() == before
    branch.put(b"a", b"2")
    compacted(world)
    assert world.repo.compact(policy=NOW).is_empty


def test_a_branch_that_was_emptied_has_an_empty_metarange() -> None:
    world = World()
    branch = world.branch({"a": "1"})
    branch.delete(b"a")
    stats = compacted(world)
    assert stats.metarange_id is not None
    assert world.committed.ranges_of(stats.metarange_id) == ()


def test_a_compaction_of_a_branch_without_a_head() -> None:
    world = World()
    branch = world.branch()
    branch.put(b"x", b"1")
    assert compacted(world).metarange_id is not None
    branch.delete(b"x")
    assert compacted(world).metarange_id is None  # as empty as a branch that nothing was committed to
    assert branch.record().compacted_metarange_id is None


def test_a_result_that_equals_head_is_not_kept() -> None:
    world = World()
    branch = world.branch({"a": "1"}, staged={"zz": None})
    stats = compacted(world)
    assert stats.metarange_id is None
    record = branch.record()
    assert (record.compacted_metarange_id, record.sealed_tokens) == (None, ())
    assert not list(branch.differences())
    branch.put(b"b", b"2")
    compacted(world)
    branch.delete(b"b")
    assert compacted(world).metarange_id is None  # the way back from a compaction
    assert branch.record().compacted_metarange_id is None


def test_at_most_one_compaction_starts_within_the_window() -> None:
    world = World()
    branch = world.branch({"a": "1"})
    branch.put(b"b", b"2")
    start = world.clock.now()
    compacted(world, force=False)
    branch.put(b"c", b"3")
    before = branch.record()
    world.clock.advance(299)
    outcome = world.repo.compact()
    assert outcome.is_empty
    assert f"{start:.3f}" in outcome.why
    assert f"at {start + 300:.3f}" in outcome.why
    assert branch.record() == before
    world.clock.advance(1)
    compacted(world, force=False)
    branch.put(b"d", b"4")
    compacted(world, force=True)


@pytest.mark.parametrize(("ahead_seconds", "throttled"), [(3600, False), (60, True), (300, True), (301, False)])
def test_a_start_in_the_future_is_a_wrong_clock(ahead_seconds: float, throttled: bool) -> None:
    world, branch = sigma()
    ahead = World(world.store, world.objects, seed=2)
    ahead.clock.set_now(world.clock.now() + ahead_seconds)
    assert not ahead.repo.compact().is_empty
    branch.put(b"d", b"4")
    assert world.repo.compact().is_empty == throttled


def test_a_window_of_zero_throttles_nothing() -> None:
    world, branch = sigma()
    assert not world.repo.compact(policy=NOW).is_empty
    branch.put(b"d", b"4")
    assert not world.repo.compact(policy=NOW).is_empty
    with pytest.raises(InvalidInput, match="window_seconds"):
        AlwaysPolicy(window_seconds=-1)


def test_one_delete_inside_a_range_writes_one_range() -> None:
    world = World(rule=SplitRule(raggedness=40, max_bytes=1 << 20))
    branch = world.branch({f"key{number:04}": "v" for number in range(1000)})
    ranges = world.committed.ranges_of(branch.head().metarange_id)
    assert len(ranges) >= 10
    target = max(ranges, key=lambda entry: entry.count)
    keys = [key for key in values(branch) if target.min_key < key < target.max_key]
    branch.delete(keys[len(keys) // 2])
    stats = compacted(world)
    assert (stats.applied.ranges_read, stats.applied.ranges_written) == (1, 1)
    assert stats.applied.ranges_reused == len(ranges) - 1


def test_a_compactions_ranges_are_live_and_superseded_ones_are_not() -> None:
    world = World(options=StagingOptions(owns_ranges=True, range_grace_seconds=10))
    branch = world.branch({"a": "1", "b": "2"}, staged={"a": None, "c": "3"})
    first = compacted(world).metarange_id
    branch.put(b"d", b"4")
    second = compacted(world).metarange_id
    world.clock.advance(1000)
    world.repo.reclaim()
    left = {info.key.rpartition("/")[2] for info in world.objects.list("metaranges/")}
    assert second in left
    assert first not in left
    assert values(branch) == {b"b": b"2", b"c": b"3", b"d": b"4"}


def test_reset_of_a_prefix_keeps_the_staged_records_of_other_keys() -> None:
    world = World()
    branch = world.branch({"a": "1", "p/a": "1", "z": "1"}, staged={"a": "2", "p/a": "2", "p/b": "2", "z": "2"})
    world.seal(branch)
    branch.delete(b"p/a")
    report = branch.reset_prefix(b"p/")
    assert (report.records_restored, report.tombstones) == (1, 1)
    assert values(branch) == {b"a": b"2", b"p/a": b"1", b"z": b"2"}
    assert [each.key for each in branch.differences()] == [b"a", b"z"]
    assert branch.reset_prefix(b"p/").is_empty
    branch.commit("without the prefix")
    assert values(branch) == {b"a": b"2", b"p/a": b"1", b"z": b"2"}


# ------------------------------------------------------------------------------------------------------- C23: G3


KEYS = st.sampled_from([b"a", b"b", b"c", b"d/1", b"d/2"])
OPERATIONS = st.one_of(
    st.tuples(st.just("put"), KEYS, st.sampled_from([b"1", b"2", b""])), st.tuples(st.just("delete"), KEYS),
    st.tuples(st.just("commit")), st.tuples(st.just("reset")), st.tuples(st.just("reset_key"), KEYS),
    st.tuples(st.just("reset_prefix"), st.sampled_from([b"d/", b"a"])), st.tuples(st.just("seal")))


def carry_out(world: World, branch: Branch, operation: tuple[object, ...]) -> object:
    match operation:
        case ("put", bytes() as key, bytes() as data):
            branch.put(key, data)
        case ("delete", bytes() as key):
            branch.delete(key)
        case ("commit",):
            outcome = branch.commit("c")
            return outcome.is_empty, outcome.added
        case ("reset",):
            branch.reset()
        case ("reset_key", bytes() as key):
            branch.reset_key(key)
        case ("reset_prefix", bytes() as prefix):
            branch.reset_prefix(prefix)
        case _:
            world.seal(branch)
    return None


def seen(branch: Branch) -> object:
    page = branch.list(delimiter=b"/")
    return (values(branch), [entry.key for entry in page.entries], list(branch.differences()), branch.is_dirty(),
            list(branch.head().records()))


@settings(deadline=None, max_examples=60)
@given(st.lists(st.tuples(OPERATIONS, st.booleans()), max_size=12))
def test_readers_see_no_difference_after_a_compaction(steps: list[tuple[tuple[object, ...], bool]]) -> None:
    plain, other = World(), World()
    left, right = plain.branch({"a": "1", "d/1": "1"}), other.branch({"a": "1", "d/1": "1"})
    for operation, compacts in steps:
        assert carry_out(plain, left, operation) == carry_out(other, right, operation)
        if compacts:
            other.repo.compact(policy=NOW)
        assert seen(left) == seen(right)
    assert left.commit("end").is_empty == right.commit("end").is_empty
    assert list(left.head().records()) == list(right.head().records())
    metaranges = {repo.at("main").metarange_id for repo in (plain.repo, other.repo)}
    assert len(metaranges) <= 1  # equal content, equal id
    other.repo.audit()


def test_an_outdated_plan_changes_nothing() -> None:
    world, branch = sigma()
    plan = world.repo.plan(NOW)
    branch.commit("the plan is not of this")
    branch.put(b"z", b"1")
    before = branch.record()
    with pytest.raises(Stale):
        world.repo.compact(plan)
    assert branch.record() == before


def test_a_plan_of_a_deleted_branch_is_outdated() -> None:
    world, _ = sigma()
    plan = world.repo.plan(NOW)
    world.repo.delete_branch("main")
    with pytest.raises(Stale):
        world.repo.compact(plan)
