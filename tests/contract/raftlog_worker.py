# SPDX-License-Identifier: Apache-2.0
"""The worker that compacts a Raft log."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from compactlib.executors import LocalExecutor, RewriteFailure, RewriteResult, RewriteTask
from compactlib.outcome import Done
from compactlib.raftlog import LogCompactionWorker, LogOptions, SegmentLimits, SegmentLog
from compactlib.raftlog.log.worker import SegmentChanges
from compactlib.runtime.budget import Budget
from compactlib.runtime.observe import Observer
from compactlib.testing import ServiceFactory
from compactlib.testing.services.factory import ServiceHooks


class _Hooked:
    """An executor that has a kit's hook in front of it."""

    def __init__(self, hooks: ServiceHooks) -> None:
        self._hooks = hooks

    def run(self, tasks: Iterable[RewriteTask], *, budget: Budget | None = None, observer: Observer | None = None
            ) -> Iterator[RewriteResult | RewriteFailure]:
        assert budget is not None
        self._hooks.works(budget)
        yield from LocalExecutor().run(tasks, budget=budget, observer=observer)


class Workers(ServiceFactory):
    def make(self, folder: Path, hooks: ServiceHooks, *, observer: Observer) -> LogCompactionWorker:
        self.log = log = SegmentLog(folder, LogOptions(limits=SegmentLimits(max_entries=4)))
        log.extend((index, 1, b"x" * 100) for index in range(1, 40))
        log.record_snapshot(30, live=[2, 6, 10, 14])

        def server(changes: SegmentChanges, outcome: object) -> None:
            hooks.decides()

        worker = LogCompactionWorker(log, server=server, executor=_Hooked(hooks), observer=observer)
        worker.request(log.policy)
        return worker

    def wake(self, service: Any) -> None:
        service.request(self.log.policy)

    def held(self, service: Any) -> Sequence[object]:
        if self.log.status().is_busy:
            return ["a compaction"]
        # Nothing that was dropped waits for the end of a lease.
        reclaimed = self.log.reclaim()
        return [reclaimed] if isinstance(reclaimed, Done) and reclaimed.stats.waiting else []

    def release(self, service: Any) -> None:
        self.log.close()


SERVICES = (Workers(),)
