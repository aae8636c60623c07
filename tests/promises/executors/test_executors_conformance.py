# SPDX-License-Identifier: Apache-2.0
"""Executors keep what all of them promise: one worker, threads, and processes."""

from __future__ import annotations

import sys

import pytest

from compactlib.executors import Executor, LocalExecutor, ProcessExecutor
from compactlib.testing import ExecutorConformance


@pytest.fixture(autouse=True)
def workers_without_pytest(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give workers an empty main module: they would import pytest, which costs more than the rest of the test."""
    main = sys.modules["__main__"]
    monkeypatch.setattr(main, "__spec__", None)
    monkeypatch.delattr(main, "__file__", raising=False)


class TestOneWorker(ExecutorConformance):
    def make_executor(self) -> Executor:
        return LocalExecutor()


class TestThreads(ExecutorConformance):
    def make_executor(self) -> Executor:
        return LocalExecutor(workers=3)


class TestTwoProcesses(ExecutorConformance):
    isolates_tasks = True

    def make_executor(self) -> Executor:
        return ProcessExecutor(2)
