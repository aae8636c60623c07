# SPDX-License-Identifier: Apache-2.0
"""Rows matched to tasks: exactly one outcome each, whatever came back."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from pathlib import Path

import attrs
import pytest

from compactlib.errors import CompactlibError, TaskFailed
from compactlib.executors import RewriteFailure, RewriteResult, RewrittenFile
from compactlib.rewrite import RewriteOutcome
from compactlib.runtime.observe import RecordingObserver
from compactlib.spark.executors.outcomes import Matched, match_outcomes
from compactlib.spark.executors.rows import ResultRow
from compactlib.spark.executors.worker import Report


def result(task: str, attempt: str, path: str = "somewhere://", size: int = 0) -> RewriteResult:
    return RewriteResult(task=task, attempt=attempt, files=(RewrittenFile(path, size, 0, 0),), bytes_read=1,
                         bytes_written=2, seconds=0.0)


def failed(task: str) -> RewriteFailure:
    return RewriteFailure(task, CompactlibError("no"))


def row(number: int, outcome: RewriteOutcome, attempt: str, spent: int = 10) -> ResultRow:
    report = pickle.dumps(Report(outcome.task, outcome, spent, RecordingObserver()))
    return ResultRow(number=number, name=outcome.task, attempt=attempt, bytes_read=None, bytes_written=0, seconds=0.0,
                     report=report)


def matched(names: Sequence[str], rows: Sequence[ResultRow]) -> list[Matched]:
    return list(match_outcomes(dict(enumerate(names)), rows, check_files=True))


def problem(match: Matched) -> str:
    assert isinstance(match.outcome, RewriteFailure)
    assert isinstance(match.outcome.error, TaskFailed)
    assert match.outcome.error.task == match.outcome.task
    return str(match.outcome.error)


def test_rows_come_in_any_order() -> None:
    first, second = result("a", "1"), failed("b")
    matches = matched(["a", "b"], [row(1, second, "2", 7), row(0, first, "1", 5)])
    assert matches[0].outcome == first
    assert [match.outcome.task for match in matches] == ["a", "b"]
    assert [match.spent_bytes for match in matches] == [5, 7]


def test_a_task_without_a_row() -> None:
    present, absent = matched(["a", "b"], [row(0, result("a", "1"), "1")])
    assert isinstance(present.outcome, RewriteResult)
    assert "task 'b' has no result: its Spark job ended without a row for it" in problem(absent)


def test_of_several_attempts_the_first_success_counts_and_all_are_charged() -> None:
    rows = [row(0, failed("a"), "1"), row(0, result("a", "2"), "2"), row(0, result("a", "3"), "3")]
    (match,) = matched(["a"], rows)
    assert match.outcome == result("a", "2")
    assert match.extra_attempts == ("1", "3")
    assert match.spent_bytes == 30


def test_of_several_failures_the_first_counts() -> None:
    (match,) = matched(["a"], [row(0, failed("a"), "1"), row(0, failed("a"), "2")])
    assert isinstance(match.outcome, RewriteFailure)
    assert match.extra_attempts == ("2",)


@pytest.mark.parametrize("data", [b"", b"garbage", pickle.dumps("a report"), b"cno_such_module\nName\n."])
def test_a_report_that_cannot_be_read(data: bytes) -> None:
    (match,) = matched(["a"], [attrs.evolve(row(0, result("a", "1"), "1"), report=data)])
    assert "the report of attempt 1 could not be read here" in problem(match)


def test_a_report_for_another_task() -> None:
    (match,) = matched(["a"], [row(0, result("b", "1"), "1")])
    assert "attempt 1 reported for task 'b'" in problem(match)


def test_a_row_for_no_task_is_nobodys() -> None:
    (match,) = matched(["a"], [row(5, result("x", "9"), "9"), row(0, result("a", "1"), "1")])
    assert match.outcome == result("a", "1")


def test_files_are_looked_at_only_when_asked(tmp_path: Path) -> None:
    rows = [row(0, result("a", "1", str(tmp_path / "absent"), 3), "1")]
    (checked,) = match_outcomes({0: "a"}, rows, check_files=True)
    (unchecked,) = match_outcomes({0: "a"}, rows, check_files=False)
    assert isinstance(checked.outcome, RewriteFailure)
    assert isinstance(unchecked.outcome, RewriteResult)
