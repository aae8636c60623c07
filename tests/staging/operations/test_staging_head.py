# SPDX-License-Identifier: Apache-2.0
"""Moves of HEAD and resets, one after the other and against others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from compactlib.outcome import Done, Skipped
from compactlib.staging import Branch, DirtyBranch, MergeConflict
from compactlib.staging.cleanup import TokenCleaner
from compactlib.staging.errors import MetaRangeNotFound
from compactlib.staging.results import CommitStats, NoChanges
from tests.harness.faulty_store import FaultyStore, KVFault, KVOperation
from tests.staging.repository.test_defects import interrupted
from tests.staging.world import World, committed, contents, diff, head_contents


def test_a_clean_branch_is_not_called_dirty_because_it_is_being_cleaned_up() -> None:
    """The tombstone over k=v is gone, k=v is not yet: so it looks through an old record while a cleanup runs."""
    world = World()
    main = world.branch({}, sealed=[{"k": None}, {"k": "v"}])
    world.branch({"m": "1"}, name="source")
    newer, _ = main.record().sealed_tokens

    def half_cleaned() -> None:
        main.commit("nothing")
        assert world.context.tokens.remove_some(newer, 1) == 1

    interrupted(world, lambda operation: operation.name == "scan", half_cleaned).merge("source")
    assert contents(main) == {"m": "1"}


@pytest.mark.parametrize("call", [
    lambda branch: branch.reset(), lambda branch: branch.reset_prefix(b"k"), lambda branch: branch.commit("k"),
], ids=["reset", "reset_prefix", "commit"])
def test_nothing_to_do_counts_only_if_the_branch_is_what_it_was(call: Callable[[Branch], object]) -> None:
    """A compaction takes away what is staged, and the cleanup empties the token, between two reads."""
    world = World()
    main = world.branch({"k": "1"}, staged={"k": "2"})

    def compacted_and_cleaned() -> None:
        world.compact()
        TokenCleaner(world.context, grace_seconds=0).run()

    outcome = call(interrupted(world, lambda operation: operation.name == "scan", compacted_and_cleaned))
    assert isinstance(outcome, Done)
    assert diff(main) == []


def test_a_merge_takes_what_the_source_changed_since_they_parted() -> None:
    world = World()
    main = world.branch({"a": "1", "b": "1", "c": "1"})
    dev = world.repo.create_branch("dev", "main")
    dev.put_many({b"a": b"2", b"new": b"2"})
    dev.delete(b"b")
    dev.commit("dev")
    main.put(b"c", b"3")
    main.commit("main")
    stats = committed(main.merge("dev", "both", metadata={"by": "ann"}))
    assert (stats.added, stats.changed, stats.removed) == (1, 1, 1)
    assert contents(main) == {"a": "2", "c": "3", "new": "2"}
    made = world.repo.commit(stats.commit_id)
    assert made.parents[1] == dev.record().commit_id
    assert (made.generation, made.message) == (3, "both")
    assert isinstance(main.merge("dev"), NoChanges)
    assert committed(dev.merge("main")).changed == 1
    assert contents(dev) == contents(main)


@pytest.mark.parametrize(("strategy", "value"), [("source_wins", "2"), ("destination_wins", "3")])
def test_a_merge_with_a_conflict_needs_a_strategy(strategy: Any, value: str) -> None:
    world = World()
    main = world.branch({"a": "1"})
    dev = world.repo.create_branch("dev", "main")
    for branch, data in ((dev, b"2"), (main, b"3")):
        branch.put(b"a", data)
        branch.commit("change")
    with pytest.raises(MergeConflict) as caught:
        main.merge("dev")
    assert caught.value.keys == (b"a",)
    assert contents(main) == {"a": "3"}
    main.merge("dev", strategy=strategy)
    assert contents(main) == {"a": value}


def test_revert_and_cherry_pick() -> None:
    world = World()
    main = world.branch({"a": "1"})
    dev = world.repo.create_branch("dev", "main")
    main.put(b"b", b"2")
    made = committed(main.commit("b")).commit_id
    main.put(b"c", b"3")
    main.commit("c")
    assert committed(main.revert(made)).removed == 1
    assert contents(main) == {"a": "1", "c": "3"}
    assert isinstance(main.revert(made), NoChanges)
    assert committed(dev.cherry_pick(made)).added == 1
    assert contents(dev) == {"a": "1", "b": "2"}


def test_a_hard_reset_without_discard_wants_a_clean_branch_and_keeps_later_writes() -> None:
    world = World()
    main = world.branch({"a": "1"})
    old = main.record().commit_id
    assert old is not None
    main.put(b"b", b"2")
    main.commit("b")
    assert isinstance(main.hard_reset("main"), NoChanges)
    committed(main.hard_reset(old))
    assert contents(main) == {"a": "1"}
    main.put(b"x", b"1")
    with pytest.raises(DirtyBranch):
        main.hard_reset(old)
    assert contents(main) == {"a": "1", "x": "1"}


def test_a_hard_reset_that_discards_says_so_also_where_head_stays() -> None:
    world = World()
    main = world.branch({"a": "1"})
    head = main.record().commit_id
    assert head is not None
    before = main.record()
    assert isinstance(main.hard_reset(head, discard=True), NoChanges)
    assert main.record() == before
    main.put(b"b", b"2")
    outcome = main.hard_reset(head, discard=True)
    assert isinstance(outcome, Done)
    assert outcome.stats == CommitStats(commit_id=head)
    assert contents(main) == {"a": "1"}


def test_nothing_begins_at_a_commit_whose_records_were_collected() -> None:
    world = World()
    main = world.branch({"a": "1"})
    gone = world.make_commit({"lost": "1"})
    world.objects.delete(f"metaranges/{world.metarange({'lost': '1'})}")
    other = World(world.store, world.objects, seed=5).repo
    for call in (lambda: other.branch("main").hard_reset(gone), lambda: other.create_branch("new", gone),
                 lambda: other.branch("main").hard_reset(gone, discard=True)):
        with pytest.raises(MetaRangeNotFound):
            call()
    assert contents(main) == {"a": "1"}
    assert [branch.name for branch in world.repo.branches()] == ["main"]


def test_a_hard_reset_to_an_ancestor_that_meets_a_conflict_happens_all_the_same() -> None:
    """The old HEAD contains the target; that must not pass for "it has happened already"."""
    world = World()
    main = world.branch({"a": "1"})
    old = main.record().commit_id
    assert old is not None
    main.put(b"b", b"2")
    main.commit("b")
    met: list[None] = []

    def choose(operation: KVOperation) -> KVFault | None:
        if operation.name == "set_if":
            met.append(None)
            return KVFault.CONFLICT if len(met) == 2 else None
        return None

    World(FaultyStore(world.store, choose), world.objects, seed=7).repo.branch("main").hard_reset(old)
    assert (contents(main), main.record().commit_id) == ({"a": "1"}, old)


def test_a_second_reset_does_nothing() -> None:
    world = World()
    main = world.branch({"a": "1"}, staged={"a": "2"}, sealed=[{"b": "3"}])
    assert isinstance(main.reset(), Done)
    version = main.record().version
    assert isinstance(main.reset(), Skipped)
    assert isinstance(main.reset_prefix(b""), Skipped)
    assert isinstance(main.reset_prefix(b"a"), Skipped)
    assert isinstance(main.reset_key(b"a"), Skipped)
    assert (contents(main), main.record().version) == ({"a": "1"}, version)


def test_a_reset_key_during_which_head_moves_is_made_again() -> None:
    """Sealed k=new is committed between the look at HEAD and the write of HEAD's old value: HEAD's new one counts."""
    world = World()
    main = world.branch({"k": "old"}, sealed=[{"k": "new"}])
    interrupted(world, lambda operation: operation.name == "set" and operation.key == b"k",
                lambda: main.commit("new")).reset_key(b"k")
    assert contents(main) == head_contents(main) == {"k": "new"}


def test_reset_key_over_what_a_compaction_has_taken_is_not_lost() -> None:
    """Check 10: the reset lands in a token that a compaction has already scanned."""
    world = World()
    main = world.branch({"k": "old"}, staged={"k": "new"})
    interrupted(world, lambda operation: operation.name == "set" and operation.key == b"k",
                world.compact).reset_key(b"k")
    assert (contents(main), diff(main)) == ({"k": "old"}, [])
