# SPDX-License-Identifier: Apache-2.0
"""`CatalogService`: a node's catalog. Executes commands, follows the log, finds catalogs by version and time, cuts.

The service starts no thread: `poll` reads new versions from the log, and the host calls it from its own thread, timer
or notification (`CatalogNode` has such a thread).

A compaction has the five steps: `view` senses the needs, `plan` decides, `UpdateLog.write_snapshot` rewrites the
versions up to the target as a snapshot and reads it back, `UpdateLog.cut` commits the snapshot in a single conditional
step, `reclaim` deletes the leftovers.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING

import attrs

from compactlib._closing import Closing
from compactlib._store_numbers import notify_compaction, outcome_of
from compactlib.budget import Budget
from compactlib.catalog.check import reclaim, recover_history, verify_log
from compactlib.catalog.commands import Command, plan_update
from compactlib.catalog.decision import CatalogView, limits_of
from compactlib.catalog.errors import (
    CatalogMoved,
    ClockSkewExceeded,
    CommandRefused,
    RecordMissing,
    UnsafeCompaction,
)
from compactlib.catalog.history import RetainedVersions
from compactlib.catalog.pins import Pins
from compactlib.catalog.plan import CatalogPlan, CatalogPolicy, CutReport, CutToBound, plan_of
from compactlib.catalog.schema import Catalog
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
from compactlib.kv import Conditions
from compactlib.kv.store import NOTHING
from compactlib.observer import Observer, Observers
from compactlib.report import Printed, VerifyReport

if TYPE_CHECKING:
    from compactlib.contract import CommitFence
    from compactlib.rewrite import Executor

MAX_ATTEMPTS = 10
"""Attempts to append a batch of commands while other writers are first."""
_FAR_AHEAD_MS = 60_000
"""Limit beyond the skew by which a version may be ahead of the clock for a caller to wait for the next version."""


@attrs.frozen(kw_only=True)
class Executed:
    """The result of a batch of commands.

    Attributes:
        version: the version that the batch made, or the latest version if it changed nothing.
        applied: for each command whether it changed anything.
        activation: time from which the version is in force.
        ensured: time from which the version is in force by every node's clock.
    """

    version: int
    applied: tuple[bool, ...]
    activation: Timestamp
    ensured: Timestamp


@attrs.frozen(kw_only=True, repr=False)
class CatalogStatus(Printed):
    """The state of a catalog in numbers.

    Attributes:
        is_busy: whether a compaction, reclaim or verification runs in this service.
        last_error: the last error of a reclaim after a cut, as `Kind: message`; empty without errors. The next
            compaction retries it.
        failures: number of such errors.
        earliest: the earliest retained version.
        latest: the latest version.
        versions: number of retained versions.
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
    """A node's copy of the catalog, from an update log. Any thread may call any method.

    Args:
        log: the log of the versions.
        clock: draws commit times; its skew is the cluster's limit.
        delay_seconds: delay from a version's commit to its activation, at least the clock's `max_skew_seconds`: else a
            node whose clock is ahead could have begun transactions at times at which a version committed later is in
            force. A single node may have a clock without skew, and no delay.
        policy: how much of the unneeded history is cut; default `CutToBound`.
        observer: notified of versions (`catalog_version`) and cuts (`catalog_compacted`).

    Attributes:
        pins: the catalog's pins; every view includes the lowest.

    Raises:
        InvalidInput: the delay is below the greatest skew.
        RecordMissing, CorruptData, Unsupported: the log cannot be recovered.
    """

    def __init__(self, log: UpdateLog, clock: HybridClock, *, delay_seconds: float = 0.5,
                 policy: CatalogPolicy | None = None, observer: Observer | None = None) -> None:
        self.log: UpdateLog = log
        self.clock: HybridClock = clock
        self.pins: Pins = Pins(log, clock)
        self._delay_ms = milliseconds(delay_seconds, name="delay_seconds")
        if self._delay_ms < clock.max_skew_ms:
            raise InvalidInput(f"delay_seconds is {delay_seconds}, and clocks may differ by max_skew_seconds, "
                               f"{clock.max_skew_ms / 1000:g}; give a delay of at least that, so that no node has "
                               f"begun a transaction at a time at which a later version is in force")
        self._policy: CatalogPolicy = CutToBound() if policy is None else policy
        self._observer = Observers(observer)
        self._guard = Guard(f"the catalog in partition {log.partition!r}")
        self._writing = threading.Lock()
        self._following = threading.Lock()
        self._last_error, self._failures = "", 0
        log.prepare()
        self._history = self._emitted = recover_history(log)

    # -- reading

    @property
    def history(self) -> RetainedVersions:
        """The retained versions, immutable."""
        return self._history

    def catalog(self, version: int) -> Catalog:
        """Return the catalog of a version.

        Raises:
            CatalogVersionNotFound: the version is not retained, or does not exist yet.
        """
        return self.history.catalog(version)

    def active(self) -> Catalog:
        """Return the catalog in force now."""
        return self.history.at(self.clock.present())

    # -- following the log

    def poll(self) -> int:
        """Read new versions from the log; return their number. One request if there is no new version.

        Afterwards all versions are ready that any node has executed before the call.

        Raises:
            RecordMissing, CorruptData, Unsupported: the log is damaged; the history in memory is unchanged.
            Busy: each attempt to read the log met a new cut or append.
            Closed: the service was closed.
        """
        with self._emitting():
            return self._read_new_versions()

    @contextmanager
    def _emitting(self) -> Iterator[None]:
        """Keep the service open for a block, then notify the observer of new versions and cuts."""
        try:
            with self._guard.use():
                self._guard.require_open()
                yield
        finally:
            before = after = self._history
            if self._guard.is_open:  # in a forked child, the lock may be held for ever
                with self._following:
                    before, self._emitted = self._emitted, (after := self._history)
            for version in range(max(before.latest + 1, after.earliest), after.latest + 1):
                self._observer.event("catalog_version", version=version, activation=after.activation(version))
            if after.earliest != before.earliest:
                self._observer.event("catalog_compacted", earliest=after.earliest, before=before.earliest)

    def _read_new_versions(self, state: LogState | None = None) -> int:
        with self._following:
            before, self._history = self._history, recover_history(self.log, self._history, state)
            return self._history.latest - before.latest

    # -- changing

    def execute(self, commands: Sequence[Command], *, wait: bool = True) -> Executed:
        """Execute a batch atomically, as a new version; a batch that changes nothing makes no version.

        Returns when the version is ready on this node and in force on every node; without `wait`, when it is ready on
        this node. Three requests, and more if other writers are first.

        Args:
            commands: checked in order, each against the result of the commands before it.
            wait: whether to sleep until the version is in force by every node's clock.

        Raises:
            CommandRefused: a command does not fit; raised after the version that it was checked against is in force.
            Busy: other writers were first `MAX_ATTEMPTS` times; nothing was changed.
            OutcomeUnknown: the store did not acknowledge, and reading did not show whether the version was appended.
            ClockSkewExceeded: the log's latest version was committed more than a minute and the skew ahead of this
                clock, too long to wait; nothing was changed. Without `wait`, the version is made anyway.
            InvalidInput: there are too many commands, or a value cannot be stored.
            Closed: the service was closed.
        """
        with self._emitting(), self._writing:
            catalog, applied = self._write(tuple(commands), wait)
        # Outside the locks: a wait must not block other writers.
        ensured = ensured_activation(catalog.activation, max_skew_ms=self.clock.max_skew_ms)
        if wait and catalog.version:
            self.clock.wait_until(ensured)
        if isinstance(applied, CommandRefused):
            raise applied
        return Executed(version=catalog.version, applied=applied, activation=catalog.activation, ensured=ensured)

    def _write(self, commands: Sequence[Command], wait: bool) -> tuple[Catalog, tuple[bool, ...] | CommandRefused]:
        """Append a batch.

        Returns:
            The version that the batch made or was checked against; for each command whether it changed anything, or
            the refusal.
        """
        for _ in range(MAX_ATTEMPTS):
            self._read_new_versions()  # check the commands against the latest version of the log, not an older copy
            latest = self.history.catalog(self.history.latest)
            # Commit times ascend, even if the writer of the latest version had a faster clock.
            commit = max(self.clock.now(), latest.commit + 1)
            limit = self.clock.max_skew_ms + _FAR_AHEAD_MS
            if wait and (ahead := self.clock.ahead_ms(commit)) > limit:
                raise ClockSkewExceeded(
                    time=commit, ahead_ms=ahead, limit_ms=limit,
                    advice=f"it follows version {latest.version}, whose writer's clock was ahead if this clock is "
                           f"right: wait, or execute with wait=False for a version that becomes active at that time")
            activation = max(add_ms(commit, self._delay_ms), latest.activation + 1)
            try:
                update, applied = plan_update(latest, commands, commit=commit, activation=activation)
            except CommandRefused as refused:
                return latest, refused
            if not update.puts and not update.drops:
                return latest, applied
            made = latest.copy()
            made.apply(update)  # before the append: an update that does not fit must not reach the log
            if self.log.append(update):
                # Without another read: its failure could not be distinguished from a failure of the append.
                with self._following:
                    if self.history.latest < made.version:
                        self._history = self._history.followed_by([update], made)
                return made, applied
        raise Busy(f"{MAX_ATTEMPTS} attempts to append to the catalog's log lost against other writers; call again")

    # -- sensing and planning

    def view(self, *, budget: Budget | None = None, reports: Sequence[NodeReport] = (),
             topology: Topology | None = None, assignments: Assignments | None = None,
             low_watermark: Timestamp | None = None, term: int | None = None,
             conditions: Conditions = NOTHING) -> CatalogView:
        """Return the input of a plan: the retained versions, and the needs of nodes and pins.

        An omitted argument means "not known", and then nothing is cut. This call reads the keys that must not change
        until the cut: take the view before the nodes are called, and add their reports with `attrs.evolve`. Two
        requests.

        Args:
            budget: not used.
            reports: one for each node that answered.
            topology: all nodes of the cluster.
            assignments: the nodes that must host each partition.
            low_watermark: this node's.
            term: the coordinator's; the log refuses a term below the last.
            conditions: states of keys in the log's store, read before the reports, that must be unchanged when history
                is cut: that of the membership, for instance.

        Raises:
            RecordMissing, CorruptData, Unsupported: the log or the pins cannot be read.
            Closed: the service was closed.
        """
        with self._emitting():
            pins, log = self.pins.state(), self.log.state()
            self._read_new_versions(log)
        pinned = self.pins.need_of(pins.value)
        # A plan without a term is refused if a coordinator has raised the log's term since.
        of_term = NOTHING if term is not None else log.term_condition
        return CatalogView(
            reports=tuple(reports), history=self.history, now=self.clock.present(), low_watermark=low_watermark,
            assignments=assignments or {}, topology=topology or Topology(frozenset()), term=term,
            needs=() if pinned is None else (pinned,),
            # The caller's are of an earlier read.
            conditions={**pins.conditions, **of_term, **conditions})

    def plan(self, policy: CatalogPolicy | None = None, *, view: CatalogView | None = None) -> CatalogPlan:
        """Choose the version to cut to, and list what prevents cutting further.

        Raises:
            UnsafeCompaction: the policy chose a version above the highest safe version.
            InvalidInput: the view has two reports of a node, or the policy's choice is not a retained version.
            Closed: the service was closed.
        """
        self._guard.require_open()
        return plan_of(self.view() if view is None else view, policy or self._policy)

    # -- cutting

    def compact(self, plan: CatalogPlan | None = None, *, policy: CatalogPolicy | None = None,
                executor: Executor | None = None, budget: Budget | None = None, observer: Observer | None = None,
                fence: CommitFence | None = None) -> CutReport:
        """Cut history to the plan's target, and delete the versions below. Never cuts a version that may be needed.

        Without complete reports of the nodes nothing is cut, and the report's `why` names the missing nodes. Several
        services of the same log may call this at once: one of them cuts. Ten requests, more for a snapshot of several
        MiB.

        Args:
            plan: a plan of this catalog; default: the result of `plan(policy)`.
            policy: replaces the service's policy; not allowed with a plan.
            executor: not used: a snapshot is small, and this thread writes it.
            budget: limits the bytes of the snapshot; checked between deletes, too.
            observer: notified in addition to the service's observer.
            fence: entered around the cut.

        Raises:
            Busy: another compaction of this service runs.
            CatalogMoved: the plan is outdated; another process has cut history, for instance.
            StaleTerm: a coordinator of a later term is known.
            UnsafeCompaction: the view of the plan forbids the target.
            BudgetSpent: the budget ended before the cut.
            OutcomeUnknown: the store did not acknowledge, and reading did not show whether the log was cut.
            CorruptData: the snapshot read back differs, and nothing was cut.
            CompactionFailed: history was cut, and then the fence raised.
            InvalidInput: the plan is of another catalog, or comes with a policy.
            Closed: the service was closed.
        """
        if plan is not None and policy is not None:
            raise InvalidInput("a plan and a policy were given, but a plan has its own policy; give only one")
        observer = Observers(self._observer, observer)
        began = self.clock.clock.monotonic()
        report: CutReport | None = None
        self._guard.require_open()
        try:
            with self._running("compaction", budget) as run:
                report = self._cut(self.plan(policy) if plan is None else plan, run, observer, fence)
            return report
        finally:
            if self._guard.is_open:
                copied, freed = (0, 0) if report is None else (report.bytes_written, report.bytes_freed)
                notify_compaction(
                    observer, "catalog", self.log.partition.decode(errors="backslashreplace"),
                    *outcome_of(report or sys.exception(), report.policy if report else ""),
                    self.clock.clock.monotonic() - began, copied=copied, freed=freed)

    @contextmanager
    def _running(self, kind: str, budget: Budget | None) -> Iterator[Run]:
        run = Run(self._guard, budget)
        with run.held:
            run.begin(kind)
            with self._emitting():
                yield run

    def _cut(self, plan: CatalogPlan, run: Run, observer: Observer, fence: CommitFence | None) -> CutReport:
        self._read_new_versions()
        planned = plan.view.history
        if planned.latest > self.history.latest or (self.history.has(planned.latest) and (
                self.history.activation(planned.latest) != planned.activation(planned.latest))):
            raise InvalidInput(f"the plan is of another catalog, whose version {planned.latest} is active from "
                               f"{planned.activation(planned.latest)}; this catalog has {self.history!r}")
        earliest, target = plan.view.history.earliest, plan.target
        report = CutReport(earliest=earliest, before=earliest, policy=plan.policy.name, why=plan.why)
        if target is not None:
            self._check(plan, target)
            is_cut = False
            try:
                snapshot = self.log.write_snapshot(self.history.catalog(target), run.budget)
                with nullcontext() if fence is None else fence.guard():
                    self.log.cut(snapshot, term=plan.view.term, conditions=plan.view.conditions)
                    is_cut = True
            except CompactlibError as error:
                if is_cut:
                    report = attrs.evolve(report, earliest=target, is_partial=True, why=f"the fence raised: {error}")
                    raise CompactionFailed(report=report, failures={"fence": error}) from error
                if isinstance(error, CatalogMoved | RecordMissing):
                    self._read_new_versions()  # another process may have cut further, and reclaimed these pieces
                    self._check(plan, target)
                raise
            observer.event("progress", work=f"cut history to version {target}", done=snapshot.size,
                           total=snapshot.size, unit="bytes")
            report = attrs.evolve(report, earliest=target, bytes_written=snapshot.size, why="")
        return self._with_reclaim(report, run.budget, observer)

    def _check(self, plan: CatalogPlan, target: int) -> None:
        """Repeat the decision for the target, with the versions retained now."""
        history, now, began = self.history, self.clock.present(), plan.view.history.earliest
        if history.earliest != began:
            raise CatalogMoved(f"the plan to cut history to version {target} is outdated: history begins at version "
                               f"{history.earliest} now, and began at {began}; make a new plan")
        limits = limits_of(attrs.evolve(plan.view, history=history, now=now), target)
        if limits or target <= history.earliest or history.activation(target) > now:
            in_force = f"versions {history.earliest} to {history.version_at(now)} are retained and in force"
            raise UnsafeCompaction(f"cutting history to version {target} is not safe: "
                                   f"{'; '.join(map(str, limits)) or in_force}")

    def _with_reclaim(self, report: CutReport, budget: Budget, observer: Observer) -> CutReport:
        """Delete the leftovers of this and earlier cuts; a failure is reported and does not undo the cut."""
        try:
            done = reclaim(self.log, budget)
            self._read_new_versions()
        except CompactlibError as error:
            if report.is_empty and isinstance(error, BudgetSpent):
                raise
            if not isinstance(error, BudgetSpent):
                self._last_error, self._failures = f"{type(error).__name__}: {error}", self._failures + 1
                observer.event("catalog_reclaim_failed", version=report.earliest, error=str(error))
            return attrs.evolve(report, is_partial=True, why=f"leftovers remain for reclaim(): {error}")
        if done.is_partial:
            report = attrs.evolve(report, is_partial=True, why=f"leftovers remain for reclaim(): {done.why}")
        return attrs.evolve(report, deleted=done.deleted, bytes_freed=done.bytes_freed)

    # -- reclaiming, verifying, closing

    def reclaim(self, *, budget: Budget | None = None) -> CutReport:
        """Delete the leftovers of cuts that `compact` has not deleted.

        Raises:
            Busy: another reclaim of this service runs.
            BudgetSpent: the budget ended before the first delete.
            RecordMissing, CorruptData, Unsupported: the snapshot at the earliest version cannot be read.
            Closed: the service was closed.
        """
        with self._running("reclaim", budget) as run:
            return reclaim(self.log, run.budget)

    def verify(self, *, budget: Budget | None = None) -> VerifyReport:
        """Read the whole log, compare it with the history in memory, and list damaged, missing and leftover records.

        Raises:
            BudgetSpent: the budget ended.
            Busy: another verification of this service runs, or each attempt to read the log met a cut or append.
            Closed: the service was closed.
        """
        with self._running("verification", budget) as run:
            return verify_log(self.log, self.history, run.budget)

    def status(self) -> CatalogStatus:
        """Return the state of the catalog in memory, in numbers.

        Raises:
            Closed: the service was closed.
        """
        self._guard.require_open()
        history = self.history
        return CatalogStatus(
            is_busy=bool(self._guard.running), last_error=self._last_error, failures=self._failures,
            earliest=history.earliest, latest=history.latest, versions=len(history))

    def audit(self) -> None:
        """Check the catalogs in memory against a replay of their updates. O(changes). `verify` reads the log.

        Raises:
            AuditFailed: a catalog differs.
            Closed: the service was closed.
        """
        self._guard.require_open()
        self.history.audit()

    def close(self) -> None:
        """Cancel running work and wait for its end. The log's store stays open.

        Raises:
            Busy: an observer or a fence called this within the service's own work; nothing was done.
        """
        self._guard.require_outside()
        self._guard.release()
