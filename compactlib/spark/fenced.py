"""A fence around every commit that follows a rewrite: whoever lost the lease gets the files and may not use them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Iterable

from compactlib.budget import Budget
from compactlib.errors import CompactlibError
from compactlib.observe import Observer
from compactlib.rewrite import Executor, RewriteFailure, RewriteOutcome, RewriteResult, RewriteTask


class FencedExecutor:
    """An `Executor` that hands out each result with a guard held, until the next one is asked for.

    A caller that commits while it holds an outcome, as every compaction here does that commits group by group, so
    commits under the guard. If the guard does not let it in, the task ends in the guard's error instead, and nothing
    of it is committed: the files stay in the private place.

    >>> from compactlib.rewrite import LocalExecutor
    >>> from compactlib.scheduler import MemoryFence
    >>> fence = MemoryFence()
    >>> FencedExecutor(LocalExecutor(), lambda: fence.guard("log 7", token=12))
    FencedExecutor(LocalExecutor(workers=1))

    Args:
        executor: who runs the tasks.
        guard: makes what is entered around the use of each outcome, in the thread that asks for it.
    """

    def __init__(self, executor: Executor, guard: Callable[[], contextlib.AbstractContextManager[object]]) -> None:
        self._executor = executor
        self._guard = guard

    def run(self, tasks: Iterable[RewriteTask], *, budget: Budget | None = None,
            observer: Observer | None = None) -> Generator[RewriteOutcome, None, None]:
        """See `Executor.run`. Leave the iterator in the thread that iterates, as a guard may be tied to it."""
        return self._fenced(self._executor.run(tasks, budget=budget, observer=observer))

    def _fenced(self, outcomes: Iterable[RewriteOutcome]) -> Generator[RewriteOutcome, None, None]:
        for outcome in outcomes:
            if not isinstance(outcome, RewriteResult):
                yield outcome
                continue
            with contextlib.ExitStack() as stack:
                try:
                    stack.enter_context(self._guard())
                except CompactlibError as refused:
                    outcome = RewriteFailure(outcome.task, refused)
                yield outcome

    def __repr__(self) -> str:
        return f"FencedExecutor({self._executor!r})"
