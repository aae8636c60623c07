"""What a compaction is going to do, before it does it: a plan says its cost, its benefit and its reason.

Plans are made by policies from statistics alone, so one can be made, printed and thrown away at any time.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from math import isfinite
from typing import Any, Literal, TypeAlias

import attrs

from compactlib.blobstore.errors import PlanDoesNotFit
from compactlib.blobstore.names import SegmentName
from compactlib.blobstore.policy import CompactionPolicy, SegmentView, StoreView
from compactlib.errors import InvalidInput
from compactlib.report import PolicyRecord, Printed

PlanKind: TypeAlias = Literal["normal", "middle range", "full"]
"""Which schedule a plan answers to: `PlanHistory` remembers when the last of each kind was carried out."""


@attrs.frozen
class PlannedSegment:
    """A segment that a plan takes.

    Attributes:
        name: its name.
        used_bytes: bytes of its records.
        valid_bytes: bytes to copy, as far as is known when the plan is made.
    """

    name: SegmentName
    used_bytes: int
    valid_bytes: int

    @property
    def dead_bytes(self) -> int:
        """Bytes that are not copied."""
        return self.used_bytes - self.valid_bytes


@attrs.frozen(kw_only=True, repr=False)
class CompactionPlan(Printed):
    """Which segments a compaction takes, at what cost, to what benefit, and why.

    Attributes:
        store: the store's name.
        victims: the segments it takes, in log order, at least one; neighbours or not.
        reference_time: deletes made strictly before it are in effect; >= 0, seconds since the epoch.
        planned_at: when the plan was made.
        kind: which schedule it answers to; "full" takes everything that may be taken.
        policy: who made it.
        benefit_segments: by how many segments the log gets shorter, at least, as far as is known; `CompactAll` may
            give 0 or less.
        weighted_cost: what the cost counted in the comparison, in bytes, if not what it is.
        reason: why, in one sentence with the numbers in it.

    Raises:
        InvalidInput: no victims, victims that do not ascend, a reference time that is negative or no number.
    """

    store: str
    victims: tuple[PlannedSegment, ...]
    reference_time: float
    planned_at: float
    policy: PolicyRecord
    benefit_segments: int
    reason: str
    kind: PlanKind = "normal"
    weighted_cost: int | None = None

    def __attrs_post_init__(self) -> None:
        if not self.victims:
            raise InvalidInput(f"a plan for store {self.store!r} has no segments; a plan takes at least one")
        for older, newer in pairwise(self.victims):
            if not older.name < newer.name:
                raise InvalidInput(f"a plan for store {self.store!r} names {newer.name} after {older.name}; segments "
                                   f"come in log order, each once")
        if not isfinite(self.reference_time) or self.reference_time < 0:
            raise InvalidInput(f"a plan for store {self.store!r} has the reference time {self.reference_time}; it is "
                               f"a number of seconds since the epoch, at least 0")

    @property
    def names(self) -> tuple[SegmentName, ...]:
        """The victims' names, ascending."""
        return tuple(victim.name for victim in self.victims)

    @property
    def is_full(self) -> bool:
        """Whether the plan takes the full range."""
        return self.kind == "full"

    @property
    def cost_bytes(self) -> int:
        """Bytes to copy, as far as is known."""
        return sum(victim.valid_bytes for victim in self.victims)

    @property
    def dead_bytes(self) -> int:
        """Bytes of records that will be gone."""
        return sum(victim.dead_bytes for victim in self.victims)

    @property
    def ratio(self) -> float:
        """Bytes copied for each segment freed, weighted as the policy weighs; infinite if none is freed for sure."""
        if self.benefit_segments < 1:
            return float("inf")
        return (self.cost_bytes if self.weighted_cost is None else self.weighted_cost) / self.benefit_segments

    @property
    def drops(self) -> tuple[SegmentName, ...]:
        """The victims of which nothing has to be copied."""
        return tuple(victim.name for victim in self.victims if not victim.valid_bytes)

    def to_dicts(self) -> list[dict[str, Any]]:
        """One dictionary a victim, in log order."""
        return [{"store": self.store, "segment": str(victim.name), "action": "copy" if victim.valid_bytes else "drop",
                 "used_bytes": victim.used_bytes, "valid_bytes": victim.valid_bytes, "dead_bytes": victim.dead_bytes}
                for victim in self.victims]

    def _summary(self) -> str:
        kind = "" if self.kind == "normal" else f"{self.kind} "
        sure = f"frees {self.benefit_segments} for sure" if self.benefit_segments > 0 else "frees none for sure"
        return (f"{kind}compaction of {_ranges(self.names)} of {self.store} by {self.policy.name}: "
                f"copies {self.cost_bytes:,} bytes, {sure}: {self.reason}")


def plan_for(view: StoreView, policy: CompactionPolicy, victims: Iterable[SegmentView], *, now: float, reason: str,
             kind: PlanKind = "normal", reference_time: float | None = None,
             weighted_cost: int | None = None) -> CompactionPlan:
    """The plan that takes `victims`, in any order, with cost and benefit reckoned by the rules of `StoreView`.

    Args:
        view: the store.
        policy: who decides.
        victims: segments of the view, each once.
        now: seconds since the epoch.
        reason: why these, in one sentence with the numbers in it.
        kind: see `CompactionPlan`.
        reference_time: default the view's.
        weighted_cost: see `CompactionPlan`.

    Raises:
        InvalidInput: as for `CompactionPlan`.
    """
    chosen = sorted(victims, key=lambda segment: segment.name)
    cost = sum(segment.valid_bytes for segment in chosen)
    return CompactionPlan(
        store=view.store,
        victims=tuple(PlannedSegment(each.name, each.used_bytes, each.valid_bytes) for each in chosen),
        reference_time=max(view.reference_time if reference_time is None else reference_time, 0.0),
        planned_at=now,
        policy=PolicyRecord.of(policy),
        benefit_segments=view.benefit(len(chosen), cost),
        reason=reason,
        kind=kind,
        weighted_cost=weighted_cost,
    )


def check_plan(plan: CompactionPlan, view: StoreView) -> None:
    """Return if `plan` can be carried out on the store that `view` shows. O(segments).

    Raises:
        PlanDoesNotFit: it names a segment that the store does not have, or that may not be compacted; make a new plan.
    """
    eligible = {segment.name: segment.eligible for segment in view.segments}
    for name in plan.names:
        if name not in eligible:
            raise PlanDoesNotFit(f"the plan names segment {name}, which store {view.store!r} does not have; plan again")
        if not eligible[name]:
            raise PlanDoesNotFit(f"the plan names segment {name} of store {view.store!r}, which may not be compacted "
                                 f"yet: it is written to, or has entries in the journal; plan again later")


def forecast(plan: CompactionPlan, view: StoreView) -> StoreView:
    """The view after `plan` was carried out on `view`, if nothing is written, deleted or expired meanwhile.

    Outputs reuse the victims' first places, one generation on, and are filled as the benefit reckons.

    Raises:
        PlanDoesNotFit: as for `check_plan`.
    """
    check_plan(plan, view)
    taken = set(plan.names)
    victims = [segment for segment in view.segments if segment.name in taken]
    left = plan.cost_bytes
    generation = max(name.generation for name in taken) + 1
    outputs: list[SegmentView] = []
    for victim in victims:
        if not left:
            break
        size = min(left, view.fill_bytes)
        left -= size
        outputs.append(SegmentView(name=SegmentName(victim.name.position, generation), used_bytes=size,
                                   valid_bytes=size, last_modified=max(each.last_modified for each in victims)))
    if left:
        # More is valid than is sure to fit into as many segments: the last output takes what is left.
        outputs[-1] = attrs.evolve(outputs[-1], used_bytes=outputs[-1].used_bytes + left,
                                   valid_bytes=outputs[-1].valid_bytes + left)
    kept = [segment for segment in view.segments if segment.name not in taken]
    after = sorted([*kept, *outputs], key=lambda segment: segment.name)
    freed = (len(victims) - len(outputs)) * view.segment_bytes
    return attrs.evolve(view, segments=tuple(after), used_bytes=max(view.used_bytes - freed, 0),
                        history=view.history.after(plan, plan.planned_at))


def _ranges(names: tuple[SegmentName, ...]) -> str:
    """`0_0 .. 3_1, 7_0`: neighbouring positions together; of many ranges only the first few."""
    runs: list[list[SegmentName]] = []
    for name in names:
        if runs and name.position == runs[-1][-1].position + 1:
            runs[-1][1:] = [name]
        else:
            runs.append([name])
    told = [" .. ".join(map(str, run)) for run in runs[:5]]
    return ", ".join(told) + (f" and {len(runs) - 5:,} ranges more" if len(runs) > 5 else "")
