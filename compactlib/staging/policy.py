# SPDX-License-Identifier: Apache-2.0
"""The contract of policies: the views and choices of a repository's policy and of a sense policy, and the plan.

A sense policy reads the counts of this process (`BranchPressure`), which costs no request, and decides whether to
inspect a branch. A repository's policy reads the branch (`StagingView`) and decides whether to compact it. Policies and
`plan_for` are pure.

The gain of a compaction: a listing no longer skips tombstones, and a read of a key that is not staged no longer reads
sealed tokens. The cost: every range that a change falls into is rewritten. So a thousand deletes of neighbouring keys
are worth a compaction, and a thousand deletes in a thousand ranges hardly ever.
"""

from __future__ import annotations

from typing import Any, Final, TypeAlias

import attrs

from compactlib.contract import Policy
from compactlib.report import PolicyRecord, Printed
from compactlib.staging.record import BranchRecord
from compactlib.staging.values import StagingToken

__all__ = [
    "BranchPressure", "BranchRecord", "DEFAULT_WINDOW_SECONDS", "SensePolicy", "StagingChoice",
    "StagingPlan", "StagingPolicy", "StagingToken", "StagingView", "plan_for", "window_gate",
]


@attrs.frozen(kw_only=True, repr=False)
class StagingView(Printed):
    """The state of a branch, for a policy.

    Attributes:
        repository: name of the repository.
        branch: name of the branch.
        record: the branch's record.
        puts: keys whose newest staged entry is a value.
        tombstones: keys whose newest staged entry is a tombstone.
        longest_run: the most tombstones in a row among the staged entries, in order of the keys.
        staged_bytes: logical size of the values.
        all_seen: whether all staged entries were read; if not, the four numbers above count the first entries only.
        ranges: ranges of the base.
        ranges_touched: ranges that a staged key falls into, or directly precedes.
        bytes_touched: logical size of the touched ranges.
        bytes_available: room for new ranges; `None` if unknown.
    """

    repository: str
    branch: str
    record: BranchRecord
    puts: int = 0
    tombstones: int = 0
    longest_run: int = 0
    staged_bytes: int = 0
    all_seen: bool = True
    ranges: int = 0
    ranges_touched: int = 0
    bytes_touched: int = 0
    bytes_available: int | None = None

    @property
    def sealed_tokens(self) -> int:
        """Number of sealed tokens. A read of a key that is not staged reads each."""
        return len(self.record.sealed_tokens)

    @property
    def compaction_started_at(self) -> float | None:
        """Start of the last compaction, in seconds since the epoch."""
        return self.record.compaction_started_at

    @property
    def is_clean(self) -> bool:
        """Whether the branch has no staged entry and no sealed token."""
        return not (self.puts or self.tombstones or self.sealed_tokens)

    @property
    def bytes_to_copy(self) -> int | None:
        """Estimated bytes that a compaction would write; `None` if not all entries were read."""
        return self.bytes_touched + self.staged_bytes if self.all_seen else None

    def to_dicts(self) -> list[dict[str, Any]]:
        """Return one row with every number."""
        numbers = attrs.asdict(self, filter=lambda field, _: field.name != "record")
        return [numbers | {"sealed_tokens": self.sealed_tokens, "compaction_started_at": self.compaction_started_at}]

    def _summary(self) -> str:
        return (f"{self.repository}/{self.branch}: {self.puts} values and {self.tombstones} tombstones staged, "
                f"{self.sealed_tokens} sealed tokens, {self.ranges_touched} of {self.ranges} ranges touched")


@attrs.frozen
class StagingChoice:
    """The choice of a policy, and the reason; for an empty choice the closed gate, its value, and its setting."""

    why: str
    is_empty: bool = False


@attrs.frozen(kw_only=True, repr=False)
class StagingPlan(Printed):
    """A planned compaction, with its reason, gain and cost.

    Valid while the branch's record names the same layers. Entries staged after the plan are compacted too.

    Attributes:
        view: the view behind the plan; its `repository` and `branch` identify the branch.
        policy: the policy that chose.
        why: the reason, in one sentence; for an empty plan the closed gate, its value, and the setting to change.
        is_empty: whether the compaction would do nothing.
    """

    view: StagingView
    policy: PolicyRecord
    why: str
    is_empty: bool

    @property
    def bytes_to_copy(self) -> int | None:
        """Estimated bytes of ranges to write; `None` if not all staged entries were read."""
        return 0 if self.is_empty else self.view.bytes_to_copy

    @property
    def bytes_freed(self) -> int | None:
        """`None`, as freed bytes of the key-value store and other users of old ranges are unknown; 0 if empty."""
        return 0 if self.is_empty else None

    @property
    def bytes_needed(self) -> int | None:
        """Equal to `bytes_to_copy`, because replaced ranges stay until they are collected."""
        return self.bytes_to_copy

    @property
    def bytes_available(self) -> int | None:
        """Room for new ranges at the time of the view; `None` if unknown."""
        return self.view.bytes_available

    def to_dicts(self) -> list[dict[str, Any]]:
        """Return one row: the numbers of the view, and the bytes to write."""
        return [{**row, "bytes_to_copy": self.bytes_to_copy} for row in self.view.to_dicts()]

    def _summary(self) -> str:
        verdict = "would do nothing" if self.is_empty else "would run"
        return f"compaction of {self.view.repository}/{self.view.branch} {verdict}: {self.why}"


def plan_for(view: StagingView, choice: StagingChoice, policy: PolicyRecord) -> StagingPlan:
    """Return the plan of a view and a choice. Pure. The plan of a clean view is empty."""
    if view.is_clean:
        choice = StagingChoice("nothing to compact: 0 entries are staged, and 0 tokens are sealed", is_empty=True)
    return StagingPlan(view=view, policy=policy, why=choice.why, is_empty=choice.is_empty)


StagingPolicy: TypeAlias = Policy[StagingView, StagingChoice]
"""Decides, from the view of a branch, whether it is compacted."""

DEFAULT_WINDOW_SECONDS: Final = 300.0
"""At most one compaction of a branch starts within this time."""


def window_gate(view: StagingView, now: float, window_seconds: float) -> StagingChoice | None:
    """Return an empty choice within the window of the last compaction; else `None`.

    The window begins at the start time in the branch's record, so that it holds for all processes. A start further in
    the future than the window was written under a wrong clock, and is ignored.
    """
    started = view.compaction_started_at
    if started is None or not started - window_seconds <= now < started + window_seconds:
        return None
    ends = started + window_seconds
    return StagingChoice(f"a compaction of the branch started at {started:.3f}, and the next one may start "
                         f"{window_seconds} seconds later, at {ends:.3f}; wait, or give a policy with a smaller "
                         f"window_seconds", is_empty=True)


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
