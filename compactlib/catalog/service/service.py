# SPDX-License-Identifier: Apache-2.0
"""`CatalogService`: one node's catalog. Executes commands, follows the log, answers by version and time, cuts the log.

It is the edge where log, history and clock meet. No thread runs inside: `poll` looks for what others wrote, and a host
calls it from a thread, a timer or a notification of its own.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import attrs

from compactlib._closing import Closing
from compactlib.catalog.arguments import whole
from compactlib.catalog.errors import (
    ClockSkewExceeded,
    CommandRefused,
    NotReady,
    RetriesExhausted,
)
from compactlib.catalog.log.log_model import Appended
from compactlib.catalog.log.reclaim import CatalogReclaim
from compactlib.catalog.log.records import Update
from compactlib.catalog.log.recover import applied
from compactlib.catalog.log.update_log import MAX_ATTEMPTS, UpdateLog
from compactlib.catalog.log.verify import verify_log
from compactlib.catalog.model.timestamp import (
    HybridClock,
    Timestamp,
    add_ms,
    ensured_activation,
    milliseconds,
    physical_ms,
)
from compactlib.catalog.model.values import Assignments, NodeReport, Topology
from compactlib.catalog.plan.decision import CatalogView
from compactlib.catalog.plan.plan import CatalogPlan, CutReport, chosen, may_cut, plan_of
from compactlib.catalog.plan.policy import CatalogPolicy
from compactlib.catalog.schema.catalog import Catalog
from compactlib.catalog.schema.commands import Command, PlannedUpdate, plan_update
from compactlib.catalog.schema.versions import RetainedVersions
from compactlib.catalog.sense.pins import Pins
from compactlib.catalog.service.compaction import CatalogCompaction
from compactlib.catalog.service.replica import CatalogReplica, Listener
from compactlib.errors import Busy, InvalidInput
from compactlib.kv import Condition
from compactlib.outcome import Done, Failed, Skipped
from compactlib.report import Printed, VerifyReport
from compactlib.runtime.budget import Budget
from compactlib.runtime.observe import Observer, telling

if TYPE_CHECKING:
    from compactlib.catalog.service.source import ClusterSource
    from compactlib.contract import CommitFence
    from compactlib.rewrite import Executor

ValueT = TypeVar("ValueT")

_MAX_LOOKS = 100


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


_CLOCK_AHEAD = "catalog_clock_ahead"


class CatalogService(Closing):
    """One node's copy of the catalog, over an update log. Any thread may call any method.

    Args:
        log: where versions are kept.
        clock: gives commit times; its skew is the cluster's limit.
        delay_seconds: how long after its commit a version becomes active: the time in which every node must read it.
        policy: how much of the unneeded history is cut; default `CutToBound`.
        observer: notified of versions (`catalog_version`) and cuts (`catalog_compacted`), of a log whose latest version
            was committed ahead of the clock by more than the skew (`catalog_clock_ahead`), and of clocks that jump.

    Raises:
        InvalidInput: the delay is negative.
        RecordMissing, RecordDamaged, RecordTooNew: the log cannot be recovered.
    """

    def __init__(self, log: UpdateLog, clock: HybridClock, *, delay_seconds: float = 0.5,
                 policy: CatalogPolicy | None = None, observer: Observer | None = None) -> None:
        self.log = log
        self.clock = clock
        self._delay_ms = milliseconds(delay_seconds, name="delay_seconds")
        self._observer = telling(observer)
        self._writing = threading.Lock()
        log.prepare()
        self._replica = CatalogReplica(log)
        self._compaction = CatalogCompaction(log, clock, self._replica, policy=policy, observer=self._observer)
        self._look_at_the_clock(self.history.catalog(self.history.latest))

    def _look_at_the_clock(self, latest: Catalog) -> None:
        if latest.version:
            self.clock.known(latest.commit)
            ahead = physical_ms(latest.commit) - int(self.clock.steady.host_clock.now() * 1000)
            if ahead > self.clock.max_skew_ms:
                self._observer.event(_CLOCK_AHEAD, {"version": latest.version, "ahead_seconds": ahead / 1000})

    # --- looking ------------------------------------------------------------------------------------------------

    @property
    def history(self) -> RetainedVersions:
        """The retained versions, immutable."""
        return self._replica.history

    def catalog(self, version: int) -> Catalog:
        """The catalog of exactly this version.

        Raises:
            CatalogVersionNotFound: it is not retained, or does not exist yet.
        """
        return self.history.catalog(whole("version", version))

    def at(self, time: Timestamp) -> Catalog:
        """The catalog in force at `time`.

        Raises:
            TimeBeforeHistory: `time` is below the earliest retained activation.
        """
        return self.history.at(whole("time", time))

    def active(self) -> Catalog:
        """The catalog in force now; while a jump of the clock is in doubt, as if it had not jumped."""
        return self.at(self.clock.present())

    def listen(self, listener: Listener) -> None:
        """Call `listener` with each version from the next one on.

        Raises:
            InvalidInput: it cannot be called.
        """
        self._replica.listen(listener)

    # --- changing -----------------------------------------------------------------------------------------------

    def execute(self, commands: Sequence[Command], *, delay_seconds: float | None = None,
                wait: bool = True) -> Executed:
        """Carry out a batch as one version, or none of it; a batch that changes nothing makes no version.

        Returns once the version is ready here and in force on every node; without `wait`, once it is ready here.

        Args:
            commands: checked in order, each against what those before it leave.
            delay_seconds: instead of the service's own; 0 for a version in force at once.
            wait: whether to sleep until every node agrees that the version is in force.

        Raises:
            CommandRefused: a command does not fit; raised after the version that it was checked against is in force.
            RetriesExhausted: `MAX_ATTEMPTS` attempts lost against other writers; nothing was changed.
            OutcomeUnknown: the store did not say whether it took the version, and it could not be seen.
            ClockJumped: the clock is off, and nothing has confirmed it; nothing was changed.
            ClockSkewExceeded: the log's latest version was committed so far ahead of this clock that no caller should
                wait for the next one; nothing was changed. Without `wait` it is made all the same.
            Busy: called by a listener.
            InvalidInput: the delay is negative, or there are too many commands.
        """
        self._compaction.require_open()
        if self._replica.is_telling:
            raise Busy("a listener cannot execute commands: the version that it was given counts as ready only when "
                       "it has returned; execute them in another thread, and do not wait for that one")
        delay_ms = self._delay_ms if delay_seconds is None else milliseconds(delay_seconds, name="delay_seconds")
        batch: tuple[Any, ...] = tuple(commands) if hasattr(commands, "__iter__") else (commands,)
        for command in batch:
            if not callable(getattr(command, "changes", None)):
                raise InvalidInput(f"{command!r} is no command; give a list of commands, such as [CreateSchema('A')]")
        try:
            with self._writing:
                catalog, planned, attempts = self._write(batch, delay_ms, wait)
        finally:
            self._replica.tell_news(self._observer)
        # No call waits for a time while it keeps others from writing.
        if wait and catalog.version:
            self.clock.wait_until(self._ensured(catalog))
        if isinstance(planned, CommandRefused):
            raise planned
        return Executed(version=catalog.version, applied=planned.applied, activation=catalog.activation,
                        ensured=self._ensured(catalog), attempts=attempts)

    def _write(self, commands: Sequence[Command], delay_ms: int,
               wait: bool) -> tuple[Catalog, PlannedUpdate | CommandRefused, int]:
        """The version that the batch made, or that it was judged by; what was planned or refused; after how many tries.
        """
        for attempt in range(1, MAX_ATTEMPTS + 1):
            self._replica.take_in()  # what is refused or needless is judged by the log, not by a copy left behind
            latest = self.history.catalog(self.history.latest)
            try:
                planned = plan_update(latest, commands)
            except CommandRefused as refused:
                return latest, refused, 0
            if not planned.changes:
                return latest, planned, 0
            update = self._next(latest, planned, delay_ms, wait)
            if isinstance(self.log.append(update), Appended):
                # Without asking the store again: a failure of that could not be distinguished from one of the append.
                made = applied(update, latest)
                self._replica.add(made)
                return made, planned, attempt
        raise RetriesExhausted(attempts=MAX_ATTEMPTS, version=self.history.latest + 1)

    def _next(self, latest: Catalog, planned: PlannedUpdate, delay_ms: int, wait: bool) -> Update:
        now = self.clock.now()
        self._require_near(now, "it was given out while the clock was ahead, and timestamps never go back: make a new "
                                "HybridClock, or wait")
        # A version follows the one before it in time, also after one with a long delay or from a faster clock.
        commit = max(now, latest.commit + 1)
        if wait:
            self._require_near(commit, f"it follows version {latest.version}, whose writer's clock was ahead if this "
                                       f"one is right: wait, or execute with wait=False to have a version that is in "
                                       f"force only then")
        activation = max(add_ms(commit, delay_ms), latest.activation + 1)
        return Update(version=latest.version + 1, commit=commit, delay_ms=delay_ms, activation=activation,
                      next_id=planned.next_id, changes=planned.changes)

    def _require_near(self, commit: Timestamp, advice: str) -> None:
        limit = self.clock.max_skew_ms + int(self.clock.steady.max_jump_seconds * 1000)
        ahead = self.clock.ahead_ms(commit)
        if ahead > limit:
            raise ClockSkewExceeded(time=commit, ahead_ms=ahead, limit_ms=limit, advice=advice)

    def _ensured(self, catalog: Catalog) -> Timestamp:
        return ensured_activation(catalog.activation, max_skew_ms=self.clock.max_skew_ms)

    # --- following ----------------------------------------------------------------------------------------------

    def poll(self) -> int:
        """Take in what the log holds and this node does not know yet; returns how many versions. Two reads if none.

        Called by a listener it does nothing: the version at hand comes first.

        Raises:
            RecordMissing, RecordDamaged, RecordTooNew: the log is broken; what is known stays as it was.
        """
        self._compaction.require_open()
        try:
            return self._replica.take_in()
        finally:
            self._replica.tell_news(self._observer)

    def wait_ready(self, version: int, wait_seconds: float) -> Catalog:
        """The catalog of a version, once it is registered here and every listener was called with it.

        It may be active only later: see `Executed.ensured`. Some thread must `poll` meanwhile.

        Raises:
            NotReady: it was not in time.
            CatalogVersionNotFound: history has moved past it.
            Closed: the service was closed.
            InvalidInput: the wait is negative.
        """
        whole("version", version)
        milliseconds(wait_seconds, name="wait_seconds")
        in_time = self._replica.wait(version, wait_seconds, lambda: self._compaction.owner.is_closed)
        if self.history.latest < version:
            self._compaction.require_open()
        if not in_time:
            raise NotReady(version=version, latest=self.history.latest)
        return self.catalog(version)

    # --- compaction ---------------------------------------------------------------------------------------------

    @property
    def pins(self) -> Pins:
        """The pins that hold versions of this catalog; every view takes them into account."""
        return self._compaction.pins

    def connect(self, source: ClusterSource) -> None:
        """Ask `source` from now on what the callers of `view` and `compact` do not say: which nodes there are, and what
        they need.

        Raises:
            InvalidInput: it is no `ClusterSource`.
        """
        self._compaction.source = source

    def view(self, *, budget: Budget | None = None, reports: Sequence[NodeReport] | None = None,
             topology: Topology | None = None, assignments: Assignments | None = None,
             low_watermark: Timestamp | None = None, term: int | None = None,
             conditions: Sequence[Condition] | None = None) -> CatalogView:
        """What a plan is made from: what is retained, and what the nodes and the pins need of it.

        What is not given is asked of the source (`connect`); without one it is not known, and then nothing is cut.

        Args:
            budget: is asked while the log's records are counted; each is read once.
            reports: one a node that answered.
            topology: all nodes that there are.
            assignments: which nodes must host which partitions.
            low_watermark: this node's.
            term: the coordinator's; the log refuses one below the last.
            conditions: states of keys of the log's store, read before the reports were, that must still hold when
                history is cut.

        Raises:
            RecordMissing, RecordDamaged, RecordTooNew: the log or a pin cannot be read.
            BudgetSpent, Closed: the budget has ended, the service was closed.
            InvalidInput: an argument is of another type.
        """
        self._compaction.require_open()
        told = None if reports is None else tuple(reports)
        held = None if conditions is None else tuple(conditions)
        with self._compaction.asking(budget) as asked:
            try:
                return self._compaction.view(asked, reports=told, topology=topology, assignments=assignments,
                                             low_watermark=low_watermark, term=term, conditions=held)
            finally:
                self._replica.tell_news(self._observer)

    def plan(self, policy: CatalogPolicy | None = None, *, view: CatalogView | None = None) -> CatalogPlan:
        """The decision, with its explanation: up to which version history can be cut, and what keeps it from more.

        Raises:
            UnsafeCompaction: the policy chose more than is safe.
            AssignmentsMissing: the assignments of a live table of the candidate version are not known.
            InvalidInput: two reports of one node, or an argument is of another type.
            Closed: the service was closed.
        """
        self._compaction.require_open()
        found, asked = self.view() if view is None else view, policy or self._compaction.policy
        return plan_of(found, asked, chosen(found, asked) if may_cut(found) else None, self.log)

    def compact(self, plan: CatalogPlan | None = None, *, policy: CatalogPolicy | None = None,
                executor: Executor | None = None, budget: Budget | None = None, observer: Observer | None = None,
                fence: CommitFence | None = None) -> Done[CutReport] | Skipped | Failed:
        """Cut history as planned, and delete what lies below. Never cuts what a node, a pin or a policy may still need.

        Without complete reports of the nodes it is `Skipped`, and names the missing ones. Several services of one log
        may try at once: one cuts, the others are `Skipped`, or `Failed(CatalogMoved)` if they were given a plan.

        Args:
            plan: of this catalog; default: what `plan(policy)` makes now.
            policy: instead of the service's own.
            executor: nothing is rewritten elsewhere: a snapshot is small, and this thread writes it.
            budget: is asked before each piece of a snapshot, and between deletes.
            observer: notified, besides the service's own.
            fence: entered around each attempt to put the snapshot in the place of what lies below.

        Raises:
            InvalidInput: the plan is of another catalog, or comes with a policy; an argument is of another type.
            Closed: the service was closed.
        """
        self._compaction.require_open()
        if plan is not None and policy is not None:
            raise InvalidInput("a plan and a policy were given; a plan has its policy already: give one of them")
        return self._compaction.compact(plan, policy, budget, observer, fence)

    def reclaim(self, *, budget: Budget | None = None) -> Done[CatalogReclaim] | Skipped | Failed:
        """Delete what lies below the cut, if a `compact` did not come to it.

        Raises:
            Closed: the service was closed.
        """
        self._compaction.require_open()
        return self._compaction.reclaim(budget)

    def verify(self, *, budget: Budget | None = None) -> VerifyReport:
        """Read the whole log, hold it against what is in memory, and list what is damaged, missing or left over.

        Raises:
            BudgetSpent, Closed: the budget has ended, the service was closed.
            Busy: the log was cut again and again while it was read.
        """
        self._compaction.require_open()
        with self._compaction.asking(budget) as asked:
            return verify_log(self.log, self.history, asked)

    def status(self) -> CatalogStatus:
        """The catalog in numbers, from memory.

        Raises:
            Closed: it was closed.
        """
        self._compaction.require_open()
        compaction, history = self._compaction, self.history
        error = compaction.last_error or self._replica.last_error
        return CatalogStatus(
            is_busy=compaction.owner.is_running, failures=compaction.failures + self._replica.failures,
            last_error="" if error is None else f"{type(error).__name__}: {error}", earliest=history.earliest,
            latest=history.latest, versions=len(history))

    def audit(self) -> None:
        """Check the versions in memory against their own rules; `verify` holds them against the log. O(versions x
        objects).

        Raises:
            AuditFailed: one is broken.
            Closed: it was closed.
        """
        self._compaction.require_open()
        self._replica.audit()

    def close(self) -> None:
        """Cancel what runs and wait for its end; callers that wait for a version get `Closed`. The log's store stays
        open.

        Raises:
            Busy: called from within a compaction, by an observer or a fence; nothing was done.
        """
        self._compaction.owner.close()
        self._replica.wake()

    def __repr__(self) -> str:
        return f"CatalogService(versions {self.history.earliest} to {self.history.latest})"


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
