# SPDX-License-Identifier: Apache-2.0
"""What a compaction of a branch would do, and what it would gain: a dry run.

`look` (in `look.py`) reads the staged entries, up to a limit, into a `StagingView`; a policy chooses, and `plan_for`
is a pure function of both. Nothing is written.

What is to be gained: a listing no longer passes over tombstones, and a read of a key that is not staged no longer asks
every sealed token. What it costs: every range that a change falls into is written anew. So a thousand deletes side by
side are worth a compaction, and a thousand deletes in a thousand ranges hardly ever.
"""

from __future__ import annotations

from typing import Any

import attrs

from compactlib.report import PolicyRecord, Printed
from compactlib.staging.record import BranchRecord


@attrs.frozen(kw_only=True, repr=False)
class StagingView(Printed):
    """What was seen of a branch.

    Attributes:
        repository: whose branch.
        branch: its name.
        record: what it is made of.
        puts: keys whose newest staged entry is a value.
        tombstones: keys whose newest staged entry is a tombstone.
        longest_run: the most tombstones in a row, in order of the keys, with nothing alive in between.
        staged_bytes: logical size of the values.
        all_seen: whether all staged entries were looked at; if not, the four numbers above are of the first ones.
        ranges: ranges of the base.
        ranges_touched: those that a staged key falls into, or just before.
        bytes_touched: their logical size.
        bytes_available: room for more ranges; `None` where it is unknown.
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
        """Sealed tokens of its record; a read of a key that is not staged asks each."""
        return len(self.record.sealed_tokens)

    @property
    def compaction_started_at(self) -> float | None:
        """When the last compaction started, in seconds since the epoch."""
        return self.record.compaction_started_at

    @property
    def is_clean(self) -> bool:
        """Whether there is nothing to compact: no staged entry, and no sealed token."""
        return not (self.puts or self.tombstones or self.sealed_tokens)

    @property
    def bytes_to_copy(self) -> int | None:
        """About what a compaction would write; `None` if not all was seen."""
        return self.bytes_touched + self.staged_bytes if self.all_seen else None

    def to_dicts(self) -> list[dict[str, Any]]:
        """One row: every number."""
        record = self.record
        return [{"repository": self.repository, "branch": self.branch, "sealed_tokens": self.sealed_tokens,
                 "compacted_metarange_id": record.compacted_metarange_id,
                 "compaction_started_at": self.compaction_started_at,
                 **{name: getattr(self, name) for name in _NUMBERS}}]

    def _summary(self) -> str:
        return (f"{self.repository}/{self.branch}: {self.puts} values and {self.tombstones} tombstones staged, "
                f"{self.sealed_tokens} sealed tokens, {self.ranges_touched} of {self.ranges} ranges touched")


_NUMBERS = ("puts", "tombstones", "longest_run", "staged_bytes", "all_seen", "ranges", "ranges_touched",
            "bytes_touched", "bytes_available")


@attrs.frozen
class StagingChoice:
    """What a policy decided.

    Attributes:
        why: in one sentence; of an empty choice which gate is shut, its value, and the setting to change.
        is_empty: whether nothing is to be compacted.
        again_at: of an empty choice: when the gate opens by itself, in seconds since the epoch; `None` if only more
            writes open it. A worker asks again then.
    """

    why: str
    is_empty: bool = False
    again_at: float | None = None


@attrs.frozen(kw_only=True, repr=False)
class StagingPlan(Printed):
    """What a compaction would do, why, and what it would gain.

    It holds as long as the branch's record names the same layers: what is staged meanwhile is compacted too.

    Attributes:
        view: what it was planned from; its `repository` and `branch` say which branch it is for.
        policy: which policy chose.
        why: one sentence: why it is done, or which gate is shut, its value, and the setting to change.
        is_empty: whether there is nothing to do.
        again_at: when there may be, without any further write, in seconds since the epoch; `None` if never.
    """

    view: StagingView
    policy: PolicyRecord
    why: str
    is_empty: bool
    again_at: float | None = None

    @property
    def bytes_to_copy(self) -> int | None:
        """About how many bytes of ranges are written anew; `None` if not all staged entries were looked at."""
        return 0 if self.is_empty else self.view.bytes_to_copy

    @property
    def bytes_freed(self) -> int | None:
        """`None`: it is unknown what a key-value store frees for entries, and what else needs the old ranges."""
        return 0 if self.is_empty else None

    @property
    def is_exact(self) -> bool:
        """Only of an empty plan: where ranges are cut shows when they are written."""
        return self.is_empty

    @property
    def bytes_needed(self) -> int | None:
        """As `bytes_to_copy`: the ranges that it replaces stay until they are collected."""
        return self.bytes_to_copy

    @property
    def bytes_available(self) -> int | None:
        """Room for more ranges when it was planned; `None` where it is unknown."""
        return self.view.bytes_available

    def to_dicts(self) -> list[dict[str, Any]]:
        """One row for each number: what, now, and after the compaction."""
        view, after = self.view, self.view if self.is_empty else None
        some = "" if view.all_seen else " (of the entries looked at)"
        rows = [(f"tombstones{some}", view.tombstones), (f"most tombstones in a row{some}", view.longest_run),
                (f"staged values{some}", view.puts), ("sealed tokens", view.sealed_tokens)]
        return [*({"what": what, "now": now, "after": 0 if after is None else now} for what, now in rows),
                {"what": "requests for a key that is not staged", "now": 1 + view.sealed_tokens,
                 "after": 1 if after is None else 1 + view.sealed_tokens},
                {"what": "ranges written anew, of all", "now": view.ranges,
                 "after": view.ranges_touched if after is None else 0},
                {"what": "bytes written anew, about", "now": 0, "after": self.bytes_to_copy}]

    def _summary(self) -> str:
        verdict = "would do nothing" if self.is_empty else "would run"
        return f"compaction of {self.view.repository}/{self.view.branch} {verdict}: {self.why}"


def plan_for(view: StagingView, choice: StagingChoice, policy: PolicyRecord) -> StagingPlan:
    """The plan for what was seen and chosen. Pure."""
    if view.is_clean:
        choice = StagingChoice(CLEAN, is_empty=True)
    return StagingPlan(view=view, policy=policy, why=choice.why, is_empty=choice.is_empty,
                       again_at=choice.again_at if choice.is_empty else None)


CLEAN = "nothing to compact: 0 entries are staged, and 0 tokens are sealed"
