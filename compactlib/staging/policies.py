# SPDX-License-Identifier: Apache-2.0
"""The policies that decide when a branch is inspected, and whether it is compacted; `docs/staging.md` compares them."""

from __future__ import annotations

from typing import ClassVar

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
        counts = (("deletes", view.deletes, self.deletes), ("sealed tokens", view.sealed_tokens, self.sealed_tokens),
                  ("tombstones skipped by listings", view.tombstones_listed, self.tombstones_listed))
        for counted, count, threshold in counts:
            if count >= threshold:
                return StagingChoice(f"{count} {counted}, at or above {threshold}")
        found = ", ".join(f"{count} {counted}" for counted, count, _ in counts)
        return StagingChoice(f"{found}; all are below the thresholds of {self}; lower one, or wait", is_empty=True)
