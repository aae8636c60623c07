# SPDX-License-Identifier: Apache-2.0
"""The emptiest of a few segments drawn at random, again and again."""

from __future__ import annotations

from random import Random
from typing import ClassVar

import attrs

from compactlib.blobstore.policy import (
    BlobChoice,
    BlobView,
    CopyOrder,
    SegmentView,
    fraction,
    in_copy_order,
    is_copy_order,
    shut_gate,
    too_little,
    whole,
)


@attrs.frozen(kw_only=True)
class DChoices:
    """Takes the emptiest of `choices` segments drawn at random, until `min_reclaimed_segments` are freed.

    With ten choices it copies nearly as little as `Greedy`; with few it also takes segments of middling age,
    which greedy choices never get to (Van Houdt 2013).

    What is drawn follows from the seed, the view and the time alone: another store, another state of it, or another
    time draws differently.

    Attributes:
        min_used_fraction: how full the log has to be, 0.0 to 1.0; exactly as full is enough.
        min_reclaimed_segments: by how many segments the log has to get shorter, >= 1.
        choices: how many are drawn for each one taken, >= 1; 1 takes segments at random.
        seed: of the draws, >= 0.
        copy_order: in which order the segments are copied: `log`, `choice` (best first) or `age` (`policy.CopyOrder`).

    Raises:
        InvalidInput: a setting is out of its range.
    """

    min_used_fraction: float = fraction(0.5)
    min_reclaimed_segments: int = whole(1, least=1)
    choices: int = whole(10, least=1)
    seed: int = whole(0)
    copy_order: CopyOrder = attrs.field(default="log", validator=is_copy_order)

    name: ClassVar[str] = "d_choices"

    def choose(self, view: BlobView, now: float) -> BlobChoice:
        """See `BlobPolicy.choose`. O(segments + choices * segments taken)."""
        if shut := shut_gate(view, self.min_used_fraction):
            return BlobChoice(why=shut)
        eligible = view.eligible
        random = Random(f"{self.seed} {view.store} {now!r} {[(each.name, each.valid_bytes) for each in eligible]}")
        pool = [segment for segment in eligible if segment.valid_bytes < view.fill_bytes]
        taken: list[SegmentView] = []
        cost = 0
        while view.benefit(len(taken), cost) < self.min_reclaimed_segments:
            if not pool:
                return too_little(view, self.min_reclaimed_segments)
            drawn = random.sample(range(len(pool)), min(self.choices, len(pool)))
            place = min(drawn, key=lambda each: (pool[each].valid_bytes, pool[each].name))
            taken.append(pool[place])
            cost += pool[place].valid_bytes
            pool[place] = pool[-1]
            pool.pop()
        victims = in_copy_order(taken, self.copy_order)
        return BlobChoice(victims, why=f"{len(taken)} segments, each the emptiest of {self.choices} drawn at random")
