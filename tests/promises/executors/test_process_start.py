# SPDX-License-Identifier: Apache-2.0
"""Each task has an outcome also when the machine has no room for another worker process."""

from __future__ import annotations

import errno
import multiprocessing.context
import sys

import pytest

from compactlib.errors import TaskFailed
from compactlib.executors import ProcessExecutor, RewriteFailure
from tests.executors.process_tasks import PieceTask


def test_a_task_that_runs_when_no_further_worker_can_be_started_has_an_outcome(
        monkeypatch: pytest.MonkeyPatch) -> None:
    main = sys.modules["__main__"]
    monkeypatch.setattr(main, "__spec__", None)
    monkeypatch.delattr(main, "__file__", raising=False)
    start, started = multiprocessing.context.SpawnProcess.start, list[object]()

    def refused_after_one(process: multiprocessing.context.SpawnProcess) -> None:
        if started:
            raise BlockingIOError(errno.EAGAIN, "no more processes")
        started.append(process)
        start(process)

    monkeypatch.setattr(multiprocessing.context.SpawnProcess, "start", refused_after_one)
    outcomes = list(ProcessExecutor(2).run([PieceTask("a", 1), PieceTask("b", 1), PieceTask("c", 1)]))
    assert sorted(outcome.task for outcome in outcomes) == ["a", "b", "c"]
    for outcome in outcomes:
        assert isinstance(outcome, RewriteFailure)
        assert isinstance(outcome.error, TaskFailed)
        assert outcome.error.kind == "WorkerNotStarted"
        assert "no more processes" in str(outcome.error)
