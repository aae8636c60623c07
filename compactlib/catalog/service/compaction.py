# SPDX-License-Identifier: Apache-2.0
"""`CatalogCompaction`: the part of a `CatalogService` that looks at what is needed, plans, cuts and reclaims."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from typing import TYPE_CHECKING

import attrs

from compactlib.catalog.errors import CatalogMoved
from compactlib.catalog.log import keys
from compactlib.catalog.log.log_model import SnapshotSaved
from compactlib.catalog.log.log_sizes import LogMeter, LogSizes
from compactlib.catalog.log.reclaim import CatalogReclaim, reclaim, reclaimed
from compactlib.catalog.log.update_log import UpdateLog
from compactlib.catalog.model.timestamp import HybridClock, Timestamp, to_seconds
from compactlib.catalog.model.values import Assignments, Floor, NodeReport, Topology
from compactlib.catalog.plan.decision import CatalogView
from compactlib.catalog.plan.plan import CatalogPlan, CutReport, chosen, may_cut, plan_of
from compactlib.catalog.plan.policy import CatalogPolicy, CutToBound
from compactlib.catalog.plan.safety import check_target
from compactlib.catalog.sense.pins import Pins
from compactlib.catalog.service.replica import CatalogReplica
from compactlib.errors import BudgetSpent, Closed, CompactlibError, InvalidInput
from compactlib.kv import Condition, OutcomeUnknown
from compactlib.outcome import Done, Failed, Skipped
from compactlib.runtime.budget import Budget, spent_at_once
from compactlib.runtime.observe import Observer, Observers, Progress, telling
from compactlib.runtime.ownership import Ownership, Run
from compactlib.runtime.store_numbers import Moved, StoreLevels, StoreNumbers

if TYPE_CHECKING:
    from compactlib.catalog.service.source import ClusterSource
    from compactlib.contract import CommitFence

_PLANNINGS = 3
"""How often `compact` plans anew by itself, when pins or the term moved between its plan and its cut."""


class CatalogCompaction:
    """See the module. Any thread may call it.

    Args:
        log: what is cut.
        clock: gives the time of views.
        replica: the versions retained, which follow the log.
        policy: how much is cut, unless a call says otherwise.
        observer: is notified.
    """

    def __init__(self, log: UpdateLog, clock: HybridClock, replica: CatalogReplica, *, policy: CatalogPolicy | None,
                 observer: Observer) -> None:
        self.owner: Ownership = Ownership(f"the catalog in partition {log.partition!r}")
        self.pins: Pins = Pins(log, clock)
        self.policy: CatalogPolicy = CutToBound() if policy is None else policy
        self.source: ClusterSource | None = None
        self.failures: int = 0
        self.last_error: CompactlibError | None = None
        self._log = log
        self._clock = clock
        self._observer = observer
        self._replica = replica
        self._meter = LogMeter(log)
        # As of the last view.
        self._sizes: LogSizes | None = None
        self._pinned: Timestamp | None = None

    # --- looking ------------------------------------------------------------------------------------------------

    def view(self, budget: Budget, *, reports: Sequence[NodeReport] | None = None, topology: Topology | None = None,
             assignments: Assignments | None = None, low_watermark: Timestamp | None = None, term: int | None = None,
             conditions: Sequence[Condition] | None = None) -> CatalogView:
        """See `CatalogService.view`."""
        source = self.source
        # Conditions first: whatever changes after this moment stops the cut, whatever changed before is seen here.
        held = [*(() if conditions is None else conditions), self.pins.condition(), *self._of_term(term)]
        if source is not None:
            held += () if conditions is not None else source.conditions()
            topology = source.topology() if topology is None else topology
            reports = tuple(source.reports()) if reports is None else reports
            assignments = source.assignments() if assignments is None else assignments
            low_watermark = source.low_watermark() if low_watermark is None else low_watermark
        self._replica.take_in()
        budget.check()
        history = self._replica.history
        pinned = self.pins.need(history)
        self._sizes = self._meter.measure(budget)
        self._pinned = pinned.time if isinstance(pinned, Floor) else None
        return CatalogView(
            reports=tuple(reports or ()), history=history, now=self._clock.expiry(moves_on=False),
            low_watermark=low_watermark, assignments=assignments or Assignments(), term=term,
            topology=topology or Topology(frozenset()), needs=() if pinned is None else (pinned,),
            conditions=tuple(held), sizes=self._sizes)

    def _of_term(self, term: int | None) -> list[Condition]:
        """Without a term of its own a plan holds as long as no coordinator's has moved."""
        return [] if term is not None else [Condition(self._log.partition, keys.TERM, self._log.term()[1])]

    # --- cutting ------------------------------------------------------------------------------------------------

    def compact(self, plan: CatalogPlan | None, policy: CatalogPolicy | None, budget: Budget | None,
                observer: Observer | None, fence: CommitFence | None) -> Done[CutReport] | Skipped | Failed:
        """See `CatalogService.compact`."""
        began = self._clock.steady.monotonic()
        given = self._observer if observer is None else Observers(self._observer, observer)
        chosen_by = (policy or self.policy).name if plan is None else plan.policy.name
        outcome: Done[CutReport] | Skipped | Failed = _BUSY
        with self._running(budget) as run:
            told = telling(given) if run is None else run.observer(given)
            if run is not None:
                try:
                    outcome = (self._plan_and_carry_out(policy or self.policy, run.budget, told, fence) if plan is None
                               else self._carry_out_given(plan, run.budget, told, fence))
                finally:
                    self._replica.tell_news(told)
            if run is not None or not self.owner.is_mine:
                self._tell_numbers(told, outcome, self._clock.steady.monotonic() - began, chosen_by)
        return outcome

    def _tell_numbers(self, told: Observer, outcome: Done[CutReport] | Skipped | Failed, seconds: float,
                      policy: str) -> None:
        numbers = StoreNumbers("catalog", self._log.partition.decode(errors="backslashreplace"))
        cut = outcome.stats if isinstance(outcome, Done) else None
        # A cut reads nothing: it goes by what is in memory.
        numbers.compacted(told, outcome, seconds, policy=policy, moved=None if cut is None else Moved(
            copied=cut.bytes_written, freed=cut.bytes_freed or 0))
        with suppress(CompactlibError):
            if outcome is not _BUSY:
                numbers.levels(told, self._levels(remeasure=cut is not None))

    def _levels(self, *, remeasure: bool) -> StoreLevels:
        """Dead is what belongs to versions that are not in force any more; nodes and pins may still need it."""
        sizes = self._meter.measure(Budget()) if remeasure or self._sizes is None else self._sizes
        history = self._replica.history
        in_force = history.version_at(self._clock.expiry(moves_on=False))
        below = sum(size for version, size in sizes.records.items() if version < in_force)
        next_one = next((each for each in history if each.version > history.earliest), None)
        return StoreLevels(
            live_bytes=sizes.up_to(history.latest) - below, dead_bytes=below,
            oldest_lease_seconds=None if self._pinned is None else to_seconds(self._pinned),
            oldest_unreclaimed_seconds=None if next_one is None or next_one.version > in_force else to_seconds(
                next_one.activation))

    def _carry_out_given(self, plan: CatalogPlan, budget: Budget, told: Observer,
                         fence: CommitFence | None) -> Done[CutReport] | Skipped | Failed:
        try:
            self._require_own(plan)
        except InvalidInput:
            raise
        except CompactlibError as error:
            return Failed(error)
        return self._carry_out(plan, budget, told, fence)

    def _plan_and_carry_out(self, policy: CatalogPolicy, budget: Budget, told: Observer,
                            fence: CommitFence | None) -> Done[CutReport] | Skipped | Failed:
        for left in reversed(range(_PLANNINGS)):
            try:
                view = self.view(budget)
                is_open = may_cut(view)
            except CompactlibError as error:
                return Failed(error)
            # What a policy raises is the caller's, whatever it is.
            choice = chosen(view, policy) if is_open else None
            try:
                plan = plan_of(view, policy, choice, self._log)
            except CompactlibError as error:
                return Failed(error)
            outcome = self._carry_out(plan, budget, told, fence)
            if not (isinstance(outcome, Failed) and isinstance(outcome.error, CatalogMoved)):
                return outcome
            earliest = self._replica.history.earliest
            if earliest != plan.earliest:
                return Skipped(f"another process has cut history to version {earliest} meanwhile", is_busy=True)
            if not left:
                return outcome
        raise AssertionError

    def _carry_out(self, plan: CatalogPlan, budget: Budget, told: Observer,
                   fence: CommitFence | None) -> Done[CutReport] | Skipped | Failed:
        if plan.target is None:
            refused = self._tidied(budget, told)
            return Failed(refused) if isinstance(refused, BudgetSpent) else Skipped(plan.why)
        watched, left = _Watched(fence), budget.remaining.total_bytes
        try:
            self._check(plan)
            saved = self._log.save_snapshot(
                self._replica.history.catalog(plan.target), term=plan.term, conditions=plan.conditions, fence=watched,
                pace=_Pace(f"cut history to version {plan.target}", plan.bytes_to_copy or 0, budget, told))
            if not isinstance(saved, SnapshotSaved):
                self._replica.take_in()
                raise CatalogMoved(what=f"history begins at version {saved.earliest} by now", target=plan.target)
        except OutcomeUnknown as error:
            return Failed(error, changed="unknown")
        except CompactlibError as error:
            if watched.committed and self._is_cut(plan.target):
                return Failed(error, changed="partly")
            return Failed(spent_at_once(error, f"the snapshot of version {plan.target}", left=left,
                                        needed=plan.bytes_to_copy))
        tidied = self._tidied(budget, told)
        if isinstance(tidied, BudgetSpent):
            return Failed(tidied, changed="partly")
        deleted = saved.deleted + (tidied.keys if isinstance(tidied, CatalogReclaim) else 0)
        freed = None if plan.bytes_freed is None else (
            plan.bytes_freed + (plan.bytes_to_copy or 0) - saved.bytes_written)
        return Done(CutReport(earliest=saved.version, before=plan.earliest, bytes_written=saved.bytes_written,
                              bytes_freed=freed, deleted=deleted))

    def _check(self, plan: CatalogPlan) -> None:
        """Raise unless the plan still holds, by what is known now; `check_target` searches nothing and trusts no
        report.
        """
        self._replica.take_in()
        history, source = self._replica.history, self.source
        target = plan.target or 0
        if history.earliest != plan.earliest:
            raise CatalogMoved(what=f"history begins at version {history.earliest} now, and began at {plan.earliest}",
                               target=target)
        if source is not None and (topology := source.topology()) != plan.topology:
            raise CatalogMoved(what=f"the membership is that of epoch {topology.epoch} with {len(topology.nodes)} "
                                    f"nodes now, and was epoch {plan.topology.epoch} with {len(plan.topology.nodes)}",
                               target=target)
        assignments = plan.assignments if source is None else source.assignments()
        check_target(CatalogView(
            reports=plan.reports, history=history, now=self._clock.expiry(), low_watermark=plan.low_watermark,
            assignments=assignments, topology=plan.topology, term=plan.term), target)

    def _is_cut(self, target: int) -> bool:
        try:
            self._replica.take_in()
        except CompactlibError:
            return True  # it was committed, and what came after that failed
        return self._replica.history.earliest >= target

    def _require_own(self, plan: CatalogPlan) -> None:
        """Raise if the plan was made from another catalog: one whose versions were committed at other times.

        Raises:
            InvalidInput: it was.
        """
        self._replica.take_in()
        history = self._replica.history
        for version, commit in plan.commits:
            known = history.catalog(version).commit if history.has(version) else None
            if version > history.latest or (known is not None and known != commit):
                raise InvalidInput(f"the plan is of another catalog: there, version {version} was committed at "
                                   f"{commit}; here {'there is none' if known is None else f'it was at {known}'}")

    # --- reclaiming ---------------------------------------------------------------------------------------------

    def reclaim(self, budget: Budget | None) -> Done[CatalogReclaim] | Skipped | Failed:
        """See `CatalogService.reclaim`."""
        done = CatalogReclaim(0, 0)
        with self._running(budget) as run:
            if run is None:
                return _BUSY
            try:
                for step in reclaimed(self._log, run.budget):
                    done = CatalogReclaim(done.keys + step.keys, done.bytes_freed + step.bytes_freed)
            except CompactlibError as error:
                failed = Failed(error)
                return Failed(error, "partly") if done.keys and failed.changed == "no" else failed
        return Done(done) if done.keys else Skipped("nothing lies below the earliest version")

    def _tidied(self, budget: Budget, told: Observer) -> CatalogReclaim | CompactlibError:
        """Delete what this cut or an earlier one has left behind; a cut stands although that fails."""
        try:
            done = reclaim(self._log, budget)
            self._replica.take_in()
        except BudgetSpent as error:
            return error
        except CompactlibError as error:
            self.last_error, self.failures = error, self.failures + 1
            told.event("catalog_reclaim_failed", {"version": self._replica.history.earliest, "error": str(error)})
            return error
        return done

    @contextmanager
    def _running(self, budget: Budget | None) -> Iterator[Run | None]:
        with self.owner.begin(budget) as run:
            if run is None and self.owner.is_closed:
                self.require_open()
            yield run

    @contextmanager
    def asking(self, budget: Budget | None) -> Iterator[Budget]:
        """A budget for work that changes nothing, and that closing the service ends.

        Raises:
            Closed: it was closed meanwhile.
        """
        asked = (budget or Budget()).child()
        with self.owner.cancels(asked):
            try:
                yield asked
            except BudgetSpent:
                self.require_open()
                raise

    def require_open(self) -> None:
        """Raise if the service was closed.

        Raises:
            Closed: it was.
        """
        # A call during that wait must not fail as if a budget were spent.
        if self.owner.is_ending or self.owner.is_closed:
            raise Closed("the catalog's service was closed; make a new one over its log")


class _Watched:
    """A fence that knows whether something was committed inside it."""

    def __init__(self, fence: CommitFence | None) -> None:
        self.committed = False
        self._fence = fence

    @contextmanager
    def guard(self) -> Iterator[None]:
        with nullcontext() if self._fence is None else self._fence.guard():
            yield
            self.committed = True


@attrs.define
class _Pace:
    """Asks the budget before bytes are written, and reports progress."""

    work: str
    total: int
    budget: Budget
    told: Observer
    done: int = 0

    def __call__(self, size: int) -> None:
        self.budget.spend(size)
        self.done += size
        self.told.progress(Progress(self.work, min(self.done, self.total), max(self.done, self.total)))


_BUSY = Skipped("a compaction or a reclaim of this catalog is under way in this service; wait for its end",
                is_busy=True)
