# SPDX-License-Identifier: Apache-2.0
"""Merges of branches that merged each other: several newest common ancestors, one answer."""

from __future__ import annotations

from typing import Any

import pytest

from compactlib.staging import Branch, MergeConflict
from tests.harness.staging_world import StagingWorld as World


def crossed(seed: int, *, dev: dict[bytes, bytes | None], main: dict[bytes, bytes | None],
            strategy: Any = "fail") -> tuple[Branch, Branch]:
    """Two branches of `k=1` that each committed these changes, and then merged the other branch's commit."""
    world = World(seed=seed)
    first = world.branch({"k": "1"})
    second = world.repo.create_branch("dev", first.name)
    heads = []
    for branch, changes in ((second, dev), (first, main)):
        change(branch, changes)
        heads.append(head(branch))
    first.merge(heads[0], strategy=strategy)
    second.merge(heads[1], strategy=strategy)
    return first, second


def head(branch: Branch) -> str:
    commit_id = branch.record().commit_id
    assert commit_id is not None
    return commit_id


def change(branch: Branch, changes: dict[bytes, bytes | None]) -> None:
    branch.put_many({key: value for key, value in changes.items() if value is not None})
    branch.delete_many([key for key, value in changes.items() if value is None])
    branch.commit("changes")


def contents(branch: Branch) -> dict[bytes, bytes]:
    return {key: record.data for key, record in branch.head().records()}


@pytest.mark.parametrize("seed", range(12))
def test_a_restored_key_is_merged_under_any_ids(seed: int) -> None:
    main, dev = crossed(seed, dev={b"k": None}, main={b"other": b"x"})
    assert contents(main) == contents(dev) == {b"other": b"x"}
    change(main, {b"k": b"1"})
    dev.merge("main")
    assert contents(dev) == {b"k": b"1", b"other": b"x"}


@pytest.mark.parametrize("seed", range(12))
def test_a_key_changed_on_both_sides_conflicts_under_any_ids(seed: int) -> None:
    main, dev = crossed(seed, dev={b"k": None}, main={b"other": b"x"})
    change(main, {b"k": b"2"})
    change(dev, {b"k": b"1"})  # as one of the common ancestors has it
    with pytest.raises(MergeConflict) as refused:
        dev.merge("main")
    assert refused.value.keys == (b"k",)


@pytest.mark.parametrize("seed", range(12))
def test_two_resolutions_of_one_conflict_conflict_under_any_ids(seed: int) -> None:
    main, dev = crossed(seed, dev={b"k": b"dev"}, main={b"k": b"main"}, strategy="destination_wins")
    assert (contents(main), contents(dev)) == ({b"k": b"main"}, {b"k": b"dev"})
    with pytest.raises(MergeConflict):
        dev.merge("main")
    change(dev, {b"k": b"main"})
    dev.merge("main")
    assert contents(dev) == {b"k": b"main"}


@pytest.mark.parametrize("seed", range(4))
def test_a_change_is_taken_over_after_any_number_of_crossings(seed: int) -> None:
    main, dev = crossed(seed, dev={b"k": None}, main={b"other": b"x"})
    for number in range(3):
        change(main, {b"k": b"%d" % number})
        change(dev, {b"other": b"%d" % number})
        theirs, ours = head(main), head(dev)
        main.merge(ours)
        dev.merge(theirs)
        assert contents(main) == contents(dev) == {b"k": b"%d" % number, b"other": b"%d" % number}
    change(main, {b"k": None})
    dev.merge("main")
    assert contents(dev) == {b"other": b"2"}


def test_a_source_that_head_has_is_nothing_new() -> None:
    main, dev = crossed(0, dev={b"k": None}, main={b"other": b"x"})
    dev.merge("main")
    assert dev.merge("main").is_empty
    main.merge("dev")
    assert main.merge("dev").is_empty


def test_a_merge_reads_no_commit_below_the_common_ancestor() -> None:
    world = World()
    main = world.branch({"k": "0"})
    for number in range(1, 20):
        change(main, {b"k": b"%d" % number})
    dev = world.repo.create_branch("dev", "main")
    change(main, {b"a": b"1"})
    change(dev, {b"b": b"1"})
    commits = [commit_id for commit_id, _ in main.log()]
    fresh = World(world.store, world.objects)
    world.store.operations.clear()
    fresh.repo.branch("main").merge("dev")
    asked = "".join(map(repr, world.store.operations))
    assert [commit_id in asked for commit_id in commits] == [True, True] + [False] * 19


@pytest.mark.parametrize("ours", "abc")
@pytest.mark.parametrize("theirs", "abc")
@pytest.mark.parametrize("seed", range(3))
def test_ancestors_that_disagree_over_ancestors_that_disagree_conflict(seed: int, theirs: str, ours: str) -> None:
    """`d` and `e` changed a key differently; `a`, `b` and `c` each merged both in an own way; two branches merged these
    three, and keep the state of one of them each."""
    world = World(seed=seed)
    world.branch({"k": "0"})

    def branch(name: str, source: str, *merged: str, value: str) -> Branch:
        made = world.repo.create_branch(name, source)
        for other in merged:
            made.merge(other, strategy="destination_wins")
        made.put(b"k", value.encode())
        made.commit("its own state", allow_empty=True)
        return made

    for name in "de":
        branch(name, "main", value=name)
    for name in "abc":
        branch(name, "d", "e", value=name)
    branch("theirs", "a", "b", "c", value=theirs)
    mine = branch("ours", "a", "b", "c", value=ours)
    if theirs == ours:
        mine.merge("theirs")
        assert contents(mine) == {b"k": ours.encode()}
        return
    with pytest.raises(MergeConflict):
        mine.merge("theirs")
