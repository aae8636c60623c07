# SPDX-License-Identifier: Apache-2.0
"""`CatalogService`: one node's catalog. Executes commands, follows the log, answers by version and time, cuts the log.

It is the edge where log, history and clock meet. No thread runs inside: `poll` reads what others wrote, and a host
calls it from a thread, a timer or a notification of its own (`CatalogNode` has such a thread).

A compaction has the five steps: `view` senses what is needed, `plan` decides, `UpdateLog.write_snapshot` rewrites the
versions below as a snapshot and reads it back, `UpdateLog.cut` commits it in one conditional step, `reclaim` deletes
what that left behind.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

import attrs

from compactlib._closing import Closing
from compactlib.budget import Budget
from compactlib.catalog.check import CatalogReclaim, reclaim, recover_history, verify_log
from compactlib.catalog.commands import Command, plan_update
from compactlib.catalog.decision import CatalogView, limits_of
from compactlib.catalog.errors import (
    CatalogMoved,
    ClockSkewExceeded,
    CommandRefused,
    NotReady,
    RecordMissing,
    UnsafeCompaction,
)
from compactlib.catalog.history import RetainedVersions
from compactlib.catalog.pins import Pins
from compactlib.catalog.plan import CatalogPlan, CatalogPolicy, CutReport, CutToBound, plan_of
from compactlib.catalog.schema import UPDATES, Catalog
from compactlib.catalog.timestamp import (
    HybridClock,
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
from compactlib.store_numbers import Moved, StoreNumbers

if TYPE_CHECKING:
    from compactlib.contract import CommitFence
    from compactlib.rewrite import Executor

_LOGGER = logging.getLogger("compactlib.catalog")

Listener = Callable[[Catalog], object]
"""Called with each version once and in order, before it counts as ready. What it raises is kept and logged."""

MAX_ATTEMPTS = 10
"""How often a batch of commands is tried while other writers are first."""
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


@attrs.frozen(kw_only=True, repr=False)
class CatalogStatus(Printed):
    """A catalog in numbers.

    Attributes:
        is_busy: whether a compaction or a reclaim is under way in this service.
        last_error: what reclaiming met, or a listener raised, last, as `Kind: message`; empty if nothing. The next
            compaction tries to reclaim again.
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
        self._following = threading.RLock()
        self._arrived = threading.Condition()  # a version, or the end of the service
        self._listeners: tuple[Listener, ...] = ()
        self._calling: int | None = None  # the thread in which listeners are called at the moment
        self._news: deque[tuple[str, dict[str, Any]]] = deque()
        self._failures = 0
        self._last_error: Exception | None = None
        log.prepare()
        self._history = recover_history(log)
        latest = self.history.catalog(self.history.latest)
        if latest.version and clock.ahead_ms(latest.commit) > clock.max_skew_ms:
            self._observer.event("catalog_clock_ahead", version=latest.version,
                                 ahead_seconds=clock.ahead_ms(latest.commit) / 1000)

    # -- reading

    @property
    def history(self) -> RetainedVersions:
        """The retained versions, immutable."""
        return self._history

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

    # -- following the log

    def listen(self, listener: Listener) -> None:
        """Call `listener` with each version from the next one on."""
        with self._following:
            self._listeners += (listener,)

    def poll(self) -> int:
        """Take in what the log holds and this node does not know yet; returns how many versions. One request if none.

        Called by a listener it does nothing: the version at hand comes first.

        Raises:
            RecordMissing, CorruptData, Unsupported: the log is broken; what is known stays as it was.
            Busy: the log was cut or grew again and again meanwhile.
            Closed: the service was closed.
        """
        with self._reporting():
            return self._take_in()

    def wait_ready(self, version: int, wait_seconds: float) -> Catalog:
        """Return the catalog of a version, once it is registered here and every listener was called with it.

        It may be active only later: see `Executed.ensured`. Some thread must `poll` meanwhile.

        Raises:
            NotReady: it was not in time.
            CatalogVersionNotFound: history has moved past it.
            Closed: the service was closed.
        """
        with self._arrived:
            self._arrived.wait_for(lambda: self.history.latest >= version or not self._guard.is_open, wait_seconds)
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
            while self._news:
                try:
                    name, fields = self._news.popleft()
                except IndexError:  # another thread was faster
                    break
                self._observer.event(name, **fields)

    def _take_in(self, state: LogState | None = None) -> int:
        with self._following:
            if self._calling is not None:
                return 0
            before = self._history
            self._register(recover_history(self.log, before, state))
            return self._history.latest - before.latest

    def _register(self, after: RetainedVersions) -> None:
        before = self._history
        # Listeners first: a version counts as ready only after all of them were called with it.
        self._calling = threading.get_ident()
        try:
            for version in range(max(before.latest + 1, after.earliest), after.latest + 1):
                for listener in self._listeners:
                    try:
                        listener(after.catalog(version))
                    except Exception as error:
                        self._last_error, self._failures = error, self._failures + 1
                        _LOGGER.warning("the listener %r of the catalog raised %r; the others are called", listener,
                                        error, exc_info=error)
                self._news.append(("catalog_version", {"version": version, "activation": after.activation(version)}))
        finally:
            self._calling = None
        if after.earliest != before.earliest:
            self._news.append(("catalog_compacted", {"earliest": after.earliest, "before": before.earliest}))
        if after is not before:
            with self._arrived:
                self._history = after
                self._arrived.notify_all()

    # -- changing

    def execute(self, commands: Sequence[Command], *, wait: bool = True) -> Executed:
        """Carry out a batch as one version, or none of it; a batch that changes nothing makes no version.

        Returns once the version is ready here and in force on every node; without `wait`, once it is ready here.
        Three requests, and more where another writer is first.

        Args:
            commands: checked in order, each against what those before it leave.
            wait: whether to sleep until every node agrees that the version is in force.

        Raises:
            CommandRefused: a command does not fit; raised after the version that it was checked against is in force.
            Busy: other writers were first `MAX_ATTEMPTS` times, or a listener calls; nothing was changed.
            OutcomeUnknown: the store did not say whether it took the version, and it could not be seen.
            ClockSkewExceeded: the log's latest version was committed so far ahead of this clock that no caller should
                wait for the next one; nothing was changed. Without `wait` it is made all the same.
            InvalidInput: there are too many commands, or a value cannot be stored.
            Closed: the service was closed.
        """
        if self._calling == threading.get_ident():
            raise Busy("a listener cannot execute commands: the version that it was given counts as ready only when "
                       "it has returned; execute them in another thread, and do not wait for that one")
        with self._reporting(), self._writing:
            drawn, tick, catalog, applied, attempts = self._write(tuple(commands), wait)
        # No call waits for a time while it keeps others from writing.
        ensured = ensured_activation(catalog.activation, max_skew_ms=self.clock.max_skew_ms)
        if wait and catalog.version:
            self.clock.wait_until(ensured, drawn, tick)
        if isinstance(applied, CommandRefused):
            raise applied
        return Executed(version=catalog.version, applied=applied, activation=catalog.activation, ensured=ensured,
                        attempts=attempts)

    def _write(self, commands: Sequence[Command],
               wait: bool) -> tuple[Timestamp, float, Catalog, tuple[bool, ...] | CommandRefused, int]:
        """Return when it was, by both clocks; the version that the batch made, or that it was judged by; what it
        changed, or why it was refused; and after how many tries.
        """
        for attempt in range(1, MAX_ATTEMPTS + 1):
            self._take_in()  # what is refused or needless is judged by the log, not by a copy left behind
            latest = self.history.catalog(self.history.latest)
            drawn, tick = self.clock.now(), self.clock.clock.monotonic()
            # A version follows the one before it in time, also after one from a faster clock.
            commit = max(drawn, latest.commit + 1)
            limit = self.clock.max_skew_ms + _FAR_AHEAD_MS
            if wait and (ahead := self.clock.ahead_ms(commit)) > limit:
                raise ClockSkewExceeded(
                    time=commit, ahead_ms=ahead, limit_ms=limit,
                    advice=f"it follows version {latest.version}, whose writer's clock was ahead if this one is right: "
                           f"wait, or execute with wait=False to have a version that is in force only then")
            activation = max(add_ms(commit, self._delay_ms), latest.activation + 1)
            try:
                update, applied = plan_update(latest, commands, commit=commit, activation=activation)
            except CommandRefused as refused:
                return drawn, tick, latest, refused, 0
            if not update.puts and not update.drops:
                return drawn, tick, latest, applied, 0
            payload = UPDATES.encode(update)
            if self.log.append(update.version, payload):
                # Without asking the store again: a failure of that could not be distinguished from one of the append.
                made = latest.updated(update)
                with self._following:
                    if self.history.latest < made.version:
                        self._register(self.history.followed_by([(activation, payload)], [made]))
                return drawn, tick, made, applied, attempt
        raise Busy(f"{MAX_ATTEMPTS} attempts to append to the catalog's log lost against other writers; call again")

    # -- sensing and planning

    def view(self, *, budget: Budget | None = None, reports: Sequence[NodeReport] = (),
             topology: Topology | None = None, assignments: Assignments | None = None,
             low_watermark: Timestamp | None = None, term: int | None = None,
             conditions: Sequence[Condition] = ()) -> CatalogView:
        """Return what a plan is made from: what is retained, and what the nodes and the pins need of it.

        What is not given is not known, and then nothing is cut. What must not change until history is cut is read now:
        take the view before the nodes are asked, and add their reports (`attrs.evolve`). Two requests.

        Args:
            budget: not needed: nothing has to be counted.
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
        with self._reporting():
            pins, log = self.pins.state(), self.log.state()
            self._take_in(log)
        pinned = self.pins.need_of(pins.value)
        # Without a term of its own a plan holds as long as no coordinator's has moved.
        of_term = () if term is not None else (log.term_condition,)
        return CatalogView(
            reports=tuple(reports), history=self.history, now=self.clock.present(), low_watermark=low_watermark,
            assignments=assignments or Assignments(), topology=topology or Topology(frozenset()), term=term,
            needs=() if pinned is None else (pinned,), conditions=(*conditions, pins.condition, *of_term))

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
            Busy: a compaction of this service is under way.
            CatalogMoved: the plan is outdated; another process has cut history, for instance.
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
        numbers = StoreNumbers("catalog", self.log.partition.decode(errors="backslashreplace"))
        began, moved = self.clock.clock.monotonic(), Moved()
        self._guard.require_open()
        try:
            with self._running("compaction", budget) as run:
                report = self._cut(self.plan(policy) if plan is None else plan, run, observer, fence)
        except BaseException as error:
            is_busy = isinstance(error, Busy) and not isinstance(error, BudgetSpent)
            outcome, reason = ("skipped", "busy") if is_busy else ("failed", type(error).__name__)
            raise
        else:
            outcome, reason = ("skipped", "nothing") if report.is_empty else ("done", report.policy)
            moved = Moved(copied=report.bytes_written, freed=report.bytes_freed)
            return report
        finally:
            if self._guard.is_open:
                numbers.ended(observer, outcome, reason, self.clock.clock.monotonic() - began, moved)

    @contextmanager
    def _running(self, kind: str, budget: Budget | None) -> Iterator[Run]:
        run = Run(self._guard, budget)
        with run.held:
            run.begin(kind)
            with self._reporting():
                yield run

    def _cut(self, plan: CatalogPlan, run: Run, observer: Observer, fence: CommitFence | None) -> CutReport:
        self._require_own(plan)
        earliest, target = plan.view.history.earliest, plan.target
        report = CutReport(earliest=earliest, before=earliest, policy=plan.policy.name, why=plan.why)
        if target is not None:
            self._check(plan, target)
            is_cut = False
            try:
                snapshot = self.log.write_snapshot(self.history.catalog(target), run.budget.spend)
            except RecordMissing:  # another process may have cut further, and reclaimed these pieces, too
                self._take_in()
                self._check(plan, target)
                raise
            try:
                with nullcontext() if fence is None else fence.guard():
                    deleted = self.log.cut(snapshot, term=plan.view.term, conditions=plan.view.conditions)
                    is_cut = True
            except CatalogMoved:
                self._take_in()
                raise
            except CompactlibError as error:
                if not is_cut:
                    raise
                report = attrs.evolve(report, earliest=target, is_partial=True, why=f"the fence raised: {error}")
                raise CompactionFailed(report=report, failures={"fence": error}) from error
            observer.event("progress", work=f"cut history to version {target}", done=snapshot.size,
                           total=snapshot.size, unit="bytes")
            report = attrs.evolve(report, earliest=target, deleted=deleted, bytes_written=snapshot.size, why="")
        return self._tidied(report, run.budget, observer)

    def _check(self, plan: CatalogPlan, target: int) -> None:
        """Ask the decision once more, by what is retained now."""
        history, now, began = self.history, self.clock.present(), plan.view.history.earliest
        if history.earliest != began:
            raise CatalogMoved(what=f"history begins at version {history.earliest} now, and began at {began}",
                               target=target)
        limits = limits_of(attrs.evolve(plan.view, history=history, now=now), target)
        if limits or target <= history.earliest or history.activation(target) > now:
            in_force = f"versions {history.earliest} to {history.version_at(now)} are retained and in force"
            raise UnsafeCompaction(target=target, detail="; ".join(map(str, limits)) or in_force)

    def _require_own(self, plan: CatalogPlan) -> None:
        """Raise if the plan was made from another catalog: one whose versions became active at other times."""
        self._take_in()
        planned = plan.view.history
        for version in {planned.latest, planned.latest if plan.target is None else plan.target}:
            known = self.history.activation(version) if self.history.has(version) else None
            if version > self.history.latest or known not in (None, planned.activation(version)):
                raise InvalidInput(f"the plan is of another catalog: there, version {version} is active from "
                                   f"{planned.activation(version)}; here "
                                   f"{'there is none' if known is None else f'it is from {known}'}")

    def _tidied(self, report: CutReport, budget: Budget, observer: Observer) -> CutReport:
        """Delete what this cut or an earlier one has left behind; a cut stands although that fails."""
        try:
            done = reclaim(self.log, budget)
            self._take_in()
        except CompactlibError as error:
            if report.is_empty and isinstance(error, BudgetSpent):
                raise
            if not isinstance(error, BudgetSpent):
                self._last_error, self._failures = error, self._failures + 1
                observer.event("catalog_reclaim_failed", version=report.earliest, error=str(error))
            return attrs.evolve(report, is_partial=True, why=f"reclaim goes on with what is left: {error}")
        if done.is_partial:
            report = attrs.evolve(report, is_partial=True, why=f"reclaim goes on with what is left: {done.why}")
        return attrs.evolve(report, deleted=report.deleted + done.keys, bytes_freed=done.bytes_freed)

    # -- reclaiming, verifying, closing

    def reclaim(self, *, budget: Budget | None = None) -> CatalogReclaim:
        """Delete what lies below the cut, if a `compact` did not come to it.

        Raises:
            Busy: a reclaim is under way.
            BudgetSpent: the budget ended before anything was deleted.
            RecordMissing, CorruptData, Unsupported: the snapshot with which the log begins cannot be read.
            Closed: the service was closed.
        """
        with self._running("reclaim", budget) as run:
            return reclaim(self.log, run.budget)

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
        error, history = self._last_error, self.history
        return CatalogStatus(
            is_busy=bool(self._guard.running), failures=self._failures, earliest=history.earliest,
            latest=history.latest, versions=len(history),
            last_error="" if error is None else f"{type(error).__name__}: {error}")

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
        with self._arrived:
            self._arrived.notify_all()
        self._guard.release()

    def __repr__(self) -> str:
        return f"CatalogService(versions {self.history.earliest} to {self.history.latest})"
