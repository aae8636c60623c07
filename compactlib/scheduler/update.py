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
from compactlib.scheduler.values import BlockMeta, CompactedBlocks, JobPlan, PollResponse, StatusAnswer, Verdict


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


@attrs.frozen
class ReturnedJob:
    """A job to be taken back from its worker, which released it or failed.

    Attributes:
        name: the job.
        token: it is left alone if its token is another one.
        failures: it then has.
        releases: it then has.
        not_before: when its back-off ends, seconds; 0 if it has none.
        reason: what the worker said; empty: what was said before stays.
    """

    name: str
    token: int
    failures: int
    releases: int = 0
    not_before: float = 0.0
    reason: str = ""


@attrs.frozen
class CompletedJob:
    """A job that is done and leaves the queue, if its token is still this one."""

    name: str
    token: int
    results: CompactedBlocks


@attrs.frozen
class RefusedOutputs:
    """Blocks written by a worker whose completion was refused: they are deleted unless they have an owner."""

    job: str
    blocks: tuple[BlockMeta, ...]


@attrs.frozen(kw_only=True, repr=False)
class PlanUpdate(Printed):
    """What one poll changes: made by `prepare`, carried out by `apply`. Prints itself as a table of what it will do.

    Attributes:
        index: index of the command that prepared it: the token of what it assigns and creates.
        term: term of that command; in another term it is refused.
        now: time of that command, seconds.
        evicted: jobs to be moved to quarantine.
        completed: jobs to leave the queue.
        created: jobs to be queued.
        renewed: leases to be renewed.
        returned: jobs to be taken back.
        assigned: jobs to be given to the worker.
        excluded: jobs whose last attempt was lost.
        refused: blocks to be deleted.
        cleaned: tombstones whose objects are deleted.
        leased: tombstones to be handed out.
        long_leases: how many leases end more than a lease from now, since a clock was ahead; they are cut.
        flushes: whether batches are old enough to be flushed.
        answers: to the status updates, in their order.
        policy: the name of the policy that chose the assigned jobs; empty if none was asked.
        why: by what rule they were chosen, or which gate is shut.
    """

    index: int
    term: int
    now: float
    evicted: tuple[JobAsSeen, ...] = ()
    completed: tuple[CompletedJob, ...] = ()
    created: tuple[JobPlan, ...] = ()
    renewed: tuple[JobAsSeen, ...] = ()
    returned: tuple[ReturnedJob, ...] = ()
    assigned: tuple[JobAsSeen, ...] = ()
    excluded: tuple[str, ...] = ()
    refused: tuple[RefusedOutputs, ...] = ()
    cleaned: tuple[str, ...] = ()
    leased: tuple[str, ...] = ()
    long_leases: int = 0
    flushes: bool = False
    answers: tuple[StatusAnswer, ...] = ()
    policy: str = ""
    why: str = ""

    @property
    def is_empty(self) -> bool:
        """Whether applying it would leave the state as it is, so that a host need not replicate it."""
        return not (self.evicted or self.completed or self.created or self.renewed or self.returned or self.assigned
                    or self.excluded or self.refused or self.cleaned or self.leased or self.long_leases
                    or self.flushes)

    def to_dicts(self) -> list[dict[str, Any]]:
        """Return one row for each thing that is to be done: `do`, `job`, and its numbers."""
        rows: list[dict[str, Any]] = [{"do": answer.verdict.value, "job": answer.name, "why": answer.detail}
                                      for answer in self.answers if answer.verdict is not Verdict.ACCEPTED]
        for what, jobs in (("evict", self.evicted), ("complete", self.completed), ("queue", self.created),
                           ("renew", self.renewed), ("take back", self.returned), ("assign", self.assigned)):
            rows += [{"do": what, "job": job.name, "why": getattr(job, "reason", "")} for job in jobs]
        for what, names in (("exclude", self.excluded), ("delete outputs of", [each.job for each in self.refused]),
                            ("clean up", self.leased), ("forget", self.cleaned)):
            rows += [{"do": what, "job": name} for name in names]
        return rows

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
