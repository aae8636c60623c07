# SPDX-License-Identifier: Apache-2.0
"""A deterministic simulation of the compaction scheduler: the real service and workers in a world that goes wrong.

One seed is one history: several replicas of a `SchedulerService` behind a miniature log, several `WorkerCore`, a writer
and an operator, on a network that loses, repeats and delays, with clocks that differ by more than a lease, leaders that
change and processes that crash. After each entry of the log the invariants of `scheduler_checks` are held against what
happened; then the faults end, and all work must get done. The same seed gives the same history.

>>> simulate(7)
SimulationReport(seed=7, ...)

From a shell, `python -m tests.scheduler.simulation.simulation --seed 7 --trace` shows the story of one seed, and
`--seeds 10000` runs many. `docs/scheduler.md` says what is simulated and what is checked.
"""

from __future__ import annotations

import argparse
import heapq
import itertools
import random
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NoReturn

import attrs

from compactlib.errors import CompactlibError
from compactlib.fences import LockingFence, MemoryFence
from compactlib.report import Printed, Table
from compactlib.scheduler.config import SchedulerConfig
from compactlib.scheduler.model.values import JobPhase
from compactlib.scheduler.queue.state import SchedulerState
from compactlib.scheduler.service.service import SchedulerService
from compactlib.scheduler.workers.worker_core import WorkerCore
from tests.scheduler.simulation.checks import Checks, Objects
from tests.scheduler.simulation.log import Node, elect, watch_over_leaders
from tests.scheduler.simulation.settings import SimulationSettings
from tests.scheduler.simulation.world import SimulatedWorker, Troublemaker, Writer, tend

__all__ = ["Simulation", "SimulationFailure", "SimulationReport", "SimulationSettings", "main", "simulate",
           "simulate_many"]


class SimulationFailure(CompactlibError, AssertionError):
    """An invariant did not hold.

    Attributes:
        seed: run it again with `simulate(seed, trace=True)`, or with the command that the message names.
        what: what was wrong.
        trace: the last things that happened, if the trace was on.
    """

    def __init__(self, *, seed: int, what: str, trace: str) -> None:
        super().__init__(f"seed {seed}: {what}; replay it with: python -m tests.scheduler.simulation.simulation "
                         f"--seed {seed} --trace")
        self.seed = seed
        self.what = what
        self.trace = trace


@attrs.frozen(kw_only=True)
class SimulationReport(Printed):
    """One history that went well.

    Attributes:
        seed: its seed.
        entries: entries that were committed.
        seconds: simulated time.
        counts: how often what happened: answers by verdict, jobs assigned, reassigned, completed, evicted, excluded
            (each time it was seen), objects deleted, states compared.
        trace: what happened, if it was asked for.
    """

    seed: int
    entries: int
    seconds: float
    counts: dict[str, int] = attrs.field(repr=lambda counts: f"{sum(counts.values())} events")
    trace: tuple[str, ...] = attrs.field(repr=False)

    def to_dicts(self) -> list[dict[str, Any]]:
        """One row."""
        return [{"seed": self.seed, "entries": self.entries, "seconds": self.seconds, **self.counts}]


class Simulation:
    """One world. Change what it is made of by overriding `new_service`, `new_core` and `new_fence`.

    Args:
        seed: of everything that happens by chance.
        settings: the world; by default that of the seed.
        trace: whether to print what happens.
    """

    def __init__(self, seed: int, settings: SimulationSettings | None = None, *, trace: bool = False) -> None:
        self.seed = seed
        self.settings: SimulationSettings = SimulationSettings.from_seed(seed) if settings is None else settings
        self.config: SchedulerConfig = self.settings.config
        self.rng: random.Random = random.Random(seed)
        self.now: float = self.settings.start
        self.is_rough: bool = True
        self.is_over: bool = False
        self.trace: list[str] = []
        self._tells = trace
        self._events: list[tuple[float, int, Callable[..., object], tuple[Any, ...]]] = []
        self._order = itertools.count()
        self._started = itertools.count()
        self.objects: Objects = Objects(self)
        self.writer: Writer = Writer(self, self.objects)
        self.checks: Checks = Checks(self, self.objects, self.writer.acknowledged)
        self.fence: LockingFence = self.new_fence()
        self.nodes: list[Node] = [Node(self, number, self.checks.applied) for number in range(self.settings.nodes)]
        self.workers: list[SimulatedWorker] = [SimulatedWorker(self, number, self.checks, self.objects, self.fence)
                                               for number in range(self.settings.workers)]

    # ---------------------------------------------------------------------------- what the world is made of

    def new_service(self, state: SchedulerState | None = None) -> SchedulerService:
        """The service of one replica: a new one, or one with a state that was loaded."""
        policies = self.settings.policies
        return SchedulerService(self.config, policy=policies[next(self._started) % len(policies)], state=state)

    def new_core(self) -> WorkerCore:
        """The core of one worker's process."""
        return WorkerCore(self.settings.capacity, cleanup_capacity=4, patience_seconds=10)

    def new_fence(self) -> LockingFence:
        """What jobs commit through."""
        return MemoryFence()

    # ------------------------------------------------------------------------------------- for its parts

    def after(self, seconds: float, call: Callable[..., object], *arguments: Any) -> None:
        """Let something happen later."""
        heapq.heappush(self._events, (self.now + seconds, next(self._order), call, arguments))

    def send(self, call: Callable[..., object], *arguments: Any) -> None:
        """Let something happen when a message arrives: once, twice or never."""
        settings, rng = self.settings, self.rng
        if not self.is_rough:
            self.after(0.01 + 0.02 * rng.random(), call, *arguments)
            return
        if rng.random() >= settings.loss_rate:
            self.after(rng.random() * settings.delay_seconds, call, *arguments)
        if rng.random() < settings.repeat_rate:
            self.after(rng.random() * settings.delay_seconds, call, *arguments)

    def some_leader(self) -> Node:
        """A node that believes to be the leader; mostly the right one."""
        leaders = [node for node in self.nodes if node.leads is not None]
        if not leaders:
            return self.rng.choice(self.nodes)
        if self.rng.random() < 0.8:
            return max(leaders, key=lambda node: node.term)
        return self.rng.choice(leaders)

    def note(self, text: str, *arguments: object) -> None:
        """A line of the trace."""
        if self._tells:
            self.trace.append(f"{self.now - self.settings.start:8.3f} {text.format(*arguments)}")

    def fail(self, what: str) -> NoReturn:
        """End the simulation.

        Raises:
            SimulationFailure: always.
        """
        self.note("FAILED: {}", what)
        raise SimulationFailure(seed=self.seed, what=what, trace="\n".join(self.trace))

    def unfinished(self) -> dict[str, Any]:
        """What is left to do, other than what was given up and is shown as such."""
        service = self.checks.service
        state, now = service.state, max(node.now for node in self.nodes)
        jobs = [job.name for phase, job in service.jobs(now) if phase is not JobPhase.EXCLUDED]
        found: dict[str, Any] = {"jobs": jobs, "blocks": len(state.blocks), "tombstones": len(state.tombstones),
                                 "quarantine": list(state.quarantine),
                                 "workers": [worker.number for worker in self.workers if not worker.core.is_idle]}
        return {what: left for what, left in found.items() if left}

    # --------------------------------------------------------------------------------------------- the story

    def run(self) -> SimulationReport:
        """Let everything happen.

        Raises:
            SimulationFailure: an invariant did not hold.
        """
        self._begin()
        try:
            self._run_until(self.settings.start + self.settings.rough_seconds)
            self._calm_down()
            end = self.now + self.settings.calm_seconds
            quiet = 0
            while self.now < end and quiet < 2:
                self._run_until(self.now + 5)
                quiet = 0 if self.unfinished() else quiet + 1
            # There are no more requests: now the last entries reach all nodes.
            self.is_over = True
            self._run_until(self.now + 5)
        except SimulationFailure:
            raise
        except Exception as error:
            self.note("FAILED: {!r}", error)
            raise SimulationFailure(seed=self.seed, what=f"{type(error).__name__}: {error}",
                                    trace="\n".join(self.trace)) from error
        self.checks.at_the_end(self.unfinished())
        return SimulationReport(seed=self.seed, entries=self.checks.tip, seconds=self.now - self.settings.start,
                                counts=dict(self.checks.counts), trace=tuple(self.trace))

    def _begin(self) -> None:
        settings, rng = self.settings, self.rng
        for node in self.nodes:
            node.clock_offset = rng.uniform(-settings.clock_skew, settings.clock_skew)
        watch_over_leaders(self)
        for number in range(settings.blocks):
            self.after(rng.random() * settings.rough_seconds / 2, self.writer.write, number)
        for worker in self.workers:
            self.after(rng.random() * settings.poll_seconds, worker.poll, 0)
        if settings.trouble:
            self.after(0.0, Troublemaker(self, self.checks).poll)
        self.after(settings.tick_seconds, tend, self)
        self.after(10 * rng.random(), self._misfortune)

    def _misfortune(self) -> None:
        """Something bad, perhaps, every ten seconds."""
        if not self.is_rough:
            return
        settings, rng = self.settings, self.rng
        for node in self.nodes:
            if rng.random() < 0.3:
                node.take_snapshot()
            if node.is_up and rng.random() < settings.crash_rate:
                node.crash()
                self.after(rng.random() * 10, self._restart, node)
        for worker in self.workers:
            if worker.is_up and rng.random() < settings.crash_rate:
                worker.crash()
                self.after(rng.random() * 10, self._restart, worker)
            if settings.cut_off_rate and rng.random() < settings.cut_off_rate:
                worker.cut_off_until = self.now + rng.random() * 40
                self.note("worker {} is cut off for {:.1f} s", worker.number, worker.cut_off_until - self.now)
        if rng.random() < settings.election_rate:
            self.after(rng.random() * 10, elect, self)
            if rng.random() < 0.7:
                elect(self, by_force=True)
        self.after(10 * rng.uniform(0.5, 1.5), self._misfortune)

    def _restart(self, what: Node | SimulatedWorker) -> None:
        if not what.is_up:
            what.restart()

    def _calm_down(self) -> None:
        """From now on, nothing goes wrong; what hangs or is under way still comes to its end."""
        self.note("the faults end")
        self.is_rough = False
        self.settings = attrs.evolve(self.settings, loss_rate=0.0, repeat_rate=0.0, crash_rate=0.0, hang_rate=0.0,
                                     failure_rate=0.0)
        for node in self.nodes:
            self._restart(node)
        for worker in self.workers:
            worker.cut_off_until = 0.0
            self._restart(worker)
        elect(self, by_force=True)

    def _run_until(self, time: float) -> None:
        events = self._events
        while events and events[0][0] <= time:
            self.now, _, call, arguments = heapq.heappop(events)
            call(*arguments)
        self.now = time


def simulate(seed: int, settings: SimulationSettings | None = None, *, trace: bool = False) -> SimulationReport:
    """Run one seed; takes some milliseconds.

    Raises:
        SimulationFailure: an invariant did not hold.
    """
    return Simulation(seed, settings, trace=trace).run()


def simulate_many(seeds: Iterable[int]) -> Counter[str]:
    """Run many seeds; returns what happened in all of them together, and the number of seeds and of entries.

    Raises:
        SimulationFailure: an invariant did not hold, in the first seed where that happened.
    """
    total: Counter[str] = Counter()
    for seed in seeds:
        report = simulate(seed)
        total.update(report.counts)
        total.update({"seeds": 1, "entries": report.entries})
    return total


def main(argv: Sequence[str] | None = None) -> int:
    """The command line; returns the exit code: 0, or 1 if an invariant did not hold."""
    parser = argparse.ArgumentParser(prog="python -m tests.scheduler.simulation.simulation",
                                     description="Run the compaction scheduler in a world that goes wrong.")
    parser.add_argument("--seed", type=int, default=0, help="the (first) seed (default: 0)")
    parser.add_argument("--seeds", type=int, default=1, help="how many seeds, one after the other (default: 1)")
    parser.add_argument("--trace", action="store_true", help="print what happens")
    arguments = parser.parse_args(argv)
    total: Counter[str] = Counter()
    for seed in range(arguments.seed, arguments.seed + arguments.seeds):
        try:
            report = simulate(seed, trace=arguments.trace)
        except SimulationFailure as failure:
            sys.stderr.write(f"{failure.trace}\n{failure}\n")
            return 1
        total.update({"seeds": 1, "entries": report.entries, **report.counts})
        sys.stdout.writelines(f"{line}\n" for line in report.trace)
    rows = [{"what": what, "count": count} for what, count in sorted(total.items())]
    sys.stdout.write(f"{Table.from_dicts(rows)}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
