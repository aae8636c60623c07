"""`FencedExecutor`: lets an outcome through only while a fence admits the token, and keeps it so during the commit.

A package commits the outcome of a rewrite task when its executor hands it over. So the executor is the place where a
late worker is stopped: each outcome is handed over within `fence.guard`, which ends when the next one is asked for. A
token that came too late turns the outcome into a failure, and nothing is committed.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator

from compactlib.budget import Budget
from compactlib.errors import CompactlibError
from compactlib.observe import Observer
from compactlib.rewrite import Executor, RewriteFailure, RewriteOutcome, RewriteResult, RewriteTask
from compactlib.scheduler import LockingFence


class FencedExecutor:
    """An `Executor` around another one, for one job.

    Args:
        executor: runs the tasks.
        fence: what the job's commits go through.
        resource: the fence's name for what is committed to.
        token: the job's fencing token.
    """

    def __init__(self, executor: Executor, fence: LockingFence, resource: str, token: int) -> None:
        self._executor = executor
        self._fence = fence
        self._resource = resource
        self._token = token

    def run(self, tasks: Iterable[RewriteTask], *, budget: Budget | None = None,
            observer: Observer | None = None) -> Iterator[RewriteOutcome]:
        """See `Executor.run`. Hold an outcome no longer than its commit takes: the resource is locked meanwhile."""
        outcomes = self._executor.run(tasks, budget=budget, observer=observer)
        return self._guarded(outcomes)

    def _guarded(self, outcomes: Iterator[RewriteOutcome]) -> Iterator[RewriteOutcome]:
        for outcome in outcomes:
            if not isinstance(outcome, RewriteResult):
                yield outcome
                continue
            refused: CompactlibError | None = None
            with contextlib.ExitStack() as stack:
                try:
                    stack.enter_context(self._fence.guard(self._resource, self._token))
                except CompactlibError as error:
                    refused = error
                else:
                    yield outcome
            if refused is not None:
                yield RewriteFailure(outcome.task, refused)

    def __repr__(self) -> str:
        return f"FencedExecutor({self._executor!r}, {self._resource!r}, token {self._token})"
