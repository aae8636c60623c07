# SPDX-License-Identifier: Apache-2.0
"""Executors by name."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import attrs
import pytest

from compactlib.app.executors import EXECUTORS, opened_executor, warm_up
from compactlib.errors import InvalidInput, MissingDependency
from compactlib.executors import LocalExecutor, ProcessExecutor, RewriteFailure, RewriteTask
from compactlib.rewrite import RewriteOutcome
from compactlib.runtime import Budget, Observer


@pytest.mark.parametrize(("name", "workers", "shown"), [
    ("local", None, LocalExecutor(workers=1)), ("local", 3, LocalExecutor(workers=3)),
    ("process", 2, ProcessExecutor(workers=2))])
def test_each_name_gives_its_executor(name: str, workers: int | None, shown: object) -> None:
    with opened_executor(name, workers) as executor:
        assert repr(executor) == repr(shown)


def test_an_unknown_name_is_refused_with_the_known_ones() -> None:
    with pytest.raises(InvalidInput, match="local, process, spark"), opened_executor("cloud"):
        pass
    assert EXECUTORS == ("local", "process", "spark")


def test_a_warm_up_runs_one_task_for_each_worker() -> None:
    with opened_executor("process", 2) as executor:
        warm_up(executor, 2)
    warm_up(LocalExecutor(), 5)


@attrs.frozen
class Unable:
    """An executor whose workers lack something."""

    def run(self, tasks: Iterable[RewriteTask], *, budget: Budget | None = None,
            observer: Observer | None = None) -> Iterator[RewriteOutcome]:
        for task in tasks:
            yield RewriteFailure(task.name, MissingDependency(package="attrs", extra="all", purpose="a worker"))


def test_workers_that_cannot_work_are_found_out_at_once() -> None:
    with pytest.raises(MissingDependency, match="attrs"):
        warm_up(Unable(), 2)
