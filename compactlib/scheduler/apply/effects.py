# SPDX-License-Identifier: Apache-2.0
"""What applying one command does besides changing jobs: tombstones, quarantine, events, corrected answers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import attrs

from compactlib.scheduler.config import Limits
from compactlib.scheduler.model.poll import Verdict
from compactlib.scheduler.model.values import BlockMeta, BlockTombstones, Command, JobPlan, Tombstone
from compactlib.scheduler.queue.job import Job
from compactlib.scheduler.queue.results import by_place
from compactlib.scheduler.queue.state import QuarantinedJob, SchedulerState

TIME_IN_DOUBT = "scheduler_time_in_doubt"
"""A command's time lies far from the one before it, by `seconds` (positive: ahead); the next command decides."""
TIME_SETTLED = "scheduler_time_settled"
"""It is no longer in doubt: the present command's time lies `seconds` from the last one that was accepted."""
JOB_EXCLUDED = "scheduler_job_excluded"
"""A job failed too often, and goes to no worker any more: `job`, `failures`, `blocks`, and `reason` if there is one."""
JOB_COMPLETED = "scheduler_job_completed"
"""A job is done: `job`, `level`, `source_bytes`, `output_bytes` (as far as the blocks' sizes were given), and `seconds`
since it was created."""
JOB_QUARANTINED = "scheduler_job_quarantined"
"""A job was given up, and waits for an operator: `job`, `reason`, `failures`, `blocks`."""
JOB_REASSIGNED = "scheduler_job_reassigned"
"""A job whose lease had run out went to another worker: `job`, `token`, `held_token` (the one before), `failures`."""
TOMBSTONE_DROPPED = "scheduler_tombstone_dropped"
"""There were too many: what it names stays, to be found by other means. `tombstone`, `tenant`, `shard`, `blocks`."""


class Effects:
    """The state and the command that is being applied to it.

    Attributes:
        state: what is changed.
        command: gives index and time: its own, or the one that the state machine takes it for (`queue/timeline.py`).
        limits: what it is carried out by.
        verdicts: answers that turned out otherwise than prepared, by job.
        events: what a host may want to know, but for the jobs that are done: name and fields.
        expiry: up to when things have run out, seconds.
    """

    def __init__(self, state: SchedulerState, command: Command, limits: Limits) -> None:
        self.state: SchedulerState = state
        self.command: Command = command
        self.limits: Limits = limits
        self.verdicts: dict[str, Verdict] = {}
        self.events: list[tuple[str, dict[str, Any]]] = []
        # How many events come before it, the job, what was written.
        self._completed: list[tuple[int, Job, tuple[BlockMeta, ...]]] = []
        self.expiry: float = command.appended_at
        self._refused = 0

    def delete_later(self, tombstone: Tombstone) -> None:
        """Add a tombstone."""
        self.state.tombstones.add(self.command, tombstone)

    def throw_away(self, job: str, blocks: Iterable[BlockMeta]) -> None:
        """Delete blocks that a worker wrote for a job, except those that have an owner.

        Without a metadata index owners are unknown, so nothing is deleted.
        """
        index, tombstones = self.state.index, self.state.tombstones
        if index is None:
            return
        unowned = tuple(block for block in blocks if index.get(block.tenant, block.shard, block.id) is None
                        and not tombstones.exists(block.tenant, block.shard, block.id))
        for (tenant, shard, level), ids in by_place(unowned).items():
            self._refused += 1
            name = f"{job} refused at {self.command.index} ({tenant} {level} {self._refused})"
            self.delete_later(BlockTombstones(name=name, tenant=tenant, shard=shard, level=level, blocks=tuple(ids)))
        if unowned:
            self.events.append(("scheduler_outputs_refused", {"job": job, "blocks": len(unowned)}))

    def quarantine(self, plan: JobPlan, reason: str, failures: int, orphans: tuple[BlockMeta, ...] = ()) -> None:
        """Put a job where an operator sees it; if there is no room, the oldest one goes."""
        state = self.state
        state.give_up(QuarantinedJob(plan=plan, reason=reason, failures=failures, since=self.command.appended_at,
                                     orphans=orphans))
        self.events.append((JOB_QUARANTINED, {"job": plan.name, "reason": reason, "failures": failures,
                                              "blocks": len(plan.source_blocks)}))
        while len(state.quarantine) > self.limits.max_quarantine_size:
            name = next(iter(state.quarantine))
            gone = state.quarantine[name]
            state.take_up(gone)
            state.quarantine_dropped += 1
            self.throw_away(name, gone.orphans)
            self.events.append(("scheduler_quarantine_dropped", {"job": name, "blocks": len(gone.plan.source_blocks)}))

    def completed(self, job: Job, new_blocks: tuple[BlockMeta, ...]) -> None:
        """Tell of a job that is done."""
        self._completed.append((len(self.events), job, new_blocks))

    def told(self) -> list[tuple[str, dict[str, Any]]]:
        """All events in the order in which they happened; those of jobs that are done are made here, where somebody
        asks."""
        told: list[tuple[str, dict[str, Any]]] = []
        done = 0
        for before, job, new_blocks in self._completed:
            told += self.events[done:before]
            done = before
            told.append((JOB_COMPLETED, {
                "job": job.name, "level": job.compaction_level, "source_bytes": job.size_bytes,
                "output_bytes": sum(block.size_bytes for block in new_blocks),
                "seconds": max(0.0, self.command.appended_at - job.added_at)}))
        return told + self.events[done:]

    def forget_tombstones(self) -> None:
        """While there are more than may be kept, the oldest go: their objects stay, to be found by other means."""
        state = self.state
        while len(state.tombstones) > self.limits.max_tombstones:
            gone = state.tombstones.drop_oldest()
            state.tombstones_dropped += 1
            self.events.append((TOMBSTONE_DROPPED, {
                "tombstone": gone.name, "tenant": gone.tenant, "shard": gone.shard,
                "blocks": len(gone.blocks) if isinstance(gone, BlockTombstones) else None}))

    def tell_excluded(self) -> None:
        """Tell of the jobs that were given up since the last command; after a restart, of all once more."""
        jobs = self.state.jobs
        if not jobs.has_newly_excluded(self.expiry):
            return
        for job in jobs.newly_excluded(self.expiry):
            self.events.append((JOB_EXCLUDED, {"job": job.name, "failures": job.failures,
                                               "blocks": job.source_count, "reason": job.last_failure}))

    def take_time(self, time: float) -> None:
        """Record the command's time, and use what it is taken for."""
        state, command = self.state, self.command
        before = state.timeline
        if time == before.latest and before.doubt is None:
            return
        moment = before.at(time)
        self.expiry = moment.expiry
        if moment.timeline.doubt is not None:
            self.events.append((TIME_IN_DOUBT, {"seconds": time - (before.latest or 0.0)}))
        elif before.doubt is not None:
            self.events.append((TIME_SETTLED, {"seconds": time - (before.latest or 0.0)}))
        state.timeline = moment.timeline
        if moment.stamp != time:
            self.command = Command(command.index, command.term, moment.stamp)

    def cut_late_stamps(self) -> None:
        """Nothing waits longer than if given out now, where a time was accepted that turned out to be in the future, or
        where another leader than now has stamped, whose clock may have been ahead.

        A worker counts its lease from when it polled, so that it loses nothing that it was promised.
        """
        state, command = self.state, self.command
        if state.polled_term == command.term and not state.timeline.has_late_stamps:
            return
        if state.timeline.doubt is None:
            now, limits = command.appended_at, self.limits
            state.polled_term = command.term
            state.jobs.cut(now + limits.lease_seconds, now + limits.max_backoff_seconds)
            state.tombstones.cut(now, now + limits.cleanup_lease_seconds)
            state.blocks.cut(now)
            state.timeline = attrs.evolve(state.timeline, has_late_stamps=False)
