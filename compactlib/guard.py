# SPDX-License-Identifier: Apache-2.0
"""`Guard`: the lock of an open object, and whether the object can still be used.

An object that fails in the middle of a change closes itself, and opening it again is the only repair: recovery reads
the durable files, and is the same code after a crash. So nothing is repaired in memory.

    with guard.lock:
        guard.require_open()
        ...                        # checks, and all that needs room; an exception here leaves the object open
        guard.begin("an append")
        ...                        # changes; any exception here closes the object
        guard.done()

`lock` is a lock of C, so that an interrupt (Ctrl-C) comes before it is taken, inside the block, or after its release: a
`with` over functions of Python can end with the lock held. `begin` sets a flag, and `done` clears it. The next call of
`require_open` or `is_open` that finds the flag set closes the object, if it is called by the thread that has set it, or
while no thread holds the lock. So nothing has to be caught, and no exception can be missed.

Three rules for the lines between `begin` and `done`: no code of the caller's runs there (iterators, callbacks,
encodings), they begin no other change of this guard, and they do not call `is_open` or `require_open`.

Opening is a change too, and what leaves it releases what was opened:

    with guard.lock, guard.opening():
        guard.lock_folder(folder)
        ...                        # recovers

A closed object keeps its files and the lock of its folder while threads use them. `release` waits for the end of these
uses and then closes the files. The object's `close()` calls it, and so does `lock_folder` of the next object on the
same folder in this process, so that "open it again" works while the failed object still exists.

A compaction is a `Run`: one of a kind at a time, cancelled when the object is closed, and waited for by `release`:

    run = Run(self._guard, budget)
    with run.held:
        run.begin("compaction")
        ...                        # run.budget; each switch is a change with the guard's lock

In a forked child all guards are closed by name. Their locks are replaced, because another thread may have held them. A
`FolderLock` closes the child's copies of its descriptors, so that the child does not keep a folder locked.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager

from compactlib._closing import Closable
from compactlib._forks import OfOneProcess
from compactlib.budget import Budget
from compactlib.clock import SystemClock
from compactlib.errors import Busy, Closed
from compactlib.files.disk import StrPath
from compactlib.files.folder_lock import FolderLock

RELEASE_SECONDS = 30.0
"""How long `release` waits until the object is unused."""
_PATIENCE_SECONDS = 0.1
"""How often a thread that waits for a run checks whether the object is still open."""

# References remove themselves. Each use of the set is one call of C, which no thread and no interrupt divides.
_guards_of_folders: set[weakref.ref[Guard]] = set()
# Files and connections of a parent process. Never closed and never collected in the child: closing could write, or
# send a goodbye over the parent's connection.
_inherited: list[object] = []


class Guard(OfOneProcess):
    """The lock of one object that owns state in memory, and whether the object can be used.

    Args:
        name: the name of the object in messages, for example `"the log in /data/a"`.

    Attributes:
        lock: re-entrant; only for `with guard.lock:`. Read the attribute each time: a forked child has another lock.
        name: as given.
    """

    def __init__(self, name: str) -> None:
        self.name: str = name
        self.lock: threading.RLock = threading.RLock()
        self._changing: str | None = None  # the change that has begun
        self._changer = 0  # the thread of the last change
        self._reason: str | None = None  # why it is closed, and what to do
        self._uses: set[weakref.ref[threading.RLock]] = set()
        self._of_thread = threading.local()
        self._runs: dict[str, Run] = {}  # by kind: those that run, and those that ended after the last `Run.begin`
        self._releasing = threading.RLock()
        self._kept: list[Closable] = []
        self._folder: str | None = None
        self._folder_locks: list[FolderLock] = []
        super().__init__()

    # Changes

    def begin(self, what: str = "a change") -> None:
        """Begin a change, with the lock held: an exception before `done` closes the object.

        Args:
            what: the text for the message of `Closed`.

        Raises:
            Closed: the object is closed.
        """
        self.require_open()
        self._changer, self._changing = threading.get_ident(), what

    def done(self) -> None:
        """End the change: it is complete."""
        self._changing = None

    def undone(self) -> None:
        """End the change: it was taken back completely, so that the object stays open when an exception leaves."""
        self._changing = None

    @contextmanager
    def opening(self) -> Iterator[None]:
        """Make the block a change, with the lock held, and release the object if the block fails."""
        self.begin("its opening")
        try:
            yield
            self.done()
        except BaseException:
            self.release()
            raise

    def fail(self, error: BaseException) -> None:
        """Close the object after an error outside of a change, such as a failed fsync; needs no lock.

        Args:
            error: named in the message of `Closed`.
        """
        self.close(f"failed ({type(error).__name__}: {error})")

    # Whether it is open

    def require_open(self) -> None:
        """Check that the object can be used; needs no lock.

        Raises:
            Closed: it was closed, it closed itself, or it belongs to the parent of this process.
        """
        if (self._changing is not None or self._reason is not None) and not self.is_open:
            raise Closed(f"{self.name} {self._reason}")

    @property
    def is_open(self) -> bool:
        """Whether the object can be used; it can while another thread makes a change."""
        changing = self._changing
        if changing is not None and self._was_left():
            self.close(f"was left in the middle of {changing} by an error or an interrupt")
        return self._reason is None

    def close(self, reason: str = "was closed") -> None:
        """Refuse all later calls, and cancel the runs; the first reason stays. Needs no lock, and never waits.

        Args:
            reason: the predicate of a sentence that begins with the name.
        """
        if self._reason is None:
            self._reason = f"{reason}; open it again"
        self.cancel()

    def cancel(self) -> None:
        """Cancel the budgets of all runs; never waits."""
        for run in list(self._runs.values()):
            run.budget.cancel()

    @property
    def running(self) -> tuple[str, ...]:
        """The kinds of the present runs, such as `"compaction"`."""
        return tuple(kind for kind, run in list(self._runs.items()) if run.is_running)

    def _was_left(self) -> bool:
        if self._changer == threading.get_ident():
            return self._changing is not None  # also while another thread holds the lock
        taken: list[bool] = []
        try:
            take_within(self.lock, 0.0, taken)
            # No other thread is in a change now; it may have ended before this one took the lock.
            return taken[0] and self._changing is not None
        finally:
            if taken and taken[0]:
                self.lock.release()

    # Files and their uses

    def use(self) -> threading.RLock:
        """Return a context manager that keeps the object's files open, for reads that do not hold the lock.

        Call `require_open` in it. Hold it neither while a caller's code runs nor across a `yield`:

            with guard.use():
                guard.require_open()
                ...

        Cost: about one function call.
        """
        try:
            held: threading.RLock = self._of_thread.held
        except AttributeError:
            held = threading.RLock()
            # Registered first, so that `wait_idle` knows it before this thread can find it again.
            self._uses.add(weakref.ref(held, self._uses.discard))
            self._of_thread.held = held
        return held

    def wait_idle(self, timeout: float = RELEASE_SECONDS) -> bool:
        """Wait until no other thread is in `lock`, and no thread in `use()` or in a run.

        Args:
            timeout: in seconds.

        Returns:
            Whether all have ended; `False` at once if the calling thread is in `use()` or a run.
        """
        now = SystemClock().monotonic
        end = now() + timeout
        uses = self._locks_of_uses()
        if any(map(is_mine, uses)):
            return False
        return all(becomes_free(lock, max(0.0, end - now())) for lock in [self.lock, *uses])

    def wait_for_runs(self) -> None:
        """Wait until the present runs have ended.

        Raises:
            Closed: the object was closed during the wait.
        """
        for run in list(self._runs.values()):
            while run.is_running:
                self.require_open()
                becomes_free(run.held, _PATIENCE_SECONDS)

    @property
    def is_in_run(self) -> bool:
        """Whether the calling thread is in a run."""
        return any(is_mine(run.held) for run in list(self._runs.values()))

    def require_outside(self) -> None:
        """Check that the calling thread is in no `use()` and in no run, whose end a `close()` could not wait for.

        Raises:
            Busy: it is in one.
        """
        if any(map(is_mine, self._locks_of_uses())):
            raise Busy(f"{self.name} cannot be closed from within its own work; cancel the budget of the work, and "
                       f"close it when the work has ended")

    def _locks_of_uses(self) -> list[threading.RLock]:
        return [held for reference in list(self._uses) if (held := reference()) is not None]

    def keep(self, closable: Closable) -> None:
        """Have `release` close an object: the last kept first, and all before the folder's lock is released.

        Args:
            closable: its `close()` may be called twice, and does not call this guard.
        """
        self._kept.append(closable)

    def stand_for(self, folder: StrPath, *, timeout: float = RELEASE_SECONDS) -> None:
        """Register as the object on a folder that a kept object has locked: the next object there releases this object.

        A closed object of this process on the same folder is released first.

        Args:
            folder: see `FolderLock`.
            timeout: how long to wait until the closed object is unused, in seconds.

        Raises:
            Busy: the closed object is still used.
        """
        self._folder = os.path.realpath(folder)
        for reference in list(_guards_of_folders):
            other = reference()
            if other is not None and other is not self and other._folder == self._folder and not other.is_open:
                other.release(timeout)
        _guards_of_folders.add(weakref.ref(self, _guards_of_folders.discard))

    def lock_folder(self, folder: StrPath, *, meanwhile: str = "", timeout: float = RELEASE_SECONDS) -> None:
        """Lock the folder for this object, until `release`; arguments and errors as `stand_for` and `FolderLock`."""
        self.stand_for(folder, timeout=timeout)
        self._folder_locks.append(FolderLock(folder, meanwhile=meanwhile))

    def release(self, timeout: float = RELEASE_SECONDS) -> None:
        """Close the object, wait until it is unused, close the kept objects, and release the folder's lock.

        May be called often, by several threads; each returns when everything is closed.

        Args:
            timeout: how long to wait, in seconds.

        Raises:
            Busy: another thread or the caller still uses it; call again.
        """
        self.close()
        if not self.wait_idle(timeout):
            raise Busy(f"{self.name} is closed, and still used after {timeout:g} seconds; close it again when its "
                       f"reads and its work have ended")
        with self._releasing:
            # Each is removed after it was closed: after an interrupt it is closed twice rather than never.
            while self._kept:
                self._kept[-1].close()
                self._kept.pop()
            while self._folder_locks:
                self._folder_locks[-1].release()
                self._folder_locks.pop()

    def __repr__(self) -> str:
        return f"<Guard of {self.name}: {'open' if self.is_open else self._reason}>"

    def _inherit(self) -> None:
        super()._inherit()
        self.lock, self._releasing = threading.RLock(), threading.RLock()
        self._changing = None
        self._uses, self._of_thread, self._runs = set(), threading.local(), {}
        if self._reason is None:
            self._reason = self._why_refused()
        _inherited.append(self._kept)
        self._kept = []


class Run:
    """One compaction, or other long work on an object; one of each kind at a time.

    Args:
        guard: the object's guard.
        budget: the caller's budget; default one without limits.

    Attributes:
        held: only for `with run.held:`; the run ends with the block, also by an exception.
        budget: a child of the caller's; cancelled when the object is closed.
    """

    def __init__(self, guard: Guard, budget: Budget | None = None) -> None:
        self.held: threading.RLock = threading.RLock()
        self.budget: Budget = (Budget() if budget is None else budget).child()
        self._guard = guard

    def begin(self, kind: str = "compaction") -> None:
        """Begin, first thing in `with run.held:`.

        Args:
            kind: runs of different kinds may overlap.

        Raises:
            Busy: another run of this kind has not ended.
            Closed: the object is closed.
        """
        guard = self._guard
        with guard.lock:
            guard.require_open()
            other = guard._runs.get(kind)
            if other is not None and other is not self and other.is_running:
                raise Busy(f"a {kind} of {guard.name} is under way; wait for its end, or cancel its budget")
            for ended in [kind for kind, run in guard._runs.items() if run is not self and not run.is_running]:
                del guard._runs[ended]
            guard._uses.add(weakref.ref(self.held, guard._uses.discard))
            guard._runs[kind] = self
        if not guard.is_open:
            # Closed without the lock, perhaps before this run was registered.
            self.budget.cancel()

    @property
    def is_running(self) -> bool:
        """Whether any thread is in `with run.held:`."""
        return is_mine(self.held) or not becomes_free(self.held, 0.0)


def is_mine(lock: threading.RLock) -> bool:
    """Whether the calling thread holds the lock."""
    return bool(lock._is_owned())  # type: ignore[attr-defined]  # as `threading.Condition` does


def becomes_free(lock: threading.RLock, seconds: float) -> bool:
    """Return whether no other thread holds the lock, or lets it go within `seconds`."""
    taken: list[bool] = []
    try:
        take_within(lock, seconds, taken)
        return taken[0]
    finally:
        if taken and taken[0]:
            lock.release()


def take_within(lock: threading.RLock | threading.Lock, seconds: float, taken: list[bool]) -> None:
    """Wait up to `seconds` for a lock, and append to `taken` whether it was taken, for a `finally` that releases it.

    One call of C does both: an interrupt comes before both or after both.
    """
    taken.extend(map(lock.acquire, (seconds > 0,), (min(seconds, threading.TIMEOUT_MAX) if seconds > 0 else -1,)))
