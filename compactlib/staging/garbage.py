# SPDX-License-Identifier: Apache-2.0
"""Which ranges and metaranges are garbage: what no commit of a branch and no compaction in force needs.

What is live is decided here, by the branch records; finding and deleting the files is `CommittedRanges.collect`'s.
Compactions that were superseded, lost their race or died leave files behind, and so do deleted branches.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable

from compactlib.errors import CompactlibError, InvalidInput
from compactlib.outcome import Done, Failed, Outcome, Skipped
from compactlib.runtime.budget import Budget
from compactlib.runtime.store_numbers import Moved, StoreLevels, StoreNumbers
from compactlib.staging.context import StagingContext
from compactlib.staging.names import CommitId
from compactlib.staging.values import Collected, LiveMetaRanges, MetaRangeId


def live_metaranges(context: StagingContext, *, fenced: bool = False) -> LiveMetaRanges:
    """Every metarange that a branch needs: that of its HEAD and its compacted one; and those of HEAD's ancestors.

    Reads all branch records, and the commits that are not in memory: see `CommitStore.reachable`.

    Args:
        context: the stores.
        fenced: write each branch record anew, so that no writer who read it before can still bring in a metarange that
            is not among these: a commit that stood still for longer than any grace period.
    """
    needed: set[MetaRangeId] = set()
    heads: set[CommitId] = set()
    listed = context.branches.list()
    for found in context.branches.fence(listed) if fenced else listed:
        if found.record.compacted_metarange_id is not None:
            needed.add(found.record.compacted_metarange_id)
        if found.record.commit_id is not None:
            heads.add(found.record.commit_id)
    history: set[MetaRangeId] = set()
    for commit_id, commit in context.commits.reachable(heads):
        (needed if commit_id in heads else history).add(commit.metarange_id)
    return LiveMetaRanges(needed=frozenset(needed), history=frozenset(history - needed))


def collect_garbage(context: StagingContext, *, grace_seconds: float | None = None, budget: Budget | None = None,
                    require_owner: Callable[[], object] = lambda: None) -> Outcome[Collected]:
    """Delete the range and metarange files that no branch needs and that are older than the grace period.

    If there are any, each branch record is written anew once, as it is: a commit or compaction that stood still before
    its last write, for however long, then has to look again at what it has made.

    The object store (or the prefix in it) must belong to this repository alone. May be run twice, at once, and may end
    at any step.

    Args:
        context: the stores.
        grace_seconds: how old a file is before it may be deleted; default `range_grace_seconds` of the options.
        budget: asked before each metarange is read, and before every 1,000 files are deleted.
        require_owner: called before every 1,000 files are deleted; raises if they are another's by now.

    Returns:
        `Failed` with the store's or the budget's error; what was deleted before it stays deleted, and was garbage.

    Raises:
        InvalidInput: `grace_seconds` is negative.
    """
    grace_seconds = context.options.range_grace_seconds if grace_seconds is None else grace_seconds
    if not grace_seconds >= 0:
        raise InvalidInput(f"a grace of {grace_seconds} seconds; give 0 or more")
    try:
        # The second look is the one that deletes.
        looks = itertools.count()
        collected = context.committed.collect(lambda: live_metaranges(context, fenced=next(looks) > 0),
                                              grace_seconds=grace_seconds, budget=budget, require_owner=require_owner)
    except CompactlibError as error:
        # At least the trace of the collection may be there.
        return Failed(error, "partly")
    labels = {"repository": context.repository}
    context.observer.count("staging_ranges_collected", collected.ranges_deleted, labels)
    context.observer.count("staging_metaranges_collected", collected.metaranges_deleted, labels)
    _tell_levels(context, collected)
    context.observer.event("staging_garbage", {**labels, "live": collected.live, "young": collected.young,
                                                "gone": collected.gone})
    if collected.ranges_deleted or collected.metaranges_deleted:
        return Done(collected)
    return Skipped(f"{collected.young} unneeded files wait until they are older than "
                   f"{grace_seconds} seconds, or are another collection's")


def _tell_levels(context: StagingContext, collected: Collected) -> None:
    """Live and dead are files of ranges and metaranges, as the collection has found them."""
    numbers = StoreNumbers("staging", context.repository)
    numbers.moved(context.observer, Moved(freed=collected.bytes_freed))
    # A store that refuses to be looked at now takes nothing back of what was done.
    with contextlib.suppress(CompactlibError):
        room = context.committed.available_bytes()
        numbers.levels(context.observer, StoreLevels(
            live_bytes=collected.live_bytes, dead_bytes=collected.young_bytes, free_bytes=room,
            capacity_bytes=None if room is None else collected.live_bytes + collected.young_bytes + room,
            oldest_unreclaimed_seconds=min((mark.at for mark in context.tokens.dropped()), default=None)))
