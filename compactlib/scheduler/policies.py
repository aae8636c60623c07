# SPDX-License-Identifier: Apache-2.0
"""The policies of the scheduler; `docs/scheduler.md` compares them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from heapq import heapify, heappop, heapreplace
from itertools import islice

import attrs

from compactlib._arguments import is_above, is_whole
from compactlib.errors import InvalidInput
from compactlib.scheduler.policy import AssignmentView, JobChoice, LevelView, WaitingJob

BY_AGE = "by level, failures and age"
"""The rule of `ByPriority`."""
_MAX_WEIGHT = 1 << 20


def choose_by_level(view: AssignmentView, order: Callable[[LevelView], Iterable[WaitingJob]], why: str) -> JobChoice:
    """Choose level by level, the lowest first.

    Args:
        view: the view of the queue.
        order: returns the jobs of a level in order.
        why: the rule, for the choice.
    """
    jobs = (job.name for level in view.levels for job in order(level))
    chosen = tuple(islice(jobs, view.capacity))
    return JobChoice(chosen, why if chosen else view.why_nothing())


@attrs.frozen
class ByPriority:
    """An `AssignmentPolicy`: by level, then unassigned jobs by failures and age, then jobs with an ended lease."""

    @property
    def name(self) -> str:
        return "by_priority"

    def choose(self, view: AssignmentView, now: float) -> JobChoice:
        return choose_by_level(view, lambda level: (*level.ready, *level.again), BY_AGE)


@attrs.frozen
class SmallestFirst:
    """An `AssignmentPolicy`: as `ByPriority`, but within a level the unassigned job with the fewest bytes is first.

    With unknown sizes, the job with the fewest blocks. An old job is before all others of its level, also after
    failures, so that no job waits for ever.

    Attributes:
        max_wait_seconds: the age from which on a job is first, > 0.
        window: the number of oldest jobs of each tenant and level to compare, >= 1; the cost of a choice.

    Raises:
        InvalidInput: a number is out of its range.
    """

    max_wait_seconds: float = attrs.field(default=3600.0, validator=is_above(0))
    window: int = attrs.field(default=1000, validator=is_whole(1))

    @property
    def name(self) -> str:
        return "smallest_first"

    def choose(self, view: AssignmentView, now: float) -> JobChoice:
        def by_size(level: LevelView) -> Iterator[WaitingJob]:
            again, overdue = list(level.again), {job.name for job in (*level.ready, *level.again)
                                                 if not 0 <= now - job.added_at <= self.max_wait_seconds}
            yield from (job for job in again if job.name in overdue)
            # Sorting is stable: the oldest of equal jobs, and the oldest of old jobs, is first.
            yield from sorted(level.ready, key=lambda job: (
                (0, 0) if job.name in overdue else (1 + job.size_bytes, job.blocks)))
            yield from (job for job in again if job.name not in overdue)

        return choose_by_level(view, by_size, "by level, then the smallest")


def _pairs(weights: Mapping[str, int] | Iterable[tuple[str, int]]) -> tuple[tuple[str, int], ...]:
    return tuple(sorted(dict(weights).items()))


@attrs.frozen
class FairTenants:
    """An `AssignmentPolicy`: as `ByPriority`, but within a level the tenant with the fewest leased jobs is first.

    Workers are divided by the weights, so that a tenant with many jobs does not hold up the others.

    Attributes:
        weights: the number of leased jobs of a tenant that count as one, >= 1, by default 1; a mapping, stored as
            pairs by tenant.

    Raises:
        InvalidInput: a weight is below 1.
    """

    weights: tuple[tuple[str, int], ...] = attrs.field(default=(), converter=_pairs)

    def __attrs_post_init__(self) -> None:
        for tenant, weight in self.weights:
            if not 1 <= weight <= _MAX_WEIGHT:
                raise InvalidInput(f"tenant {tenant!r} has weight {weight!r:.100}; give 1 to {_MAX_WEIGHT}")

    @property
    def name(self) -> str:
        return "fair_tenants"

    def choose(self, view: AssignmentView, now: float) -> JobChoice:
        weights = dict(self.weights)

        def in_turns(level: LevelView) -> Iterator[WaitingJob]:
            turns = [(line.leased / weights.get(line.tenant, 1), line.tenant, line.leased, deque(line.jobs))
                     for line in level.tenants if line.jobs]
            heapify(turns)
            while turns:
                _, tenant, leased, jobs = turns[0]
                yield jobs.popleft()
                if jobs:
                    part = (leased + 1) / weights.get(tenant, 1)
                    heapreplace(turns, (part, tenant, leased + 1, jobs))
                else:
                    heappop(turns)
            yield from level.again

        return choose_by_level(view, in_turns, "the tenant with the fewest leased jobs")
