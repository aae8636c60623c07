# SPDX-License-Identifier: Apache-2.0
"""The policies that come with the blob store; `docs/blobstore.md` compares them.

| policy | takes | for |
|---|---|---|
| `StatsBased` | the range that copies least for each segment freed | the default |
| `CompactAll` | every eligible segment | a full round, and small stores |
| `Hybrid` | the choice of another policy, and everything on a schedule | stores whose garbage is scattered |
| `Greedy` | the emptiest segments, neighbours or not | least copying, and many segments freed in one plan |
| `CostBenefit` | empty and old segments first | some data is hot and some is cold |
| `ExpiryForecast` | the emptiest segments that will not be emptier soon | blobs have a time to live |

`StatsBased` finds the contiguous range of least cost / benefit. A range of k segments with v valid bytes frees
`k - ceil(v / fill)` of them, where `fill` bytes always fit into an output. Of the n(n+1)/2 ranges, `best_range` finds
the best in a few sweeps of O(n log n), and compares exactly, without rounding.

With prefix sums G of `fill - v`, the benefit of the segments i .. j-1 is `floor((G[j] - G[i]) / fill)`. Write G as
`q * fill + r`, and it is `q[j] - q[i]`, less one if `r[j] < r[i]`. With prefix sums P of the costs, a range is
better than a ratio x exactly if `P[j] - P[i] - x * benefit < 0`; and that splits into a part of j and a part of i:
`(P[j] - x*q[j]) - (P[i] - x*q[i])`, plus x if `r[j] < r[i]`. So one sweep over the ends j, with the starts i in a
list sorted by r that holds only those which may still win, finds the range that beats x by most. That range's own
ratio is the next x (Dinkelbach's method), until none is better.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Sequence
from itertools import accumulate
from typing import ClassVar, Literal, TypeAlias

import attrs

from compactlib._arguments import require_one_of
from compactlib.blobstore.view import (
    BlobChoice,
    BlobPolicy,
    BlobView,
    CopyOrder,
    SegmentView,
    emptiest_first,
    fewest_that_free,
    fraction,
    in_copy_order,
    is_copy_order,
    seconds,
    shut_by_use,
    shut_gate,
    too_little,
    whole,
)

__all__ = ["CompactAll", "CostBenefit", "ExpiryForecast", "Greedy", "Hybrid", "StatsBased"]


@attrs.frozen(kw_only=True)
class StatsBased:
    """Takes the contiguous range with the least cost / benefit.

    Cost is the bytes to copy. Benefit is the number of segments freed, if each output leaves room for the largest blob.
    Ranges that free fewer than `min_reclaimed_segments` do not count. Of equal ranges the first wins, and of equal
    starts the longest. Ratios are compared exactly, without rounding.

    Attributes:
        min_used_fraction: the least used part of the log, 0.0 to 1.0; an equal part suffices.
        min_reclaimed_segments: how many segments the choice has to free, >= 1.

    Raises:
        InvalidInput: a setting is out of its range.
    """

    min_used_fraction: float = fraction(0.5)
    min_reclaimed_segments: int = whole(1, least=1)

    name: ClassVar[str] = "stats_based"

    def choose(self, view: BlobView, now: float) -> BlobChoice:
        if shut := shut_gate(view, self.min_used_fraction):
            return BlobChoice(why=shut)
        found: SegmentRange | None = None
        taken: Sequence[SegmentView] = ()
        for run in view.eligible_runs:
            here = best_range([segment.valid_bytes for segment in run], view.fill_bytes, self.min_reclaimed_segments)
            if here is not None and (found is None or here.is_cheaper_than(found)):
                found, taken = here, run[here.start:here.end]
        if found is None:
            return too_little(view, self.min_reclaimed_segments)
        return BlobChoice(taken, why=f"{found.cost / found.benefit:,.0f} bytes copied for each segment freed is the "
                                     f"least of all ranges that free {self.min_reclaimed_segments} or more")


SkipValid: TypeAlias = Literal["none", "ends", "all"]


@attrs.frozen(kw_only=True)
class CompactAll:
    """Takes every eligible segment, whatever the benefit.

    Simple and expensive: each round copies every valid byte. With `skip_valid` it does not copy segments that would not
    change, and chooses nothing once nothing is dead.

    Attributes:
        min_used_fraction: the least used part of the log, 0.0 to 1.0; an equal part suffices.
        skip_valid: wholly valid segments to leave out: `"none"`; those at both `"ends"` of the range, so that the
            choice stays one range; or `"all"`.

    Raises:
        InvalidInput: a setting is out of its range.
    """

    min_used_fraction: float = fraction(0.5)
    skip_valid: SkipValid = "none"

    name: ClassVar[str] = "compact_all"

    def __attrs_post_init__(self) -> None:
        require_one_of("skip_valid", self.skip_valid, SkipValid)

    def choose(self, view: BlobView, now: float) -> BlobChoice:
        if shut := shut_by_use(view, self.min_used_fraction):
            return BlobChoice(why=shut)
        if shut := shut_gate(view):
            # The kind is full even so: a store may close its active segment for a full round.
            return BlobChoice(why=shut, kind="full")
        eligible = view.eligible
        taken = self._without_valid(eligible)
        if not taken:
            return BlobChoice(kind="full", why=f"each of the {len(eligible)} eligible segments is wholly valid, which "
                                           f"skip_valid={self.skip_valid!r} leaves out; wait until something is dead")
        left = len(eligible) - len(taken)
        note = f"; {left} wholly valid left out" if left else ""
        return BlobChoice(taken, kind="full", why=f"all {len(taken)} eligible segments{note}")

    def _without_valid(self, eligible: Sequence[SegmentView]) -> Sequence[SegmentView]:
        if self.skip_valid == "none":
            return eligible
        dirty = [place for place, segment in enumerate(eligible) if segment.valid_bytes < segment.used_bytes
                 or not segment.used_bytes]
        if not dirty:
            return ()
        if self.skip_valid == "ends":
            return eligible[dirty[0]:dirty[-1] + 1]
        return [eligible[place] for place in dirty]


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
        every_seconds: time from one full round to the next.
        spread_seconds: the longest delay of a round; each store has a fixed part of it, so that stores do not all fall
            due at once.

    Raises:
        InvalidInput: a time is negative or not finite.
    """

    usual: BlobPolicy = attrs.field(factory=StatsBased)
    thorough: BlobPolicy = attrs.field(factory=lambda: CompactAll(skip_valid="ends"))
    every_seconds: float = seconds(6 * _DAY)
    spread_seconds: float = seconds(0.0)

    name: ClassVar[str] = "hybrid"

    @property
    def needs_forecast(self) -> bool:
        """Whether one of the two policies needs a forecast, see `BlobPolicy`."""
        return any(getattr(policy, "needs_forecast", False) for policy in (self.usual, self.thorough))

    def due_at(self, view: BlobView) -> float:
        """Return when the next full round is due, seconds since the epoch."""
        history = view.history
        last = history.since if history.last_full_at is None else history.last_full_at
        return last + self.every_seconds + view.spread(self.spread_seconds)

    def choose(self, view: BlobView, now: float) -> BlobChoice:
        due_for = now - self.due_at(view)
        if due_for < 0:
            return self.usual.choose(view, now)
        full = self.thorough.choose(view, now)
        if not full.is_empty:
            return attrs.evolve(full, kind="full",
                                why=f"a full round has been due for {due_for:,.0f} seconds: {full.why}")
        usual = self.usual.choose(view, now)
        if usual.is_empty:
            return attrs.evolve(usual, kind=full.kind,
                                why=f"{usual.why}; and for the full round that is due: {full.why}")
        return usual


@attrs.frozen(kw_only=True)
class Greedy:
    """Takes the segments with the fewest valid bytes, until `min_reclaimed_segments` are freed; neighbours or not.

    No other choice frees as many segments for fewer bytes copied. Segments without valid bytes cost nothing: every
    choice that is not empty takes them all.

    Attributes:
        min_used_fraction: the least used part of the log, 0.0 to 1.0; an equal part suffices.
        min_reclaimed_segments: how many segments the choice has to free, >= 1.
        fill_outputs: take further segments while they fit into the last output: each frees one segment more, and the
            output is not left half empty.
        copy_order: the order of copying: `log`, `choice` (best first) or `age` (`policy.CopyOrder`).

    Raises:
        InvalidInput: a setting is out of its range.
    """

    min_used_fraction: float = fraction(0.5)
    min_reclaimed_segments: int = whole(1, least=1)
    fill_outputs: bool = False
    copy_order: CopyOrder = attrs.field(default="log", validator=is_copy_order)

    name: ClassVar[str] = "greedy"

    def choose(self, view: BlobView, now: float) -> BlobChoice:
        if shut := shut_gate(view, self.min_used_fraction):
            return BlobChoice(why=shut)
        by_valid = emptiest_first(view.eligible)
        dead = sum(not segment.valid_bytes for segment in by_valid)
        taken = fewest_that_free(view, by_valid, max(self.min_reclaimed_segments, dead))
        if not taken:
            return too_little(view, self.min_reclaimed_segments)
        count = len(taken)
        room = -sum(segment.valid_bytes for segment in taken) % view.fill_bytes
        while self.fill_outputs and count < len(by_valid) and by_valid[count].valid_bytes <= room:
            room -= by_valid[count].valid_bytes
            count += 1
        return BlobChoice(in_copy_order(by_valid[:count], self.copy_order),
                          why=f"the {count} with the fewest valid bytes, {dead} of them without any")


@attrs.frozen(kw_only=True)
class CostBenefit:
    """Takes the segments of highest (1 - u) * age / (1 + u), until `min_reclaimed_segments` are freed.

    u is the valid part of a segment, age the time since its newest record was written. Reading a segment costs 1,
    writing its valid part costs u. The freed part, 1 - u, stays free longer in old, cold data. So a cold segment is
    taken while it is still three quarters full, and a hot segment, which empties without a compaction, is taken later
    (Rosenblum and Ousterhout, 1992).

    Attributes:
        min_used_fraction: the least used part of the log, 0.0 to 1.0; an equal part suffices.
        min_reclaimed_segments: how many segments the choice has to free, >= 1.
        copy_order: the order of copying: `log`, `choice` (best first) or `age` (`policy.CopyOrder`).

    Raises:
        InvalidInput: a setting is out of its range.
    """

    min_used_fraction: float = fraction(0.5)
    min_reclaimed_segments: int = whole(1, least=1)
    copy_order: CopyOrder = attrs.field(default="choice", validator=is_copy_order)

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
        return BlobChoice(in_copy_order(taken, self.copy_order),
                          why=f"the {len(taken)} of highest (1 - u) * age / (1 + u), {min(found):,.0f} to "
                              f"{max(found):,.0f} seconds")


@attrs.frozen(kw_only=True)
class ExpiryForecast:
    """Takes the emptiest segments, but not segments that will soon be emptier without a compaction.

    Expiry times are known in advance, and so is the time at which a delete is in effect. A segment waits if more than
    `max_dying_fraction` of its valid bytes die within `horizon_seconds`: a copy of them would be dropped soon. Segments
    without valid bytes are all taken, since they cost nothing; if they free enough, nothing else is taken.

    No segment waits once the log is fuller than `urgent_used_fraction`.

    Attributes:
        min_used_fraction: the least used part of the log, 0.0 to 1.0; an equal part suffices.
        min_reclaimed_segments: how many segments the choice has to free, >= 1.
        horizon_seconds: the span of the forecast, >= 0.
        max_dying_fraction: see above, 0.0 to 1.0.
        urgent_used_fraction: see above, 0.0 to 1.0.
        copy_order: the order of copying: `log`, `choice` (best first) or `age` (`policy.CopyOrder`).

    Raises:
        InvalidInput: a setting is out of its range.
    """

    min_used_fraction: float = fraction(0.5)
    min_reclaimed_segments: int = whole(1, least=1)
    horizon_seconds: float = seconds(86_400.0)
    max_dying_fraction: float = fraction(0.2)
    urgent_used_fraction: float = fraction(0.9)
    copy_order: CopyOrder = attrs.field(default="log", validator=is_copy_order)

    name: ClassVar[str] = "expiry_forecast"
    needs_forecast: ClassVar[bool] = True

    def waits(self, segment: SegmentView, now: float) -> bool:
        """Whether too many valid bytes of a segment die within the horizon."""
        valid = segment.valid_bytes_at(now)
        return valid - segment.valid_bytes_at(now + self.horizon_seconds) > self.max_dying_fraction * valid

    def choose(self, view: BlobView, now: float) -> BlobChoice:
        if shut := shut_gate(view, self.min_used_fraction):
            return BlobChoice(why=shut)
        by_valid = emptiest_first(view.eligible)
        dead = sum(not segment.valid_bytes for segment in by_valid)
        urgent = view.used_fraction > self.urgent_used_fraction
        ready = [each for each in by_valid if urgent or not each.valid_bytes or not self.waits(each, now)]
        taken = fewest_that_free(view, ready, max(self.min_reclaimed_segments, dead))
        waiting = len(by_valid) - len(ready)
        if not taken:
            is_enough = waiting and fewest_that_free(view, by_valid, self.min_reclaimed_segments)
            return too_little(view, self.min_reclaimed_segments, f"; {waiting} of them wait for bytes that die within "
                              f"horizon_seconds={self.horizon_seconds}" if waiting else "",
                              "lower horizon_seconds" if is_enough else "")
        note = (f"{waiting} wait for bytes that die within {self.horizon_seconds:,.0f} seconds"
                if not urgent else f"nothing waits, as {view.used_fraction:.1%} of the log is used")
        return BlobChoice(in_copy_order(taken, self.copy_order),
                          why=f"{dead} died whole, {len(taken) - dead} of the rest hold the fewest bytes; {note}")


@attrs.frozen
class SegmentRange:
    """A range of segments, with the cost and benefit of compacting it.

    Attributes:
        start: the place of the first segment.
        end: the place after the last segment.
        cost: the sum of their valid bytes.
        benefit: how many segments are freed at least.
    """

    start: int
    end: int
    cost: int
    benefit: int

    def is_cheaper_than(self, other: SegmentRange) -> bool:
        """Whether it costs less for each segment freed; both have a positive benefit. Exact."""
        return self.cost * other.benefit < other.cost * self.benefit


def best_range(valid_bytes: Sequence[int], fill_bytes: int, min_benefit: int = 1) -> SegmentRange | None:
    """Return the range of least cost / benefit: the first of equal ranges, of equal starts the longest.

    O(n log n) for each of a few sweeps; `None` if no range has the benefit.

    Args:
        valid_bytes: bytes that a compaction copies of each segment, >= 0.
        fill_bytes: bytes that always fit into an output segment, > 0.
        min_benefit: how many segments a range has to free, >= 1.
    """
    sums = _PrefixSums(valid_bytes, fill_bytes)
    chosen = _first_guess(sums, min_benefit)
    if chosen is None:
        return None
    while True:
        better, first_equal = _sweep(sums, min_benefit, chosen)
        if better is None:
            break
        chosen = better
    return sums.longest_as_cheap(first_equal, chosen, min_benefit)


class _PrefixSums:
    def __init__(self, valid: Sequence[int], fill: int) -> None:
        self.fill = fill
        self.room = list(accumulate((fill - each for each in valid), initial=0))
        self.cost = list(accumulate(valid, initial=0))
        self.parts = [divmod(room, fill) for room in self.room]

    def range(self, start: int, end: int) -> SegmentRange:
        return SegmentRange(start, end, self.cost[end] - self.cost[start],
                            (self.room[end] - self.room[start]) // self.fill)

    def longest_as_cheap(self, start: int, as_this: SegmentRange, min_benefit: int) -> SegmentRange:
        for end in range(len(self.cost) - 1, start, -1):
            found = self.range(start, end)
            if found.benefit >= min_benefit and found.cost * as_this.benefit == as_this.cost * found.benefit:
                return found
        return as_this


def _first_guess(sums: _PrefixSums, min_benefit: int) -> SegmentRange | None:
    """Return the cheapest of the shortest ranges that bring the benefit, one for each start; `None` if no range does.

    Any range with the benefit would do; a good one saves sweeps.
    """
    needed = min_benefit * sums.fill
    waiting: deque[int] = deque()
    guess: SegmentRange | None = None
    for end, room in enumerate(sums.room):
        while waiting and sums.room[waiting[0]] <= room - needed:
            found = sums.range(waiting.popleft(), end)
            if guess is None or found.is_cheaper_than(guess):
                guess = found
        while waiting and sums.room[waiting[-1]] >= room:
            waiting.pop()
        waiting.append(end)
    return guess


def _sweep(sums: _PrefixSums, min_benefit: int, current: SegmentRange) -> tuple[SegmentRange | None, int]:
    """Return the range that beats the ratio of `current` by most, and the lowest start of the ranges that equal it.

    A start waits until the room up to an end brings the benefit. Waiting starts ascend in room: a start with at least
    the room of a later start frees no more segments and costs more, so it is dropped. A start that has stopped
    waiting may meet ends with too little benefit; an earlier end had more benefit for less cost.
    """
    x, scale = current.cost, current.benefit
    needed = min_benefit * sums.fill
    waiting: deque[tuple[int, int, int, int]] = deque()
    ready = _Starts()
    least, best, first_equal = 0, None, len(sums.room)
    for place, (room, cost, (units, rest)) in enumerate(zip(sums.room, sums.cost, sums.parts, strict=True)):
        while waiting and waiting[0][0] <= room - needed:
            ready.add(*waiting.popleft()[1:])
        worth = cost * scale - x * units
        if ready.worths:
            for gain, start in ready.candidates(rest, x):
                if worth - gain < least:
                    least, best = worth - gain, (start, place)
                elif worth == gain and start < first_equal:
                    first_equal = start
        while waiting and waiting[-1][0] >= room:
            waiting.pop()
        waiting.append((room, rest, worth, place))
    return (None if best is None else sums.range(*best)), first_equal


class _Starts:
    """Starts sorted by rest, with ascending worth: a start is dropped if one with a smaller rest is worth more.

    Of equal worths the start with the larger rest was added first: it is the lowest start.
    """

    def __init__(self) -> None:
        self.rests: list[int] = []
        self.worths: list[int] = []
        self.places: list[int] = []

    def add(self, rest: int, worth: int, place: int) -> None:
        at = bisect_right(self.rests, rest)
        if at and self.worths[at - 1] >= worth:
            return
        over = at
        while over < len(self.worths) and self.worths[over] < worth:
            over += 1
        self.rests[at:over] = [rest]
        self.worths[at:over] = [worth]
        self.places[at:over] = [place]

    def candidates(self, rest: int, penalty: int) -> list[tuple[int, int]]:
        """Return the best start with at most this rest, and the best with a larger rest, which pays the penalty."""
        at = bisect_right(self.rests, rest)
        found = [(self.worths[at - 1], self.places[at - 1])] if at else []
        if at < len(self.rests):
            found.append((self.worths[-1] - penalty, self.places[-1]))
        return found
