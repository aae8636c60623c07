# SPDX-License-Identifier: Apache-2.0
"""What other systems of this design once got wrong, one regression test each, or more.

Two more are promises of key-value stores, which `KVStoreConformance` has. One is the sensor's.
"""

from __future__ import annotations

from collections.abc import Callable

import attrs
import pytest

from compactlib.errors import StorageError
from compactlib.kv import MemoryStore, StoreFailed
from compactlib.outcome import Done
from compactlib.staging import Branch, DirtyBranch, PreconditionFailed, Record, RecordNotFound
from compactlib.staging.cleanup import TokenCleaner
from compactlib.staging.results import NoChanges
from tests.harness.faulty_store import FaultyStore, KVFault, KVOperation
from tests.staging.world import World, contents, diff, head_contents, missing, record, sigma


def interrupted(world: World, when: Callable[[KVOperation], bool], action: Callable[[], object]) -> Branch:
    """The branch main as another process sees it, during whose first operation of this kind `action` happens."""
    pending = [action]

    def choose(operation: KVOperation) -> None:
        if pending and when(operation):
            pending.pop()()

    other = World(FaultyStore(world.store, choose), world.objects, seed=77)
    return other.repo.branch("main")


def cleaned(world: World) -> None:
    TokenCleaner(world.context, grace_seconds=0).run()


def writes_entry(operation: KVOperation) -> bool:
    return operation.partition.startswith(b"stg-") and operation.changes


def reads_entry(operation: KVOperation) -> bool:
    return operation.partition.startswith(b"stg-") and not operation.changes


def test_what_restores_head_over_a_compaction_is_no_difference() -> None:
    main = World().branch({"a": "1", "same": "s"}, compacted={"a": "2", "b": "3", "same": "s"},
                          staged={"a": "1", "b": None})
    assert diff(main) == []
    assert not main.is_dirty()


def test_what_is_staged_decides_alone() -> None:
    main = World().branch({"a": "1", "r": "1"}, compacted={"a": "2", "b": "3"}, staged={"a": "3", "r": "2"})
    assert diff(main) == ["a changed 1->3", "b added ->3", "r changed 1->2"]


def test_a_key_that_a_compaction_deleted_can_be_reset() -> None:
    _, main = sigma()
    assert isinstance(main.reset_key(b"a"), Done)
    assert main.get(b"a") == record("1")
    assert diff(main) == ["c added ->3"]


def test_a_prefix_under_which_a_compaction_deleted_can_be_reset() -> None:
    main = World().branch({"p/a": "1", "q/a": "1"}, compacted={"p/b": "2"}, staged={"p/c": "3", "q/c": "4"})
    outcome = main.reset_prefix(b"p/")
    assert isinstance(outcome, Done)
    assert (outcome.stats.records_restored, outcome.stats.tombstones) == (1, 2)
    assert contents(main) == {"p/a": "1", "q/c": "4"}
    assert diff(main) == ["q/a removed 1->", "q/c added ->4"]


def test_a_reset_of_a_prefix_that_loses_has_destroyed_nothing() -> None:
    """Every try loses; all uncommitted values of the prefix are there as before."""
    world = World()
    main = world.branch({"p/a": "1"}, staged={"p/b": "2"}, sealed=[{"p/a": None}])
    before = (main.record(), contents(main), list(world.context.tokens.scan(main.record().staging_token)))

    def conflict(operation: KVOperation) -> KVFault | None:
        return KVFault.CONFLICT if operation.name == "set_if" else None

    other = World(FaultyStore(world.store, conflict), world.objects, seed=77)
    with pytest.raises(Exception, match="10 times in a row"):
        other.repo.branch("main").reset_prefix(b"p/")
    assert (main.record(), contents(main), list(world.context.tokens.scan(main.record().staging_token))) == before
    assert isinstance(main.reset_prefix(b"p/"), Done)
    assert contents(main) == {"p/a": "1"}


@pytest.mark.parametrize("leave", [
    lambda main: main.commit("over the compaction"), lambda main: main.reset(),
    lambda main: main.hard_reset("main", discard=True),
], ids=["commit", "reset", "hard reset"])
def test_whatever_settles_a_branch_clears_the_compaction(leave: Callable[[Branch], object]) -> None:
    world, main = sigma()
    leave(main)
    assert main.record().compacted_metarange_id is None
    assert contents(main) == head_contents(main)
    world.repo.audit()


@pytest.mark.parametrize("late", ["x", "foo"])
def test_a_merge_sees_what_was_put_and_compacted_between_its_steps(late: str) -> None:
    """Then the branch is dirty: neither may the put vanish, nor the merge be invisible (check 12)."""
    world = World()
    main = world.branch({})
    world.branch({"foo": "1"}, name="source")
    seals: list[None] = []

    def second_step(operation: KVOperation) -> bool:
        if operation.name == "set_if" and operation.key == b"branches/main":
            seals.append(None)
        return len(seals) == 1 and operation.name == "get" and operation.key == b"branches/main"

    def put_and_compact() -> None:
        main.put(late.encode(), b"9")
        world.compact()

    with pytest.raises(DirtyBranch):
        interrupted(world, second_step, put_and_compact).merge("source")
    assert contents(main) == {late: "9"}
    main.commit("late")
    main.merge("source", strategy="destination_wins")
    assert contents(main) == {"foo": "1"} | {late: "9"}


def test_an_error_while_reading_is_never_no_changes() -> None:
    """At every read of a merge into a dirty branch: it ends in that error or in `DirtyBranch`, and HEAD stays."""
    number = failed = 0
    while True:
        number += 1
        world = World()
        main = world.branch({"a": "1"}, staged={"z": None}, sealed=[{"y": "2"}], compacted={"a": "1"})
        world.branch({"m": "1"}, name="source")
        head = main.record().commit_id
        met: list[KVOperation] = []

        def choose(operation: KVOperation, number: int = number, met: list[KVOperation] = met) -> KVFault | None:
            if operation.number == number and not operation.changes:
                met.append(operation)
                return KVFault.FAIL
            return None

        other = World(FaultyStore(world.store, choose), world.objects, seed=77)
        with pytest.raises((DirtyBranch, StoreFailed)) as caught:
            other.repo.branch("main").merge("source")
        assert main.record().commit_id == head
        assert contents(main) == {"a": "1", "y": "2"}
        if not met:
            assert isinstance(caught.value, DirtyBranch)
            break
        assert isinstance(caught.value, StorageError)
        failed += 1
    assert failed >= 5


@pytest.mark.parametrize("cleanup", [False, True])
@pytest.mark.parametrize("settle", ["commit", "compact"])
def test_a_delete_that_comes_too_late_for_a_commit_is_made_again(settle: str, *, cleanup: bool) -> None:
    """First form: the tombstone goes into a token that was scanned already. The token itself then shows it."""
    world = World()
    main = world.branch({}, staged={"k": "v"})

    def settled() -> None:
        main.commit("meanwhile") if settle == "commit" else world.compact()
        if cleanup:
            cleaned(world)

    interrupted(world, writes_entry, settled).delete(b"k")
    assert missing(main, b"k")
    main.commit("after")
    assert "k" not in head_contents(main)


@pytest.mark.parametrize("settle", ["commit", "compact"])
def test_nothing_found_through_an_old_record_is_no_answer(settle: str) -> None:
    """Second form: the sealed token is committed and cleaned up before the delete looks into it."""
    world = World()
    main = world.branch({}, sealed=[{"k": "v"}])

    def settled() -> None:
        main.commit("meanwhile") if settle == "commit" else world.compact()
        cleaned(world)

    interrupted(world, reads_entry, settled).delete(b"k")
    assert missing(main, b"k")


@pytest.mark.parametrize("settle", ["commit", "compact"])
@pytest.mark.parametrize("way", ["get", "get_many", "list", "diff"])
def test_a_read_through_an_old_record_is_read_again(settle: str, way: str) -> None:
    """The reader has the record; what it points to is committed, or compacted, and cleaned up."""
    world = World()
    main = world.branch({"k": "1"}, staged={"k": "2"})

    def settled() -> None:
        main.commit("meanwhile") if settle == "commit" else world.compact()
        cleaned(world)

    reader = interrupted(world, reads_entry, settled)
    ways: dict[str, Callable[[], object]] = {
        "get": lambda: reader.get(b"k").data,
        "get_many": lambda: reader.get_many([b"k"])[b"k"].data,
        "list": lambda: contents(reader)["k"].encode(),
        "diff": lambda: diff(reader),
    }
    found = ways[way]()
    expected_diff = [] if settle == "commit" else ["k changed 1->2"]
    assert found == (expected_diff if way == "diff" else b"2")


def test_a_page_behind_the_first_is_read_again_too() -> None:
    world = World()
    main = world.branch({}, staged={"a": "1", "b": "2", "c": "3"})
    first = main.list(limit=1)

    def settled() -> None:
        main.commit("meanwhile")
        cleaned(world)

    reader = interrupted(world, reads_entry, settled)
    assert reader.list(after=first.next_after, limit=10).keys == (b"b", b"c")


def test_conflicting_merges_and_empty_commits_do_not_pile_up_tokens() -> None:
    world = World()
    main = world.branch({"a": "1"})
    world.branch({"a": "2"}, name="source")
    for _ in range(5):
        with pytest.raises(Exception, match="changed"):
            main.merge("source")
        assert isinstance(main.commit("nothing"), NoChanges)
    assert main.record().sealed_tokens == ()


def stores() -> list[Callable[[], MemoryStore]]:
    """A store with `transact`, and one without: conditional writes go other ways."""
    limits = attrs.evolve(MemoryStore().limits, max_transact=0)
    return [MemoryStore, lambda: MemoryStore(limits=limits)]


@pytest.mark.parametrize("store", stores(), ids=["transact", "no transact"])
@pytest.mark.parametrize("settle", ["seal", "compact", "commit"])
@pytest.mark.parametrize("moment", ["before the write", "after the write"])
def test_a_conditional_put_does_not_stumble_over_itself(store: Callable[[], MemoryStore], settle: str,
                                                            moment: str) -> None:
    world = World(store())
    main = world.branch({"other": "1"})
    written: list[None] = []

    def settled() -> None:
        if settle == "commit":
            main.commit("meanwhile")
        elif settle == "compact":
            world.compact()
        else:
            world.context.branches.update("main", lambda found: found.sealed_with(world.context.tokens.issue("main")))

    def when(operation: KVOperation) -> bool:
        is_write = operation.name in ("set_if", "transact") and operation.key in (b"k", b"branches/main")
        if moment == "before the write":
            return is_write
        # The first operation behind the write is the second look at the branch; there is none after a transact.
        due = bool(written)
        if is_write:
            written.append(None)
        return due

    interrupted(world, when, settled).put_if(b"k", b"v", None)
    assert main.get(b"k") == Record.of(b"v")
    with pytest.raises(PreconditionFailed):
        main.put_if(b"k", b"w", None)


@pytest.mark.parametrize("store", stores(), ids=["transact", "no transact"])
def test_somebody_else_s_value_is_no_success(store: Callable[[], MemoryStore]) -> None:
    world = World(store())
    main = world.branch({})

    def when(operation: KVOperation) -> bool:
        return operation.name in ("set_if", "transact")

    with pytest.raises(PreconditionFailed):
        interrupted(world, when, lambda: main.put(b"k", b"theirs")).put_if(b"k", b"mine", None)
    assert main.get(b"k") == record("theirs")
    with pytest.raises(RecordNotFound):
        main.get(b"never")
