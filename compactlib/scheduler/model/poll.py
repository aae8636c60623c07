# SPDX-License-Identifier: Apache-2.0
"""What a worker sends in a poll, and what it gets back."""

from __future__ import annotations

import enum

import attrs

from compactlib.scheduler.model.frozen import made_quickly
from compactlib.scheduler.model.values import BlockMeta, CompactedBlocks, JobPlan, JobStatus, Tombstone


@made_quickly
@attrs.frozen
class StatusUpdate:
    """What a worker says about one of its jobs.

    Attributes:
        name: the job.
        token: the fencing token it holds.
        status: `IN_PROGRESS` (renew), `SUCCESS`, `FAILED` or `RELEASED`; a number that is none is refused.
        compacted_blocks: the results, with `SUCCESS`.
        reason: why, with `FAILED` or `RELEASED`; cut to `MAX_REASON_CHARS`.
    """

    name: str
    token: int
    status: JobStatus | int
    compacted_blocks: CompactedBlocks | None = None
    reason: str = ""


MAX_REASON_CHARS = 1000
"""What is kept of a reason."""


@made_quickly
@attrs.frozen
class PollRequest:
    """One poll of a worker.

    Attributes:
        status_updates: one for each job it has; those left out keep their leases as they are.
        job_capacity: how many more jobs it can take, >= 0; jobs that it loses in this poll count on top.
        deleted_tombstones: names of the tombstones whose objects are deleted.
    """

    status_updates: tuple[StatusUpdate, ...] = ()
    job_capacity: int = 0
    deleted_tombstones: tuple[str, ...] = ()


class Verdict(enum.Enum):
    """The answer to one status update. "Final": the worker has lost the job, and asking again is of no use."""

    ACCEPTED = "accepted"
    NOT_FOUND = "not found"
    """No such job: never there, completed, or evicted. Final: stop, and do not ask again."""
    STALE_TOKEN = "stale token"
    """The job was given to another worker since. Final."""
    FUTURE_TOKEN = "future token"
    """No command has had this index yet, so no worker was given this token. Final."""
    BAD_STATUS = "bad status"
    """The status is none that a worker may send. Nothing changed, and the lease was not renewed."""
    WRONG_STATE = "wrong state"
    """The job is not assigned. Final."""
    BAD_RESULT = "bad result"
    """The results do not fit the plan: the job counts a failure and the outputs are deleted. Final."""
    SOURCES_GONE = "sources gone"
    """Sources were deleted while the job ran: the outputs are deleted, the rest is queued again. Final."""
    DUPLICATE = "duplicate"
    """An earlier update of this request is about the same job. Nothing changed; that one's answer holds."""
    SUPERSEDED = "superseded"
    """Another command changed the job between prepare and apply. Nothing changed; ask again."""


@made_quickly
@attrs.frozen
class StatusAnswer:
    """The outcome of one status update.

    Attributes:
        name: the job.
        verdict: accepted, or why not.
        holder_deadline: until when the job is leased (to any worker), seconds; `None` if it is not.
        detail: the numbers, for people.
    """

    name: str
    verdict: Verdict
    holder_deadline: float | None = None
    detail: str = ""


@made_quickly
@attrs.frozen
class Assignment:
    """A job that the worker holds until the deadline.

    Attributes:
        name: the job.
        token: to be given with every update; enforced at the storage side by `Fence`.
        lease_expires_at: renew before, seconds by the leader's clock.
        blocks: of a new assignment, what the metadata index knows of the job's sources, in the plan's order; those
            that it does not know are left out.
    """

    name: str
    token: int
    lease_expires_at: float
    blocks: tuple[BlockMeta, ...] = ()


@made_quickly
@attrs.frozen
class PollResponse:
    """The answer to a poll.

    Attributes:
        compaction_jobs: the plans of the new assignments.
        assignments: renewals first, then new ones. Stop what is not named here.
        answers: one for each status update, in order.
        tombstones: cleanup to do on its own; confirm with `PollRequest.deleted_tombstones`.
        now: the time of the poll's command, so that a worker knows how long a lease lasts by its own clock.
        why: by what rule the jobs were chosen; where there are none, which gate is shut, its value, and what to do.
    """

    compaction_jobs: tuple[JobPlan, ...] = ()
    assignments: tuple[Assignment, ...] = ()
    answers: tuple[StatusAnswer, ...] = ()
    tombstones: tuple[Tombstone, ...] = ()
    now: float = 0.0
    why: str = ""
