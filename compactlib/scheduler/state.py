# SPDX-License-Identifier: Apache-2.0
"""`SchedulerState`: the replicated state of a scheduler, which only `apply` changes, and its stored form."""

from __future__ import annotations

from collections import Counter

import attrs

from compactlib.codec import JsonCodec
from compactlib.commandlog.protocol import Command
from compactlib.errors import AuditFailed, CorruptData
from compactlib.files.record_frame import RecordFrame
from compactlib.scheduler.block_index import BlockIndex
from compactlib.scheduler.block_queue import BlockQueue, StoredQueue
from compactlib.scheduler.config import SchedulerConfig
from compactlib.scheduler.job_queue import Job, JobQueue
from compactlib.scheduler.tombstones import TombstoneEntry, Tombstones
from compactlib.scheduler.values import BlockMeta, QuarantinedJob

_FRAME = RecordFrame("scheduler state", b"CLSCHED\0", 1, "<H")
"""A `StoredState` in JSON."""
_NOT_STORED = ("_last_attempts",)
"""Not stored: lost last attempts are reported again after a restart."""


@attrs.frozen(kw_only=True)
class StoredState:
    """The stored form of a state. States with equal stored forms give equal answers."""

    config: SchedulerConfig
    queue: StoredQueue
    applied: Command | None = None
    quarantine_dropped: int = 0
    tombstones_dropped: int = 0
    dropped: tuple[tuple[str, int, float], ...] = ()
    blocks: tuple[BlockMeta, ...] = ()
    jobs: tuple[Job, ...] = ()
    tombstones: tuple[TombstoneEntry, ...] = ()
    quarantine: tuple[QuarantinedJob, ...] = ()


_STATES: JsonCodec[StoredState] = JsonCodec(StoredState)


class SchedulerState:
    """The replicated state. Only `apply` changes it.

    Args:
        config: the same on every replica.

    Attributes:
        config: as given.
        index: all blocks.
        blocks: of them, the blocks to compact that are in no job.
        jobs: the queued jobs.
        tombstones: the blocks and spans to delete.
        quarantine: evicted jobs by name, the oldest first; for reading.
        quarantine_dropped: the number of jobs removed from a full quarantine.
        tombstones_dropped: the number of tombstones removed above the limit.
        applied: the last applied command, if any.
    """

    def __init__(self, config: SchedulerConfig) -> None:
        self.config: SchedulerConfig = config
        self.index: BlockIndex = BlockIndex()
        self.blocks: BlockQueue = BlockQueue(config.levels)
        self.jobs: JobQueue = JobQueue(config.max_failures)
        self.tombstones: Tombstones = Tombstones(config.cleanup_delay_seconds)
        self.quarantine: dict[str, QuarantinedJob] = {}
        self.quarantine_dropped: int = 0
        self.tombstones_dropped: int = 0
        self.applied: Command | None = None

    @property
    def applied_index(self) -> int:
        """The index of the last applied command; 0 for none."""
        return 0 if self.applied is None else self.applied.index

    def unaccounted_blocks(self) -> list[BlockMeta]:
        """Return the blocks of compacted levels that are neither queued, nor in a job, nor in quarantine.

        Empty, unless the quarantine was full once (`quarantine_dropped`). O(state).
        """
        plans = [*(job.plan for job in self.jobs), *(job.plan for job in self.quarantine.values())]
        kept = {(*plan.place, block_id) for plan in plans for block_id in plan.source_blocks}
        return [block for block in self.index.blocks()
                if block.level < len(self.config.levels) and (*block.place, block.id) not in kept
                and not self.blocks.holds(block.place, block.id)]

    # ------------------------------------------------------------------------------------------------ stored form

    def dump(self) -> StoredState:
        """Return the state as a value. O(state)."""
        return StoredState(
            config=self.config, applied=self.applied, quarantine_dropped=self.quarantine_dropped,
            tombstones_dropped=self.tombstones_dropped, dropped=self.index.dropped(),
            blocks=tuple(self.index.blocks()), queue=self.blocks.dump(), jobs=tuple(self.jobs),
            tombstones=tuple(self.tombstones), quarantine=tuple(self.quarantine.values()))

    @staticmethod
    def load(stored: StoredState, config: SchedulerConfig | None = None) -> SchedulerState:
        """Return the state of `dump`, also with new settings. O(n log n).

        Blocks of newly compacted levels are queued, and newly full batches are flushed.

        Raises:
            ValueError: the parts of the state contradict each other.
        """
        state = SchedulerState(stored.config if config is None else config)
        state.applied = stored.applied
        state.quarantine_dropped, state.tombstones_dropped = stored.quarantine_dropped, stored.tombstones_dropped
        for tenant, shard, until in stored.dropped:
            state.index.note_dropped(tenant, shard, until)
        for block in stored.blocks:
            state.index.add(block)
        for entry in stored.tombstones:
            state.tombstones.restore(entry)
        state.blocks.load(stored.queue, state.index.get)
        for job in stored.jobs:
            state.jobs.add(job)
        state.quarantine.update({job.plan.name: job for job in stored.quarantine})
        now = 0.0 if stored.applied is None else stored.applied.appended_at
        for block in state.unaccounted_blocks():
            if block.level >= len(stored.config.levels):
                state.blocks.push(block, now)
        return state

    def encode(self) -> bytes:
        """Return the state as a record. O(state)."""
        return _FRAME.encode(body=_STATES.encode(self.dump()))

    @staticmethod
    def decode(data: bytes, place: str) -> SchedulerState:
        """Return the state of `encode`. O(n log n).

        Raises:
            CorruptData: the bytes are damaged.
            Unsupported: another release wrote it.
        """
        (body,) = _FRAME.decode(data, place)
        try:
            return SchedulerState.load(_STATES.decode(bytes(body), place))
        except ValueError as error:
            raise CorruptData(path=place, offset=_FRAME.header_bytes, expected="a state whose parts fit together",
                              found=str(error)) from error

    def audit(self) -> None:
        """Check that all counts and orders match the stored form, and that no block is in two places. O(state).

        Raises:
            AuditFailed: an invariant does not hold; the message has the numbers.
        """
        again = SchedulerState.load(self.dump())
        for part in ("index", "blocks", "jobs", "tombstones"):
            mine, stored = vars(getattr(self, part)), vars(getattr(again, part))
            for name in mine.keys() - set(_NOT_STORED):
                if mine[name] != stored[name]:
                    raise AuditFailed(f"{part}: {name} is {mine[name]!r:.300}; by what is stored it is "
                                      f"{stored[name]!r:.300}")
        owners = Counter((job.plan.place, block_id) for job in self.jobs for block_id in job.plan.source_blocks)
        for (place, block_id), count in owners.items():
            if count > 1 or self.blocks.holds(place, block_id):
                raise AuditFailed(f"block {block_id!r} of {place} is in {count} jobs, or queued as well")
        newest = max((job.token for job in self.jobs), default=0)
        if newest > self.applied_index:
            raise AuditFailed(f"a job has token {newest}, the last command is {self.applied_index}")

    def __repr__(self) -> str:
        return (f"SchedulerState({len(self.index)} blocks, {len(self.blocks)} of them queued, {len(self.jobs)} jobs, "
                f"{len(self.tombstones)} tombstones, {len(self.quarantine)} in quarantine, applied "
                f"{self.applied_index})")
