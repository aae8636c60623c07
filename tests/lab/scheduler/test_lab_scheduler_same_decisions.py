# SPDX-License-Identifier: Apache-2.0
"""A scheduler decides in the lab as a durable one does, which is opened anew from its store again and again."""

from __future__ import annotations

import attrs
import pytest

from compactlib.clock import ManualClock
from compactlib.commandlog import Command, KVLog
from compactlib.kv import MemoryStore, SnapshotStore
from compactlib.lab import SchedulerLoad, SchedulerSettings, replay_scheduler, scheduler as scheduler_world
from compactlib.scheduler import (
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
from compactlib.scheduler.state import SchedulerState
from compactlib.scheduler.update import AddBlocks, Operation, Tick

CONFIG = SchedulerConfig(levels=(LevelConfig(max_blocks=8, max_age_seconds=30), LevelConfig(max_blocks=3)),
                         cleanup_delay_seconds=60.0)
LOAD = SchedulerLoad(blocks=150, workers=3, hang_rate=0.15, failure_rate=0.15, burst_blocks=3)


class DurableService:
    """Answers as `SchedulerMachine` does, from a store; its commands have the times that the lab gives them."""

    opened = 0

    def __init__(self, config: SchedulerConfig, policy: AssignmentPolicy) -> None:
        self.config = config
        self._policy = policy
        self._store = MemoryStore()
        self._clock = ManualClock()
        self._commands = 0
        self._open()

    def _open(self) -> None:
        DurableService.opened += 1
        self._scheduler = Scheduler(KVLog(self._store, clock=self._clock), SnapshotStore(self._store), self.config,
                                    snapshot_every=13, policy=self._policy)

    @property
    def state(self) -> SchedulerState:
        return self._scheduler.look(lambda machine: machine.state)

    def _at(self, command: Command) -> None:
        self._clock.set_now(command.appended_at)
        self._commands += 1
        if self._commands % 40 == 0:
            self._scheduler.close()
            self._open()

    def poll(self, command: Command, request: PollRequest) -> PollResponse:
        self._at(command)
        return self._scheduler.poll(request)

    def carry_out(self, command: Command, operation: Operation) -> None:
        self._at(command)
        match operation:
            case AddBlocks(blocks=blocks):
                self._scheduler.add_blocks(blocks)
            case Tick():
                self._scheduler.tick()
        self._scheduler.audit()


@pytest.mark.parametrize(("config", "policy"), [
    (CONFIG, ByPriority()), (attrs.evolve(CONFIG, max_failures=2, lease_seconds=8.0), ByPriority()),
    (CONFIG, FairTenants({"tenant-1": 3}, higher_level_share=0.5)), (CONFIG, SmallestFirst(max_wait_seconds=20.0)),
], ids=["plain", "strict", "fair", "smallest"])
def test_the_lab_decides_as_a_durable_scheduler(config: SchedulerConfig, policy: AssignmentPolicy,
                                                monkeypatch: pytest.MonkeyPatch) -> None:
    settings = SchedulerSettings(assignment=policy, patience_seconds=1_000)
    mine = replay_scheduler(config, LOAD, settings, seed=4)
    monkeypatch.setattr(scheduler_world, "SchedulerMachine", DurableService)
    before = DurableService.opened
    theirs = replay_scheduler(config, LOAD, settings, seed=4)
    assert theirs == mine
    assert DurableService.opened - before > 5
    assert mine.total.refused > 0
    assert mine.total.failed > 0
