"""At most one piece of work at a time on each branch, within this process; closing the repository ends them all.

Between processes the compare-and-sets of the branch's record decide; this only saves work that would be lost.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

from compactlib.errors import BudgetSpent, Busy, Closed
from compactlib.runtime.budget import Budget
from compactlib.runtime.ownership import Run


class Flights:
    """The work under way, by name. Threads share it.

    Args:
        what: whose work it is, as messages say it.
    """

    def __init__(self, what: str) -> None:
        self._what = what
        self._runs: dict[str, Run] = {}
        self._reads: set[Run] = set()
        self._closed = False
        self._changed = threading.Condition()

    @property
    def names(self) -> tuple[str, ...]:
        """What is under way."""
        with self._changed:
            return tuple(self._runs)

    def require_open(self) -> None:
        """Return if it was not closed.

        Raises:
            Closed: it was.
        """
        if self._closed:
            raise Closed(f"{self._what} was closed; make a new one over the same stores")

    @contextlib.contextmanager
    def begin(self, name: str, budget: Budget | None) -> Iterator[Run | None]:
        """Work inside the `with`; yields the run, or `None` if one of this name is under way.

        Args:
            name: of the work.
            budget: what it may use up; the run's own is lent from it.

        Raises:
            Closed: it was closed.
        """
        with self._changed:
            self.require_open()
            if name in self._runs:
                run = None
            else:
                self._runs[name] = run = Run(Budget() if budget is None else budget)
        if run is None:
            yield None
            return
        try:
            with run.inside():
                yield run
        finally:
            with self._changed:
                del self._runs[name]
                self._changed.notify_all()

    @contextlib.contextmanager
    def reading(self, budget: Budget | None) -> Iterator[Budget]:
        """A long read inside the `with`, of which there may be any number; yields its budget, lent from `budget`.

        Raises:
            Closed: it was closed, before or meanwhile.
        """
        run = Run(Budget() if budget is None else budget)
        with self._changed:
            self.require_open()
            self._reads.add(run)
        try:
            with run.inside():
                yield run.budget
        except BudgetSpent:
            self.require_open()
            raise
        finally:
            with self._changed:
                self._reads.remove(run)
                self._changed.notify_all()

    def close(self) -> None:
        """Let nothing begin from now on, cancel what is under way, and wait for its end; again does nothing more.

        Raises:
            Busy: called from within any of the work; nothing was done.
        """
        with self._changed:
            if any(run.is_mine for run in (*self._runs.values(), *self._reads)):
                raise Busy(f"{self._what} cannot be closed from within its own work; cancel the budget of the work, "
                           f"and close when it has returned")
            self._closed = True
            for run in (*self._runs.values(), *self._reads):
                run.budget.cancel()
            self._changed.wait_for(lambda: not self._runs and not self._reads)
