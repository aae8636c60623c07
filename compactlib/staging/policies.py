# SPDX-License-Identifier: Apache-2.0
"""The policies that decide when a branch is inspected, and whether it is compacted; `docs/staging.md` compares them."""

from __future__ import annotations

from typing import ClassVar, Final

import attrs

from compactlib._arguments import is_seconds, is_whole
from compactlib.staging.policy import DEFAULT_WINDOW_SECONDS, BranchPressure, StagingChoice, StagingView, window_gate

__all__ = ["AlwaysPolicy", "PressurePolicy"]


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
