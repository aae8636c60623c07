# SPDX-License-Identifier: Apache-2.0
"""The policies that decide when a branch is inspected, and whether it is compacted. Policies are pure: they return a
`StagingChoice` for a view; `docs/staging.md` compares them.

The sensor calls a *sense policy* with its counts in memory (`BranchPressure`), which costs no request. The repository
calls its *policy* with the view of the branch (`StagingView`).
"""

from __future__ import annotations

from typing import ClassVar, Final, TypeAlias

import attrs

from compactlib._arguments import is_seconds, is_whole
from compactlib.contract import Policy
from compactlib.report import Printed
from compactlib.staging.plan import CLEAN, StagingChoice, StagingView

__all__ = ["AlwaysPolicy", "PressurePolicy", "TombstoneCostPolicy"]

StagingPolicy: TypeAlias = Policy[StagingView, StagingChoice]
"""Decides, from the view of a branch, whether it is compacted."""

DEFAULT_WINDOW_SECONDS: Final = 300.0
"""At most one compaction of a branch starts within this time."""


def window_gate(view: StagingView, now: float, window_seconds: float) -> StagingChoice | None:
    """Return an empty choice for a clean branch, or within the window of the last compaction; else `None`.

    The window begins at the start time in the branch's record, so that it holds for all processes. A start further in
    the future than the window was written under a wrong clock, and is ignored.
    """
    if view.is_clean:
        return StagingChoice(CLEAN, is_empty=True)
    started = view.compaction_started_at
    if started is None or not started - window_seconds <= now < started + window_seconds:
        return None
    ends = started + window_seconds
    return StagingChoice(f"a compaction of the branch started at {started:.3f}, and the next one may start "
                         f"{window_seconds} seconds later, at {ends:.3f}; wait, or give a policy with a smaller "
                         f"window_seconds", is_empty=True)


@attrs.frozen(kw_only=True)
class AlwaysPolicy:
    """Compact every branch with staged entries, at most once per window; the default of a repository.

    Attributes:
        window_seconds: at most one compaction of a branch starts within it; 0: no limit.
    """

    name: ClassVar[str] = "always"
    window_seconds: float = attrs.field(default=DEFAULT_WINDOW_SECONDS, validator=is_seconds())

    def choose(self, view: StagingView, now: float) -> StagingChoice:
        some = "" if view.all_seen else "at least "
        return window_gate(view, now, self.window_seconds) or StagingChoice(
            f"{some}{view.tombstones} tombstones, at most {view.longest_run} in a row, and {view.sealed_tokens} sealed "
            f"tokens would go; {some}{view.ranges_touched} of {view.ranges} ranges would be rewritten")


@attrs.frozen(kw_only=True)
class TombstoneCostPolicy:
    """Compact a branch with a long run of tombstones, many sealed tokens, or few bytes to write for each tombstone.

    Attributes:
        long_run: number of tombstones in a row that is worth any cost.
        many_sealed: number of sealed tokens that is worth any cost.
        bytes_per_tombstone: otherwise the most bytes to write for each removed tombstone.
        window_seconds: see `AlwaysPolicy`.
    """

    name: ClassVar[str] = "tombstone_cost"
    long_run: int = attrs.field(default=1000, validator=is_whole(1))
    many_sealed: int = attrs.field(default=8, validator=is_whole(1))
    bytes_per_tombstone: int = attrs.field(default=4096, validator=is_whole())
    window_seconds: float = attrs.field(default=DEFAULT_WINDOW_SECONDS, validator=is_seconds())

    def choose(self, view: StagingView, now: float) -> StagingChoice:
        gate = window_gate(view, now, self.window_seconds)
        if gate is not None:
            return gate
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
                             f"bytes_per_tombstone={self.bytes_per_tombstone}", is_empty=True)


@attrs.frozen(kw_only=True)
class BranchPressure(Printed):
    """Counts of this process for a branch since its last compaction or commit: the view of a sense policy.

    Attributes:
        deletes: tombstones written into tokens that the branch still names.
        sealed_tokens: sealed tokens of its record.
        tombstones_listed: tombstones that listings skipped, each time they skipped them.
    """

    deletes: int = 0
    sealed_tokens: int = 0
    tombstones_listed: int = 0


SensePolicy: TypeAlias = Policy[BranchPressure, StagingChoice]
"""Decides, from counts alone, whether a branch is inspected."""
_COUNTED: Final = {"deletes": "deletes", "sealed_tokens": "sealed tokens",
                   "tombstones_listed": "tombstones skipped by listings"}


@attrs.frozen(kw_only=True)
class PressurePolicy:
    """Inspect a branch once one of three counts has reached its threshold.

    `deletes` is the rule of the published design. Each sealed token costs a read of every key that is not staged. The
    tombstones that listings skip are the cost that users notice.

    Attributes:
        deletes: number of tombstones written.
        sealed_tokens: number of sealed tokens.
        tombstones_listed: number of tombstones skipped by listings.
    """

    name: ClassVar[str] = "pressure"
    deletes: int = attrs.field(default=1000, validator=is_whole(1))
    sealed_tokens: int = attrs.field(default=8, validator=is_whole(1))
    tombstones_listed: int = attrs.field(default=10_000, validator=is_whole(1))

    def choose(self, view: BranchPressure, now: float) -> StagingChoice:
        counts = [(name, words, getattr(view, name), getattr(self, name)) for name, words in _COUNTED.items()]
        for _, words, count, threshold in counts:
            if count >= threshold:
                return StagingChoice(f"{count} {words}, at or above {threshold}")
        return StagingChoice("; ".join(f"{count} {words}, below {name}={threshold}"
                                       for name, words, count, threshold in counts) + "; lower one, or wait",
                             is_empty=True)
