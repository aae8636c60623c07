# SPDX-License-Identifier: Apache-2.0
"""The reports of commits, moves of HEAD, compactions and resets; an empty one says why nothing was done."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal, TypeAlias

import attrs

from compactlib.report import Printed
from compactlib.staging.names import CommitId
from compactlib.staging.values import Applied, Difference, MetaRangeId

CommitOutcome: TypeAlias = Literal["committed", "no_changes", "already_committed"]
"""How a commit or a move of HEAD ended."""


@attrs.frozen(kw_only=True)
class CommitReport(Printed):
    """A commit that was made, a HEAD that was moved or cleared of what was uncommitted, or why nothing was done.

    Attributes:
        outcome: `"committed"`; `"no_changes"`: the content is that of HEAD; or `"already_committed"`: another writer
            committed meanwhile all that this commit would have held, unless a reset took it away.
        commit_id: HEAD: the commit that was made, or that HEAD was moved to, or that stays; `None` if there is none.
        why: why nothing was done, in one sentence; empty if something was.
        added, changed, removed: how many keys differ from what HEAD was before.
        ranges_written: ranges that had to be written.
        ranges_reused: ranges taken over unread.
        rebuilds: how often the metarange was built again, because the branch changed meanwhile.
    """

    outcome: CommitOutcome = "committed"
    commit_id: CommitId | None
    why: str = ""
    added: int = 0
    changed: int = 0
    removed: int = 0
    ranges_written: int = 0
    ranges_reused: int = 0
    rebuilds: int = 0

    @property
    def is_empty(self) -> bool:
        """Whether nothing was done."""
        return self.outcome != "committed"

    @classmethod
    def no_changes(cls, why: str, commit_id: CommitId | None) -> CommitReport:
        """Return the report of a commit or a move that left HEAD where it is."""
        return cls(outcome="no_changes", commit_id=commit_id, why=why)


@attrs.frozen(kw_only=True)
class StagingCompactionReport(Printed):
    """A compaction that took effect, or why there was nothing to do.

    Attributes:
        branch: which branch.
        why: why nothing was done, in one sentence; empty if something was.
        again_at: of an empty report: when the gate opens by itself (the window of the last compaction, a store without
            room), in seconds since the epoch by the repository's clock; `None` if only more writes open it.
        metarange_id: the new compacted metarange; `None` if the result equals HEAD, so that none is needed.
        sealed_before: sealed tokens when it started, the one it sealed itself included.
        sealed_after: sealed tokens it left, sealed by others meanwhile.
        applied: what the merge did, against the base it was made on; `None` if nothing was done.
        seconds: from the first read to the last write.
    """

    branch: str
    why: str = ""
    again_at: float | None = None
    metarange_id: MetaRangeId | None = None
    sealed_before: int = 0
    sealed_after: int = 0
    applied: Applied | None = None
    seconds: float = 0.0

    @property
    def is_empty(self) -> bool:
        """Whether nothing was done."""
        return self.applied is None

    @property
    def is_partial(self) -> bool:
        """Never: a branch is compacted as a whole."""
        return False

    def to_dicts(self) -> list[dict[str, Any]]:
        """One row: these numbers and those of the merge."""
        if self.applied is None:
            return [{"branch": self.branch, "why": self.why, "again_at": self.again_at}]
        applied = {name: value for name, value in attrs.asdict(self.applied).items() if name != "metarange_id"}
        return [{"branch": self.branch, "metarange_id": self.metarange_id, "sealed_before": self.sealed_before,
                 "sealed_after": self.sealed_after, **applied, "seconds": self.seconds}]


@attrs.frozen(kw_only=True)
class ResetReport(Printed):
    """A reset that was carried out, or why there was nothing to do.

    Attributes:
        why: why nothing was done, in one sentence; empty if something was.
        tokens_dropped: staging tokens that the branch dropped.
        records_restored: records of HEAD written over uncommitted ones.
        tombstones: keys hidden again that HEAD does not have.
    """

    why: str = ""
    tokens_dropped: int = 0
    records_restored: int = 0
    tombstones: int = 0

    @property
    def is_empty(self) -> bool:
        """Whether nothing was done."""
        return not (self.tokens_dropped or self.records_restored or self.tombstones)


@attrs.frozen(kw_only=True)
class Counts:
    """How many keys differ between two states.

    Attributes:
        added, changed, removed: how many of each kind.
    """

    added: int = 0
    changed: int = 0
    removed: int = 0

    @classmethod
    def of(cls, differences: Iterable[Difference]) -> Counts:
        """Count differences. O(differences)."""
        counts = {"added": 0, "changed": 0, "removed": 0}
        for difference in differences:
            counts[difference.kind] += 1
        return cls(**counts)

    @property
    def total(self) -> int:
        """Of all kinds."""
        return self.added + self.changed + self.removed
