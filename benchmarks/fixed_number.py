# SPDX-License-Identifier: Apache-2.0
"""A fixed number of victims, as simulators of flash and of log-structured volumes take them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import ClassVar, Literal, TypeAlias, get_args

import attrs

from compactlib.blobstore import BlobChoice, BlobView
from compactlib.blobstore.policy import SegmentView, fraction, whole
from compactlib.errors import InvalidInput

Preference: TypeAlias = Literal["dead share", "valid bytes", "benefit", "root benefit"]
"""The order of victims: the largest dead share; the fewest valid bytes; with u the valid part of a segment, the
largest (1 - u) * age / (1 + u); the largest (1 - u) / u * sqrt(age)."""


@attrs.frozen(kw_only=True)
class FixedNumber:
    """Takes a fixed number of segments that are dead enough, also if the log does not get shorter.

    For `placement.log.PlacedLog`, where the dead part of the log starts compactions.

    Attributes:
        victims: the most victims, >= 1.
        min_dead_fraction: the least dead part of a victim's bytes, 0.0 to 1.0.
        prefers: the order of victims; of equals, the lower position first.
        ties_modulo: if not 0, equals are ordered by the position modulo this number, as in a hash table of this
            size.

    Raises:
        InvalidInput: a setting is out of its range.
    """

    victims: int = whole(16, least=1)
    min_dead_fraction: float = fraction(0.0)
    prefers: Preference = "dead share"
    ties_modulo: int = whole(0)

    name: ClassVar[str] = "fixed_number"

    def __attrs_post_init__(self) -> None:
        if self.prefers not in get_args(Preference):
            raise InvalidInput(f"prefers is {self.prefers!r}; give one of {', '.join(get_args(Preference))}")

    def choose(self, view: BlobView, now: float) -> BlobChoice:
        """See `BlobPolicy.choose`. O(n log n) for n segments."""
        least = self.min_dead_fraction
        dead_enough = [each for each in view.eligible
                       if each.used_bytes and each.used_bytes - each.valid_bytes >= least * each.used_bytes]
        if not dead_enough:
            return BlobChoice(why=f"no segment of {len(view.eligible)} has a dead part of min_dead_fraction={least}; "
                                  f"lower it, or wait")
        worth = _WORTH[self.prefers]
        if self.ties_modulo:
            dead_enough.sort(key=lambda each: each.name.position % self.ties_modulo)
        dead_enough.sort(key=lambda each: -worth(each, now))
        taken = dead_enough[:self.victims]
        return BlobChoice(taken, why=f"the first {len(taken)} of {len(dead_enough)} by {self.prefers}")


def _benefit(segment: SegmentView, now: float) -> float:
    valid = segment.valid_bytes / segment.used_bytes
    return (1 - valid) * max(now - segment.last_modified, 0.0) / (1 + valid)


def _root_benefit(segment: SegmentView, now: float) -> float:
    if not segment.valid_bytes:
        return math.inf
    valid = segment.valid_bytes / segment.used_bytes
    return (1 - valid) / valid * math.sqrt(max(now - segment.last_modified, 0.0))


_WORTH: dict[str, Callable[[SegmentView, float], float]] = {
    "dead share": lambda segment, now: 1 - segment.valid_bytes / segment.used_bytes,
    "valid bytes": lambda segment, now: -segment.valid_bytes,
    "benefit": _benefit,
    "root benefit": _root_benefit,
}
