# SPDX-License-Identifier: Apache-2.0
"""What surrounds the scheduler in its simulation: a writer of blocks, workers, an operator."""

from __future__ import annotations

from functools import partial

import attrs

from compactlib.clock import ManualClock
from compactlib.fences import FencedOff, LockingFence
from compactlib.runtime.budget import Budget
from compactlib.scheduler.config import SchedulerConfig
from compactlib.scheduler.model.poll import PollRequest, PollResponse, StatusUpdate, Verdict
from compactlib.scheduler.model.update import (
    AddBlocks,
    Applied,
    ApplyResult,
    BlocksAdded,
    Configure,
    Requeue,
    Retain,
    Tick,
)
from compactlib.scheduler.model.values import BlockMeta, CompactedBlocks, NoOutput, Tombstone, span_of
from compactlib.scheduler.persistence.codec import decode_message, encode_message
from compactlib.scheduler.workers.running_job import RunningJob
from compactlib.scheduler.workers.worker_core import (
    Clean,
    Crashed,
    Effect,
    Finished,
    GivenBack,
    Renewed,
    RunOutcome,
    Settled,
    Start,
    Stop,
    WorkerCore,
)
from tests.scheduler.simulation.checks import Checks, Objects
from tests.scheduler.simulation.log import Node, World

_HOUR = 3600.0
_STANDING_CLOCK = ManualClock()
"""Simulated jobs do not ask how long their leases last."""


class Writer:
    """Adds a block for each row, and tries again until it is acknowledged or it has to give up."""

    def __init__(self, sim: World, objects: Objects) -> None:
        self._sim = sim
        self._objects = objects
        self.tried: set[tuple[str, int]] = set()
        self.acknowledged: set[tuple[str, int]] = set()

    def write(self, number: int) -> None:
        """Write row `number`."""
        sim, rng = self._sim, self._sim.rng
        settings = sim.settings
        row = (rng.choice("AB"), number)
        tenant = "" if settings.anonymous else row[0]
        time = settings.start + (number % 3) * _HOUR - settings.age_hours * _HOUR * (number % 2)
        block = BlockMeta(id=f"row-{number}", tenant=tenant, shard=rng.randrange(settings.shards), level=0,
                          min_time=time, max_time=time + 60, size_bytes=10)
        self._objects.put(block, frozenset([row]))
        self.tried.add(row)
        self._send(block, row, sim.now + settings.writer_patience)

    def _send(self, block: BlockMeta, row: tuple[str, int], until: float) -> None:
        sim = self._sim
        if row in self.acknowledged or sim.now > until:
            return
        sim.send(self._arrive, sim.some_leader(), block, row)
        sim.after(2.0 + sim.rng.random(), self._send, block, row, until)

    def _arrive(self, node: Node, block: BlockMeta, row: tuple[str, int]) -> None:
        node.propose(AddBlocks((block,)), lambda result: self._sim.send(self._added, row, result))

    def _added(self, row: tuple[str, int], result: ApplyResult) -> None:
        # "Tombstoned" promises nothing: the block is too old, or a late copy of one that was compacted.
        if isinstance(result, BlocksAdded) and not result.tombstoned:
            self.acknowledged.add(row)


class Troublemaker:
    """Says what no worker should: old tokens, tokens of the future, unknown jobs, wrong results, all of it twice."""

    def __init__(self, sim: World, checks: Checks) -> None:
        self._sim = sim
        self._checks = checks
        self._names: list[str] = ["no such job"]

    def poll(self) -> None:
        """Poll, and again after a while."""
        sim, rng = self._sim, self._sim.rng
        if not sim.is_rough:
            return
        self._names = ["no such job", *sorted(job.name for job in self._checks.service.state.jobs)]
        updates = [self._update() for _ in range(rng.randrange(1, 4))]
        sim.send(self._arrive, sim.some_leader(), PollRequest(tuple(updates * rng.randrange(1, 3))))
        sim.after(3 * rng.random(), self.poll)

    def _update(self) -> StatusUpdate:
        rng = self._sim.rng
        name = rng.choice(self._names)
        job = self._checks.service.state.jobs.get(name)
        # A token between the job's and the log's end would be as good as the holder's: only seals show it.
        stale = rng.randrange(job.token) if job is not None and job.token else 0
        token = rng.choice([stale, stale, -1, 1 << 40, (1 << 64) - 1])
        block = BlockMeta(id="trouble", tenant=rng.choice("AB"), shard=rng.randrange(3), level=rng.randrange(3))
        results = CompactedBlocks(tenant=rng.choice("AB"), shard=0, source_blocks=("row-0",) * rng.randrange(3),
                                  new_blocks=(block,) * rng.randrange(2), no_output=rng.choice([None, *NoOutput]))
        return StatusUpdate(name, token, rng.choice([0, 1, 1, 2, 2, 3, 4, 99]), rng.choice([None, results]), "trouble")

    def _arrive(self, node: Node, request: PollRequest) -> None:
        node.poll(request, partial(self._reply, request))

    def _reply(self, request: PollRequest, result: ApplyResult) -> None:
        if isinstance(result, Applied):
            self._checks.answered(request, result.response)
            accepted = [answer.name for answer in result.response.answers if answer.verdict is Verdict.ACCEPTED]
            if accepted:
                self._sim.fail(f"trouble about {accepted} was accepted: {request}")


def as_sent(sim: World, message: PollRequest | PollResponse) -> object:
    """The message as it arrives: encoded and decoded, in some worlds."""
    return decode_message(encode_message(message)) if sim.settings.over_the_wire else message


class SimulatedWorker:
    """A real `WorkerCore`, and threads that are events.

    Args:
        sim: the world that it is in.
        number: which.
        checks: sees the messages it gets and what it does.
        objects: what its jobs read and write.
        fence: what they commit through.
    """

    def __init__(self, sim: World, number: int, checks: Checks, objects: Objects, fence: LockingFence) -> None:
        self._sim = sim
        self.number: int = number
        self._checks = checks
        self._objects = objects
        self._fence = fence
        self._clock_rate = 1 + sim.rng.uniform(-0.05, 0.05)
        self.is_up: bool = True
        self.cut_off_until: float = 0.0
        self._life = 0
        self.core: WorkerCore = sim.new_core()
        self._running: dict[int, RunningJob] = {}

    def poll(self, life: int) -> None:
        """Poll, and again after a while."""
        sim = self._sim
        if life != self._life or sim.is_over:
            return
        now = sim.now * self._clock_rate
        self._carry_out(self.core.give_up_overdue(now))
        request = self.core.poll(now)
        if request is not None and sim.now >= self.cut_off_until:
            sim.send(self._arrive, life, sim.some_leader(), request)
        sim.after(sim.settings.poll_seconds * sim.rng.uniform(0.8, 1.2), self.poll, life)

    def _arrive(self, life: int, node: Node, request: PollRequest) -> None:
        arrived = as_sent(self._sim, request)
        assert isinstance(arrived, PollRequest)
        node.poll(arrived, partial(self._reply, life, request))

    def _reply(self, life: int, request: PollRequest, result: ApplyResult) -> None:
        if isinstance(result, Applied):
            self._checks.answered(request, result.response)
            self._sim.send(self._answered, life, request, as_sent(self._sim, result.response))

    def _answered(self, life: int, request: PollRequest, response: PollResponse) -> None:
        if life == self._life and self.is_up and self._sim.now >= self.cut_off_until:
            self._carry_out(self.core.answered(request, response))

    def _carry_out(self, effects: tuple[Effect, ...]) -> None:
        sim = self._sim
        for effect in effects:
            match effect:
                case Start():
                    sim.note("worker {} starts {} with token {}", self.number, effect.plan.name, effect.token)
                    self._start(effect)
                case Renewed():
                    self._running[effect.run].renew(effect)
                case Stop():
                    sim.note("worker {} is to stop {}: {}", self.number, effect.name, effect.reason)
                    self._running[effect.run].stop(effect)
                    # Some do not listen, and go on to the end.
                    if sim.rng.random() < sim.settings.obedience:
                        sim.after(sim.rng.random(), self._end, self._life, effect.run, Crashed("asked to stop"))
                case Clean():
                    sim.after(sim.rng.uniform(0.2, sim.settings.cleanup_seconds), self._clean, self._life,
                              effect.tombstone)
                case Settled():
                    sim.note("worker {} gets an answer about its {} of {}: {}", self.number, effect.status.name,
                    effect.name,
                             effect.verdict)

    # ------------------------------------------------------------------------------------------------- jobs

    def _start(self, start: Start) -> None:
        sim = self._sim
        job = self._running[start.run] = RunningJob(start, Budget(), _STANDING_CLOCK)
        name = job.plan.name
        if sim.settings.fenced:
            try:
                admission = self._fence.admit(name, job.token)
            except FencedOff:
                sim.after(0.1, self._end, self._life, start.run, GivenBack("fenced off"))
                return
            self._checks.admitted(name, job.token)
            if admission.committed is not None and sim.settings.reuses_results:
                results = self._checks.committed_results[name, admission.committed.token]
                sim.after(0.1, self._end, self._life, start.run, Finished(results))
                return
        seconds = sim.rng.uniform(0.2, sim.settings.job_seconds)
        if sim.rng.random() < sim.settings.hang_rate:
            seconds += 4 * sim.settings.job_seconds
        # What it publishes in the end replaces what is published now.
        sim.after(seconds, self._finish, self._life, start.run, self._checks.published.get(name))

    def _finish(self, life: int, run: int, seen: int | None) -> None:
        """The work is done: read, write, commit. A process that died meanwhile does not come here."""
        sim = self._sim
        job = self._running.get(run)
        if life != self._life or job is None:
            return
        fate = sim.rng.random()
        if fate < sim.settings.failure_rate:
            self._end(life, run, Crashed("a bad day"))
        elif fate < 1.5 * sim.settings.failure_rate:
            self._end(life, run, GivenBack("a better idea"))
        else:
            results = self._compact(job)
            try:
                if sim.settings.fenced:
                    self._publish(job, results, seen)
            except FencedOff:
                self._end(life, run, GivenBack("fenced off"))
            else:
                self._end(life, run, Finished(results))

    def _publish(self, job: RunningJob, results: CompactedBlocks, seen: int | None) -> None:
        name = job.plan.name
        if self._sim.settings.in_place:
            with self._fence.guard(name, job.token):
                self._checks.committed(name, job.token, seen, results)
        else:
            self._fence.commit(name, job.token, repr(results).encode())
            self._checks.committed(name, job.token, seen, results)

    def _compact(self, job: RunningJob) -> CompactedBlocks:
        plan, objects = job.plan, self._objects
        found = [objects.present[key] for block_id in plan.source_blocks
                 if (key := (plan.tenant, plan.shard, block_id)) in objects.present]
        read = tuple(each.block.id for each in found)
        if not found:
            return CompactedBlocks(tenant=plan.tenant, shard=plan.shard, source_blocks=(), no_output=NoOutput.MISSING)
        rows = frozenset[tuple[str, int]]().union(*(each.rows for each in found))
        begin, end = span_of(each.block for each in found)
        blocks = []
        for tenant in sorted({row[0] for row in rows}) if plan.tenant == "" else [plan.tenant]:
            block = BlockMeta(id=job.output_id(tenant), tenant=tenant, shard=plan.shard,
                              level=plan.compaction_level + 1, size_bytes=sum(each.block.size_bytes for each in found),
                              min_time=begin, max_time=end)
            objects.put(block, frozenset(row for row in rows if row[0] == tenant))
            blocks.append(block)
        return CompactedBlocks(tenant=plan.tenant, shard=plan.shard, source_blocks=read, new_blocks=tuple(blocks))

    def _end(self, life: int, run: int, outcome: RunOutcome) -> None:
        if life == self._life and self._running.pop(run, None) is not None:
            self.core.ended(run, outcome)

    def _clean(self, life: int, tombstone: Tombstone) -> None:
        sim = self._sim
        if life == self._life:
            deleted = sim.rng.random() >= sim.settings.failure_rate
            if deleted:
                for key in self._objects.delete(tombstone):
                    self._checks.deleted(key, tombstone)
            self.core.cleaned(tombstone.name, deleted=deleted)

    # ---------------------------------------------------------------------------------------------- crashes

    def crash(self) -> None:
        """The process is gone, and with it its jobs."""
        self._sim.note("worker {} crashes", self.number)
        self.is_up = False
        self._life += 1

    def restart(self) -> None:
        """A new process, which knows nothing."""
        self.is_up = True
        self._life += 1
        self.core = self._sim.new_core()
        self._running = {}
        self.poll(self._life)


def tend(sim: World) -> None:
    """What a host does beside: time passes in the log, old data goes, what was given up is tried again."""
    if sim.is_over:
        return
    leader = sim.some_leader()
    leader.propose(Tick())
    settings, rng = sim.settings, sim.rng
    if settings.retention and sim.is_rough and rng.random() < 0.3:
        leader.propose(Retain(settings.start - settings.age_hours * _HOUR / 2))
    if settings.raised_limits and sim.is_rough and rng.random() < 0.3:
        leader.propose(Configure(_raised(leader.service.config)))
    given_up = [job.plan.name for job in leader.service.quarantine()]
    if settings.retried_jobs:
        # Also those that a worker has at the moment, which are to be left alone.
        given_up += [job.name for _, job in leader.service.jobs(leader.now) if job.failures]
    if given_up and rng.random() < (0.3 if sim.is_rough else 1.0):
        leader.propose(Requeue(tuple(given_up)))
    sim.after(settings.tick_seconds, tend, sim)


def _raised(config: SchedulerConfig) -> SchedulerConfig:
    """One more of what is limited; 0 stays no limit."""
    return attrs.evolve(config, max_failures=config.max_failures and config.max_failures + 1,
                        max_queue_size=config.max_queue_size and config.max_queue_size + 1)
