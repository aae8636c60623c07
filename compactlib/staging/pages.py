# SPDX-License-Identifier: Apache-2.0
"""The pages that listings and diffs give: frozen values, each with where the next page begins."""

from __future__ import annotations

from typing import Any

import attrs

from compactlib.report import Printed
from compactlib.staging.values import Difference, Record


@attrs.frozen
class Listed:
    """One line of a listing.

    Attributes:
        key: the key, or a common prefix that ends with the delimiter.
        record: its record; `None` for a common prefix.
    """

    key: bytes
    record: Record | None

    @property
    def is_prefix(self) -> bool:
        """Whether it stands for all keys that begin so."""
        return self.record is None


@attrs.frozen(kw_only=True)
class ListPage(Printed):
    """One page of a listing: each key as the branch held it at some moment of the call.

    Attributes:
        entries: in order of the keys.
        next_after: give it as `after` for the next page; `None` if there is none. A page that looked at too many
            entries ends early: it may be empty and still have a next one.
        scanned: how many staged and committed entries were looked at.
        tombstones: how many tombstones were passed over.
    """

    entries: tuple[Listed, ...]
    next_after: bytes | None
    scanned: int = 0
    tombstones: int = 0

    @property
    def keys(self) -> tuple[bytes, ...]:
        """Keys and common prefixes, in order."""
        return tuple(entry.key for entry in self.entries)

    def to_dicts(self) -> list[dict[str, Any]]:
        """One row for each entry."""
        return [{"key": entry.key, "identity": None if entry.record is None else entry.record.identity.hex(),
                 "data_bytes": None if entry.record is None else len(entry.record.data)} for entry in self.entries]

    def __repr__(self) -> str:
        more = "" if self.next_after is None else f", more after {self.next_after!r}"
        return f"ListPage({len(self.entries)} entries, {self.scanned} scanned, {self.tombstones} tombstones{more})"


@attrs.frozen(kw_only=True)
class DiffPage(Printed):
    """One page of what is uncommitted: each key as it differed from HEAD at some moment of the call.

    Attributes:
        differences: from HEAD to the branch, in order of the keys.
        next_after: give it as `after` for the next page; `None` if there is none. May be set on an empty page.
        scanned: how many keys were looked at.
    """

    differences: tuple[Difference, ...]
    next_after: bytes | None
    scanned: int = 0

    def to_dicts(self) -> list[dict[str, Any]]:
        """One row for each difference."""
        return [{"kind": one.kind, "key": one.key,
                 "left": None if one.left is None else one.left.identity.hex(),
                 "right": None if one.right is None else one.right.identity.hex()} for one in self.differences]

    def __repr__(self) -> str:
        more = "" if self.next_after is None else f", more after {self.next_after!r}"
        return f"DiffPage({len(self.differences)} differences, {self.scanned} scanned{more})"
