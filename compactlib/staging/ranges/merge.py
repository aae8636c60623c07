# SPDX-License-Identifier: Apache-2.0
"""The three-way merge of metaranges: applies the changes from the base to the source to the destination.

Branches that merged each other have several newest common ancestors. Then the base is the merge of these ancestors over
their own base (`CrossedBase`). It is computed for the keys in which the source differs from one of the ancestors: where
the source equals all of them, it equals their merge. A key that the ancestors changed in different ways has no state in
the base. Unless source and destination agree about it, it is a conflict.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from itertools import groupby
from typing import Final, TypeAlias

import attrs

from compactlib._arguments import require_one_of
from compactlib.budget import Budget
from compactlib.staging.errors import MergeConflict
from compactlib.staging.ranges.apply import Apply, batches_of
from compactlib.staging.ranges.cursor import RangeLookup, diff
from compactlib.staging.ranges.files import RangeFiles
from compactlib.staging.ranges.metarange import MetaRange
from compactlib.staging.values import Applied, Change, Difference, MergeStrategy, MetaRangeId, Record, are_same

MAX_CONFLICTS: Final = 100
"""The most keys in a `MergeConflict`."""


@attrs.frozen
class CrossedBase:
    """The merge of two common ancestors, of which neither descends from the other, over their own merge base.

    `one` may itself be the merge of several.
    """

    one: MergeBase
    other: MetaRangeId | None
    base: MergeBase

    def ancestors(self) -> list[MetaRangeId | None]:
        """Return the metaranges of the common ancestors."""
        return [*(self.one.ancestors() if isinstance(self.one, CrossedBase) else [self.one]), self.other]

    def metaranges(self) -> set[MetaRangeId]:
        """Return all metaranges that a read of the base needs."""
        return metaranges_of(self.one) | metaranges_of(self.other) | metaranges_of(self.base)


MergeBase: TypeAlias = MetaRangeId | CrossedBase | None
"""The common records of the two sides of a merge."""

_States: TypeAlias = tuple[Record | None, ...]
"""The state of a key in a base, as a tuple; empty if its ancestors disagree."""


def metaranges_of(base: MergeBase) -> set[MetaRangeId]:
    """Return all metaranges that a read of a base needs."""
    if isinstance(base, CrossedBase):
        return base.metaranges()
    return set() if base is None else {base}


def merge_metaranges(files: RangeFiles, base: MergeBase, source: MetaRangeId | None, destination: MetaRangeId | None,
                     strategy: MergeStrategy, budget: Budget) -> Applied:
    """Merge; see `CommittedRanges.merge`. Opens the ranges in which base and source differ, and the destination's."""
    require_one_of("the strategy", strategy, MergeStrategy)

    new, present = files.read_metarange(source), files.read_metarange(destination)
    changes = _merged_changes(_differences(files, base, new), RangeLookup(files, present), strategy)
    return Apply(files, present, batches_of(changes), budget, elsewhere=new.entries).run(destination)


def _differences(files: RangeFiles, base: MergeBase, source: MetaRange,
                 ) -> Iterator[tuple[bytes, _States, Record | None]]:
    """Yield each key in which the source may differ from the base, its states in the base, and the source's."""
    def lookup(base: MergeBase) -> Callable[[bytes], _States]:
        if isinstance(base, CrossedBase):
            one, other, before = lookup(base.one), lookup(base.other), lookup(base.base)
            return lambda key: _merged_states(one(key), other(key), before(key))
        ranges = RangeLookup(files, files.read_metarange(base))
        return lambda key: (ranges.get(key),)

    if not isinstance(base, CrossedBase):
        for difference in diff(files, files.read_metarange(base), source):
            yield difference.key, (difference.left,), difference.right
        return
    states = lookup(base)
    found = heapq.merge(*(diff(files, files.read_metarange(each), source) for each in base.ancestors()), key=_key_of)
    for key, differences in groupby(found, _key_of):
        yield key, states(key), next(differences).right


def _key_of(difference: Difference) -> bytes:
    return difference.key


def _merged_states(one: _States, other: _States, before: _States) -> _States:
    if _agree(one, other) or _agree(other, before):
        return one
    return other if _agree(one, before) else ()


def _agree(one: _States, other: _States) -> bool:
    return bool(one and other) and are_same(one[0], other[0])


def _merged_changes(differences: Iterator[tuple[bytes, _States, Record | None]], destination: RangeLookup,
                    strategy: MergeStrategy) -> Iterator[tuple[bytes, Change]]:
    conflicts: list[bytes] = []
    for key, before, theirs in differences:
        ours = destination.get(key)
        if are_same(ours, theirs) or _agree(before, (theirs,)):
            continue
        if _agree(before, (ours,)) or strategy == "source_wins":
            # After a conflict nothing is published.
            if not conflicts:
                yield key, theirs
        elif strategy == "fail":
            conflicts.append(key)
            if len(conflicts) == MAX_CONFLICTS:
                break
    if conflicts:
        raise MergeConflict(keys=tuple(conflicts))
