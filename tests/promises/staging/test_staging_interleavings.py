# SPDX-License-Identifier: Apache-2.0
"""Processes on one branch, in many orders of their requests: nothing acknowledged is lost, and reads are right.

Each actor has a repository of its own over the stores that all share, as a process has. One kind of store compares
versions, the other one values, which may come back.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from functools import partial
from random import Random
from typing import Any, TypeAlias

import pytest

from compactlib.clock import ManualClock
from compactlib.errors import Rejected
from compactlib.kv import EXISTS, KVStore, MemoryStore
from compactlib.objects import MemoryObjects, ObjectStore
from compactlib.staging import (
    AlwaysPolicy,
    CommittedRanges,
    PreconditionFailed,
    RecordNotFound,
    Repository,
    StagingOptions,
)
from compactlib.testing import Choices, ObjectsInFront, StoreInFront, explore, sample
from tests.harness.effort import Effort
from tests.harness.turns import Turn, take_turns
from tests.promises.drivers.outcomes import result_of

K, N, OTHER = b"k", b"n", b"other"
OPTIONS = StagingOptions(owns_ranges=False, grace_seconds=0, first_backoff_seconds=0)
STORES: Mapping[str, Callable[[], MemoryStore]] = {
    "versions": MemoryStore,
    "values": lambda: MemoryStore(predicates="value"),
}
every_store = pytest.mark.parametrize("kind", STORES)
Act: TypeAlias = Callable[[Repository], Any]
Check: TypeAlias = Callable[[Repository, dict[str, Any]], object]


def opened(store: KVStore, objects: ObjectStore, seed: str) -> Repository:
    """A repository as a process opens it: its own clock, its own names."""
    clock, names = ManualClock(1000.0), Random(f"names {seed}")
    committed = CommittedRanges(objects, clock=clock, new_name=lambda: f"{names.getrandbits(64):016x}")
    return Repository(store, committed, clock=clock, rng=Random(f"tokens {seed}"), options=OPTIONS)


def in_turns(choices: Choices, *, kind: str, actors: Mapping[str, Act], check: Check, before: Act = bool) -> None:
    """One history: `main` with a commit and a staged record, what comes before, all actors, the check."""
    store, objects = STORES[kind](), MemoryObjects(clock=ManualClock(0.0))
    first = opened(store, objects, "first")
    main = first.create_branch("main")
    main.put(OTHER, b"1")
    result_of(main.commit("first"))
    main.put(OTHER, b"2")
    before(first)

    def of(name: str, act: Act) -> Callable[[Turn], object]:
        return lambda turn: act(opened(StoreInFront(store, turn), ObjectsInFront(objects, turn), name))

    results = take_turns(choices, {name: of(name, act) for name, act in actors.items()})
    check(opened(store, objects, "last"), results)


def search(effort: Effort, history: Callable[[Choices], object], seed: int = 0) -> None:
    """Run schedules with few changes of turn, and some with many."""
    assert explore(history, most=2, limit=effort(8, 2_000), seed=seed) > 10
    sample(history, effort(8, 4_000), most=8, seed=seed)


def in_state(how: str, repository: Repository) -> None:
    """`k` was put, and then settled in one of the places that a branch has."""
    main = repository.branch("main")
    main.put(K, b"0")
    if how == "committed":
        result_of(main.commit("second"))
    elif how == "compacted":
        compact(repository)


def compact(repository: Repository) -> None:
    with contextlib.suppress(Rejected):  # another one was first
        result_of(repository.compact(branch="main", policy=AlwaysPolicy(window_seconds=0)))


def settle(*steps: str) -> Act:
    """Commits, compactions and clean-ups, one after the other."""

    def act(repository: Repository) -> None:
        for step in steps:
            if step == "commit":
                result_of(repository.branch("main").commit("meanwhile"))
            elif step == "compact":
                compact(repository)
            else:
                with contextlib.suppress(Rejected):
                    result_of(repository.reclaim())

    return act


SETTLERS = [settle("commit", "reclaim"), settle("compact", "reclaim"), settle("compact", "commit", "reclaim")]
every_settler = pytest.mark.parametrize("settler", SETTLERS, ids=["commit", "compact", "both"])
every_state = pytest.mark.parametrize("state", ["staged", "compacted", "committed"])


def found_in(repository: Repository, key: bytes) -> bytes | None:
    try:
        data = repository.branch("main").get(key).data
    except RecordNotFound:
        return None
    return bytes(data)


def none_failed(results: Mapping[str, Any]) -> None:
    assert not [found for found in results.values() if isinstance(found, BaseException)], results


def committed_as_read(repository: Repository) -> None:
    """What is committed at the end is what was read before."""
    main = repository.branch("main")
    before = {key: found_in(repository, key) for key in (K, N, OTHER)}
    result_of(main.commit("at the end"))
    assert {key: found_in(repository, key) for key in (K, N, OTHER)} == before
    assert {entry.key: entry.record.data for entry in main.entries() if entry.record is not None} == {
        key: data for key, data in before.items() if data is not None}
    assert repository.verify().is_sound


# ------------------------------------------------------------------------------------------------------- conditions


def wants(data: bytes) -> Act:
    def act(repository: Repository) -> str:
        try:
            repository.branch("main").put_if(K, data, None)
        except PreconditionFailed:
            return "refused"
        return "got it"

    return act


@every_store
@pytest.mark.parametrize("settler", [None, *SETTLERS], ids=["alone", "commit", "compact", "both"])
def test_of_two_writers_who_want_a_key_one_gets_it(kind: str, settler: Act | None, effort: Effort) -> None:
    datas = {"ann": b"1", "bob": b"1" if kind == "versions" else b"2"}
    actors = {name: wants(data) for name, data in datas.items()} | ({} if settler is None else {"settler": settler})

    def check(repository: Repository, results: dict[str, Any]) -> None:
        none_failed(results)
        winners = [name for name in datas if results[name] == "got it"]
        assert len(winners) == 1, results
        assert found_in(repository, K) == datas[winners[0]]
        committed_as_read(repository)

    search(effort, partial(in_turns, kind=kind, actors=actors, check=check))


@every_store
@every_state
@pytest.mark.parametrize("is_wanted", [True, False], ids=["exists", "absent"])
def test_condition_sees_what_settles(kind: str, state: str, is_wanted: bool, effort: Effort) -> None:
    def writes(repository: Repository) -> str:
        try:
            repository.branch("main").put_if(K, b"new", EXISTS if is_wanted else None)
        except PreconditionFailed:
            return "refused"
        return "got it"

    def check(repository: Repository, results: dict[str, Any]) -> None:
        none_failed(results)
        assert results["writer"] == ("got it" if is_wanted else "refused")
        assert found_in(repository, K) == (b"new" if is_wanted else b"0")
        committed_as_read(repository)

    search(effort, partial(in_turns, kind=kind, before=partial(in_state, state), check=check,
                           actors={"writer": writes, "settler": settle("compact", "commit", "reclaim")}))


def adds(repository: Repository) -> None:
    repository.branch("main").update(N, lambda record: b"%d" % (1 + int(b"0" if record is None else record.data)))


@every_settler
def test_two_updates_are_two_whatever_settles(settler: Act, effort: Effort) -> None:
    def check(repository: Repository, results: dict[str, Any]) -> None:
        none_failed(results)
        assert found_in(repository, N) == b"2"
        committed_as_read(repository)

    search(effort, partial(in_turns, kind="versions", check=check,
                           actors={"ann": adds, "bob": adds, "settler": settler}))


# --------------------------------------------------------------------------------------------------- reads and writes


@every_store
@every_state
def test_reader_finds_what_settles_meanwhile(kind: str, state: str, effort: Effort) -> None:
    def reads(repository: Repository) -> list[Any]:
        main, paged, after = repository.branch("main"), dict[bytes, bytes](), None
        while True:
            page = main.list(limit=1, after=after)
            paged |= {entry.key: entry.record.data for entry in page.entries if entry.record is not None}
            after = page.next_after
            if after is None:
                return [found_in(repository, K), paged, found_in(repository, K)]

    def check(repository: Repository, results: dict[str, Any]) -> None:
        none_failed(results)
        assert results["reader"] == [b"0", {K: b"0", OTHER: b"2"}, b"0"]

    search(effort, partial(in_turns, kind=kind, before=partial(in_state, state), check=check,
                           actors={"reader": reads, "settler": settle("compact", "commit", "reclaim")}))


@every_store
@every_state
@pytest.mark.parametrize("data", [b"new", None], ids=["put", "delete"])
def test_write_stays_whatever_settles(kind: str, state: str, data: bytes | None, effort: Effort) -> None:
    def writes(repository: Repository) -> None:
        main = repository.branch("main")
        main.put(K, data) if data is not None else main.delete(K)
        main.put(N, b"1")
        assert found_in(repository, K) == data

    def check(repository: Repository, results: dict[str, Any]) -> None:
        none_failed(results)
        assert (found_in(repository, K), found_in(repository, N), found_in(repository, OTHER)) == (data, b"1", b"2")
        committed_as_read(repository)

    search(effort, partial(in_turns, kind=kind, before=partial(in_state, state), check=check,
                           actors={"writer": writes, "settler": settle("compact", "commit", "reclaim")}))


@every_store
def test_two_who_settle_lose_nothing(kind: str, effort: Effort) -> None:
    def one(name: bytes, settler: Act) -> Act:
        def act(repository: Repository) -> None:
            repository.branch("main").put(name, name)
            settler(repository)

        return act

    def check(repository: Repository, results: dict[str, Any]) -> None:
        none_failed(results)
        assert (found_in(repository, K), found_in(repository, N), found_in(repository, OTHER)) == (K, N, b"2")
        committed_as_read(repository)

    actors = {"ann": one(K, settle("compact", "commit", "reclaim")), "bob": one(N, settle("commit", "compact"))}
    search(effort, partial(in_turns, kind=kind, actors=actors, check=check))


@every_store
@pytest.mark.parametrize("way", ["all", "key", "prefix"])
def test_reset_takes_back_whole_or_what_came_before_it(kind: str, way: str, effort: Effort) -> None:
    """A reset beside a compaction: what was staged goes, what is committed stays."""

    def resets(repository: Repository) -> None:
        main = repository.branch("main")
        if way == "all":
            main.reset()
        elif way == "key":
            main.reset_key(K)
        else:
            main.reset_prefix(K)

    def check(repository: Repository, results: dict[str, Any]) -> None:
        none_failed(results)
        assert found_in(repository, K) is None
        assert found_in(repository, OTHER) == (b"1" if way == "all" else b"2")
        committed_as_read(repository)

    search(effort, partial(in_turns, kind=kind, before=partial(in_state, "staged"), check=check,
                           actors={"reset": resets, "settler": settle("compact", "reclaim")}))


# ---------------------------------------------------------------------------------------------------- a HEAD that moves


def merge(repository: Repository) -> None:
    repository.branch("main").merge("side", "merged")


def take_back(repository: Repository) -> None:
    main = repository.branch("main")
    *_, (first, _) = main.log()
    main.hard_reset(first, discard=True)


def make_anew(repository: Repository) -> None:
    repository.delete_branch("main")
    repository.create_branch("main").put(N, b"1")


def with_a_side(repository: Repository) -> None:
    in_state("committed", repository)
    side = repository.create_branch("side", "main")
    side.put(N, b"1")
    result_of(side.commit("side"))
    repository.branch("main").put(K, b"0")  # what is compacted comes to nothing


MOVES: Mapping[str, tuple[Act, Act, tuple[bytes | None, bytes | None, bytes | None]]] = {
    "merge": (with_a_side, merge, (b"0", b"1", b"2")),
    "hard reset": (partial(in_state, "staged"), take_back, (None, None, b"1")),
    "branch made anew": (partial(in_state, "staged"), make_anew, (None, b"1", None)),
}
"""What comes before, the move, and what `k`, `n` and `other` are then."""


@every_store
@pytest.mark.parametrize("move", MOVES)
def test_compaction_overwrites_no_moved_head(kind: str, move: str, effort: Effort) -> None:
    before, moves, expected = MOVES[move]

    def check(repository: Repository, results: dict[str, Any]) -> None:
        none_failed(results)
        assert (found_in(repository, K), found_in(repository, N), found_in(repository, OTHER)) == expected
        committed_as_read(repository)

    search(effort, partial(in_turns, kind=kind, before=before, check=check,
                           actors={"settler": settle("compact", "reclaim"), "mover": moves}))
