# SPDX-License-Identifier: Apache-2.0
"""The interface between a worker and its host: `RunningJob` for the host's code, `Transport` from the host."""

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
    """Sends a poll to the scheduler. Several threads may call it; a worker sends one poll at a time."""

    def poll(self, request: PollRequest) -> PollResponse:
        """Send the request, and wait for the answer, for a limited time.

        Raises:
            Exception: there is no answer. The request may be carried out, now, later, never or several times; the next
                poll of the worker repeats its reports.
        """


class RunningJob:
    """A job for `Execute`: its plan, token and lease. Threads may share it.

    Args:
        deadline: end of the lease, seconds on the worker's monotonic clock.
        clock: the worker's.
        keep: renews due leases, in a worker without threads.

    Attributes:
        plan: the job.
        token: the fencing token of the assignment; pass it to a `Fence`, first and around the commit. It does not
            change during a run. If this worker loses the job and gets it again, that is another run with another token,
            so that a commit with a token depends only on reads with that token.
        blocks: the plan's sources in the scheduler's index at the assignment, in the plan's order, without unknown
            blocks. A block may be removed during the run.
        budget: call `spend` before each chunk that is written; it is cancelled to stop the run.
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
        """The rest of the lease by this worker's clock; negative if the lease may have ended."""
        return self._deadline - self._clock.monotonic()

    @property
    def is_stopped(self) -> bool:
        """Whether the run has to end: the job was lost, or the worker stops."""
        return self._stopped is not None

    def output_id(self, tenant: str | None = None, number: int = 0) -> str:
        """Return the id of an output block: a ULID with the time of the first source (0 without one).

        Its random part is a hash of the plan's sources, level and shard, the token, the output's tenant and its number.
        So a worker that repeats an assignment overwrites its own outputs instead of doubling the data. Two workers of
        the same job have different tokens, so that neither overwrites the other's outputs, and a late deletion of one
        job's outputs does not delete the other's.

        Args:
            tenant: the output's tenant; default the plan's. A job of several tenants writes a block for each.
            number: distinguishes outputs of one tenant.
        """
        plan, digest = self.plan, hashlib.sha256(_PURPOSE)
        for part in (plan.tenant if tenant is None else tenant, str(plan.shard), str(plan.compaction_level),
                     str(self.token), str(number), *plan.source_blocks):
            text = part.encode("utf-8", "surrogatepass")
            digest.update(len(text).to_bytes(8, "little") + text)
        seconds = ulid_seconds(plan.source_blocks[0]) if plan.source_blocks else 0.0
        value = round(max(seconds, 0.0) * 1000) << _RANDOM_BITS | int.from_bytes(digest.digest()[:10], "big")
        return "".join(_ALPHABET[value >> shift & 31] for shift in range(125, -1, -5))

    def check(self) -> None:
        """Check whether the run may continue; call it regularly.

        In a worker without threads (`run_pending`) this also renews the lease.

        Raises:
            JobLost: the job was lost, or the worker stops. Do not catch it.
        """
        if self._keep is not None:
            self._keep()
        if self._stopped is not None:
            raise JobLost(name=self.plan.name, reason=self._stopped)

    def renew(self, deadline: float) -> None:
        """Set a new end of the lease; for the worker."""
        self._deadline = deadline

    def stop(self, reason: str) -> None:
        """End the run; for the worker."""
        self._stopped = reason
        self.budget.cancel()

    def __repr__(self) -> str:
        return f"RunningJob({self.plan.name!r}, token {self.token}{', stopped' if self.is_stopped else ''})"


Execute: TypeAlias = Callable[[RunningJob], CompactedBlocks]
"""Runs a job: reads the sources of `job.plan`, writes the outputs under ids of `job.output_id`, and returns them.

May run twice for a job, also at the same time. `JobLost` and `FencedOff` end a run that has lost its job, `ReleaseJob`
releases it; any other error counts as a failure of the job.
"""

Cleanup: TypeAlias = Callable[[Tombstone], object]
"""Deletes the objects of a tombstone, of which some may be absent. After an error it is called again."""
