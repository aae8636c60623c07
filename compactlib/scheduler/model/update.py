# SPDX-License-Identifier: Apache-2.0
"""The operations that change a scheduler's state, as values that can be replicated; see `persistence/codec.py` for
their bytes."""

from __future__ import annotations

from collections import Counter
from typing import Any, TypeAlias

import attrs

from compactlib.report import Printed, Table
from compactlib.scheduler.config import Limits, SchedulerConfig
from compactlib.scheduler.model.poll import PollResponse, StatusAnswer, Verdict
from compactlib.scheduler.model.values import BlockMeta, CompactedBlocks, JobPlan, JobState, Tombstone

Turn: TypeAlias = tuple[int, str, int, int]
"""A turn that a tenant has taken: level, tenant, its virtual time before (of its last one in this choice) and after.

The state keeps the virtual times; a tenant that had no jobs for a while starts at the last turn's time before, so that
turns cannot be saved up.
"""


@attrs.frozen(slots=False)
class NewJob:
    """A job to be queued."""

    state: JobState
    plan: JobPlan


@attrs.frozen(slots=False)
class AssignedJob:
    """A job to be given to the worker that polls.

    Attributes:
        state: with the new token and lease.
        replaced: the state it is based on; if the job has changed since, the assignment is not carried out.
        plan: the job's plan; not part of the stored form, since every replica has it.
    """

    state: JobState
    replaced: JobState
    plan: JobPlan | None = attrs.field(default=None, eq=False)


@attrs.frozen(slots=False)
class UpdatedJob:
    """A lease to be renewed."""

    state: JobState


@attrs.frozen(slots=False)
class ReturnedJob:
    """A job to be taken back from its worker, which released it or failed; `state` has a new token.

    Attributes:
        state: as it will be.
        held_token: the token it is taken back from.
    """

    state: JobState
    held_token: int


@attrs.frozen(slots=False)
class CompletedJob:
    """A job that is done and leaves the queue.

    Attributes:
        state: with the token it had.
        compacted_blocks: the results; `None` if the worker sent none, which only a scheduler that does not check takes.
    """

    state: JobState
    compacted_blocks: CompactedBlocks | None


@attrs.frozen(slots=False)
class EvictedJob:
    """An excluded job to be moved to quarantine; not carried out if its state has changed since."""

    state: JobState


@attrs.frozen(slots=False)
class RefusedOutputs:
    """Blocks written by a worker whose completion was refused: they are deleted unless they have an owner.

    Attributes:
        job: the job's name.
        blocks: what the worker said it wrote.
    """

    job: str
    blocks: tuple[BlockMeta, ...]


@attrs.frozen(slots=False)
class TombstoneLease:
    """A tombstone handed out for deletion until `lease_expires_at`."""

    tombstone: Tombstone
    lease_expires_at: float


@attrs.frozen(kw_only=True, slots=False, repr=False)
class PlanUpdate(Printed):
    """What one poll changes: made by `prepare`, carried out by `apply`. Prints itself as a table of what it will do.

    Attributes:
        index: index of the command that prepared it: the token of what it assigns and creates.
        term: term of that command; in another term it is refused.
        now: time of that command, seconds.
        new_jobs: to be queued.
        assigned_jobs: to be given to the worker.
        updated_jobs: leases to be renewed.
        returned_jobs: to be taken back.
        completed_jobs: to leave the queue.
        evicted_jobs: to be moved to quarantine.
        refused_outputs: blocks to be deleted.
        leased_tombstones: cleanup handed out on its own; what rides on jobs is in their plans.
        deleted_tombstones: names of tombstones that are done with.
        shared: (level, how many assignments it has shared with the levels above so far), where that changed.
        turns: those that tenants have taken.
        answers: to the status updates, in their order.
        limits: the settings that it is carried out by, on every replica and whenever it is replayed; `None`: those of
            the state.
        policy: the name of the policy that chose the assigned jobs; empty if none was asked.
        why: by what rule they were chosen, or which gate is shut.
        notes_time: whether it is to be carried out for its time alone (`queue/timeline.py`); not stored.
    """

    index: int
    term: int
    now: float
    new_jobs: tuple[NewJob, ...] = ()
    assigned_jobs: tuple[AssignedJob, ...] = ()
    updated_jobs: tuple[UpdatedJob, ...] = ()
    returned_jobs: tuple[ReturnedJob, ...] = ()
    completed_jobs: tuple[CompletedJob, ...] = ()
    evicted_jobs: tuple[EvictedJob, ...] = ()
    refused_outputs: tuple[RefusedOutputs, ...] = ()
    leased_tombstones: tuple[TombstoneLease, ...] = ()
    deleted_tombstones: tuple[str, ...] = ()
    shared: tuple[tuple[int, int], ...] = ()
    turns: tuple[Turn, ...] = ()
    answers: tuple[StatusAnswer, ...] = ()
    limits: Limits | None = None
    policy: str = ""
    why: str = ""
    notes_time: bool = attrs.field(default=False, eq=False)

    def to_dicts(self) -> list[dict[str, Any]]:
        """One row for each thing that is to be done: `do`, `job`, and what there is to say about it."""
        rows: list[dict[str, Any]] = [{"do": answer.verdict.value, "job": answer.name, "why": answer.detail}
                                      for answer in self.answers if answer.verdict is not Verdict.ACCEPTED]
        for what, items in (("evict", self.evicted_jobs), ("complete", self.completed_jobs), ("queue", self.new_jobs),
                            ("renew", self.updated_jobs), ("take back", self.returned_jobs),
                            ("assign", self.assigned_jobs)):
            rows += [{"do": what, "job": item.state.name, "token": item.state.token, "failures": item.state.failures,
                      "why": item.state.last_failure} for item in items]
        rows += [{"do": "throw away", "job": refused.job, "blocks": len(refused.blocks)}
                 for refused in self.refused_outputs]
        rows += [{"do": "clean up", "job": lease.tombstone.name} for lease in self.leased_tombstones]
        return rows + [{"do": "forget", "job": name} for name in self.deleted_tombstones]

    def __str__(self) -> str:
        return str(self.table())

    def __repr__(self) -> str:
        counts = Counter(row["do"] for row in self.to_dicts())
        done = ", ".join(f"{count} {what}" for what, count in counts.items()) or f"nothing to do; {self.why}"
        return f"PlanUpdate(index {self.index}, term {self.term}: {done})"

    def table(self) -> Table:
        """The rows of `to_dicts()` under the command's number."""
        return Table.from_dicts(self.to_dicts(), title=f"command {self.index}, term {self.term}")

    @property
    def changes_nothing(self) -> bool:
        """Whether applying it would leave the state as it is, so that a host need not replicate it."""
        return not (self.new_jobs or self.assigned_jobs or self.updated_jobs or self.returned_jobs
                    or self.completed_jobs or self.evicted_jobs or self.refused_outputs or self.leased_tombstones
                    or self.deleted_tombstones or self.notes_time)


@attrs.frozen(slots=False)
class AddBlocks:
    """New blocks: into the metadata index and into the compaction queue."""

    blocks: tuple[BlockMeta, ...]


@attrs.frozen(slots=False)
class Tick:
    """Time has passed: flush what is old, without another push."""


@attrs.frozen(slots=False)
class Retain:
    """Forget blocks whose newest data is older than `before` (seconds); a shard tombstone deletes their objects.

    At most 32 partitions at once: repeat it until it removes nothing.
    """

    before: float


@attrs.frozen(slots=False)
class Requeue:
    """Try jobs again that failed.

    The blocks of those in quarantine are queued. Those that are queued and have no holder, excluded or waiting for
    their back-off, count no failure any more and may be assigned at once.

    Attributes:
        names: the jobs; others are reported and skipped.
    """

    names: tuple[str, ...]


@attrs.frozen(slots=False)
class Configure:
    """Other settings hold from here on, on every replica. O(everything).

    What was carried out before stays as it was. They hold until the next `Configure`, or until the scheduler is opened
    with settings that are none of those that it was opened with last.
    """

    config: SchedulerConfig


@attrs.frozen(slots=False)
class Opening:
    """The settings of an opening, as a host's log orders them, and whether a scheduler that begins with it has a
    metadata index; one that goes on has what it had.
    """

    config: SchedulerConfig
    with_index: bool


Operation: TypeAlias = PlanUpdate | AddBlocks | Tick | Retain | Requeue | Configure
"""Everything that `apply` carries out."""


@attrs.frozen(slots=False)
class Applied:
    """The update was carried out; `response` is for the worker."""

    response: PollResponse


@attrs.frozen(slots=False)
class BlocksAdded:
    """The outcome of each block of an `AddBlocks`.

    Attributes:
        queued: ids that wait for compaction now.
        terminal: ids of a level that is not compacted; indexed only.
        duplicate: ids that were known already. Nothing changed for them.
        tombstoned: ids that are waiting for deletion: late retries. Dropped.
    """

    queued: tuple[str, ...] = ()
    terminal: tuple[str, ...] = ()
    duplicate: tuple[str, ...] = ()
    tombstoned: tuple[str, ...] = ()


@attrs.frozen(slots=False)
class Ticked:
    """`flushed` batches became ready for planning."""

    flushed: int


@attrs.frozen(slots=False)
class Retained:
    """What retention removed.

    Attributes:
        blocks: from the metadata index.
        tombstones: names of the shard tombstones that delete their objects.
    """

    blocks: int
    tombstones: tuple[str, ...] = ()


@attrs.frozen(slots=False)
class Requeued:
    """The outcome of each name of a `Requeue`.

    Attributes:
        jobs: which wait again.
        unknown: neither in quarantine, nor queued with a failure and without a holder.
        blocks: how many blocks wait again; those that are gone from the index are left out.
    """

    jobs: tuple[str, ...]
    unknown: tuple[str, ...]
    blocks: int


@attrs.frozen(slots=False)
class Configured:
    """The settings before, and those that hold now."""

    before: SchedulerConfig
    now: SchedulerConfig


@attrs.frozen(slots=False)
class TermChanged:
    """The update was prepared in another term; nothing was changed. Poll the leader again."""

    prepared: int
    found: int


@attrs.frozen(slots=False)
class AlreadyApplied:
    """The command's index is not above the last one applied; nothing was changed."""

    index: int
    applied: int


ApplyResult: TypeAlias = (Applied | BlocksAdded | Ticked | Retained | Requeued | Configured | TermChanged
                          | AlreadyApplied)
"""What `apply` answers."""
