"""The manager at work: a thread for each disk that has something to do, and nothing decided here.

Who is next is decided by `ManagerState`. This class tells it what happens, carries out the runs that it hands out, and
waits. A host without threads calls `run_due` instead of `start`.
"""

from __future__ import annotations

import threading
from types import TracebackType
from typing import Any, Protocol, Self

import attrs

from compactlib.blobstore.disk import disk_of
from compactlib.blobstore.manager_model import Accepted, ManagerSettings, Refused, Removed, Run
from compactlib.blobstore.manager_report import ManagerReport
from compactlib.blobstore.manager_state import ManagerState
from compactlib.blobstore.triggers import Trigger
from compactlib.budget import Budget
from compactlib.clock import Clock, SystemClock
from compactlib.errors import BudgetSpent, CompactlibError, TaskFailed
from compactlib.observe import Observer
from compactlib.outcome import Done, Failed, Outcome, Skipped

STORE_FAILING = "blobstore_store_failing"
"""A run of a store has failed: its name, the error, how often in a row, and when it is tried again."""
STORE_RECOVERED = "blobstore_store_recovered"
"""A store that was failing is well again."""

_LOOK_AGAIN_SECONDS = 60.0
"""How long the manager sleeps at most: a clock of the host's own may move without waking anybody."""


class ManagedStore(Protocol):
    """What the manager asks of a store. `ManagedBlobStore` is one for a `BlobStore`."""

    @property
    def name(self) -> str:
        """What it is called; unique in the manager."""

    @property
    def folder(self) -> str:
        """Where it lies."""

    def new_budget(self) -> Budget:
        """What one run may use up; the manager cancels it to stop the run."""

    def resume(self, budget: Budget) -> Outcome[Any]:
        """Finish a compaction that was interrupted; `Skipped` if there is none."""

    def check(self, budget: Budget) -> Outcome[Any]:
        """Ask the policy, and carry out its plan if it has one; `Skipped` with the reason if not."""


@attrs.define
class _Job:
    """A run and what it may use up."""

    run: Run
    store: ManagedStore
    budget: Budget
    stopped: bool = False


class CompactionManager:
    """Looks after the compactions of many stores: one at a time on each disk, disks in parallel. Threads may share it.

    Args:
        settings: triggers and times.
        clock: where time comes from; its `monotonic()` decides when something is due.
        observer: told when a store begins to fail and when it is well again.
    """

    def __init__(self, settings: ManagerSettings | None = None, *, clock: Clock | None = None,
                 observer: Observer | None = None) -> None:
        self._settings = ManagerSettings() if settings is None else settings
        self._clock: Clock = SystemClock() if clock is None else clock
        self._observer = Observer() if observer is None else observer
        self._state = ManagerState(self._settings)
        self._stores: dict[str, ManagedStore] = {}
        self._jobs: dict[str, _Job] = {}
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._workers: set[threading.Thread] = set()

    # ---------------------------------------------------------------------------------------------------- stores

    def add(self, store: ManagedStore, *, disk: str | None = None, enabled: bool = False, started: bool = True) -> None:
        """Look after a store; it is compacted only once it is enabled.

        Args:
            store: the store.
            disk: what to call its disk; default the device of its folder.
            enabled: whether it may be compacted.
            started: whether it is open.

        Raises:
            InvalidInput: there is one of this name.
            StorageError: its disk cannot be found out.
        """
        where = disk_of(store.folder) if disk is None else disk
        with self._changed:
            self._state.add(store.name, where, self._clock.monotonic(), enabled=enabled, started=started)
            self._stores[store.name] = store
            self._changed.notify_all()

    def remove(self, name: str) -> Removed | Refused:
        """Look after a store no more; see `ManagerState.remove`.

        Raises:
            NotFound: there is none of this name.
        """
        with self._changed:
            answer = self._state.remove(name)
            if isinstance(answer, Removed):
                del self._stores[name]
            return answer

    def enable(self, name: str) -> None:
        """Let a store be compacted; its next check is due at once.

        Raises:
            NotFound: there is none of this name.
        """
        with self._changed:
            self._state.set_enabled(name, True, self._clock.monotonic())
            self._changed.notify_all()

    def disable(self, name: str) -> None:
        """Do not compact a store any more. What is being done with it stops at the next record, and can be resumed.

        Raises:
            NotFound: there is none of this name.
        """
        with self._changed:
            if self._state.set_enabled(name, False, self._clock.monotonic()):
                self._cancel(name)

    def set_started(self, name: str, started: bool) -> None:
        """Tell that a store was opened or closed.

        Raises:
            NotFound: there is none of this name.
        """
        with self._changed:
            self._state.set_started(name, started, self._clock.monotonic())
            self._changed.notify_all()

    def request(self, name: str) -> Accepted | Refused:
        """Ask for a store to be checked next; see `ManagerState.request`."""
        with self._changed:
            answer = self._state.request(name)
            self._changed.notify_all()
            return answer

    def report(self) -> ManagerReport:
        """The state of every store now."""
        with self._changed:
            return ManagerReport.of(self._state, self._clock.monotonic(),
                                    periodic=Trigger.PERIODIC in self._settings.triggers)

    # ---------------------------------------------------------------------------------------------------- running

    def start(self) -> None:
        """Begin, in threads of its own; does nothing if it has begun."""
        with self._changed:
            self._state.start(self._clock.monotonic())
            if self._thread is None:
                self._thread = threading.Thread(target=self._loop, name="compaction-manager", daemon=True)
                self._thread.start()

    def stop(self, timeout_seconds: float = 30.0) -> bool:
        """Hand out no more work, stop what runs at its next record, and wait for it; whether all of it ended in time.

        May be called without `start`, and again; `start` begins anew.
        """
        with self._changed:
            for name in self._state.stop():
                self._cancel(name)
            thread, self._thread = self._thread, None
            threads = [each for each in (thread, *self._workers) if each is not None]
            self._changed.notify_all()
        for each in threads:
            each.join(timeout_seconds)
        return not any(each.is_alive() for each in threads)

    def poke(self) -> None:
        """Look at the clock now; for hosts whose clock moves in jumps."""
        with self._changed:
            self._changed.notify_all()

    def run_due(self) -> int:
        """Do all work that is due in this thread, one run after the other; returns how many runs it were.

        For hosts without threads, and for tests. Not together with `start`.
        """
        count = 0
        with self._changed:
            self._state.start(self._clock.monotonic())
        while jobs := self._take_jobs():
            for job in jobs:
                self._carry_out(job)
                count += 1
        return count

    def _loop(self) -> None:
        me = threading.current_thread()
        while True:
            with self._changed:
                if self._thread is not me:
                    return
                for job in self._take_jobs():
                    worker = threading.Thread(target=self._work, args=(job,), name=f"compact-{job.run.disk}",
                                              daemon=True)
                    self._workers.add(worker)
                    worker.start()
                now = self._clock.monotonic()
                wake = self._state.next_wake(now)
                if wake is None or wake > now:
                    self._changed.wait(_LOOK_AGAIN_SECONDS if wake is None else min(wake - now, _LOOK_AGAIN_SECONDS))

    def _take_jobs(self) -> list[_Job]:
        with self._changed:
            jobs = []
            for run in self._state.tick(self._clock.monotonic()):
                store = self._stores[run.store]
                self._jobs[run.store] = job = _Job(run, store, store.new_budget())
                jobs.append(job)
            return jobs

    def _work(self, job: _Job) -> None:
        try:
            self._carry_out(job)
        finally:
            with self._changed:
                self._workers.discard(threading.current_thread())

    def _carry_out(self, job: _Job) -> None:
        try:
            outcome = self._outcome(job)
        except CompactlibError as error:
            outcome = Failed(error)
        except Exception as error:
            outcome = Failed(_named(job.run, error))
        with self._changed:
            before = self._entry_failures(job.run.store)
            stopped = job.stopped and isinstance(outcome, Failed) and isinstance(outcome.error, BudgetSpent)
            del self._jobs[job.run.store]
            now = self._clock.monotonic()
            self._state.finished(job.run.store, outcome, now, stopped=stopped)
            after = self._entry_failures(job.run.store)
            retry_in = max((entry.retry_at - now for entry in self._state.stores if entry.name == job.run.store),
                           default=0.0)
            self._changed.notify_all()
        if after > before and isinstance(outcome, Failed):
            self._observer.event(STORE_FAILING, {
                "store": job.run.store, "disk": job.run.disk, "error": type(outcome.error).__name__,
                "message": str(outcome.error), "failures": after, "retry_in_seconds": retry_in})
        elif before and not after:
            self._observer.event(STORE_RECOVERED, {"store": job.run.store, "disk": job.run.disk, "failures": before})

    def _outcome(self, job: _Job) -> Outcome[Any]:
        """Resume first, always: what an earlier process or a failed run has left stands in the way of a new plan."""
        resumed = job.store.resume(job.budget)
        if isinstance(resumed, Failed) or not job.run.checks:
            return resumed
        checked = job.store.check(job.budget)
        return resumed if isinstance(resumed, Done) and isinstance(checked, Skipped) else checked

    def _entry_failures(self, name: str) -> int:
        return sum(entry.failures for entry in self._state.stores if entry.name == name)

    def _cancel(self, name: str) -> None:
        job = self._jobs.get(name)
        if job is not None:
            job.stopped = True
            job.budget.cancel()

    def audit(self) -> None:
        """Check that what is being done is what the state machine handed out.

        Raises:
            CompactlibError: it is not; the message names the stores.
        """
        with self._changed:
            self._state.audit()
            running = {entry.name for entry in self._state.stores if entry.running is not None}
            if running != self._jobs.keys() or {entry.name for entry in self._state.stores} != self._stores.keys():
                raise CompactlibError(f"stores {sorted(running)} should be worked on, and {sorted(self._jobs)} are")

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        self.stop()

    def __repr__(self) -> str:
        return repr(self.report()).replace("ManagerReport", "CompactionManager")


def _named(run: Run, error: Exception) -> TaskFailed:
    kind = type(error).__name__
    return TaskFailed(f"the run of store {run.store} ended in {kind}: {error}", task=f"{run.cause} {run.store}",
                      kind=kind, detail=repr(error))
