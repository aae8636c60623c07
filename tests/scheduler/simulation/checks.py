# SPDX-License-Identifier: Apache-2.0
"""What must hold at every moment of a scheduler's simulation, and the objects that it shows in; see
`docs/scheduler.md`.

The first node to apply an entry shows the state that all others must come to. After each entry, what the entry did is
held against the state before it.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping, Set
from typing import Any, TypeAlias

import attrs

from compactlib.scheduler.model.poll import PollRequest, PollResponse, Verdict
from compactlib.scheduler.model.update import (
    AddBlocks,
    Applied,
    ApplyResult,
    BlocksAdded,
    Operation,
    PlanUpdate,
    Requeue,
    Retain,
)
from compactlib.scheduler.model.values import (
    BlockMeta,
    BlockTombstones,
    Command,
    CompactedBlocks,
    JobPhase,
    JobState,
    JobStatus,
    Tombstone,
)
from compactlib.scheduler.persistence.state_rows import encode_state
from compactlib.scheduler.queue.state import SchedulerState
from compactlib.scheduler.service.service import SchedulerService
from tests.scheduler.simulation.log import Node, World

BlockKey: TypeAlias = tuple[str, int, str]
"""Tenant, shard, id."""

Rows: TypeAlias = frozenset[tuple[str, int]]
"""Tenant and number of each row."""


def key_of(block: BlockMeta) -> BlockKey:
    """Where the block's object lies."""
    return block.tenant, block.shard, block.id


@attrs.frozen
class StoredObject:
    """An object: the block's metadata, and the rows in it."""

    block: BlockMeta
    rows: Rows


class Objects:
    """An object store.

    Every block that the writer adds holds one row of its own; what a job writes holds the rows of its sources. So it
    can be seen at any time whether data was lost or doubled.
    """

    def __init__(self, sim: World) -> None:
        self._sim = sim
        self.present: dict[BlockKey, StoredObject] = {}
        self.ever: dict[BlockKey, Rows] = {}

    def put(self, block: BlockMeta, rows: Rows) -> None:
        """Write an object. Names are never used for other contents."""
        key = key_of(block)
        if self.ever.setdefault(key, rows) != rows:
            self._sim.fail(f"object {key} is written with rows {sorted(rows)}, and had {sorted(self.ever[key])}")
        self.present[key] = StoredObject(block, rows)

    def delete(self, tombstone: Tombstone) -> list[BlockKey]:
        """Delete what a tombstone names; returns what of it was there."""
        if isinstance(tombstone, BlockTombstones):
            gone = [(tombstone.tenant, tombstone.shard, block_id) for block_id in tombstone.blocks]
        else:
            end = tombstone.timestamp + tombstone.duration
            gone = [key for key, kept in self.present.items() if key[:2] == (tombstone.tenant, tombstone.shard)
                    and kept.block.min_time is not None and tombstone.timestamp <= kept.block.min_time < end]
        return [key for key in gone if self.present.pop(key, None) is not None]


def fingerprint(state: SchedulerState) -> str:
    """A hash of everything that a replica has to have alike."""
    return hashlib.sha256(encode_state(state)).hexdigest()


class Checks:
    """Sees everything that happens, and fails the simulation when it must not.

    Args:
        sim: the world that it watches.
        objects: where the rows are.
        acknowledged: the rows that the writer may count on.

    Attributes:
        tip: the last entry that was applied.
        service: that of the first node to apply it.
        committed_results: what was committed, by job and token.
        published: the token under which a job's results were published last.
        counts: how often what was seen.
    """

    def __init__(self, sim: World, objects: Objects, acknowledged: Set[tuple[str, int]]) -> None:
        self._sim = sim
        self._objects = objects
        self._acknowledged = acknowledged
        self._retained_rows: set[tuple[str, int]] = set()
        self.committed_results: dict[tuple[str, int], CompactedBlocks] = {}
        self.published: dict[str, int] = {}
        self.tip: int = 0
        self.service: SchedulerService = sim.new_service()
        self._pictures: dict[int, str] = {}
        self._states: dict[str, JobState] = {}
        self._tokens: dict[str, int] = {}
        self._given: set[tuple[str, int]] = set()
        self._indexed: set[BlockKey] = set()
        self._ever_indexed: set[BlockKey] = set()
        self._dropped: set[BlockKey] = set()
        self._before: dict[str, JobState] = {}
        # A leader may learn last that its entry is committed, and answer when another node has applied later ones.
        self._before_each: dict[int, dict[str, JobState]] = {}
        self._answering = 0
        self._admitted: dict[str, int] = {}
        self.counts: Counter[str] = Counter()

    # ----------------------------------------------------------------------------------------- each entry

    def applied(self, node: Node, command: Command, operation: Operation, result: ApplyResult) -> None:
        """A node has applied an entry; what it answers next is the answer to that one."""
        self._answering = command.index
        if command.index <= self.tip:
            picture = self._pictures.get(command.index)
            if picture is not None and command.index == node.service.state.applied_index:
                self._expect_same(command.index, picture, node)
            return
        if command.index != self.tip + 1:
            self._sim.fail(f"entry {command.index} is applied after {self.tip}")
        self.tip, self.service = command.index, node.service
        state = node.service.state
        self._check_jobs(state, operation)
        if isinstance(operation, AddBlocks) and isinstance(result, BlocksAdded):
            new = {*result.queued, *result.terminal}
            self._indexed |= {key_of(block) for block in operation.blocks if block.id in new}
        elif isinstance(operation, PlanUpdate) and isinstance(result, Applied):
            self._check_update(state, command, operation, result.response)
        elif isinstance(operation, Requeue):
            self._check_retried(command)
        if isinstance(operation, Retain) or (isinstance(operation, PlanUpdate) and operation.completed_jobs):
            self._check_rows(state, retained=isinstance(operation, Retain))
        if command.index % self._sim.settings.check_every == 0:
            self.everything(node)

    def _expect_same(self, index: int, picture: str, node: Node) -> None:
        if fingerprint(node.service.state) != picture:
            self._sim.fail(f"node {node.number} has another state after entry {index} than the first to apply it")
        self.counts["same states"] += 1

    def _check_jobs(self, state: SchedulerState, operation: Operation) -> None:
        """Tokens only grow, the queue keeps its limit, and no block is in two jobs."""
        limit = state.config.max_queue_size
        if limit and len(state.jobs) > limit:
            self._sim.fail(f"{len(state.jobs)} jobs are queued, the limit is {limit}")
        states: dict[str, JobState] = {}
        owners: dict[BlockKey, str] = {}
        for job in state.jobs:
            states[job.name] = job.state
            known = self._tokens.get(job.name, 0)
            if job.token < known:
                self._sim.fail(f"the token of {job.name} falls from {known} to {job.token}")
            self._tokens[job.name] = job.token
            for block_id in job.source_blocks:
                other = owners.setdefault((job.tenant, job.shard, block_id), job.name)
                if other != job.name:
                    self._sim.fail(f"block {block_id} is in two live jobs: {other} and {job.name}")
        if not isinstance(operation, PlanUpdate) and self._states.keys() - states.keys():
            self._sim.fail(f"jobs {self._states.keys() - states.keys()} vanish with {operation}")
        self._before, self._states = self._states, states
        self._before_each[self.tip] = self._before

    def _check_update(self, state: SchedulerState, command: Command, update: PlanUpdate,
                      response: PollResponse) -> None:
        if update.term != command.term:
            self._sim.fail(f"an update of term {update.term} was carried out in term {command.term}")
        tokens = {assignment.name: assignment.token for assignment in response.assignments}
        for plan in response.compaction_jobs:
            name, token = plan.name, tokens[plan.name]
            if (name, token) in self._given:
                self._sim.fail(f"{name} is given away twice with token {token}")
            self._given.add((name, token))
            self._check_lease(name, token, update.now)
            self.counts["assigned"] += 1
        for done in update.completed_jobs:
            if done.state.name not in self._states and done.state.name in self._before:
                self.counts["completed"] += 1
                if done.state.token < self._before[done.state.name].token:
                    self._sim.fail(f"{done.state.name} is completed with token {done.state.token}, but belongs to "
                                   f"{self._before[done.state.name].token}")
        gone = self._before.keys() - self._states.keys() - {done.state.name for done in update.completed_jobs}
        for name in gone:
            self.counts["evicted"] += 1
            if name not in state.quarantine:
                self._sim.fail(f"{name} has left the queue, and is not in quarantine")

    def _check_lease(self, name: str, token: int, now: float) -> None:
        before, after = self._before.get(name), self._states.get(name)
        if before is None or after is None:
            self._sim.fail(f"{name} is given away, and is not queued")
        if before.token >= token or after.token != token:
            self._sim.fail(f"{name} is given away with token {token} after {before.token}; it has {after.token}")
        if before.status is JobStatus.IN_PROGRESS:
            self.counts["reassigned"] += 1
            if now <= before.lease_expires_at:
                self._sim.fail(f"{name} is taken away at {now:.3f}, its lease lasts until "
                               f"{before.lease_expires_at:.3f}")
            limit = self.service.config.max_failures
            if limit and before.failures >= limit:
                self._sim.fail(f"{name} is given away once more after {before.failures} failures")

    def _check_retried(self, command: Command) -> None:
        for name, after in self._states.items():
            before = self._before.get(name, after)
            if before.token != after.token:
                self.counts["tried again"] += 1
                if before.status is JobStatus.IN_PROGRESS and command.appended_at <= before.lease_expires_at:
                    self._sim.fail(f"{name} is taken away at {command.appended_at:.3f} to be tried again, its lease "
                                   f"lasts until {before.lease_expires_at:.3f}")

    def _check_rows(self, state: SchedulerState, *, retained: bool = False) -> None:
        """Every acknowledged row is in exactly one block of the index, unless retention has dropped it."""
        assert state.index is not None
        objects = self._objects
        indexed = {key_of(block) for block in state.index.blocks()}
        if retained:
            self._dropped |= self._indexed - indexed
            for key in self._indexed - indexed:
                self._retained_rows.update(objects.ever[key])
        back = indexed & self._dropped
        if back:
            self._sim.fail(f"blocks {sorted(back)} were dropped by retention, and are back")
        self._indexed = indexed
        self._ever_indexed |= indexed
        rows = Counter(row for key in indexed for row in objects.ever[key])
        doubled = sorted(row for row, count in rows.items() if count > 1)
        if doubled:
            self._sim.fail(f"rows {doubled} are in several blocks: a job took effect twice")
        revived = rows.keys() & self._retained_rows
        if revived:
            self._sim.fail(f"rows {sorted(revived)} were dropped by retention, and are back")
        lost = self._acknowledged - rows.keys() - self._retained_rows
        if lost:
            self._sim.fail(f"rows {sorted(lost)} were acknowledged, and are in no block")

    # ------------------------------------------------------------------------------------- now and then

    def everything(self, node: Node) -> None:
        """What costs more to check."""
        state = node.service.state
        try:
            node.service.audit()
        except AssertionError as error:
            self._sim.fail(f"the audit fails: {error}")
        self._pictures[self.tip] = fingerprint(state)
        self._check_rows(state)
        for key in self._indexed:
            if key not in self._objects.present:
                self._sim.fail(f"block {key} is indexed, but its object is gone")
        unaccounted = state.unaccounted_blocks()
        if unaccounted and not state.quarantine_dropped:
            self._sim.fail(f"blocks {[block.id for block in unaccounted]} wait for nothing")
        shown = {job.name: phase for phase, job in node.service.jobs(node.now)}
        if shown.keys() != self._states.keys():
            self._sim.fail(f"jobs {shown.keys() ^ self._states.keys()} are not shown")
        limit = state.config.max_failures
        for name, job in self._states.items():
            over = job.status is not JobStatus.IN_PROGRESS or node.now > job.lease_expires_at
            if limit and job.failures >= limit and over and shown[name] is not JobPhase.EXCLUDED:
                self._sim.fail(f"{name} has {job.failures} failures and no lease, and is shown as {shown[name]}")
            self.counts["excluded"] += shown[name] is JobPhase.EXCLUDED

    def deleted(self, key: BlockKey, tombstone: Tombstone) -> None:
        """A worker has deleted an object."""
        self.counts["deleted"] += 1
        block = self.service.state.index and self.service.state.index.get(*key)
        if block:
            self._sim.fail(f"the object of {key} was deleted for {tombstone.name!r}, but the block is indexed")

    def answered(self, request: PollRequest, response: PollResponse) -> None:
        """A poll is answered, with the entry that its node has just applied: what was accepted has happened."""
        if len(response.answers) != len(request.status_updates):
            self._sim.fail(f"{len(request.status_updates)} updates got {len(response.answers)} answers")
        renewed = {assignment.name for assignment in response.assignments}
        for update, answer in zip(request.status_updates, response.answers, strict=True):
            self.counts[answer.verdict.value] += 1
            if answer.name != update.name:
                self._sim.fail(f"the answer about {answer.name} stands where {update.name} was asked for")
            if answer.verdict is not Verdict.ACCEPTED:
                if update.name in renewed and update.name not in {plan.name for plan in response.compaction_jobs}:
                    self._sim.fail(f"{update.name} was answered {answer.verdict}, and renewed")
                continue
            before = self._before_each[self._answering].get(update.name)
            if before is None or update.token < before.token:
                self._sim.fail(f"{update.name} was accepted with token {update.token}, and belongs to {before}")
            if update.status == JobStatus.IN_PROGRESS and update.name not in renewed:
                self._sim.fail(f"the renewal of {update.name} was accepted, without a lease")
            results = update.compacted_blocks
            if update.status == JobStatus.SUCCESS and results is not None:
                missing = {key_of(block) for block in results.new_blocks} - self._ever_indexed
                if missing:
                    self._sim.fail(f"{update.name} was accepted, but its blocks {missing} were never indexed")

    def admitted(self, job: str, token: int) -> None:
        """The fence has admitted a token."""
        if token < self._admitted.get(job, 0):
            self._sim.fail(f"the fence admits token {token} of {job} after {self._admitted[job]}")
        self._admitted[job] = token

    def committed(self, job: str, token: int, seen: int | None, results: CompactedBlocks) -> None:
        """The fence has let a commit through, of a run that began when `seen` was the token published last."""
        if token < self._admitted.get(job, 0):
            self._sim.fail(f"token {token} of {job} commits after {self._admitted[job]} was admitted")
        published = self.published.get(job)
        if published != seen:
            self._sim.fail(f"what token {published} has published of {job} is overwritten with token {token} by a run "
                           f"that began before, when {seen} was the last")
        self.committed_results[job, token] = results
        self.published[job] = token

    # ----------------------------------------------------------------------------------------- at the end

    def at_the_end(self, left: Mapping[str, Any]) -> None:
        """All is quiet: the replicas agree, and no work is left but what was given up."""
        nodes = [node for node in self._sim.nodes if node.applied == self.tip]
        if len(nodes) != len(self._sim.nodes):
            self._sim.fail(f"the nodes have applied {[node.applied for node in self._sim.nodes]} of {self.tip} entries")
        self.everything(nodes[0])
        for node in nodes:
            self._expect_same(self.tip, self._pictures[self.tip], node)
        if left:
            self._sim.fail(f"after {self._sim.now:.0f} s of which the last were calm, work is left: {left}")
