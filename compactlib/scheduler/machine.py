# SPDX-License-Identifier: Apache-2.0
"""`SchedulerMachine`: a scheduler as a state machine, without a clock and without I/O.

`Scheduler` runs it over a log. A simulation calls `poll` and `carry_out` directly. Only `apply` changes the state.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import attrs

from compactlib.codec import FieldError, JsonCodec
from compactlib.commandlog.protocol import Command
from compactlib.errors import CorruptData, InvalidInput
from compactlib.files.record_frame import RecordFrame
from compactlib.report import Table
from compactlib.scheduler.apply import Event, apply
from compactlib.scheduler.block_index import BlockIndex
from compactlib.scheduler.block_queue import BlockQueue
from compactlib.scheduler.config import SchedulerConfig
from compactlib.scheduler.job_queue import Job, JobQueue
from compactlib.scheduler.policy import AssignmentPolicy
from compactlib.scheduler.prepare import prepare
from compactlib.scheduler.tombstones import TombstoneEntry, Tombstones
from compactlib.scheduler.update import OPERATIONS, ApplyResult, Operation, PlanUpdate
from compactlib.scheduler.values import BlockMeta, JobPhase, PollRequest, PollResponse, QuarantinedJob

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


class SchedulerMachine:
    """The scheduler's replicated state and its commands. A `CommandMachine`; for one thread at a time.

    Args:
        config: the settings of a new scheduler; the same on every replica.
        policy: orders the jobs of a poll. Only the leader calls it, so it may differ between replicas, and change.
            Default `ByPriority`.

    Attributes:
        policy: the policy, as given.
        events: the events of the last command, name and fields.
        config: the settings in force.
        index: all blocks.
        blocks: the blocks to compact that are in no job.
        jobs: the queued jobs.
        tombstones: the blocks to delete.
        quarantine: evicted jobs by name, the oldest first; the operation `Requeue` retries them.
        quarantine_dropped: the number of jobs removed from a full quarantine.
        applied: the last applied command, if any.
    """

    def __init__(self, config: SchedulerConfig | None = None, *, policy: AssignmentPolicy | None = None) -> None:
        config = SchedulerConfig() if config is None else config
        self.policy: AssignmentPolicy | None = policy
        self.events: Sequence[Event] = ()
        self._encoded: tuple[bytes, Operation] | None = None
        self._restore(StoredState(config=config), config)

    @property
    def applied_index(self) -> int:
        """The index of the last applied command; 0 for none."""
        return 0 if self.applied is None else self.applied.index

    # --------------------------------------------------------------------------------------------------- commands

    def prepare(self, command: Command, request: PollRequest) -> tuple[PlanUpdate, PollResponse]:
        """Return the update of a poll, and the answer to a poll without changes; changes nothing.

        Raises:
            InvalidInput: the request or the policy's choice is out of range.
        """
        return prepare(self, command, request, self.policy)

    def carry_out(self, command: Command, operation: Operation) -> ApplyResult:
        """Carry out an operation, which is the only way to change the state.

        The result depends on state, command and operation alone. An update of another term changes nothing.
        """
        result, self.events = apply(self, command, operation)
        return result

    def poll(self, command: Command, request: PollRequest) -> PollResponse:
        """Prepare a poll and carry it out as one command."""
        result = self.carry_out(command, self.prepare(command, request)[0])
        assert isinstance(result, PollResponse), "it was prepared in this term"
        return result

    def encode(self, operation: Operation) -> bytes:
        """Return the operation as the bytes of a command. `apply` does not decode the last encoded command.

        Raises:
            InvalidInput: a value cannot be stored, so that the log could not be read again.
        """
        try:
            payload = OPERATIONS.encode(operation)
        except (FieldError, OverflowError, ValueError) as error:
            what = "this is no request" if isinstance(operation, PlanUpdate) else "this is no operation"
            raise InvalidInput(f"{what}: {error}; nothing was changed") from error
        self._encoded = payload, operation
        return payload

    def apply(self, command: Command, payload: bytes) -> tuple[ApplyResult, Sequence[Event]]:
        """See `CommandMachine.apply`; returns the result and the events."""
        encoded, self._encoded = self._encoded, None
        operation = (encoded[1] if encoded is not None and encoded[0] is payload
                     else OPERATIONS.decode(payload, f"command {command.index}"))
        return self.carry_out(command, operation), self.events

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
        self.jobs: JobQueue = JobQueue(config.max_failures)
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
        """Return a row for each level: queued blocks, and jobs by phase. O(jobs)."""
        levels = self.blocks.levels
        found = Counter((job.plan.compaction_level, self.jobs.phase(job, now)) for job in self.jobs)
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
