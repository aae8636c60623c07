# SPDX-License-Identifier: Apache-2.0
"""Output of the commands: lines and tables on stdout, a progress bar on stderr if it is a terminal."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import textwrap
from collections.abc import Iterator
from typing import Any, TextIO

import attrs

from compactlib.errors import MissingDependency
from compactlib.report import MAX_ROWS, Table
from compactlib.runtime import Observer, Progress, TqdmObserver

_SHORT = {"live_entries": "live", "live_bytes": "live B", "data_bytes": "data B", "payload_bytes": "payload B",
          "file_bytes": "file B", "bytes_to_copy": "copied B", "bytes_read": "read B",
          "bytes_written": "wrote B", "bytes_freed": "freed B", "entries_before": "entries", "entries_after": "after"}
_FEWEST_SHOWN = 6
"""Characters of a last column that are shown however narrow the terminal is."""
_GROUPS_BAR = "{desc} {percentage:3.0f}% |{bar:32}| {n_fmt} of {total_fmt}{unit}, {elapsed}"
_BYTES_BAR = "{desc} {percentage:3.0f}% |{bar:32}| {n_fmt} of {total_fmt}{unit}, {rate_fmt}"


@attrs.frozen
class Answer:
    """What a command found or did.

    Attributes:
        data: as `--json` prints it.
        parts: as a person reads it: sentences and tables, in order.
        code: the exit code.
    """

    data: Any
    parts: tuple[str | Table, ...]
    code: int = 0


def show(answer: Answer, *, as_json: bool) -> int:
    """Print an answer: as data, or sentences and tables, whole where they go to a file, on a terminal as they fit it.

    Returns:
        The exit code.
    """
    if as_json:
        # What an error carries may be anything; as text it can always be shown.
        print(json.dumps(answer.data, indent=2, default=str))
        return answer.code
    columns = _columns(sys.stdout)
    for part in answer.parts:
        if isinstance(part, Table):
            show_table(part)
        else:
            print(part if columns is None else textwrap.fill(part, columns))
    return answer.code


def show_table(table: Table) -> None:
    """Print a table: whole where it goes to a file; on a terminal 200 rows, each on several lines if it is too wide."""
    columns = _columns(sys.stdout)
    if columns is None:
        print(table.to_text(max_rows=None, max_width=None))
        return
    if table.title:
        print(textwrap.fill(table.title, columns))
    fitted = Table(tuple(_SHORT.get(name, name) for name in table.columns), table.rows)
    scaled = Table(fitted.columns, tuple(tuple(map(_scaled, row)) for row in fitted.rows))
    texts = (_last_cut(form, columns).to_text(max_width=None) for form in (fitted, scaled))
    print(next((text for text in texts if max(map(len, text.splitlines())) <= columns), None)
          or _one_below_another(fitted, columns))


def _scaled(value: object) -> object:
    return short_number(value) if isinstance(value, int) and abs(value) >= 100_000 else value


def _one_below_another(table: Table, columns: int) -> str:
    """Each row as a block of names and values, for a table that is wider than the terminal."""
    blocks = []
    for row in table.rows[:MAX_ROWS]:
        first, *others = [(name, value) for name, value in zip(table.columns, row, strict=True) if value is not None]
        blocks.append(_last_cut(Table((first[0], str(first[1])), tuple(others)), columns).to_text(max_width=None))
    return "\n\n".join(blocks)


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


def short_number(value: object) -> str:
    """A value in at most eight characters, if it is a number: `98,765`, `12.3M`."""
    if not isinstance(value, int) or abs(value) < 100_000:
        return "" if value is None else f"{value:,}" if isinstance(value, int) else str(value)
    for unit, size in (("T", 1e12), ("G", 1e9), ("M", 1e6)):
        if abs(value) >= size:
            return f"{value / size:,.1f}{unit}"
    return f"{value / 1e3:,.1f}k"


def megabytes(size: float) -> str:
    """A size as text, in MB (10**6 bytes)."""
    return f"{size / 1e6:,.1f} MB"


def _columns(stream: TextIO) -> int | None:
    """How wide the terminal is, or `None` if the stream is none."""
    if not stream.isatty():
        return None
    # A terminal that does not know its width says 0.
    return max(os.get_terminal_size(stream.fileno()).columns or 80, 40)
