# SPDX-License-Identifier: Apache-2.0
"""The three-way merge of metaranges: what the source changed is made to the destination."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from compactlib._arguments import require_one_of
from compactlib.budget import Budget
from compactlib.staging.errors import MergeConflict
from compactlib.staging.ranges.apply import Apply
from compactlib.staging.ranges.cursor import RangeLookup
from compactlib.staging.ranges.diff import RangeDiff
from compactlib.staging.ranges.files import RangeFiles
from compactlib.staging.ranges.metarange import MetaRange
from compactlib.staging.ranges.split import SplitRule
from compactlib.staging.values import Applied, Change, Difference, MergeStrategy, MetaRangeId, are_same

if TYPE_CHECKING:
    from concurrent.futures import Executor

MAX_CONFLICTS: Final = 100
"""How many keys a `MergeConflict` names."""


def merge_metaranges(files: RangeFiles, rule: SplitRule, base: MetaRange, source: MetaRange,
                     destination: MetaRange, destination_id: MetaRangeId | None, strategy: MergeStrategy,
                     budget: Budget, background: Executor | None = None) -> Applied:
    """See `CommittedRanges.merge`. Opens the ranges in which base and source differ, and the destination's there."""
    require_one_of("the strategy", strategy, MergeStrategy)
    differences = RangeDiff(files, base, source, b"")
    changes = _merged_changes(differences, RangeLookup(files, destination), strategy)
    return Apply(files, rule, destination, changes, budget, elsewhere=source.entries,
                 background=background).run(destination_id)


def _merged_changes(differences: Iterator[Difference], destination: RangeLookup,
                    strategy: MergeStrategy) -> Iterator[tuple[bytes, Change]]:
    conflicts: list[bytes] = []
    for difference in differences:
        key = difference.key
        there = destination.get(key)
        if are_same(there, difference.right):
            continue
        if are_same(there, difference.left) or strategy == "source_wins":
            # After a conflict nothing will be published any more.
            if not conflicts:
                yield key, difference.right
        elif strategy == "fail":
            conflicts.append(key)
            if len(conflicts) == MAX_CONFLICTS:
                break
    if conflicts:
        many = "at least " * (len(conflicts) == MAX_CONFLICTS)
        raise MergeConflict(f"{many}{len(conflicts)} keys were changed differently on both sides, first "
                            f"{conflicts[0][:100]!r}; choose a strategy, or mend one side; nothing was merged",
                            keys=tuple(conflicts))
