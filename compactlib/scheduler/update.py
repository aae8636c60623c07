# SPDX-License-Identifier: Apache-2.0
"""The operations that change a scheduler's state, as values for a log, and their results.

`codec` converts each to the JSON of a command.
"""

from __future__ import annotations

from typing import TypeAlias

import attrs

from compactlib.codec import JsonCodec
from compactlib.scheduler.config import SchedulerConfig
from compactlib.scheduler.errors import PollAgain
from compactlib.scheduler.values import BlockMeta, JobPlan, PollResponse, StatusUpdate


@attrs.frozen
class JobAsSeen:
    """The state of a job in the preparation of a poll. If it has changed when the update is applied, it is skipped.

    Attributes:
        name: the job's name.
        token: the job's token.
        lease_expires_at: the end of its lease, seconds, for an assignment to another worker; else 0.
    """

    name: str
    token: int
    lease_expires_at: float = 0.0


@attrs.frozen(kw_only=True)
class PlanUpdate:
    """The changes of a poll: made by `prepare`, carried out by `apply`.

    Attributes:
        term: the term of the command that prepared it; refused in another term.
        reports: the worker's reports; judged when the update is applied.
        has_effect: whether a report changes anything in the state of the preparation, or a lease is too long.
        evicted: excluded jobs to move to quarantine.
        created: jobs to queue.
        assigned: jobs to assign to the worker.
        excluded: jobs whose last attempt was lost.
        cleaned: tombstones to remove, with deleted objects.
        leased: tombstones to lease to the worker.
        why: the rule of the choice, or the gate that is shut.
    """

    term: int
    reports: tuple[StatusUpdate, ...] = ()
    has_effect: bool = False
    evicted: tuple[JobAsSeen, ...] = ()
    created: tuple[JobPlan, ...] = ()
    assigned: tuple[JobAsSeen, ...] = ()
    excluded: tuple[str, ...] = ()
    cleaned: tuple[str, ...] = ()
    leased: tuple[str, ...] = ()
    why: str = ""

    @property
    def is_empty(self) -> bool:
        """Whether it changes nothing, so that it need not be replicated."""
        return not (self.has_effect or self.evicted or self.created or self.assigned or self.excluded or self.cleaned
                    or self.leased)


@attrs.frozen
class AddBlocks:
    """Adds blocks to the index and to the compaction queue."""

    blocks: tuple[BlockMeta, ...]


@attrs.frozen
class Retain:
    """Removes blocks without data from `before` on, seconds, at most 1,000 at once: repeat it until it removes nothing.

    Later, blocks that are no newer than a removed block are refused. Blocks without times stay.
    """

    before: float


@attrs.frozen
class Requeue:
    """Retries failed jobs.

    The blocks of a job in quarantine are queued. A queued job without a holder, excluded or in its back-off, is reset
    to no failures, and may be assigned at once.

    Attributes:
        names: the jobs' names; unknown names are reported and skipped.
    """

    names: tuple[str, ...]


@attrs.frozen
class Configure:
    """Changes the settings on every replica. O(state)."""

    config: SchedulerConfig


Operation: TypeAlias = PlanUpdate | AddBlocks | Retain | Requeue | Configure
"""All operations of `apply`."""
OPERATIONS: JsonCodec[Operation] = JsonCodec(Operation)


@attrs.frozen
class BlocksAdded:
    """The outcome of each block of an `AddBlocks`.

    Attributes:
        queued: ids in the compaction queue.
        terminal: ids of a level that is not compacted; only indexed.
        duplicate: known ids; not changed.
        tombstoned: ids with a tombstone, or of blocks that are too old for retention, as of late retries; dropped.
    """

    queued: tuple[str, ...] = ()
    terminal: tuple[str, ...] = ()
    duplicate: tuple[str, ...] = ()
    tombstoned: tuple[str, ...] = ()


@attrs.frozen
class Retained:
    """The result of a `Retain`.

    Attributes:
        blocks: the number of blocks removed from the index.
        tombstones: names of the tombstones that delete their objects.
    """

    blocks: int
    tombstones: tuple[str, ...] = ()


@attrs.frozen
class Requeued:
    """The outcome of each name of a `Requeue`.

    Attributes:
        jobs: the retried jobs.
        unknown: names neither in quarantine, nor queued with a failure and without a holder.
        blocks: the number of blocks queued again, without removed blocks.
    """

    jobs: tuple[str, ...]
    unknown: tuple[str, ...]
    blocks: int


ApplyResult: TypeAlias = PollResponse | PollAgain | BlocksAdded | Retained | Requeued | SchedulerConfig
"""The result of `apply`: for a poll's update the answer or the error, for `Configure` the old settings."""
