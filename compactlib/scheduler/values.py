# SPDX-License-Identifier: Apache-2.0
"""The frozen values of the scheduler: blocks, jobs, results and tombstones; and what a poll says and answers.

Times are seconds since the epoch as `float`, taken from commands and never from a clock. Most field names are
Pyroscope's (`docs/internals/differences.md`).
"""

from __future__ import annotations

import enum
import math
import re
from collections.abc import Iterable
from typing import TypeAlias

import attrs

from compactlib.errors import InvalidInput

ANONYMOUS_TENANT = ""
"""The tenant of blocks that hold several tenants' data (level 0); their compaction may split them by tenant."""
MAX_ID_CHARS = 256
"""The longest block id, tenant or text for columns."""
MAX_NUMBER = (1 << 63) - 1
"""The largest shard, level, size and number of rows: what another language can read."""
MAX_REASON_CHARS = 1000
"""How much of a worker's reason is kept."""


# ------------------------------------------------------------------------------------------------------------ blocks


@attrs.frozen(kw_only=True)
class BlockMeta:
    """What the index knows of a block, and what a worker reports of one that it wrote.

    Attributes:
        id: unique within its tenant and shard; a ULID or any text without control characters.
        tenant: whose data; `ANONYMOUS_TENANT` for several tenants'.
        shard: >= 0.
        level: how often its data was compacted, >= 0.
        min_time: the oldest data in it, seconds. `None`: no time is known, and retention never removes the block.
        max_time: the newest data in it, seconds; >= `min_time`. `None` exactly if `min_time` is.
        size_bytes: >= 0.
        rows: how many it holds, >= 0; `None`: it is not known. A merge that knows those of all its sources need not
            count them.
        columns: stands for the columns of its rows: blocks with the same text have the same ones. Empty: not known.

    Raises:
        InvalidInput: a field is out of its range.
    """

    id: str
    tenant: str
    shard: int
    level: int
    min_time: float | None = None
    max_time: float | None = None
    size_bytes: int = 0
    rows: int | None = None
    columns: str = ""

    def __attrs_post_init__(self) -> None:
        if not 0 < len(self.id) <= MAX_ID_CHARS or not self.id.isprintable():
            raise InvalidInput(f"{self.id!r} is not a block id; give 1 to {MAX_ID_CHARS} printable characters")
        if len(self.tenant) > MAX_ID_CHARS or not self.tenant.isprintable():
            raise InvalidInput(f"{self.tenant!r} is not a tenant; give at most {MAX_ID_CHARS} printable characters")
        if not 0 <= self.shard | self.level | self.size_bytes | (self.rows or 0) <= MAX_NUMBER:
            raise InvalidInput(f"block {self.id!r} has shard {self.shard!r:.30}, level {self.level!r:.30}, "
                               f"{self.size_bytes!r:.30} bytes and {self.rows!r:.30} rows; give 0 to {MAX_NUMBER} each")
        if len(self.columns) > MAX_ID_CHARS or not self.columns.isprintable():
            raise InvalidInput(f"block {self.id!r} has the columns {self.columns!r:.100}; give at most {MAX_ID_CHARS} "
                               f"printable characters that stand for them")
        first, last = self.min_time, self.max_time
        if (first is None) != (last is None) or not (
                first is None or last is None or -math.inf < first <= last < math.inf):
            raise InvalidInput(f"block {self.id!r} holds data from {first!r} to {last!r}; give finite times, min_time "
                               f"<= max_time, or None for both")

    @property
    def place(self) -> tuple[str, int, int]:
        """Tenant, shard and level."""
        return self.tenant, self.shard, self.level

    @property
    def time(self) -> float:
        """The age of the data, seconds: its oldest data's, or the time of an id that is a ULID; -1 ns for others."""
        return ulid_seconds(self.id) if self.min_time is None else self.min_time


def span_of(blocks: Iterable[BlockMeta]) -> tuple[float, float] | tuple[None, None]:
    """Return the oldest and the newest time of all these blocks; `None` if one has no times, which may be any."""
    spans = [(block.min_time, block.max_time) for block in blocks]
    known = [(first, last) for first, last in spans if first is not None and last is not None]
    if not known or len(known) < len(spans):
        return None, None
    return min(first for first, _ in known), max(last for _, last in known)


_ULID_TIME_CHARS = 10
# The first digit holds 3 bits only: 10 digits of 5 bits are two more than a time's 48.
_ULID = re.compile("[0-7][0-9A-HJKMNP-TV-Z]{25}", re.IGNORECASE | re.ASCII)
_AS_BASE_32 = str.maketrans("JKMNPQRSTVWXYZjkmnpqrstvwxyz", "IJKLMNOPQRSTUVIJKLMNOPQRSTUV")


def ulid_seconds(block_id: str) -> float:
    """Return the time of a ULID in seconds since the epoch; -1 ns for another id."""
    if not _ULID.fullmatch(block_id):
        return -1e-9
    return int(block_id[:_ULID_TIME_CHARS].translate(_AS_BASE_32), 32) / 1000


# -------------------------------------------------------------------------------------------------------- tombstones


@attrs.frozen(kw_only=True)
class BlockTombstones:
    """Blocks whose data lives on elsewhere (or nowhere): their objects are to be deleted.

    Attributes:
        name: unique; the job's name if a completed job left them.
        tenant: whose blocks.
        shard: where.
        level: the blocks' level.
        blocks: their ids.
    """

    name: str
    tenant: str
    shard: int
    level: int
    blocks: tuple[str, ...]


@attrs.frozen(kw_only=True)
class ShardTombstone:
    """Everything of a tenant and shard that begins in a span of time is to be deleted (retention).

    Attributes:
        name: unique.
        tenant: whose blocks.
        shard: where.
        timestamp: start of the span, seconds.
        duration: length of the span, seconds.
    """

    name: str
    tenant: str
    shard: int
    timestamp: float
    duration: float


Tombstone: TypeAlias = BlockTombstones | ShardTombstone
"""What is to be deleted, once it is old enough."""


# -------------------------------------------------------------------------------------------------------------- jobs


class JobStatus(enum.IntEnum):
    """The status on the wire; the numbers of the first three are Pyroscope's."""

    UNSPECIFIED = 0
    """Unassigned. Never sent by a worker."""
    IN_PROGRESS = 1
    """Assigned; from a worker: renew my lease."""
    SUCCESS = 2
    """From a worker: done, here are the results. Never stored."""
    FAILED = 3
    """From a worker: I could not do it; counts as a failure, and the job waits for its back-off. Never stored."""
    RELEASED = 4
    """From a worker: I give it back unharmed; counts as no failure, unless it was so too often. Never stored."""


class JobPhase(enum.Enum):
    """The states of a job in Pyroscope's diagram, derived from a job's state and a time; never stored."""

    UNASSIGNED = "unassigned"
    IN_PROGRESS = "in progress"
    LEASE_EXPIRED = "lease expired"
    EXCLUDED = "excluded"


@attrs.frozen(kw_only=True)
class JobPlan:
    """What a job is to do. Never changes.

    Attributes:
        name: the content hash of its sources with tenant, shard and level; unique.
        tenant: whose blocks.
        shard: where.
        compaction_level: the sources' level; the outputs' is one higher.
        source_blocks: ids in the order in which they are to be merged.
        size_bytes: of the sources together, as far as they were given when the blocks were added.
    """

    name: str
    tenant: str
    shard: int
    compaction_level: int
    source_blocks: tuple[str, ...]
    size_bytes: int = 0

    @property
    def place(self) -> tuple[str, int, int]:
        """Tenant, shard and level of the sources."""
        return self.tenant, self.shard, self.compaction_level


class NoOutput(enum.Enum):
    """Why a job wrote nothing."""

    EMPTY = "empty"
    """The sources were read and hold nothing that is still wanted: they are deleted."""
    MISSING = "missing"
    """The sources were not found: they go to quarantine, where an operator sees them."""


@attrs.frozen(kw_only=True)
class CompactedBlocks:
    """What a worker did.

    Attributes:
        tenant: the plan's.
        shard: the plan's.
        source_blocks: the ids that were read; sources of the plan that are not named here were not found.
        new_blocks: what was written, each one level above the sources.
        no_output: why nothing was written; `None` exactly if something was.
    """

    tenant: str
    shard: int
    source_blocks: tuple[str, ...]
    new_blocks: tuple[BlockMeta, ...] = ()
    no_output: NoOutput | None = None


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


# ------------------------------------------------------------------------------------------------------------- polls


@attrs.frozen
class StatusUpdate:
    """What a worker says about one of its jobs.

    Attributes:
        name: the job.
        token: the fencing token it holds.
        status: the number of a `JobStatus`: `IN_PROGRESS` (renew), `SUCCESS`, `FAILED` or `RELEASED`.
        compacted_blocks: the results, with `SUCCESS`.
        reason: why, with `FAILED` or `RELEASED`; cut to `MAX_REASON_CHARS`.
    """

    name: str
    token: int
    status: int = attrs.field(converter=int)
    compacted_blocks: CompactedBlocks | None = None
    reason: str = ""


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


@attrs.frozen
class Assignment:
    """A job that the worker holds until the deadline.

    Attributes:
        name: the job.
        token: to be given with every update; enforced at the storage side by a fence.
        lease_expires_at: renew before, seconds by the leader's clock.
        blocks: of a new assignment, what the index knows of the job's sources, in the plan's order; those that it does
            not know are left out.
    """

    name: str
    token: int
    lease_expires_at: float
    blocks: tuple[BlockMeta, ...] = ()


@attrs.frozen
class PollResponse:
    """The answer to a poll.

    Attributes:
        compaction_jobs: the plans of the new assignments.
        assignments: renewals first, then new ones. A worker stops what is not named here.
        answers: one for each status update, in order.
        tombstones: what the worker is to delete; confirm with `PollRequest.deleted_tombstones`.
        now: the time of the poll's command, so that a worker knows how long a lease lasts by its own clock.
        why: by what rule the jobs were chosen; where there are none, which gate is shut, its value, and what to do.
    """

    compaction_jobs: tuple[JobPlan, ...] = ()
    assignments: tuple[Assignment, ...] = ()
    answers: tuple[StatusAnswer, ...] = ()
    tombstones: tuple[Tombstone, ...] = ()
    now: float = 0.0
    why: str = ""
