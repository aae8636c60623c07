# SPDX-License-Identifier: Apache-2.0
"""Branches from the outside: made, deleted, described, audited; and what the sensor is told."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs
import pytest

from compactlib.kv import EXISTS
from compactlib.staging import Branch, BranchNotFound, PreconditionFailed, RecordNotFound
from compactlib.staging.errors import BranchExists
from compactlib.staging.events import StagingEvents
from compactlib.staging.names import CommitId
from compactlib.staging.record import BranchRecord
from compactlib.staging.values import MetaRangeId
from tests.staging.repository.test_defects import interrupted
from tests.staging.world import World, committed, contents, diff, record

# ------------------------------------------------------------------------------------------------------ branches

def test_a_branch_begins_at_a_commit_a_branch_or_nowhere() -> None:
    world = World()
    main = world.branch({"a": "1"}, staged={"b": "2"})
    head = main.record().commit_id
    assert head is not None
    assert contents(world.repo.create_branch("empty")) == {}
    assert contents(world.repo.create_branch("from branch", "main")) == {"a": "1"}
    assert contents(world.repo.create_branch("from commit", head)) == {"a": "1"}
    assert [branch.name for branch in world.repo.branches()] == ["empty", "from branch", "from commit", "main"]
    assert [branch.name for branch in world.repo.branches("from")] == ["from branch", "from commit"]
    assert list(world.repo.branches("\ud800")) == []
    world.repo.audit()


def test_a_branch_is_made_once() -> None:
    world = World()
    world.branch({"a": "1"})
    with pytest.raises(BranchExists) as caught:
        world.repo.create_branch("main")
    assert caught.value.branch == "main"
    assert contents(world.repo.branch("main")) == {"a": "1"}


@pytest.mark.parametrize("use", [
    lambda branch: branch.get(b"a"), lambda branch: branch.get_many([b"a"]),
    lambda branch: branch.get_uncommitted(b"a"),
    lambda branch: branch.list(), lambda branch: branch.diff(), lambda branch: branch.head(),
    lambda branch: branch.put(b"a", b"1"), lambda branch: branch.put_if(b"a", b"1", None),
    lambda branch: branch.delete(b"a"), lambda branch: branch.commit("x"), lambda branch: branch.reset(),
    lambda branch: branch.reset_key(b"a"), lambda branch: branch.reset_prefix(b"a"),
    lambda branch: branch.merge("main"),
    lambda branch: branch.hard_reset("main"), lambda branch: branch.hard_reset("main", discard=True),
    lambda branch: branch.status(), lambda branch: list(branch.log()), lambda branch: branch.is_dirty(),
])
def test_an_unknown_branch_is_named_by_every_method(use: Callable[[Branch], object]) -> None:
    world = World()
    world.branch({"a": "1"})
    with pytest.raises(BranchNotFound) as caught:
        use(world.repo.branch("nowhere"))
    assert caught.value.branch == "nowhere"


def test_a_branch_is_deleted_only_as_it_is_expected_to_be() -> None:
    world = World()
    main = world.branch({"a": "1"})
    old = main.record()
    main.put(b"b", b"2")
    main.commit("b")
    with pytest.raises(PreconditionFailed):
        world.repo.delete_branch("main", expected=old)
    world.repo.delete_branch("main", expected=main.record())
    with pytest.raises(BranchNotFound):
        world.repo.delete_branch("main")


def test_a_write_during_which_the_branch_is_deleted_is_not_acknowledged() -> None:
    """The value may be there, but nobody is told that it is."""
    world = World()
    world.branch({})
    with pytest.raises(BranchNotFound):
        interrupted(world, lambda operation: operation.changes,
                    lambda: world.repo.delete_branch("main")).put(b"a", b"1")


def test_a_branch_made_again_has_nothing_of_the_old_one() -> None:
    world = World()
    main = world.branch({"a": "1"}, staged={"b": "2"}, sealed=[{"c": "3"}])
    world.repo.delete_branch("main")
    assert contents(world.repo.create_branch("main")) == {}
    assert diff(main) == []


def test_tokens_of_a_deleted_branch_are_marked() -> None:
    world = World()
    main = world.branch({}, staged={"b": "2"}, sealed=[{"c": "3"}])
    tokens = main.record().tokens
    world.repo.delete_branch("main")
    assert {mark.token for mark in world.context.tokens.dropped()} == set(tokens)


def test_histories_and_views_of_commits() -> None:
    world = World()
    main = world.branch()
    ids = []
    for number in range(3):
        main.put(b"k", str(number).encode())
        ids.append(committed(main.commit(str(number))).commit_id)
    assert [commit_id for commit_id, _ in main.log()] == ids[::-1]
    assert [commit.message for _, commit in main.log()] == ["2", "1", "0"]
    assert world.repo.at(ids[0]).get(b"k") == record("0")
    assert world.repo.at("main").get_many([b"k", b"l"]) == {b"k": record("2")}
    with pytest.raises(RecordNotFound):
        world.repo.at(ids[0]).get(b"l")
    assert main.head().list(limit=1).keys == (b"k",)


def test_what_status_and_reports_say() -> None:
    world = World()
    main = world.branch({"a": "1"}, staged={"b": "2"}, sealed=[{}, {}])
    status = main.status()
    assert (status.branch, status.sealed_tokens, status.generation, status.version) == ("main", 2, 1, 1)
    repo = world.repo.survey()
    assert (len(repo.branches), repo.registered_tokens, repo.dropped_tokens) == (1, 3, 0)
    assert "1 branches, 3 tokens, 0 of them dropped" in repr(repo)
    assert repo.to_dicts()[0]["branch"] == "main"
    page, changes = main.list(), main.diff()
    assert repr(page) == "ListPage(2 entries, 2 scanned, 0 tombstones)"
    assert repr(changes) == "DiffPage(1 differences, 1 scanned)"
    assert [row["key"] for row in page.to_dicts()] == [b"a", b"b"]
    assert [row["kind"] for row in changes.to_dicts()] == ["added"]
    for shown in (status, repo, page, changes):
        assert "<table" in shown._repr_html_()



# -------------------------------------------------------------------------------------------------------- events

class Told(StagingEvents):
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.all: list[tuple[str, object]] = []

    def tombstones_written(self, branch: str, record: BranchRecord, count: int) -> None:
        self.all.append(("written", count))

    def tombstones_listed(self, branch: str, record: BranchRecord, count: int) -> None:
        self.all.append(("listed", count))

    def write_retried(self, branch: str, operation: str) -> None:
        self.all.append(("retried", operation))

    def committed(self, branch: str, record: BranchRecord) -> None:
        self.all.append(("committed", record.commit_id is not None))

    def reset(self, branch: str, record: BranchRecord) -> None:
        self.all.append(("reset", len(record.sealed_tokens)))

    def branch_deleted(self, branch: str) -> None:
        self.all.append(("deleted", branch))


def test_the_sensor_is_told_what_counts() -> None:
    told = Told()
    world = World(events=told)
    main = world.branch({"a": "1", "b": "2"})
    main.put(b"c", b"3")
    main.delete(b"nothing")
    main.delete_many([b"a", b"c"])
    main.delete_if(b"b", EXISTS)
    main.list()
    main.reset_key(b"c")  # which is a tombstone already
    main.put(b"c", b"5")
    main.reset_key(b"c")
    main.reset_prefix(b"c")
    main.commit("x")
    main.put(b"d", b"4")
    main.reset()
    world.repo.delete_branch("main")
    assert told.all == [("written", 2), ("written", 1), ("listed", 3), ("written", 1), ("committed", True),
                        ("reset", 0), ("deleted", "main")]



# -------------------------------------------------------------------------------------------------------- audits

def test_audits_find_what_contradicts() -> None:
    world = World()
    main = world.branch({"a": "1"}, sealed=[{}])
    world.repo.audit()
    record_now = main.record()
    world.context.tokens.mark_dropped(dict.fromkeys(record_now.sealed_tokens, "main"))
    with pytest.raises(AssertionError, match="dropped"):
        world.repo.audit()


@pytest.mark.parametrize(("wrong", "message"), [
    ({"commit_id": CommitId("0" * 64)}, "no commit"),
    ({"compacted_metarange_id": MetaRangeId("0" * 40)}, "missing"),
    ({"staging_token": "stg-" + "0" * 32}, "not in the register"),
])
def test_audits_find_names_of_what_is_not_there(wrong: dict[str, Any], message: str) -> None:
    world = World()
    world.branch({"a": "1"})
    world.context.branches.update("main", lambda found: attrs.evolve(found, **wrong))
    with pytest.raises(AssertionError, match=message):
        world.repo.audit()


def test_audits_find_a_token_of_two_branches() -> None:
    world = World()
    main = world.branch({"a": "1"})
    world.context.branches.create("thief", main.record())
    with pytest.raises(AssertionError):
        world.repo.audit()
