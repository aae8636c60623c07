# SPDX-License-Identifier: Apache-2.0
"""Tables: text for a terminal, HTML for a notebook, dictionaries for everything else.

`to_dicts` is the data itself. Text and HTML are for reading: rows beyond `MAX_ROWS` are only counted.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol, TypeAlias

import attrs

from compactlib.errors import CompactlibError, InvalidInput

Setting: TypeAlias = int | float | str | None
"""What a setting of a policy may be, so that a plan can show it."""

MAX_ROWS = 200
"""Rows shown by `str(table)` and in notebooks."""


@attrs.frozen(repr=False)
class Table:
    """Rows under named columns. Plans and results print themselves through it.

    Attributes:
        columns: the columns' names, in order.
        rows: as many values a row as there are columns.
        title: one line above the table.

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
        """Make a table with a row for each attrs value: a column for each field."""
        return cls.from_dicts([attrs.asdict(value, recurse=False) for value in values], title=title)

    @classmethod
    def from_dicts(cls, rows: Sequence[Mapping[str, Any]], *, title: str = "") -> Table:
        """Make a table of dictionaries; columns in the order in which their names occur, gaps filled with `None`."""
        columns = tuple(dict.fromkeys(name for row in rows for name in row))
        return cls(columns, tuple(tuple(map(row.get, columns)) for row in rows), title)

    def to_dicts(self) -> list[dict[str, Any]]:
        """Return one dictionary a row, in order."""
        return [dict(zip(self.columns, row, strict=True)) for row in self.rows]

    def to_text(self, *, max_rows: int | None = MAX_ROWS) -> str:
        """Return the table as lines of text, numbers to the right, everything else to the left.

        Args:
            max_rows: rows to show; the rest is counted in a last line. `None` shows all.
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
        from html import escape  # only notebooks need it, and it brings a table of all entities

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
        """Return which columns hold numbers and nothing else, gaps aside."""
        return [any(value is not None for value in column) and all(map(_is_number_or_none, column))
                for column in (zip(*self.rows, strict=True) if self.rows else [()] * len(self.columns))]

    def _remark(self, shown: int) -> list[str]:
        if not self.rows:
            return ["(no rows)"]
        return [f"({len(self.rows) - shown:,} more rows)"] if shown < len(self.rows) else []


class Printed:
    """An attrs value that is a table: notebooks show it. `repr()` and `str()` are those of attrs, or:

    Give `_summary`, and switch off the `repr` that attrs would make: then `repr()` is this line, and `str()` the table
    under it. Give `to_dicts`, unless the table is one row of the fields.
    """

    __slots__ = ()

    def to_dicts(self) -> list[dict[str, Any]]:
        """The rows as data; one row: every field."""
        fields: Any = self
        return [attrs.asdict(fields)]

    def _summary(self) -> str:
        """The line."""
        return ""

    def table(self) -> Table:
        """The rows of `to_dicts()` under the line."""
        return Table.from_dicts(self.to_dicts(), title=self._summary())

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self._summary()}>"

    def __str__(self) -> str:
        return str(self.table()) if self._summary() else repr(self)

    def _repr_html_(self) -> str:
        return self.table()._repr_html_()


class _Named(Protocol):
    """A policy, as far as a plan names it."""

    @property
    def name(self) -> str:
        """The policy's name."""


@attrs.frozen
class PolicyRecord:
    """Which policy made a plan, with its settings.

    Attributes:
        name: the policy's name.
        settings: names and values, sorted by name.
    """

    name: str
    settings: tuple[tuple[str, Setting], ...]

    @classmethod
    def of(cls, policy: _Named) -> PolicyRecord:
        """The record of `policy` as it is configured now.

        Its settings are its public fields, of an attrs class or a dataclass; another policy's, or what else is no
        plain value, as text. A policy of another class has none.
        """
        kind: Any = type(policy)
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
    """Something that a store's `verify` found not to be as it should.

    Attributes:
        kind: `damage`, `missing`, `order`, `name`, ...; `orphan` and `leftover` are harmless, and are removed by the
            next compaction.
        place: file and offset, key, or version.
        what: one sentence.
        error: what reading it would raise, if it would; without the frames that found it, whose files it would keep.
    """

    kind: str
    place: str
    what: str
    error: CompactlibError | None = attrs.field(default=None, converter=_without_frames)

    @property
    def is_harmless(self) -> bool:
        """Whether nothing is lost by it."""
        return self.kind in ("orphan", "leftover")

    def to_dicts(self) -> list[dict[str, Any]]:
        """One row."""
        return [{"kind": self.kind, "place": self.place, "what": self.what}]


@attrs.frozen(repr=False)
class VerifyReport(Printed):
    """What a store's `verify` read, and found.

    Attributes:
        findings: everything that is not as it should be.
        records: records looked at.
        bytes_read: bytes read.
    """

    findings: tuple[Finding, ...]
    records: int
    bytes_read: int

    @property
    def is_sound(self) -> bool:
        """Whether nothing is lost or damaged."""
        return all(finding.is_harmless for finding in self.findings)

    def to_dicts(self) -> list[dict[str, Any]]:
        """One row a finding."""
        return [row for finding in self.findings for row in finding.to_dicts()]

    def _summary(self) -> str:
        return f"{len(self.findings)} findings in {self.records:,} records, {self.bytes_read:,} bytes"


class Status(Protocol):
    """What a store's `status` answers: a frozen value that prints itself."""

    @property
    def is_busy(self) -> bool:
        """Whether a compaction or a reclaim is under way."""

    @property
    def last_error(self) -> str:
        """The last unexpected exception in the store's own threads, as `Kind: message`; empty if none."""

    @property
    def failures(self) -> int:
        """How often that was."""

    def to_dicts(self) -> list[dict[str, Any]]:
        """Its rows as data."""


def _is_number_or_none(value: Any) -> bool:
    return value is None or (isinstance(value, int | float) and not isinstance(value, bool))


def _shown(value: Any) -> str:
    """A value as text, or `""` for `None`."""
    if value is None:
        return ""
    if isinstance(value, float):
        # Three decimals, unless they would hide that a small number is not zero.
        return f"{value:,.3f}" if value == 0 or not abs(value) < 0.001 else f"{value:.3g}"
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return str(value)


def _line(value: object) -> str:
    """Return a value on one line: line ends and control characters are shown as escapes."""
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in _shown(value))
