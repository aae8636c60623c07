# SPDX-License-Identifier: Apache-2.0
"""Garbage collection of a repository: entries of dropped tokens, forgotten tokens, ranges without a reference."""

from __future__ import annotations

from typing import Any

import attrs

from compactlib.errors import CompactlibError
from compactlib.outcome import Done, Failed, Outcome, Skipped
from compactlib.report import Printed
from compactlib.runtime.budget import Budget
from compactlib.staging.cleanup import CleanupStats, TokenCleaner
from compactlib.staging.context import StagingContext
from compactlib.staging.errors import RangesNotOwned
from compactlib.staging.garbage import collect_garbage
from compactlib.staging.values import Collected


@attrs.frozen(kw_only=True, repr=False)
class StagingReclaimReport(Printed):
    """What a reclaim did.

    Attributes:
        tokens: about the entries of dropped tokens, and the tokens that were found forgotten.
        ranges: about ranges and metaranges; `None` if they were not looked at.
        left: what was left, and why: one sentence each.
    """

    tokens: CleanupStats
    ranges: Collected | None
    left: tuple[str, ...]

    def to_dicts(self) -> list[dict[str, Any]]:
        """One row for each number."""
        numbers = [("tokens", self.tokens), ("ranges", self.ranges)]
        return [{"of": of, "what": name.replace("_", " "), "count": value}
                for of, stats in numbers if stats is not None for name, value in attrs.asdict(stats).items()]

    def _summary(self) -> str:
        ranges = self.ranges or Collected()
        done = (f"{self.tokens.tokens_removed} tokens with {self.tokens.entries_removed} entries, "
                f"{ranges.ranges_deleted} ranges and {ranges.metaranges_deleted} metaranges of {ranges.bytes_freed} "
                f"bytes")
        return "; ".join((done, *self.left))


def reclaim(context: StagingContext, budget: Budget) -> Outcome[StagingReclaimReport]:
    """See `Repository.reclaim`."""
    cleaner = TokenCleaner(context)
    tokens, ranges = CleanupStats(), None
    left: list[str] = []
    for step in (cleaner.sweep, cleaner.run):
        match step(budget=budget):
            case Done(stats):
                tokens = tokens.plus(stats)
            case Skipped(reason):
                left.append(reason)
            case Failed(error, changed):
                return Failed(error, "partly" if changed == "no" and tokens.changes else changed)
    if not context.options.owns_ranges:
        left.append("ranges are not collected, as owns_ranges=False; set it if no other repository uses the object "
                    "store or prefix")
    else:
        try:
            context.owner.require()
            outcome = collect_garbage(context, budget=budget, require_owner=context.owner.require)
        except CompactlibError as error:
            # Nothing was begun.
            outcome = Failed(error, "partly" if tokens.changes else "no")
        match outcome:
            case Done(collected):
                ranges = collected
            case Skipped(reason):
                left.append(reason)
            case Failed(RangesNotOwned() as refusal):
                context.observer.event("staging_ranges_not_owned", {
                    "repository": context.repository, "owner": refusal.owner, "own": refusal.own})
                left.append(str(refusal))
            case Failed() as failed:
                return failed
    if ranges is None and not (tokens.changes or tokens.refused):
        return Skipped("; ".join(left))
    return Done(StagingReclaimReport(tokens=tokens, ranges=ranges, left=tuple(left)))

