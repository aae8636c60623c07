# SPDX-License-Identifier: Apache-2.0
"""The branch protocol against others: conflicts, rotations, writes without an answer, marks that fail."""

from __future__ import annotations

from collections.abc import Callable

import attrs
import pytest

from compactlib.clock import ManualClock
from compactlib.errors import Closed, CompactlibError, CorruptData
from compactlib.kv import EXISTS, MemoryStore, OutcomeUnknown, SlowDown
from compactlib.outcome import Done
from compactlib.runtime import RecordingObserver
from compactlib.staging import Branch, Repository, StagingOptions
from compactlib.staging.errors import BranchExists, TooManySealed, TooManyTries
from compactlib.staging.record import MAX_SEALED_TOKENS
from tests.harness.faulty_store import FaultyStore, KVFault, KVOperation
from tests.staging.repository.test_defects import interrupted
from tests.staging.world import World, contents, diff, head_contents, missing, record


def rotations(world: World, count: int) -> Branch:
    """The branch main, whose staging token is replaced after each of the first `count` writes of an entry."""
    left = [None] * count

    def choose(operation: KVOperation) -> None:
        if left and operation.partition.startswith(b"stg-") and operation.changes:
            left.pop()
            world.context.branches.update("main", lambda found: found.sealed_with(world.context.tokens.issue("main")))

    return World(FaultyStore(world.store, choose), world.objects, seed=77,
                 options=StagingOptions(max_write_tries=3)).repo.branch("main")


def test_a_writer_that_meets_two_rotations_is_acknowledged_at_the_third_try() -> None:
    world = World()
    main = world.branch({})
    rotations(world, 2).put(b"k", b"v")
    assert main.get(b"k") == record("v")
    assert main.record().sealed_tokens[0] != main.record().staging_token


@pytest.mark.parametrize("write", [
    lambda branch: branch.put(b"k", b"v"), lambda branch: branch.delete(b"old"),
    lambda branch: branch.reset_key(b"dirty"),
], ids=["put", "delete", "reset_key"])
def test_a_writer_that_meets_three_rotations_gives_up(write: Callable[[Branch], object]) -> None:
    world = World()
    world.branch({"old": "1"}, staged={"dirty": "1"})
    with pytest.raises(TooManyTries) as caught:
        write(rotations(world, 3))
    assert (caught.value.branch, caught.value.tries) == ("main", 3)


def test_waits_grow_and_are_on_the_given_clock() -> None:
    world = World()
    world.branch({})

    def conflict(operation: KVOperation) -> KVFault | None:
        return KVFault.CONFLICT if operation.name == "set_if" else None

    clock = ManualClock(0.0)
    repo = Repository(FaultyStore(world.store, conflict), world.committed, clock=clock,
                       options=StagingOptions(max_update_tries=5, first_backoff_seconds=1, max_backoff_seconds=4))
    with pytest.raises(TooManyTries):
        repo.branch("main").commit("x", allow_empty=True)
    assert 0.5 * (1 + 2 + 4 + 4) <= clock.now() <= 1 + 2 + 4 + 4


@pytest.mark.parametrize("fault", [KVFault.UNKNOWN_DONE, KVFault.UNKNOWN_LOST, KVFault.UNKNOWN_LATE,
                                   KVFault.SLOW_DOWN, KVFault.CONFLICT])
@pytest.mark.parametrize("operation", [
    "commit", "reset", "reset_prefix", "merge", "hard_reset", "put_if", "create", "delete_branch",
])
def test_a_record_write_in_doubt_is_found_out(operation: str, fault: KVFault) -> None:
    """At each compare-and-set in turn: the operation ends as if nothing had been, or names what is not known."""
    expected: dict[str, dict[str, str]] = {
        "commit": {"a": "1", "b": "2"}, "reset": {"a": "1"}, "reset_prefix": {"a": "1"}, "merge": {"a": "1", "m": "1"},
        "hard_reset": {"m": "1"}, "put_if": {"a": "1", "b": "2", "k": "v"},
    }
    number = 0
    while True:
        number += 1
        world = World()
        main = world.branch({"a": "1"}, staged={} if operation == "merge" else {"b": "2"})
        world.branch({"m": "1"}, name="source")
        met: list[KVOperation] = []

        def choose(one: KVOperation, met: list[KVOperation] = met, number: int = number) -> KVFault | None:
            if one.conditional:
                met.append(one)
                return fault if len(met) == number else None
            return None

        store = FaultyStore(world.store, choose)
        other = World(store, world.objects, seed=77)
        branch = other.repo.branch("main")
        calls: dict[str, Callable[[], object]] = {
            "commit": lambda branch=branch: branch.commit("b"), "reset": branch.reset,  # type: ignore[misc]
            "reset_prefix": lambda branch=branch: branch.reset_prefix(b"b"),  # type: ignore[misc]
            "merge": lambda branch=branch: branch.merge("source"),  # type: ignore[misc]
            "hard_reset": lambda branch=branch: branch.hard_reset("source", discard=True),  # type: ignore[misc]
            "put_if": lambda branch=branch: branch.put_if(b"k", b"v", None),  # type: ignore[misc]
            "create": lambda other=other: other.repo.create_branch("new", "main"),  # type: ignore[misc]
            "delete_branch": lambda other=other: other.repo.delete_branch("source"),  # type: ignore[misc]
        }
        try:
            outcome = calls[operation]()
        except (OutcomeUnknown, SlowDown, BranchExists):
            # Making a branch is tried once: refused is refused, and late cannot be told from lost.
            assert operation == "create"
        else:
            store.settle()
            assert isinstance(outcome, Done) or operation in ("put_if", "create", "delete_branch")
            if operation in expected:
                assert contents(main) == expected[operation]
            if operation == "commit":
                assert len(list(main.log())) == 2
            if operation == "create":
                assert contents(world.repo.branch("new")) == {"a": "1"}
            if operation == "delete_branch":
                assert [one.name for one in world.repo.branches()] == ["main"]
        world.repo.audit()
        if len(met) < number:
            break
    assert number > 1


def test_a_commit_in_doubt_that_others_went_on_from_is_known_again() -> None:
    """It happened, nobody said so, and before anybody asked there was another commit on top."""
    world = World()
    main = world.branch({}, staged={"a": "1"})
    met: list[None] = []

    def choose(operation: KVOperation) -> KVFault | None:
        if operation.key == b"branches/main" and operation.name == "set_if":
            met.append(None)
            return KVFault.UNKNOWN_DONE if len(met) == 2 else None
        if len(met) == 2 and operation.key == b"branches/main":
            met.append(None)
            main.put(b"b", b"2")
            main.commit("on top")
            main.put(b"c", b"3")
            world.context.branches.update("main", lambda found: found.sealed_with(world.context.tokens.issue("main")))
        return None

    outcome = World(FaultyStore(world.store, choose), world.objects, seed=77).repo.branch("main").commit("mine")
    assert [commit.message for _, commit in main.log()] == ["on top", "mine", "made by hand"]
    assert isinstance(outcome, Done)
    assert outcome.stats.commit_id == list(main.log())[1][0]
    assert diff(main) == ["c added ->3"]


def test_a_reset_in_doubt_that_happened_drops_its_tokens() -> None:
    world = World()
    main = world.branch({}, staged={"a": "1"})
    token = main.record().staging_token
    store = FaultyStore(world.store, lambda operation: (
        KVFault.UNKNOWN_DONE if operation.name == "set_if" and operation.number < 10 else None))
    outcome = World(store, world.objects, seed=77).repo.branch("main").reset()
    assert isinstance(outcome, Done)
    assert outcome.stats.tokens_dropped == 1
    assert [mark.token for mark in world.context.tokens.dropped()] == [token]


@pytest.mark.parametrize("use", [
    lambda branch: branch.get(b"k"), lambda branch: branch.get_many([b"k"]), lambda branch: branch.list(),
    lambda branch: branch.delete(b"k"), lambda branch: branch.put_if(b"k", b"9", EXISTS),
    lambda branch: branch.reset_key(b"k"), lambda branch: list(branch.differences()),
    lambda branch: branch.commit("x"), lambda branch: branch.reset_prefix(b"k"),
], ids=["get", "get_many", "list", "delete", "put_if", "reset_key", "diff", "commit", "reset_prefix"])
@pytest.mark.parametrize("transact", [100, 0])
def test_a_metarange_that_the_branch_let_go_of_meanwhile_is_not_missed(use: Callable[[Branch], object],
                                                                       transact: int) -> None:
    """It was superseded and collected after the branch was looked at: look again, and only then call it missing."""
    world = World(MemoryStore(limits=attrs.evolve(MemoryStore().limits, max_transact=transact)))
    main = world.branch({"a": "1"}, compacted={"a": "1", "k": "2"}, staged={"b": "1"})
    old = main.record().compacted_metarange_id

    def superseded_and_collected() -> None:
        main.put(b"c", b"3")
        world.compact()
        assert main.record().compacted_metarange_id != old
        world.objects.delete(f"metaranges/{old}")

    use(interrupted(world, lambda operation: operation.partition.startswith(b"stg-"), superseded_and_collected))
    world.repo.audit()


def test_a_put_in_doubt_is_not_repeated() -> None:
    """The first try may come late, and would then overwrite what others put meanwhile."""
    world = World()
    main = world.branch({})

    def choose(operation: KVOperation) -> KVFault | None:
        return KVFault.UNKNOWN_LOST if operation.name == "set" else None

    with pytest.raises(OutcomeUnknown):
        World(FaultyStore(world.store, choose), world.objects, seed=7).repo.branch("main").put(b"k", b"v")
    assert missing(main, b"k")


@pytest.mark.parametrize("error", [None, Closed("the store was closed"), CorruptData(
    path="the store", offset=0, expected="a page", found="another")])
def test_marks_that_cannot_be_written_do_not_undo_what_happened(error: CompactlibError | None) -> None:
    world = World()
    main = world.branch({}, staged={"a": "1"})

    def choose(operation: KVOperation) -> KVFault | None:
        if operation.key.startswith(b"dropped/") and error is not None:
            raise error
        return KVFault.FAIL if operation.key.startswith(b"dropped/") else None

    observer = RecordingObserver()
    repo = Repository(FaultyStore(world.store, choose), world.committed, clock=world.clock, observer=observer)
    assert isinstance(repo.branch("main").commit("a"), Done)
    assert head_contents(main) == {"a": "1"}
    assert [name for name, _ in observer.events] == ["staging_tokens_not_marked"]


def test_an_aba_of_values_is_none_because_versions_grow() -> None:
    world = World(MemoryStore(predicates="value"))
    main = world.branch({})
    found = world.context.branches.read("main")
    world.context.branches.update("main", lambda record: attrs.evolve(record, compaction_started_at=1.0))
    world.context.branches.update("main", lambda record: attrs.evolve(record, compaction_started_at=None))
    assert attrs.evolve(main.record(), version=1) == found.record
    with pytest.raises(Exception, match="not in the state"):
        world.context.branches.try_update(found, found.record)


def test_sealed_tokens_have_a_limit_and_a_way_out() -> None:
    world = World()
    main = world.branch({"a": "1"}, staged={"b": "2"}, sealed=[{}] * MAX_SEALED_TOKENS)
    for call in (lambda: main.commit("b"), lambda: main.reset_prefix(b"b")):
        with pytest.raises(TooManySealed) as caught:
            call()
        assert caught.value.sealed == MAX_SEALED_TOKENS
    assert main.get(b"b") == record("2")
    main.reset()
    assert (main.record().sealed_tokens, contents(main)) == ((), {"a": "1"})
