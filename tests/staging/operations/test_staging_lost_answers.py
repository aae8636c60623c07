# SPDX-License-Identifier: Apache-2.0
"""Writes without an answer, and then the reads fail that would tell: unknown stays unknown until it is seen."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from compactlib.clock import ManualClock
from compactlib.errors import CompactlibError
from compactlib.kv import KVStore, MemoryStore, OutcomeUnknown
from compactlib.objects import MemoryObjects, ObjectStore
from compactlib.outcome import Failed
from compactlib.staging import Branch, BranchNotFound, CommittedRanges, Repository
from compactlib.staging.errors import BranchExists
from compactlib.staging.records.record import BranchRecord
from tests.harness.faulty_store import FaultyStore, KVFault, KVOperation
from tests.staging.branch_world import MAIN, LoggedStore, context_over
from tests.staging.faulty_world import WORK, contents_of, stores_for
from tests.tools.faults.lost_answers import LostAnswer, explore_lost_answers
from tests.tools.faults.objects_faults import FaultyObjects
from tests.tools.faults.plan import Fault

CHANGING = [name for name in WORK if name not in ("cleanup", "sweep", "collect")]


def state_of(store: object, objects: MemoryObjects) -> tuple[object, ...]:
    """What a caller can have changed: the contents, HEAD, and what is compacted."""
    context = context_over(store, objects, 60)
    record = context.branches.read(MAIN).record
    return contents_of(context), record.commit_id is None, record.compacted_metarange_id


@pytest.mark.parametrize("name", CHANGING)
def test_nobody_is_told_that_nothing_was_changed_when_it_was(name: str) -> None:
    kept: list[MemoryObjects] = []
    undisturbed, objects, _ = stores_for(name)
    before = state_of(undisturbed, objects)
    WORK[name][1](context_over(undisturbed, objects, 8))
    after = state_of(undisturbed, objects)

    def make_store() -> LoggedStore:
        store, found, _ = stores_for(name)
        kept[:] = [found]
        return store

    def work(store: FaultyStore) -> object:
        outcome = WORK[name][1](context_over(store, kept[0], 8))
        if isinstance(outcome, Failed):
            raise outcome.error
        return outcome

    def check(store: object, answer: LostAnswer) -> None:
        now = state_of(store, kept[0])
        if answer.error is None:
            assert now == after
        elif isinstance(answer.error, OutcomeUnknown):
            assert now in (before, after) or now[0] in (before[0], after[0])
        else:
            assert now == before, f"{answer.error!r} was told"
        context_over(store, kept[0], 61).branches.read(MAIN).record.audit()

    report = explore_lost_answers(make_store, work, check)
    assert report.writes >= 1


class Away:
    """A store whose answer to one write is lost, and which then cannot be reached for so many reads."""

    def __init__(self, sees: Callable[[KVOperation], bool], reads: int) -> None:
        self._sees, self._left, self._armed = sees, reads, True

    def __call__(self, operation: KVOperation) -> KVFault | None:
        if self._armed:
            if self._sees(operation):
                self._armed = False
                return KVFault.UNKNOWN_DONE
        elif not operation.changes and self._left:
            self._left -= 1
            return KVFault.FAIL
        return None


def repo_over(store: object, objects: ObjectStore) -> Repository:
    return Repository(store, CommittedRanges(objects, cache_bytes=0), clock=ManualClock(1000.0))  # type: ignore[arg-type]


@pytest.mark.parametrize("call", [lambda branch: branch.commit("first"),
                                  lambda branch: branch.put_if(b"n", b"v", None)], ids=["commit", "put_if"])
@pytest.mark.parametrize("then", [KVFault.FAIL, KVFault.CONFLICT])
def test_a_change_of_which_one_try_had_no_answer_is_not_told_as_refused(
        then: KVFault, call: Callable[[Branch], object]) -> None:
    """What is refused later may have been carried out by the first try, which may still be on its way."""
    store, objects = MemoryStore(), MemoryObjects()
    repo_over(store, objects).create_branch("main").put(b"k", b"v")
    tries = 0

    def choose(operation: KVOperation) -> KVFault | None:
        nonlocal tries
        if operation.name not in ("set_if", "transact"):
            return None
        tries += 1
        return KVFault.UNKNOWN_LOST if tries == 1 else then

    with pytest.raises(OutcomeUnknown):
        call(repo_over(FaultyStore(store, choose), objects).branch("main"))
    assert tries > 1


@pytest.mark.parametrize(("reads", "told"), [(3, None), (1000, OutcomeUnknown)])
def test_a_conditional_write_is_made_or_not_known_to_be(reads: int, told: type[CompactlibError] | None) -> None:
    store, objects = MemoryStore(), MemoryObjects()
    repo_over(store, objects).create_branch("main")
    faulty = FaultyStore(store, Away(lambda operation: operation.changes, reads))
    try:
        repo_over(faulty, objects).branch("main").put_if(b"k", b"v", None)
    except CompactlibError as error:
        assert type(error) is told
    else:
        assert told is None
    assert repo_over(store, objects).branch("main").get(b"k").data == b"v"


@pytest.mark.parametrize(("reads", "told"), [(3, None), (1000, OutcomeUnknown)])
def test_a_branch_is_made_or_not_known_to_be(reads: int, told: type[CompactlibError] | None) -> None:
    store, objects = MemoryStore(), MemoryObjects()
    faulty = FaultyStore(store, Away(lambda operation: operation.name == "transact", reads))
    try:
        repo_over(faulty, objects).create_branch("main")
    except CompactlibError as error:
        assert type(error) is told
    else:
        assert told is None
    repo_over(store, objects).branch("main").record()
    with pytest.raises(BranchExists):
        repo_over(store, objects).create_branch("main")


@pytest.mark.parametrize(("reads", "told"), [(3, None), (1000, OutcomeUnknown)])
def test_a_branch_is_deleted_or_not_known_to_be(reads: int, told: type[CompactlibError] | None) -> None:
    store, objects = MemoryStore(), MemoryObjects()
    repo_over(store, objects).create_branch("main")
    faulty = FaultyStore(store, Away(lambda operation: operation.name == "delete_if", reads))
    try:
        repo_over(faulty, objects).delete_branch("main")
    except CompactlibError as error:
        assert type(error) is told
    else:
        assert told is None
    with pytest.raises(BranchNotFound):
        repo_over(store, objects).branch("main").record()


def test_a_branch_that_was_made_anew_is_not_deleted_in_place_of_the_old_one() -> None:
    """The delete was carried out, its answer was lost, and somebody made a branch of that name meanwhile."""
    store, objects = MemoryStore(), MemoryObjects()
    repo_over(store, objects).create_branch("main")

    def choose(operation: KVOperation) -> KVFault | None:
        if operation.name == "delete_if":
            assert operation.number == 2, "it was tried again"
            return KVFault.UNKNOWN_DONE
        if operation.number == 3:
            repo_over(store, objects).create_branch("main").put(b"k", b"new")
        return None

    with pytest.raises(OutcomeUnknown):
        repo_over(FaultyStore(store, choose), objects).delete_branch("main")
    assert repo_over(store, objects).branch("main").get(b"k").data == b"new"


def test_a_record_that_was_taken_is_not_told_as_refused() -> None:
    """The record was written, and the look whether its token is still in use failed: it is visible."""
    store, objects = MemoryStore(), MemoryObjects()
    repo_over(store, objects).create_branch("main")

    def choose(operation: KVOperation) -> KVFault | None:
        return KVFault.FAIL if operation.number > 2 else None

    with pytest.raises(OutcomeUnknown, match="may or may not have happened"):
        repo_over(FaultyStore(store, choose), objects).branch("main").put(b"k", b"v")
    assert repo_over(store, objects).branch("main").list().keys == (b"k",)


def test_a_move_that_happened_is_told_though_the_object_store_went_away_after_it() -> None:
    store, objects = MemoryStore(), MemoryObjects()
    repo = repo_over(store, objects)
    main = repo.create_branch("main")
    main.put(b"a", b"1")
    main.commit("first")
    side = repo.create_branch("side", "main")
    side.put(b"b", b"2")
    side.commit("second")

    moves = 0

    def choose(operation: KVOperation) -> KVFault | None:
        nonlocal moves
        moves += operation.name == "set_if"
        return None

    # From the second compare-and-set on, which moves HEAD.
    gone = FaultyObjects(objects, lambda request: Fault.REFUSED if moves == 2 else None)
    outcome = repo_over(FaultyStore(store, choose), gone).branch("main").merge("side")
    assert outcome.to_dicts()[0]["added"] == 1
    assert main.get(b"b").data == b"2"


def test_a_branch_whose_delete_had_no_answer_is_not_said_to_be_there() -> None:
    def make_store() -> MemoryStore:
        store = MemoryStore()
        context = context_over(store, MemoryObjects(), 7)
        context.branches.create("gone", BranchRecord(staging_token=context.tokens.issue("gone")))
        return store

    def work(store: FaultyStore) -> object:
        return context_over(store, MemoryObjects(), 8).branches.delete("gone")

    def check(store: KVStore, answer: LostAnswer) -> None:
        is_there = [found.branch for found in context_over(store, MemoryObjects(), 60).branches.list()] != []
        if answer.error is None:
            assert not is_there
        elif not isinstance(answer.error, OutcomeUnknown):
            assert is_there, f"{answer.error!r} was told"

    assert explore_lost_answers(make_store, work, check).writes == 1
