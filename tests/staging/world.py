# SPDX-License-Identifier: Apache-2.0
"""A repository in memory, and branches put into any state by hand: HEAD, compacted, staged, sealed."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence

import pytest

from compactlib.clock import ManualClock
from compactlib.kv import KVStore, MemoryStore
from compactlib.objects import MemoryObjects, ObjectStore
from compactlib.observer import Observer
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
from compactlib.staging.names import CommitId
from compactlib.staging.record import BranchRecord
from compactlib.staging.staged import Staged
from compactlib.staging.values import Change, Difference, MetaRangeId
from tests.harness.faulty_store import FaultyStore

State = Mapping[str, str | None]
"""Keys and values; `None` is a tombstone."""


NOW = AlwaysPolicy(window_seconds=0)
"""Compacts whatever the window says."""


def record(value: str) -> Record:
    return Record.of(value.encode())


def changes(state: State) -> list[tuple[bytes, Change]]:
    return [(key.encode(), None if value is None else record(value)) for key, value in sorted(state.items())]


class World:
    """One repository over one store; `store` counts and records every operation.

    `make_store` gives the store of those that are made without one.
    """

    make_store: Callable[[], KVStore] = staticmethod(MemoryStore)

    def __init__(self, store: KVStore | None = None, objects: ObjectStore | None = None, *,
                 options: StagingOptions | None = None, seed: int = 1,
                 rule: SplitRule | None = None, observer: Observer | None = None) -> None:
        self.clock = ManualClock(1_000_000.0)
        self.store = FaultyStore(type(self).make_store() if store is None else store)
        self.objects = MemoryObjects(clock=self.clock) if objects is None else objects
        self.committed = CommittedRanges(self.objects, rule=rule, clock=self.clock)
        self.repo = Repository(self.store, self.committed, clock=self.clock, rng=random.Random(seed),
                               options=options, observer=observer)
        self.context = self.repo.context

    def another_repo(self, options: StagingOptions | None = None) -> Repository:
        """What another process has over the same stores."""
        return Repository(self.store, self.committed, clock=self.clock, rng=random.Random(99), options=options)

    def metarange(self, state: State) -> MetaRangeId:
        return self.committed.apply(None, changes(state)).metarange_id

    def make_commit(self, state: State, *parents: CommitId) -> CommitId:
        commits = self.context.commits
        return commits.store(commits.make(self.metarange(state), parents, message="made by hand", metadata=None,
                                          created_at=self.clock.now()))

    def branch(self, head: State | None = None, *, name: str = "main", staged: State | None = None,
               sealed: Sequence[State] = (), compacted: State | None = None) -> Branch:
        """A branch in this state; `sealed` newest first."""
        tokens = self.context.tokens
        layers = [staged or {}, *sealed]
        issued = [tokens.draw() for _ in layers]
        for token, layer in zip(issued, layers, strict=True):
            for key, change in changes(layer):
                tokens.set_many(token, {key: Staged(change)})
        self.context.branches.create(name, BranchRecord(
            commit_id=None if head is None else self.make_commit(head), staging_token=issued[0],
            sealed_tokens=tuple(issued[1:]),
            compacted_metarange_id=None if compacted is None else self.metarange(compacted)))
        return self.repo.branch(name)

    def compact(self, branch: str = "main") -> None:
        self.clock.advance(301)
        self.repo.compact(branch=branch)

    def token_reads(self) -> int:
        """How many single entries of tokens were asked for since the last call."""
        reads = sum(operation.kind == "get" and operation.partition.startswith(b"stg-")
                    for operation in self.store.operations)
        self.store.operations.clear()
        return reads

    def token_writes(self) -> int:
        """How many entries of tokens were written since the last call."""
        writes = sum(operation.kind in ("set", "set_if", "transact", "delete")
                     and (operation.partition.startswith(b"stg-") or operation.kind == "transact")
                     for operation in self.store.operations)
        self.store.operations.clear()
        return writes


def contents(branch: Branch) -> dict[str, str]:
    """Everything that the branch lists."""
    return {entry.key.decode(): entry.record.data.decode() for entry in branch.entries() if entry.record is not None}


def head_contents(branch: Branch) -> dict[str, str]:
    return {key.decode(): value.data.decode() for key, value in branch.head().records()}


def told(difference: Difference) -> str:
    left = "" if difference.left is None else difference.left.data.decode()
    right = "" if difference.right is None else difference.right.data.decode()
    return f"{difference.key.decode()} {difference.kind} {left}->{right}"


def diff(branch: Branch) -> list[str]:
    """Everything uncommitted, one text for each difference."""
    return [told(difference) for difference in branch.differences()]


def committed(report: CommitReport) -> CommitReport:
    assert not report.is_empty, report
    return report


def missing(branch: Branch, key: bytes) -> bool:
    with pytest.raises(RecordNotFound):
        branch.get(key)
    return True


def sigma(world: World | None = None) -> tuple[World, Branch]:
    """HEAD{a=1,b=2}, delete a, put c=3, compact."""
    world = World() if world is None else world
    main = world.branch({"a": "1", "b": "2"})
    main.delete(b"a")
    main.put(b"c", b"3")
    world.compact()
    assert main.record().compacted_metarange_id is not None
    return world, main
