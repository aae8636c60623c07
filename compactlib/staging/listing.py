# SPDX-License-Identifier: Apache-2.0
"""Listings: staged entries merged with the base, without tombstones, with folded common prefixes; pages of listings and
diffs.

A page reads a bounded number of entries. Once a key with a common prefix was found, the listing seeks past that prefix.
"""

from __future__ import annotations

from typing import Any, Final

import attrs

from compactlib.errors import InvalidInput
from compactlib.report import Printed
from compactlib.staging.ranges.cursor import RangeScan
from compactlib.staging.tokens import MergedTokens
from compactlib.staging.values import Difference, Record

MAX_LIST_LIMIT: Final = 10_000
"""The most entries of one page."""


@attrs.frozen
class Listed:
    """One line of a listing: a key and its record, or a common prefix, which ends with the delimiter."""

    key: bytes
    record: Record | None

    @property
    def is_prefix(self) -> bool:
        """Whether this is a common prefix."""
        return self.record is None


@attrs.frozen(kw_only=True, repr=False)
class ListPage(Printed):
    """One page of a listing: each key as of some moment of the call.

    Attributes:
        entries: in order of the keys.
        next_after: the `after` of the next page; `None` on the last page. A page that has read `max_scanned` entries
            ends early: it may be empty without being the last.
        scanned: number of staged and committed entries read.
        tombstones: number of tombstones skipped.
    """

    entries: tuple[Listed, ...] = ()
    next_after: bytes | None = None
    scanned: int = 0
    tombstones: int = 0

    @property
    def keys(self) -> tuple[bytes, ...]:
        """Return keys and common prefixes, in order."""
        return tuple(entry.key for entry in self.entries)

    def to_dicts(self) -> list[dict[str, Any]]:
        """Return one row for each entry."""
        return [{"key": entry.key, "identity": _identity(entry.record),
                 "data_bytes": None if entry.record is None else len(entry.record.data)} for entry in self.entries]

    def _summary(self) -> str:
        return (f"{len(self.entries)} entries, {self.scanned} scanned, {self.tombstones} tombstones"
                f"{_more(self.next_after)}")


@attrs.frozen(kw_only=True, repr=False)
class DiffPage(Printed):
    """One page of uncommitted changes: each difference from HEAD as of some moment of the call.

    Attributes:
        differences: from HEAD to the branch, in order of the keys.
        next_after: the `after` of the next page; `None` on the last page. May be set on an empty page.
        scanned: number of keys read.
    """

    differences: tuple[Difference, ...]
    next_after: bytes | None
    scanned: int = 0

    def to_dicts(self) -> list[dict[str, Any]]:
        """Return one row for each difference."""
        return [{"kind": one.kind, "key": one.key, "left": _identity(one.left), "right": _identity(one.right)}
                for one in self.differences]

    def _summary(self) -> str:
        return f"{len(self.differences)} differences, {self.scanned} scanned{_more(self.next_after)}"


def _more(next_after: bytes | None) -> str:
    return "" if next_after is None else f", more after {next_after!r}"


def _identity(record: Record | None) -> str | None:
    return None if record is None else record.identity.hex()


@attrs.frozen(kw_only=True)
class ListRequest:
    """The arguments of a page of a listing; see `Branch.list`. A page reads at most `max_scanned` entries."""

    prefix: bytes = b""
    delimiter: bytes = b""
    after: bytes | None = None
    limit: int = 1000
    max_scanned: int

    def __attrs_post_init__(self) -> None:
        if not 1 <= self.limit <= MAX_LIST_LIMIT:
            raise InvalidInput(f"the limit of a page is {self.limit}; give 1 to {MAX_LIST_LIMIT:,}")

    def common_prefix(self, key: bytes) -> bytes | None:
        """Return the common prefix of a key; `None` if the key is not folded."""
        if not self.delimiter:
            return None
        at = key.find(self.delimiter, len(self.prefix))
        return None if at < 0 else key[:at + len(self.delimiter)]

    def start(self) -> bytes | None:
        """Return the first key that may be listed; `None` if no key may."""
        if self.after is None:
            return self.prefix
        if self.after.startswith(self.prefix) and self.common_prefix(self.after) == self.after:
            behind = upper_bound(self.after)
            return None if behind is None else max(behind, self.prefix)
        return max(self.after + b"\0", self.prefix)


def upper_bound(prefix: bytes) -> bytes | None:
    """Return the smallest key above all keys with `prefix`; `None` if the prefix is empty or all 0xFF."""
    stripped = prefix.rstrip(b"\xff")
    return stripped[:-1] + bytes([stripped[-1] + 1]) if stripped else None


def page_of(source: MergedTokens | RangeScan, request: ListRequest) -> ListPage:
    """Return one page of a scan that begins at `request.start()`."""
    entries: list[Listed] = []
    tombstones = 0
    after: bytes | None = None
    for key, record in source:
        if not key.startswith(request.prefix):
            break
        is_full = len(entries) == request.limit or source.scanned > request.max_scanned
        # Not between a tombstone that is itself a common prefix and the keys with it: `after` would skip these.
        if is_full and after is not None and not (key.startswith(after) and request.common_prefix(after) == after):
            return ListPage(entries=tuple(entries), next_after=after, scanned=source.scanned, tombstones=tombstones)
        after = key
        if record is None:
            tombstones += 1
            continue
        folded = request.common_prefix(key)
        if folded is None:
            entries.append(Listed(key, record))
            continue
        entries.append(Listed(folded, None))
        after = folded
        behind = upper_bound(folded)
        if behind is None:
            break
        source.seek(behind)
    return ListPage(entries=tuple(entries), scanned=source.scanned, tombstones=tombstones)
