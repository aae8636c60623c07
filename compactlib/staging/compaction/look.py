# SPDX-License-Identifier: Apache-2.0
"""The view of a branch that a compaction would start from; writes nothing.

Which ranges the changes would touch shows in the metarange; those that tombstones lie in are opened, to see what is
alive between two of them.
"""

from __future__ import annotations

from bisect import bisect_left
from itertools import islice

from compactlib.runtime.budget import Budget
from compactlib.staging.branches import FoundBranch
from compactlib.staging.compaction.plan import StagingView
from compactlib.staging.context import StagingContext
from compactlib.staging.names import StagingToken
from compactlib.staging.ranges.cursor import RangeScan
from compactlib.staging.ranges.split import record_bytes
from compactlib.staging.record import BranchRecord
from compactlib.staging.tokens import MergedTokens

_ENTRIES_BETWEEN_CHECKS = 1000
_QUICK_LOOK_ENTRIES = 1000
"""How many staged entries are looked at before a compaction that is wanted whatever they are."""


def look(context: StagingContext, branch: str, budget: Budget | None = None, *, is_quick: bool = False,
         ) -> tuple[FoundBranch, StagingView]:
    """See what a compaction would find: the staged entries up to `options.max_scanned`, and which ranges they touch.

    Args:
        context: the stores.
        branch: the branch's name.
        budget: asked before every 1,000 entries.
        is_quick: only see whether there is anything, and about the first entries what room they need; no range is
            read, and so no run is known.

    Returns:
        The branch and what was seen of it, both of one moment.

    Raises:
        BranchNotFound: there is no such branch.
        TooManyTries: its layers were replaced under every try.
        BudgetSpent: the budget ran out.
    """
    given = Budget() if budget is None else budget
    view, found, now = context.branches.consistently(
        branch, lambda found: (_seen(context, found, given, is_quick=is_quick), False), operation="look")
    return now if now.record.has_layers_of(found.record) else found, view


def tombstones_of(context: StagingContext, branch: str, budget: Budget) -> tuple[BranchRecord, dict[StagingToken, int]]:
    """A branch's record, and how many tombstones each of its tokens holds, of `options.max_scanned` entries in all.

    Reads no range. What a commit or a compaction takes away meanwhile may be missing.

    Raises:
        BranchNotFound: there is no such branch.
        BudgetSpent: the budget ran out, which is asked before every 1,000 entries.
    """
    record = context.branches.read(branch).record
    counts = dict.fromkeys(record.tokens, 0)
    staged = ((token, entry) for token in record.tokens for _, entry in context.tokens.scan(token))
    for number, (token, entry) in enumerate(islice(staged, context.options.max_scanned)):
        if number % _ENTRIES_BETWEEN_CHECKS == 0:
            budget.check()
        counts[token] += entry.is_tombstone
    return record, counts


def _seen(context: StagingContext, found: FoundBranch, budget: Budget, *, is_quick: bool) -> StagingView:
    committed, record = context.committed, found.record
    base = record.base(context.commits.metarange_of(record.commit_id))
    ranges = committed.ranges_of(base)
    last_keys = [entry.max_key for entry in ranges]
    touched: set[int] = set()
    limit = context.options.max_scanned
    limit = min(limit, _QUICK_LOOK_ENTRIES) if is_quick else limit
    runs = _Runs(None if is_quick else committed.scan(base))
    puts = staged_bytes = 0
    for number, (key, staged) in enumerate(islice(MergedTokens(context.tokens, record.tokens), limit)):
        if number % _ENTRIES_BETWEEN_CHECKS == 0:
            budget.check()
        if staged.record is None:
            runs.tombstone(key)
        else:
            runs.end()
            puts += 1
            staged_bytes += record_bytes(key, staged.record)
        if ranges:
            touched.add(min(bisect_left(last_keys, key), len(ranges) - 1))
    return StagingView(
        repository=context.repository, branch=found.branch, record=record, puts=puts, tombstones=runs.tombstones,
        longest_run=runs.longest, staged_bytes=staged_bytes, all_seen=puts + runs.tombstones < limit,
        ranges=len(ranges), ranges_touched=len(touched), bytes_touched=sum(ranges[at].size_bytes for at in touched),
        bytes_available=committed.available_bytes())


class _Runs:
    """Counts tombstones, and how many follow one another without a live key in between."""

    def __init__(self, base: RangeScan | None) -> None:
        self.tombstones = 0
        self.longest = 0
        self._base = base
        self._run = 0
        self._last = b""
        # The first key of the base behind the last tombstone; not looked for before a second one follows.
        self._following: bytes | None = None
        self._is_known = False

    def tombstone(self, key: bytes) -> None:
        self.tombstones += 1
        if self._base is None:
            return
        if self._run:
            if not self._is_known:
                self._base.seek(self._last + b"\0")
                self._advance(self._base)
            if self._following is not None and self._following < key:
                self._run = 0
                self._is_known = False
            elif self._following == key:
                self._advance(self._base)
        self._run += 1
        self._last = key
        self.longest = max(self.longest, self._run)

    def end(self) -> None:
        self._run = 0
        self._is_known = False

    def _advance(self, base: RangeScan) -> None:
        following = next(base, None)
        self._following = None if following is None else following[0]
        self._is_known = True
