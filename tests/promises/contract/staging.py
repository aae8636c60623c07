# SPDX-License-Identifier: Apache-2.0
"""Repositories over stores in memory, and over SQLite and a folder, with their worker and their policies."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any

from compactlib.budget import Budget
from compactlib.clock import ManualClock
from compactlib.executors import LocalExecutor, RewriteTask
from compactlib.kv import KVStore, MemoryStore, Retries, SqliteStore
from compactlib.objects import LocalObjects, MemoryObjects, ObjectStore
from compactlib.observer import Observer
from compactlib.rewrite import RewriteOutcome
from compactlib.staging import (
    AlwaysPolicy,
    CommittedRanges,
    CompactionSensor,
    PressurePolicy,
    Repository,
    SplitRule,
    StagingChoice,
    StagingOptions,
    StagingPolicy,
    StagingView,
    StagingWorker,
)
from compactlib.testing import Driver, Journal, World
from compactlib.testing.views import branch_pressures, branch_views
from tests.promises.contract.services import ServiceFactory, ServiceHooks

NOW = 1_000_000.0
KEYS, FILLS = 6, 10


class Repositories(Driver[Repository]):
    """Repositories in memory: one for each world, for all owners."""

    has_peers = True

    def settings(self) -> Sequence[StagingOptions]:
        return [StagingOptions(grace_seconds=0, owns_ranges=True, retries=Retries(10, 0))]

    def open(self, world: World, settings: StagingOptions) -> Repository:
        store, objects = self.stores_of(world)
        committed = CommittedRanges(objects, rule=SplitRule(raggedness=3), clock=ManualClock(NOW), cache_bytes=0)
        repository = Repository(store, committed, policy=self.policy(), clock=ManualClock(NOW),
                                options=settings)
        if not list(repository.branches()):
            main = repository.create_branch("main")
            main.put_many({b"%d/%d" % (number, key): b"value %d" % key
                           for number in range(FILLS) for key in range(KEYS)})
            main.commit("the state before")
        return repository

    def stores_of(self, world: World) -> tuple[KVStore, ObjectStore]:
        return (world.keyed("branches", MemoryStore),
                world.objects("ranges", lambda: MemoryObjects(clock=ManualClock(NOW))))

    def act(self, store: Repository, rng: Random, journal: Journal) -> None:
        number, main = len(journal.changes), store.branch("main")
        with journal.trying({b"%d/more" % number: b"more", **{b"%d/%d" % (number, key): b"value %d" % key
                                                              for key in range(1, KEYS, 2)}}):
            main.delete_many([b"%d/%d" % (number, key) for key in range(0, KEYS, 2)])
            main.put(b"%d/more" % number, b"more")

    def check(self, store: Repository, journal: Journal, *, damage: str) -> None:
        main = store.branch("main")
        listed = {entry.key: entry.record.data for entry in main.entries() if entry.record is not None}
        for number, change in enumerate(journal.changes):
            found = {key: data for key, data in listed.items() if key.startswith(b"%d/" % number)}
            assert found == change.what

    def reader(self, world: World) -> Repository:
        return self.open(world, self.settings()[0])

    def policy(self) -> StagingPolicy:
        return AlwaysPolicy(window_seconds=0)

    def state(self, store: Repository) -> object:
        return store.branch("main").record().compacted_metarange_id

    def contents(self, world: World, store: Repository) -> Mapping[str, bytes]:
        kept, objects = self.stores_of(world)
        tokens = [b"staging/main", *(token.encode() for branch in store.branches() for token in branch.record().tokens)]
        return {**{f"{partition!r} {entry.key!r}": entry.value for partition in tokens
                   for entry in kept.scan(partition)},
                **{info.key: objects.get(info.key) for info in objects.list()}}


class RepositoriesOnDisk(Repositories):
    """Branches in SQLite, ranges in a folder."""

    def stores_of(self, world: World) -> tuple[KVStore, ObjectStore]:
        return (world.keyed("branches", lambda: SqliteStore(world.folder / "branches.sqlite", synchronous="normal")),
                world.objects("ranges", lambda: LocalObjects(world.folder / "ranges", files=world.files)))


class _Hooked:
    """A policy and an executor that have a kit's hooks in front of them."""

    name = "hooked"

    def __init__(self, hooks: ServiceHooks) -> None:
        self._hooks = hooks

    def choose(self, view: StagingView, now: float) -> StagingChoice:
        self._hooks.decides()
        return AlwaysPolicy(window_seconds=0).choose(view, now)

    def run(self, tasks: Iterable[RewriteTask], *, budget: Budget | None = None, observer: Observer | None = None,
            ) -> Iterator[RewriteOutcome]:
        assert budget is not None
        self._hooks.works(budget)
        yield from LocalExecutor().run(tasks, budget=budget, observer=observer)


class Workers(ServiceFactory):
    def make(self, folder: Path, hooks: ServiceHooks, *, observer: Observer) -> StagingWorker:
        sensor = CompactionSensor(PressurePolicy(deletes=1))
        self.repository = Repository(MemoryStore(), CommittedRanges(MemoryObjects()), sensor=sensor)
        self.branch = self.repository.create_branch("main")
        self.deleted = 0
        hooked = _Hooked(hooks)
        worker = StagingWorker(sensor, [self.repository], policy=hooked, executor=hooked, observer=observer,
                                  reclaim_seconds=3600)
        self.wake(worker)
        return worker

    def wake(self, service: Any) -> None:
        self.branch.put(b"k", b"v")
        self.branch.delete(b"k")

    def held(self, service: Any) -> Sequence[object]:
        return self.repository.status().compacting


COMPACTIONS = (Repositories(), RepositoriesOnDisk())
SERVICES = (Workers(),)
SENSE = (PressurePolicy(), PressurePolicy(deletes=1, sealed_tokens=1, tombstones_listed=1))
PLAN = (AlwaysPolicy(), AlwaysPolicy(window_seconds=0))
POLICIES = (*((policy, branch_pressures()) for policy in SENSE), *((policy, branch_views()) for policy in PLAN))
