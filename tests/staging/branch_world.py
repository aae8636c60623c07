# SPDX-License-Identifier: Apache-2.0
"""One repository under the interleaving harness: what actors do to it, and the oracle for G1 to G6."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from random import Random
from typing import Any

import attrs

from compactlib.clock import ManualClock
from compactlib.kv import EXISTS, MemoryStore, OutcomeUnknown
from compactlib.kv.store import Predicate
from compactlib.objects import MemoryObjects
from compactlib.outcome import Done
from compactlib.runtime import Observer
from compactlib.staging import CommittedRanges, Record, StagingOptions
from compactlib.staging.cleanup import TokenCleaner
from compactlib.staging.commit import CommitRequest, commit
from compactlib.staging.conditional import write_if
from compactlib.staging.context import StagingContext
from compactlib.staging.diff_cache import DiffCache
from compactlib.staging.errors import DirtyBranch, PreconditionFailed, RecordNotFound
from compactlib.staging.events import StagingEvents
from compactlib.staging.garbage import collect_garbage
from compactlib.staging.head import HeadBuilder, discard_and_move, move_head
from compactlib.staging.listing import ListRequest
from compactlib.staging.names import BRANCHES, CommitId
from compactlib.staging.reads import diff_uncommitted, get, list_branch
from compactlib.staging.record import BranchRecord, decode_branch_record
from compactlib.staging.reset import reset, reset_key, reset_prefix
from compactlib.staging.values import MetaRangeId
from compactlib.staging.writes import delete_many, put_many
from tests.staging.world import compact_now
from tests.tools.interleave.history import ABSENT, History, HistoryOperation
from tests.tools.interleave.stage import Stage
from tests.tools.interleave.stores import SteppedObjects, SteppedStore

MAIN, SOURCE, REPOSITORY = "main", "source", "repo"
A, B, K, M = b"a", b"b", b"k", b"m"
KEYS = (A, B, K, M)
OPTIONS = StagingOptions(first_backoff_seconds=0)

Contents = dict[bytes, bytes]


class LoggedStore(MemoryStore):
    """Shows its cells, so that a world can be made anew from them, and two be compared, at little cost."""

    def cells(self) -> list[tuple[bytes, bytes, bytes]]:
        return [(partition, key, cell.value) for partition, cells in self._partitions.items()
                for key, cell in cells.items()]


class WatchedStore(SteppedStore):
    """Notes each state of the branch record, and when it came to be: which HEAD was in force when."""

    def __init__(self, store: MemoryStore, stage: Stage) -> None:
        super().__init__(store, stage)
        self.records: list[tuple[int, BranchRecord]] = []
        self._watched_stage = stage
        self._behind = store

    def set_if(self, partition: bytes, key: bytes, value: Any, predicate: Predicate | None) -> None:
        super().set_if(partition, key, value, predicate)
        if key == BRANCHES + MAIN.encode():
            self.records.append((self._watched_stage.now, decode_branch_record(bytes(value), "watched")))


def context_over(store: Any, objects: Any, seed: int, *, clock: ManualClock | None = None,
                 observer: Observer | None = None, options: StagingOptions = OPTIONS) -> StagingContext:
    """What a process of its own has: its own clock, its own randomness, its own caches."""
    random = Random(seed)
    used = ManualClock(1000.0) if clock is None else clock
    committed = CommittedRanges(objects, clock=used, new_name=lambda: f"{random.getrandbits(64):016x}")
    return StagingContext.over(store, committed, REPOSITORY, options=options, clock=used, rng=random,
                               events=StagingEvents(), observer=Observer() if observer is None else observer)


@attrs.frozen
class Prepared:
    """The stores of a world before its first step."""

    cells: list[tuple[bytes, bytes, bytes]]
    objects: list[tuple[str, bytes]]
    initial: Contents
    first_commit: CommitId


def prepare(setup: str) -> Prepared:
    """`main` at HEAD{a=1, b=2} over a commit {a=0}, and `source` with m=1 on top; and what the setup adds.

    Setups, by what they say of `k`: `clean`; `staged`: in the staging token; `sealed`: k=0 in a sealed token, k=1 in
    the staging token; `compacted`: k in the compacted metarange, `a` deleted by it; `committed`: in HEAD;
    `hidden`: put in a sealed token, deleted in the staging token; `garbage`: in the staging token, and what a commit or
    a compaction will make of it lies there already, old and needed by nobody.
    """
    store, objects = LoggedStore(), MemoryObjects(clock=ManualClock(0.0))
    context = context_over(store, objects, 1)
    context.branches.create(MAIN, BranchRecord(staging_token=context.tokens.issue(MAIN)))
    put_many(context, MAIN, {A: b"0"})
    first = commit(context, MAIN, CommitRequest(message="first"))
    assert isinstance(first, Done)
    put_many(context, MAIN, {A: b"1", B: b"2"} | ({K: b"0"} if setup == "committed" else {}))
    second = commit(context, MAIN, CommitRequest(message="second"))
    assert isinstance(second, Done)
    context.branches.create(SOURCE, BranchRecord(staging_token=context.tokens.issue(SOURCE),
                                                 commit_id=second.stats.commit_id))
    put_many(context, SOURCE, {M: b"1"})
    commit(context, SOURCE, CommitRequest(message="source"))
    initial = {A: b"1", B: b"2"}
    if setup == "staged":
        put_many(context, MAIN, {K: b"0"})
        initial[K] = b"0"
    elif setup == "sealed":
        put_many(context, MAIN, {K: b"0"})
        context.branches.update(MAIN, lambda record: record.sealed_with(context.tokens.issue(MAIN)))
        put_many(context, MAIN, {K: b"1"})
        initial[K] = b"1"
    elif setup == "garbage":
        put_many(context, MAIN, {K: b"0"})
        assert isinstance(compact_now(context), Done)
        reset(context, MAIN)
        put_many(context, MAIN, {K: b"0"})
        initial[K] = b"0"
    elif setup == "hidden":
        put_many(context, MAIN, {K: b"0"})
        context.branches.update(MAIN, lambda record: record.sealed_with(context.tokens.issue(MAIN)))
        delete_many(context, MAIN, [K])
    elif setup == "compacted":
        put_many(context, MAIN, {K: b"0"})
        delete_many(context, MAIN, [A])
        assert isinstance(compact_now(context), Done)
        initial = {B: b"2", K: b"0"}
    elif setup == "committed":
        initial[K] = b"0"
    TokenCleaner(context, grace_seconds=0).run()
    return Prepared(store.cells(), [(info.key, objects.get(info.key)) for info in objects.list()], initial,
                    first.stats.commit_id)


DIRTY = ("staged", "sealed", "compacted", "garbage")
SETUPS = ("clean", "staged", "sealed", "compacted", "committed", "hidden")
_PREPARED: dict[str, Prepared] = {}
# Contents of metaranges, which are named by their content: the same in every run.
_CONTENTS: dict[MetaRangeId | None, Contents] = {None: {}}


_LIMITS = MemoryStore().limits
_STORES: dict[str, Callable[[], LoggedStore]] = {
    "": LoggedStore,
    # One key at a time, as some stores do; and a state that comes back with the same bytes (ABA).
    "cas": lambda: LoggedStore(limits=attrs.evolve(_LIMITS, max_transact=0), predicates="value"),
}


class World:
    """A repository in one run; `setup+cas` on a store that can do no more than compare and set."""

    def __init__(self, stage: Stage, setup: str, names: Iterable[str]) -> None:
        setup, _, kind = setup.partition("+")
        prepared = _PREPARED.get(setup) or _PREPARED.setdefault(setup, prepare(setup))
        clock = ManualClock(0.0)
        store, objects = _STORES[kind](), MemoryObjects(clock=clock)
        for partition, key, value in prepared.cells:
            store.set(partition, key, value)
        for name, data in prepared.objects:
            objects.create(name, data)
        clock.advance(1000.0)  # what is made from now on is young
        self.setup = setup
        self.store = WatchedStore(store, stage)
        self.objects = SteppedObjects(objects, stage)
        self.first_commit = prepared.first_commit
        self.history = History(stage, prepared.initial)
        self.contexts = {name: context_over(self.store, self.objects, 100 + number)
                         for number, name in enumerate(names)}
        self.behind = context_over(store, objects, 99)
        self._kind = kind
        self._stored = store, objects
        self.store.records.append((0, self.behind.branches.read(MAIN).record))

    def state(self) -> int:
        """A hash of all that is stored; of worlds in equal states, what is read and committed next is equal."""
        store, objects = self._stored
        files = frozenset((each.key, objects.get(each.key)) for each in objects.list())
        return hash((self.setup, self._kind, frozenset(store.cells()), files))

    def contents(self, metarange_id: MetaRangeId | None) -> Contents:
        if metarange_id not in _CONTENTS:
            _CONTENTS[metarange_id] = {key: record.data for key, record in self.behind.committed.scan(metarange_id)}
        return _CONTENTS[metarange_id]

    def contents_of(self, commit_id: CommitId | None) -> Contents:
        return self.contents(self.behind.commits.metarange_of(commit_id))

    def heads(self, begin: int, end: int) -> list[Contents]:
        """What HEAD held at any time between two steps."""
        records = self.store.records
        return [self.contents_of(record.commit_id) for place, (since, record) in enumerate(records)
                if since <= end and (place + 1 == len(records) or records[place + 1][0] >= begin)]


Act = Callable[[World, str, HistoryOperation], Any]


def op_put(value: bytes) -> Act:
    def act(world: World, actor: str, noted: HistoryOperation) -> None:
        noted.write(K, value)
        put_many(world.contexts[actor], MAIN, {K: value})
    return act


def op_delete(world: World, actor: str, noted: HistoryOperation) -> None:
    noted.write(K, ABSENT)
    delete_many(world.contexts[actor], MAIN, [K])


def op_put_if(letter: bytes) -> Act:
    def act(world: World, actor: str, noted: HistoryOperation) -> str:
        value = letter + actor.encode()  # who puts what somebody else has put may be told that both did
        noted.write(K, value)
        try:
            write_if(world.contexts[actor], MAIN, K, Record.of(value), None)
        except PreconditionFailed:
            _refused(world, noted)
            return "refused"
        except OutcomeUnknown:
            return _not_told(world, noted)
        return "written"
    return act


def op_put_if_exists(value: bytes) -> Act:
    def act(world: World, actor: str, noted: HistoryOperation) -> str:
        noted.write(K, value)
        try:
            write_if(world.contexts[actor], MAIN, K, Record.of(value), EXISTS)
        except PreconditionFailed:
            _refused(world, noted)
            return "missing"
        except OutcomeUnknown:
            return _not_told(world, noted)
        return "replaced"
    return act


def _refused(world: World, noted: HistoryOperation) -> None:
    """In one transaction it left nothing; else its value may have been seen before it found out (G4)."""
    if world.behind.store.limits.max_transact:
        noted.writes.clear()
    else:
        noted.failed = True


def _not_told(world: World, noted: HistoryOperation) -> str:
    """Only where others have written over what a token took that was replaced: it is not made once more."""
    assert not world.behind.store.limits.max_transact
    noted.failed = True
    return "unknown"


def op_get(world: World, actor: str, noted: HistoryOperation) -> None:
    try:
        noted.reads[K] = get(world.contexts[actor], MAIN, K).data
    except RecordNotFound:
        noted.reads[K] = ABSENT


def op_list(world: World, actor: str, noted: HistoryOperation) -> None:
    page = list_branch(world.contexts[actor], MAIN, ListRequest(limit=10))
    held = {each.key: each.record.data for each in page.entries if each.record is not None}
    noted.reads.update({key: held.get(key, ABSENT) for key in KEYS})


def op_diff(world: World, actor: str, noted: HistoryOperation) -> None:
    context = world.contexts[actor]
    page = diff_uncommitted(context, MAIN, cache_of(context), prefix=b"", after=None, limit=10)
    noted.result = {each.key: (None if each.left is None else each.left.data,
                               None if each.right is None else each.right.data) for each in page.differences}


def op_commit(world: World, actor: str, noted: HistoryOperation) -> Any:
    return commit(world.contexts[actor], MAIN, CommitRequest(message=actor))


def op_compact(world: World, actor: str, noted: HistoryOperation) -> Any:
    return compact_now(world.contexts[actor])


def op_compact_keeping(world: World, actor: str, noted: HistoryOperation) -> Any:
    context = world.contexts[actor]
    return compact_now(attrs.evolve(context, options=attrs.evolve(context.options, on_new_sealed="keep")))


def op_cleanup(world: World, actor: str, noted: HistoryOperation) -> Any:
    return TokenCleaner(world.contexts[actor], grace_seconds=0).run()


def op_collect(world: World, actor: str, noted: HistoryOperation) -> Any:
    return collect_garbage(world.contexts[actor], grace_seconds=500)


def op_reset(world: World, actor: str, noted: HistoryOperation) -> Any:
    noted.result = "reset"
    noted.writes.update(dict.fromkeys(KEYS, frozenset()))
    return reset(world.contexts[actor], MAIN)


def op_reset_key(world: World, actor: str, noted: HistoryOperation) -> Any:
    noted.writes[K] = frozenset()
    return reset_key(world.contexts[actor], MAIN, K)


def op_reset_prefix(world: World, actor: str, noted: HistoryOperation) -> Any:
    noted.writes[K] = frozenset()
    context = world.contexts[actor]
    return reset_prefix(context, MAIN, b"k", cache_of(context))


def op_merge(world: World, actor: str, noted: HistoryOperation) -> Any:
    context = world.contexts[actor]
    noted.write(M, b"1")  # and more, once it is known what HEAD was: see _resolve
    source = context.branches.read(SOURCE).record.commit_id
    builder = HeadBuilder(context, message="merge", metadata=None)
    try:
        return move_head(context, MAIN, cache_of(context), builder.merge(source), operation="merge")
    except DirtyBranch:
        noted.writes.clear()
        return "dirty"


def op_hard_reset(world: World, actor: str, noted: HistoryOperation) -> Any:
    target = world.contents_of(world.first_commit)
    for key in KEYS:
        noted.write(key, target.get(key, ABSENT))
    return discard_and_move(world.contexts[actor], MAIN, lambda head: world.first_commit)


def cache_of(context: StagingContext) -> DiffCache:
    return DiffCache(context.committed, 1 << 20)


OPERATIONS: Mapping[str, Act] = {
    "put": op_put(b"P"), "delete": op_delete, "put_if": op_put_if(b"I"), "get": op_get, "list": op_list,
    "commit": op_commit, "compact": op_compact, "reset": op_reset, "reset_key": op_reset_key,
    "reset_prefix": op_reset_prefix, "merge": op_merge, "hard_reset": op_hard_reset, "cleanup": op_cleanup,
    "diff": op_diff, "put_if_exists": op_put_if_exists(b"E"), "compact_keeping": op_compact_keeping,
    "put2": op_put(b"Q"), "collect": op_collect,
}


def actor_of(name: str, acts: Iterable[tuple[str, Act]]) -> Callable[[World], None]:
    """An actor that does these operations in turn; each is noted with its result."""
    def run(world: World) -> None:
        for told, act in acts:
            with world.history.operation(name, told) as noted:
                result = act(world, name, noted)
                if result is not None:
                    noted.result = result
    return run


def actors_of(*programs: Iterable[str], rules: Mapping[str, Act] | None = None) -> dict[str, Callable[[World], None]]:
    """Actors `p0`, `p1`, ... by the names of their operations; `rules` are planted in the place of the real ones."""
    known = {**OPERATIONS, **(rules or {})}
    return {f"p{number}": actor_of(f"p{number}", [(name, known[name]) for name in program])
            for number, program in enumerate(programs)}


def world_of(setup: str, actors: Iterable[str]) -> Callable[[Stage], World]:
    names = list(actors)
    return lambda stage: World(stage, setup, names)
