"""`CatalogService`: one node's catalog. Executes commands, follows the log, answers by version and time, cuts the log.

It is the edge where log, history and clock meet. No thread runs inside: `poll` looks for what others wrote, and a host
calls it from a thread, a timer or a notification of its own.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

import attrs

from compactlib.catalog.catalog import Catalog
from compactlib.catalog.commands import Command, PlannedUpdate, plan_update
from compactlib.catalog.errors import CatalogVersionNotFound, CommandRefused, NotReady, RecordMissing, RetriesExhausted
from compactlib.catalog.history import CatalogHistory, HistoryView
from compactlib.catalog.log_model import AlreadyCompacted, Appended, Fence, LogState, SnapshotSaved
from compactlib.catalog.reclaim import reclaim
from compactlib.catalog.records import Update
from compactlib.catalog.recover import applied, recover_history
from compactlib.catalog.timestamp import HybridClock, Timestamp, add_ms, ensured_activation, milliseconds
from compactlib.catalog.update_log import MAX_ATTEMPTS, UpdateLog
from compactlib.errors import CompactlibError, InvalidInput
from compactlib.observe import Observer
from compactlib.outcome import Done, Failed, Outcome, Skipped

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


Listener = Callable[[Catalog], None]
"""Is told each version in order, before it counts as ready; once, unless a listener raised, which stops the `poll`."""


class CatalogService:
    """One node's view of the catalog over an update log. Any thread may call any method.

    Args:
        log: where versions are kept.
        clock: gives commit times; its skew is the cluster's limit.
        delay_seconds: how long after its commit a version becomes active: the time in which every node must hear of it.
        observer: told of versions (`catalog_version`) and cuts (`catalog_compacted`).

    Raises:
        InvalidInput: the delay is negative.
        RecordMissing, RecordDamaged, RecordTooNew: the log cannot be recovered.
    """

    def __init__(self, log: UpdateLog, clock: HybridClock, *, delay_seconds: float = 0.5,
                 observer: Observer | None = None) -> None:
        self.log = log
        self.clock = clock
        self._delay_ms = milliseconds(delay_seconds, name="delay_seconds")
        self._observer = Observer() if observer is None else observer
        self._listeners: list[Listener] = []
        self._writing = threading.Lock()
        self._following = threading.RLock()
        self._ready = threading.Condition()
        log.prepare()
        self._history = CatalogHistory(recover_history(log))

    # --- looking ------------------------------------------------------------------------------------------------

    @property
    def view(self) -> HistoryView:
        """The retained versions, immutable."""
        return self._history.view

    def catalog(self, version: int) -> Catalog:
        """The catalog of exactly this version.

        Raises:
            CatalogVersionNotFound: it is not retained, or does not exist yet.
        """
        return self.view.catalog(version)

    def at(self, time: Timestamp) -> Catalog:
        """The catalog in force at `time`.

        Raises:
            TimeBeforeHistory: `time` is below the earliest retained activation.
        """
        return self.view.at(time)

    def active(self) -> Catalog:
        """The catalog in force now."""
        return self.at(self.clock.now())

    def listen(self, listener: Listener) -> None:
        """Tell `listener` each version from the next one on."""
        with self._following:
            self._listeners.append(listener)

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
            CommandRefused: a command does not fit; told after the version that it was checked against is in force.
            RetriesExhausted: `MAX_ATTEMPTS` attempts lost against other writers.
            InvalidInput: the delay is negative, or there are too many commands.
        """
        delay_ms = self._delay_ms if delay_seconds is None else milliseconds(delay_seconds, name="delay_seconds")
        with self._writing:
            for attempt in range(1, MAX_ATTEMPTS + 1):
                self.poll()  # what is refused or needless is judged by the log, not by a view left behind
                latest = self.view.catalog(self.view.latest)
                try:
                    planned = plan_update(latest, commands)
                except CommandRefused:
                    if latest.version and wait:
                        self.clock.wait_until(self._ensured(latest))
                    raise
                if not planned.changes:
                    return self._executed(latest, planned, 0, wait)
                outcome = self.log.append(self._next(latest, planned, delay_ms))
                if isinstance(outcome, Appended):
                    self.poll()
                    return self._executed(self.catalog(outcome.version), planned, attempt, wait)
        raise RetriesExhausted(attempts=MAX_ATTEMPTS, version=self.view.latest + 1)

    def _next(self, latest: Catalog, planned: PlannedUpdate, delay_ms: int) -> Update:
        # A version follows the one before it in time, also after one with a long delay or from a faster clock.
        commit = max(self.clock.now(), latest.commit + 1)
        activation = max(add_ms(commit, delay_ms), latest.activation + 1)
        return Update(version=latest.version + 1, commit=commit, delay_ms=delay_ms, activation=activation,
                      next_id=planned.next_id, changes=planned.changes)

    def _executed(self, catalog: Catalog, planned: PlannedUpdate, attempts: int, wait: bool) -> Executed:
        ensured = self._ensured(catalog)
        if wait and catalog.version:
            self.clock.wait_until(ensured)
        return Executed(version=catalog.version, applied=planned.applied, activation=catalog.activation,
                        ensured=ensured, attempts=attempts)

    def _ensured(self, catalog: Catalog) -> Timestamp:
        return ensured_activation(catalog.activation, max_skew_ms=self.clock.max_skew_ms)

    # --- following ----------------------------------------------------------------------------------------------

    def poll(self) -> int:
        """Take in what the log holds and this node does not know yet; returns how many versions. Two reads if none.

        Raises:
            RecordMissing, RecordDamaged, RecordTooNew: the log is broken; the view stays as it was.
        """
        with self._following:
            before = self.view.latest
            for _ in range(_MAX_LOOKS):
                state = self.log.state()
                known = 0 if state is None else state.latest
                if known < self.view.latest:
                    raise RecordMissing(key="latest", version=self.view.latest, expected=f"version {self.view.latest}, "
                                        f"which was there before; the log ends at {known}")
                if state is None or self._caught_up(state):
                    break
                try:
                    self._catch_up(state)
                except RecordMissing:
                    again = self.log.state()
                    if again is None or again.earliest == state.earliest:
                        raise
            return self.view.latest - before

    def _caught_up(self, state: LogState) -> bool:
        return state.latest <= self.view.latest and (state.earliest <= self.view.earliest or not state.compacted)

    def _catch_up(self, state: LogState) -> None:
        if state.compacted and state.earliest > self.view.latest:
            self._register(self.log.snapshot(state.earliest), cut=True)
        for record in self.log.read(self.view.latest + 1, state.latest):
            if isinstance(record, Update):
                self._register(applied(record, self.view.catalog(self.view.latest)), cut=False)
            else:
                self._register(record, cut=True)
        if state.compacted and state.earliest > self.view.earliest:
            self._register(self.catalog(state.earliest), cut=True)

    def _register(self, catalog: Catalog, *, cut: bool) -> None:
        is_new = catalog.version > self.view.latest
        before = self.view.earliest
        # Listeners first: a version counts as ready only after all of them have heard of it.
        for listener in self._listeners if is_new else ():
            listener(catalog)
        with self._ready:
            if cut:
                self._history.restart_from(catalog)
            else:
                self._history.register(catalog)
            self._ready.notify_all()
        if is_new:
            self._observer.event("catalog_version", {"version": catalog.version, "activation": catalog.activation})
        if cut:
            self._observer.event("catalog_compacted", {"earliest": catalog.version, "before": before})

    def wait_ready(self, version: int, timeout_seconds: float) -> Catalog:
        """The catalog of a version, once it is registered here and every listener has heard of it.

        It may be active only later: see `Executed.ensured`. Somebody must `poll` meanwhile.

        Raises:
            NotReady: it was not in time.
            CatalogVersionNotFound: history has moved past it.
            InvalidInput: the timeout is negative.
        """
        if timeout_seconds < 0:
            raise InvalidInput(f"timeout_seconds is {timeout_seconds}; give 0 or more")
        with self._ready:
            if not self._ready.wait_for(lambda: self.view.latest >= version, timeout_seconds):
                raise NotReady(version=version, latest=self.view.latest)
        return self.catalog(version)

    # --- cutting ------------------------------------------------------------------------------------------------

    def compact(self, version: int, fence: Fence | None = None) -> Outcome[SnapshotSaved]:
        """Cut the log so that `version` becomes the earliest, and delete what lies below.

        It trusts its caller that nobody needs what goes: `decide` finds that out, and `check_target` checks it.

        Raises:
            CatalogVersionNotFound: `version` is not retained here.
        """
        catalog = self.catalog(version)
        try:
            saved = self.log.save_snapshot(catalog, fence) if version else AlreadyCompacted(self.view.earliest)
        except CompactlibError as error:
            return Failed(error)
        try:
            reclaim(self.log)  # also what an attempt that died after its commit left behind
            self.poll()
        except CompactlibError as error:  # the cut stands; the next one deletes what is left
            self._observer.event("catalog_reclaim_failed", {"version": version, "error": str(error)})
        if isinstance(saved, AlreadyCompacted):
            return Skipped(f"the log begins at version {saved.earliest} already")
        return Done(saved)

    def audit(self) -> None:
        """Check the view, and that the log replays to it. Reads the whole log.

        Raises:
            AssertionError: the view and the log differ.
            RecordMissing, RecordDamaged, RecordTooNew: the log is broken.
        """
        with self._following:
            self.poll()
            self._history.audit()
            replayed = recover_history(self.log)
            try:
                for catalog in self.view:
                    known = replayed.catalog(catalog.version) if replayed.has(catalog.version) else None
                    assert known is None or known == catalog, f"{catalog} is not what its log replays to"
                    assert known is not None or catalog.version < replayed.earliest, f"{catalog} is not in the log"
            except CatalogVersionNotFound as error:
                raise AssertionError(str(error)) from error

    def __repr__(self) -> str:
        return f"CatalogService(versions {self.view.earliest} to {self.view.latest})"
