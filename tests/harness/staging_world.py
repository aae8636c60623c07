# SPDX-License-Identifier: Apache-2.0
"""A repository in memory, and branches in any state that a caller can reach: HEAD, compacted, sealed, staged."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest

from compactlib.clock import ManualClock
from compactlib.kv import KVStore, MemoryStore, StoreFailed
from compactlib.objects import MemoryObjects, ObjectStore
from compactlib.staging import (
    AlwaysPolicy,
    Branch,
    CommitReport,
    CommittedRanges,
    Record,
    RecordNotFound,
    Repository,
    SplitRule,
    StagingOptions,
)
from compactlib.testing import ObjectsInFront, Request
from tests.harness.faulty_store import FaultyStore

State = Mapping[str, str | None]
"""Keys and values; `None` is a tombstone."""

NOW = AlwaysPolicy(window_seconds=0)
"""Compacts regardless of the window."""

KEYS_AT_ONCE = 1000


def record(value: str) -> Record:
    return Record.of(value.encode())


class HookedObjects(ObjectsInFront):
    """A proxy of objects that calls a function once, before the next create.

    Attributes:
        before_create: the function.
        keys_read: the keys of the objects that were read.
    """

    def __init__(self, objects: ObjectStore) -> None:
        super().__init__(objects, self._meet)
        self.before_create: Callable[[], object] | None = None
        self.keys_read: list[str] = []

    def _meet(self, request: Request, act: Callable[[], Any]) -> Any:
        if request.kind in ("get", "get_range"):
            self.keys_read.append(request.path)
        elif request.kind == "create" and (hook := self.before_create) is not None:
            self.before_create = None
            hook()
        return act()


class StagingWorld:
    """One repository over one store; `store` counts and records every operation.

    `make_store` makes the default store.
    """

    make_store: Callable[[], KVStore] = staticmethod(MemoryStore)

    def __init__(self, store: KVStore | None = None, objects: ObjectStore | None = None, *, seed: int = 1,
                 rule: SplitRule | None = None, options: StagingOptions | None = None) -> None:
        self.clock = ManualClock(1_000_000.0)
        self._sealing = self._has_sealed = False
        self.store = FaultyStore(type(self).make_store() if store is None else store, self._fault)
        self.objects = self.hooks = HookedObjects(MemoryObjects(clock=self.clock) if objects is None else objects)
        self.committed = CommittedRanges(self.objects, rule=rule, clock=self.clock)
        self.repo = Repository(self.store, self.committed, clock=self.clock, rng=random.Random(seed), options=options)

    def metarange(self, state: State) -> Any:
        """Return the identity of committed content."""
        found = [(key.encode(), None if value is None else record(value)) for key, value in sorted(state.items())]
        return self.committed.apply(None, found).metarange_id

    def branch(self, head: State | None = None, *, name: str = "main", staged: State | None = None,
               sealed: Sequence[State] = (), compacted: State | None = None) -> Branch:
        """Make a branch in this state; `sealed` newest first."""
        branch = self.repo.create_branch(name)
        if head is not None:
            self.write(branch, head)
            committed(branch.commit("made by hand", allow_empty=True))
        if compacted is not None:
            removed: State = dict.fromkeys(head or {})
            self.write(branch, {**removed, **compacted})
            assert not self.repo.compact(branch=name, policy=NOW).is_empty
            self.clock.advance(301)
        for layer in reversed(sealed):
            self.write(branch, layer)
            self.seal(branch)
        self.write(branch, staged or {})
        return branch

    def write(self, branch: Branch, state: State) -> None:
        """Stage values and tombstones."""
        puts = [(key.encode(), value.encode()) for key, value in state.items() if value is not None]
        gone = [key.encode() for key, value in state.items() if value is None]
        for start in range(0, len(puts), KEYS_AT_ONCE):
            branch.put_many(dict(puts[start:start + KEYS_AT_ONCE]))
        for start in range(0, len(gone), KEYS_AT_ONCE):
            branch.delete_many(gone[start:start + KEYS_AT_ONCE])

    def seal(self, branch: Branch) -> None:
        """Seal the staged entries, by a commit that fails after its first step."""
        self._sealing, self._has_sealed = True, False
        try:
            with contextlib.suppress(StoreFailed):
                branch.commit("its writer cannot write any more")
        finally:
            self._sealing = False

    def _fault(self, operation: Request) -> None:
        if self._sealing and operation.changes:
            # Without staged entries nothing is sealed, and the commit's own write is first.
            if self._has_sealed or operation.key.startswith(b"commits/"):
                raise StoreFailed(operation=operation.kind, path="a store under test", detail="refused")
            self._has_sealed = operation.kind == "set_if" and operation.key.startswith(b"branches/")

    def compact(self, branch: str = "main") -> None:
        self.clock.advance(301)
        self.repo.compact(branch=branch)

    def clean(self) -> None:
        """Free all dropped ranges and tokens, as another process."""
        other = Repository(self.store, self.committed, clock=self.clock, rng=random.Random(99),
                           options=StagingOptions(grace_seconds=0))
        other.reclaim()

    def token_reads(self) -> int:
        """Return the number of requests for entries of tokens since the last call."""
        reads = sum(operation.kind in ("get", "get_many") and operation.partition.startswith(b"stg-")
                    for operation in self.store.operations)
        self.store.operations.clear()
        return reads

    def token_writes(self) -> int:
        """Return the number of written entries of tokens since the last call."""
        writes = sum(operation.kind in ("set", "set_if", "transact", "delete")
                     and (operation.partition.startswith(b"stg-") or operation.kind == "transact")
                     for operation in self.store.operations)
        self.store.operations.clear()
        return writes


def contents(branch: Branch) -> dict[str, str]:
    """Return the listing of the branch."""
    return {entry.key.decode(): entry.record.data.decode() for entry in branch.entries() if entry.record is not None}


def head_contents(branch: Branch) -> dict[str, str]:
    return {key.decode(): value.data.decode() for key, value in branch.head().records()}


def diff(branch: Branch) -> list[str]:
    """Return the uncommitted changes, one text for each difference."""
    found = []
    for difference in branch.differences():
        left = "" if difference.left is None else difference.left.data.decode()
        right = "" if difference.right is None else difference.right.data.decode()
        found.append(f"{difference.key.decode()} {difference.kind} {left}->{right}")
    return found


def committed(report: Any) -> Any:
    """Return the numbers of a successful commit or move of HEAD."""
    assert not report.is_empty, report
    assert report.commit_id
    return report


def ended(report: CommitReport) -> str:
    """Return how a commit or a move of HEAD ended."""
    if not report.is_empty:
        return "committed"
    return "already_committed" if report.why.startswith("another commit") else "no_changes"


def missing(branch: Branch, key: bytes) -> bool:
    with pytest.raises(RecordNotFound):
        branch.get(key)
    return True


def sigma(world: StagingWorld | None = None) -> tuple[StagingWorld, Branch]:
    """Make a branch: HEAD{a=1,b=2}, then delete a, put c=3, compact."""
    world = StagingWorld() if world is None else world
    main = world.branch({"a": "1", "b": "2"})
    main.delete(b"a")
    main.put(b"c", b"3")
    world.compact()
    assert main.record().compacted_metarange_id is not None
    return world, main
