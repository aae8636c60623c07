# SPDX-License-Identifier: Apache-2.0
"""A scheduler decides in the lab as a durable one does, which is opened again and again from its store."""

from __future__ import annotations

from typing import Any

import attrs
import pytest

from compactlib.clock import ManualClock
from compactlib.commandlog import Command, KVLog
from compactlib.kv import MemoryStore, SnapshotStore
from compactlib.lab import Arrivals, SchedulerModel
from compactlib.scheduler import (
    AddBlocks,
    AssignmentPolicy,
    ByPriority,
    FairTenants,
    LevelConfig,
    PollRequest,
    PollResponse,
    Scheduler,
    SchedulerConfig,
    SmallestFirst,
)

CONFIG = SchedulerConfig(levels=(LevelConfig(max_blocks=8, max_age_seconds=30), LevelConfig(max_blocks=3)),
                         cleanup_delay_seconds=60.0)
LOAD = Arrivals(blocks=150, burst=3)


class DurableService:
    """Answers as `SchedulerMachine` does, from a store; its commands have the times that the lab gives them."""

    def __init__(self, config: SchedulerConfig, policy: AssignmentPolicy) -> None:
        self.config = config
        self._policy = policy
        self._store = MemoryStore()
        self._clock = ManualClock()
        self._commands = self.opened = 0
        self._open()

    def _open(self) -> None:
        self.opened += 1
        self._scheduler = Scheduler(KVLog(self._store, clock=self._clock), SnapshotStore(self._store), self.config,
                                    snapshot_every=13, policy=self._policy)

    def __getattr__(self, name: str) -> Any:
        return self._scheduler.read(lambda machine: getattr(machine, name))

    def _at(self, command: Command) -> None:
        self._clock.set_now(command.appended_at)
        self._commands += 1
        if self._commands % 40 == 0:
            self._scheduler.close()
            self._open()

    def poll(self, command: Command, request: PollRequest) -> PollResponse:
        self._at(command)
        return self._scheduler.poll(request)

    def carry_out(self, command: Command, operation: Any) -> None:
        self._at(command)
        match operation:
            case AddBlocks(blocks=blocks):
                self._scheduler.add_blocks(blocks)


@pytest.mark.parametrize(("config", "policy"), [
    (CONFIG, ByPriority()), (attrs.evolve(CONFIG, max_failures=2, lease_seconds=8.0), ByPriority()),
    (CONFIG, FairTenants({"tenant-1": 3})), (CONFIG, SmallestFirst(max_wait_seconds=20.0)),
], ids=["plain", "strict", "fair", "smallest"])
def test_the_lab_decides_as_a_durable_scheduler(config: SchedulerConfig, policy: AssignmentPolicy) -> None:
    model = SchedulerModel(config=config, workers=3, hang_rate=0.2)
    mine, theirs = model.start(policy, seed=4), model.start(policy, seed=4)
    durable = DurableService(config, policy)
    theirs.machine = durable  # type: ignore[assignment]
    for simulation in (mine, theirs):
        simulation.apply(list(LOAD.rows(4)))
        simulation.finish()
    counts = mine.cut()
    assert theirs.cut() == counts
    assert durable.opened > 5
    assert counts.refused > 0
