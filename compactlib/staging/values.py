# SPDX-License-Identifier: Apache-2.0
"""The frozen values of the committed layer: records, changes, ranges, differences, and what an apply did.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, Literal, NewType, TypeAlias

import attrs

from compactlib.errors import InvalidInput
from compactlib.objects import Digest
from compactlib.report import Printed

MetaRangeId = NewType("MetaRangeId", str)
"""Names one sorted, immutable set of records by its content: 40 hexadecimal digits. The empty set has one too."""

RangeId = NewType("RangeId", str)
"""Names one range, a run of neighbouring records, by its content: 40 hexadecimal digits."""

MAX_KEY_BYTES: Final = 1 << 16
"""The longest key of a record."""
MAX_PART_BYTES: Final = 40 << 20
"""The longest identity, and the longest data, of one record."""


@attrs.frozen
class Record:
    """What a key holds.

    Attributes:
        identity: distinguishes two values of one key: equal identities mean "nothing changed", whatever the data. May
            be empty.
        data: the value itself; may be empty.
    """

    identity: bytes
    data: bytes

    @classmethod
    def of(cls, data: bytes) -> Record:
        """A record whose identity is the digest of its data, so that every change of data is seen as one."""
        return cls(Digest.of(data).value, data)


TOMBSTONE: Final = None
"""The change that removes a key."""

Change: TypeAlias = Record | None
"""What an apply does to one key: put this record, or remove it (`TOMBSTONE`)."""

Changes: TypeAlias = Iterable[tuple[bytes, Change]]
"""Changes in strictly ascending order of their keys."""

MergeStrategy: TypeAlias = Literal["fail", "source_wins", "destination_wins"]
"""What a merge does about a key that both sides changed differently."""

Kind: TypeAlias = Literal["added", "changed", "removed"]
"""What happened to a key from the left to the right side of a diff."""


def are_same(one: Record | None, other: Record | None) -> bool:
    """Whether two states of one key are one: both absent, or of one identity."""
    if one is None or other is None:
        return one is other
    return one.identity == other.identity


@attrs.frozen
class Difference:
    """One key that is not the same on both sides. The same shape whatever found it.

    Attributes:
        kind: `"added"` (only on the right), `"removed"` (only on the left), `"changed"` (two identities).
        key: the key.
        left: the left record; `None` when added.
        right: the right record; `None` when removed.
    """

    kind: Kind
    key: bytes
    left: Record | None
    right: Record | None

    @classmethod
    def between(cls, key: bytes, left: Record | None, right: Record | None) -> Difference | None:
        """The difference between two states of one key; `None` if there is none: both absent, or of one identity."""
        if left is None:
            return None if right is None else cls("added", key, None, right)
        if right is None:
            return cls("removed", key, left, None)
        return None if left.identity == right.identity else cls("changed", key, left, right)


@attrs.frozen
class RangeEntry:
    """One range as its metarange knows it, without opening it.

    Attributes:
        range_id: names the content.
        min_key: its first key.
        max_key: its last key.
        count: how many records.
        size_bytes: their logical size: see `compactlib.staging.ranges.split.record_bytes`.
    """

    range_id: RangeId
    min_key: bytes
    max_key: bytes
    count: int
    size_bytes: int


@attrs.frozen
class RangeFile:
    """The file of one committed range, for readers of its format. See `CommittedView.files`.

    Attributes:
        path: its key in the object store: what stands behind the folder of `LocalObjects`, or behind `s3://bucket/`.
        rows: how many records it holds.
        size_bytes: the logical size of its records: keys, identities and data before compression.
        first_key: its first key.
        last_key: its last key.
    """

    path: str
    rows: int
    size_bytes: int
    first_key: bytes
    last_key: bytes


@attrs.frozen
class StoredFile:
    """A range or metarange file, as a listing of the object store shows it.

    Attributes:
        id: the `RangeId` or `MetaRangeId` it is stored under.
        size_bytes: length of the file.
        modified_at: when it was written, in seconds since the epoch by the store's clock.
    """

    id: str
    size_bytes: int
    modified_at: float


@attrs.frozen(kw_only=True)
class Applied(Printed):
    """What an apply (or a merge) made, and what it cost. Counts are against the base it was applied to.

    Attributes:
        metarange_id: the result; the base's own id if nothing changed.
        added: keys that the base did not have.
        changed: keys whose identity changed.
        removed: keys that the base had.
        ranges_reused: ranges of the base taken over unread.
        ranges_read: ranges of the base that were opened.
        ranges_written: ranges of the result that the base did not have.
        bytes_read: logical bytes of the ranges opened.
        bytes_written: logical bytes of the ranges written.
    """

    metarange_id: MetaRangeId
    added: int = 0
    changed: int = 0
    removed: int = 0
    ranges_reused: int = 0
    ranges_read: int = 0
    ranges_written: int = 0
    bytes_read: int = 0
    bytes_written: int = 0

    @property
    def changes(self) -> int:
        """How many keys are not what they were; 0 means the result is the base in content."""
        return self.added + self.changed + self.removed


@attrs.frozen(kw_only=True)
class LiveMetaRanges:
    """What a garbage collection has to keep.

    Attributes:
        needed: metaranges that branches stand on: if one of them cannot be read, nothing may be deleted.
        history: those of the commits before; kept as far as they are there. A commit that was brought back may have
            lost some of its ancestors' to an earlier collection.
    """

    needed: frozenset[MetaRangeId] = frozenset()
    history: frozenset[MetaRangeId] = frozenset()


@attrs.frozen(kw_only=True)
class Collected(Printed):
    """What a garbage collection of ranges and metaranges did.

    Attributes:
        metaranges_deleted: metarange files deleted.
        ranges_deleted: range files deleted.
        bytes_freed: the lengths of those files.
        live: files that a live metarange needs.
        live_bytes: the lengths of those files.
        young: unreachable files younger than the grace period, used again within it, or another collection's.
        young_bytes: the lengths of those files.
        gone: metaranges of the history that are not there any more.
    """

    metaranges_deleted: int = 0
    ranges_deleted: int = 0
    bytes_freed: int = 0
    live: int = 0
    live_bytes: int = 0
    young: int = 0
    young_bytes: int = 0
    gone: int = 0


def check_key(key: bytes) -> None:
    """Pass the key of a record: 1 to `MAX_KEY_BYTES` bytes, any bytes.

    Raises:
        InvalidInput: it is empty, too long, or not `bytes`.
    """
    if not isinstance(key, bytes):
        raise InvalidInput(f"a key is bytes, found {type(key).__name__}")
    if not 1 <= len(key) <= MAX_KEY_BYTES:
        raise InvalidInput(f"a key has 1 to {MAX_KEY_BYTES:,} bytes, found {len(key):,}")
