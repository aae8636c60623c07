# SPDX-License-Identifier: Apache-2.0
"""What one step touches: the ranges of keys it reads and writes. From this the exploration sees which steps commute."""

from __future__ import annotations

from typing import Final

import attrs

ACKNOWLEDGED: Final = "acknowledged"
"""The space of the marks that say which operation ended before which other one began."""


@attrs.frozen
class Span:
    """Some keys of one space.

    Attributes:
        space: the partition, store or other place; spans of different spaces have nothing in common.
        first: the first key.
        last: the last key, inclusive; `None`: to the end of the space.
        writes: whether the keys may change.
    """

    space: str | bytes
    first: str | bytes
    last: str | bytes | None
    writes: bool

    def meets(self, other: Span) -> bool:
        """Whether the order of the two can matter: they share a key, and one of them writes."""
        if not (self.writes or other.writes) or self.space != other.space:
            return False
        # Keys of one space are of one type.
        if self.first == other.first:
            return True
        return ((self.last is None or other.first <= self.last)  # type: ignore[operator]
                and (other.last is None or self.first <= other.last))  # type: ignore[operator]


@attrs.frozen
class Access:
    """One step before it is carried out: an operation of a store, or a mark.

    Attributes:
        name: what is done, such as `"set_if"`.
        spans: what it touches; empty if it has nothing to do with other actors.
    """

    name: str
    spans: tuple[Span, ...] = ()

    def meets(self, other: Access) -> bool:
        """Whether exchanging the two, one right after the other, may change anything."""
        return any(mine.meets(theirs) for mine in self.spans for theirs in other.spans)

    def __str__(self) -> str:
        shown = ", ".join(f"{_text(span.space)} {_range(span)}" for span in self.spans if span.space != ACKNOWLEDGED)
        return f"{self.name} {shown}".rstrip()


def cell(space: str | bytes, key: str | bytes, *, writes: bool) -> Span:
    """One key."""
    return Span(space, key, key, writes)


def _range(span: Span) -> str:
    if span.last == span.first:
        return _text(span.first)
    return f"from {_text(span.first)}" + ("" if span.last is None else f" to {_text(span.last)}")


def _text(name: str | bytes) -> str:
    if isinstance(name, bytes):
        return name.decode("ascii", "backslashreplace") or "the start"
    return name or "the start"
