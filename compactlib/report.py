# SPDX-License-Identifier: Apache-2.0
"""Tables: as text for a terminal, as HTML for a notebook, as dictionaries for programs.

`to_dicts` returns all rows. Text and HTML show up to `MAX_ROWS` rows, and count the rest.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol, TypeAlias

import attrs

from compactlib.errors import CompactlibError, InvalidInput

Setting: TypeAlias = int | float | str | None
"""The type of a policy's setting in a plan."""

MAX_ROWS = 200
"""Rows shown by `str(table)` and in notebooks."""


@attrs.frozen(repr=False)
class Table:
    """Rows with named columns. Plans and reports print themselves as tables.

    Attributes:
        columns: the names of the columns.
        rows: a value for each column.
        title: a line above the table.

    Raises:
        InvalidInput: a row has more or fewer values than there are columns.
    """

    columns: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]
    title: str = ""

    def __attrs_post_init__(self) -> None:
        for number, row in enumerate(self.rows):
            if len(row) != len(self.columns):
                raise InvalidInput(f"row {number} has {len(row)} values for {len(self.columns)} columns "
                                   f"({', '.join(self.columns)})")

    @classmethod
    def of(cls, values: Iterable[Any], *, title: str = "") -> Table:
        """Return a table with a row for each attrs value and a column for each field."""
        return cls.from_dicts([attrs.asdict(value, recurse=False) for value in values], title=title)

    @classmethod
    def from_dicts(cls, rows: Sequence[Mapping[str, Any]], *, title: str = "") -> Table:
        """Return a table of dictionaries; columns in the order of their first use, gaps filled with `None`."""
        columns = tuple(dict.fromkeys(name for row in rows for name in row))
        return cls(columns, tuple(tuple(map(row.get, columns)) for row in rows), title)

    def to_dicts(self) -> list[dict[str, Any]]:
        """Return a dictionary for each row."""
        return [dict(zip(self.columns, row, strict=True)) for row in self.rows]

    def to_text(self, *, max_rows: int | None = MAX_ROWS) -> str:
        """Return the table as text, with numbers aligned right and other values left.

        Args:
            max_rows: rows to show; a last line counts the rest. `None` shows all.
        """
        shown = self.rows if max_rows is None else self.rows[:max_rows]
        cells = [list(map(_line, row)) for row in (self.columns, *shown)]
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        aligned = [str.rjust if is_number else str.ljust for is_number in self._numeric()]
        lines = ["  ".join(align(cell, width) for align, cell, width in zip(aligned, row, widths, strict=True)).rstrip()
                 for row in cells]
        lines.insert(1, "  ".join("-" * width for width in widths))
        return "\n".join([*([self.title] if self.title else []), *(lines if self.columns else []),
                          *self._remark(len(shown))])

    def __str__(self) -> str:
        return self.to_text()

    def __repr__(self) -> str:
        return f"Table({self.title!r}, {len(self.rows)} rows of {', '.join(self.columns) or 'no columns'})"

    def _repr_html_(self) -> str:
        from html import escape  # only for notebooks; it loads a table of all entities

        shown = self.rows[:MAX_ROWS]
        styles = [f' style="text-align: {"right" if is_number else "left"}"' for is_number in self._numeric()]

        def row(tag: str, values: Iterable[Any]) -> str:
            return "".join(f"<{tag}{style}>{escape(_shown(value))}</{tag}>"
                           for value, style in zip(values, styles, strict=True))

        caption = f"<caption>{escape(self.title)}</caption>" if self.title else ""
        body = "".join(f"<tr>{row('td', values)}</tr>" for values in shown)
        remark = "".join(f"<p>{line}</p>" for line in self._remark(len(shown)))
        return (f"<table>{caption}<thead><tr>{row('th', self.columns)}</tr></thead><tbody>{body}</tbody></table>"
                f"{remark}")

    def _numeric(self) -> list[bool]:
        """Return for each column whether all its values are numbers, gaps aside."""
        return [any(value is not None for value in column) and all(map(_is_number_or_none, column))
                for column in (zip(*self.rows, strict=True) if self.rows else [()] * len(self.columns))]

    def _remark(self, shown: int) -> list[str]:
        if not self.rows:
            return ["(no rows)"]
        return [f"({len(self.rows) - shown:,} more rows)"] if shown < len(self.rows) else []


class Printed:
    """The base of an attrs value that notebooks show as a table.

    A subclass with `repr=False` and a `_summary` has this line as `repr()`, and the line with the table as `str()`. A
    subclass overrides `to_dicts`, unless its table is one row of its fields.
    """

    __slots__ = ()

    def to_dicts(self) -> list[dict[str, Any]]:
        """Return the rows as data; by default one row of all fields."""
        fields: Any = self
        return [attrs.asdict(fields)]

    def _summary(self) -> str:
        """Return the line above the table."""
        return ""

    def table(self) -> Table:
        """Return the table of `to_dicts()`."""
        return Table.from_dicts(self.to_dicts(), title=self._summary())

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self._summary()}>"

    def __str__(self) -> str:
        return str(self.table()) if self._summary() else repr(self)

    def _repr_html_(self) -> str:
        return self.table()._repr_html_()


@attrs.frozen
class PolicyRecord:
    """The name and the settings of the policy that made a plan.

    Attributes:
        name: the policy's name.
        settings: names and values, sorted by name.
    """

    name: str
    settings: tuple[tuple[str, Setting], ...]

    @classmethod
    def of(cls, policy: Any) -> PolicyRecord:
        """Return the record of a policy.

        The settings are the public fields of an attrs class or a dataclass; other classes have none. A value that is
        no `Setting` becomes text, also an inner policy.
        """
        kind = type(policy)
        fields: Sequence[Any] = attrs.fields(kind) if attrs.has(kind) else \
            dataclasses.fields(kind) if dataclasses.is_dataclass(kind) else ()
        settings = {field.name: _setting(getattr(policy, field.name)) for field in fields
                    if not field.name.startswith("_")}
        return cls(policy.name, tuple(sorted(settings.items())))

    def __str__(self) -> str:
        return f"{self.name}({', '.join(f'{name}={value}' for name, value in self.settings)})"


def _setting(value: Any) -> Setting:
    if value is None or isinstance(value, int | float | str):
        return value
    return str(PolicyRecord.of(value)) if hasattr(value, "choose") and hasattr(value, "name") else str(value)


def _without_frames(error: CompactlibError | None) -> CompactlibError | None:
    return None if error is None else error.with_traceback(None)


@attrs.frozen
class Finding:
    """A problem that a store's `verify` found.

    Attributes:
        kind: `damage`, `missing`, `order`, `name`, ...; `orphan` and `leftover` are harmless, and the next compaction
            removes them.
        place: file and offset, key, or version.
        what: the problem in a sentence.
        error: the error that a read would raise, if any; without its traceback, which would keep files open.
    """

    kind: str
    place: str
    what: str
    error: CompactlibError | None = attrs.field(default=None, converter=_without_frames)

    @property
    def is_harmless(self) -> bool:
        """Whether no data is lost."""
        return self.kind in ("orphan", "leftover")

    def to_dicts(self) -> list[dict[str, Any]]:
        """Return one row."""
        return [{"kind": self.kind, "place": self.place, "what": self.what}]


@attrs.frozen(repr=False)
class VerifyReport(Printed):
    """The result of a store's `verify`.

    Attributes:
        findings: all problems.
        records: the number of records checked.
        bytes_read: bytes read.
    """

    findings: tuple[Finding, ...]
    records: int
    bytes_read: int

    @property
    def is_sound(self) -> bool:
        """Whether no data is lost or damaged."""
        return all(finding.is_harmless for finding in self.findings)

    def to_dicts(self) -> list[dict[str, Any]]:
        """Return a row for each finding."""
        return [row for finding in self.findings for row in finding.to_dicts()]

    def _summary(self) -> str:
        return f"{len(self.findings)} findings in {self.records:,} records, {self.bytes_read:,} bytes"


class Status(Protocol):
    """The result of a store's `status`: a frozen value that prints itself."""

    @property
    def is_busy(self) -> bool:
        """Whether a compaction or a reclaim runs."""

    @property
    def last_error(self) -> str:
        """The last unexpected exception in the store's own threads, as `Kind: message`; empty if none."""

    @property
    def failures(self) -> int:
        """The number of unexpected exceptions."""

    def to_dicts(self) -> list[dict[str, Any]]:
        """Return its rows as data."""


def _is_number_or_none(value: Any) -> bool:
    return value is None or (isinstance(value, int | float) and not isinstance(value, bool))


def _shown(value: Any) -> str:
    """Return a value as text, `""` for `None`."""
    if value is None:
        return ""
    if isinstance(value, float):
        # Three decimals, except for a small number, which they would show as 0.000.
        return f"{value:,.3f}" if value == 0 or not abs(value) < 0.001 else f"{value:.3g}"
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return str(value)


def _line(value: object) -> str:
    """Return a value as one line, with line ends and control characters escaped."""
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in _shown(value))
