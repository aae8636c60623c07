"""What a compaction of a branch would do, and what it would gain: a dry run.

`look` reads the staged entries (up to a limit) into a `CompactionView`; `plan_compaction` is a pure function of that.
Nothing is written. Which ranges the changes would touch shows in the metarange; those that tombstones lie in are
opened, to see what is alive between two of them.

What is to be gained: a listing no longer passes over tombstones, and a read of a key that is not staged no longer asks
every sealed token. What it costs: every range that a change falls into is written anew. So a thousand deletes side by
side are worth a compaction, and a thousand deletes in a thousand ranges hardly ever (`notes/staging.md` 5).
"""

from __future__ import annotations

from bisect import bisect_left
from itertools import islice
from typing import Any, Protocol

import attrs

from compactlib.report import Table
from compactlib.staging.committed import RecordScan
from compactlib.staging.context import StagingContext
from compactlib.staging.layers import MergedTokens
from compactlib.staging.record import BranchRecord


@attrs.frozen(kw_only=True)
class CompactionView:
    """What was seen of a branch.

    Attributes:
        branch: its name.
        sealed_tokens: sealed tokens of its record.
        compacted: whether it has a compacted metarange.
        puts: keys whose newest staged entry is a value.
        tombstones: keys whose newest staged entry is a tombstone.
        longest_run: the most tombstones in a row, in order of the keys, with nothing alive in between.
        all_seen: whether all staged entries were looked at; if not, the three numbers above are of the first ones.
        ranges: ranges of the base.
        ranges_touched: those that a staged key falls into, or just before.
        bytes_touched: their size.
        window_ends_at: when the next compaction may start, if that is not now, in seconds since the epoch.
    """

    branch: str
    sealed_tokens: int
    compacted: bool
    puts: int
    tombstones: int
    longest_run: int
    all_seen: bool
    ranges: int
    ranges_touched: int
    bytes_touched: int
    window_ends_at: float | None = None


@attrs.frozen(kw_only=True, repr=False)
class CompactionPlan:
    """What a compaction would do, why, and what it would gain.

    Attributes:
        view: what it was planned from.
        why: one sentence: what there is to gain, or why nothing would happen.
        would_run: whether `compact` would do anything now.
        tombstones_gone: tombstones that listings would no longer meet.
        first_page_gain: entries that the worst first page of a listing would no longer pass over.
        token_reads_before: requests for a key that is not staged, before.
        token_reads_after: the same afterwards.
        ranges_written: ranges it would write anew, about.
        bytes_written: their size, about.
    """

    view: CompactionView
    why: str
    would_run: bool
    tombstones_gone: int
    first_page_gain: int
    token_reads_before: int
    token_reads_after: int
    ranges_written: int
    bytes_written: int

    @property
    def bytes_per_tombstone(self) -> float:
        """What it costs to be rid of one tombstone; infinite if there is none."""
        return self.bytes_written / self.tombstones_gone if self.tombstones_gone else float("inf")

    def to_dicts(self) -> list[dict[str, Any]]:
        """One row for each number: what, now, and after the compaction."""
        view = self.view
        some = "" if view.all_seen else " (of the entries looked at)"
        return [
            {"what": f"tombstones{some}", "now": view.tombstones, "after": 0},
            {"what": f"most tombstones in a row{some}", "now": view.longest_run, "after": 0},
            {"what": f"staged values{some}", "now": view.puts, "after": 0},
            {"what": "requests for a key that is not staged", "now": self.token_reads_before,
             "after": self.token_reads_after},
            {"what": "sealed tokens", "now": view.sealed_tokens, "after": 0},
            {"what": "ranges written anew, of all", "now": view.ranges, "after": self.ranges_written},
            {"what": "bytes written anew", "now": 0, "after": self.bytes_written},
        ]

    def __repr__(self) -> str:
        verdict = "would run" if self.would_run else "would do nothing"
        return f"CompactionPlan({self.view.branch!r} {verdict}: {self.why})"

    def __str__(self) -> str:
        return Table.from_dicts(self.to_dicts(), title=repr(self)).to_text()

    def _repr_html_(self) -> str:
        return Table.from_dicts(self.to_dicts(), title=repr(self))._repr_html_()


class PlanPolicy(Protocol):
    """Decides from a plan whether it is worth its cost."""

    def choose(self, plan: CompactionPlan) -> str | None:
        """Why the plan should be carried out, in one sentence; `None` if it should not."""


@attrs.frozen(kw_only=True)
class CostPolicy:
    """Compact where much is gained for little: runs of tombstones, many sealed tokens, or cheap ranges.

    Attributes:
        long_run: so many tombstones in a row are worth any cost.
        many_sealed: so many sealed tokens are worth any cost.
        bytes_per_tombstone: else no more than this may be written for each tombstone that goes.
    """

    long_run: int = 1000
    many_sealed: int = 8
    bytes_per_tombstone: float = 4096.0

    def choose(self, plan: CompactionPlan) -> str | None:
        """See `PlanPolicy.choose`."""
        if not plan.would_run:
            return None
        if plan.first_page_gain >= self.long_run:
            return f"{plan.first_page_gain} tombstones in a row"
        if plan.view.sealed_tokens >= self.many_sealed:
            return f"{plan.view.sealed_tokens} sealed tokens"
        if plan.bytes_per_tombstone <= self.bytes_per_tombstone:
            return f"{plan.bytes_per_tombstone:.0f} bytes for each of {plan.tombstones_gone} tombstones"
        return None


class _Runs:
    """Counts tombstones, and how many follow one another without a live key in between."""

    def __init__(self, base: RecordScan) -> None:
        self.tombstones = 0
        self.longest = 0
        self._base = base
        self._run = 0
        self._last = b""

    def tombstone(self, key: bytes) -> None:
        if self._run:
            self._base.seek(self._last + b"\0")
            following = next(self._base, None)
            if following is not None and following[0] < key:
                self._run = 0
        self.tombstones += 1
        self._run += 1
        self._last = key
        self.longest = max(self.longest, self._run)

    def end(self) -> None:
        self._run = 0


def look(context: StagingContext, branch: str, record: BranchRecord, window_ends_at: float | None) -> CompactionView:
    """See what a compaction would find. Reads at most `options.max_scanned` staged entries, and ranges they touch."""
    committed = context.committed
    base = record.compacted_metarange_id
    if base is None:
        base = context.commits.metarange_of(record.commit_id)
    ranges = committed.ranges_of(base)
    last_keys = [entry.max_key for entry in ranges]
    touched: set[int] = set()
    runs = _Runs(committed.scan(base))
    limit = context.options.max_scanned
    puts = 0
    merged = MergedTokens(context.tokens, record.tokens)
    for key, staged in islice(merged, limit):
        if staged.is_tombstone:
            runs.tombstone(key)
        else:
            runs.end()
            puts += 1
        if ranges:
            touched.add(min(bisect_left(last_keys, key), len(ranges) - 1))
    return CompactionView(
        branch=branch, sealed_tokens=len(record.sealed_tokens), compacted=record.compacted_metarange_id is not None,
        puts=puts, tombstones=runs.tombstones, longest_run=runs.longest, all_seen=puts + runs.tombstones < limit,
        ranges=len(ranges), ranges_touched=len(touched), bytes_touched=sum(ranges[at].size_bytes for at in touched),
        window_ends_at=window_ends_at)


def plan_compaction(view: CompactionView) -> CompactionPlan:
    """The plan for what was seen. Pure."""
    staged = view.puts + view.tombstones
    would_run = bool(staged or view.sealed_tokens) and view.window_ends_at is None
    if view.window_ends_at is not None:
        why = f"another compaction started within the window, which ends at {view.window_ends_at:.3f}"
    elif not would_run:
        why = "nothing is staged"
    else:
        why = (f"{view.tombstones} tombstones, at most {view.longest_run} in a row, and {view.sealed_tokens} sealed "
               f"tokens would go; {view.ranges_touched} of {view.ranges} ranges would be written anew")
    return CompactionPlan(
        view=view, why=why, would_run=would_run, tombstones_gone=view.tombstones, first_page_gain=view.longest_run,
        token_reads_before=1 + view.sealed_tokens, token_reads_after=1, ranges_written=view.ranges_touched,
        bytes_written=view.bytes_touched)
