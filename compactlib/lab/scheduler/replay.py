# SPDX-License-Identifier: Apache-2.0
"""Replays arriving blocks against a scheduler's configuration: the real `SchedulerMachine`, without data.

A seed draws when blocks arrive, how large they are, and which jobs hang or fail. Workers poll at a fixed pace, hold a
job for as long as its bytes take, report, and delete what the scheduler says is not read any more. One that hangs
reports late, after its lease, and is refused by its token; a job that fails is reported as failed, and tried again.
"""

from __future__ import annotations

import heapq
from random import Random

import attrs

from compactlib._arguments import is_seconds, is_whole
from compactlib.lab.scheduler.report import SchedulerMeasures, SchedulerReport
from compactlib.lab.scheduler.world import SchedulerLoad, SchedulerWorld, WorldNumbers, changes
from compactlib.observer import Observer, Observers
from compactlib.report import PolicyRecord
from compactlib.scheduler import AssignmentPolicy, ByPriority, SchedulerConfig

_DEFAULT = SchedulerConfig()


@attrs.frozen(kw_only=True)
class SchedulerSettings:
    """How a scheduler is replayed.

    Attributes:
        assignment: which job a poll gives out first.
        patience_seconds: how long after the last arrival workers go on polling, at most, >= 0.
        intervals: into about how many parts the report is cut, by time, at least 1.
        capacity_bytes: of the store that holds the blocks, for `peak_fill`; nothing is refused above it. 0: unknown.

    Raises:
        InvalidInput: a value is out of its range or of another type.
    """

    assignment: AssignmentPolicy = attrs.field(factory=ByPriority)
    patience_seconds: float = attrs.field(default=86_400.0, validator=is_seconds())
    intervals: int = attrs.field(default=20, validator=is_whole(1))
    capacity_bytes: int = attrs.field(default=0, validator=is_whole())

    def replay(self, workload: SchedulerLoad, policy: SchedulerConfig, *, seed: int,
               observer: Observer | None = None) -> SchedulerReport:
        """See `replay_scheduler`, and `Setup.replay`."""
        return replay_scheduler(policy, workload, self, seed=seed, observer=observer)

    def read_report(self, text: str) -> SchedulerReport:
        """See `Setup.read_report`."""
        return SchedulerReport.from_json(text)

    def name_of(self, policy: SchedulerConfig) -> str:
        """See `Setup.name_of`: the settings that are not the default ones."""
        return changes(policy, _DEFAULT) or "default"


def replay_scheduler(config: SchedulerConfig, load: SchedulerLoad, settings: SchedulerSettings | None = None, *,
                     seed: int = 0, observer: Observer | None = None) -> SchedulerReport:
    """What `config` makes of `load`. Equal arguments give equal reports.

    The replay ends once every block that can be compacted has been, no worker is busy, and what is dead is deleted; or
    when patience runs out.

    Args:
        config: the scheduler's.
        load: what arrives, and the workers.
        settings: how long it goes on, and how the report is cut.
        seed: of arrivals, sizes, hangs and failures.
        observer: notified of progress, in blocks that arrived.
    """
    chosen = SchedulerSettings() if settings is None else settings
    return _Replay(config, load, chosen, seed, Observers() if observer is None else observer).run()


class _Replay:
    """The events in order of time, and the stretches that the report consists of."""

    def __init__(self, config: SchedulerConfig, load: SchedulerLoad, settings: SchedulerSettings, seed: int,
                 observer: Observer) -> None:
        self.random = Random(seed)
        self.world = SchedulerWorld(config, load, self.random, Random(f"{seed} fates"), settings.assignment)
        self.load, self.settings, self.observer = load, settings, observer
        chosen = "" if settings.assignment == ByPriority() else f", {PolicyRecord.of(settings.assignment)}"
        self.policy = f"scheduler({changes(config, _DEFAULT)}{chosen})"
        self.intervals: list[SchedulerMeasures] = []
        self.started = 0.0
        self.samples: list[tuple[int, int]] = []

    def run(self) -> SchedulerReport:
        load, world = self.load, self.world
        arrivals = self._arrivals()
        last = arrivals[-1]
        step = max(last / self.settings.intervals, load.poll_seconds)
        events = [(at, 0, number) for number, at in enumerate(arrivals)]
        events += [(worker * load.poll_seconds / load.workers, 1, worker) for worker in range(load.workers)]
        events.append((load.tick_seconds, 2, 0))
        heapq.heapify(events)
        now = 0.0
        while events:
            now, kind, number = heapq.heappop(events)
            while now > self.started + step and self.started + step < last:
                self._close_interval(self.started + step)
            if kind == 0:
                world.arrive(number, now)
                self._tell(number + 1)
            elif now <= last + self.settings.patience_seconds and not (now > last and world.is_quiet()):
                if kind == 1:
                    world.work(number, now)
                else:
                    world.tick(now)
                    self._sample()
                heapq.heappush(events, (now + (load.poll_seconds if kind == 1 else load.tick_seconds), kind, number))
        self._close_interval(now)
        return SchedulerReport(policy=self.policy, workload=str(load), intervals=tuple(self.intervals))

    def _arrivals(self) -> list[float]:
        load, at, times = self.load, 0.0, []
        for number in range(load.blocks):
            if number % load.burst_blocks == 0:
                at += self.random.expovariate(load.blocks_per_second / load.burst_blocks)
            times.append(at)
        return times

    def _tell(self, arrived: int) -> None:
        if arrived % 100 == 0 or arrived == self.load.blocks:
            self.observer.event("progress", work=f"replay {self.load.name} against a scheduler", done=arrived,
                                total=self.load.blocks, unit="blocks")

    def _sample(self) -> None:
        self.samples.append((self.world.numbers.used_bytes, self.world.numbers.live_bytes))

    def _close_interval(self, now: float) -> None:
        self._sample()
        numbers = self.world.numbers
        used = sum(used for used, _ in self.samples)
        self.intervals.append(SchedulerMeasures(
            start=self.started, end=now, capacity_bytes=self.settings.capacity_bytes, used_sum=used, record_sum=used,
            live_sum=sum(live for _, live in self.samples), given_up=self.world.given_up,
            left_blocks=self.world.left_blocks, **attrs.asdict(numbers)))
        self.world.numbers = WorldNumbers(used_bytes=numbers.used_bytes, live_bytes=numbers.live_bytes,
                                          peak_used_bytes=numbers.used_bytes)
        self.samples.clear()
        self.started = now
