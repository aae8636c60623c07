# SPDX-License-Identifier: Apache-2.0
"""Policies of a repository: is what lies on a branch worth a compaction? Pure; see `sense_policies.py`."""

from __future__ import annotations

from typing import Any, ClassVar, TypeAlias

import attrs

from compactlib._arguments import is_whole
from compactlib.contract import Policy
from compactlib.errors import InvalidInput
from compactlib.staging.plan import CLEAN, StagingChoice, StagingView

StagingPolicy: TypeAlias = Policy[StagingView, StagingChoice]
"""Decides, from what lies on a branch, whether it is compacted."""

DEFAULT_WINDOW_SECONDS = 300.0
"""At most one compaction per branch starts within this time."""


def window_gate(view: StagingView, now: float, window_seconds: float) -> StagingChoice | None:
    """An empty choice while the window of the last compaction lasts; `None` when another one may start.

    The window is measured by the start time in the branch's record, so that it counts for all processes. A start that
    lies further in the future than the window is long is a clock gone wrong, and is ignored.
    """
    started = view.compaction_started_at
    if started is None or not started - window_seconds <= now < started + window_seconds:
        return None
    ends = started + window_seconds
    return StagingChoice(f"a compaction of the branch started at {started:.3f}, and another one may start "
                         f"{window_seconds} seconds later, at {ends:.3f}; wait, or give a policy with a smaller "
                         f"window_seconds", is_empty=True, again_at=ends)


def _not_negative(_: object, attribute: attrs.Attribute[Any], value: Any) -> None:
    if not isinstance(value, int | float) or not value >= 0:
        raise InvalidInput(f"{attribute.name} is {value!r}; give 0 or more")


@attrs.frozen(kw_only=True)
class AlwaysPolicy:
    """Compact whatever is staged, though not too often: a repository's policy, unless another one is given.

    Attributes:
        window_seconds: at most one compaction per branch starts within it; 0: no limit.
    """

    name: ClassVar[str] = "always"
    window_seconds: float = attrs.field(default=DEFAULT_WINDOW_SECONDS, validator=_not_negative)

    def choose(self, view: StagingView, now: float) -> StagingChoice:
        if view.is_clean:
            return StagingChoice(CLEAN, is_empty=True)
        some = "" if view.all_seen else "at least "
        return window_gate(view, now, self.window_seconds) or StagingChoice(
            f"{some}{view.tombstones} tombstones, at most {view.longest_run} in a row, and {view.sealed_tokens} sealed "
            f"tokens would go; {some}{view.ranges_touched} of {view.ranges} ranges would be written anew")


@attrs.frozen(kw_only=True)
class TombstoneCostPolicy:
    """Compact where much is gained for little: runs of tombstones, many sealed tokens, or cheap ranges.

    Attributes:
        long_run: so many tombstones in a row are worth any cost.
        many_sealed: so many sealed tokens are worth any cost.
        bytes_per_tombstone: else no more than this may be written for each tombstone that goes.
        window_seconds: see `AlwaysPolicy`.
    """

    name: ClassVar[str] = "tombstone_cost"
    long_run: int = attrs.field(default=1000, validator=is_whole(1))
    many_sealed: int = attrs.field(default=8, validator=is_whole(1))
    bytes_per_tombstone: float = attrs.field(default=4096.0, validator=_not_negative)
    window_seconds: float = attrs.field(default=DEFAULT_WINDOW_SECONDS, validator=_not_negative)

    def choose(self, view: StagingView, now: float) -> StagingChoice:
        if view.is_clean:
            return StagingChoice(CLEAN, is_empty=True)
        return window_gate(view, now, self.window_seconds) or self._weighed(view)

    def _weighed(self, view: StagingView) -> StagingChoice:
        if view.longest_run >= self.long_run:
            return StagingChoice(f"{view.longest_run} tombstones in a row")
        if view.sealed_tokens >= self.many_sealed:
            return StagingChoice(f"{view.sealed_tokens} sealed tokens")
        cost = (view.bytes_touched + view.staged_bytes) / view.tombstones if view.tombstones else float("inf")
        if cost <= self.bytes_per_tombstone:
            return StagingChoice(f"{cost:.0f} bytes for each of {view.tombstones} tombstones")
        return StagingChoice(f"not worth its cost: {view.longest_run} tombstones in a row, below "
                             f"long_run={self.long_run}; {view.sealed_tokens} sealed tokens, below "
                             f"many_sealed={self.many_sealed}; {cost:.0f} bytes for each tombstone, above "
                             f"bytes_per_tombstone={self.bytes_per_tombstone:.0f}", is_empty=True)
