# SPDX-License-Identifier: Apache-2.0
"""The policies that come with the blob store; `docs/blobstore.md` compares them. A setting out of its range raises
`InvalidInput`.

| policy | takes | for |
|---|---|---|
| `StatsBased` | the range that copies least for each segment freed | the default |
| `CompactAll` | every eligible segment | a full round, and small stores |
| `Hybrid` | the choice of another policy, and everything on a schedule | stores whose garbage is scattered |
| `Greedy` | the emptiest segments, neighbours or not | least copying, and many segments freed in one plan |
| `CostBenefit` | empty and old segments first | some data is hot and some is cold |
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, groupby
from operator import attrgetter, sub
from typing import ClassVar, NamedTuple

import attrs

from compactlib._steady_clock import MAX_STEP_SECONDS
from compactlib.blobstore.view import (
    BlobChoice,
    BlobPolicy,
    BlobView,
    SegmentView,
    emptiest_first,
    fewest_that_free,
    fraction,
    seconds,
    shut_gate,
    too_little,
    whole,
)

__all__ = ["CompactAll", "CostBenefit", "Greedy", "Hybrid", "StatsBased"]


@attrs.frozen(kw_only=True)
class StatsBased:
    """Takes the contiguous range with the least cost / benefit.

    Cost is the bytes to copy. Benefit is the number of segments freed, if each output leaves room for the largest blob.
    Ranges that free fewer than `min_reclaimed_segments` do not count. Of equal ranges the first wins, and of equal
    starts the longest. Ratios are compared exactly, without rounding. Among more than 2,000 neighbours, the lengths of
    ranges that are compared grow by a thirty-second.

    Attributes:
        min_used_fraction: the least used part of the log, 0.0 to 1.0; an equal part suffices.
        min_reclaimed_segments: how many segments the choice has to free, >= 1.
    """

    min_used_fraction: float = fraction(0.5)
    min_reclaimed_segments: int = whole(1, least=1)

    name: ClassVar[str] = "stats_based"

    def choose(self, view: BlobView, now: float) -> BlobChoice:
        if shut := shut_gate(view, self.min_used_fraction):
            return BlobChoice(why=shut)
        found: SegmentRange | None = None
        taken: Sequence[SegmentView] = ()
        for is_eligible, group in groupby(view.segments, key=attrgetter("eligible")):
            run = tuple(group)
            here = best_range([segment.valid_bytes for segment in run], view.fill_bytes,
                              self.min_reclaimed_segments) if is_eligible else None
            if here is not None and (found is None or here.compared_with(found) < 0):
                found, taken = here, run[here.start:here.end]
        if found is None:
            return too_little(view, self.min_reclaimed_segments)
        return BlobChoice(taken, why=f"{found.cost / found.benefit:,.0f} bytes copied for each segment freed is the "
                                     f"least of all ranges that free {self.min_reclaimed_segments} or more")


_EVERY_LENGTH = 2_000
"""The longest run of neighbours in which ranges of every length are compared."""


class SegmentRange(NamedTuple):
    """A range of neighbouring segments, with the cost and benefit of compacting it."""

    start: int  # the place of the first segment
    end: int  # the place after the last segment
    cost: int  # the sum of their valid bytes
    benefit: int  # how many segments are freed at least

    def compared_with(self, other: SegmentRange) -> int:
        """Return a negative number if it costs less for each segment freed, 0 for the same; benefits are positive."""
        return self.cost * other.benefit - other.cost * self.benefit


def best_range(valid_bytes: Sequence[int], fill_bytes: int, min_benefit: int) -> SegmentRange | None:
    """Return the range of least cost / benefit; `None` if no range frees `min_benefit` segments, 1 or more.

    A range of k segments with v valid bytes frees `k - ceil(v / fill_bytes)` of them. So of all ranges of k segments
    only the cheapest counts, and one pass in C finds it. The k emptiest segments cost at most as much: if even their
    price is above the best one, no pass is made.
    """
    def priced(start: int, length: int, cost: int) -> SegmentRange:
        return SegmentRange(start, start + length, cost, length - -(-cost // fill_bytes))

    count, sums = len(valid_bytes), list(accumulate(valid_bytes, initial=0))
    room = list(accumulate((fill_bytes - each for each in valid_bytes), initial=0))
    gained = list(map(sub, room, accumulate(room, min)))
    if max(gained) < min_benefit * fill_bytes:
        return None
    # The range that frees most.
    end = gained.index(max(gained))
    start = room.index(room[end] - gained[end])
    best = priced(start, end - start, sums[end] - sums[start])
    emptiest, length = list(accumulate(sorted(valid_bytes), initial=0)), 1
    while length <= count:
        bound = priced(0, length, emptiest[length])
        if bound.benefit >= min_benefit and bound.compared_with(best) <= 0:
            costs = list(map(sub, sums[length:], sums))
            cost = min(costs)
            found = priced(costs.index(cost), length, cost)
            if found.benefit >= min_benefit and (found.compared_with(best), found.start, -found.end) < (
                    0, best.start, -best.end):
                best = found
        length += 1 if count <= _EVERY_LENGTH else 1 + length // 32
    return best


@attrs.frozen(kw_only=True)
class CompactAll:
    """Takes every eligible segment, whatever the benefit.

    Simple and expensive: each round copies every valid byte. With `skip_valid` it does not copy segments that would not
    change, and chooses nothing once nothing is dead.

    Attributes:
        min_used_fraction: as of `StatsBased`.
        skip_valid: whether to leave out wholly valid segments.
    """

    min_used_fraction: float = fraction(0.5)
    skip_valid: bool = False

    name: ClassVar[str] = "compact_all"

    def choose(self, view: BlobView, now: float) -> BlobChoice:
        if shut := shut_gate(view, self.min_used_fraction):
            return BlobChoice(why=shut)
        eligible = view.eligible
        taken = [segment for segment in eligible if not self.skip_valid
                 or segment.valid_bytes < segment.used_bytes or not segment.used_bytes]
        if not taken:
            return BlobChoice(why=f"each of the {len(eligible)} eligible segments is wholly valid, which "
                              f"skip_valid={self.skip_valid!r} leaves out; wait until something is dead")
        left = len(eligible) - len(taken)
        note = f"; {left} wholly valid left out" if left else ""
        return BlobChoice(taken, kind="full", why=f"all {len(taken)} eligible segments{note}")


_DAY = 86_400.0


@attrs.frozen(kw_only=True)
class Hybrid:
    """Chooses by `usual`, and by `thorough` once `every_seconds` have passed since the last full round.

    The schedule counts from the last full plan that was carried out, which the store records, or from the creation of
    the store. If `thorough` chooses nothing, because the store is not full enough or nothing is dead, `usual` chooses
    and the full round stays due.

    Attributes:
        usual: the policy between full rounds.
        thorough: the policy of a full round.
        every_seconds: time from one full round to the next; `InvalidInput` if negative or not finite.
    """

    usual: BlobPolicy = attrs.field(factory=StatsBased)
    thorough: BlobPolicy = attrs.field(factory=lambda: CompactAll(skip_valid=True))
    every_seconds: float = seconds(6 * _DAY)

    name: ClassVar[str] = "hybrid"

    @property
    def needs_forecast(self) -> bool:
        """Whether one of the two policies needs a forecast, see `BlobPolicy`."""
        return any(getattr(policy, "needs_forecast", False) for policy in (self.usual, self.thorough))

    def choose(self, view: BlobView, now: float) -> BlobChoice:
        due_for = now - view.last_full_at - self.every_seconds
        # Also due after a full round in the future, which a clock that was ahead has dated.
        if -self.every_seconds - MAX_STEP_SECONDS <= due_for < 0:
            return self.usual.choose(view, now)
        full = self.thorough.choose(view, now)
        if not full.is_empty:
            return attrs.evolve(full, kind="full",
                                why=f"a full round has been due for {max(due_for, 0.0):,.0f} seconds: {full.why}")
        usual = self.usual.choose(view, now)
        if usual.is_empty:
            return attrs.evolve(usual, why=f"{usual.why}; and for the full round that is due: {full.why}")
        return usual


@attrs.frozen(kw_only=True)
class Greedy:
    """Takes the segments with the fewest valid bytes, until `min_reclaimed_segments` are freed; neighbours or not.

    No other choice frees as many segments for fewer bytes copied. Segments without valid bytes cost nothing: every
    choice that is not empty takes them all.

    Attributes:
        min_used_fraction, min_reclaimed_segments: as of `StatsBased`.
    """

    min_used_fraction: float = fraction(0.5)
    min_reclaimed_segments: int = whole(1, least=1)

    name: ClassVar[str] = "greedy"

    def choose(self, view: BlobView, now: float) -> BlobChoice:
        if shut := shut_gate(view, self.min_used_fraction):
            return BlobChoice(why=shut)
        by_valid = emptiest_first(view.eligible)
        dead = sum(not segment.valid_bytes for segment in by_valid)
        taken = fewest_that_free(view, by_valid, max(self.min_reclaimed_segments, dead))
        if not taken:
            return too_little(view, self.min_reclaimed_segments)
        return BlobChoice(sorted(taken, key=attrgetter("name")),
                          why=f"the {len(taken)} with the fewest valid bytes, {dead} of them without any")


@attrs.frozen(kw_only=True)
class CostBenefit:
    """Takes the segments of highest (1 - u) * age / (1 + u), until `min_reclaimed_segments` are freed.

    u is the valid part of a segment, age the time since its newest record was written. Reading a segment costs 1,
    writing its valid part costs u. The freed part, 1 - u, stays free longer in old, cold data. So a cold segment is
    taken while it is still three quarters full, and a hot segment, which empties without a compaction, is taken later
    (Rosenblum and Ousterhout, 1992).

    Attributes:
        min_used_fraction, min_reclaimed_segments: as of `StatsBased`.
    """

    min_used_fraction: float = fraction(0.5)
    min_reclaimed_segments: int = whole(1, least=1)

    name: ClassVar[str] = "cost_benefit"

    def score(self, segment: SegmentView, view: BlobView, now: float) -> float:
        """Return seconds of age, weighted with the part that a compaction frees for its cost."""
        valid = min(segment.valid_bytes / (view.segment_bytes - view.header_bytes), 1.0)
        return (1 - valid) * max(now - segment.last_modified, 0.0) / (1 + valid)

    def choose(self, view: BlobView, now: float) -> BlobChoice:
        if shut := shut_gate(view, self.min_used_fraction):
            return BlobChoice(why=shut)
        scores = {segment.name: self.score(segment, view, now) for segment in view.eligible}
        best_first = sorted(emptiest_first(view.eligible), key=lambda segment: -scores[segment.name])
        taken = fewest_that_free(view, best_first, self.min_reclaimed_segments)
        if not taken:
            return too_little(view, self.min_reclaimed_segments)
        found = [scores[segment.name] for segment in taken]
        return BlobChoice(taken,
                          why=f"the {len(taken)} of highest (1 - u) * age / (1 + u), {min(found):,.0f} to "
                              f"{max(found):,.0f} seconds")
