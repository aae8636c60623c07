# SPDX-License-Identifier: Apache-2.0
"""Ownership of a store's work: one run of each at a time, whichever thread asks; and how closing the store ends them.

A run is recognised by the context in which code runs (`contextvars`), not by its thread: what an observer, a policy or
a task does on any thread of the run is the run's own doing. `begin` marks the thread that runs; `LocalExecutor` carries
the mark into its threads; and an observer given by `Run.observer` carries it into the threads of any other executor,
for notifications and for each task that is run by `attempt_task`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar, Token

from compactlib._forks import OfOneProcess
from compactlib.errors import Busy
from compactlib.runtime.budget import Budget
from compactlib.runtime.observe import Observer, TellingObserver, telling
from compactlib.runtime.owned_lock import Changes

_LOOK_AGAIN_SECONDS = 0.1
"""How long it is waited for a brief run before the budget is asked."""


class Run:
    """One piece of work while it runs.

    Attributes:
        budget: lent from the caller's; cancelled when the store closes.
        is_brief: whether it ends soon by itself, so that others may wait for it.
    """

    def __init__(self, budget: Budget, *, is_brief: bool = False) -> None:
        self.budget: Budget = budget.child()
        self.is_brief: bool = is_brief
        # Work that this one is a part of: a worker's turn, say, which runs a store's compaction.
        self._around: frozenset[Run] = _RUNS.get()

    @contextlib.contextmanager
    def inside(self) -> Iterator[None]:
        """Mark what this thread does inside the `with` as done by the run, and by those that it is a part of."""
        tokens: list[Token[frozenset[Run]]] = []
        try:
            # Functions of C alone set and note it, in one call: no interrupt can come between.
            tokens.extend(map(_RUNS.set, (_RUNS.get() | self._around | {self},)))
            yield
        finally:
            if tokens:
                _RUNS.reset(tokens[0])

    @property
    def is_mine(self) -> bool:
        """Whether the caller is a part of this run."""
        return self in _RUNS.get()

    def observer(self, observer: Observer | None) -> Observer:
        """`observer` as this run notifies it: from any thread as the run's own doing, and what it raises is kept."""
        return TellingObserver(telling(observer), self.inside)


_RUNS: ContextVar[frozenset[Run]] = ContextVar("compactlib_runs", default=frozenset())


class Ownership(OfOneProcess):
    """Belongs to a store; each of its runs holds it, a second one of the same work is turned away, and closing cancels
    and waits.

    Args:
        what: the store as messages name it, for example `"the log in /data/a"`.
    """

    def __init__(self, what: str) -> None:
        self._what = what
        self._runs: dict[Run, str | None] = {}
        self._holders: set[object] = set()
        self._closed = False
        self._cancelled_too: dict[object, Budget] = {}
        self._changed = Changes()
        super().__init__()

    @property
    def is_mine(self) -> bool:
        """Whether the caller is inside a present run, on whichever thread: in an observer that it calls, say."""
        return any(run.is_mine for run in tuple(self._runs))

    @property
    def is_running(self) -> bool:
        """Whether a run is under way."""
        return bool(self._runs)

    @property
    def works(self) -> tuple[str, ...]:
        """What is under way, reads aside."""
        return tuple(work for work in tuple(self._runs.values()) if work is not None)

    @property
    def is_closed(self) -> bool:
        """Whether `close` was called: no run begins any more."""
        return self._closed

    @property
    def is_ending(self) -> bool:
        """Whether a caller waits for the end of what runs, and lets nothing begin meanwhile."""
        return bool(self._holders)

    @contextlib.contextmanager
    def begin(self, budget: Budget | None = None, work: str | None = "", *,
              is_brief: bool = False) -> Iterator[Run | None]:
        """Run inside the `with`; yields the run, or `None` if another one of this work runs or the store is closing.

        Args:
            budget: what the run may use up; the run's own `budget` is lent from it.
            work: what is done; one run of each at a time. `None`: a read, of which there may be any number.
            is_brief: whether it ends soon by itself, so that `take` may wait for it.
        """
        run = Run(budget or Budget(), is_brief=is_brief)
        try:
            if self.take(run, work):
                with run.inside():
                    yield run
            else:
                yield None
        finally:
            # Before any function that an interrupt could come at the beginning of.
            self._runs.pop(run, None)
            self.release(run)

    def take(self, run: Run, work: str | None = "", *, waits: bool = False) -> bool:
        """As `begin`, for runs of several stores that do not end in the order in which they began.

        The caller marks what it does with `Run.inside`, and calls `release` however it ends, this call too.

        Args:
            run: a new one.
            work: see `begin`.
            waits: for the end of a brief run of this work, unless this is called from inside it.

        Returns:
            Whether it has begun.
        """
        with self._changed:
            while waits and self._brief_one_is_ahead(work) and run.budget.refusal is None:
                self._changed.wait(_LOOK_AGAIN_SECONDS)
            if self._closed or self._holders or (work is not None and work in self._runs.values()):
                return False
            self._runs[run] = work
            return True

    def _brief_one_is_ahead(self, work: str | None) -> bool:
        return not self._closed and not self._holders and any(
            run.is_brief and not run.is_mine for run, doing in tuple(self._runs.items()) if doing == work)

    def release(self, run: Run) -> None:
        """The run has ended; releasing it again does nothing."""
        with self._changed:
            self._runs.pop(run, None)
            self._changed.notify_all()

    def wait(self) -> None:
        """Return when nothing runs."""
        with self._changed:
            # Now and then without a notification, which an interrupt may have kept back.
            while self._runs:
                self._changed.wait(_LOOK_AGAIN_SECONDS)

    def _inherit(self) -> None:
        # A forked child has none of its parent's other threads: what ran there never ends here.
        super()._inherit()
        self._changed = Changes()
        self._runs.clear()
        self._holders.clear()

    @contextlib.contextmanager
    def cancels(self, budget: Budget) -> Iterator[None]:
        """Inside the `with`, closing the store cancels `budget` too, and does not wait for its work.

        For work that changes nothing beside the runs (counting, waiting for a rate), and for budgets that runs of
        several stores share.
        """
        mark = object()
        try:
            with self._changed:
                self._cancelled_too[mark] = budget
                is_late = self._closed or self.is_ending
            if is_late:
                budget.cancel()
            yield
        finally:
            self._cancelled_too.pop(mark, None)

    @contextlib.contextmanager
    def ended(self) -> Iterator[None]:
        """Cancel what runs, wait for its end, and let nothing begin inside the `with`.

        Raises:
            Busy: called from inside a run; nothing was done.
        """
        holder = object()
        try:
            with self._changed:
                if self.is_mine:
                    raise Busy(f"{self._what} cannot be closed from within its own work; cancel the budget of the "
                               f"work, and close when it has returned")
                self._holders.add(holder)
                budgets = [*self._cancelled_too.values(), *(run.budget for run in tuple(self._runs))]
            for budget in budgets:
                budget.cancel()
            self.wait()
            yield
        finally:
            self._holders.discard(holder)

    def close(self) -> None:
        """Let nothing begin from now on, cancel what runs, and wait for its end; closing again waits as well.

        Raises:
            Busy: called from inside a run; nothing was done.
        """
        with self.ended():
            self._closed = True

    def __repr__(self) -> str:
        state = "closed" if self._closed else "running" if self._runs else "free"
        return f"<Ownership of {self._what}: {state}>"
