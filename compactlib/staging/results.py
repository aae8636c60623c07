# SPDX-License-Identifier: Apache-2.0
"""The reports of commits, moves of HEAD, compactions and resets, and the status of a branch and of a repository.

An empty report says why nothing was done.
"""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

import attrs

from compactlib.report import Printed
from compactlib.staging.names import CommitId
from compactlib.staging.values import Applied, MetaRangeId

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
class BranchStatus(Printed):
    """A branch in one line.

    Attributes:
        branch: its name.
        version: how often its record was written.
        commit_id: HEAD; `None` if nothing was ever committed.
        generation: that of HEAD; 0 without one.
        sealed_tokens: how many; each costs every read of an unstaged key one request.
        compacted_metarange_id: the base, if a compaction made one.
        compaction_started_at: when the last compaction started, in seconds since the epoch.
    """

    branch: str
    version: int
    commit_id: CommitId | None
    generation: int
    sealed_tokens: int
    compacted_metarange_id: MetaRangeId | None
    compaction_started_at: float | None


@attrs.frozen(kw_only=True, repr=False)
class RepositoryStatus(Printed):
    """What a `Repository` object is at, from memory.

    Attributes:
        repository: its name.
        compacting: the branches that it compacts now.
        is_reclaiming: whether a reclaim is under way.
        outcomes: how often a compaction by this object ended in what: `compacted`, `skipped`, `lost_race`, `error`.
        last_error: the last unexpected exception, of a policy, a fence or a listener of the host's, as
            `Kind: message`; empty if nothing was.
        failures: how often that was.
        ranges_refused: why its ranges were not collected when it last asked whose they are; empty if they were its own.
    """

    repository: str
    compacting: tuple[str, ...] = ()
    is_reclaiming: bool = False
    outcomes: tuple[tuple[str, int], ...] = ()
    last_error: str = ""
    failures: int = 0
    ranges_refused: str = ""

    @property
    def is_busy(self) -> bool:
        """Whether a compaction or a reclaim is under way."""
        return self.is_reclaiming or bool(self.compacting)

    def to_dicts(self) -> list[dict[str, Any]]:
        """One row."""
        return [{"repository": self.repository, "compacting": ", ".join(self.compacting),
                 "is_reclaiming": self.is_reclaiming, **dict(self.outcomes), "last_error": self.last_error,
                 "failures": self.failures, "ranges_refused": self.ranges_refused}]

    def _summary(self) -> str:
        at_work = f"compacts {', '.join(self.compacting)}" if self.compacting else "compacts nothing"
        failed = f"; {self.failures} failures, the last {self.last_error}" if self.failures else ""
        refused = f"; {self.ranges_refused}" if self.ranges_refused else ""
        return f"{self.repository}: {at_work}{', reclaims' if self.is_reclaiming else ''}{failed}{refused}"


@attrs.frozen(kw_only=True, repr=False)
class RepositorySurvey(Printed):
    """All branches of a repository and its staging tokens, in numbers.

    Attributes:
        repository: its name.
        branches: its branches.
        dropped_tokens: those that wait for cleanup.
    """

    repository: str
    branches: tuple[BranchStatus, ...]
    dropped_tokens: int

    def to_dicts(self) -> list[dict[str, Any]]:
        """One row for each branch."""
        return [row for branch in self.branches for row in branch.to_dicts()]

    def _summary(self) -> str:
        return f"{self.repository}: {len(self.branches)} branches, {self.dropped_tokens} dropped tokens"
