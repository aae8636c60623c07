# SPDX-License-Identifier: Apache-2.0
"""Rows matched to tasks: exactly one outcome each, whatever came back."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from pathlib import Path

import pytest

from compactlib.errors import CompactlibError, TaskFailed
from compactlib.executors import RewriteFailure, RewriteResult, RewrittenFile
from compactlib.rewrite import RewriteOutcome
from compactlib.runtime import RecordingObserver
from compactlib.spark.executors.reports import Matching, Report


def result(task: str, attempt: str, path: str = "somewhere://", size: int = 0) -> RewriteResult:
    return RewriteResult(task=task, attempt=attempt, files=(RewrittenFile(path, size, 0, 0),), bytes_read=1,
                         bytes_written=2, seconds=0.0)


def failed(task: str) -> RewriteFailure:
    return RewriteFailure(task, CompactlibError("no"))


def report(outcome: RewriteOutcome, attempt: str, spent: int = 10) -> bytes:
    return pickle.dumps(Report(outcome, attempt, spent, RecordingObserver()))


def ended(names: Sequence[str], reports: Sequence[tuple[int, bytes]]) -> tuple[Matching, list[Report]]:
    """A job whose reports came in this order, and then ended."""
    matching = Matching(dict(enumerate(names)))
    early = [matched for each in reports if (matched := matching.hear(*each)) is not None]
    return matching, [*early, *matching.rest(is_whole=True)]


def problem(match: Report) -> str:
    assert isinstance(match.outcome, RewriteFailure)
    assert isinstance(match.outcome.error, TaskFailed)
    assert match.outcome.error.task == match.outcome.task
    return str(match.outcome.error)


def test_a_success_counts_as_soon_as_it_comes() -> None:
    matching = Matching({0: "a", 1: "b"})
    first = matching.hear(1, report(result("b", "2"), "2", 7))
    assert first is not None
    assert first.outcome == result("b", "2")
    assert first.spent_bytes == 7
    # The same again, as the rows of the job repeat its news.
    assert matching.hear(1, report(result("b", "2"), "2", 7)) is None
    second = matching.hear(0, report(result("a", "1"), "1", 5))
    assert second is not None
    assert second.outcome.task == "a"
    assert (list(matching.rest(is_whole=True)), matching.silent(), list(matching.unused())) == ([], [], [])


def test_a_file_that_cannot_be_is_the_failure_of_its_task_alone() -> None:
    _, (bad, good) = ended(["a", "b"], [(0, report(result("a", "1", "some\0where"), "1")),
                                        (1, report(result("b", "2"), "2"))])
    assert isinstance(bad.outcome, RewriteFailure)
    assert "embedded null" in str(bad.outcome.error)
    assert good.outcome == result("b", "2")


def test_a_task_without_a_report() -> None:
    """Of a job that came to its end it has failed; of one that was stopped it may be tried again."""
    matching, (present, absent) = ended(["a", "b"], [(0, report(result("a", "1"), "1"))])
    assert isinstance(present.outcome, RewriteResult)
    assert "task 'b' has no result: its Spark job ended without a row for it" in problem(absent)
    assert (matching.silent(), list(matching.rest(is_whole=False))) == ([1], [])


def test_of_several_attempts_the_first_success_counts_and_the_others_are_told() -> None:
    attempts = [(0, report(failed("a"), "1")), (0, report(result("a", "2"), "2")), (0, report(result("a", "3"), "3"))]
    matching, (match,) = ended(["a"], attempts)
    assert match.outcome == result("a", "2")
    ((task, others),) = matching.unused()
    assert (task, [(each.attempt, each.spent_bytes) for each in others]) == ("a", [("1", 10), ("3", 10)])


def test_of_several_failures_the_first_counts() -> None:
    """When the job has ended: until then, a success may come."""
    matching, (match,) = ended(["a"], [(0, report(failed("a"), "1")), (0, report(failed("a"), "2"))])
    assert isinstance(match.outcome, RewriteFailure)
    assert match.attempt == "1"
    assert [[each.attempt for each in others] for _, others in matching.unused()] == [["2"]]


@pytest.mark.parametrize("data", [b"", b"garbage", pickle.dumps("a report"), b"cno_such_module\nName\n."])
def test_a_report_that_cannot_be_read(data: bytes) -> None:
    matching, (match,) = ended(["a"], [(0, data), (0, data)])
    assert "its report could not be read here" in problem(match)
    assert matching.silent() == []


def test_a_report_for_another_task() -> None:
    _, (match,) = ended(["a"], [(0, report(result("b", "1"), "1"))])
    assert "attempt 1 reported for task 'b'" in problem(match)


def test_a_row_for_no_task_is_nobodys() -> None:
    _, (match,) = ended(["a"], [(5, report(result("x", "9"), "9")), (0, report(result("a", "1"), "1"))])
    assert match.outcome == result("a", "1")


def test_files_that_are_not_seen_here_are_a_failure(tmp_path: Path) -> None:
    absent = result("a", "1", str(tmp_path / "absent"), 3)
    elsewhere = result("b", "2", "s3://bucket/key", 3)
    _, matches = ended(["a", "b"], [(0, report(absent, "1")), (1, report(elsewhere, "2"))])
    assert [type(match.outcome) for match in matches] == [RewriteFailure, RewriteResult]
