# SPDX-License-Identifier: Apache-2.0
"""The frozen values of the scheduler: blocks, jobs, results and tombstones; requests and answers of polls.

Times are seconds since the epoch as `float`, taken from commands and never from a clock. Most field names are
Pyroscope's (`docs/internals/differences.md`).
"""

from __future__ import annotations

import enum
import math
import re
from collections.abc import Iterable

import attrs

from compactlib.errors import InvalidInput

ANONYMOUS_TENANT = ""
"""The tenant of blocks with data of several tenants (level 0); their compaction may split them by tenant."""
MAX_ID_CHARS = 256
"""The longest block id or tenant."""
MAX_NUMBER = (1 << 63) - 1
"""The largest shard, level, size and number of rows, which fits into integers of other languages."""
MAX_REASON_CHARS = 1000
"""The longest stored reason of a worker."""


# ------------------------------------------------------------------------------------------------------------ blocks


@attrs.frozen(kw_only=True)
class BlockMeta:
    """The metadata of a block, in the index and in a worker's report.

    Attributes:
        id: unique within its tenant and shard; a ULID or any text without control characters.
        tenant: the data's tenant; `ANONYMOUS_TENANT` for several tenants.
        shard: >= 0.
        level: the number of compactions of its data, >= 0.
        min_time: the time of its oldest data, seconds. `None`: unknown, and retention never removes the block.
        max_time: the time of its newest data, seconds; >= `min_time`. `None` exactly if `min_time` is.
        size_bytes: >= 0.
        rows: their number, >= 0; `None`: unknown. If it is known for all sources, a merge need not count them.

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

    def __attrs_post_init__(self) -> None:
        if not 0 < len(self.id) <= MAX_ID_CHARS or not self.id.isprintable():
            raise InvalidInput(f"{self.id!r} is not a block id; give 1 to {MAX_ID_CHARS} printable characters")
        if len(self.tenant) > MAX_ID_CHARS or not self.tenant.isprintable():
            raise InvalidInput(f"{self.tenant!r} is not a tenant; give at most {MAX_ID_CHARS} printable characters")
        if not 0 <= self.shard | self.level | self.size_bytes | (self.rows or 0) <= MAX_NUMBER:
            raise InvalidInput(f"block {self.id!r} has shard {self.shard!r:.30}, level {self.level!r:.30}, "
                               f"{self.size_bytes!r:.30} bytes and {self.rows!r:.30} rows; give 0 to {MAX_NUMBER} each")
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
        """The time of its oldest data, else of its id if that is a ULID, else -1 ns; in seconds."""
        return ulid_seconds(self.id) if self.min_time is None else self.min_time


def span_of(blocks: Iterable[BlockMeta]) -> tuple[float, float] | tuple[None, None]:
    """Return the oldest and the newest time of all blocks; `None` if a block has no times."""
    spans = [(block.min_time, block.max_time) for block in blocks]
    known = [(first, last) for first, last in spans if first is not None and last is not None]
    if not known or len(known) < len(spans):
        return None, None
    return min(first for first, _ in known), max(last for _, last in known)


_ULID_TIME_CHARS = 10
# The first digit has only 3 bits: 10 digits of 5 bits are two bits more than a time's 48.
_ULID = re.compile("[0-7][0-9A-HJKMNP-TV-Z]{25}", re.IGNORECASE | re.ASCII)
_AS_BASE_32 = str.maketrans("JKMNPQRSTVWXYZjkmnpqrstvwxyz", "IJKLMNOPQRSTUVIJKLMNOPQRSTUV")


def ulid_seconds(block_id: str) -> float:
    """Return the time of a ULID in seconds since the epoch; -1 ns for another id."""
    if not _ULID.fullmatch(block_id):
        return -1e-9
    return int(block_id[:_ULID_TIME_CHARS].translate(_AS_BASE_32), 32) / 1000


# -------------------------------------------------------------------------------------------------------- tombstones


@attrs.frozen(kw_only=True)
class Tombstone:
    """Blocks with objects to delete after a delay, since their data is in other blocks or not needed.

    Attributes:
        name: unique; for sources of a completed job, the job's name.
        tenant: the blocks' tenant.
        shard: the blocks' shard.
        level: the blocks' level.
        blocks: their ids.
    """

    name: str
    tenant: str
    shard: int
    level: int
    blocks: tuple[str, ...]


# -------------------------------------------------------------------------------------------------------------- jobs


class JobStatus(enum.IntEnum):
    """The status on the wire; the numbers of the first three are Pyroscope's."""

    UNSPECIFIED = 0
    """Unassigned. Never sent by a worker."""
    IN_PROGRESS = 1
    """Assigned; from a worker: renews the lease."""
    SUCCESS = 2
    """From a worker: done, with the results. Never stored."""
    FAILED = 3
    """From a worker: failed; counts as a failure, and the job backs off. Never stored."""
    RELEASED = 4
    """From a worker: released; counts as a failure only after too many releases. Never stored."""


class JobPhase(enum.Enum):
    """The states of a job in Pyroscope's diagram, derived from a job's state and a time; never stored."""

    UNASSIGNED = "unassigned"
    IN_PROGRESS = "in progress"
    LEASE_EXPIRED = "lease expired"
    EXCLUDED = "excluded"


@attrs.frozen(kw_only=True)
class JobPlan:
    """The plan of a job. Never changes.

    Attributes:
        name: the content hash of its sources with tenant, shard and level; unique.
        tenant: the sources' tenant.
        shard: the sources' shard.
        compaction_level: the sources' level; the outputs are one level higher.
        source_blocks: ids in the order of the merge.
        size_bytes: the bytes of all sources with known sizes.
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
    """The reason of a job without outputs."""

    EMPTY = "empty"
    """The sources were read and have no live data: they are deleted."""
    MISSING = "missing"
    """The sources were not found: they are moved to quarantine, for an operator."""


@attrs.frozen(kw_only=True)
class CompactedBlocks:
    """The results of a job.

    Attributes:
        tenant: the plan's tenant.
        shard: the plan's shard.
        source_blocks: ids of the sources that were read; the plan's other sources were not found.
        new_blocks: the outputs, one level above the sources.
        no_output: the reason of a job without outputs; `None` exactly if there are outputs.
    """

    tenant: str
    shard: int
    source_blocks: tuple[str, ...]
    new_blocks: tuple[BlockMeta, ...] = ()
    no_output: NoOutput | None = None


@attrs.frozen(kw_only=True)
class QuarantinedJob:
    """A job in quarantine; its blocks stay in the index, and `Requeue` compacts them again.

    Attributes:
        plan: the job's plan; for sources that were not found, only with those.
        reason: the quarantine's reason.
        failures: the number of its failures.
        since: time of the command that moved it here, seconds.
    """

    plan: JobPlan
    reason: str
    failures: int
    since: float


# ------------------------------------------------------------------------------------------------------------- polls


@attrs.frozen
class StatusUpdate:
    """A worker's report on a job.

    Attributes:
        name: the job's name.
        token: the fencing token of the run.
        status: the number of a `JobStatus`: `IN_PROGRESS` (renew), `SUCCESS`, `FAILED` or `RELEASED`.
        compacted_blocks: the results, with `SUCCESS`.
        reason: with `FAILED` or `RELEASED`; cut to `MAX_REASON_CHARS`.
    """

    name: str
    token: int
    status: int = attrs.field(converter=int)
    compacted_blocks: CompactedBlocks | None = None
    reason: str = ""


@attrs.frozen
class PollRequest:
    """A poll of a worker.

    Attributes:
        status_updates: a report for each of its jobs; the leases of other jobs do not change.
        job_capacity: the number of its free slots, >= 0; slots of jobs lost in this poll are added.
        deleted_tombstones: names of the tombstones whose objects are deleted.
    """

    status_updates: tuple[StatusUpdate, ...] = ()
    job_capacity: int = 0
    deleted_tombstones: tuple[str, ...] = ()


class Verdict(enum.Enum):
    """The verdict on a status update. "Final": the worker has lost the job, and a retry has no effect."""

    ACCEPTED = "accepted"
    NOT_FOUND = "not found"
    """No such job: it never existed, or was completed or evicted. Final."""
    STALE_TOKEN = "stale token"
    """The job was assigned to another worker since. Final."""
    FUTURE_TOKEN = "future token"
    """No command has this index yet, so no worker has this token. Final."""
    BAD_STATUS = "bad status"
    """A worker may not send this status. Nothing changed, and the lease was not renewed."""
    WRONG_STATE = "wrong state"
    """The job is not assigned. Final."""
    BAD_RESULT = "bad result"
    """The results do not fit the plan: a failure of the job; a sweep removes the outputs. Final."""
    SOURCES_GONE = "sources gone"
    """Sources were deleted while the job ran: the rest is queued again; a sweep removes the outputs. Final."""
    DUPLICATE = "duplicate"
    """An earlier update of this request is about the same job, and its answer holds. Nothing changed."""


@attrs.frozen
class StatusAnswer:
    """The answer to a status update.

    Attributes:
        name: the job's name.
        verdict: accepted, or the reason why not.
        holder_deadline: end of the job's lease (of any worker), seconds; `None` if it is not leased.
        detail: the numbers, as text.
    """

    name: str
    verdict: Verdict
    holder_deadline: float | None = None
    detail: str = ""


@attrs.frozen
class Assignment:
    """A job that is leased to the worker.

    Attributes:
        name: the job's name.
        token: the token for every update, and for the fence of the storage.
        lease_expires_at: end of the lease, seconds by the leader's clock.
        blocks: the sources of a new assignment in the index, in the plan's order, without unknown blocks.
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
        assignments: renewals first, then new assignments. A worker stops other jobs.
        answers: one for each status update, in order.
        tombstones: the tombstones with objects to delete; confirm with `PollRequest.deleted_tombstones`.
        now: the time of the poll's command, from which a worker computes the duration of a lease.
        why: the rule of the choice; without jobs the gate that is shut, its value, and advice.
    """

    compaction_jobs: tuple[JobPlan, ...] = ()
    assignments: tuple[Assignment, ...] = ()
    answers: tuple[StatusAnswer, ...] = ()
    tombstones: tuple[Tombstone, ...] = ()
    now: float = 0.0
    why: str = ""
