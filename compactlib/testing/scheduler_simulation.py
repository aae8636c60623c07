"""A deterministic simulation of the compaction scheduler: the real service and workers in a world that goes wrong.

One seed is one history: several replicas of a `SchedulerService` behind a miniature log, several `WorkerCore`, a writer
and an operator, on a network that loses, repeats and delays, with clocks that differ by more than a lease, leaders that
change and processes that crash. After each entry of the log the invariants of `scheduler_checks` are held against what
happened; then the faults end, and all work must get done. The same seed gives the same history.

>>> simulate(7)
SimulationReport(seed=7, ...)

From a shell, `python -m compactlib.testing.scheduler_simulation --seed 7 --trace` tells the story of one seed, and
`--seeds 10000` runs many. `docs/scheduler-simulation.md` says what is simulated and what is checked.
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
from compactlib.report import Table
from compactlib.scheduler.config import FairShare, LevelConfig, SchedulerConfig
from compactlib.scheduler.fence import Fence, MemoryFence
from compactlib.scheduler.model import CompactedBlocks, JobPhase
from compactlib.scheduler.service import SchedulerService
from compactlib.scheduler.state import SchedulerState
from compactlib.scheduler.worker_core import WorkerCore
from compactlib.testing.scheduler_checks import Checks
from compactlib.testing.scheduler_log import Node, elect, watch_over_leaders
from compactlib.testing.scheduler_world import Objects, SimulatedWorker, Troublemaker, Writer, tend


class SimulationFailure(CompactlibError, AssertionError):
    """An invariant did not hold.

    Attributes:
        seed: run it again with `simulate(seed, trace=True)`, or with the command that the message names.
        what: what was wrong.
        trace: the last things that happened, if the trace was on.
    """

    def __init__(self, *, seed: int, what: str, trace: str) -> None:
        super().__init__(f"seed {seed}: {what}; replay it with: python -m compactlib.testing.scheduler_simulation "
                         f"--seed {seed} --trace")
        self.seed = seed
        self.what = what
        self.trace = trace


@attrs.frozen(kw_only=True)
class SimulationSettings:
    """One world. Times are in seconds, rates are probabilities.

    Attributes:
        nodes: replicas of the service.
        workers: workers, each with its own core.
        capacity: jobs at a time, for each worker.
        blocks: rows that are written, each as a block of its own.
        shards: shards that they are spread over.
        anonymous: whether the blocks of level 0 hold several tenants' data.
        rough_seconds: how long things go wrong.
        calm_seconds: how long everything may take to get done after that, at most.
        lease_seconds: length of a lease.
        clock_skew: how far the nodes' clocks differ from true time, at most, either way.
        delay_seconds: how long a message takes, at most.
        loss_rate: messages that never arrive.
        repeat_rate: messages that arrive twice.
        crash_rate: crashes of a node, and of a worker, in 10 seconds.
        election_rate: changes of the leader without need, in 10 seconds.
        poll_seconds: time between a worker's polls.
        tick_seconds: time between the operator's rounds.
        job_seconds: how long a job takes, at most.
        hang_rate: jobs that take four times as long.
        failure_rate: jobs and deletions that fail.
        obedience: workers' jobs that end when they are told to.
        cleanup_seconds: how long a deletion takes, at most.
        writer_patience: how long a block that was not acknowledged is sent again. Must be less than the scheduler's
            cleanup delay by the clock skew and the delay of messages: a block that is sent again after it was
            compacted and deleted would be added once more.
        fenced: whether jobs commit through a fence.
        reuses_results: whether a worker that finds an earlier holder's results at the fence reports those. Wrong: they
            may have been refused, and deleted, before.
        retention: whether old data is dropped.
        prepare_in_the_log: whether polls are prepared by an entry of their own, as upstream.
        careless_leaders: whether a leader may propose what was prepared in an earlier term of its own.
        over_the_wire: whether polls, answers and what followers apply were encoded and decoded.
        trouble: whether somebody polls who says what no worker should.
        check_every: after so many entries everything is checked.
        start: the time at the beginning, seconds since the epoch.
        age_hours: how old old data is.
        config: the scheduler's.
    """

    nodes: int = 3
    workers: int = 3
    capacity: int = 2
    blocks: int = 12
    shards: int = 1
    anonymous: bool = False
    rough_seconds: float = 40.0
    calm_seconds: float = 600.0
    lease_seconds: float = 5.0
    clock_skew: float = 3.0
    delay_seconds: float = 0.5
    loss_rate: float = 0.1
    repeat_rate: float = 0.1
    crash_rate: float = 0.1
    election_rate: float = 0.2
    poll_seconds: float = 2.0
    tick_seconds: float = 8.0
    job_seconds: float = 6.0
    hang_rate: float = 0.05
    failure_rate: float = 0.1
    obedience: float = 0.5
    cleanup_seconds: float = 3.0
    writer_patience: float = 8.0
    fenced: bool = True
    reuses_results: bool = False
    retention: bool = False
    prepare_in_the_log: bool = False
    careless_leaders: bool = True
    over_the_wire: bool = False
    trouble: bool = False
    check_every: int = 32
    start: float = 1_000_000.0
    age_hours: float = 48.0
    config: SchedulerConfig = attrs.field(factory=SchedulerConfig)

    @classmethod
    def from_seed(cls, seed: int) -> SimulationSettings:
        """The world of a seed: of all kinds, mild and rough."""
        rng = random.Random(seed)
        lease = 5.0
        skew = rng.choice([0.0, 1.0, 4.0, 4.9, 8.0])
        delay = rng.choice([0.05, 0.5, 3.0])
        patience = 8.0
        config = SchedulerConfig(
            levels=(LevelConfig(max_blocks=3, max_age_seconds=6), LevelConfig(max_blocks=2, max_age_seconds=12)),
            max_failures=rng.choice([0, 1, 2, 3]), lease_seconds=lease, max_queue_size=rng.choice([0, 1, 2, 4]),
            last_key=rng.choice(["age", "name"]), backoff_seconds=rng.choice([0.0, 2.0]), max_backoff_seconds=8.0,
            fair_share=rng.choice([None, None, FairShare({"A": 2})]), higher_level_share=rng.choice([0.0, 0.0, 0.3]),
            cleanup_delay_seconds=patience + 2 * skew + 2 * delay + 1, cleanup_lease_seconds=rng.choice([2.0, 20.0]),
            cleanup_batch_size=rng.choice([1, 2, 5]), standalone_cleanup=True)
        return cls(
            nodes=rng.choice([1, 3, 3, 3, 5]), workers=rng.choice([1, 2, 3, 4]), capacity=rng.choice([1, 2, 3]),
            blocks=rng.choice([4, 8, 14]), shards=rng.choice([1, 1, 2]), anonymous=rng.random() < 0.3,
            lease_seconds=lease, clock_skew=skew, delay_seconds=delay, loss_rate=rng.choice([0.0, 0.1, 0.3]),
            repeat_rate=rng.choice([0.0, 0.1, 0.3]), crash_rate=rng.choice([0.0, 0.1, 0.3]),
            election_rate=rng.choice([0.0, 0.2, 0.5]), job_seconds=rng.choice([1.0, 6.0, 12.0]),
            hang_rate=rng.choice([0.0, 0.1]), failure_rate=rng.choice([0.0, 0.1, 0.4]),
            obedience=rng.choice([0.0, 0.5, 1.0]), cleanup_seconds=rng.choice([1.0, 10.0]), writer_patience=patience,
            fenced=rng.random() < 0.5, retention=rng.random() < 0.3, prepare_in_the_log=rng.random() < 0.3,
            careless_leaders=rng.random() < 0.5, over_the_wire=rng.random() < 0.1, trouble=rng.random() < 0.2,
            config=config)


@attrs.frozen(kw_only=True)
class SimulationReport:
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

    def _repr_html_(self) -> str:
        return Table.from_dicts(self.to_dicts())._repr_html_()


class Simulation:
    """One world. Change what it is made of by overriding `new_service`, `new_core` and `new_fence`.

    Args:
        seed: of everything that happens by chance.
        settings: the world; by default that of the seed.
        trace: whether to tell what happens.
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
        self.retained_rows: set[tuple[str, int]] = set()
        self.committed_results: dict[tuple[str, int], CompactedBlocks] = {}
        self.checks: Checks = Checks(self)
        self.objects: Objects = Objects(self)
        self.writer: Writer = Writer(self)
        self.fence: Fence = self.new_fence()
        self.nodes: list[Node] = [Node(self, number) for number in range(self.settings.nodes)]
        self.workers: list[SimulatedWorker] = [SimulatedWorker(self, number) for number in range(self.settings.workers)]

    # ---------------------------------------------------------------------------- what the world is made of

    def new_service(self, state: SchedulerState | None = None) -> SchedulerService:
        """The service of one replica: a new one, or one with a state that was loaded."""
        return SchedulerService(self.config, state=state)

    def new_core(self) -> WorkerCore:
        """The core of one worker's process."""
        return WorkerCore(self.settings.capacity, cleanup_capacity=4, patience_seconds=10)

    def new_fence(self) -> Fence:
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
            # Nobody asks for anything more: now the last entries reach all nodes.
            self.is_over = True
            self._run_until(self.now + 5)
        except SimulationFailure:
            raise
        except Exception as error:
            self.note("FAILED: {!r}", error)
            raise SimulationFailure(seed=self.seed, what=f"{type(error).__name__}: {error}",
                                    trace="\n".join(self.trace)) from error
        self.checks.at_the_end()
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
            self.after(0.0, Troublemaker(self).poll)
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
    parser = argparse.ArgumentParser(prog="python -m compactlib.testing.scheduler_simulation",
                                     description="Run the compaction scheduler in a world that goes wrong.")
    parser.add_argument("--seed", type=int, default=0, help="the (first) seed (default: 0)")
    parser.add_argument("--seeds", type=int, default=1, help="how many seeds, one after the other (default: 1)")
    parser.add_argument("--trace", action="store_true", help="tell what happens")
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
