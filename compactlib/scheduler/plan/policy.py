# SPDX-License-Identifier: Apache-2.0
"""Which job a poll gives out first: a policy's choice, made by the leader alone.

A policy sees the jobs that may be assigned now, and chooses; the leader records the choice in its update, with the
turns that it takes, and every replica carries out what was recorded. So policies may change at any time, and differ
between leaders, and no state diverges. What a policy cannot see or change are the rules: which jobs may be assigned,
what a lease is, who owns a job.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import chain, islice
from math import floor
from typing import Any, Generic, Protocol, TypeAlias, TypeVar

import attrs

from compactlib.errors import InvalidInput
from compactlib.report import Printed
from compactlib.scheduler.model.frozen import made_quickly
from compactlib.scheduler.model.update import Turn

ItemT = TypeVar("ItemT")


class Lazily(Generic[ItemT]):
    """The items that a call gives, asked for once, and read as far as they are used. Compares as a tuple of all."""

    __slots__ = ("_argument", "_call", "_seen", "_source")

    def __init__(self, call: Callable[[Any], Iterable[ItemT]], argument: Any) -> None:
        self._call: Callable[[Any], Iterable[ItemT]] = call
        self._argument: Any = argument
        self._source: Iterator[ItemT] | None = None

    def __iter__(self) -> Iterator[ItemT]:
        if self._source is None:
            self._seen: list[ItemT] = []
            self._source = iter(self._call(self._argument))
        seen, source, place = self._seen, self._source, 0
        while True:
            if place == len(seen):
                try:
                    seen.append(next(source))
                except StopIteration:
                    return
            yield seen[place]
            place += 1

    def __eq__(self, other: object) -> bool:
        return tuple(self) == (tuple(other) if isinstance(other, Lazily) else other)

    def __hash__(self) -> int:
        return hash(tuple(self))

    def __reduce__(self) -> tuple[Any, ...]:
        return tuple, (tuple(self),)

    def __repr__(self) -> str:
        return repr(tuple(self))


@attrs.frozen(kw_only=True, slots=False)
class WaitingJob:
    """A job that may be assigned now, as a policy sees it.

    Attributes:
        name: unique.
        tenant: whose blocks.
        shard: where.
        level: the sources' level.
        blocks: how many sources it has.
        size_bytes: the sources' bytes, as far as they were given when the blocks were added; 0 if they were not.
        added_at: when it was created, seconds.
        failures: how often it was given up.
    """

    name: str
    tenant: str
    shard: int
    level: int
    blocks: int
    size_bytes: int
    added_at: float
    failures: int = 0


@attrs.frozen(slots=False)
class TenantLine:
    """The jobs of one tenant in one level that were never assigned.

    Attributes:
        tenant: whose.
        virtual_time: how far its turns have come (see `Turn`); replicated, and moved on by recorded turns alone.
        jobs: in order of age.
    """

    tenant: str
    virtual_time: int
    jobs: Iterable[WaitingJob]


@attrs.frozen(slots=False)
class LevelView:
    """What may be assigned of one level.

    Attributes:
        level: which.
        shared: how many assignments it has shared with the levels above so far.
        ready: jobs that were never assigned, in order of age.
        again: jobs whose back-off or whose lease is over: unassigned ones first, then by failures and time.
        tenants: the ready jobs by tenant, the one with the least virtual time first; the same jobs as in `ready`.
    """

    level: int
    shared: int
    ready: Iterable[WaitingJob]
    again: Iterable[WaitingJob]
    tenants: Iterable[TenantLine]


@attrs.frozen(kw_only=True, slots=False, repr=False)
class AssignmentView(Printed):
    """What a poll may give out, and to whom it may; what an `AssignmentPolicy` chooses from.

    Reading the first jobs costs the same whatever the number of jobs: nothing is looked at before it is read.

    Attributes:
        capacity: jobs that this poll may assign, >= 1.
        levels: those that have, or had, jobs, ascending.
        queued: jobs in the queue, all included.
        leased: of them, leased ones, also those whose lease is over.
        delayed: of them, those that wait for their back-off, or whose back-off is over.
        excluded: of them, those that failed too often.
        lease_seconds: how long a lease lasts.
        max_failures: how many failures are too often; 0: none are.
    """

    capacity: int
    levels: Iterable[LevelView]
    queued: int = 0
    leased: int = 0
    delayed: int = 0
    excluded: int = 0
    lease_seconds: float = 0.0
    max_failures: int = 0

    def why_nothing(self) -> str:
        """Why no job can be assigned, if none can: the gate, its value, and what to do."""
        if not self.queued:
            return ("no job is queued: blocks become one once a batch has max_blocks of its level, or is older than "
                    "its max_age_seconds at a poll; add blocks, or poll again")
        return (f"none of {self.queued} queued jobs is free: {self.leased} are leased (lease_seconds="
                f"{self.lease_seconds}), {self.delayed} wait for their back-off, {self.excluded} failed max_failures="
                f"{self.max_failures} times, and the rest was made or reported in this very poll; wait, requeue "
                f"what failed, or raise the limit")

    def to_dicts(self) -> list[dict[str, Any]]:
        """One row a job that may be assigned."""
        return [attrs.asdict(job) for level in self.levels for jobs in (level.ready, level.again) for job in jobs]

    def _summary(self) -> str:
        return f"{self.capacity} of {self.queued} jobs may be given out"


@made_quickly
@attrs.frozen(repr=False)
class JobChoice(Printed):
    """What a poll is to give out.

    Attributes:
        jobs: names, in the order in which they are assigned; at most the view's capacity, each once.
        why: by what rule; of an empty choice which gate is shut, its value, and what to do.
        shared: (level, how many assignments it has shared with the levels above) where that has changed; recorded.
        turns: the turns that tenants have taken; recorded.
    """

    jobs: tuple[str, ...]
    why: str
    shared: tuple[tuple[int, int], ...] = ()
    turns: tuple[Turn, ...] = ()

    @property
    def is_empty(self) -> bool:
        """Whether nothing is assigned."""
        return not self.jobs

    def to_dicts(self) -> list[dict[str, Any]]:
        """One row a job."""
        return [{"job": name, "why": self.why} for name in self.jobs]

    def _summary(self) -> str:
        return f"{len(self.jobs)} jobs: {self.why}"


class AssignmentPolicy(Protocol):
    """A `contract.Policy` for polls: which of the jobs that may be assigned go first.

    Asked by the leader when it prepares a poll that has room for a job, within the host's order of commands: be quick.
    What it raises reaches the caller of the poll, and nothing was changed.
    """

    @property
    def name(self) -> str:
        """A short name for updates and reports."""

    def choose(self, view: AssignmentView, now: float) -> JobChoice:
        """What to give out at `now`, seconds. Pure: equal arguments give equal choices; never `None`."""


Order: TypeAlias = Callable[[LevelView], Iterator[tuple[WaitingJob, Turn | None]]]
"""The jobs of a level in a policy's order, each with the turn that its assignment takes, if it takes one."""


def choose_by_level(view: AssignmentView, order: Order, why: str, higher_level_share: float) -> JobChoice:
    """A choice level by level: the lowest with a job is next, unless its turn goes to the ones above.

    O(1) for each job beside what `order` costs.

    Args:
        view: what there is.
        order: of a level's jobs.
        why: by what rule, for the choice.
        higher_level_share: the share of assignments that goes past a level to the ones above, if they have any.
    """
    jobs: list[str] = []
    turns: dict[tuple[int, str], Turn] = {}
    shared: dict[int, int] = {}
    chosen = (_shared_out(view, order, higher_level_share, shared) if higher_level_share
              else chain.from_iterable(order(level) for level in view.levels))
    for job, turn in islice(chosen, view.capacity):
        jobs.append(job.name)
        if turn is not None:
            turns[turn[:2]] = turn
    return JobChoice(tuple(jobs), why if jobs else view.why_nothing(), tuple(shared.items()), tuple(turns.values()))


def _shared_out(view: AssignmentView, order: Order, share: float,
                shared: dict[int, int]) -> Iterator[tuple[WaitingJob, Turn | None]]:
    """The jobs, each of the level whose turn it is; notes in `shared` how many each has shared with those above."""
    left = [(level, jobs, first) for level in view.levels
            if (first := next(jobs := order(level), None)) is not None]
    while left:
        place = 0
        # The highest level has no other to share with.
        while place < len(left) - 1:
            level = left[place][0]
            turn = shared.get(level.level, level.shared)
            shared[level.level] = turn + 1
            if not floor((turn + 1) * share) > floor(turn * share):
                break
            place += 1
        level, jobs, item = left[place]
        yield item
        following = next(jobs, None)
        if following is None:
            del left[place]
        else:
            left[place] = level, jobs, following


def check_share(higher_level_share: object) -> None:
    """Raise `InvalidInput` unless this is a share of assignments."""
    if not isinstance(higher_level_share, int | float) or not 0 <= higher_level_share <= 1:
        raise InvalidInput(f"higher_level_share is {higher_level_share!r:.100}; a share lies between 0 and 1")
