"""One table, three faces: text for a terminal, HTML for a notebook, dictionaries for everything else."""

from __future__ import annotations

import html
from collections.abc import Sequence
from typing import Any

import attrs


@attrs.frozen
class Table:
    """Rows under named columns. Plans and results print themselves through it.

    Attributes:
        columns: the columns' names, in order.
        rows: as many values a row as there are columns.
        title: one line above the table.
    """

    columns: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]
    title: str = ""

    @classmethod
    def from_dicts(cls, rows: Sequence[dict[str, Any]], *, title: str = "") -> Table:
        """A table of dictionaries that share the first one's keys."""
        columns = tuple(rows[0]) if rows else ()
        return cls(columns, tuple(tuple(row[name] for name in columns) for row in rows), title)

    def to_dicts(self) -> list[dict[str, Any]]:
        """One dictionary a row, in order."""
        return [dict(zip(self.columns, row, strict=True)) for row in self.rows]

    def __str__(self) -> str:
        cells = [self.columns, *(tuple(map(_shown, row)) for row in self.rows)]
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        numeric = [all(isinstance(value, int | float) for value in column) and bool(self.rows)
                   for column in (zip(*self.rows, strict=True) if self.rows else [()] * len(self.columns))]
        lines = [
            "  ".join(cell.rjust(width) if right else cell.ljust(width)
                      for cell, width, right in zip(row, widths, numeric, strict=True)).rstrip()
            for row in cells
        ]
        lines.insert(1, "  ".join("-" * width for width in widths))
        return "\n".join([self.title, *lines] if self.title else lines)

    def _repr_html_(self) -> str:
        head = "".join(f"<th>{html.escape(name)}</th>" for name in self.columns)
        body = "".join(
            "<tr>" + "".join(f"<td>{html.escape(_shown(value))}</td>" for value in row) + "</tr>" for row in self.rows
        )
        caption = f"<caption>{html.escape(self.title)}</caption>" if self.title else ""
        return f"<table>{caption}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _shown(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:,.3f}"
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return str(value)
