"""Matches the rows a job returned to the tasks it was given: each task ends with exactly one outcome."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence

import attrs

from compactlib.errors import CompactlibError, CorruptData, NotFound, TaskFailed
from compactlib.rewrite import RewriteFailure, RewriteOutcome, RewriteResult
from compactlib.runtime.observe import RecordingObserver
from compactlib.spark.executors.rows import ResultRow
from compactlib.spark.executors.worker import Report, read_report


@attrs.frozen
class Matched:
    """One task's outcome.

    Attributes:
        outcome: its result or failure.
        spent_bytes: to be charged to the caller's budget.
        told: to be told to the caller's observer; `None` if nothing came back.
        extra_attempts: ids of attempts that also reported and were not used.
    """

    outcome: RewriteOutcome
    spent_bytes: int = 0
    told: RecordingObserver | None = None
    extra_attempts: tuple[str, ...] = ()


def match_outcomes(names: Mapping[int, str], rows: Sequence[ResultRow], *, check_files: bool) -> Iterator[Matched]:
    """One `Matched` for each task, in the order of `names`.

    If several attempts of one task reported (Spark gives one per partition; other engines may not), the first success
    is used, else the first row: each attempt's files are whole and under names of their own, so any one will do and
    the others stay in the private place. A task without a row, with a report that cannot be read, or (with
    `check_files`) with files that this process does not see as reported, gives a failure.

    Args:
        names: each task's number in the job and its name.
        rows: what came back, in any order.
        check_files: compare each file's size on disk with what the worker reported.
    """
    by_number: dict[int, list[ResultRow]] = {number: [] for number in names}
    for row in rows:
        by_number.setdefault(row.number, []).append(row)
    for number, name in names.items():
        yield _match_one(name, by_number[number], check_files)


def _match_one(name: str, rows: Sequence[ResultRow], check_files: bool) -> Matched:
    if not rows:
        return _unreadable(name, "its Spark job ended without a row for it")
    reports: list[tuple[ResultRow, Report]] = []
    for row in rows:
        try:
            report = read_report(row.report)
        except CompactlibError as error:
            return _unreadable(name, f"the report of attempt {row.attempt} could not be read here: {error}")
        if report.task != name:
            return _unreadable(name, f"attempt {row.attempt} reported for task {report.task!r}")
        reports.append((row, report))
    chosen = next((pair for pair in reports if isinstance(pair[1].outcome, RewriteResult)), reports[0])
    outcome = chosen[1].outcome
    if check_files and isinstance(outcome, RewriteResult):
        problem = unseen_file(outcome)
        outcome = outcome if problem is None else RewriteFailure(name, problem)
    spent = sum(report.spent_bytes for _, report in reports)
    extra = tuple(row.attempt for row, _ in reports if row is not chosen[0])
    return Matched(outcome, spent, chosen[1].told, extra)


def _unreadable(name: str, why: str) -> Matched:
    told = f"task {name!r} has no result: {why}; the inputs are untouched, run it again"
    return Matched(RewriteFailure(name, TaskFailed(told, task=name, kind="SparkResult", detail=told)))


def unseen_file(result: RewriteResult) -> CompactlibError | None:
    """What is wrong with a result's files as seen from this process, or `None`. Names with `://` are not looked at."""
    for file in result.files:
        if "://" in file.path:
            continue
        try:
            size = os.stat(file.path).st_size
        except OSError as error:
            return NotFound(f"task {result.task!r} wrote {file.path} on a worker, but this process does not see it "
                            f"({error.strerror}); workers and driver need the same folder under the same path")
        if size != file.size_bytes:
            return CorruptData(path=file.path, offset=min(size, file.size_bytes),
                               expected=f"the {file.size_bytes} bytes that attempt {result.attempt} reported",
                               found=f"{size} bytes")
    return None
