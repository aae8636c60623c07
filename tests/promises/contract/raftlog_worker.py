# SPDX-License-Identifier: Apache-2.0
"""The worker that compacts a Raft log, and writes its snapshots."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from compactlib.budget import Budget
from compactlib.executors import LocalExecutor, RewriteFailure, RewriteResult, RewriteTask
from compactlib.observer import Observer
from compactlib.raftlog import (
    LogChoice,
    LogCompactionWorker,
    LogOptions,
    LogView,
    MachineCopy,
    SeedPolicy,
    SegmentLimits,
    SegmentLog,
    SnapshotWriter,
    StoreOptions,
    open_log,
)
from tests.promises.contract.services import ServiceFactory, ServiceHooks


class _Hooked:
    """An executor that has a kit's hook in front of it."""

    def __init__(self, hooks: ServiceHooks) -> None:
        self._hooks = hooks

    def run(self, tasks: Iterable[RewriteTask], *, budget: Budget | None = None, observer: Observer | None = None
            ) -> Iterator[RewriteResult | RewriteFailure]:
        assert budget is not None
        self._hooks.works(budget)
        yield from LocalExecutor().run(tasks, budget=budget, observer=observer)


class _Deciding:
    """A policy that has a kit's hook in front of it."""

    name = "deciding"

    def __init__(self, hooks: ServiceHooks) -> None:
        self._hooks = hooks

    def choose(self, view: LogView, now: float) -> LogChoice:
        self._hooks.decides()
        return SeedPolicy().choose(view, now)


class Workers(ServiceFactory):
    def make(self, folder: Path, hooks: ServiceHooks, *, observer: Observer) -> LogCompactionWorker:
        self.log = log = SegmentLog(folder, LogOptions(limits=SegmentLimits(max_entries=4), observer=observer))
        log.append((index, 1, b"x" * 100) for index in range(1, 40))
        log.snapshot(30, live=[2, 6, 10, 14])
        self.policy = _Deciding(hooks)
        worker = LogCompactionWorker(log, executor=_Hooked(hooks), every_seconds=None)
        worker.request(self.policy)
        return worker

    def wake(self, service: Any) -> None:
        service.request(self.policy)

    def held(self, service: Any) -> Sequence[object]:
        if self.log.status().is_busy:
            return ["a compaction"]
        # Nothing that was dropped waits for the end of a lease.
        reclaimed = self.log.reclaim()
        return [reclaimed] if reclaimed.waiting else []

    def release(self, service: Any) -> None:
        self.log.close()


class _HookedWriter(SnapshotWriter):
    """Calls a kit's hook in its long work, with the budget of that."""

    hooks: ServiceHooks

    def write(self, budget: Budget) -> None:
        self.hooks.works(budget)
        super().write(budget)


class Writers(ServiceFactory):
    """Writers with a snapshot due at each call."""

    def make(self, folder: Path, hooks: ServiceHooks, *, observer: Observer) -> SnapshotWriter:
        self.log = log = open_log(folder / "log", StoreOptions(log=LogOptions(observer=observer), background=False))
        self.folder = Path(log.folder) / "snapshots"

        def applied() -> int:
            hooks.decides()
            log.append([(log.last_index + 1, 1, b"x")])
            return log.last_index

        writer = _HookedWriter(log, applied=applied, copy=lambda: MachineCopy(log.last_index, [], [b"state"]),
                               when=1, every_seconds=0.01)
        writer.hooks = hooks
        return writer

    def wake(self, service: Any) -> None:
        service.request()

    def held(self, service: Any) -> Sequence[object]:
        """The folder has the snapshot in force and no other."""
        whole = {self.log.state.index} if self.log.state.manifest is not None else set()
        names = [path.name for path in self.folder.iterdir()] if self.folder.exists() else []
        return [name for name in names if int(name.split("-")[0]) not in whole] if whole else names

    def release(self, service: Any) -> None:
        self.log.close()


SERVICES = (Workers(), Writers())
