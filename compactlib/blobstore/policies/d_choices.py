"""The emptiest of a few segments drawn at random, again and again."""

from __future__ import annotations

from random import Random
from typing import ClassVar

import attrs

from compactlib.blobstore.plan import CompactionPlan, plan_for
from compactlib.blobstore.policy import ReclaimingPolicy, SegmentView, Setting, StoreView
from compactlib.errors import InvalidInput


@attrs.frozen(kw_only=True)
class DChoices(ReclaimingPolicy):
    """Takes the emptiest of `choices` segments drawn at random, until `min_reclaimed_segments` are freed.

    With ten choices it copies nearly as little as `Greedy`; with few it also takes segments of middling age,
    which greedy choices never get to (Van Houdt 2013; notes 5.2).

    The one policy with a state of its own: each plan draws on `random`, so equal views give equal plans only from
    equal states. One policy serves one thread.

    Attributes:
        min_used_fraction: see `GatedPolicy`.
        min_reclaimed_segments: see `ReclaimingPolicy`.
        choices: how many are drawn for each one taken, >= 1; 1 takes segments at random.
        random: where the draws come from.

    Raises:
        InvalidInput: a setting is out of its range.
    """

    choices: int = 10
    random: Random = attrs.field(eq=False, repr=False)

    name: ClassVar[str] = "d_choices"

    def __attrs_post_init__(self) -> None:
        super().__attrs_post_init__()
        if self.choices < 1:
            raise InvalidInput(f"choices is {self.choices}; at least 1 segment has to be drawn")

    def config(self) -> dict[str, Setting]:
        """See `CompactionPolicy.config`; the state of `random` is not a setting."""
        return {name: value for name, value in super().config().items() if name != "random"}

    def choose(self, view: StoreView, now: float) -> CompactionPlan | None:
        """See `GatedPolicy.choose`. O(segments + choices * segments taken)."""
        pool = [segment for segment in view.eligible if segment.valid_bytes < view.fill_bytes]
        taken: list[SegmentView] = []
        cost = 0
        while view.benefit(len(taken), cost) < self.min_reclaimed_segments:
            if not pool:
                return None
            drawn = self.random.sample(range(len(pool)), min(self.choices, len(pool)))
            place = min(drawn, key=lambda each: (pool[each].valid_bytes, pool[each].name))
            taken.append(pool[place])
            cost += pool[place].valid_bytes
            pool[place] = pool[-1]
            pool.pop()
        return plan_for(view, self, taken, now=now,
                        reason=f"{len(taken)} segments, each the emptiest of {self.choices} drawn at random")
