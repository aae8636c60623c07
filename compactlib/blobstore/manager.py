"""The manager at work: a thread for each disk that has something to do, and nothing decided here.

Who is next is decided by `ManagerState`. This class tells it what happens, carries out the runs that it hands out, and
waits. A host without threads calls `run_due` instead of `start`.

Its threads are daemons: a process that ends without `stop` does not wait for them, and what they had begun is resumed
when the stores are opened again. Whatever a store, a policy or an observer raises ends one run at most.
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
from compactlib.blobstore.store_compactions import StoreBusy
from compactlib.blobstore.triggers import Trigger
from compactlib.budget import Budget
from compactlib.clock import Clock, SystemClock
from compactlib.errors import AuditFailed, BudgetSpent, Busy, CompactlibError, InvalidInput, TaskFailed
from compactlib.observe import Observer, telling
from compactlib.outcome import Done, Failed, Outcome, Skipped
from compactlib.runtime.ownership import Run as OwnRun
from compactlib.runtime.turns import Turns

STORE_FAILING = "blobstore_store_failing"
"""A run of a store has failed: its name, the error, how often in a row, and when it is tried again."""
STORE_RECOVERED = "blobstore_store_recovered"
"""A store that was failing is well again."""
MANAGER_FAILING = "blobstore_manager_failing"
"""Handing out runs has failed, and is tried again: the error, how often in a row, and after which time."""

_LOOK_AGAIN_SECONDS = 60.0
"""How long the manager sleeps at most: a clock of the host's own may move without waking anybody."""


class ManagedStore(Protocol):
    """What the manager asks of a store. `ManagedBlobStore` is one for a `BlobStore`.

    One that also has a property `is_open` is not worked on any more once that is false after a run has failed.
    """

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
    """A run, what it may use up, and how its own doing is known on any thread."""

    run: Run
    store: ManagedStore
    budget: Budget
    mark: OwnRun = attrs.field(init=False)
    stopped: bool = False

    def __attrs_post_init__(self) -> None:
        self.mark = OwnRun(self.budget)


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
        self._observer = telling(observer)
        self._state = ManagerState(self._settings)
        self._stores: dict[str, ManagedStore] = {}
        self._jobs: dict[str, _Job] = {}
        self._changed = threading.Condition()
        self._turns: Turns | None = None
        self._workers: set[threading.Thread] = set()
        self._last_error: BaseException | None = None
        self._errors = 0

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
            self._wake()

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
            self._wake()

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
            self._wake()

    def request(self, name: str) -> Accepted | Refused:
        """Ask for a store to be checked next; see `ManagerState.request`."""
        with self._changed:
            answer = self._state.request(name)
            self._wake()
            return answer

    def report(self) -> ManagerReport:
        """The state of every store now."""
        with self._changed:
            error = self._last_error
            return ManagerReport.of(self._state, self._clock.monotonic(),
                                    periodic=Trigger.PERIODIC in self._settings.triggers, errors=self._errors,
                                    last_error="" if error is None else f"{type(error).__name__}: {error}")

    @property
    def last_error(self) -> BaseException | None:
        """What was raised last that nobody expected: by a run (none of the library's errors), or in its own thread."""
        return self._last_error

    # ---------------------------------------------------------------------------------------------------- running

    def start(self) -> None:
        """Begin, in threads of its own, which are daemons; does nothing if it has begun."""
        with self._changed:
            self._state.start(self._clock.monotonic())
            if self._turns is None:
                turns = Turns(self._turn, name="compaction-manager", event=MANAGER_FAILING, clock=self._clock,
                              observer=self._observer)
                turns.start()
                self._turns = turns

    def stop(self, timeout_seconds: float = 30.0) -> bool:
        """Hand out no more work, stop what runs, and wait for it; whether all of it ended in time.

        A run ends at the next record that it counts, decides about, copies or overwrites. What has not ended in time
        (a disk or a policy that hangs) goes on in its daemon thread, and hands out nothing when it ends. May be called
        without `start`, and again; `start` begins anew.

        Raises:
            Busy: called from within a run, on whichever thread: it cannot wait for its own end. It ends all the same.
        """
        # Threads are waited for by the system's time, whatever clock the stores go by.
        clock = SystemClock()
        deadline = clock.monotonic() + timeout_seconds
        with self._changed:
            for name in self._state.stop():
                self._cancel(name)
            turns, self._turns = self._turns, None
            is_inside = any(job.mark.is_mine for job in self._jobs.values())
        if turns is not None:
            turns.end()
            is_inside = is_inside or turns.is_mine
        if is_inside:
            raise Busy("the manager cannot be stopped from within one of its runs, whose end it would wait for; it "
                       "hands out nothing any more, stop it in another thread to wait")
        ended = turns is None or turns.stop(wait_seconds=timeout_seconds)
        with self._changed:
            left = deadline - clock.monotonic()
            return self._changed.wait_for(lambda: not self._jobs and not self._workers, max(left, 0.0)) and ended

    def poke(self) -> None:
        """Look at the clock now; for hosts whose clock moves in jumps."""
        with self._changed:
            self._wake()

    def _wake(self) -> None:
        if self._turns is not None:
            self._turns.wake()

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

    def _turn(self) -> float:
        """Begin what is due; in how many seconds to look again."""
        for job in self._take_jobs():
            worker = threading.Thread(target=self._work, args=(job,), name=f"compact-{job.run.disk}", daemon=True)
            with self._changed:
                self._workers.add(worker)
            try:
                worker.start()
            except BaseException as error:
                # No thread is to be had: the store is tried again later.
                self._note(error)
                with self._changed:
                    self._workers.discard(worker)
                self._settle(job, Failed(_named(job.run, error)))
                if not isinstance(error, Exception):
                    raise
        with self._changed:
            now = self._clock.monotonic()
            wake = self._state.next_wake(now)
        return _LOOK_AGAIN_SECONDS if wake is None else min(max(wake - now, 0.0), _LOOK_AGAIN_SECONDS)

    def _take_jobs(self) -> list[_Job]:
        with self._changed:
            jobs = []
            for run in self._state.tick(self._clock.monotonic()):
                self._jobs[run.store] = job = _Job(run, self._stores[run.store], Budget(clock=self._clock))
                jobs.append(job)
            return jobs

    def _work(self, job: _Job) -> None:
        try:
            self._carry_out(job)
        finally:
            with self._changed:
                self._workers.discard(threading.current_thread())
                self._changed.notify_all()

    def _carry_out(self, job: _Job) -> None:
        """Do it, and note how it ended, whatever that is; what is no `Exception` is raised after that."""
        try:
            with job.mark.inside():
                outcome = self._outcome(job)
        except CompactlibError as error:
            outcome = Failed(error)
        except BaseException as error:
            self._note(error)
            self._settle(job, Failed(_named(job.run, error)))
            if not isinstance(error, Exception):
                raise
            return
        self._settle(job, outcome)

    def _note(self, error: BaseException) -> None:
        with self._changed:
            self._last_error, self._errors = error, self._errors + 1

    def _settle(self, job: _Job, outcome: Outcome[Any]) -> None:
        """A run has ended."""
        # A store that was closed under the run is at rest, and no failure.
        is_closed = isinstance(outcome, Failed) and getattr(job.store, "is_open", True) is False
        with self._changed:
            before = self._entry_failures(job.run.store)
            stopped = is_closed or (job.stopped and isinstance(outcome, Failed)
                                    and isinstance(outcome.error, BudgetSpent))
            del self._jobs[job.run.store]
            now = self._clock.monotonic()
            self._state.finished(job.run.store, outcome, now, stopped=stopped, busy=isinstance(outcome, StoreBusy))
            if is_closed:
                self._state.set_started(job.run.store, False, now)
            after = self._entry_failures(job.run.store)
            retry_in = max((entry.retry_at - now for entry in self._state.stores if entry.name == job.run.store),
                           default=0.0)
            self._changed.notify_all()
            self._wake()
        if after > before and isinstance(outcome, Failed):
            self._observer.event(STORE_FAILING, {
                "store": job.run.store, "disk": job.run.disk, "error": type(outcome.error).__name__,
                "message": str(outcome.error), "failures": after, "retry_in_seconds": retry_in})
        elif before and not after:
            self._observer.event(STORE_RECOVERED, {"store": job.run.store, "disk": job.run.disk, "failures": before})

    def _outcome(self, job: _Job) -> Outcome[Any]:
        """Resume first, always: what an earlier process or a failed run has left stands in the way of a new plan."""
        budget = job.store.new_budget()
        with self._changed:
            # From here on it is this one that is cancelled; it may have been before it was there.
            job.budget = budget
            if job.stopped:
                budget.cancel()
        resumed = _checked(job.store.resume(budget))
        if isinstance(resumed, Failed | StoreBusy) or not job.run.checks:
            return resumed
        checked = _checked(job.store.check(budget))
        return resumed if isinstance(resumed, Done) and isinstance(checked, Skipped) else checked

    def _entry_failures(self, name: str) -> int:
        return sum(entry.failures for entry in self._state.stores if entry.name == name)

    def _cancel(self, name: str) -> None:
        job = self._jobs.get(name)
        if job is not None:
            job.stopped = True
            job.budget.cancel()

    def audit(self) -> None:
        """Check that what is being done is what the state machine handed out, and that its thread lives if it should.

        Raises:
            AuditFailed: it is not; the message names the stores.
            CompactlibError: the thread has ended although nobody stopped it; names the reason.
        """
        turns = self._turns
        if turns is not None:
            turns.audit()
        with self._changed:
            self._state.audit()
            running = {entry.name for entry in self._state.stores if entry.running is not None}
            if running != self._jobs.keys() or {entry.name for entry in self._state.stores} != self._stores.keys():
                raise AuditFailed(f"stores {sorted(running)} should be worked on, and {sorted(self._jobs)} are")

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        self.stop()

    def __repr__(self) -> str:
        return repr(self.report()).replace("ManagerReport", "CompactionManager")


def _checked(outcome: Outcome[Any]) -> Outcome[Any]:
    """A store of the host's own may answer anything."""
    if not isinstance(outcome, Done | Skipped | Failed):
        raise InvalidInput(f"a store has answered {outcome!r}; its resume() and check() have to return Done, Skipped "
                           f"or Failed")
    return outcome


def _named(run: Run, error: BaseException) -> TaskFailed:
    kind = type(error).__name__
    return TaskFailed(f"the run of store {run.store} ended in {kind}: {error}", task=f"{run.cause} {run.store}",
                      kind=kind, detail=repr(error))
