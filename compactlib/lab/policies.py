# SPDX-License-Identifier: Apache-2.0
"""Policies of the blob store, and a `place` for the survivors of its compactions; `docs/lab.md` compares them.

With `BlobStore(place=...)` users' records go to the one active segment, and a compaction that fills several segments
fills them class by class, the lowest first. Neighbouring classes may share a segment, so that no segment is left half
empty.
"""

from __future__ import annotations

import math
from operator import attrgetter
from random import Random
from typing import ClassVar

import attrs

from compactlib._arguments import is_above
from compactlib.blobstore.policy import (
    BlobChoice,
    BlobView,
    SegmentView,
    Survivor,
    fewest_that_free,
    fraction,
    shut_gate,
    too_little,
    whole,
)
from compactlib.lab.workloads import NEVER

__all__ = ["ByEnd", "DChoices", "DecliningCost"]

_LEAST_SECONDS = 1e-3


@attrs.frozen(kw_only=True)
class DChoices:
    """Take the emptiest of `choices` segments drawn at random, until `min_reclaimed_segments` are freed.

    With ten choices it copies nearly as little as `Greedy`; with few it also takes segments of middling age,
    which greedy choices never take (Van Houdt 2013).

    The draws depend on the seed, the view and the time alone: another store, state or time draws differently.

    Attributes:
        min_used_fraction: the least used part of the log, 0.0 to 1.0.
        min_reclaimed_segments: the least number of segments that a plan frees, >= 1.
        choices: segments drawn for each victim, >= 1; 1 takes segments at random.
        seed: the seed of the draws, >= 0.

    Raises:
        InvalidInput: a setting is out of its range.
    """

    min_used_fraction: float = fraction(0.5)
    min_reclaimed_segments: int = whole(1, least=1)
    choices: int = whole(10, least=1)
    seed: int = whole(0)

    name: ClassVar[str] = "d_choices"

    def choose(self, view: BlobView, now: float) -> BlobChoice:
        """O(segments + choices * segments taken)."""
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
        victims = sorted(taken, key=attrgetter("name"))
        return BlobChoice(victims, why=f"{len(taken)} segments, each the emptiest of {self.choices} drawn at random")


@attrs.frozen(kw_only=True)
class DecliningCost:
    """Take the segments whose price falls least by waiting, until `min_reclaimed_segments` are freed.

    With u the valid part of a segment, its price is u / (1 - u): the bytes copied for each byte of room gained. The
    price falls while records die. Records without a known end die the slower the older they are: the part `decline` of
    their bytes a second, divided by the geometric mean of the segment's age and the oldest segment's. Expiring records
    die at their ends. A segment counts by its fastest fall, in price a second: at this moment, or on average until one
    of the ends. So segments whose records end soon are left to end; the view needs a forecast for it. D. Lomet and
    C. Luo, "Efficiently reclaiming space in a log structured store", ICDE 2021, take segments in the order of such a
    decline, without ends.

    Attributes:
        min_used_fraction: the least used part of the log, 0.0 to 1.0.
        min_reclaimed_segments: the least number of segments that a plan frees, >= 1.
        decline: the decline of records without an end, above 0.

    Raises:
        InvalidInput: a setting is out of its range.
    """

    min_used_fraction: float = fraction(0.5)
    min_reclaimed_segments: int = whole(1, least=1)
    decline: float = attrs.field(default=1.0, validator=is_above(0))

    name: ClassVar[str] = "declining_cost"
    needs_forecast: ClassVar[bool] = True

    def fall(self, segment: SegmentView, view: BlobView, now: float, oldest_seconds: float) -> float:
        """Return how fast the price falls, a second; 0 if no record is valid.

        Args:
            segment: the segment that would wait.
            view: the store's view.
            now: seconds since the epoch.
            oldest_seconds: the age of the oldest segment.
        """
        room = view.segment_bytes - view.header_bytes
        valid = min(segment.valid_bytes / room, 1.0)
        if not 0 < valid < 1:
            return math.inf if valid else 0.0
        age = max(now - segment.last_modified, _LEAST_SECONDS)
        lasting = (segment.valid_bytes - sum(each.bytes for each in segment.dying)) / room
        ends = [(max(each.at - now, _LEAST_SECONDS), each.bytes / room) for each in segment.dying]
        rate = lasting * self.decline / math.sqrt(age * max(age, oldest_seconds))
        price, best, left = valid / (1 - valid), rate / (1 - valid) ** 2, valid
        for seconds, part in ends:
            left -= part
            then = max(left - rate * seconds, 0.0)
            best = max(best, (price - then / (1 - then)) / seconds)
        return best

    def choose(self, view: BlobView, now: float) -> BlobChoice:
        """O(n log n) for n segments, and the length of their forecasts."""
        if shut := shut_gate(view, self.min_used_fraction):
            return BlobChoice(why=shut)
        oldest = max(now - segment.last_modified for segment in view.eligible)
        falls = {segment.name: self.fall(segment, view, now, oldest) for segment in view.eligible}
        ordered = sorted(view.eligible, key=lambda each: (falls[each.name], each.valid_bytes, each.name))
        dead = sum(not segment.valid_bytes for segment in ordered)
        taken = fewest_that_free(view, ordered, max(self.min_reclaimed_segments, dead))
        if not taken:
            return too_little(view, self.min_reclaimed_segments)
        most = max(falls[segment.name] for segment in taken)
        return BlobChoice(taken,
                          why=f"the {len(taken)} segments whose price falls least by waiting, at most by {most:.3g} "
                              f"copied bytes for each byte of room and second; {dead} of them died whole")


# ---------------------------------------------------------------------------------------------------- survivors


@attrs.frozen(kw_only=True)
class ByEnd:
    """A `place` for a blob store by the time that records have left.

    Records with a known end share segments by their remaining life; the others, in other classes, by the mean life of
    their id's records.

    A segment of records that end at about one time dies whole, and is not copied again. The mean life of an id that is
    put repeatedly (`replace=True`) is the time since its first PUT in the log, divided by the number of its PUTs; for
    an id that was put once, it is the record's age.

    Attributes:
        step: the factor from one class to the next, above 1.

    Raises:
        InvalidInput: the step is not above 1.
    """

    step: float = attrs.field(default=2.0, validator=is_above(1))

    name: ClassVar[str] = "by_end"

    def __call__(self, record: Survivor) -> int:
        if record.is_known:
            return _class_of_span(record.until_ms - record.now_ms, self.step)
        first_ms = min(record.earlier_ms, default=record.written_ms)
        lasted_ms = (record.now_ms - first_ms) // (1 + len(record.earlier_ms))
        return _class_of_span(NEVER, self.step) + 1 + _class_of_span(lasted_ms, self.step)


def _class_of_span(span_ms: int, step: float) -> int:
    return int(math.log(max(span_ms, 1), step))
