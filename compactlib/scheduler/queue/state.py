# SPDX-License-Identifier: Apache-2.0
"""The replicated state of a scheduler, equal on every replica: changed by `apply/apply.py` alone."""

from __future__ import annotations

from collections.abc import Iterator

import attrs

from compactlib.errors import AuditFailed
from compactlib.scheduler.config import Limits, SchedulerConfig
from compactlib.scheduler.model.values import BlockMeta, Command, JobPlan
from compactlib.scheduler.queue.block_queue import BlockQueue
from compactlib.scheduler.queue.job_queue import JobQueue
from compactlib.scheduler.queue.metadata_index import MetadataIndex
from compactlib.scheduler.queue.timeline import Timeline
from compactlib.scheduler.queue.tombstones import Tombstones


@attrs.frozen(kw_only=True)
class QuarantinedJob:
    """A job that was given up; its blocks are where they were, and are compacted again once it is re-queued.

    Attributes:
        plan: what it was to do; of a job whose sources were not found, only those.
        reason: why it is here.
        failures: how often it had failed.
        since: time of the command that put it here, seconds.
        orphans: blocks that workers wrote for it and that have no owner.
    """

    plan: JobPlan
    reason: str
    failures: int
    since: float
    orphans: tuple[BlockMeta, ...] = ()


class SchedulerState:
    """The replicated state. Reading it is free; change it through `apply`.

    Args:
        config: the same on every replica.
        index: the metadata index; `None` if the host keeps track of its blocks itself: then nothing checks that
            sources still exist, and the outputs of late workers are the host's to find.

    Attributes:
        config: as given.
        opened_with: the settings of the last opening; `config` differs where it was changed while it ran.
        limits: the config's.
        index: as given.
        blocks: what waits to become jobs.
        jobs: what is queued.
        tombstones: what is to be deleted.
        quarantine: jobs that were given up, by name, the oldest first; for reading.
        quarantine_dropped: how many left the quarantine because it was full.
        shared: per level, how many assignments it has shared with those above.
        tombstones_dropped: how many were forgotten because there were too many.
        applied: the last command that was applied, if any was.
        timeline: what is known of the commands' times.
        polled_term: the term by whose clock leases were last held against what they may be; 0 if by none.
        tokens_above: what makes a token of a command's index; the largest that any settings have had.
    """

    def __init__(self, config: SchedulerConfig, index: MetadataIndex | None) -> None:
        self.config: SchedulerConfig = config
        self.opened_with: SchedulerConfig = config
        self.limits: Limits = config.limits
        self.index: MetadataIndex | None = index
        self.blocks: BlockQueue = BlockQueue(config.levels)
        self.jobs: JobQueue = JobQueue(config, knows_sources=index is None)
        self.tombstones: Tombstones = Tombstones(config.cleanup_delay_seconds)
        self.quarantine: dict[str, QuarantinedJob] = {}
        # Which of their plans name a block of this id.
        self._given_up: dict[str, tuple[JobPlan, ...]] = {}
        self.quarantine_dropped: int = 0
        self.shared: dict[int, int] = {}
        self.tombstones_dropped: int = 0
        self.applied: Command | None = None
        self.timeline: Timeline = Timeline()
        self.polled_term: int = 0
        self.tokens_above: int = config.tokens_above

    @property
    def applied_index(self) -> int:
        """Index of the last command that was applied; 0 if none was."""
        return 0 if self.applied is None else self.applied.index

    def numbered(self, command: Command) -> Command:
        """The command with its token as its index."""
        return attrs.evolve(command, index=command.index + self.tokens_above) if self.tokens_above else command

    def has_stamps_of_another(self, command: Command) -> bool:
        """Whether something waits that a leader before the command's has stamped, whose clock may have been ahead."""
        return command.term != self.polled_term and len(self.jobs) + len(self.tombstones) > 0

    def give_up(self, job: QuarantinedJob) -> None:
        """Put a job into quarantine, in the place of what is there under its name. O(sources)."""
        before = self.quarantine.get(job.plan.name)
        if before is not None:
            self._forget(before.plan)
        self.quarantine[job.plan.name] = job
        given_up, this = self._given_up, (job.plan,)
        for block_id in job.plan.source_blocks:
            given_up[block_id] = given_up[block_id] + this if block_id in given_up else this

    def take_up(self, job: QuarantinedJob) -> None:
        """Take a job out of quarantine, where it must be. O(sources)."""
        del self.quarantine[job.plan.name]
        self._forget(job.plan)

    def _forget(self, plan: JobPlan) -> None:
        for block_id in plan.source_blocks:
            left = tuple(other for other in self._given_up.pop(block_id, ()) if other is not plan)
            if left:
                self._given_up[block_id] = left

    def audit(self) -> None:
        """Check all parts, and that no block is in two places. O(everything).

        How many jobs and tombstones there are is no part of it: what was queued under a higher limit stays.

        Raises:
            AuditFailed: something is wrong; the message has the numbers.
        """
        for part in (self.blocks, self.jobs, self.tombstones, self.index):
            if part is not None:
                part.audit()
        owner: dict[tuple[str, int, int, str], str] = {}
        for place, block_id, name in self._owned():
            if self.blocks.holds(place, block_id):
                raise AuditFailed(f"block {block_id!r} of {place} is queued, and in job {name!r} too")
            other = owner.setdefault((*place, block_id), name)
            if other != name:
                raise AuditFailed(f"block {block_id!r} of {place} is in two jobs: {other!r} and {name!r}")
        plans = [given_up.plan for given_up in self.quarantine.values()]
        named = {(block_id, plan.name) for plan in plans for block_id in plan.source_blocks}
        if named != {(block_id, plan.name) for block_id, known in self._given_up.items() for plan in known}:
            raise AuditFailed(f"the {len(self.quarantine)} jobs in quarantine name {len(named)} blocks, which are not "
                              f"those that are known to be in quarantine")
        if self.applied is not None:
            newest = max((job.token for job in self.jobs), default=0)
            last = self.applied.index + self.tokens_above
            if newest > last:
                raise AuditFailed(f"a job has token {newest}, that of the last command is {last}")

    def _owned(self) -> Iterator[tuple[tuple[str, int, int], str, str]]:
        for job in self.jobs:
            for block_id in job.source_blocks:
                yield (job.tenant, job.shard, job.compaction_level), block_id, job.name

    def is_waiting(self, place: tuple[str, int, int], block_id: str) -> bool:
        """Whether a block of a level that is compacted no more is in no job, and there to become one's source.

        What was planned under other levels is carried out as it was planned. O(1).
        """
        tenant, shard, level = place
        if self.index is not None:
            block = self.index.get(tenant, shard, block_id)
            if block is None or block.level != level:
                return False
        return not self.is_taken(place, block_id)

    def is_taken(self, place: tuple[str, int, int], block_id: str) -> bool:
        """Whether a job or one in quarantine has this block; see `JobQueue.has_source`. O(1)."""
        return self.jobs.has_source(*place, block_id) or any(
            (plan.tenant, plan.shard, plan.compaction_level) == place for plan in self._given_up.get(block_id, ()))

    def unaccounted_blocks(self) -> list[BlockMeta]:
        """Blocks of the index that are to be compacted some day, and are neither queued, nor in a job or in quarantine.

        Empty, unless the quarantine was full once (`quarantine_dropped`) or the levels were configured otherwise
        before. O(everything).
        """
        if self.index is None:
            return []
        kept = {(*place, block_id) for place, block_id, _ in self._owned()}
        plans = [given_up.plan for given_up in self.quarantine.values()]
        kept |= {(plan.tenant, plan.shard, plan.compaction_level, block_id)
                 for plan in plans for block_id in plan.source_blocks}
        return [block for block in self.index.blocks() if block.level < len(self.config.levels)
                and (block.tenant, block.shard, block.level, block.id) not in kept
                and not self.blocks.holds((block.tenant, block.shard, block.level), block.id)]

    def __repr__(self) -> str:
        return (f"SchedulerState({len(self.blocks)} blocks, {len(self.jobs)} jobs, {len(self.tombstones)} tombstones, "
                f"{len(self.quarantine)} in quarantine, applied {self.applied_index})")
