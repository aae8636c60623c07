# SPDX-License-Identifier: Apache-2.0
"""Pages of listings and diffs; reports of commits, moves of HEAD, compactions and resets; the status of a repository.

An empty report gives the reason.
"""

from __future__ import annotations

from typing import Any, ClassVar

import attrs

from compactlib.report import Printed
from compactlib.staging.values import Applied, CommitId, Difference, MetaRangeId, Record


@attrs.frozen
class Listed:
    """One line of a listing: a key and its record; or a common prefix, which ends with the delimiter, and `None`."""

    key: bytes
    record: Record | None


@attrs.frozen(kw_only=True, repr=False)
class ListPage(Printed):
    """One page of a listing: each key as of some moment of the call.

    Attributes:
        entries: in order of the keys.
        next_after: the `after` of the next page; `None` on the last page. A page that has read `max_scanned` entries
            ends early: it may be empty without being the last.
        scanned: number of staged and committed entries read.
        tombstones: number of tombstones skipped.
    """

    entries: tuple[Listed, ...] = ()
    next_after: bytes | None = None
    scanned: int = 0
    tombstones: int = 0

    @property
    def keys(self) -> tuple[bytes, ...]:
        """Return keys and common prefixes, in order."""
        return tuple(entry.key for entry in self.entries)

    def to_dicts(self) -> list[dict[str, Any]]:
        """Return one row for each entry."""
        return [{"key": entry.key, "identity": _identity(entry.record),
                 "data_bytes": None if entry.record is None else len(entry.record.data)} for entry in self.entries]

    def _summary(self) -> str:
        return (f"{len(self.entries)} entries, {self.scanned} scanned, {self.tombstones} tombstones"
                f"{_more(self.next_after)}")


@attrs.frozen(kw_only=True, repr=False)
class DiffPage(Printed):
    """One page of uncommitted changes: each difference from HEAD as of some moment of the call.

    Attributes:
        differences: from HEAD to the branch, in order of the keys.
        next_after: the `after` of the next page; `None` on the last page. May be set on an empty page.
        scanned: number of keys read.
    """

    differences: tuple[Difference, ...]
    next_after: bytes | None
    scanned: int = 0

    def to_dicts(self) -> list[dict[str, Any]]:
        """Return one row for each difference."""
        return [{"kind": one.kind, "key": one.key, "left": _identity(one.left), "right": _identity(one.right)}
                for one in self.differences]

    def _summary(self) -> str:
        return f"{len(self.differences)} differences, {self.scanned} scanned{_more(self.next_after)}"


def _more(next_after: bytes | None) -> str:
    return "" if next_after is None else f", more after {next_after!r}"


def _identity(record: Record | None) -> str | None:
    return None if record is None else record.identity.hex()


@attrs.frozen(kw_only=True)
class CommitReport(Printed):
    """The report of a commit or a move of HEAD.

    Attributes:
        commit_id: HEAD afterwards; `None` without a commit.
        why: the reason of an empty report, in one sentence.
        added, changed, removed: number of keys that differ from the HEAD before.
        ranges_written: ranges written.
        ranges_reused: ranges reused unread.
        rebuilds: how often concurrent changes of the branch forced the commit to build its metarange again.
    """

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
        return bool(self.why)


@attrs.frozen(kw_only=True, repr=False)
class StagingCompactionReport(Printed):
    """The report of a compaction.

    Attributes:
        branch: name of the branch.
        why: the reason of an empty report, in one sentence.
        metarange_id: the new compacted metarange; `None` if the result equals HEAD.
        sealed_before: sealed tokens at the start, including the token that the compaction sealed.
        applied: counts of the rewrite, against its base; `None` if nothing was done.
        seconds: from the first read to the last write.
    """

    branch: str
    why: str = ""
    metarange_id: MetaRangeId | None = None
    sealed_before: int = 0
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
        """Return one row with these numbers and those of the rewrite."""
        if self.applied is None:
            return [{"branch": self.branch, "why": self.why}]
        applied = {name: value for name, value in attrs.asdict(self.applied).items() if name != "metarange_id"}
        return [{"branch": self.branch, "metarange_id": self.metarange_id, "sealed_before": self.sealed_before,
                 **applied, "seconds": self.seconds}]

    def _summary(self) -> str:
        return f"nothing to compact in {self.branch!r}: {self.why}" if self.is_empty else (
            f"{self.branch!r} is compacted: {self.sealed_before:,} sealed tokens applied in {self.seconds:.3f} s")


@attrs.frozen(kw_only=True)
class ResetReport(Printed):
    """The report of a reset.

    Attributes:
        why: the reason of an empty report, in one sentence.
        tokens_dropped: staging tokens that the branch dropped.
        records_restored: records of HEAD written over uncommitted changes.
        tombstones: keys removed that HEAD does not have.
    """

    why: str = ""
    tokens_dropped: int = 0
    records_restored: int = 0
    tombstones: int = 0

    @property
    def is_empty(self) -> bool:
        """Whether nothing was done."""
        return not (self.tokens_dropped or self.records_restored or self.tombstones)


@attrs.frozen(kw_only=True, repr=False)
class RepositoryStatus(Printed):
    """The running operations of a `Repository` object, from memory.

    Attributes:
        repository: its name.
        compacting: the branches that it compacts now.
        is_reclaiming: whether a reclaim runs.
        ranges_refused: why the last check of the owner refused to collect ranges; empty if it did not.
    """

    last_error: ClassVar[str] = ""
    failures: ClassVar[int] = 0
    """None: a repository has no threads of its own, and its calls raise."""

    repository: str
    compacting: tuple[str, ...] = ()
    is_reclaiming: bool = False
    ranges_refused: str = ""

    @property
    def is_busy(self) -> bool:
        """Whether a compaction or a reclaim runs."""
        return self.is_reclaiming or bool(self.compacting)

    def _summary(self) -> str:
        at_work = f"compacts {', '.join(self.compacting)}" if self.compacting else "compacts nothing"
        refused = f"; {self.ranges_refused}" if self.ranges_refused else ""
        return f"{self.repository}: {at_work}{', reclaims' if self.is_reclaiming else ''}{refused}"
