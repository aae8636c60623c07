"""When is a compaction worth it? Policies are pure: a view of the pressure on a branch in, a reason or `None` out.

The sensor asks with what it has counted in memory (`BranchPressure`), which costs nothing; a compactor asked to plan
has looked at the staged entries themselves (`CompactionPlan`), and can say what it would gain.

Sources: the seed, Sensor; `notes/staging.md` 1.16, 2.2, 5.
"""

from __future__ import annotations

from typing import Protocol

import attrs

from compactlib.errors import InvalidInput


@attrs.frozen(kw_only=True)
class BranchPressure:
    """What this process has seen of one branch since its counts last began anew.

    Attributes:
        deletes: tombstones written.
        sealed_tokens: sealed tokens of its record.
        tombstones_listed: tombstones that listings had to pass over, each as often as it was met.
    """

    deletes: int = 0
    sealed_tokens: int = 0
    tombstones_listed: int = 0


class SensePolicy(Protocol):
    """Decides, from counts alone, whether a branch should be compacted."""

    def choose(self, pressure: BranchPressure) -> str | None:
        """Why the branch should be compacted now, in one sentence; `None` if it should not."""


def _positive(_: object, attribute: attrs.Attribute[int], value: int) -> None:
    if value < 1:
        raise InvalidInput(f"{attribute.name} is {value}; give at least 1")


@attrs.frozen
class DeletesPolicy:
    """Compact after so many tombstones were written. The seed's own rule.

    Attributes:
        threshold: how many, >= 1.
    """

    threshold: int = attrs.field(default=1000, validator=_positive)

    def choose(self, pressure: BranchPressure) -> str | None:
        """See `SensePolicy.choose`."""
        if pressure.deletes < self.threshold:
            return None
        return f"{pressure.deletes} deletes, of which {self.threshold} are enough"


@attrs.frozen
class SealedTokensPolicy:
    """Compact at so many sealed tokens: each one is a read more for every key that is not staged.

    Attributes:
        threshold: how many, >= 1.
    """

    threshold: int = attrs.field(default=8, validator=_positive)

    def choose(self, pressure: BranchPressure) -> str | None:
        """See `SensePolicy.choose`."""
        if pressure.sealed_tokens < self.threshold:
            return None
        return f"{pressure.sealed_tokens} sealed tokens, of which {self.threshold} are enough"


@attrs.frozen
class ListingCostPolicy:
    """Compact once listings have passed over so many tombstones: the cost that users feel, wherever deletes lie.

    A thousand scattered tombstones that nobody lists cost nothing; a thousand in front of the first live key cost every
    listing a thousand entries.

    Attributes:
        threshold: how many, each as often as it was met, >= 1.
    """

    threshold: int = attrs.field(default=10_000, validator=_positive)

    def choose(self, pressure: BranchPressure) -> str | None:
        """See `SensePolicy.choose`."""
        if pressure.tombstones_listed < self.threshold:
            return None
        return f"listings passed over {pressure.tombstones_listed} tombstones, of which {self.threshold} are enough"


@attrs.frozen
class AnyOf:
    """Compact as soon as one of several policies says so.

    Attributes:
        policies: which ones, in the order in which they are asked.
    """

    policies: tuple[SensePolicy, ...] = (DeletesPolicy(), SealedTokensPolicy(), ListingCostPolicy())

    def choose(self, pressure: BranchPressure) -> str | None:
        """See `SensePolicy.choose`."""
        for policy in self.policies:
            why = policy.choose(pressure)
            if why is not None:
                return why
        return None
