"""`Compactor`: replaces the tokens of a branch by a metarange that says the same, with two compare-and-sets.

1. *Seal.* The staging token becomes the newest sealed one, a fresh token takes the writes, the start time is noted.
2. *Rewrite.* All sealed tokens are applied to the base: the compacted metarange if there is one, else HEAD's.
3. *Swap.* If HEAD, the compacted metarange and the sealed tokens are still those of step 1, the record names the result
   instead. If the result equals HEAD, it names none.
4. *Reclaim.* The tokens are marked; the cleanup removes them after a grace period.

Readers see the same before and after each step (G3). A write is acknowledged only if the token it went into was still
the staging token afterwards; so whatever is acknowledged was in a sealed token before step 2 began, or went into a
newer one. A crash after step 1 costs one sealed token more, after step 2 a metarange nobody names, after step 3 tokens
that the sweep finds. The compaction gives way to everybody: a commit, a reset, a move of HEAD or another compaction in
between makes it lose; it makes nobody else do more than try once more.

Comparing the sealed tokens alone in step 3 is not enough, although the seed asks for no more: a hard reset may move
HEAD and leave them as they were (`notes/staging.md` 1.14 [R], check 13).
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import attrs

from compactlib.budget import Budget
from compactlib.errors import CompactlibError, InvalidInput
from compactlib.kv import OutcomeUnknown, PredicateFailed
from compactlib.observe import Observer, telling
from compactlib.outcome import Done, Failed
from compactlib.rewrite import Executor, LocalExecutor, RewriteResult
from compactlib.staging.branch_store import BranchUpdate, FoundBranch
from compactlib.staging.compaction_outcome import (
    CompactionOutcome,
    CompactionStats,
    LostRace,
    NothingToDo,
    Throttled,
)
from compactlib.staging.compaction_task import CompactedTokens, CompactTokens, OpenStores, RewriteStores
from compactlib.staging.context import StagingContext
from compactlib.staging.errors import BeingCollected, BranchNotFound, MetaRangeNotFound, RangeNotFound
from compactlib.staging.metrics import report_compaction
from compactlib.staging.model import Applied, MetaRangeId
from compactlib.staging.names import branch_key
from compactlib.staging.plan import CompactionPlan, look, plan_compaction
from compactlib.staging.record import MAX_SEALED_TOKENS, BranchRecord
from compactlib.staging.sensor import CompactionSensor

OnNewSealed: TypeAlias = Literal["abort", "keep"]
"""What a compaction does about tokens that were sealed while it ran: give up, or leave them in front of its result."""

DEFAULT_WINDOW_SECONDS = 300.0
"""At most one compaction per branch starts within this time."""


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
    """Compacts branches of one repository. Threads and processes may run any number of them at once.

    Args:
        context: the repository's stores.
        executor: runs the rewrite.
        stores: how the rewrite comes by its stores; for executors that run it in another process.
        window_seconds: at most one compaction per branch starts within it; 0: no limit. A start time that lies further
            in the future than this is a clock gone wrong, and is ignored.
        on_new_sealed: `"abort"`: give way to whoever sealed a token meanwhile, most likely a commit, which does what a
            compaction does. `"keep"`: leave the new tokens in front of the result.
        sensor: is told of what was compacted.

    Raises:
        InvalidInput: `window_seconds` is negative, or `on_new_sealed` is something else.
    """

    def __init__(self, context: StagingContext, *, executor: Executor | None = None,
                 stores: RewriteStores | None = None, window_seconds: float = DEFAULT_WINDOW_SECONDS,
                 on_new_sealed: OnNewSealed = "abort", sensor: CompactionSensor | None = None) -> None:
        if not window_seconds >= 0:
            raise InvalidInput(f"window_seconds is {window_seconds}; give 0 or more")
        if on_new_sealed not in ("abort", "keep"):
            raise InvalidInput(f"on_new_sealed is {on_new_sealed!r}; give 'abort' or 'keep'")
        self._context = context
        self._executor: Executor = LocalExecutor(clock=context.clock) if executor is None else executor
        self._stores: RewriteStores = OpenStores(context.tokens, context.committed) if stores is None else stores
        self._window_seconds = window_seconds
        self._on_new_sealed = on_new_sealed
        self._sensor = sensor

    @property
    def repository(self) -> str:
        """Whose branches it compacts."""
        return self._context.repository

    @property
    def observer(self) -> Observer:
        """Who is told of its compactions, unless another one is given."""
        return self._context.observer

    def compact(self, branch: str, *, force: bool = False, budget: Budget | None = None,
                observer: Observer | None = None) -> CompactionOutcome:
        """Compact a branch; O(staged entries + ranges they touch). Two writes of the record, one of the register.

        Args:
            branch: which branch.
            force: whatever the window says.
            budget: what the rewrite may use up.
            observer: is told of this one instead of the repository's.

        Returns:
            What happened, with the numbers; `Failed` with the store's or the rewrite's error, after which everything
            reads as before.

        Raises:
            BranchNotFound: there is no such branch.
            InvalidInput: it is no name of a branch.
        """
        branch_key(branch)
        told = self._context.observer if observer is None else telling(observer)
        clock = self._context.clock
        began = clock.monotonic()
        try:
            found = self._context.branches.read(branch)
            refusal = self._refusal(found, force=force)
            outcome = self._run(found, budget, began, told) if refusal is None else refusal
        except BranchNotFound:
            raise
        except CompactlibError as error:
            outcome = Failed(error)
        report_compaction(told, self.repository, branch, outcome, clock.monotonic() - began)
        return outcome

    def plan(self, branch: str) -> CompactionPlan:
        """What a compaction would do and gain. Reads the staged entries up to `max_scanned`; writes nothing.

        Raises:
            BranchNotFound: there is no such branch.
        """
        found = self._context.branches.read(branch)
        return plan_compaction(look(self._context, branch, found.record, self._window_end(found.record)))

    def survey(self) -> int:
        """Tell the sensor what is staged on each branch, as a process should when it starts; gives how many branches.

        A plan for each branch: reads its staged entries, up to `max_scanned`.

        Raises:
            InvalidInput: the compactor was made without a sensor.
        """
        if self._sensor is None:
            raise InvalidInput("this compactor has no sensor to tell; give it one")
        count = 0
        for found in self._context.branches.list():
            count += 1
            seen = look(self._context, found.branch, found.record, None)
            self._sensor.seed(self.repository, found.branch, found.record, tombstones=seen.tombstones)
        return count

    def _run(self, found: FoundBranch, budget: Budget | None, began: float, told: Observer) -> CompactionOutcome:
        sealed = self._seal(found)
        if sealed is None:
            return LostRace("somebody else changed the branch before its token was sealed", "seal")
        try:
            return self._compact_sealed(found.branch, sealed, budget, began, told)
        except BranchNotFound:
            return LostRace("the branch was deleted meanwhile", "swap")

    def _refusal(self, found: FoundBranch, *, force: bool) -> CompactionOutcome | None:
        record = found.record
        window_end = None if force else self._window_end(record)
        if window_end is not None:
            assert record.compaction_started_at is not None, "a window has a beginning"
            return Throttled(f"a compaction started at {record.compaction_started_at:.3f}; the next one may start at "
                             f"{window_end:.3f}", record.compaction_started_at, window_end)
        if not record.sealed_tokens and self._context.tokens.is_empty(record.staging_token):
            return NothingToDo("nothing is staged")
        return None

    def _window_end(self, record: BranchRecord) -> float | None:
        """When the next compaction may start, if that is not now."""
        started, now, window = record.compaction_started_at, self._context.clock.now(), self._window_seconds
        if started is None or not started - window <= now < started + window:
            return None
        return started + window

    def _seal(self, found: FoundBranch) -> BranchRecord | None:
        """Step 1; the record with what is to be compacted in its sealed tokens. `None`: somebody else was faster."""
        context, record = self._context, found.record
        now = context.clock.now()
        if len(record.sealed_tokens) >= MAX_SEALED_TOKENS or context.tokens.is_empty(record.staging_token):
            # No room for one more, which this compaction makes; or nothing in it, so that sealing it would make every
            # writer try again for nothing.
            fresh = None
            wanted = attrs.evolve(record, compaction_started_at=now)
        else:
            fresh = context.tokens.issue(found.branch)
            wanted = attrs.evolve(record.sealed_with(fresh), compaction_started_at=now)
        try:
            return context.branches.try_update(found, wanted)
        except PredicateFailed:
            if fresh is not None:
                # It was named by nobody, and never will be.
                context.tokens.forget(fresh)
            return None
        except OutcomeUnknown as error:
            seen = context.branches.seen_after(found.branch, error)
            if seen is not None and seen.record == attrs.evolve(wanted, version=record.version + 1):
                return seen.record
            raise

    def _compact_sealed(self, branch: str, sealed: BranchRecord, budget: Budget | None, began: float,
                        told: Observer) -> CompactionOutcome:
        head = self._context.commits.metarange_of(sealed.commit_id)
        base = head if sealed.compacted_metarange_id is None else sealed.compacted_metarange_id
        try:
            applied = self._rewrite(branch, sealed, base, budget, told)
        except (MetaRangeNotFound, RangeNotFound):
            # Collected because the branch has let go of it? Then somebody else has won.
            if self._context.branches.read(branch).record.seals_since(sealed, len(sealed.sealed_tokens)) is None:
                return LostRace("the branch left the base of the compaction meanwhile", "swap")
            raise
        result = None if self._equals_head(applied, head) else applied.metarange_id
        try:
            update = self._swap(branch, sealed, result)
        except _GivesWay as gives_way:
            raise gives_way.error from None
        except _Lost:
            return LostRace("a commit, reset, move of HEAD or other compaction changed the branch meanwhile", "swap")
        self._context.drop_tokens(branch, update.before, update.after)
        if self._sensor is not None:
            self._sensor.compacted(self.repository, branch, update.after)
        return Done(CompactionStats(
            branch=branch, metarange_id=result, sealed_before=len(sealed.sealed_tokens),
            sealed_after=len(update.after.sealed_tokens), applied=applied,
            seconds=self._context.clock.monotonic() - began))

    def _rewrite(self, branch: str, sealed: BranchRecord, base: MetaRangeId | None, budget: Budget | None,
                 told: Observer) -> Applied:
        """Step 2."""
        task = CompactTokens(f"compact {self.repository}/{branch}", self._stores, base, sealed.sealed_tokens)
        for outcome in self._executor.run([task], budget=budget, observer=told):
            if isinstance(outcome, CompactedTokens):
                return outcome.applied
            if isinstance(outcome, RewriteResult):
                raise InvalidInput(f"the executor gave {outcome!r} for a compaction; expected CompactedTokens")
            raise outcome.error
        raise InvalidInput(f"the executor {self._executor!r} gave no outcome for its task")

    def _equals_head(self, applied: Applied, head: MetaRangeId | None) -> bool:
        if applied.metarange_id == head:
            return True
        return head is None and not self._context.committed.ranges_of(applied.metarange_id)

    def _swap(self, branch: str, sealed: BranchRecord, result: MetaRangeId | None) -> BranchUpdate:
        """Step 3."""
        count = len(sealed.sealed_tokens)

        def swapped(record: BranchRecord) -> BranchRecord:
            newer = record.seals_since(sealed, count)
            if newer is None or (newer and self._on_new_sealed == "abort"):
                raise _Lost
            if result is not None:
                # The record was read after the files were made: they may have been collected before.
                try:
                    self._context.committed.claim(result)
                except BeingCollected as error:
                    raise _GivesWay(error) from error
            return attrs.evolve(record.without_sealed(count), compacted_metarange_id=result)

        return self._context.branches.update(branch, swapped, operation="compact")
