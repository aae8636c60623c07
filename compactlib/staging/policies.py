# SPDX-License-Identifier: Apache-2.0
"""The policies that decide when a branch is inspected, and whether it is compacted; `docs/staging.md` compares them."""

from __future__ import annotations

from typing import ClassVar, Final

import attrs

from compactlib._arguments import is_seconds, is_whole
from compactlib.staging.policy import DEFAULT_WINDOW_SECONDS, BranchPressure, StagingChoice, StagingView, window_gate

__all__ = ["AlwaysPolicy", "PressurePolicy", "TombstoneCostPolicy"]


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
