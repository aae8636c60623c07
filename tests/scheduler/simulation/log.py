# SPDX-License-Identifier: Apache-2.0
"""A replicated log in miniature, for the scheduler's simulation: what Raft promises, and every way it lets down.

Several nodes, one log. A leader appends entries with its own clock's time and sends them to the others; an entry is
committed once a majority has it; each node applies committed entries, in order, to a `SchedulerService` of its own.
Elections are decided by an oracle among a majority that can talk, by Raft's rule (the most up-to-date log wins), so
what is committed stays. All the rest may happen: a leader that has lost its office without knowing, entries that are
appended and never committed, messages lost, doubled and late, nodes that crash and come back from an old snapshot.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, NoReturn, Protocol, TypeAlias

import attrs

from compactlib.scheduler.config import SchedulerConfig
from compactlib.scheduler.model.poll import PollRequest, PollResponse, Verdict
from compactlib.scheduler.model.update import (
    AddBlocks,
    AlreadyApplied,
    Applied,
    ApplyResult,
    CompletedJob,
    Operation,
    PlanUpdate,
    Tick,
)
from compactlib.scheduler.model.values import Command
from compactlib.scheduler.persistence.codec import decode_command, encode_command
from compactlib.scheduler.persistence.state_rows import decode_state, encode_state
from compactlib.scheduler.queue.state import SchedulerState
from compactlib.scheduler.service.service import SchedulerService
from compactlib.scheduler.workers.worker_core import WorkerCore
from tests.scheduler.simulation.settings import SimulationSettings

_HEARTBEAT_SECONDS = 2.0
_ELECTION_SECONDS = 3.0
_HESITATION_SECONDS = 8.0

Reply: TypeAlias = Callable[[ApplyResult], None]
"""Called with what came of an entry, if the node that appended it is still its leader when it is applied."""
Check: TypeAlias = Callable[["Node", Command, Operation, ApplyResult], None]
"""Sees what came of an entry on a node."""


class World(Protocol):
    """What the parts of a simulation share: its time, its chance, its network, its story; `Simulation` is one."""

    settings: SimulationSettings
    config: SchedulerConfig
    rng: random.Random
    now: float
    is_rough: bool
    is_over: bool
    nodes: list[Node]

    def new_service(self, state: SchedulerState | None = None) -> SchedulerService:
        """The service of one replica."""

    def new_core(self) -> WorkerCore:
        """The core of one worker's process."""

    def after(self, seconds: float, call: Callable[..., object], *arguments: Any) -> None:
        """Let something happen later."""

    def send(self, call: Callable[..., object], *arguments: Any) -> None:
        """Let something happen when a message arrives: once, twice or never."""

    def some_leader(self) -> Node:
        """A node that takes itself for the leader."""

    def note(self, text: str, *arguments: object) -> None:
        """A line of the trace."""

    def fail(self, what: str) -> NoReturn:
        """End the simulation."""


@attrs.frozen(eq=False)
class LogEntry:
    """One entry: the command, and what it is to do."""

    command: Command
    operation: Operation


@attrs.define(eq=False)
class TermLog:
    """The log of the leader of one term. Only grows; other nodes hold a part of it, from the front."""

    term: int
    entries: list[LogEntry]


class Told:
    """An operation in one line, made when it is printed."""

    def __init__(self, operation: Operation) -> None:
        self._operation = operation

    def __str__(self) -> str:
        operation = self._operation
        if isinstance(operation, AddBlocks):
            return "add " + ", ".join(f"{block.id} (tenant {block.tenant!r}, shard {block.shard})"
                                      for block in operation.blocks)
        if not isinstance(operation, PlanUpdate):
            return str(operation)
        lines = [
            *(f"new {new.plan.name} of {', '.join(new.plan.source_blocks)}" for new in operation.new_jobs),
            *(f"{job.state.name} assigned with token {job.state.token} until {job.state.lease_expires_at:.3f}, "
              f"{job.state.failures} failures" for job in operation.assigned_jobs),
            *(f"{job.state.name} renewed until {job.state.lease_expires_at:.3f}" for job in operation.updated_jobs),
            *(f"{job.state.name} taken back: {job.state.last_failure}" for job in operation.returned_jobs),
            *(f"{done.state.name} completed with token {done.state.token}: " + _told_results(done)
              for done in operation.completed_jobs),
            *(f"{job.state.name} evicted" for job in operation.evicted_jobs),
            *(f"outputs of {refused.job} refused: {', '.join(block.id for block in refused.blocks)}"
              for refused in operation.refused_outputs),
            *(f"deletion of {lease.tombstone.name} leased" for lease in operation.leased_tombstones),
            *(f"deletion of {name} confirmed" for name in operation.deleted_tombstones),
            *(f"{answer.name} answered: {answer.verdict.value} {answer.detail}".rstrip()
              for answer in operation.answers if answer.verdict is not Verdict.ACCEPTED),
        ]
        head = f"poll of index {operation.index} in term {operation.term} at {operation.now:.3f}"
        return "".join([head, *(f"\n{'':13}{line}" for line in lines)])


def _told_results(done: CompletedJob) -> str:
    results = done.compacted_blocks
    if results is None:
        return "no results"
    return f"{', '.join(results.source_blocks)} into {', '.join(block.id for block in results.new_blocks) or 'nothing'}"


class Node:
    """One replica. What is durable survives a crash: term, log, snapshot.

    Args:
        sim: the world that it is in.
        number: which.
        check: called with each entry that it has applied.
    """

    def __init__(self, sim: World, number: int, check: Check) -> None:
        self.sim: World = sim
        self.number: int = number
        self._check = check
        self.is_up: bool = True
        self.clock_offset: float = 0.0
        self.term: int = 0
        self.log: TermLog = TermLog(0, [])
        self.length: int = 0
        self.snapshot: tuple[int, bytes] | None = None
        self.service: SchedulerService = sim.new_service()
        self.applied: int = 0
        self.committed: int = 0
        self.leads: TermLog | None = None
        self.matches: dict[int, int] = {}
        self.replies: dict[int, Reply] = {}
        self.polls: dict[int, tuple[PollRequest, Reply]] = {}

    @property
    def now(self) -> float:
        """The time by this node's clock."""
        return self.sim.now + self.clock_offset

    @property
    def up_to_date(self) -> tuple[int, int]:
        """What elections are decided by: the last entry's term, then the length."""
        return (self.log.entries[self.length - 1].command.term if self.length else 0), self.length

    # ------------------------------------------------------------------------------------------ as the leader

    def poll(self, request: PollRequest, reply: Reply) -> bool:
        """Prepare a poll and propose what comes out, if this node takes itself for the leader."""
        if self.leads is None:
            return False
        if not self.sim.settings.prepare_in_the_log:
            update = self.service.prepare(Command(self.length + 1, self.term, self.now), request)
            if update.changes_nothing and not update.answers:
                # Nothing was asked about jobs, so even a leader that leads no more can say this.
                self.sim.after(0.0, reply, Applied(PollResponse(now=update.now)))
                return True
            return self.propose(update, reply)
        # As in Pyroscope: an entry of its own is the prepare, and other entries may come between the two.
        self.polls[self.length + 1] = request, reply
        return self.propose(Tick())

    def _answer_poll(self, command: Command, request: PollRequest, reply: Reply) -> None:
        update = self.service.prepare(command, request)
        # Not from within the loop that applies; and sometimes much may happen before.
        rng = self.sim.rng
        seconds = rng.random() * _HESITATION_SECONDS if self.sim.is_rough and rng.random() < 0.2 else 0.0
        self.sim.after(seconds, self._propose_for, self.leads, update, reply)

    def _propose_for(self, office: TermLog, update: PlanUpdate, reply: Reply) -> None:
        if self.leads is not None and (self.leads is office or self.sim.settings.careless_leaders):
            self.propose(update, reply)

    def propose(self, operation: Operation, reply: Reply | None = None) -> bool:
        """Append an entry, if this node takes itself for the leader."""
        if self.leads is None:
            return False
        entry = LogEntry(Command(self.length + 1, self.term, self.now), operation)
        self.leads.entries.append(entry)
        self.length += 1
        if reply is not None:
            self.replies[self.length] = reply
        self.sim.note("node {} appends {} in term {}: {}", self.number, self.length, self.term, Told(operation))
        self._send_to_all()
        self._count()
        return True

    def become_leader(self, term: int) -> None:
        """The oracle has elected this node."""
        self.term = term
        self.log = self.leads = TermLog(term, self.log.entries[:self.length])
        self.matches = {}
        self.replies, self.polls = {}, {}
        self.sim.note("node {} leads term {} with {} entries, clock {:+.1f} s", self.number, term, self.length,
                      self.clock_offset)
        # An entry of its own term: only that lets it count what earlier leaders have left.
        self.propose(Tick())
        self.sim.after(_HEARTBEAT_SECONDS, self._heartbeat, self.leads)

    def _heartbeat(self, office: TermLog) -> None:
        if self.leads is office:
            self._send_to_all()
            self.sim.after(_HEARTBEAT_SECONDS, self._heartbeat, office)

    def _send_to_all(self) -> None:
        for node in self.sim.nodes:
            if node is not self:
                self.sim.send(node.receive, self, self.leads, self.length, self.committed)

    def acknowledge(self, node: Node, log: TermLog, length: int) -> None:
        """A node has the entries of this node's log up to `length`."""
        if self.leads is log and length > self.matches.get(node.number, 0):
            self.matches[node.number] = length
            self._count()

    def refuse(self, term: int) -> None:
        """Some node knows a newer term."""
        if self.is_up and term > self.term:
            self._step_down(term)

    def _count(self) -> None:
        if self.leads is None:
            return
        lengths = sorted([self.length, *(self.matches.get(node.number, 0) for node in self.sim.nodes
                                         if node is not self)], reverse=True)
        length = lengths[len(lengths) // 2]
        if length > self.committed and self.leads.entries[length - 1].command.term == self.term:
            # The others learn it with the next entry or heartbeat.
            self.committed = length
            self._apply()

    def _step_down(self, term: int) -> None:
        self.term = term
        if self.leads is not None:
            self.sim.note("node {} finds out that it leads no more", self.number)
        self.leads = None
        self.replies, self.polls = {}, {}

    # ------------------------------------------------------------------------------------------- as a follower

    def receive(self, leader: Node, log: TermLog, length: int, committed: int) -> None:
        """Entries of a leader, up to `length`."""
        if not self.is_up:
            return
        if log.term < self.term:
            self.sim.send(leader.refuse, self.term)
            return
        if log.term > self.term or self.leads not in (None, log):
            self._step_down(log.term)
        if self.log is not log:
            same = 0
            for mine, theirs in zip(self.log.entries[:self.length], log.entries, strict=False):
                if mine is not theirs:
                    break
                same += 1
            if same < self.committed:
                self.sim.fail("the miniature log itself has lost a committed entry")
            self.log, self.length = log, max(same, length)
        else:
            self.length = max(self.length, length)
        self.sim.send(leader.acknowledge, self, log, length)
        self.committed = max(self.committed, min(committed, length))
        self._apply()

    # -------------------------------------------------------------------------------------- what is committed

    def _apply(self) -> None:
        while self.applied < self.committed:
            entry = self.log.entries[self.applied]
            command, operation = entry.command, entry.operation
            if self.sim.settings.over_the_wire and self.leads is None:
                command, operation = decode_command(encode_command(command, operation))
            self.applied += 1
            poll = self.polls.pop(self.applied, None)
            if poll is not None and self.leads is not None:
                self._answer_poll(command, *poll)
            old = self.applied <= self.service.state.applied_index
            result = self.service.apply(command, operation)
            if old and not isinstance(result, AlreadyApplied):
                self.sim.fail(f"node {self.number} applied entry {self.applied} twice: {result}")
            self._check(self, command, operation, result)
            reply = self.replies.pop(self.applied, None)
            if reply is not None and self.leads is not None:
                reply(result)

    # -------------------------------------------------------------------------------------- crashes and snapshots

    def take_snapshot(self) -> None:
        """Keep the state, to come back from."""
        if self.is_up:
            self.snapshot = self.applied, encode_state(self.service.state)

    def crash(self) -> None:
        """Everything in memory is gone."""
        self.sim.note("node {} crashes at entry {}", self.number, self.applied)
        self.is_up = False
        self.leads = None
        self.replies, self.polls = {}, {}

    def restart(self) -> None:
        """Come back from the snapshot; the log's entries follow as the leader reports what is committed."""
        index, data = self.snapshot or (0, None)
        self.service = self.sim.new_service(None if data is None else decode_state(data, "a snapshot"))
        # A host may hand over entries that the snapshot has already.
        self.applied = max(index - self.sim.rng.randrange(3), 0)
        self.committed = self.applied
        self.is_up = True
        self.sim.note("node {} comes back with entry {}", self.number, self.applied)


def elect(sim: World, *, by_force: bool = False) -> None:
    """Let a majority that is up choose a leader: any of them, or only if there is no leader."""
    up = [node for node in sim.nodes if node.is_up]
    if len(up) <= len(sim.nodes) // 2:
        return
    newest = max(node.term for node in sim.nodes)
    if not by_force and any(node.leads is not None and node.term == newest for node in up):
        return
    voters = sim.rng.sample(up, len(sim.nodes) // 2 + 1)
    winner = max(voters, key=lambda node: (node.up_to_date, sim.rng.random()))
    for node in voters:
        if node is not winner:
            node.refuse(newest + 1)
    winner.become_leader(newest + 1)


def watch_over_leaders(sim: World) -> None:
    """From now on, a missing leader is replaced after a while."""
    elect(sim)
    sim.after(_ELECTION_SECONDS, watch_over_leaders, sim)
