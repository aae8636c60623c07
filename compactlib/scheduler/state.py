# SPDX-License-Identifier: Apache-2.0
"""`SchedulerState`: the replicated state of a scheduler, its stored form, and views of it. Only `apply` changes it."""

from __future__ import annotations

import attrs

from compactlib.codec import JsonCodec
from compactlib.commandlog.protocol import Command
from compactlib.errors import CorruptData
from compactlib.files.record_frame import RecordFrame
from compactlib.report import Table
from compactlib.scheduler.block_index import BlockIndex
from compactlib.scheduler.block_queue import BlockQueue
from compactlib.scheduler.config import SchedulerConfig
from compactlib.scheduler.job_queue import Job, JobQueue
from compactlib.scheduler.tombstones import TombstoneEntry, Tombstones
from compactlib.scheduler.values import BlockMeta, JobPhase, QuarantinedJob

_FRAME = RecordFrame("scheduler state", b"CLSCHED\0", 1, "<H")
"""A `StoredState` in JSON."""


@attrs.frozen(kw_only=True)
class StoredState:
    """The stored form of a state. States with equal stored forms give equal answers."""

    config: SchedulerConfig
    applied: Command | None = None
    quarantine_dropped: int = 0
    expired_until: float | None = None
    blocks: tuple[BlockMeta, ...] = ()
    pushed: int = 0
    queue: tuple[tuple[str, int, str, int, float], ...] = ()
    jobs: tuple[Job, ...] = ()
    tombstones: tuple[TombstoneEntry, ...] = ()
    quarantine: tuple[QuarantinedJob, ...] = ()


_STATES: JsonCodec[StoredState] = JsonCodec(StoredState)


class SchedulerState:
    """The replicated state.

    Args:
        config: the same on every replica.

    Attributes:
        config: the settings in force.
        index: all blocks.
        blocks: the blocks to compact that are in no job.
        jobs: the queued jobs.
        tombstones: the blocks to delete.
        quarantine: evicted jobs by name, the oldest first; the operation `Requeue` retries them.
        quarantine_dropped: the number of jobs removed from a full quarantine.
        applied: the last applied command, if any.
    """

    def __init__(self, config: SchedulerConfig) -> None:
        self._restore(StoredState(config=config), config)

    @property
    def applied_index(self) -> int:
        """The index of the last applied command; 0 for none."""
        return 0 if self.applied is None else self.applied.index

    # ------------------------------------------------------------------------------------------------ stored form

    def _stored(self) -> StoredState:
        return StoredState(
            config=self.config, applied=self.applied, quarantine_dropped=self.quarantine_dropped,
            expired_until=self.index.expired_until, blocks=tuple(self.index.blocks()),
            pushed=self.blocks.pushed, queue=self.blocks.dump(), jobs=tuple(self.jobs),
            tombstones=tuple(self.tombstones), quarantine=tuple(self.quarantine.values()))

    def _restore(self, stored: StoredState, config: SchedulerConfig) -> None:
        """Replace the state by a stored state; queue the blocks of levels that only the new settings compact.

        Raises:
            ValueError: the parts of the state contradict each other.
        """
        self.config: SchedulerConfig = config
        self.applied: Command | None = stored.applied
        self.quarantine_dropped: int = stored.quarantine_dropped
        self.index: BlockIndex = BlockIndex(stored.expired_until)
        for block in stored.blocks:
            self.index.add(block)
        self.tombstones: Tombstones = Tombstones(config.cleanup_delay_seconds)
        for entry in stored.tombstones:
            self.tombstones.restore(entry)
        self.blocks: BlockQueue = BlockQueue(config.levels)
        self.blocks.pushed = stored.pushed
        for tenant, shard, block_id, position, queued_at in stored.queue:
            queued = self.index.get(tenant, shard, block_id)
            if queued is None:
                raise ValueError(f"block {block_id!r} of {tenant!r} and shard {shard} is queued, and not in the index")
            self.blocks.push(queued, queued_at, position)
        self.jobs: JobQueue = JobQueue(config.max_failures, config.max_backoff_seconds)
        for job in stored.jobs:
            self.jobs.add(job)
        self.quarantine: dict[str, QuarantinedJob] = {job.plan.name: job for job in stored.quarantine}
        now = 0.0 if stored.applied is None else stored.applied.appended_at
        for block in self.unaccounted_blocks():
            if block.level >= len(stored.config.levels):
                self.blocks.push(block, now)

    def configure(self, config: SchedulerConfig) -> None:
        """Change the settings. O(n log n)."""
        self._restore(self._stored(), config)

    def dump(self) -> bytes:
        """Return the state and its settings as bytes. O(state)."""
        return _FRAME.encode(body=_STATES.encode(self._stored()))

    def load(self, data: bytes) -> None:
        """Restore the state and the settings of `dump`. O(n log n).

        Raises:
            CorruptData: the bytes are damaged.
            Unsupported: another release wrote them.
        """
        place = "a scheduler's snapshot"
        (body,) = _FRAME.decode(data, place)
        stored = _STATES.decode(bytes(body), place)
        try:
            self._restore(stored, stored.config)
        except ValueError as error:
            raise CorruptData(path=place, offset=_FRAME.header_bytes, expected="a state whose parts fit together",
                              found=str(error)) from error

    # ----------------------------------------------------------------------------------------------------- views

    def table(self, now: float) -> Table:
        """Return the queued jobs by priority, as a table to print."""
        rows = [{"job": job.name, "level": job.plan.compaction_level, "phase": phase.value, "failures": job.failures,
                 "token": job.token, "age": now - job.added_at,
                 "lease ends in": job.lease_expires_at - now if job.lease_expires_at else None,
                 "last failure": job.last_failure} for phase, job in self.jobs.phases(now)]
        return Table.from_dicts(rows, title=f"{len(rows):,} jobs")

    def stats(self, now: float) -> list[dict[str, int]]:
        """Return a row for each level: queued blocks, and jobs by phase. O(levels log jobs, and excluded jobs)."""
        levels, found = self.blocks.levels, self.jobs.count(now)
        numbers = sorted({*range(len(levels)), *(number for number, _ in found)})
        return [{"level": number, "waiting blocks": levels[number].blocks if number < len(levels) else 0,
                 **{phase.value: found[number, phase] for phase in JobPhase}} for number in numbers]

    def unaccounted_blocks(self) -> list[BlockMeta]:
        """Return the blocks of compacted levels that are neither queued, nor in a job, nor in quarantine.

        Empty, unless the quarantine was full once (`quarantine_dropped`). O(state).
        """
        plans = [*(job.plan for job in self.jobs), *(job.plan for job in self.quarantine.values())]
        kept = {(*plan.place, block_id) for plan in plans for block_id in plan.source_blocks}
        return [block for block in self.index.blocks()
                if block.level < len(self.config.levels) and (*block.place, block.id) not in kept
                and not self.blocks.holds(block.place, block.id)]

    def __repr__(self) -> str:
        return (f"{type(self).__name__}({len(self.index)} blocks, {len(self.blocks)} of them queued, {len(self.jobs)} "
                f"jobs, {len(self.tombstones)} tombstones, {len(self.quarantine)} in quarantine, applied "
                f"{self.applied_index})")
