# SPDX-License-Identifier: Apache-2.0
"""The interface between a worker and its host: what a job sees of its lease and token, and what the host gives."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Protocol, TypeAlias

from compactlib.budget import Budget
from compactlib.clock import Clock
from compactlib.scheduler.errors import JobLost
from compactlib.scheduler.values import (
    BlockMeta,
    CompactedBlocks,
    JobPlan,
    PollRequest,
    PollResponse,
    Tombstone,
    ulid_seconds,
)

_ALPHABET = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
_PURPOSE = b"compactlib scheduler output 1"
_RANDOM_BITS = 80


class Transport(Protocol):
    """Carries one poll to the scheduler and the answer back. Any thread may call it; a worker does so one at a time."""

    def poll(self, request: PollRequest) -> PollResponse:
        """Send the request, and wait for the answer, for a limited time.

        Raises:
            Exception: there is no answer. The request may have been carried out or not, now or later, once or more
                often; the worker says what is still true with its next poll.
        """


def output_block_id(plan: JobPlan, token: int, tenant: str | None = None, number: int = 0) -> str:
    """Return the id of a block that the job writes: a ULID with the time of the first source (0 if that has none).

    The rest of it is a hash of the plan's sources, level and shard, of the token, of the output's tenant and of its
    number. So a worker that repeats an assignment writes the same ids, and overwrites its own outputs instead of
    doubling the data; and two workers who were given the same job after each other can never overwrite each other's
    outputs, nor can a late deletion of one's outputs meet the other's.

    Args:
        plan: the job's plan.
        token: the token that the job was assigned with.
        tenant: the output's; the plan's if not given. A job over several tenants' blocks writes one block for each.
        number: which of several outputs of one tenant.
    """
    digest = hashlib.sha256(_PURPOSE)
    for part in (plan.tenant if tenant is None else tenant, str(plan.shard), str(plan.compaction_level), str(token),
                 str(number), *plan.source_blocks):
        text = part.encode("utf-8", "surrogatepass")
        digest.update(len(text).to_bytes(8, "little") + text)
    seconds = ulid_seconds(plan.source_blocks[0]) if plan.source_blocks else 0.0
    value = round(max(seconds, 0.0) * 1000) << _RANDOM_BITS | int.from_bytes(digest.digest()[:10], "big")
    return "".join(_ALPHABET[value >> shift & 31] for shift in range(125, -1, -5))


class RunningJob:
    """What an execute gets: the plan, and whether the job is still the worker's. Any thread may use it.

    Args:
        plan: see below.
        token: see below.
        deadline: end of the lease, seconds on the worker's steady clock.
        blocks: see below.
        budget: see below.
        clock: the worker's.
        keep: renews leases if it is time to, in a worker without threads.

    Attributes:
        plan: the job.
        token: the fencing token that the job was assigned with; give it to a `Fence`, first and around the commit. It
            stays the same while the job runs. A job that this worker loses and is given again is another run, with a
            token of its own, so that a commit under a token rests on what was seen under that token.
        blocks: what the scheduler's index knew of the plan's sources when it gave the job, in the plan's order; those
            that it did not know are left out. One may go while the job runs.
        budget: ask it before each chunk that is written; it is cancelled when the work has to stop.
    """

    def __init__(self, plan: JobPlan, token: int, deadline: float, blocks: tuple[BlockMeta, ...] = (), *,
                 budget: Budget, clock: Clock, keep: Callable[[], object] | None = None) -> None:
        self.plan: JobPlan = plan
        self.token: int = token
        self.blocks: tuple[BlockMeta, ...] = blocks
        self.budget: Budget = budget
        self._deadline = deadline
        self._clock = clock
        self._keep = keep
        self._stopped: str | None = None

    @property
    def lease_seconds_left(self) -> float:
        """How long the lease lasts by this worker's clock; negative if it may be over."""
        return self._deadline - self._clock.monotonic()

    @property
    def is_stopped(self) -> bool:
        """Whether the work has to end: the job was lost, or the worker shuts down."""
        return self._stopped is not None

    def output_id(self, tenant: str | None = None, number: int = 0) -> str:
        """Return the id of a block to be written; see `output_block_id`. Stays the same while the job runs."""
        return output_block_id(self.plan, self.token, tenant, number)

    def check(self) -> None:
        """Return if the work may go on; call it now and then.

        In a worker without threads (`run_pending`) this also renews the lease.

        Raises:
            JobLost: the job was lost, or the worker shuts down. Let it through.
        """
        if self._keep is not None:
            self._keep()
        if self._stopped is not None:
            raise JobLost(name=self.plan.name, reason=self._stopped)

    def renew(self, deadline: float) -> None:
        """Called by the worker when the lease was renewed."""
        self._deadline = deadline

    def stop(self, reason: str) -> None:
        """Called by the worker when the work has to end."""
        self._stopped = reason
        self.budget.cancel()

    def __repr__(self) -> str:
        return f"RunningJob({self.plan.name!r}, token {self.token}{', stopped' if self.is_stopped else ''})"


Execute: TypeAlias = Callable[[RunningJob], CompactedBlocks]
"""Does a job: reads the sources of `job.plan`, writes the outputs under ids of `job.output_id`, returns what they are.

May run twice for one job, also at the same time. `JobLost` and `FencedOff` end a run that has lost its job, and
`ReleaseJob` gives it back; any other error counts as a failure of the job.
"""

Cleanup: TypeAlias = Callable[[Tombstone], object]
"""Deletes the objects of a tombstone, of which some may be gone already. Any error: they are not all deleted yet."""
