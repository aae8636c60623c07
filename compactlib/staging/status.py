# SPDX-License-Identifier: Apache-2.0
"""The status values of a branch and of a repository."""

from __future__ import annotations

from typing import Any

import attrs

from compactlib.report import Printed
from compactlib.staging.context import StagingContext
from compactlib.staging.names import CommitId
from compactlib.staging.record import BranchRecord
from compactlib.staging.values import MetaRangeId


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

    @classmethod
    def of(cls, context: StagingContext, branch: str, record: BranchRecord) -> BranchStatus:
        """The status of a branch record. Reads the HEAD commit."""
        head = None if record.commit_id is None else context.commits.get(record.commit_id)
        return cls(branch=branch, version=record.version, commit_id=record.commit_id,
                   generation=0 if head is None else head.generation, sealed_tokens=len(record.sealed_tokens),
                   compacted_metarange_id=record.compacted_metarange_id,
                   compaction_started_at=record.compaction_started_at)


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
