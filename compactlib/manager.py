# SPDX-License-Identifier: Apache-2.0
"""`CompactionManager`: compacts many stores, one at a time on each disk, disks side by side.

Each disk has one `PeriodicService`, and each of its calls is the turn of one store: a requested store or a store low on
space, else the store that has been due for longest. A turn compacts the store, or runs one slice of its `reclaim` after
a compaction. A long reclaim, such as a hard delete, is cut into slices, so that other stores of the disk get turns in
between.

How a turn ends, and when the store is due again:

| `compact` or `reclaim` | the store is due again |
|---|---|
| returns a report, partial or not | at its next period; the reclaim follows at once, slice by slice |
| raises `Busy`, or `BudgetSpent` for another reason than bytes | at its next period; no failure |
| raises `Closed` | at once, after its opener has opened it again; without an opener never: it is shown as closed |
| raises anything else | for a compaction, after `retry_seconds`, doubled with each failure until a reclaim returns |

The turns of other stores continue.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterable
from typing import Any, Protocol, Self, TypeAlias

import attrs

from compactlib._arguments import is_above, is_fraction
from compactlib.budget import Budget
from compactlib.clock import Clock, SystemClock
from compactlib.contract import Compaction
from compactlib.errors import BudgetSpent, Busy, Closed, InvalidInput, NotFound, StorageError
from compactlib.guard import becomes_free, is_mine
from compactlib.observer import Observer, notify
from compactlib.report import Table
from compactlib.service import PeriodicService

_LOGGER = logging.getLogger("compactlib.services")

_NEVER = float("inf")
_SLICE_SECONDS = 10.0
_MAX_SLICE_SECONDS = 640.0
_ROOM_SECONDS = 1.0
"""How often the manager reads the free space of a store."""


@attrs.frozen
class Periodic:
    """Compacts each store at the start of the manager, and then once a period.

    Attributes:
        every_seconds: the period, > 0 and finite.

    Raises:
        InvalidInput: the period is not above 0, or not finite; without this trigger stores have no period.
    """

    every_seconds: float = attrs.field(default=7 * 86_400.0, validator=is_above(0))


@attrs.frozen
class OnRequest:
    """Lets `CompactionManager.request` compact a store, before all stores that are due by time."""


@attrs.frozen
class LowSpace:
    """Compacts a store of a fixed capacity (`HasCapacity`) when it is low on space, before all that are due by time.

    Attributes:
        fraction: the free part of the capacity below which a store is low on space, 0 to 1; 0 turns the trigger off.

    Raises:
        InvalidInput: the fraction is not in that range.
    """

    fraction: float = attrs.field(default=1 / 8, validator=is_fraction)


Trigger: TypeAlias = Periodic | OnRequest | LowSpace


class HasCapacity(Protocol):
    """A store of a fixed capacity, to which `LowSpace` applies."""

    @property
    def free_fraction(self) -> float:
        """The free part of the capacity, 0 to 1, from memory. Read once a second."""


@attrs.define(eq=False)
class _Entry:
    name: str
    disk: str
    store: Compaction
    opener: Callable[[], Compaction] | None
    arguments: dict[str, Any]
    new_budget: Callable[[], Budget] | None
    due: float
    requested: bool = False
    low_at: float | None = None  # the free part at which it was last compacted for low space
    reclaims: bool = False  # whether the next turn is a slice of its reclaim
    slices: int = 0  # in a row
    failures: int = 0  # in a row
    last: str = ""
    last_reclaim: str = ""
    is_closed: bool = False
    is_reopened: bool = False  # since the last turn that succeeded
    is_removed: bool = False
    budget: Budget | None = None  # of the present turn
    held: threading.RLock = attrs.field(factory=threading.RLock)  # during a turn

    def cancel(self) -> None:
        budget = self.budget
        if budget is not None:
            budget.cancel()

    @property
    def state(self) -> str:
        if self.budget is not None:
            return "running"
        if self.is_closed:
            return "closed"
        return "requested" if self.requested else "failing" if self.failures else "waiting"


class CompactionManager:
    """Compacts stores when they are due, low on space, or requested. Threads may share it.

    Use it in a `with`, or call `start` and `stop`; a host without threads calls `run_pending` regularly.

    Args:
        triggers: at most one of each kind; by default all three. `LowSpace()` always applies, so that no store fills up
            unnoticed; `LowSpace(fraction=0)` turns it off.
        retry_seconds: the delay after a store's first failure, > 0; doubles with each further failure.
        max_retry_seconds: the longest delay.
        clock: its `monotonic()` decides when a store is due.
        observer: receives each failure, and the first success after it.

    Attributes:
        failures: the number of turns that failed.
        last_error: the error of the last failed turn.

    Raises:
        InvalidInput: two triggers are of one kind, or a delay is not above 0.
    """

    def __init__(self, triggers: Iterable[Trigger] = (Periodic(), OnRequest(), LowSpace()), *,
                 retry_seconds: float = 60.0, max_retry_seconds: float = 6 * 3_600.0, clock: Clock | None = None,
                 observer: Observer | None = None) -> None:
        chosen: dict[type[Trigger], Any] = {}
        for trigger in triggers:
            if type(trigger) not in (Periodic, OnRequest, LowSpace) or type(trigger) in chosen:
                raise InvalidInput(f"the triggers have {trigger!r}; give at most one each of Periodic(), OnRequest() "
                                   f"and LowSpace()")
            chosen[type(trigger)] = trigger
        self._every: float = chosen[Periodic].every_seconds if Periodic in chosen else _NEVER
        self._takes_requests = OnRequest in chosen
        self._low_fraction: float = chosen.get(LowSpace, LowSpace()).fraction
        if not (retry_seconds > 0 and max_retry_seconds > 0):
            raise InvalidInput(f"retry_seconds is {retry_seconds}, max_retry_seconds {max_retry_seconds}; give > 0")
        self._retry, self._max_retry = retry_seconds, max_retry_seconds
        self._clock: Clock = SystemClock() if clock is None else clock
        self._observer = observer
        self._lock = threading.RLock()
        self._entries: dict[str, _Entry] = {}
        self._services: dict[str, PeriodicService] = {}
        self._is_started = False
        self._turns = 0
        self.failures: int = 0
        self.last_error: BaseException | None = None

    def add(self, name: str, store_or_opener: Compaction | Callable[[], Compaction], *, disk: str | None = None,
            policy: Any = None, executor: Any = None, fence: Any = None,
            new_budget: Callable[[], Budget] | None = None) -> None:
        """Add a store; with the trigger `Periodic` it is due at once.

        Args:
            name: unique in the manager.
            store_or_opener: the store, or a function that opens it. The function is called now, and again if the
                store is closed at its turn. The host closes the stores.
            disk: name of its disk; default the device of its `folder`, if it has one.
            policy: instead of the store's own.
            executor: runs the copying; default the manager's thread.
            fence: entered around each commit.
            new_budget: makes the budget of one compaction; default one without limits.

        Raises:
            InvalidInput: the name is taken, or the store has no `compact`, `reclaim` or `status`.
            StorageError: the device of its folder cannot be read.
        """
        opener: Callable[[], Compaction] | None = None
        store: Any = store_or_opener
        if callable(store) and (isinstance(store, type) or not hasattr(store, "compact")):
            opener, store = store, store()
        for method in ("compact", "reclaim", "status"):
            if not callable(getattr(store, method, None)):
                raise InvalidInput(f"{store!r:.100} has no {method}(); give what offers compactlib.contract.Compaction")
        folder = getattr(store, "folder", None)
        where = disk if disk is not None else "" if folder is None else disk_of(folder)
        arguments = {"policy": policy, "executor": executor, "fence": fence}
        due = self._clock.monotonic() if self._every != _NEVER else _NEVER
        with self._lock:
            if name in self._entries:
                raise InvalidInput(f"there is a store {name!r} already; names have to be unique")
            service = self._services.get(where)
            if service is None:
                service = self._services[where] = PeriodicService(
                    lambda budget: self._take_turn(where, budget), name=f"compactions of disk {where or '-'}",
                    retry_seconds=self._retry, max_retry_seconds=self._max_retry, clock=self._clock)
            self._entries[name] = _Entry(name, where, store, opener, arguments, new_budget, due)
            if self._is_started:
                service.start()
        service.wake()

    def remove(self, name: str, *, wait_seconds: float = 30.0) -> None:
        """Remove a store: cancel its turn, and wait for the end of it.

        Args:
            name: the store's name.
            wait_seconds: how long to wait.

        Raises:
            NotFound: there is no store of this name.
            Busy: the turn has not ended in time, or makes this call itself. The store is removed; no turn follows.
        """
        with self._lock:
            entry = self._found(name)
            entry.is_removed = True
            del self._entries[name]
        entry.cancel()
        if is_mine(entry.held):
            raise Busy(f"the store {name!r} is removed, and its present turn, which called this, is its last")
        if not becomes_free(entry.held, wait_seconds):
            raise Busy(f"the store {name!r} is removed, and its last turn still runs after {wait_seconds:g} seconds")

    def request(self, name: str) -> None:
        """Have a store compacted next; a request during its compaction is dropped.

        Raises:
            NotFound: there is no store of this name.
            InvalidInput: the manager has no trigger `OnRequest`.
        """
        if not self._takes_requests:
            raise InvalidInput("this manager takes no requests; give it the trigger OnRequest()")
        with self._lock:
            entry = self._found(name)
            if entry.budget is None or entry.reclaims:
                entry.requested = True
        self._services[entry.disk].wake()

    def report(self) -> Table:
        """Return a table with a row for each store.

        Its columns: `store`; `disk`; `state`: `running`, `requested`, `failing`, `waiting` or `closed`; `failures` in a
        row; the result of the `last` compaction and of the `last_reclaim`; `due_in_seconds`: `None` if it is not due by
        time.
        """
        now = self._clock.monotonic()
        with self._lock:
            rows = [{"store": entry.name, "disk": entry.disk, "state": entry.state, "failures": entry.failures,
                     "last": entry.last, "last_reclaim": entry.last_reclaim,
                     "due_in_seconds": None if entry.due == _NEVER else max(0.0, entry.due - now)}
                    for entry in self._entries.values()]
        return Table.from_dicts(rows)

    def start(self) -> None:
        """Start one thread for each disk; starting again does nothing."""
        with self._lock:
            self._is_started = True
            for service in self._services.values():
                service.start()

    def run_pending(self) -> int:
        """Take all due turns in the caller's thread, for hosts without threads; return their number."""
        before = self._turns
        for service in list(self._services.values()):
            service.wake()  # the free space of a store may have changed
            while service.run_pending():
                pass
        return self._turns - before

    def stop(self, *, wait_seconds: float = 30.0) -> None:
        """Cancel the present turns, wait for their end, and begin no other; stopping again waits again.

        Raises:
            Busy: a turn has not ended in time, or makes this call itself. No other turn begins.
        """
        with self._lock:
            self._is_started = False
            services, entries = list(self._services.values()), list(self._entries.values())
        for service in services:
            service.cancel()
        for entry in entries:
            entry.cancel()
        for service in services:
            service.stop(wait_seconds=wait_seconds)

    def wait_until_idle(self, seconds: float = 60.0) -> None:
        """Wait until no turn runs and no store is due; a store that waits for a retry is not due.

        Raises:
            Busy: `seconds` have passed.
        """
        clock = SystemClock()
        end = clock.monotonic() + seconds
        while any(entry.budget is not None or self._is_due(entry) for entry in list(self._entries.values())):
            if clock.monotonic() > end:
                raise Busy(f"the manager has work left after {seconds:g} seconds; wait longer, or see report()")
            clock.sleep(0.01)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _found(self, name: str) -> _Entry:
        entry = self._entries.get(name)
        if entry is None:
            raise NotFound(f"there is no store {name!r}")
        return entry

    def _is_due(self, entry: _Entry) -> bool:
        return not entry.is_closed and (entry.requested or entry.due <= self._clock.monotonic())

    # A turn

    def _take_turn(self, disk: str, budget: Budget) -> float | None:
        """Take the turn of the store that comes first; return in how many seconds the next may be due."""
        entries = [entry for entry in list(self._entries.values()) if entry.disk == disk]
        have_capacity = [self._note_room(entry) for entry in entries]
        ready = [entry for entry in entries if self._is_due(entry)]
        if not ready:
            waits = [entry.due - self._clock.monotonic() for entry in entries if not entry.is_closed]
            if any(have_capacity):
                waits.append(_ROOM_SECONDS)
            wait = min(waits, default=_NEVER)
            return None if wait == _NEVER else max(0.0, wait)
        entry = min(ready, key=lambda entry: (not entry.requested, entry.due, entry.reclaims))
        with entry.held:
            try:
                if not entry.is_removed:
                    self._turns += 1
                    self._work(entry, budget)
            finally:
                entry.budget = None
        return 0.0

    def _note_room(self, entry: _Entry) -> bool:
        """Request a compaction if the store is low on space; return whether its free space can be read."""
        try:
            free: float | None = getattr(entry.store, "free_fraction", None) if self._low_fraction else None
        except Exception as error:  # of a store of the host
            _LOGGER.warning("the free space of %r cannot be read: %r", entry.name, error, exc_info=error)
            return False
        if free is None or free >= self._low_fraction:
            entry.low_at = None
        elif entry.low_at is None or free < entry.low_at:
            # A store that stays low after a compaction is compacted again only when it has less free space.
            entry.requested, entry.reclaims, entry.low_at = True, False, free
        return free is not None

    def _work(self, entry: _Entry, service_budget: Budget) -> None:
        is_slice = entry.reclaims and not entry.requested
        try:
            report = self._reclaim(entry, service_budget) if is_slice else self._compact(entry, service_budget)
        except Busy as error:
            reason = error.reason if isinstance(error, BudgetSpent) else ""
            if reason == "bytes":
                self._fail(entry, error)
            elif _is_closed(entry.store):
                self._note_closed(entry, Closed(f"it was closed while it was being compacted ({error})"))
            else:
                self._rest(entry, str(error), is_slice=is_slice, reclaims=is_slice and reason == "deadline")
        except Closed as error:
            self._note_closed(entry, error)
        except BaseException as error:
            if not isinstance(error, Exception) and not self._services[entry.disk].is_own_thread:
                raise
            self._fail(entry, error)
        else:
            entry.is_reopened = False
            is_partial = bool(getattr(report, "is_partial", False))
            self._rest(entry, str(report).partition("\n")[0], is_slice=is_slice,
                       reclaims=is_partial or not is_slice)

    def _compact(self, entry: _Entry, service_budget: Budget) -> Any:
        given = Budget(clock=self._clock) if entry.new_budget is None else entry.new_budget()
        budget = self._begin(entry, service_budget, given)
        return entry.store.compact(budget=budget, **entry.arguments)

    def _reclaim(self, entry: _Entry, service_budget: Budget) -> Any:
        # Longer and longer slices: a slice that is too short for a piece of the work does nothing.
        seconds = min(_SLICE_SECONDS * 2.0 ** min(entry.slices, 10), _MAX_SLICE_SECONDS)
        budget = self._begin(entry, service_budget, Budget(deadline=self._clock.now() + seconds, clock=self._clock))
        return entry.store.reclaim(budget=budget)

    @staticmethod
    def _begin(entry: _Entry, service_budget: Budget, given: Budget) -> Budget:
        entry.budget = budget = given.child()
        if service_budget.cancelled or entry.is_removed:
            budget.cancel()  # `stop` or `remove` came before this budget was in `entry`
        return budget

    def _rest(self, entry: _Entry, last: str, *, is_slice: bool, reclaims: bool) -> None:
        """End a turn: a slice of the reclaim is due at once, or a compaction at the next period."""
        if is_slice:
            entry.last_reclaim = last
        else:
            entry.last, entry.requested = last, False
        entry.slices = entry.slices + 1 if reclaims and is_slice else 0
        entry.reclaims = reclaims
        entry.due = self._clock.monotonic() + (0.0 if reclaims else self._every)
        if is_slice and entry.failures:
            # Not after a compaction: the reclaim that follows each may be what fails.
            failures, entry.failures = entry.failures, 0
            notify(self._observer, "compaction_recovered", work=entry.name, lane=entry.disk, failures=failures)

    def _fail(self, entry: _Entry, error: BaseException) -> None:
        delay = min(self._retry * 2.0 ** min(entry.failures, 1000), self._max_retry)
        entry.failures += 1
        self.failures, self.last_error = self.failures + 1, error
        # A failing reclaim holds up no compaction: the next turn is one.
        entry.last, entry.requested, entry.reclaims = f"{type(error).__name__}: {error}", False, False
        entry.due = self._clock.monotonic() + delay
        _LOGGER.warning("the compaction of %r failed (%d in a row), and is tried again in %.1f s", entry.name,
                        entry.failures, delay, exc_info=error)
        notify(self._observer, "compaction_failing", work=entry.name, lane=entry.disk, error=type(error).__name__,
               message=str(error), failures=entry.failures, retry_in_seconds=delay)

    def _note_closed(self, entry: _Entry, error: Closed) -> None:
        if not _is_closed(entry.store) or entry.is_reopened:
            # An object that the policy uses is closed, or the opener returned a closed store.
            entry.is_reopened = False
            self._fail(entry, error)
        elif entry.opener is None:
            entry.last, entry.is_closed, entry.requested = str(error), True, False
        else:
            try:
                entry.store = entry.opener()
            except Exception as failure:
                self._fail(entry, failure)
            else:
                entry.is_reopened = True

    def __repr__(self) -> str:
        return f"<CompactionManager of {len(self._entries)} stores>"


def disk_of(folder: str | os.PathLike[str]) -> str:
    """Return the device of a folder, `major:minor`: equal for two folders on one file system.

    Partitions of one disk have different devices; such a host passes `disk=` to `CompactionManager.add`.

    Raises:
        StorageError: the folder cannot be read.
    """
    try:
        device = os.stat(folder).st_dev
    except OSError as error:
        raise StorageError.from_os(error, "stat", folder) from error
    return f"{os.major(device)}:{os.minor(device)}"


def _is_closed(store: Compaction) -> bool:
    try:
        store.status()
    except Closed:
        return True
    return False
