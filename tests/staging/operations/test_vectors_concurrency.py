# SPDX-License-Identifier: Apache-2.0
"""Races between operations on a branch, each told as one schedule of real code.

The schedules that no story needs are run too: `test_interleavings.py` runs every one of every pair.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import attrs
import pytest

from compactlib.clock import ManualClock
from compactlib.kv import KVStore, MemoryStore, StoreFailed
from compactlib.objects import MemoryObjects
from compactlib.outcome import Done, Skipped
from compactlib.staging import Branch, BranchNotFound, CommittedRanges, DirtyBranch, Repository, StagingOptions
from compactlib.staging.cleanup import TokenCleaner
from compactlib.staging.compaction.outcome import LostRace
from compactlib.staging.errors import TooManyTries
from compactlib.staging.names import token_partition
from compactlib.staging.results import AlreadyCommitted, NoChanges
from tests.harness.faulty_store import FaultyStore, KVFault, KVOperation
from tests.staging.branch_oracle import check
from tests.staging.branch_world import actors_of, world_of
from tests.staging.world import NOW
from tests.tools.interleave.explore import sample_schedules

Rule = Callable[[KVOperation], bool]


class Pauses:
    """Lets something happen at chosen requests of one process: just before, or just after them."""

    def __init__(self) -> None:
        self.rules: list[tuple[Rule, Callable[[], object]]] = []

    def before(self, rule: Rule, act: Callable[[], object]) -> None:
        self.rules.append((rule, act))

    def choose(self, operation: KVOperation) -> KVFault | None:
        for place, (rule, act) in enumerate(self.rules):
            if rule(operation):
                del self.rules[place]
                act()
                break
        return None


class Process:
    """One process: its own repo over the stores that all share, which can be paused at its requests."""

    def __init__(self, store: KVStore, objects: MemoryObjects, clock: ManualClock, seed: int,
                 options: StagingOptions | None = None) -> None:
        self.pauses = Pauses()
        self.store = FaultyStore(store, self.pauses.choose)
        self.repo = Repository(self.store, CommittedRanges(objects, clock=clock), clock=clock, rng=Random(seed),
                                options=options)
        self.cleaner = TokenCleaner(self.repo.context, grace_seconds=0)

    @property
    def main(self) -> Branch:
        return self.repo.branch("main")


class Scene:
    """Processes over one pair of stores, and a branch `main` with HEAD{a=1}."""

    def __init__(self, options: StagingOptions | None = None) -> None:
        self.clock = ManualClock(1_000_000.0)
        self.store, self.objects = MemoryStore(), MemoryObjects(clock=self.clock)
        self.one, self.two = (Process(self.store, self.objects, self.clock, seed, options) for seed in (1, 2))
        self.one.repo.create_branch("main").put(b"a", b"1")
        self.one.main.commit("first")

    def compact_and_clean(self) -> None:
        assert isinstance(self.two.repo.compact(policy=NOW), Done)
        self.two.cleaner.run()

    def commit_and_clean(self) -> None:
        assert isinstance(self.two.main.commit("two"), Done)
        self.two.cleaner.run()


def values(branch: Branch) -> dict[bytes, bytes]:
    return {entry.key: entry.record.data for entry in branch.entries() if entry.record is not None}


def writes_to_token(operation: KVOperation) -> bool:
    return operation.name in ("set", "set_if", "transact") and operation.partition.startswith(b"stg-")


def reads_token(operation: KVOperation) -> bool:
    return not operation.changes and operation.partition.startswith(b"stg-")


def reads_branch(operation: KVOperation) -> bool:
    return operation.name == "get" and operation.key == b"branches/main"


def swaps_branch(operation: KVOperation) -> bool:
    return operation.name == "set_if" and operation.key == b"branches/main"


def nth(rule: Rule, number: int) -> Rule:
    """The n-th request that the rule holds for, from 1."""
    seen: list[KVOperation] = []

    def holds(operation: KVOperation) -> bool:
        if rule(operation):
            seen.append(operation)
        return len(seen) == number and rule(operation)

    return holds


def test_a_write_into_a_token_that_a_commit_has_just_sealed() -> None:
    scene = Scene()
    scene.one.main.put(b"b", b"2")
    scene.one.pauses.before(writes_to_token, scene.commit_and_clean)
    scene.one.main.put(b"k", b"1")
    assert scene.two.main.get(b"k").data == b"1"
    assert scene.two.main.record().sealed_tokens == ()


def test_a_write_into_a_token_that_a_compaction_has_sealed_and_cleaned_up() -> None:
    scene = Scene()
    scene.one.main.put(b"b", b"2")
    sealed = scene.one.main.record().staging_token
    scene.one.pauses.before(writes_to_token, scene.compact_and_clean)
    scene.one.main.put(b"k", b"1")
    assert values(scene.two.main) == {b"a": b"1", b"b": b"2", b"k": b"1"}
    assert sealed not in scene.two.main.record().tokens
    assert [entry.key for entry in scene.store.scan(token_partition(sealed))] == [b"k"]  # referenced by nobody


@pytest.mark.parametrize(("rotations", "acknowledged"), [(3, False), (2, True)])
def test_a_writer_that_meets_one_rotation_after_another(rotations: int, acknowledged: bool) -> None:
    scene = Scene(StagingOptions(max_write_tries=3, first_backoff_seconds=0))

    def rotate() -> None:
        scene.two.main.put(b"b", b"2")
        scene.two.repo.compact(policy=NOW)

    for _ in range(rotations):
        scene.one.pauses.before(writes_to_token, rotate)
    if acknowledged:
        scene.one.main.put(b"k", b"1")
        assert scene.two.main.get(b"k").data == b"1"
    else:
        with pytest.raises(TooManyTries):
            scene.one.main.put(b"k", b"1")


def test_a_branch_that_is_deleted_under_a_write() -> None:
    scene = Scene()
    scene.one.pauses.before(writes_to_token, lambda: scene.two.repo.delete_branch("main"))
    with pytest.raises(BranchNotFound):
        scene.one.main.put(b"k", b"1")


@pytest.mark.parametrize("rewrite", ["compact_and_clean", "commit_and_clean"])
@pytest.mark.parametrize("read", ["get", "list", "diff"])
def test_a_reader_whose_tokens_are_taken_away(rewrite: str, read: str) -> None:
    scene = Scene()
    main = scene.one.main
    main.put(b"k", b"1")
    main.commit("k=1")
    main.put(b"k", b"2")
    # The reader has read the record, and is about to look into the token that holds k=2.
    scene.one.pauses.before(reads_token, getattr(scene, rewrite))
    if read == "get":
        assert main.get(b"k").data == b"2"
    elif read == "list":
        assert values(main)[b"k"] == b"2"
    else:
        found = [(each.key, each.right.data if each.right else None) for each in main.differences()]
        assert found == ([(b"k", b"2")] if rewrite == "compact_and_clean" else [])


def test_the_second_page_of_a_listing() -> None:
    scene = Scene()
    main = scene.one.main
    main.put_many({b"k%d" % number: b"2" for number in range(6)})
    page = main.list(limit=3)
    scene.compact_and_clean()
    rest = main.list(limit=10, after=page.next_after)
    assert page.keys + rest.keys == (b"a", *(b"k%d" % number for number in range(6)))


def test_two_commits_at_once_make_one() -> None:
    scene = Scene()
    scene.one.main.put(b"k", b"1")
    results: list[object] = []

    def other() -> None:
        scene.two.main.put(b"m", b"2")
        results.append(scene.two.main.commit("two"))

    # After the first one's seal, before its compare-and-set.
    scene.one.pauses.before(nth(swaps_branch, 2), other)
    mine = scene.one.main.commit("one")
    assert isinstance(results[0], Done)
    assert isinstance(mine, AlreadyCommitted | NoChanges), mine
    assert len(list(scene.one.main.log())) == 2
    assert dict(scene.one.main.head().records()).keys() == {b"a", b"k", b"m"}


def test_a_commit_during_the_rewrite_of_a_compaction() -> None:
    scene = Scene()
    scene.one.main.put(b"k", b"1")
    scene.one.pauses.before(nth(swaps_branch, 2), scene.commit_and_clean)
    outcome = scene.one.repo.compact(policy=NOW)
    assert isinstance(outcome, LostRace)
    record = scene.one.main.record()
    assert record.compacted_metarange_id is None
    assert values(scene.one.main) == {b"a": b"1", b"k": b"1"}
    assert not scene.one.main.is_dirty()


@pytest.mark.parametrize("at", [1, 2])
def test_a_compaction_during_a_commit(at: int) -> None:
    scene = Scene()
    scene.one.main.put(b"k", b"1")

    def other() -> None:
        scene.two.main.put(b"m", b"2")
        assert isinstance(scene.two.repo.compact(policy=NOW), Done)

    scene.one.pauses.before(nth(swaps_branch, at), other)
    assert isinstance(scene.one.main.commit("one"), Done)
    head = {key: record.data for key, record in scene.one.main.head().records()}
    assert head | {b"m": b"2"} == values(scene.one.main)
    assert head[b"k"] == b"1"
    assert scene.one.main.record().compacted_metarange_id is None


def test_of_two_compactors_one_loses_at_the_seal_or_is_throttled() -> None:
    scene = Scene()
    scene.one.main.put(b"k", b"1")
    # Both have read the same record; the other one is faster with the seal.
    results: list[object] = []
    scene.one.pauses.before(nth(swaps_branch, 1), lambda: results.append(scene.two.repo.compact(policy=NOW)))
    mine = scene.one.repo.compact(policy=NOW)
    assert isinstance(results[0], Done)
    assert isinstance(mine, LostRace)
    assert mine.step == "seal"
    assert scene.one.main.record().sealed_tokens == ()
    # The second starts after the first one's seal, with a clock that says so.
    scene.one.main.put(b"m", b"2")
    results.clear()

    def second() -> None:
        scene.two.main.put(b"n", b"3")
        results.append(scene.two.repo.compact(policy=NOW))

    scene.one.pauses.before(nth(swaps_branch, 2), second)
    assert isinstance(scene.one.repo.compact(policy=NOW), LostRace)
    assert isinstance(results[0], Done)
    assert results[0].stats.sealed_before == 2
    assert values(scene.one.main) == {b"a": b"1", b"k": b"1", b"m": b"2", b"n": b"3"}
    # The second starts after the first has ended: the window.
    scene.one.main.put(b"o", b"4")
    throttled = scene.one.repo.compact()
    assert isinstance(throttled, Skipped)
    assert "window_seconds" in throttled.reason


def test_a_reset_during_the_rewrite_of_a_compaction() -> None:
    scene = Scene()
    scene.one.main.put(b"k", b"1")
    scene.one.pauses.before(nth(swaps_branch, 2), scene.two.main.reset)
    assert isinstance(scene.one.repo.compact(policy=NOW), LostRace)
    assert not list(scene.one.main.differences())
    assert scene.one.main.record().compacted_metarange_id is None


def test_a_reset_and_a_put_and_a_commit() -> None:
    scene = Scene()
    scene.one.main.put(b"k", b"1")
    scene.one.pauses.before(writes_to_token, scene.two.main.reset)
    scene.one.main.put(b"m", b"2")
    assert values(scene.one.main) == {b"a": b"1", b"m": b"2"}
    scene.one.pauses.before(nth(swaps_branch, 2), scene.two.main.reset)
    scene.one.main.commit("late")
    record = scene.one.main.record()
    assert (record.sealed_tokens, record.compacted_metarange_id) == ((), None)
    assert not scene.one.main.is_dirty()


def test_a_reset_of_a_prefix_that_loses_destroys_nothing() -> None:
    scene = Scene()
    scene.one.main.put_many({b"k1": b"1", b"k2": b"2", b"x": b"3"})
    seen: list[dict[bytes, bytes]] = []

    def other() -> None:
        scene.two.main.put(b"k3", b"3")
        scene.two.repo.compact(policy=NOW)
        seen.append(values(scene.two.main))

    scene.one.pauses.before(nth(swaps_branch, 1), other)
    scene.one.main.reset_prefix(b"k")
    assert seen == [{b"a": b"1", b"k1": b"1", b"k2": b"2", b"k3": b"3", b"x": b"3"}]
    assert values(scene.one.main) == {b"a": b"1", b"x": b"3"}


def test_a_merge_during_the_rewrite_of_a_compaction() -> None:
    scene = Scene()
    side = scene.one.repo.create_branch("side", "main")
    side.put(b"m", b"1")
    side.commit("side")
    # What is compacted comes to nothing, so that the merge may go on.
    scene.one.main.put(b"a", b"1")
    scene.one.pauses.before(nth(swaps_branch, 2), lambda: scene.two.main.merge("side", "merged"))
    assert isinstance(scene.one.repo.compact(policy=NOW), LostRace)
    assert values(scene.one.main) == {b"a": b"1", b"m": b"1"}


def test_a_hard_reset_during_the_rewrite_of_a_compaction() -> None:
    scene = Scene()
    first = scene.one.main.record().commit_id
    assert first is not None
    scene.one.main.put(b"a", b"2")
    scene.one.main.commit("second")
    scene.one.main.put(b"k", b"1")

    def move_head_alone() -> None:
        # The worst case: tokens and compaction stay as they are, only HEAD moves.
        scene.two.repo.context.branches.update("main", lambda record: attrs.evolve(record, commit_id=first))

    scene.one.pauses.before(nth(swaps_branch, 2), move_head_alone)
    assert isinstance(scene.one.repo.compact(policy=NOW), LostRace)
    assert values(scene.one.main) == {b"a": b"1", b"k": b"1"}


@pytest.mark.parametrize("recreate", [False, True])
def test_a_branch_deleted_during_the_rewrite_of_a_compaction(recreate: bool) -> None:
    scene = Scene()
    scene.one.repo.create_branch("other", "main")
    scene.one.main.put(b"k", b"1")

    def other() -> None:
        scene.two.repo.delete_branch("main")
        if recreate:
            scene.two.repo.create_branch("main", "other").put(b"z", b"9")

    scene.one.pauses.before(nth(swaps_branch, 2), other)
    assert isinstance(scene.one.repo.compact(policy=NOW), LostRace)
    if recreate:
        assert values(scene.one.main) == {b"a": b"1", b"z": b"9"}
    else:
        with pytest.raises(BranchNotFound):
            scene.one.main.get(b"a")


def test_fifty_commits_that_die_between_their_two_steps() -> None:
    scene = Scene()
    for number in range(50):
        scene.one.main.put(b"k%02d" % number, b"1")
        scene.one.repo.context.branches.update(
            "main", lambda record: record.sealed_with(scene.one.repo.context.tokens.issue("main")))
    expected = {b"a": b"1", **{b"k%02d" % number: b"1" for number in range(50)}}
    assert len(scene.one.main.record().sealed_tokens) == 50
    assert values(scene.two.main) == expected
    scene.compact_and_clean()
    assert scene.one.main.record().sealed_tokens == ()
    assert values(scene.two.main) == expected


def test_an_error_while_looking_for_changes_is_never_no_changes() -> None:
    scene = Scene()
    side = scene.one.repo.create_branch("side", "main")
    side.put(b"m", b"1")
    side.commit("side")
    scene.one.main.put(b"k", b"1")

    def fail() -> None:
        raise StoreFailed(operation="scan", path="planted", detail="planted")

    scene.one.pauses.before(reads_token, fail)
    with pytest.raises(StoreFailed):
        scene.one.main.merge("side", "merged")
    with pytest.raises(DirtyBranch):
        scene.one.main.merge("side", "merged")


def test_writers_commits_and_compactions_at_once() -> None:
    """Eight writers would be eight actors; four, with more to do, meet in as many ways and can be judged exactly."""
    actors = actors_of(["put", "delete", "put2"], ["commit", "compact", "cleanup"], ["compact", "commit", "cleanup"],
                       ["get", "reset_key", "list"])
    sample_schedules(actors, world_of("sealed", actors), check, schedules=100, random=Random(26))


def test_a_deleted_key_stays_deleted_whoever_is_in_between() -> None:
    """The shortcut of a delete that finds nothing to hide must not be taken through an old record."""
    scene = Scene()
    scene.one.main.put(b"k", b"1")
    # The delete has read the branch; the commit seals and reads the token before the tombstone arrives.
    scene.one.pauses.before(writes_to_token, scene.commit_and_clean)
    scene.one.main.delete(b"k")
    assert values(scene.two.main) == {b"a": b"1"}
    assert [each.kind for each in scene.two.main.differences()] == ["removed"]
