# SPDX-License-Identifier: Apache-2.0
"""The operations that change a scheduler's state, as values that a log can hold, and their results.

`codec` turns each into the JSON of a command.
"""

from __future__ import annotations

from collections import Counter
from typing import Any, TypeAlias

import attrs

from compactlib.codec import JsonCodec
from compactlib.report import Printed
from compactlib.scheduler.config import SchedulerConfig
from compactlib.scheduler.values import BlockMeta, JobPlan, PollResponse, StatusUpdate


@attrs.frozen
class JobAsSeen:
    """A job as the poll was prepared: if it has changed by the time the update is applied, it is left alone.

    Attributes:
        name: the job.
        token: its token.
        lease_expires_at: the end of its lease, seconds, for a job that goes to another worker; 0 for others.
    """

    name: str
    token: int
    lease_expires_at: float = 0.0


@attrs.frozen(kw_only=True, repr=False)
class PlanUpdate(Printed):
    """What one poll changes: made by `prepare`, carried out by `apply`. Prints itself as a table of what it will do.

    Attributes:
        index: index of the command that prepared it: the token of what it assigns and creates.
        term: term of that command; in another term it is refused.
        now: time of that command, seconds.
        reports: what the worker says of its jobs; judged where the update is applied.
        has_effect: whether one of them changes anything, as the state was.
        evicted: excluded jobs to be moved to quarantine.
        created: jobs to be queued.
        assigned: jobs to be given to the worker.
        excluded: jobs whose last attempt was lost.
        cleaned: tombstones whose objects are deleted.
        leased: tombstones to be handed out.
        long_leases: how many leases end more than a lease from now, since a clock was ahead; they are cut.
        flushes: whether batches are old enough to be flushed.
        policy: the name of the policy that chose the assigned jobs; empty if none was asked.
        why: by what rule they were chosen, or which gate is shut.
    """

    index: int
    term: int
    now: float
    reports: tuple[StatusUpdate, ...] = ()
    has_effect: bool = False
    evicted: tuple[JobAsSeen, ...] = ()
    created: tuple[JobPlan, ...] = ()
    assigned: tuple[JobAsSeen, ...] = ()
    excluded: tuple[str, ...] = ()
    cleaned: tuple[str, ...] = ()
    leased: tuple[str, ...] = ()
    long_leases: int = 0
    flushes: bool = False
    policy: str = ""
    why: str = ""

    @property
    def is_empty(self) -> bool:
        """Whether applying it would leave the state as it is, so that a host need not replicate it."""
        return not (self.has_effect or self.evicted or self.created or self.assigned or self.excluded or self.cleaned
                    or self.leased or self.long_leases or self.flushes)

    def to_dicts(self) -> list[dict[str, Any]]:
        """Return one row for each thing that is to be done: `do` and `job`."""
        parts = [("take a report on", [said.name for said in self.reports]),
                 ("evict", [job.name for job in self.evicted]), ("queue", [plan.name for plan in self.created]),
                 ("assign", [job.name for job in self.assigned]), ("exclude", self.excluded),
                 ("clean up", self.leased), ("forget", self.cleaned)]
        return [{"do": what, "job": name} for what, names in parts for name in names]

    def _summary(self) -> str:
        counts = Counter(row["do"] for row in self.to_dicts())
        done = ", ".join(f"{count} {what}" for what, count in counts.items()) or f"nothing to do; {self.why}"
        return f"index {self.index}, term {self.term}: {done}"


@attrs.frozen
class AddBlocks:
    """New blocks: into the index and into the compaction queue."""

    blocks: tuple[BlockMeta, ...]


@attrs.frozen
class Tick:
    """Time has passed: flush what is old, without another push."""


@attrs.frozen
class Retain:
    """Forget blocks whose newest data is older than `before` (seconds); a shard tombstone deletes their objects.

    At most 32 partitions at once: repeat it until it removes nothing.
    """

    before: float


@attrs.frozen
class Requeue:
    """Try jobs again that failed.

    The blocks of those in quarantine are queued. Those that are queued and have no holder, excluded or waiting for
    their back-off, count no failure any more and may be assigned at once.

    Attributes:
        names: the jobs; others are reported and skipped.
    """

    names: tuple[str, ...]


@attrs.frozen
class Configure:
    """Other settings hold from here on, on every replica. O(everything)."""

    config: SchedulerConfig


Operation: TypeAlias = PlanUpdate | AddBlocks | Tick | Retain | Requeue | Configure
"""Everything that `apply` carries out."""
OPERATIONS: JsonCodec[Operation] = JsonCodec(Operation)


@attrs.frozen
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


@attrs.frozen
class Ticked:
    """`flushed` batches became ready for planning."""

    flushed: int


@attrs.frozen
class Retained:
    """What retention removed.

    Attributes:
        blocks: from the index.
        tombstones: names of the shard tombstones that delete their objects.
    """

    blocks: int
    tombstones: tuple[str, ...] = ()


@attrs.frozen
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


@attrs.frozen
class TermChanged:
    """The update was prepared in another term; nothing was changed. Poll the leader again."""

    prepared: int
    found: int


@attrs.frozen
class AlreadyApplied:
    """The command's index is not above the last one applied; nothing was changed."""

    index: int
    applied: int


ApplyResult: TypeAlias = (PollResponse | BlocksAdded | Ticked | Retained | Requeued | SchedulerConfig | TermChanged
                          | AlreadyApplied)
"""What `apply` returns: of a poll's update the answer to the worker, of `Configure` the settings before."""
