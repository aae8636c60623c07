"""Whose turn it is: the manager's decisions as a state machine. Times and reports go in, runs come out.

No thread, no clock, no store: `CompactionManager` is the edge that carries the runs out. Times are seconds on any one
clock that does not go back.

A store's turn comes, in this order on each disk:

1. because an admin asked, first come first served;
2. because an earlier compaction of it waits to be resumed, or a failed run to be tried again;
3. because its periodic check is due, the longest overdue first.

One disk runs one store at a time. A store that fails is tried again after a time that doubles with each failure in a
row; it stays listed with its error, and an admin's request tries it at once. One that somebody else is compacting is
left alone for the first of these times, which is no failure.
"""

from __future__ import annotations

from compactlib.blobstore.manager_model import (
    Accepted,
    Cause,
    ManagerSettings,
    Refused,
    Removed,
    Run,
    StoreEntry,
)
from compactlib.blobstore.triggers import Trigger
from compactlib.errors import AuditFailed, CompactlibError, InvalidInput, NotFound
from compactlib.outcome import Done, Failed, Skipped

_RANK: dict[Cause, int] = {"admin": 0, "resume": 1, "retry": 1, "periodic": 2}


class ManagerState:
    """The stores, and whose turn it is. Used by one thread at a time. Equal calls give equal runs."""

    def __init__(self, settings: ManagerSettings) -> None:
        self._settings = settings
        self._stores: dict[str, StoreEntry] = {}
        self._busy: dict[str, str] = {}
        self._requests = 0
        self._active = False

    @property
    def is_active(self) -> bool:
        """Whether runs are handed out."""
        return self._active

    @property
    def stores(self) -> tuple[StoreEntry, ...]:
        """Every store, in the order in which they were added."""
        return tuple(self._stores.values())

    # ------------------------------------------------------------------------------------------------- what is told

    def start(self, now: float) -> None:
        """Hand out runs from now on; every store has its first check at once."""
        if not self._active:
            self._active = True
            for entry in self._stores.values():
                entry.next_check_at = now

    def stop(self) -> tuple[str, ...]:
        """Hand out no more runs; requests that wait are forgotten. Returns the stores that are being worked on."""
        self._active = False
        for entry in self._stores.values():
            entry.asked = None
        return tuple(self._busy.values())

    def add(self, name: str, disk: str, now: float, *, enabled: bool = False, started: bool = True) -> None:
        """Take in a store.

        Raises:
            InvalidInput: there is one of this name.
        """
        if name in self._stores:
            raise InvalidInput(f"there is a store {name!r} already; names have to be unique")
        self._stores[name] = StoreEntry(name, disk, enabled, started, next_check_at=now)

    def remove(self, name: str) -> Removed | Refused:
        """Forget a store: only if it is disabled, or the manager is stopped, and nothing is done with it.

        Raises:
            NotFound: there is none of this name.
        """
        entry = self._entry(name)
        if entry.enabled and self._active:
            return Refused(name, "it is enabled; disable it first")
        if entry.running is not None:
            return Refused(name, "it is being worked on; try again when it has stopped")
        del self._stores[name]
        return Removed(name)

    def set_enabled(self, name: str, enabled: bool, now: float) -> bool:
        """Let a store be compacted, or not any more. Returns whether work on it has to be stopped.

        A store that is enabled has its next check at once; one that is disabled loses its request.

        Raises:
            NotFound: there is none of this name.
        """
        entry = self._entry(name)
        if enabled and not entry.enabled:
            entry.next_check_at = now
        if not enabled:
            entry.asked = None
        entry.enabled = enabled
        return not enabled and entry.running is not None

    def set_started(self, name: str, started: bool, now: float) -> None:
        """A store was opened, or closed. One that was opened is resumed and checked at once.

        Raises:
            NotFound: there is none of this name.
        """
        entry = self._entry(name)
        if started and not entry.started:
            entry.next_check_at = now
            entry.owes_resume = True
        if not started:
            entry.asked = None
        entry.started = started

    def request(self, name: str) -> Accepted | Refused:
        """An admin asks for a store to be checked, ahead of all that is due by time, without duplicates."""
        entry = self._stores.get(name)
        if entry is None:
            return Refused(name, "there is no such store")
        if not self._active:
            return Refused(name, "the manager is not running; start it")
        if Trigger.ADMIN not in self._settings.triggers:
            return Refused(name, f"the trigger {Trigger.ADMIN.value!r} is not configured")
        if not entry.may_run:
            return Refused(name, f"it is {'disabled; enable it' if entry.started else 'not started; open it'} first")
        if entry.running is not None and entry.running.checks:
            return Accepted(name, "running")
        if entry.asked is not None:
            return Accepted(name, "already queued")
        self._requests += 1
        entry.asked = self._requests
        return Accepted(name, "queued")

    def finished(self, name: str, outcome: Done[object] | Skipped | Failed, now: float, *,
                 stopped: bool = False, busy: bool = False) -> None:
        """A run has ended.

        Args:
            name: whose.
            outcome: in what.
            now: when.
            stopped: it failed only because it was told to stop: no failure, but something to resume.
            busy: it was skipped only because somebody else was compacting the store: asked again soon.

        Raises:
            CompactlibError: nothing was being done with it.
        """
        entry = self._entry(name)
        run = entry.running
        if run is None:
            raise CompactlibError(f"store {name} has ended a run that it never began")
        entry.running = None
        del self._busy[run.disk]
        entry.finished_at = now
        if isinstance(outcome, Failed):
            entry.outcome, entry.told = "stopped" if stopped else "failed", str(outcome.error)
            entry.owes_resume = True
            if run.checks and not entry.owes_check:
                entry.owes_check, entry.due_at = True, now
            if not stopped:
                entry.failures += 1
                entry.retry_at = now + self._wait_after(entry.failures)
            return
        if busy:
            entry.busy_until, entry.owes_resume = now + self._settings.retry_seconds, True
            if run.checks and not entry.owes_check:
                entry.owes_check, entry.due_at = True, now
            if entry.failures:
                entry.retry_at = entry.busy_until
        else:
            entry.failures = 0
        if isinstance(outcome, Done):
            entry.outcome, entry.told = "done", repr(outcome.stats)
            entry.compactions += 1
        else:
            entry.outcome, entry.told = "skipped", outcome.reason

    def _wait_after(self, failures: int) -> float:
        settings = self._settings
        # Beyond 2**60 the longest wait is reached whatever the first one was.
        return min(settings.retry_seconds * 2.0 ** min(failures - 1, 60), settings.max_retry_seconds)

    # ------------------------------------------------------------------------------------------------ what follows

    def tick(self, now: float) -> tuple[Run, ...]:
        """The runs that begin now: at most one for each disk that is idle. O(stores)."""
        if not self._active:
            return ()
        best: dict[str, tuple[tuple[float, ...], StoreEntry, Cause]] = {}
        for order, entry in enumerate(self._stores.values()):
            self._note_periodic(entry, now)
            turn = self._turn(entry, now)
            if turn is None or entry.disk in self._busy:
                continue
            cause, since = turn
            rank = (float(_RANK[cause]), since, float(order))
            if entry.disk not in best or rank < best[entry.disk][0]:
                best[entry.disk] = rank, entry, cause
        return tuple(self._begin(entry, cause) for _, entry, cause in best.values())

    def _note_periodic(self, entry: StoreEntry, now: float) -> None:
        if Trigger.PERIODIC in self._settings.triggers and entry.may_run and now >= entry.next_check_at:
            if not entry.owes_check:
                entry.owes_check, entry.due_at = True, entry.next_check_at
            entry.next_check_at = now + self._settings.check_seconds

    def _turn(self, entry: StoreEntry, now: float) -> tuple[Cause, float] | None:
        """Why the store's turn has come, and since when; `None` if it has not."""
        if not entry.may_run or entry.running is not None:
            return None
        if entry.asked is not None:
            return "admin", float(entry.asked)
        if entry.failures:
            return ("retry", entry.retry_at) if now >= entry.retry_at else None
        if now < entry.busy_until:
            return None
        if entry.owes_resume:
            return "resume", entry.due_at
        return ("periodic", entry.due_at) if entry.owes_check else None

    def _begin(self, entry: StoreEntry, cause: Cause) -> Run:
        checks = cause == "admin" or (cause != "resume" and entry.owes_check)
        run = Run(entry.name, entry.disk, cause, checks)
        entry.running = run
        entry.owes_resume = False
        entry.asked = None
        if checks:
            entry.owes_check = False
        self._busy[entry.disk] = entry.name
        return run

    def next_wake(self, now: float) -> float | None:
        """When `tick` may have something new though nothing was told meanwhile; `None` if never. O(stores)."""
        if not self._active:
            return None
        times: list[float] = []
        for entry in self._stores.values():
            if not entry.may_run:
                continue
            if Trigger.PERIODIC in self._settings.triggers:
                times.append(entry.next_check_at)
            if entry.disk not in self._busy and entry.running is None:
                if entry.failures and entry.asked is None:
                    times.append(entry.retry_at)
                elif entry.asked is None and now < entry.busy_until:
                    times.append(entry.busy_until)
                elif self._turn(entry, now) is not None:
                    times.append(now)
        return min(times, default=None)

    def audit(self) -> None:
        """Check that each disk is busy with one store, and that no store that may run is forgotten.

        Raises:
            AuditFailed: it is not so; the message names the store.
        """
        running = {entry.disk: entry.name for entry in self._stores.values() if entry.running is not None}
        if running != self._busy:
            raise AuditFailed(f"the disks are busy with {self._busy}, and running are {running}")
        for entry in self._stores.values():
            if entry.failures and entry.retry_at == float("inf"):
                raise AuditFailed(f"store {entry.name} has failed {entry.failures} times and is never tried again")
            if entry.failures and not entry.owes_resume and entry.running is None:
                raise AuditFailed(f"store {entry.name} is failing, but owes no resumption")
            if entry.asked is not None and not (entry.may_run and self._active):
                raise AuditFailed(f"store {entry.name} has a request that cannot be served")

    def _entry(self, name: str) -> StoreEntry:
        entry = self._stores.get(name)
        if entry is None:
            raise NotFound(f"there is no store {name!r}; known are {', '.join(map(repr, self._stores)) or 'none'}")
        return entry
