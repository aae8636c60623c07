# SPDX-License-Identifier: Apache-2.0
"""What the demo prints: one line a step, the table, and the verdict."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence

import attrs

import compactlib
from compactlib.app.demo_log import LogSize, WrittenLog
from compactlib.app.terminal import megabytes
from compactlib.app.workload import Selection
from compactlib.raftlog import LogCompactionReport
from compactlib.report import Table

_MAX_PROBLEMS = 10


@attrs.frozen(kw_only=True)
class ExecutorRun:
    """What one executor did to its copy of the log.

    Attributes:
        executor: its name.
        folder: where the copy is.
        start_seconds: how long the executor took to be ready for work.
        report: what the compaction did; `None` if there was nothing to do.
        size: the log's size afterwards.
        problems: what is wrong with the log now.
    """

    executor: str
    folder: str
    start_seconds: float
    report: LogCompactionReport | None
    size: LogSize
    problems: tuple[str, ...]

    @property
    def failures(self) -> list[str]:
        """Everything that went wrong, groups that failed included, each with the executor's name."""
        failed = [] if self.report is None else [str(group.error) for group in self.report.failed]
        return [f"{self.executor}: {problem}" for problem in (*failed, *self.problems)]


def say_begin() -> None:
    """What this is."""
    print(f"compactlib {compactlib.__version__} demo: a key-value store on a Raft log, and its compaction\n")


def say_selection(folder: str, selection: Selection) -> None:
    """What was read."""
    _say("input", f"{folder}: {len(selection.files):,} of {selection.found_files:,} files, "
                  f"{megabytes(selection.size_bytes)} of {megabytes(selection.found_bytes)}")


def say_written(written: WrittenLog, size: LogSize) -> None:
    """The log before it is compacted."""
    passed = f"; {written.unreadable} unreadable versions passed over" if written.unreadable else ""
    _say("log", f"{size.entries:,} entries in {size.segments:,} segments, {megabytes(size.file_bytes)}, "
                f"written in {written.seconds:.1f} s{passed}")
    _say("snapshot", f"at index {written.last_index:,}: {len(written.machine):,} keys are live, "
                     f"{len(written.deleted):,} were deleted")


def say_run(run: ExecutorRun) -> None:
    """What an executor did."""
    ready = f"ready after {run.start_seconds:.1f} s; " if run.start_seconds >= 0.05 else ""
    report = run.report
    if report is None:
        _say(run.executor, f"{ready}there was nothing to compact")
        return
    merged = sum(len(group.members) for group in report.done)
    _say(run.executor, f"{ready}dropped {len(report.dropped):,} segments, rewrote {merged:,} into "
                       f"{len(report.done):,} in {report.seconds:.2f} s")


def say_left_out(executor: str, error: Exception) -> None:
    """Why an executor does not take part."""
    _say(executor, f"left out: {error}")


def run_table(before: LogSize, runs: Sequence[ExecutorRun]) -> Table:
    """The log before, and after each executor; how much each moved, and how fast."""
    sizes = [before, *(run.size for run in runs)]
    reports = [run.report for run in runs]
    rows: list[tuple[object, ...]] = [
        ("entries", *(size.entries for size in sizes)),
        ("segments", *(size.segments for size in sizes)),
        ("bytes", *(size.file_bytes for size in sizes)),
        ("bytes copied", None, *(report.bytes_written if report else 0 for report in reports)),
        ("bytes freed", None, *(report.bytes_freed if report else 0 for report in reports)),
        ("seconds", None, *(report.seconds if report else 0.0 for report in reports)),
        ("MB/s copied", None, *(_rate(report) if report else None for report in reports)),
    ]
    return Table(("", "before", *(run.executor for run in runs)), tuple(rows))


def say_verdict(written: WrittenLog, runs: Sequence[ExecutorRun], differences: Sequence[str]) -> bool:
    """The last word; returns whether everything is as it must be."""
    problems = [*(failure for run in runs for failure in run.failures), *differences]
    if problems:
        for problem in problems[:_MAX_PROBLEMS]:
            print(f"  {problem}")
        more = f" (the first {_MAX_PROBLEMS} above)" if len(problems) > _MAX_PROBLEMS else ""
        print(f"NOT VERIFIED: {len(problems):,} problems{more}")
        return False
    live, dead = len(written.machine), written.last_index - len(written.machine)
    names = [run.executor for run in runs]
    _say("verified", f"{live:,} live values identical by SHA-256, {dead:,} dead entries answer DeadEntry;")
    _say("", f"opened anew, the log alone rebuilds the store ({', '.join(names)})"
             + (f";\n{'':<9} the segments of {' and '.join(names)} are the same, byte by byte" if names[1:] else ""))
    return True


def say_commands(folder: str, names: Sequence[str]) -> None:
    """What to do with logs that were kept."""
    print(f"\nThe logs are in {folder}. Look at them:\n")
    for name in names:
        print(f"  compactlib inspect {_quoted(folder, name)}")
    print(f"  compactlib verify {_quoted(folder, names[-1])}\n\nand compact the first one yourself:\n")
    for command in ("plan", "compact --policy seed"):
        print(f"  compactlib {command} {_quoted(folder, names[0])}")


def _rate(report: LogCompactionReport) -> float | None:
    return report.bytes_written / 1e6 / report.seconds if report.seconds else None


def _say(label: str, text: str) -> None:
    print(f"{label:<9} {text}", flush=True)


def _quoted(folder: str, name: str) -> str:
    return shlex.quote(os.path.join(folder, name))
