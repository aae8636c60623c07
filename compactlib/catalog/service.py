# SPDX-License-Identifier: Apache-2.0
"""`CatalogService`: one node's catalog. Executes commands, follows the log, answers by version and time, cuts the log.

It is the edge where log, history and clock meet. No thread runs inside: `poll` reads what others wrote, and a host
calls it from a thread, a timer or a notification of its own (`CatalogNode` has such a thread).

A compaction has the five steps: `view` senses what is needed, `plan` decides, `UpdateLog.cut` rewrites the versions
below as a snapshot and commits it in one conditional step, `reclaim` deletes what that left behind.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING

import attrs

from compactlib._closing import Closing
from compactlib.budget import Budget
from compactlib.catalog.check import reclaim, verify_log
from compactlib.catalog.commands import Command, PlannedUpdate, plan_update
from compactlib.catalog.decision import CatalogView, limits_of
from compactlib.catalog.errors import CatalogMoved, ClockSkewExceeded, CommandRefused, NotReady, UnsafeCompaction
from compactlib.catalog.history import RetainedVersions
from compactlib.catalog.needs.pins import Pins, PinState
from compactlib.catalog.plan import CatalogPlan, CatalogPolicy, CutReport, CutToBound, plan_of
from compactlib.catalog.replica import CatalogReplica, Listener
from compactlib.catalog.schema import UPDATES, Catalog, Update
from compactlib.catalog.timestamp import (
    HybridClock,
    Moment,
    Timestamp,
    add_ms,
    ensured_activation,
    milliseconds,
)
from compactlib.catalog.update_log import LogState, UpdateLog
from compactlib.catalog.values import Assignments, NodeReport, Topology
from compactlib.errors import BudgetSpent, Busy, CompactionFailed, CompactlibError, InvalidInput
from compactlib.guard import Guard, Run
from compactlib.kv import Condition
from compactlib.observer import Observer, Observers
from compactlib.report import Printed, VerifyReport
from compactlib.store_numbers import notify_compaction

if TYPE_CHECKING:
    from compactlib.contract import CommitFence
    from compactlib.rewrite import Executor

MAX_ATTEMPTS = 10
"""How often a batch of commands is tried while other writers are first."""
_PLANNINGS = 3
"""How often `compact` plans anew by itself, when pins or the term moved between its plan and its cut."""
_FAR_AHEAD_MS = 60_000
"""How far beyond the skew a version may be ahead of the clock, for a caller to wait for the next one."""


@attrs.frozen(kw_only=True)
class Executed:
    """What a batch of commands came to.

    Attributes:
        version: the version it made, or the latest one if it changed nothing.
        applied: one flag per command.
        activation: from when on the version is in force.
        ensured: from when on every node agrees that it is.
        attempts: how often the log was tried; 0 if nothing changed.
    """

    version: int
    applied: tuple[bool, ...]
    activation: Timestamp
    ensured: Timestamp
    attempts: int


@attrs.frozen
class Basis:
    """What must not have changed when history is cut, as it was before anybody was asked what is needed.

    Attributes:
        pins: all pins.
        log: the marks of the log, the coordinators' term among them.
    """

    pins: PinState
    log: LogState


@attrs.frozen(kw_only=True, repr=False)
class CatalogStatus(Printed):
    """A catalog in numbers.

    Attributes:
        is_busy: whether a compaction or a reclaim is under way in this service.
        last_error: what reclaiming met last, or else what a listener raised last, as `Kind: message`; empty if nothing.
            The next compaction tries to reclaim again.
        failures: how often that was.
        earliest: the earliest version retained.
        latest: the latest one.
        versions: how many are retained.
    """

    is_busy: bool
    last_error: str
    failures: int
    earliest: int
    latest: int
    versions: int

    def _summary(self) -> str:
        return (f"versions {self.earliest} to {self.latest}{', busy' if self.is_busy else ''}"
                + (f"; {self.failures} failures, the last: {self.last_error}" if self.failures else ""))


@attrs.frozen
class CatalogReclaim:
    """What a reclaim deleted.

    Attributes:
        keys: how many keys.
        bytes_freed: of keys and records.
        why: of a report that is empty or partial, why.
        is_partial: whether something is left.
    """

    keys: int
    bytes_freed: int
    why: str = ""
    is_partial: bool = False

    @property
    def is_empty(self) -> bool:
        """Whether there was nothing to delete."""
        return not self.keys and not self.is_partial


class CatalogService(Closing):
    """One node's copy of the catalog, over an update log. Any thread may call any method.

    Args:
        log: where versions are kept.
        clock: gives commit times; its skew is the cluster's limit.
        delay_seconds: how long after its commit a version becomes active: the time in which every node must read it.
        policy: how much of the unneeded history is cut; default `CutToBound`.
        observer: notified of versions (`catalog_version`) and cuts (`catalog_compacted`), and of a log whose latest
            version was committed ahead of the clock by more than the skew (`catalog_clock_ahead`).

    Attributes:
        log, clock: as given.
        pins: hold versions of this catalog; every view takes them into account.

    Raises:
        InvalidInput: the delay is negative.
        RecordMissing, CorruptData, Unsupported: the log cannot be recovered.
    """

    def __init__(self, log: UpdateLog, clock: HybridClock, *, delay_seconds: float = 0.5,
                 policy: CatalogPolicy | None = None, observer: Observer | None = None) -> None:
        self.log: UpdateLog = log
        self.clock: HybridClock = clock
        self.pins: Pins = Pins(log, clock)
        self._delay_ms = milliseconds(delay_seconds, name="delay_seconds")
        self._policy: CatalogPolicy = CutToBound() if policy is None else policy
        self._observer = Observers(observer)
        self._guard = Guard(f"the catalog in partition {log.partition!r}")
        self._writing = threading.Lock()
        self._failures = 0
        self._last_error: CompactlibError | None = None
        log.prepare()
        self._replica = CatalogReplica(log)
        latest = self.history.catalog(self.history.latest)
        if latest.version and clock.ahead_ms(latest.commit) > clock.max_skew_ms:
            self._observer.event("catalog_clock_ahead", version=latest.version,
                                 ahead_seconds=clock.ahead_ms(latest.commit) / 1000)

    # -- reading

    @property
    def history(self) -> RetainedVersions:
        """The retained versions, immutable."""
        return self._replica.history

    def catalog(self, version: int) -> Catalog:
        """Return the catalog of exactly this version.

        Raises:
            CatalogVersionNotFound: it is not retained, or does not exist yet.
        """
        return self.history.catalog(version)

    def at(self, time: Timestamp) -> Catalog:
        """Return the catalog in force at `time`.

        Raises:
            TimeBeforeHistory: `time` is below the earliest retained activation.
        """
        return self.history.at(time)

    def active(self) -> Catalog:
        """Return the catalog in force now."""
        return self.at(self.clock.present())

    def listen(self, listener: Listener) -> None:
        """Call `listener` with each version from the next one on."""
        self._replica.listen(listener)

    def poll(self) -> int:
        """Take in what the log holds and this node does not know yet; returns how many versions. One request if none.

        Called by a listener it does nothing: the version at hand comes first.

        Raises:
            RecordMissing, CorruptData, Unsupported: the log is broken; what is known stays as it was.
            Closed: the service was closed.
        """
        with self._reporting():
            return self._replica.take_in()

    def wait_ready(self, version: int, wait_seconds: float) -> Catalog:
        """Return the catalog of a version, once it is registered here and every listener was called with it.

        It may be active only later: see `Executed.ensured`. Some thread must `poll` meanwhile.

        Raises:
            NotReady: it was not in time.
            CatalogVersionNotFound: history has moved past it.
            Closed: the service was closed.
        """
        self._replica.wait(version, wait_seconds, self.clock.clock, lambda: not self._guard.is_open)
        if self.history.latest < version:
            self._guard.require_open()
            raise NotReady(f"catalog version {version} was not ready in {wait_seconds:g} seconds; "
                           f"{self.history.latest} is the latest that is")
        return self.catalog(version)

    @contextmanager
    def _reporting(self) -> Iterator[None]:
        """Keep the service open for a block, and notify the observer of what it brought."""
        try:
            with self._guard.use():
                self._guard.require_open()
                yield
        finally:
            for name, fields in self._replica.news():
                self._observer.event(name, **fields)

    # -- changing

    def execute(self, commands: Sequence[Command], *, delay_seconds: float | None = None,
                wait: bool = True) -> Executed:
        """Carry out a batch as one version, or none of it; a batch that changes nothing makes no version.

        Returns once the version is ready here and in force on every node; without `wait`, once it is ready here.
        Three requests, and more where another writer is first.

        Args:
            commands: checked in order, each against what those before it leave.
            delay_seconds: instead of the service's own; 0 for a version in force at once.
            wait: whether to sleep until every node agrees that the version is in force.

        Raises:
            CommandRefused: a command does not fit; raised after the version that it was checked against is in force.
            Busy: other writers were first `MAX_ATTEMPTS` times, or a listener calls; nothing was changed.
            OutcomeUnknown: the store did not say whether it took the version, and it could not be seen.
            ClockSkewExceeded: the log's latest version was committed so far ahead of this clock that no caller should
                wait for the next one; nothing was changed. Without `wait` it is made all the same.
            InvalidInput: the delay is negative, there are too many commands, or a value cannot be stored.
            Closed: the service was closed.
        """
        if self._replica.is_calling:
            raise Busy("a listener cannot execute commands: the version that it was given counts as ready only when "
                       "it has returned; execute them in another thread, and do not wait for that one")
        delay_ms = self._delay_ms if delay_seconds is None else milliseconds(delay_seconds, name="delay_seconds")
        with self._reporting(), self._writing:
            drawn, catalog, planned, attempts = self._write(tuple(commands), delay_ms, wait)
        # No call waits for a time while it keeps others from writing.
        ensured = ensured_activation(catalog.activation, max_skew_ms=self.clock.max_skew_ms)
        if wait and catalog.version:
            self.clock.wait_until(ensured, drawn)
        if isinstance(planned, CommandRefused):
            raise planned
        return Executed(version=catalog.version, applied=planned.applied, activation=catalog.activation,
                        ensured=ensured, attempts=attempts)

    def _write(self, commands: Sequence[Command], delay_ms: int,
               wait: bool) -> tuple[Moment, Catalog, PlannedUpdate | CommandRefused, int]:
        """Return when it was, the version that the batch made, or that it was judged by; what was planned or refused;
        and after how many tries.
        """
        for attempt in range(1, MAX_ATTEMPTS + 1):
            self._replica.take_in()  # what is refused or needless is judged by the log, not by a copy left behind
            latest = self.history.catalog(self.history.latest)
            drawn = self.clock.draw()
            # A version follows the one before it in time, also after one from a faster clock.
            commit = max(drawn.time, latest.commit + 1)
            limit = self.clock.max_skew_ms + _FAR_AHEAD_MS
            if wait and (ahead := self.clock.ahead_ms(commit)) > limit:
                raise ClockSkewExceeded(
                    time=commit, ahead_ms=ahead, limit_ms=limit,
                    advice=f"it follows version {latest.version}, whose writer's clock was ahead if this one is right: "
                           f"wait, or execute with wait=False to have a version that is in force only then")
            try:
                planned = plan_update(latest, commands)
            except CommandRefused as refused:
                return drawn, latest, refused, 0
            if planned.is_empty:
                return drawn, latest, planned, 0
            activation = max(add_ms(commit, delay_ms), latest.activation + 1)
            update = Update(
                version=latest.version + 1, commit=commit, activation=activation, next_id=planned.next_id,
                drops=planned.drops, puts=tuple(attrs.evolve(one, created_at=one.created_at or activation,
                                                             updated_at=commit) for one in planned.puts))
            payload = UPDATES.encode(update)
            if self.log.append(update.version, payload):
                # Without asking the store again: a failure of that could not be distinguished from one of the append.
                made = latest.updated(update)
                self._replica.add(made, payload)
                return drawn, made, planned, attempt
        raise Busy(f"{MAX_ATTEMPTS} attempts to append to the catalog's log lost against other writers; call again")

    # -- sensing and planning

    def basis(self) -> Basis:
        """Read what must not have changed when history is cut; first thing, before any node is asked. Two requests.

        Raises:
            CorruptData, Unsupported: the marks of the log or the pins cannot be read.
            Closed: the service was closed.
        """
        with self._reporting():
            return Basis(self.pins.state(), self.log.state())

    def view(self, *, budget: Budget | None = None, basis: Basis | None = None,
             reports: Sequence[NodeReport] | None = None, topology: Topology | None = None,
             assignments: Assignments | None = None, low_watermark: Timestamp | None = None, term: int | None = None,
             conditions: Sequence[Condition] = ()) -> CatalogView:
        """Return what a plan is made from: what is retained, and what the nodes and the pins need of it.

        What is not given is not known, and then nothing is cut. Two requests, and one more with a basis.

        Args:
            budget: not needed: nothing has to be counted.
            basis: was read before the nodes were asked, so that a copy registered since keeps history from being cut;
                default: is read now, for reports of this moment.
            reports: one a node that answered.
            topology: all nodes that there are.
            assignments: which nodes must host which partitions.
            low_watermark: this node's.
            term: the coordinator's; the log refuses one below the last.
            conditions: states of keys of the log's store, read before the reports were, that must still hold when
                history is cut: of the membership, for instance.

        Raises:
            RecordMissing, CorruptData, Unsupported: the log or the pins cannot be read.
            Closed: the service was closed.
        """
        given = self.basis() if basis is None else basis
        with self._reporting():
            self._replica.take_in(given.log if basis is None else None)
        pinned = self.pins.need_of(given.pins)
        # Without a term of its own a plan holds as long as no coordinator's has moved.
        of_term = () if term is not None else (given.log.term_condition,)
        return CatalogView(
            reports=tuple(reports or ()), history=self.history, now=self.clock.present(), low_watermark=low_watermark,
            assignments=assignments or Assignments(), topology=topology or Topology(frozenset()), term=term,
            needs=() if pinned is None else (pinned,), conditions=(*conditions, given.pins.condition, *of_term))

    def plan(self, policy: CatalogPolicy | None = None, *, view: CatalogView | None = None) -> CatalogPlan:
        """Choose the version to cut to, and list what prevents cutting further.

        Raises:
            UnsafeCompaction: the policy chose more than is safe.
            InvalidInput: two reports of one node.
            Closed: the service was closed.
        """
        self._guard.require_open()
        return plan_of(self.view() if view is None else view, policy or self._policy)

    # -- cutting

    def compact(self, plan: CatalogPlan | None = None, *, policy: CatalogPolicy | None = None,
                executor: Executor | None = None, budget: Budget | None = None, observer: Observer | None = None,
                fence: CommitFence | None = None) -> CutReport:
        """Cut history as planned, and delete what lies below. Never cuts what a node, a pin or a policy may still need.

        Without complete reports of the nodes nothing is cut, and the report's `why` names the missing ones. Several
        services of one log may try at once: one cuts. Ten requests, and one for each 16 pieces of the snapshot.

        Args:
            plan: of this catalog; default: what `plan(policy)` makes now.
            policy: instead of the service's own.
            executor: nothing is rewritten elsewhere: a snapshot is small, and this thread writes it.
            budget: asked before the snapshot is written, and between deletes.
            observer: notified, besides the service's own.
            fence: entered around the step that cuts.

        Raises:
            Busy: a compaction of this service is under way, or another process has cut history meanwhile.
            CatalogMoved: the plan is outdated.
            StaleTerm: a coordinator of a later term is known.
            UnsafeCompaction: what the plan knows forbids its target.
            BudgetSpent: the budget ended before the cut.
            OutcomeUnknown: the store did not say whether it cut, and it could not be seen.
            CorruptData: the snapshot was damaged on its way, and nothing was cut.
            CompactionFailed: history was cut, and the fence raised after that.
            InvalidInput: the plan is of another catalog, or comes with a policy.
            Closed: the service was closed.
        """
        if plan is not None and policy is not None:
            raise InvalidInput("a plan and a policy were given; a plan has its policy already: give one of them")
        observer = Observers(self._observer, observer)
        began, copied, freed = self.clock.clock.monotonic(), 0, 0
        self._guard.require_open()
        try:
            with self._running("compaction", budget) as run:
                report = (self._plan_and_cut(policy or self._policy, run, observer, fence) if plan is None
                          else self._cut(plan, run, observer, fence))
        except BaseException as error:
            is_busy = isinstance(error, Busy) and not isinstance(error, BudgetSpent)
            outcome, reason = ("skipped", "busy") if is_busy else ("failed", type(error).__name__)
            raise
        else:
            outcome, reason = ("skipped", "nothing") if report.is_empty else ("done", report.policy)
            copied, freed = report.bytes_written, report.bytes_freed
            return report
        finally:
            if self._guard.is_open:
                notify_compaction(observer, "catalog", self.log.partition.decode(errors="backslashreplace"), outcome,
                                  reason, self.clock.clock.monotonic() - began, copied=copied, freed=freed)

    @contextmanager
    def _running(self, kind: str, budget: Budget | None) -> Iterator[Run]:
        run = Run(self._guard, budget)
        with run.held:
            run.begin(kind)
            with self._reporting():
                yield run

    def _plan_and_cut(self, policy: CatalogPolicy, run: Run, observer: Observer,
                      fence: CommitFence | None) -> CutReport:
        for _ in range(_PLANNINGS):
            plan = self.plan(policy)
            try:
                return self._cut(plan, run, observer, fence)
            except CatalogMoved as error:
                moved = error
            if self.history.earliest != plan.earliest:
                raise Busy(f"another process has cut history to version {self.history.earliest} meanwhile") from moved
        raise moved

    def _cut(self, plan: CatalogPlan, run: Run, observer: Observer, fence: CommitFence | None) -> CutReport:
        self._require_own(plan)
        report = CutReport(earliest=plan.earliest, before=plan.earliest, policy=plan.policy.name, why=plan.why)
        if plan.target is None:
            return self._tidied(report, run.budget, observer)
        self._check(plan, plan.target)
        watched = _Watched(fence)
        try:
            written, deleted = self.log.cut(self.history.catalog(plan.target), term=plan.term, fence=watched,
                                            conditions=plan.conditions, spend=run.budget.spend)
        except CatalogMoved:
            self._replica.take_in()
            raise
        except CompactlibError as error:
            if not watched.has_committed:
                raise
            report = attrs.evolve(report, earliest=plan.target, is_partial=True, why=f"the fence raised: {error}")
            raise CompactionFailed(report=report, failures={"fence": error}) from error
        observer.event("progress", work=f"cut history to version {plan.target}", done=written, total=written,
                       unit="bytes")
        return self._tidied(attrs.evolve(report, earliest=plan.target, deleted=deleted, bytes_written=written, why=""),
                            run.budget, observer)

    def _check(self, plan: CatalogPlan, target: int) -> None:
        """Ask the decision once more, by what is retained now."""
        history, now = self.history, self.clock.present()
        if history.earliest != plan.earliest:
            raise CatalogMoved(what=f"history begins at version {history.earliest} now, and began at {plan.earliest}",
                               target=target)
        limits = limits_of(CatalogView(
            reports=plan.reports, history=history, now=now, low_watermark=plan.low_watermark, needs=plan.needs,
            assignments=plan.assignments, topology=plan.topology, term=plan.term), target)
        if limits or target <= history.earliest or history.activation(target) > now:
            in_force = f"versions {history.earliest} to {history.version_at(now)} are retained and in force"
            raise UnsafeCompaction(target=target, detail="; ".join(map(str, limits)) or in_force)

    def _require_own(self, plan: CatalogPlan) -> None:
        """Raise if the plan was made from another catalog: one whose versions were committed at other times."""
        self._replica.take_in()
        for version, commit in plan.commits:
            known = self.history.catalog(version).commit if self.history.has(version) else None
            if version > self.history.latest or (known is not None and known != commit):
                raise InvalidInput(f"the plan is of another catalog: there, version {version} was committed at "
                                   f"{commit}; here {'there is none' if known is None else f'it was at {known}'}")

    def _tidied(self, report: CutReport, budget: Budget, observer: Observer) -> CutReport:
        """Delete what this cut or an earlier one has left behind; a cut stands although that fails."""
        keys = freed = 0
        try:
            for gone, size in reclaim(self.log, budget):
                keys, freed = keys + gone, freed + size
            self._replica.take_in()
        except CompactlibError as error:
            if report.is_empty and isinstance(error, BudgetSpent):
                raise
            if not isinstance(error, BudgetSpent):
                self._last_error, self._failures = error, self._failures + 1
                observer.event("catalog_reclaim_failed", version=report.earliest, error=str(error))
            report = attrs.evolve(report, is_partial=True, why=f"reclaim goes on with what is left: {error}")
        return attrs.evolve(report, deleted=report.deleted + keys, bytes_freed=freed)

    # -- reclaiming, verifying, closing

    def reclaim(self, *, budget: Budget | None = None) -> CatalogReclaim:
        """Delete what lies below the cut, if a `compact` did not come to it.

        Raises:
            Busy: a reclaim is under way.
            BudgetSpent: the budget ended before anything was deleted.
            RecordMissing, CorruptData, Unsupported: the snapshot with which the log begins cannot be read.
            Closed: the service was closed.
        """
        keys = freed = 0
        with self._running("reclaim", budget) as run:
            try:
                for gone, size in reclaim(self.log, run.budget):
                    keys, freed = keys + gone, freed + size
            except BudgetSpent as error:
                if not keys:
                    raise
                return CatalogReclaim(keys, freed, str(error), is_partial=True)
        return CatalogReclaim(keys, freed, "" if keys else "nothing lies below the earliest version")

    def verify(self, *, budget: Budget | None = None) -> VerifyReport:
        """Read the whole log, hold it against what is in memory, and list what is damaged, missing or left over.

        Raises:
            BudgetSpent: the budget has ended.
            Busy: a verification is under way, or the log was cut again and again while it was read.
            Closed: the service was closed.
        """
        with self._running("verification", budget) as run:
            return verify_log(self.log, self.history, run.budget)

    def status(self) -> CatalogStatus:
        """Return the catalog in numbers, from memory.

        Raises:
            Closed: it was closed.
        """
        self._guard.require_open()
        error, history = self._last_error or self._replica.last_error, self.history
        return CatalogStatus(
            is_busy=bool(self._guard.running), failures=self._failures + self._replica.failures,
            last_error="" if error is None else f"{type(error).__name__}: {error}", earliest=history.earliest,
            latest=history.latest, versions=len(history))

    def audit(self) -> None:
        """Check the versions in memory against their own rules; `verify` holds them against the log. O(changes).

        Raises:
            AuditFailed: one is broken.
            Closed: it was closed.
        """
        self._guard.require_open()
        self.history.audit()

    def close(self) -> None:
        """Cancel what runs and wait for its end; callers that wait for a version get `Closed`. The log's store stays
        open.

        Raises:
            Busy: called from within its own work, by an observer or a fence; nothing was done.
        """
        self._guard.require_outside()
        self._guard.close()
        self._replica.wake()
        self._guard.release()

    def __repr__(self) -> str:
        return f"CatalogService(versions {self.history.earliest} to {self.history.latest})"


class _Watched:
    """A fence that knows whether the step inside it was done."""

    def __init__(self, fence: CommitFence | None) -> None:
        self.has_committed = False
        self._fence = fence

    @contextmanager
    def guard(self) -> Iterator[None]:
        with nullcontext() if self._fence is None else self._fence.guard():
            yield
            self.has_committed = True
