# SPDX-License-Identifier: Apache-2.0
"""One repository under the interleaving harness: operations of actors on its branch `main`, and the oracle G1 to G6.

Each actor is a process: a separate `Repository` over stores that take each request as one step. Every operation notes
its possible writes and its reads. After a run: reads are those of a regular register (G1, G4, G5); the HEAD of a commit
is a read of all keys (G2); compactions and cleanups write nothing (G3); resets write the contents of a HEAD of their
time (G6); at the end every way to read agrees, and a further commit commits the same contents.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping
from random import Random
from typing import Any

import attrs

from compactlib.clock import ManualClock
from compactlib.errors import Busy
from compactlib.kv import EXISTS, Changes, Conditions, MemoryStore, Retries, StoreFailed
from compactlib.objects import MemoryObjects
from compactlib.staging import (
    AlwaysPolicy,
    Branch,
    CommitId,
    CommittedRanges,
    DirtyBranch,
    PreconditionFailed,
    RecordNotFound,
    Repository,
    StagingOptions,
)
from compactlib.staging.errors import BeingCollected
from compactlib.staging.policy import BranchRecord
from compactlib.testing import ObjectsInFront, Request, StoreInFront
from tests.harness.interleave import ABSENT, History, HistoryOperation, Stage

MAIN, SOURCE, REPOSITORY = "main", "source", "repo"
A, B, K, M = b"a", b"b", b"k", b"m"
KEYS = (A, B, K, M)
OPTIONS = StagingOptions(retries=Retries(10, 0))
CLEANS = attrs.evolve(OPTIONS, grace_seconds=0)
COLLECTS = attrs.evolve(OPTIONS, grace_seconds=1e9, owns_ranges=True, range_grace_seconds=500)
NOW = AlwaysPolicy(window_seconds=0)

Contents = dict[bytes, bytes]


class LoggedStore(MemoryStore):
    """Exposes its cells, from which a world is rebuilt and compared at little cost."""

    def cells(self) -> list[tuple[bytes, bytes, bytes]]:
        return [(*cell, entry.value) for cell, entry in self._cells.items()]

    def place(self) -> str:
        return "the same for every copy"


class WatchedStore(StoreInFront):
    """Takes each request as a step, and calls `changed` after each change of the branch record."""

    def __init__(self, store: MemoryStore, stage: Stage) -> None:
        super().__init__(store, stage.step)
        self.changed: Callable[[], object] = bool

    def _transact(self, conditions: Conditions, changes: Changes) -> None:
        super()._transact(conditions, changes)
        self._note(key for (_, key), value in changes.items() if value is not None)

    def _note(self, keys: Iterable[bytes]) -> None:
        if b"branches/" + MAIN.encode() in keys:
            self.changed()


def repository(store: Any, objects: Any, seed: int, options: StagingOptions = OPTIONS) -> Repository:
    """Make the repository of another process, with its own clock, random generator and caches."""
    random, clock = Random(seed), ManualClock(1000.0)
    committed = CommittedRanges(objects, clock=clock, new_name=lambda: f"{random.getrandbits(64):016x}")
    return Repository(store, committed, name=REPOSITORY, options=options, clock=clock, rng=random)


def seal(store: Any, objects: Any) -> None:
    """Seal the staged entries, by a commit that fails after its first step."""
    def step(request: Request, act: Callable[[], Any]) -> Any:
        if request.changes and request.key.startswith(b"commits/"):
            raise StoreFailed(operation=request.kind, path="planted", detail="planted")
        return act()

    with contextlib.suppress(StoreFailed):
        repository(StoreInFront(store, step), objects, 98).branch(MAIN).commit("its writer cannot write any more")


@attrs.frozen
class Prepared:
    """The stores of a world before its first step."""

    cells: list[tuple[bytes, bytes, bytes]]
    objects: list[tuple[str, bytes]]
    initial: Contents
    first_commit: CommitId


def prepare(setup: str) -> Prepared:
    """Prepare `main` at HEAD{a=1, b=2} over a commit {a=0}, `source` with m=1 on top, and the additions of a setup.

    Setups, by the state of `k`: `clean`: absent; `staged`: in the staging token; `sealed`: k=0 in a sealed token, k=1
    in the staging token; `compacted`: k in the compacted metarange, `a` deleted by it; `committed`: in HEAD; `hidden`:
    put in a sealed token, deleted in the staging token; `garbage`: in the staging token, and the output of its commit
    or compaction exists already as an old orphan.
    """
    store, objects = LoggedStore(), MemoryObjects(clock=ManualClock(0.0))
    made = repository(store, objects, 1, COLLECTS)
    main = made.create_branch(MAIN)
    main.put(A, b"0")
    main.commit("first")
    first = main.record().commit_id
    assert first is not None
    main.put_many({A: b"1", B: b"2"} | ({K: b"0"} if setup == "committed" else {}))
    main.commit("second")
    source = made.create_branch(SOURCE, MAIN)
    source.put(M, b"1")
    source.commit("source")
    initial = {A: b"1", B: b"2"}
    if setup == "staged":
        main.put(K, b"0")
        initial[K] = b"0"
    elif setup == "sealed":
        main.put(K, b"0")
        seal(store, objects)
        main.put(K, b"1")
        initial[K] = b"1"
    elif setup == "garbage":
        main.put(K, b"0")
        made.compact(policy=NOW)
        main.reset()
        main.put(K, b"0")
        initial[K] = b"0"
    elif setup == "hidden":
        main.put(K, b"0")
        seal(store, objects)
        main.delete(K)
    elif setup == "compacted":
        main.put(K, b"0")
        main.delete(A)
        made.compact(policy=NOW)
        initial = {B: b"2", K: b"0"}
    elif setup == "committed":
        initial[K] = b"0"
    repository(store, objects, 97, CLEANS).reclaim()
    return Prepared(store.cells(), [(info.key, objects.get(info.key)) for info in objects.list()], initial, first)


DIRTY = ("staged", "sealed", "compacted", "garbage")
SETUPS = ("clean", "staged", "sealed", "compacted", "committed", "hidden")
_PREPARED: dict[str, Prepared] = {}
# The contents of commits, which are named by their content.
_CONTENTS: dict[CommitId | None, Contents] = {None: {}}

_STORES: dict[str, Callable[[], LoggedStore]] = {
    "": LoggedStore,
    # A state that is written again with the same bytes (ABA).
    "values": lambda: LoggedStore(predicates="value"),
}


class World:
    """A repository in one run; `setup+values` on a store that compares values."""

    def __init__(self, stage: Stage, setup: str, names: Iterable[str]) -> None:
        setup, _, kind = setup.partition("+")
        prepared = _PREPARED.get(setup) or _PREPARED.setdefault(setup, prepare(setup))
        clock = ManualClock(0.0)
        store, objects = _STORES[kind](), MemoryObjects(clock=clock)
        for partition, key, value in prepared.cells:
            store.set(partition, key, value)
        for name, data in prepared.objects:
            objects.create(name, data)
        clock.advance(1000.0)  # later objects are young
        self.setup = setup
        self.first_commit = prepared.first_commit
        self.history = History(stage, prepared.initial)
        self.behind = repository(store, objects, 99)
        self._kind = kind
        self._stored = store, objects
        self._stepped = WatchedStore(store, stage), ObjectsInFront(objects, stage.step)
        self._seeds = {name: 100 + 10 * number for number, name in enumerate(names)}
        self._repositories = {name: self._open(name) for name in names}
        self.records: list[tuple[int, BranchRecord]] = [(0, self.behind.branch(MAIN).record())]
        self._stepped[0].changed = lambda: self.records.append((stage.now, self.behind.branch(MAIN).record()))

    def _open(self, actor: str) -> dict[StagingOptions, Repository]:
        return {options: repository(*self._stepped, self._seeds[actor] + number, options)
                for number, options in enumerate((OPTIONS, CLEANS, COLLECTS))}

    def repository(self, actor: str, options: StagingOptions = OPTIONS) -> Repository:
        return self._repositories[actor][options]

    def main(self, actor: str) -> Branch:
        return self.repository(actor).branch(MAIN)

    def state(self) -> int:
        """Return a hash of the stored content; worlds in equal states have equal later reads and commits."""
        store, objects = self._stored
        files = frozenset((each.key, objects.get(each.key)) for each in objects.list())
        return hash((self.setup, self._kind, frozenset(store.cells()), files))

    def contents_of(self, commit_id: CommitId | None) -> Contents:
        if commit_id is None or commit_id not in _CONTENTS:
            _CONTENTS[commit_id] = {} if commit_id is None else {
                key: record.data for key, record in self.behind.at(commit_id).records()}
        return _CONTENTS[commit_id]

    def heads(self, begin: int, end: int) -> list[Contents]:
        """Return the contents of each HEAD between two steps."""
        return [self.contents_of(record.commit_id) for place, (since, record) in enumerate(self.records)
                if since <= end and (place + 1 == len(self.records) or self.records[place + 1][0] >= begin)]


Act = Callable[[World, str, HistoryOperation], Any]


def op_put(value: bytes) -> Act:
    def act(world: World, actor: str, noted: HistoryOperation) -> None:
        noted.write(K, value)
        world.main(actor).put(K, value)
    return act


def op_delete(world: World, actor: str, noted: HistoryOperation) -> None:
    noted.write(K, ABSENT)
    world.main(actor).delete(K)


def op_put_if(world: World, actor: str, noted: HistoryOperation) -> str:
    value = b"I" + actor.encode()
    noted.write(K, value)
    try:
        world.main(actor).put_if(K, value, None)
    except PreconditionFailed:
        noted.writes.clear()
        return "refused"
    return "written"


def op_put_if_exists(world: World, actor: str, noted: HistoryOperation) -> str:
    noted.write(K, b"E")
    try:
        world.main(actor).put_if(K, b"E", EXISTS)
    except PreconditionFailed:
        noted.writes.clear()
        return "missing"
    return "replaced"


def op_get(world: World, actor: str, noted: HistoryOperation) -> None:
    try:
        noted.reads[K] = world.main(actor).get(K).data
    except RecordNotFound:
        noted.reads[K] = ABSENT


def op_list(world: World, actor: str, noted: HistoryOperation) -> None:
    held = listed(world.main(actor))
    noted.reads.update({key: held.get(key, ABSENT) for key in KEYS})


def listed(branch: Branch) -> Contents:
    return {each.key: each.record.data for each in branch.list(limit=100).entries if each.record is not None}


def op_diff(world: World, actor: str, noted: HistoryOperation) -> None:
    page = world.main(actor).diff(limit=10)
    noted.result = {each.key: (None if each.left is None else each.left.data,
                               None if each.right is None else each.right.data) for each in page.differences}


def op_commit(world: World, actor: str, noted: HistoryOperation) -> Any:
    return world.main(actor).commit(actor)


def op_compact(world: World, actor: str, noted: HistoryOperation) -> Any:
    try:
        return world.repository(actor).compact(policy=NOW)
    except BeingCollected:
        raise
    except Busy:
        return "another writer was faster"


def op_reclaim(options: StagingOptions) -> Act:
    def act(world: World, actor: str, noted: HistoryOperation) -> Any:
        return world.repository(actor, options).reclaim()
    return act


def op_reset(world: World, actor: str, noted: HistoryOperation) -> Any:
    noted.writes.update(dict.fromkeys(KEYS, frozenset()))
    return world.main(actor).reset()


def op_reset_key(world: World, actor: str, noted: HistoryOperation) -> Any:
    noted.writes[K] = frozenset()
    return world.main(actor).reset_key(K)


def op_reset_prefix(world: World, actor: str, noted: HistoryOperation) -> Any:
    noted.writes[K] = frozenset()
    return world.main(actor).reset_prefix(b"k")


def op_merge(world: World, actor: str, noted: HistoryOperation) -> Any:
    noted.write(M, b"1")  # `_resolve` adds the keys that depend on HEAD
    try:
        return world.main(actor).merge(SOURCE, f"merge of {actor}")
    except DirtyBranch:
        noted.writes.clear()
        return "dirty"


def op_hard_reset(world: World, actor: str, noted: HistoryOperation) -> Any:
    target = world.contents_of(world.first_commit)
    for key in KEYS:
        noted.write(key, target.get(key, ABSENT))
    return world.main(actor).hard_reset(world.first_commit, discard=True)


OPERATIONS: Mapping[str, Act] = {
    "put": op_put(b"P"), "delete": op_delete, "put_if": op_put_if, "get": op_get, "list": op_list,
    "commit": op_commit, "compact": op_compact, "reset": op_reset, "reset_key": op_reset_key,
    "reset_prefix": op_reset_prefix, "merge": op_merge, "hard_reset": op_hard_reset, "cleanup": op_reclaim(CLEANS),
    "diff": op_diff, "put_if_exists": op_put_if_exists,
    "put2": op_put(b"Q"), "collect": op_reclaim(COLLECTS),
}


def actor_of(name: str, acts: Iterable[tuple[str, Act]]) -> Callable[[World], None]:
    """Make an actor that makes these operations in turn and notes each with its result."""
    def run(world: World) -> None:
        for kind, act in acts:
            with world.history.operation(name, kind) as noted:
                result = act(world, name, noted)
                if result is not None:
                    noted.result = result
    return run


def actors_of(*programs: Iterable[str]) -> dict[str, Callable[[World], None]]:
    """Make actors `p0`, `p1`, ... from the names of their operations."""
    return {f"p{number}": actor_of(f"p{number}", [(name, OPERATIONS[name]) for name in program])
            for number, program in enumerate(programs)}


def world_of(setup: str, actors: Iterable[str]) -> Callable[[Stage], World]:
    names = list(actors)
    return lambda stage: World(stage, setup, names)


# ------------------------------------------------------------------------------------------------------- the oracle


def check(world: World, results: Mapping[str, Any]) -> None:
    """Check G1 to G6 of one run."""
    history = world.history
    collecting = any(each.name == "collect" for each in history.operations)
    for name, result in results.items():
        # An operation that reuses a file under deletion fails after its retries.
        assert result is None or (collecting and isinstance(result, BeingCollected)), (
            f"{name} ended in {type(result).__name__}: {result}; {history}")
    for each in history.operations:
        error = getattr(each.result, "error", None)
        assert error is None or (collecting and isinstance(error, BeingCollected)), f"{each}: {each.result}"
        _resolve(world, each)
    history.check_reads()  # G1, and G3 for concurrent compactions
    for each in history.operations:
        _check_operation(world, each)
    _check_end(world)


def _resolve(world: World, each: HistoryOperation) -> None:
    """Note the writes of a reset, the contents of any HEAD of its time, and of a merge, its differences from HEAD."""
    if each.name == "merge" and each.result is not None and each.result != "dirty" and not each.failed:
        each.writes.clear()
        if not each.result.is_empty:
            made = [commit for _, commit in world.behind.branch(MAIN).log()
                    if commit.message == f"merge of {each.actor}"]
            for commit in made or _lost_merges(world, each.actor):
                now = world.contents_of(commit.commit_id)
                before = world.contents_of(next(iter(commit.parents), None))
                for key in KEYS:
                    if before.get(key) != now.get(key):
                        each.write(key, now.get(key, ABSENT))
    for key, values in each.writes.items():
        if not values:
            each.writes[key] = frozenset(head.get(key, ABSENT) for head in world.heads(each.begin, each.last))


def _lost_merges(world: World, actor: str) -> list[Any]:
    """Return the merges that a hard reset has undone."""
    heads = {record.commit_id for _, record in world.records if record.commit_id is not None}
    return [commit for commit in map(world.behind.commit, heads) if commit.message == f"merge of {actor}"]


def _check_operation(world: World, each: HistoryOperation) -> None:
    history = world.history
    allowed = {key: history.allowed(key, each.begin, each.last, without=each) for key in KEYS}
    if isinstance(each.result, Exception):
        return
    if each.name == "commit":
        # G2: the final commit has a state that a read of this time could have returned.
        assert any(all(head.get(key, ABSENT) in allowed[key] for key in KEYS)
                   for head in world.heads(each.begin, each.last)), f"{each} left out a write: {history}"
    elif each.result == "refused":
        assert allowed[K] - {ABSENT}, f"{each} was refused although nothing was there: {history}"
    elif each.result == "written":
        assert ABSENT in allowed[K], f"{each} wrote although something was there: {history}"
        removers = {"delete", "reset", "reset_key", "reset_prefix", "hard_reset"}
        winners = [other for other in history.operations if other.result == "written"]
        assert len(winners) == 1 or any(other.name in removers for other in history.operations), f"two won: {history}"
    elif each.result == "missing":
        assert ABSENT in allowed[K], f"{each} found nothing although something was there: {history}"
    elif each.result == "dirty":
        quiet = {"merge", "commit", "compact", "cleanup", "get", "list", "diff"}
        others = {other.name for other in history.operations}
        assert world.setup in DIRTY or not others <= quiet, f"{each} on a clean branch: {history}"
    elif each.name == "diff":
        _check_diff(world, each, allowed)


def _check_diff(world: World, each: HistoryOperation, allowed: Mapping[bytes, frozenset[Any]]) -> None:
    heads = world.heads(each.begin, each.last)
    for key in KEYS:
        left_right = each.result.get(key)
        possible = [(head.get(key, ABSENT), value) for head in heads for value in allowed[key]]
        if left_right is None:
            assert any(left == right for left, right in possible), f"{each} says nothing of {key!r}: {world.history}"
        else:
            found = tuple(ABSENT if side is None else side for side in left_right)
            assert found in possible, f"{each} says {found} of {key!r}: {world.history}"
            assert found[0] != found[1], f"{each} says {found} of {key!r}: {world.history}"


# The checked final states: thousands of orders of steps end in a few states.
_ENDS: dict[int, Contents] = {}


def _check_end(world: World) -> None:
    """Require that the final state is consistent and allowed by the history."""
    state = world.state()
    held = _ENDS.get(state)
    if held is None:
        held = _ENDS[state] = _checked_state(world)
    world.history.check_final(held, KEYS)


def _checked_state(world: World) -> Contents:
    """Return the contents of the branch; require equal reads, a right commit, and that no marked token is in use."""
    world.behind.audit()
    main = world.behind.branch(MAIN)
    held, record = listed(main), main.record()
    assert {key: found.data for key, found in main.get_many(KEYS).items()} == held
    head = world.contents_of(record.commit_id)
    expected = {key for key in {*head, *held} if head.get(key) != held.get(key)}
    assert {each.key for each in main.differences()} == expected
    main.commit("at the end")
    after = main.record()
    assert world.contents_of(after.commit_id) == held, f"committed {world.contents_of(after.commit_id)}, not {held}"
    assert (after.sealed_tokens, after.compacted_metarange_id) == ((), None), f"left over: {after}"
    return held
