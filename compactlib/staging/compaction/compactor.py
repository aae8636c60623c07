# SPDX-License-Identifier: Apache-2.0
"""`Compactor`: replaces the tokens of a branch by a metarange that says the same, with two compare-and-sets.

1. *Seal.* The staging token becomes the newest sealed one, a fresh token takes the writes, the start time is noted.
2. *Rewrite.* All sealed tokens are applied to the base: the compacted metarange if there is one, else HEAD's.
3. *Swap.* If HEAD, the compacted metarange and the sealed tokens are still those of step 1, the record names the result
   instead. If the result equals HEAD, it names none.
4. *Reclaim.* The swap has marked the tokens; the cleanup removes them after a grace period.

Readers see the same before and after each step (G3). A write is acknowledged only if the token it went into was still
the staging token afterwards; so whatever is acknowledged was in a sealed token before step 2 began, or went into a
newer one. A crash after step 1 costs one sealed token more, after step 2 a metarange without a reference. The
compaction yields to every other change: a commit, a reset, a move of HEAD or another compaction in between makes it
lose; it costs other writers at most one more try.

Comparing the sealed tokens alone in step 3 is not enough, although the published design asks for no more: a hard reset
may move HEAD and leave them as they were.
"""

from __future__ import annotations

import contextlib

import attrs

from compactlib.contract import CommitFence
from compactlib.errors import CompactlibError, InvalidInput
from compactlib.executors.tasks import LocalExecutor, answers_of, own_error
from compactlib.kv import OutcomeUnknown, PredicateFailed
from compactlib.outcome import Done, Failed
from compactlib.rewrite import Executor, RewriteFailure
from compactlib.runtime.budget import Budget
from compactlib.runtime.observe import Observer
from compactlib.staging.branches import BranchUpdate, FoundBranch
from compactlib.staging.compaction.outcome import CompactionOutcome, CompactionStats, LostRace
from compactlib.staging.compaction.rewrite import CompactedTokens, CompactTokens, OpenStores, RewriteStores
from compactlib.staging.context import StagingContext
from compactlib.staging.errors import BeingCollected, BranchNotFound, MetaRangeNotFound, RangeNotFound
from compactlib.staging.record import MAX_SEALED_TOKENS, BranchRecord
from compactlib.staging.values import Applied, MetaRangeId


class _Lost(Exception):
    """The branch is not what the compaction started from. Never leaves this module."""


class _GivesWay(Exception):
    """To a garbage collection, at once: trying again within milliseconds would meet it again. Never leaves this module.

    Attributes:
        error: what to answer.
    """

    def __init__(self, error: BeingCollected) -> None:
        super().__init__(str(error))
        self.error = error


class Compactor:
    """Compacts branches of one repository, each from the record that it was found with. Holds no state.

    Args:
        context: the repository's stores.
        stores: how the rewrite comes by its stores, for executors that run it in another process.
    """

    def __init__(self, context: StagingContext, stores: RewriteStores | None = None) -> None:
        self._context = context
        self._stores: RewriteStores = OpenStores(context.tokens, context.committed) if stores is None else stores

    def run(self, found: FoundBranch, *, budget: Budget, observer: Observer, executor: Executor | None = None,
            fence: CommitFence | None = None) -> CompactionOutcome:
        """Compact a branch; O(staged entries + ranges they touch). Two writes of the record, one of the register.

        Args:
            found: the branch, as it was found.
            budget: what the rewrite may use up.
            observer: notified of the rewrite.
            executor: who carries the rewrite out; default this thread.
            fence: entered around the swap.

        Returns:
            What happened, with the numbers; `Failed` with the store's or the rewrite's error, after which everything
            reads as before: at most a token was sealed.
        """
        began = self._context.clock.monotonic()
        try:
            sealed = self._seal(found)
        except CompactlibError as error:
            return Failed(error)
        if sealed is None:
            return LostRace("another writer changed the branch before its token was sealed", "seal")
        runs: Executor = LocalExecutor(clock=self._context.clock) if executor is None else executor
        try:
            return self._compact_sealed(found.branch, sealed, runs, budget, observer, fence, began)
        except BranchNotFound:
            return LostRace("the branch was deleted meanwhile", "swap")
        except CompactlibError as error:
            return Failed(error)

    def _seal(self, found: FoundBranch) -> BranchRecord | None:
        """Step 1; the record with what is to be compacted in its sealed tokens. `None`: another writer was faster."""
        context, record = self._context, found.record
        now = context.clock.now()
        if len(record.sealed_tokens) >= MAX_SEALED_TOKENS or context.tokens.is_empty(record.staging_token):
            # No room for one more, which this compaction makes; or nothing in it, so that sealing it would make every
            # writer try again for nothing.
            fresh = None
            wanted = attrs.evolve(record, compaction_started_at=now)
        else:
            fresh = context.tokens.draw()
            wanted = attrs.evolve(record.sealed_with(fresh), compaction_started_at=now)
        try:
            return context.branches.try_update(found, wanted)
        except PredicateFailed:
            return None
        except OutcomeUnknown as error:
            seen = context.branches.seen_after(found.branch, error)
            if seen is not None and seen.record == attrs.evolve(wanted, version=record.version + 1):
                context.events.record_written(found.branch, seen.record)
                return seen.record
            raise

    def _compact_sealed(self, branch: str, sealed: BranchRecord, executor: Executor, budget: Budget, observer: Observer,
                        fence: CommitFence | None, began: float) -> CompactionOutcome:
        context = self._context
        head = context.commits.metarange_of(sealed.commit_id)
        task = CompactTokens(f"compact {context.repository}/{branch}", self._stores, sealed.base(head),
                             sealed.sealed_tokens)
        try:
            applied = _rewritten(task, executor, budget, observer)
            context.committed.check(applied.metarange_id, task.base)
        except (MetaRangeNotFound, RangeNotFound):
            # Collected because the branch no longer names it? Then another writer has won.
            if context.branches.read(branch).record.seals_since(sealed, len(sealed.sealed_tokens)) is None:
                return LostRace("the branch left the base of the compaction meanwhile", "swap")
            raise
        result = None if self._equals_head(applied, head) else applied.metarange_id
        update: BranchUpdate | None = None
        try:
            with contextlib.nullcontext() if fence is None else fence.guard():
                update = self._swap(branch, sealed, result)
        except _GivesWay as gives_way:
            raise gives_way.error from None
        except _Lost:
            return LostRace("a commit, reset, move of HEAD or other compaction changed the branch meanwhile", "swap")
        except CompactlibError as error:
            if update is None:
                raise
            # The fence let the swap happen and refuses now. It stands.
            context.events.compacted(branch, update.after)
            return Failed(error, "partly")
        context.events.compacted(branch, update.after)
        return Done(CompactionStats(
            branch=branch, metarange_id=result, sealed_before=len(sealed.sealed_tokens),
            sealed_after=len(update.after.sealed_tokens), applied=applied,
            seconds=context.clock.monotonic() - began))

    def _equals_head(self, applied: Applied, head: MetaRangeId | None) -> bool:
        if head is not None:
            return applied.metarange_id == head
        try:
            return not self._context.committed.ranges_of(applied.metarange_id)
        except MetaRangeNotFound as error:
            # This one has just made it: a collection has taken it since.
            raise BeingCollected(id=applied.metarange_id) from error

    def _swap(self, branch: str, sealed: BranchRecord, result: MetaRangeId | None) -> BranchUpdate:
        """Step 3."""
        count = len(sealed.sealed_tokens)

        def swapped(record: BranchRecord) -> BranchRecord:
            newer = record.seals_since(sealed, count)
            if newer is None or (newer and self._context.options.on_new_sealed == "abort"):
                raise _Lost
            if result is not None:
                # The record was read after the files were made: they may have been collected before.
                try:
                    self._context.committed.claim(result)
                except (BeingCollected, MetaRangeNotFound) as error:
                    raise _GivesWay(BeingCollected(id=result)) from error
            return attrs.evolve(record.without_sealed(count), compacted_metarange_id=result)

        return self._context.branches.update(branch, swapped, operation="compact")



def _rewritten(task: CompactTokens, executor: Executor, budget: Budget, observer: Observer) -> Applied:
    """Step 2."""
    try:
        [outcome] = answers_of(executor, [task], budget=budget, observer=observer)
    except Exception as error:  # whatever a host's executor raises
        raise own_error(task.name, error) from error
    if isinstance(outcome, RewriteFailure):
        raise outcome.error
    if not isinstance(outcome, CompactedTokens) or (outcome.base, outcome.newest_first) != (
            task.base, task.newest_first):
        raise InvalidInput(f"the executor gave {outcome!r:.200} for a compaction; expected CompactedTokens of its own "
                           f"base and tokens")
    return outcome.applied
