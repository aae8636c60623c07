# SPDX-License-Identifier: Apache-2.0
"""Garbage collection of a repository: entries of dropped tokens, then unreachable ranges.

*Tokens.* The step that removes tokens from a branch record marks them (see `tokens`). A reclaim reads all marks. For a
mark older than the grace period it removes the entries of the tokens, then the mark. A reader that still scans such a
token misses entries; it re-reads the branch record afterwards and retries. The grace period makes such retries rare, so
a mark far in the future, written under a wrong clock, counts as old.

*Ranges.* Superseded, lost and interrupted compactions and deleted branches leave orphans. This module determines the
live metaranges from the branch records; `RangeCollector` finds and deletes the files.

Every step is idempotent, may run concurrently in several processes, and may be interrupted.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterable
from functools import partial
from itertools import islice
from math import inf
from typing import Any

import attrs

from compactlib._store_numbers import notify_bytes, notify_levels
from compactlib.budget import Budget
from compactlib.errors import BudgetSpent, CompactionFailed, CompactlibError, CorruptData, NotFound, Unsupported
from compactlib.report import Printed
from compactlib.staging.branches import DropMark
from compactlib.staging.commits import Commit
from compactlib.staging.context import StagingContext
from compactlib.staging.errors import RangesNotOwned
from compactlib.staging.ranges.collect import RangeCollector
from compactlib.staging.record import BranchRecord
from compactlib.staging.tokens import remove_staged
from compactlib.staging.values import Collected, CommitId, LiveMetaRanges, MetaRangeId

_BATCH = 1000
_MAX_SKEW_SECONDS = 3600.0
"""Marks dated further in the future were written under a wrong clock."""


@attrs.frozen(kw_only=True, repr=False)
class StagingReclaimReport(Printed):
    """The report of a reclaim.

    Attributes:
        tokens_removed: dropped tokens whose entries were all removed.
        entries_removed: their entries.
        tokens_young: dropped tokens that wait for their grace period to end.
        ranges: counts of ranges and metaranges; `None` if they were not listed.
        left: what was left and why, in a sentence each.
        is_partial: whether the budget ended it after something was freed.
    """

    tokens_removed: int = 0
    entries_removed: int = 0
    tokens_young: int = 0
    ranges: Collected | None = None
    left: tuple[str, ...] = ()
    is_partial: bool = False

    @property
    def is_empty(self) -> bool:
        """Whether nothing was freed."""
        deleted = self.ranges is not None and (self.ranges.ranges_deleted or self.ranges.metaranges_deleted)
        return not (self.tokens_removed or self.entries_removed or deleted)

    @property
    def why(self) -> str:
        """The sentences of `left`."""
        return "; ".join(self.left)

    def to_dicts(self) -> list[dict[str, Any]]:
        """Return one row with all numbers."""
        return [{"tokens_removed": self.tokens_removed, "entries_removed": self.entries_removed,
                 "tokens_young": self.tokens_young, **attrs.asdict(self.ranges or Collected())}]

    def _summary(self) -> str:
        return self.why or "all that is not needed was freed"


def reclaim(context: StagingContext, budget: Budget) -> StagingReclaimReport:
    """Free dropped tokens and unreachable ranges; see `Repository.reclaim`."""
    counts, ranges, spent = Counter[str](), None, None
    left: list[str] = []
    damage: dict[bytes, CompactlibError] = {}
    try:
        oldest = _clean_tokens(context, counts, budget, damage)
        if counts["tokens_young"]:
            left.append(f"{counts['tokens_young']} dropped tokens wait until they are older than "
                        f"grace_seconds={context.options.grace_seconds}")
        ranges = _collect_ranges(context, budget, left, oldest)
    except BudgetSpent as error:
        spent = error
        left.append(str(error))
    except (CorruptData, Unsupported, NotFound) as error:
        # A record that decides which ranges are live is unreadable or missing.
        damage[b"ranges"] = error
    report = StagingReclaimReport(**counts, ranges=ranges, left=tuple(left), is_partial=spent is not None)
    if damage and not report.is_empty:
        raise CompactionFailed(report=report, failures={
            key.decode("ascii", "backslashreplace"): error for key, error in damage.items()})
    if report.is_empty:
        for failure in (*damage.values(), *filter(None, [spent])):
            raise failure
    return report


# ------------------------------------------------------------------------------------------------------------ tokens


def _clean_tokens(context: StagingContext, counts: Counter[str], budget: Budget,
                  damage: dict[bytes, CompactlibError]) -> float | None:
    """Remove the entries of old dropped tokens. Returns when the oldest token that stays was dropped."""
    now, oldest = context.clock.now(), inf
    marks = context.branches.marks(damage)
    while batch := list(islice(marks, _BATCH)):
        emptied: dict[bytes, DropMark] = {}
        try:
            for key, mark in batch:
                if _is_young(mark, now, context.options.grace_seconds):
                    counts["tokens_young"] += len(mark.tokens)
                    oldest = min(oldest, mark.at_ms / 1000)
                else:
                    _empty(context, mark, counts, budget)
                    emptied[key] = mark
        finally:
            context.branches.forget(emptied)
            counts["tokens_removed"] += sum(len(mark.tokens) for mark in emptied.values())
    return None if oldest == inf else oldest


def _empty(context: StagingContext, mark: DropMark, counts: Counter[str], budget: Budget) -> None:
    for token in mark.tokens:
        removed = _BATCH
        while removed == _BATCH:
            budget.check()
            removed = remove_staged(context.store, token, _BATCH)
            counts["entries_removed"] += removed


def _is_young(mark: DropMark, now: float, grace_seconds: float) -> bool:
    return now - grace_seconds < mark.at_ms / 1000 <= now + _MAX_SKEW_SECONDS


# ------------------------------------------------------------------------------------------------------------ ranges


def live_metaranges(context: StagingContext, fenced: bool) -> LiveMetaRanges:
    """Return the metaranges that branches need (of HEADs and compactions), and those of HEADs' ancestors.

    `fenced` invalidates updates in flight, such as those of a commit that was suspended for the grace period.
    """
    records = (context.branches.fence(branch, record) if fenced else record
               for branch, record in context.branches.list())
    return live_of(filter(None, records), context.commits.reachable)


def live_of(records: Iterable[BranchRecord],
            reachable: Callable[[set[CommitId]], Iterable[tuple[CommitId, Commit]]]) -> LiveMetaRanges:
    """Return the live metaranges of branch records; `reachable` yields the HEADs and their ancestors."""
    needed: set[MetaRangeId] = set()
    heads: set[CommitId] = set()
    for record in records:
        if record.compacted_metarange_id is not None:
            needed.add(record.compacted_metarange_id)
        if record.commit_id is not None:
            heads.add(record.commit_id)
    history: set[MetaRangeId] = set()
    for commit_id, commit in reachable(heads):
        (needed if commit_id in heads else history).add(commit.metarange_id)
    return LiveMetaRanges(needed=frozenset(needed), history=frozenset(history - needed))


def _collect_ranges(context: StagingContext, budget: Budget, left: list[str], oldest: float | None,
                    ) -> Collected | None:
    """Delete the files that no branch needs and that are older than the grace period.

    If there are such files, each branch record is rewritten: a suspended writer must check its files again.
    """
    grace_seconds = context.options.range_grace_seconds
    if not context.options.owns_ranges:
        left.append("ranges are not collected, as owns_ranges=False; set it if no other repository uses the object "
                    "store or prefix")
        return None
    try:
        context.owner.require()
        collected = RangeCollector(context.committed, partial(live_metaranges, context), grace_seconds, budget,
                                   context.owner.require).run()
    except RangesNotOwned as refusal:
        left.append(str(refusal))
        return None
    _report_levels(context, collected, oldest)
    if not (collected.ranges_deleted or collected.metaranges_deleted):
        left.append(f"{collected.young} unneeded files wait until they are older than {grace_seconds} seconds, or are "
                    f"another collection's")
    return collected


def _report_levels(context: StagingContext, collected: Collected, oldest: float | None) -> None:
    """Report the files that the collection found."""
    context.observer.event("staging_garbage", repository=context.repository, **attrs.asdict(collected))
    notify_bytes(context.observer, "staging", context.repository, freed=collected.bytes_freed)
    # A failure of the store here does not hide the completed collection.
    with contextlib.suppress(CompactlibError):
        room = context.committed.objects.available_bytes()
        notify_levels(
            context.observer, "staging", context.repository,
            live_bytes=collected.live_bytes, dead_bytes=collected.young_bytes, free_bytes=room,
            capacity_bytes=None if room is None else collected.live_bytes + collected.young_bytes + room,
            oldest_unreclaimed_seconds=oldest)
