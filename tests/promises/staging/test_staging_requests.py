# SPDX-License-Identifier: Apache-2.0
"""How many requests to the key-value store the main operations take."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from random import Random

import pytest

from compactlib.staging import AlwaysPolicy, Branch, Repository
from compactlib.staging.policy import StagingChoice, StagingView
from tests.harness.staging_world import NOW, StagingWorld as World

Work = Callable[[World, Branch], object]


def one_key(world: World, branch: Branch) -> object:
    return branch.get(b"a")


def sealed_key(world: World, branch: Branch) -> object:
    for value in (b"2", b"3"):
        branch.put(b"z", value)
        world.seal(branch)
    world.store.operations.clear()
    return branch.get(b"a")


def thousand_keys(world: World, branch: Branch) -> None:
    branch.put_many({b"%04d" % number: b"1" for number in range(1000)})


def commit_of_one_key(world: World, branch: Branch) -> object:
    branch.put(b"b", b"2")
    world.store.operations.clear()
    return branch.commit("one key")


def compaction_of_one_key(world: World, branch: Branch) -> object:
    branch.put(b"b", b"2")
    world.store.operations.clear()
    return world.repo.compact(policy=NOW)


def conditional_put(world: World, branch: Branch) -> None:
    branch.put_if(b"new", b"2", None)


def put_of_a_new_process(world: World, branch: Branch) -> None:
    other = Repository(world.store, world.committed, clock=world.clock, rng=Random(2))
    other.branch(branch.name).put(b"b", b"2")


def idle_reclaim(world: World, branch: Branch) -> object:
    return world.repo.reclaim()


@pytest.mark.parametrize(("work", "most"), [
    (one_key, {"tokens": 1}),
    (sealed_key, {"tokens": 2}),
    (thousand_keys, {"changes": 1000 // 25}),
    (commit_of_one_key, {"changes": 3}),
    (compaction_of_one_key, {"changes": 2}),
    (conditional_put, {"changes": 1}),
    (put_of_a_new_process, {"all": 3}),
    (idle_reclaim, {"scan": 1, "changes": 0}),
])
def test_operation_takes_few_requests(work: Work, most: dict[str, int]) -> None:
    world = World()
    branch = world.branch({"a": "1"})
    if work is idle_reclaim:
        world.clean()
    world.store.operations.clear()
    work(world, branch)
    found = Counter(each.kind for each in world.store.operations)
    found["changes"] = sum(each.changes for each in world.store.operations)
    found["all"] = len(world.store.operations)
    found["tokens"] = sum(each.partition.startswith(b"stg-") and not each.changes for each in world.store.operations)
    assert {name: found[name] for name in most if found[name] > most[name]} == {}, found


def test_compaction_of_any_branch_reads_its_entries_about_once() -> None:
    world = World()
    branch = world.branch({"a": "1"})
    for start in range(0, 40_000, 1000):
        branch.put_many({b"%06d" % number: b"1" for number in range(start, start + 1000)})

    def reads(work: Callable[[], object]) -> int:
        world.store.operations.clear()
        work()
        return sum(each.partition.startswith(b"stg-") and not each.changes for each in world.store.operations)

    once = reads(world.repo.view)
    assert 10 < once < reads(lambda: world.repo.compact(policy=NOW)) < 1.5 * once


class Large(AlwaysPolicy):
    """A host's own policy over the window of another."""

    def choose(self, view: StagingView, now: float) -> StagingChoice:
        """See `Policy.choose`."""
        return StagingChoice(f"{view.puts} values", is_empty=view.puts < 11_000)


def test_a_policy_of_a_host_sees_all_entries() -> None:
    world = World()
    branch = world.branch({"a": "1"})
    for start in range(0, 12_000, 1000):
        branch.put_many({b"%06d" % number: b"1" for number in range(start, start + 1000)})
    assert not world.repo.compact(policy=Large()).is_empty
