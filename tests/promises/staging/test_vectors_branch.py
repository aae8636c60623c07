# SPDX-License-Identifier: Apache-2.0
"""Cases with known answers about branches without a compaction.

They run on every store that this library brings, those of servers on real ones; DynamoDB in the long campaigns
(`test_staging_scenarios.py` has a story on it).
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from compactlib.errors import InvalidInput
from compactlib.kv import OutcomeUnknown
from compactlib.staging import DirtyBranch, Repository
from compactlib.testing import Request, StoreInFront
from tests.harness.staging_world import (
    StagingWorld as World,
    committed,
    contents,
    diff,
    ended,
    head_contents,
    missing,
    record,
)

pytestmark = pytest.mark.usefixtures("backend")


def test_a_put_is_read_on_the_branch_and_not_in_head() -> None:
    main = World().branch({"a": "1", "b": "2"})
    main.put(b"a", b"9")
    assert main.get(b"a") == record("9")
    assert main.head().get(b"a") == record("1")
    assert diff(main) == ["a changed 1->9"]


def test_a_delete_hides() -> None:
    main = World().branch({"a": "1", "b": "2"})
    main.delete(b"b")
    assert missing(main, b"b")
    assert main.list().keys == (b"a",)
    assert diff(main) == ["b removed 2->"]


def test_deleting_an_absent_key_is_no_difference() -> None:
    main = World().branch({"a": "1"})
    main.delete(b"z")
    assert diff(main) == []
    assert not main.is_dirty()
    assert ended(main.commit("nothing")) == "no_changes"


def test_a_key_that_was_put_and_deleted_is_no_difference() -> None:
    main = World().branch({})
    main.put(b"c", b"3")
    main.delete(b"c")
    assert diff(main) == []
    assert missing(main, b"c")


def test_the_same_value_again_is_no_difference() -> None:
    main = World().branch({"a": "1"})
    main.put(b"a", b"1")
    assert diff(main) == []


def test_the_newest_layer_wins() -> None:
    main = World().branch({"n": "0"}, staged={"k": "x"}, sealed=[{"k": "y", "m": "m2"}, {"m": "m1", "n": None}])
    assert (main.get(b"k"), main.get(b"m")) == (record("x"), record("m2"))
    assert missing(main, b"n")
    assert main.list().keys == (b"k", b"m")
    assert diff(main) == ["k added ->x", "m added ->m2", "n removed 0->"]


def test_three_layers_over_head() -> None:
    main = World().branch({"foo1": "0", "foo2": "0", "foo3": "0"}, staged={"foo1": "A"},
                          sealed=[{"foo1": "B", "foo2": "B"}, {"foo1": "C", "foo2": "C"}])
    assert contents(main) == {"foo1": "A", "foo2": "B", "foo3": "0"}
    assert {key: found.data for key, found in main.get_many([b"foo1", b"foo2", b"foo3", b"foo4"]).items()} == {
        b"foo1": b"A", b"foo2": b"B", b"foo3": b"0"}


def test_the_diff_of_layers_against_head() -> None:
    main = World().branch({"same": "t", "ns": "BAD", "st": "BAD"}, staged={"same": "t", "st": "A"},
                          sealed=[{"added": "C", "same": "D", "ns": "B", "st": "D"},
                                  {"same": "E", "ns": "F", "st": "E"}])
    assert diff(main) == ["added added ->C", "ns changed BAD->B", "st changed BAD->A"]


def test_a_commit_takes_in_everything() -> None:
    world = World()
    main = world.branch({"a": "1", "b": "2"}, staged={"a": "9", "b": None, "c": "3"})
    before = main.record()
    stats = committed(main.commit("all", metadata={"by": "ann"}))
    assert (stats.added, stats.changed, stats.removed) == (1, 1, 1)
    after = main.record()
    made = world.repo.commit(stats.commit_id)
    assert head_contents(main) == contents(main) == {"a": "9", "c": "3"}
    assert (made.parents, made.generation, made.message, made.metadata) == (
        (before.commit_id,), 2, "all", {"by": "ann"})
    assert (after.sealed_tokens, diff(main)) == ((), [])


def test_changing_a_read_commits_metadata_changes_no_other() -> None:
    world = World()
    main = world.branch({"a": "1"}, staged={"a": "2"})
    given = {"by": "ann"}
    commit_id = committed(main.commit("all", metadata=given)).commit_id
    for metadata in (given, world.repo.commit(commit_id).metadata, next(main.log())[1].metadata):
        assert isinstance(metadata, dict)
        metadata["by"] = "bob"
    assert world.repo.commit(commit_id).metadata == next(main.log())[1].metadata == {"by": "ann"}
    assert world.repo.commit(commit_id).commit_id == commit_id


@pytest.mark.parametrize("staged", [{}, {"x": None}], ids=["nothing", "a tombstone that hides nothing"])
def test_commits_without_changes_leave_nothing_behind(backend: str, staged: dict[str, str | None]) -> None:
    """U≠: there each one leaves a sealed token."""
    world = World()
    main = world.branch({"a": "1"}, staged=staged)
    head = main.record().commit_id
    for _ in range(100 if backend == "memory" else 5):
        assert ended(main.commit("nothing")) == "no_changes"
        assert len(main.record().sealed_tokens) <= 1
    assert main.record().commit_id == head
    assert main.record().sealed_tokens == ()


def test_an_empty_commit_is_made_if_allowed() -> None:
    main = World().branch({"a": "1"})
    stats = committed(main.commit("empty", allow_empty=True))
    assert (stats.added, stats.changed, stats.removed, stats.ranges_written) == (0, 0, 0, 0)
    assert head_contents(main) == {"a": "1"}
    assert committed(World().branch().commit("first", allow_empty=True)).added == 0


def test_only_ineffective_tombstones_are_no_changes() -> None:
    main = World().branch({"a": "1"}, staged={"z": None}, sealed=[{"y": None}])
    assert ended(main.commit("nothing")) == "no_changes"
    assert main.record().sealed_tokens == ()


def test_pages_seeks_and_delimiters() -> None:
    main = World().branch({"a/1": "1", "a/2": "2", "b/1": "3"}, staged={"a/1": None, "a/2": None})
    page = main.list(delimiter=b"/")
    assert (page.keys, page.tombstones, page.next_after) == ((b"b/",), 2, None)
    assert [entry.record for entry in page.entries] == [None]


def test_no_merge_into_a_dirty_branch() -> None:
    world = World()
    main = world.branch({"a": "1"}, staged={"a": "9"})
    other = world.repo.create_branch("other", "main")
    other.put(b"b", b"2")
    other.commit("b")
    before = main.record()
    with pytest.raises(DirtyBranch) as caught:
        main.merge("other")
    assert (caught.value.branch, caught.value.key) == ("main", b"a")
    assert main.record().commit_id == before.commit_id
    assert contents(main) == {"a": "9"}


def test_a_tombstone_of_no_key_does_not_hide_a_merged_key() -> None:
    world = World()
    main = world.branch({}, staged={"foo": None})
    world.branch({"foo": "1"}, name="source")
    committed(main.merge("source"))
    assert main.get(b"foo") == record("1")


def test_token_reads_of_a_get() -> None:
    world = World()
    main = world.branch({"old": "1"}, staged={"new": "2"}, sealed=[{"sealed": str(number)} for number in range(5)])
    world.token_reads()
    main.get(b"old")
    assert world.token_reads() == 2
    main.get(b"new")
    assert world.token_reads() == 1


def test_too_many_deletes_delete_nothing() -> None:
    world = World()
    main = world.branch({"a": "1"})
    world.token_writes()
    with pytest.raises(InvalidInput, match="1001 keys were given; the limit of a call is 1000"):
        main.delete_many([b"a"] + [b"%d" % number for number in range(1000)])
    assert world.token_writes() == 0
    assert main.list().keys == (b"a",)


def test_two_empty_commits_at_once_are_both_in_the_history() -> None:
    """The second one is ready to move HEAD when the first does; no token is there that would show it."""
    world = World()
    main = world.branch({"a": "1"})
    is_first = True

    def overtake(request: Request, act: Callable[[], Any]) -> Any:
        nonlocal is_first
        if is_first and request.changes and request.key.startswith(b"branches/"):
            is_first = False
            main.commit("first", allow_empty=True)
        return act()

    slow = Repository(StoreInFront(world.store, overtake), world.committed, clock=world.clock, rng=Random(5))
    slow.branch("main").commit("second", allow_empty=True)
    assert [commit.message for _, commit in main.log()][:2] == ["second", "first"]


def test_a_hard_reset_reports_the_move_that_was_written() -> None:
    """Its first write comes late, after its second try has found the source elsewhere."""
    late: list[Callable[[], Any]] = []
    waiting = 2

    def step(request: Request, act: Callable[[], Any]) -> Any:
        nonlocal waiting
        if request.key != b"branches/main" or request.kind not in ("set_if", "transact") or not waiting:
            return act()
        waiting -= 1
        if waiting:
            late.append(act)
            source.put(b"b", b"2")
            committed(source.commit("another"))
            raise OutcomeUnknown(operation="write", path="a store under test", detail="no answer")
        late.pop()()
        return act()

    world = World()
    main = world.branch({"a": "1"})
    source = world.repo.create_branch("source", "main")
    source.put(b"b", b"1")
    committed(source.commit("one"))
    other = Repository(StoreInFront(world.store, step), world.committed, clock=world.clock, rng=Random(2))
    report = other.branch("main").hard_reset("source", discard=True)
    assert report.commit_id == main.record().commit_id
