"""Everything that a scheduler knows, and that every replica has alike: changed by `apply.py` alone."""

from __future__ import annotations

from collections.abc import Iterator

import attrs

from compactlib.errors import CompactlibError
from compactlib.scheduler.block_queue import BlockQueue
from compactlib.scheduler.config import SchedulerConfig
from compactlib.scheduler.job_queue import JobQueue
from compactlib.scheduler.metadata_index import MetadataIndex
from compactlib.scheduler.model import BlockMeta, Command, JobPlan
from compactlib.scheduler.tombstones import Tombstones


@attrs.frozen(kw_only=True)
class QuarantinedJob:
    """A job that was given up; its blocks are where they were, and are compacted again once it is re-queued.

    Attributes:
        plan: what it was to do; of a job whose sources were not found, only those.
        reason: why it is here.
        failures: how often it had failed.
        since: time of the command that put it here, seconds.
        orphans: blocks that workers wrote for it and that nobody owns.
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
        index: as given.
        blocks: what waits to become jobs.
        jobs: what is queued.
        tombstones: what is to be deleted.
        quarantine: jobs that were given up, by name, the oldest first.
        quarantine_dropped: how many left the quarantine because it was full.
        turns: per level, how many assignments it has shared with those above.
        applied: the last command that was applied, if any was.
    """

    def __init__(self, config: SchedulerConfig, index: MetadataIndex | None) -> None:
        self.config: SchedulerConfig = config
        self.index: MetadataIndex | None = index
        self.blocks: BlockQueue = BlockQueue(config.levels)
        self.jobs: JobQueue = JobQueue(config)
        self.tombstones: Tombstones = Tombstones(config.cleanup_delay_seconds)
        self.quarantine: dict[str, QuarantinedJob] = {}
        self.quarantine_dropped: int = 0
        self.turns: dict[int, int] = {}
        self.applied: Command | None = None

    @property
    def applied_index(self) -> int:
        """Index of the last command that was applied; 0 if none was."""
        return 0 if self.applied is None else self.applied.index

    def audit(self) -> None:
        """Check all parts, and that no block is in two places. O(everything).

        Raises:
            CompactlibError: something is wrong; the message has the numbers.
        """
        for part in (self.blocks, self.jobs, self.tombstones, self.index):
            if part is not None:
                part.audit()
        limit = self.config.max_queue_size
        if limit and len(self.jobs) > limit:
            raise CompactlibError(f"{len(self.jobs)} jobs are queued, the limit is {limit}")
        if len(self.quarantine) > self.config.max_quarantine_size:
            raise CompactlibError(f"{len(self.quarantine)} jobs are in quarantine, the limit is "
                                  f"{self.config.max_quarantine_size}")
        owner: dict[tuple[str, int, int, str], str] = {}
        for place, block_id, name in self._owned():
            if self.blocks.holds(place, block_id):
                raise CompactlibError(f"block {block_id!r} of {place} is queued, and in job {name!r} too")
            other = owner.setdefault((*place, block_id), name)
            if other != name:
                raise CompactlibError(f"block {block_id!r} of {place} is in two jobs: {other!r} and {name!r}")
        if self.applied is not None:
            newest = max((job.state.token for job in self.jobs), default=0)
            if newest > self.applied.index:
                raise CompactlibError(f"a job has token {newest}, the last command is {self.applied.index}")

    def _owned(self) -> Iterator[tuple[tuple[str, int, int], str, str]]:
        for job in self.jobs:
            for block_id in job.source_blocks:
                yield (job.tenant, job.shard, job.state.compaction_level), block_id, job.state.name

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
