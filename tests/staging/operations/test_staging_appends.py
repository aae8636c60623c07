# SPDX-License-Identifier: Apache-2.0
"""What is added to a key is there as often as it was told: answers are lost while others write, commit and compact."""

from __future__ import annotations

from collections.abc import Callable

import attrs
import pytest

from compactlib.clock import ManualClock
from compactlib.kv import MemoryStore, OutcomeUnknown
from compactlib.objects import MemoryObjects
from compactlib.outcome import Done
from compactlib.staging import Branch, CommittedRanges, Record, Repository
from compactlib.staging.operations.results import NoChanges
from tests.harness.effort import Effort
from tests.harness.faulty_store import FaultyStore, KVFault, KVOperation
from tests.staging.append_world import AppendWorld

_LIMITS = MemoryStore().limits
STORES: dict[str, Callable[[], MemoryStore]] = {
    "transact": lambda: MemoryStore(page_size=3),
    "no transact": lambda: MemoryStore(limits=attrs.evolve(_LIMITS, max_transact=0), predicates="value"),
}


@pytest.mark.parametrize("kind", STORES)
def test_each_addition_is_there_as_often_as_it_was_told(kind: str, effort: Effort) -> None:
    for seed in range(effort(60, 5_000)):
        world = AppendWorld(seed, STORES[kind])
        try:
            world.live(25)
        except BaseException as wrong:
            wrong.add_note(f"seed {seed}: {world.story[-10:]}")
            raise


def counted(record: Record | None) -> bytes:
    return b"%d" % (1 + int(b"0" if record is None else record.data))


def two_repositories(choose: Callable[[Repository, KVOperation], KVFault | None]) -> tuple[Repository, Repository]:
    """One whose requests meet what is chosen, and another one over the same stores; with a branch."""
    store, objects = MemoryStore(), MemoryObjects()
    other = Repository(store, CommittedRanges(objects), clock=ManualClock(1000.0))
    other.create_branch("main")
    faulty = FaultyStore(store, lambda operation: choose(other, operation))
    return Repository(faulty, CommittedRanges(objects), clock=ManualClock(1000.0)), other


def test_an_update_that_others_have_built_upon_is_not_made_twice() -> None:
    """It was made, its answer was lost, and another writer was there before the look: the look cannot see it any more.
    """
    updates = 0

    def choose(other: Repository, operation: KVOperation) -> KVFault | None:
        nonlocal updates
        if operation.name == "transact":
            updates += 1
            return KVFault.UNKNOWN_DONE
        if updates == 1:
            updates += 1
            other.branch("main").update(b"k", counted)
        return None

    repo, other = two_repositories(choose)
    with pytest.raises(OutcomeUnknown):
        repo.branch("main").update(b"k", counted)
    assert other.branch("main").get(b"k").data == b"2"


CALLS: dict[str, Callable[[Branch], object]] = {
    "put": lambda branch: branch.put(b"k", b"new"),
    "delete": lambda branch: branch.delete(b"k"),
    "reset_key": lambda branch: branch.reset_key(b"k"),
}


@pytest.mark.parametrize("fault", [KVFault.FAIL, KVFault.SLOW_DOWN])
@pytest.mark.parametrize("call", CALLS)
def test_what_a_replaced_token_has_taken_is_not_told_as_refused(call: str, fault: KVFault) -> None:
    """It is in a token that was sealed meanwhile, and visible; and then the store takes no more."""
    writes = 0

    def choose(other: Repository, operation: KVOperation) -> KVFault | None:
        nonlocal writes
        writes += operation.changes
        if operation.changes and writes == 1:
            other.context.branches.update("main", lambda record: record.sealed_with(other.context.tokens.issue("main")))
        return fault if operation.changes and writes > 1 else None

    repo, other = two_repositories(choose)
    other.branch("main").put(b"k", b"old")
    with pytest.raises(OutcomeUnknown):
        CALLS[call](repo.branch("main"))
    seen = [entry.record.data for entry in other.branch("main").list().entries if entry.record]
    assert seen == ([b"new"] if call == "put" else [])


MOVES: dict[str, tuple[int, Callable[[Branch, str], object]]] = {
    "reset": (1, lambda branch, first: branch.reset()),
    "reset_prefix": (1, lambda branch, first: branch.reset_prefix(b"k")),
    "hard_reset": (2, lambda branch, first: branch.hard_reset(first)),
    "hard_reset that discards": (1, lambda branch, first: branch.hard_reset(first, discard=True)),
}


@pytest.mark.parametrize("name", MOVES)
def test_what_others_have_done_after_a_reset_is_not_reset_again(name: str) -> None:
    """It was made, its answer was lost, and others went on from there before the look."""
    decisive, move = MOVES[name]
    swaps = 0

    def choose(other: Repository, operation: KVOperation) -> KVFault | None:
        nonlocal swaps
        if operation.name == "set_if":
            swaps += 1
            return KVFault.UNKNOWN_DONE if swaps == decisive else None
        if swaps == decisive:
            swaps += 1
            other.branch("main").put(b"k1", b"committed")
            other.branch("main").commit("another's")
            other.branch("main").put(b"k2", b"staged")
        return None

    repo, other = two_repositories(choose)
    main = other.branch("main")
    main.commit("first", allow_empty=True)
    first = main.record().commit_id
    main.commit("second", allow_empty=True)
    if name != "hard_reset":
        main.put(b"k0", b"uncommitted")
    with pytest.raises(OutcomeUnknown):
        move(repo.branch("main"), str(first))
    assert main.list().keys == (b"k1", b"k2")


@pytest.mark.parametrize("how", ["built upon", "faster"])
def test_a_merge_is_told_its_own_commit_and_no_others(how: str) -> None:
    """Another's commit was told as its own: the one made on top of it before it was seen, or a merge that was faster.
    """
    writes = 0
    theirs: list[object] = []

    def choose(other: Repository, operation: KVOperation) -> KVFault | None:
        nonlocal writes
        if operation.name == "set_if" and operation.key.endswith(b"main"):
            writes += 1
            if writes == 2 and how == "built upon":
                return KVFault.UNKNOWN_DONE
            if writes == 2:
                theirs.append(other.branch("main").merge("dev", "theirs"))
        elif writes == 2 and not theirs:
            other.branch("main").put(b"z", b"9")
            theirs.append(other.branch("main").commit("theirs"))
        return None

    mine, other = two_repositories(choose)
    other.branch("main").put(b"a", b"1")
    other.branch("main").commit("base")
    other.create_branch("dev", "main").put(b"b", b"2")
    other.branch("dev").commit("dev")
    outcome = mine.branch("main").merge("dev", "mine")
    assert len(theirs) == 1
    if how == "faster":
        assert isinstance(outcome, NoChanges)
        return
    assert isinstance(outcome, Done)
    assert mine.commit(outcome.stats.commit_id).message == "mine"
    assert (outcome.stats.added, outcome.stats.changed, outcome.stats.removed) == (1, 0, 0)
