# SPDX-License-Identifier: Apache-2.0
"""Output of the commands: lines and tables on stdout, a progress bar on stderr if it is a terminal."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TextIO

from compactlib.errors import MissingDependency
from compactlib.report import Table, VerifyReport
from compactlib.runtime.observe import Observer, Progress, TqdmObserver

_SHORT = {"live_entries": "live", "live_bytes": "live B", "data_bytes": "data B", "payload_bytes": "payload B",
          "file_bytes": "file B", "bytes_to_copy": "copied B", "bytes_read": "read B",
          "bytes_written": "written B", "bytes_freed": "freed B", "entries_before": "entries", "entries_after": "after"}
_FEWEST_SHOWN = 24
"""Characters of a last column that are shown however narrow the terminal is."""
_GROUPS_BAR = "{desc} {percentage:3.0f}% |{bar:32}| {n_fmt} of {total_fmt}{unit}, {elapsed}"
_BYTES_BAR = "{desc} {percentage:3.0f}% |{bar:32}| {n_fmt} of {total_fmt}{unit}, {rate_fmt}"


def print_json(value: Any) -> None:
    """Print plain data as JSON. What an error carries may be anything; as text it can always be shown."""
    print(json.dumps(value, indent=2, default=str))


def show_table(table: Table) -> None:
    """Print a table: whole where it goes to a file, on a terminal 200 rows with the last column cut to fit."""
    columns = _columns(sys.stdout)
    if columns is None:
        print(table.to_text(max_rows=None, max_width=None))
        return
    if table.title:
        print(textwrap.fill(table.title, columns))
    fitted = Table(tuple(_SHORT.get(name, name) for name in table.columns), table.rows)
    print(_last_cut(fitted, columns).to_text(max_width=None))


def show_left(left: Mapping[str, Sequence[str]]) -> None:
    """Print for each reason which segments are left by it, the first five by name."""
    for reason, names in left.items():
        more = f" and {len(names) - 5:,} more" if len(names) > 5 else ""
        print(f"{len(names):,} left, {reason}: {', '.join(names[:5])}{more}")


def show_verified(folder: str, report: VerifyReport, unit: str, *, as_json: bool, counted: str = "") -> int:
    """Print what a verification found; returns the exit code: 1 if anything is damaged or missing.

    Args:
        folder: what was verified.
        report: of what was found.
        unit: what its `records` are.
        as_json: print `to_dicts()` instead.
        counted: what else was counted, before the records.
    """
    if as_json:
        print_json(report.to_dicts())
        return 0 if report.is_sound else 1
    if report.findings:
        show_table(report.table())
    if report.is_sound:
        print(f"{folder}: {counted}{report.records:,} {unit} in {report.bytes_read:,} bytes, all as they were written")
        return 0
    bad = sum(not finding.is_harmless for finding in report.findings)
    print(f"{folder}: {bad:,} damaged or missing; restore the files from a copy")
    return 1


def _last_cut(table: Table, columns: int) -> Table:
    """The table with the values of its last column, if they are text, cut to what the columns before it leave."""
    if not table.rows:
        return table
    before = Table(table.columns[:-1], tuple(row[:-1] for row in table.rows)).to_text(max_rows=None, max_width=None)
    room = max(columns - max(map(len, before.splitlines())) - 2, _FEWEST_SHOWN)
    rows = tuple((*row[:-1], textwrap.shorten(row[-1], room, placeholder=" …") if isinstance(row[-1], str) else row[-1])
                 for row in table.rows)
    return Table(table.columns, rows)


@contextlib.contextmanager
def progress_bar(label: str) -> Iterator[Observer]:
    """An observer that draws the progress of one compaction, named `label`, while the context lasts.

    It does nothing if stderr is no terminal, or tqdm (extra "progress") is not installed.
    """
    if not sys.stderr.isatty():
        yield Observer()
        return
    try:
        bars = _CompactionBars(label)
    except MissingDependency:
        yield Observer()
        return
    with bars.groups, bars.bytes:
        yield bars


class _CompactionBars(Observer):
    """One bar that stays, for the groups; below it one that goes, for the bytes of the group being copied."""

    def __init__(self, label: str) -> None:
        # `mininterval=0`: a group is a large step, and none should wait to be shown.
        self.groups = TqdmObserver(desc=f"{label:<9}", bar_format=_GROUPS_BAR, mininterval=0)
        self.bytes = TqdmObserver(desc="  copying", bar_format=_BYTES_BAR, leave=False)

    def progress(self, progress: Progress) -> None:
        """Draw groups of the compaction, and the bytes of a task; what executors say of all tasks is the same again."""
        if progress.work == "compact":
            self.groups.progress(progress)
        elif progress.unit == "bytes":
            self.bytes.progress(progress)


@contextlib.contextmanager
def waiting(what: str) -> Iterator[None]:
    """Say on a terminal what is being waited for, and take it back when it is over."""
    shown = sys.stderr.isatty()
    if shown:
        print(f"{what} ...", end="", file=sys.stderr, flush=True)
    try:
        yield
    finally:
        if shown:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)


def megabytes(size: float) -> str:
    """A size as text, in MB (10**6 bytes)."""
    return f"{size / 1e6:,.1f} MB"


def _columns(stream: TextIO) -> int | None:
    """How wide the terminal is, or `None` if the stream is none."""
    if not stream.isatty():
        return None
    # A terminal that does not know its width says 0.
    return max(os.get_terminal_size(stream.fileno()).columns or 80, 40)
