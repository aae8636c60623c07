# SPDX-License-Identifier: Apache-2.0
"""Tenants take weighted turns, so that one with many jobs does not keep the others waiting."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Mapping

import attrs

from compactlib.errors import InvalidInput
from compactlib.scheduler.model.update import Turn
from compactlib.scheduler.plan.policy import (
    AssignmentView,
    JobChoice,
    LevelView,
    WaitingJob,
    check_share,
    choose_by_level,
)

_STRIDE = 1 << 20


def _pairs(weights: Mapping[str, int] | Iterable[tuple[str, int]]) -> tuple[tuple[str, int], ...]:
    try:
        return tuple(sorted(dict(weights).items()))
    except (TypeError, ValueError) as error:
        raise InvalidInput(f"weights is {weights!r:.100}; give a mapping of tenants to whole numbers") from error


@attrs.frozen
class FairTenants:
    """An `AssignmentPolicy`: as `ByPriority`, but inside a level tenants take weighted turns (stride scheduling).

    Each tenant has a virtual time, the one with the least is next, and an assignment moves it on by one stride over its
    weight. The virtual times are part of the replicated state, so that turns go on from poll to poll and from leader to
    leader. O(log tenants) for each job that it chooses.

    Attributes:
        weights: how many assignments a tenant gets in a round, >= 1; given as a mapping, kept as pairs by tenant.
        default_weight: for tenants not named.
        higher_level_share: see `ByPriority`.

    Raises:
        InvalidInput: a weight is below 1, or the share is none.
    """

    weights: tuple[tuple[str, int], ...] = attrs.field(default=(), converter=_pairs)
    default_weight: int = 1
    higher_level_share: float = 0.0

    def __attrs_post_init__(self) -> None:
        check_share(self.higher_level_share)
        for tenant, weight in (*self.weights, ("(default)", self.default_weight)):
            given: object = weight
            if not isinstance(given, int) or not 1 <= given <= _STRIDE:
                raise InvalidInput(f"tenant {tenant!r} has weight {given!r:.100}; give 1 to {_STRIDE}")

    @property
    def name(self) -> str:
        """`"fair_tenants"`."""
        return "fair_tenants"

    def choose(self, view: AssignmentView, now: float) -> JobChoice:
        """See `AssignmentPolicy.choose`."""
        return choose_by_level(view, self._in_turns, "tenants in weighted turns", self.higher_level_share)

    def _in_turns(self, level: LevelView) -> Iterator[tuple[WaitingJob, Turn | None]]:
        weights = dict(self.weights)
        lines = iter(level.tenants)
        ahead = next(lines, None)
        # Tenants that had a turn in this choice, by their new virtual time.
        again: list[tuple[int, str, Iterator[WaitingJob]]] = []
        while ahead is not None or again:
            if ahead is not None and (not again or (ahead.virtual_time, ahead.tenant) < again[0][:2]):
                before, tenant, jobs = ahead.virtual_time, ahead.tenant, iter(ahead.jobs)
                ahead = next(lines, None)
            else:
                before, tenant, jobs = heapq.heappop(again)
            job = next(jobs, None)
            if job is not None:
                after = before + _STRIDE // weights.get(tenant, self.default_weight)
                yield job, (level.level, tenant, before, after)
                heapq.heappush(again, (after, tenant, jobs))
        yield from ((job, None) for job in level.again)
