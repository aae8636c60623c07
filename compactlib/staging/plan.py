# SPDX-License-Identifier: Apache-2.0
"""The view and the plan of a compaction of a branch: a dry run.

`Compactor.view` reads the staged entries, up to a limit, into a `StagingView`; a policy chooses, and `plan_for` is a
pure function of both.

The gain: a listing no longer skips tombstones, and a read of a key that is not staged no longer reads sealed tokens.
The cost: every range that a change falls into is rewritten. So a thousand deletes of neighbouring keys are worth a
compaction, and a thousand deletes in a thousand ranges hardly ever.
"""

from __future__ import annotations

from typing import Any

import attrs

from compactlib.report import PolicyRecord, Printed
from compactlib.staging.record import BranchRecord


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
    """The choice of a policy.

    Attributes:
        why: the reason, in one sentence; for an empty choice the closed gate, its value, and the setting to change.
        is_empty: whether nothing is to be compacted.
    """

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
        """Return one row for each number: its name, its value now, and its value after the compaction."""
        view, after = self.view, self.view if self.is_empty else None
        some = "" if view.all_seen else " (of the entries read)"
        rows = [(f"tombstones{some}", view.tombstones), (f"most tombstones in a row{some}", view.longest_run),
                (f"staged values{some}", view.puts), ("sealed tokens", view.sealed_tokens)]
        return [*({"what": what, "now": now, "after": 0 if after is None else now} for what, now in rows),
                {"what": "requests for a key that is not staged", "now": 1 + view.sealed_tokens,
                 "after": 1 if after is None else 1 + view.sealed_tokens},
                {"what": "ranges to rewrite, of all", "now": view.ranges,
                 "after": view.ranges_touched if after is None else 0},
                {"what": "bytes to write, about", "now": 0, "after": self.bytes_to_copy}]

    def _summary(self) -> str:
        verdict = "would do nothing" if self.is_empty else "would run"
        return f"compaction of {self.view.repository}/{self.view.branch} {verdict}: {self.why}"


def plan_for(view: StagingView, choice: StagingChoice, policy: PolicyRecord) -> StagingPlan:
    """Return the plan of a view and a choice. Pure. The plan of a clean view is empty."""
    if view.is_clean:
        choice = StagingChoice(CLEAN, is_empty=True)
    return StagingPlan(view=view, policy=policy, why=choice.why, is_empty=choice.is_empty)


CLEAN = "nothing to compact: 0 entries are staged, and 0 tokens are sealed"
