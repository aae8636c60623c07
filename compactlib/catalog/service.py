"""`CatalogService`: one node's catalog. Executes commands, follows the log, answers by version and time, cuts the log.

It is the edge where log, history and clock meet. No thread runs inside: `poll` looks for what others wrote, and a host
calls it from a thread, a timer or a notification of its own.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import attrs

from compactlib.catalog.arguments import whole
from compactlib.catalog.catalog import Catalog
from compactlib.catalog.commands import Command, PlannedUpdate, plan_update
from compactlib.catalog.errors import (
    ClockSkewExceeded,
    CommandRefused,
    NotReady,
    RecordMissing,
    RetriesExhausted,
)
from compactlib.catalog.history import CatalogHistory, HistoryView
from compactlib.catalog.log_model import AlreadyCompacted, Appended, Fence, LogState, SnapshotSaved
from compactlib.catalog.reclaim import reclaim
from compactlib.catalog.records import Update
from compactlib.catalog.recover import applied, recover_history
from compactlib.catalog.timestamp import HybridClock, Timestamp, add_ms, ensured_activation, milliseconds, physical_ms
from compactlib.catalog.update_log import MAX_ATTEMPTS, UpdateLog
from compactlib.errors import AuditFailed, Busy, CompactlibError, InvalidInput
from compactlib.observe import Observer
from compactlib.outcome import Done, Failed, Outcome, Skipped
from compactlib.runtime import tell, telling

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
"""Is told each version once and in order, before it counts as ready. What it raises is kept and logged."""

_CLOCK_AHEAD = "catalog_clock_ahead"


class CatalogService:
    """One node's view of the catalog over an update log. Any thread may call any method.

    Args:
        log: where versions are kept.
        clock: gives commit times; its skew is the cluster's limit.
        delay_seconds: how long after its commit a version becomes active: the time in which every node must hear of it.
        observer: told of versions (`catalog_version`) and cuts (`catalog_compacted`), of a log whose latest version
            was committed ahead of the clock by more than the skew (`catalog_clock_ahead`), and of clocks that jump.

    Raises:
        InvalidInput: the delay is negative.
        RecordMissing, RecordDamaged, RecordTooNew: the log cannot be recovered.
    """

    def __init__(self, log: UpdateLog, clock: HybridClock, *, delay_seconds: float = 0.5,
                 observer: Observer | None = None) -> None:
        self.log = log
        self.clock = clock
        self._delay_ms = milliseconds(delay_seconds, name="delay_seconds")
        self._observer = telling(observer)
        self._listeners: tuple[Listener, ...] = ()
        self._writing = threading.Lock()
        self._following = threading.RLock()
        self._told_in: int | None = None  # the thread in which listeners are told at the moment
        self._news: deque[tuple[str, dict[str, Any]]] = deque()
        self._ready = threading.Condition()
        log.prepare()
        self._history = CatalogHistory(recover_history(log))
        self._look_at_the_clock(self.view.catalog(self.view.latest))

    def _look_at_the_clock(self, latest: Catalog) -> None:
        if latest.version:
            self.clock.known(latest.commit)
            ahead = physical_ms(latest.commit) - int(self.clock.steady.host_clock.now() * 1000)
            if ahead > self.clock.max_skew_ms:
                self._observer.event(_CLOCK_AHEAD, {"version": latest.version, "ahead_seconds": ahead / 1000})

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
        """The catalog in force now; while a jump of the clock is in doubt, as if it had not jumped."""
        return self.at(self.clock.present())

    def listen(self, listener: Listener) -> None:
        """Tell `listener` each version from the next one on."""
        with self._ready:
            self._listeners += (listener,)

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
            RetriesExhausted: `MAX_ATTEMPTS` attempts lost against other writers; nothing was changed.
            OutcomeUnknown: the store did not say whether it took the version, and it could not be seen.
            ClockJumped: the clock is off, and nothing has confirmed it; nothing was changed.
            ClockSkewExceeded: the log's latest version was committed so far ahead of this clock that nobody should
                wait for the next one; nothing was changed. Without `wait` it is made all the same.
            Busy: called by a listener.
            InvalidInput: the delay is negative, or there are too many commands.
        """
        if self._told_in == threading.get_ident():
            raise Busy("a listener cannot execute commands: the version that it is told of counts as ready only when "
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
            self._tell_news()
        # Nobody waits for a time while they keep others from writing.
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
            self._take_in()  # what is refused or needless is judged by the log, not by a view left behind
            latest = self.view.catalog(self.view.latest)
            try:
                planned = plan_update(latest, commands)
            except CommandRefused as refused:
                return latest, refused, 0
            if not planned.changes:
                return latest, planned, 0
            update = self._next(latest, planned, delay_ms, wait)
            if isinstance(self.log.append(update), Appended):
                # Without asking the store again: a failure of that could not be told from one of the append.
                made = applied(update, latest)
                with self._following:
                    if self.view.latest < made.version:
                        self._register(made, cut=False)
                return made, planned, attempt
        raise RetriesExhausted(attempts=MAX_ATTEMPTS, version=self.view.latest + 1)

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
            RecordMissing, RecordDamaged, RecordTooNew: the log is broken; the view stays as it was.
        """
        try:
            return self._take_in()
        finally:
            self._tell_news()

    def _take_in(self) -> int:
        with self._following:
            if self._told_in is not None:
                return 0
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

    def _tell_news(self) -> None:
        """Tell the observer what has happened, in no lock."""
        while self._news:
            try:
                news = self._news.popleft()
            except IndexError:  # another thread was faster
                return
            self._observer.event(*news)

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
        if is_new:
            self._told_in = threading.get_ident()
            try:
                for listener in self._listeners:
                    tell(listener, catalog)
            finally:
                self._told_in = None
        with self._ready:
            if cut:
                self._history.restart_from(catalog)
            else:
                self._history.register(catalog)
            self._ready.notify_all()
        if is_new:
            self._news.append(("catalog_version", {"version": catalog.version, "activation": catalog.activation}))
        if cut:
            self._news.append(("catalog_compacted", {"earliest": catalog.version, "before": before}))

    def wait_ready(self, version: int, timeout_seconds: float) -> Catalog:
        """The catalog of a version, once it is registered here and every listener has heard of it.

        It may be active only later: see `Executed.ensured`. Somebody must `poll` meanwhile.

        Raises:
            NotReady: it was not in time.
            CatalogVersionNotFound: history has moved past it.
            InvalidInput: the timeout is negative.
        """
        whole("version", version)
        milliseconds(timeout_seconds, name="timeout_seconds")
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
            AuditFailed: the view and the log differ.
            RecordMissing, RecordDamaged, RecordTooNew: the log is broken.
        """
        self.poll()
        with self._following:
            self._history.audit()
            replayed = recover_history(self.log)
            for catalog in self.view:
                known = replayed.catalog(catalog.version) if replayed.has(catalog.version) else None
                if known is not None and known != catalog:
                    raise AuditFailed(f"{catalog} is not what its log replays to")
                if known is None and replayed.earliest <= catalog.version:
                    raise AuditFailed(f"{catalog} is not in the log")

    def __repr__(self) -> str:
        return f"CatalogService(versions {self.view.earliest} to {self.view.latest})"
