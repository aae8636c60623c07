# SPDX-License-Identifier: Apache-2.0
"""`BlobStoreConfig`: how a store is kept and compacted, as far as a host may choose.

Begin with one of its presets, `cache`, `archive` or `replicated`, or with the defaults, and change what you need. A
policy, which is given to the store, decides what is worth compacting.
"""

from __future__ import annotations

import math
from typing import Any, Literal, Self, TypeAlias

import attrs

from compactlib.blobstore.names import MAX_NUMBER, MIN_SEGMENT_BYTES
from compactlib.errors import InvalidInput

Durability: TypeAlias = Literal["each", "group", "interval"]
"""When a write is synced: `"each"` before it returns, alone; `"group"` before it returns, one sync for all threads that
wait; `"interval"` with the first write after `sync_interval_seconds`, or with `BlobStore.flush()`."""

_MIB = 1 << 20
_DAY = 86_400.0
_MOST_SECONDS = 1e15
"""Thirty million years; added to a time, or taken from one, it is a time still that a record can hold."""


def _between(least: float, most: float = math.inf, *, optional: bool = False) -> Any:
    """An attrs validator: a number from `least` to `most`."""

    def check(_: object, field: attrs.Attribute[Any], value: Any) -> None:
        if value is None and optional:
            return
        if not isinstance(value, int | float) or not least <= value <= most or value == math.inf:
            raise InvalidInput(f"{field.name} is {value!r}; give a number, {least:g} or more"
                               + (f", up to {most:g}" if most < math.inf else "") + (", or None" if optional else ""))

    return check


def _is_durability(_: object, field: attrs.Attribute[Any], value: object) -> None:
    if value not in ("each", "group", "interval"):
        raise InvalidInput(f"{field.name} is {value!r}; it is 'each', 'group' or 'interval'")


_size = _between(MIN_SEGMENT_BYTES, MAX_NUMBER)
_count = _between(1)
_seconds = _between(0, _MOST_SECONDS)
_bytes = _between(0)
_rate = _between(math.ulp(0.0), optional=True)


@attrs.frozen(kw_only=True)
class BlobStoreConfig:
    """How a store is kept and compacted. Sizes are bytes, times are seconds.

    Attributes:
        capacity_bytes: capacity of the whole log; used when the store is created, and never again.
        segment_bytes: capacity of one segment, a divisor of `capacity_bytes`; used when the store is created.
        durability: when a write is synced.
        sync_interval_seconds: how old un-synced writes may get with `"interval"`.
        max_open_segments: files kept open for reading.
        journal_max_entries: how many of the newest records keep their segments from being compacted; never more than
            the newest quarter of the log's segments.
        find_max_entries: entries in one answer of `entries_since`.
        ttl_update_buffer_seconds: a blob that expires sooner than this cannot be made permanent any more.
        deleted_retention_seconds: how long after a delete its blob can be undeleted and is kept by compactions.
        evicts: a write that finds the log full gives up the blobs that expire next, an eighth of the log at a time,
            instead of raising `StoreFull`; of blobs that never expire, none.
        max_blob_bytes: what is kept free in each output when a plan's benefit is computed. Of larger blobs, a
            compaction may free fewer segments than its plan says, or none.
        compaction_bytes_per_second: rate of a compaction whose budget has none of its own, `None` for no limit.
        purge_tombstones: remove deletes that are no longer needed.
        close_active_segment: a full compaction may close the active segment, so that it becomes eligible.
        hard_delete: `reclaim` overwrites the content of deleted blobs.
        hard_delete_bytes_per_second: rate of that if its budget has none of its own, `None` for no limit.

    Raises:
        InvalidInput: a number is out of its range.
    """

    capacity_bytes: int = attrs.field(default=1024 * _MIB, validator=_size)
    segment_bytes: int = attrs.field(default=64 * _MIB, validator=_size)
    durability: Durability = attrs.field(default="each", validator=_is_durability)
    sync_interval_seconds: float = attrs.field(default=60.0, validator=_seconds)
    max_open_segments: int = attrs.field(default=256, validator=_count)
    journal_max_entries: int = attrs.field(default=20_000, validator=_bytes)
    find_max_entries: int = attrs.field(default=5_000, validator=_count)
    ttl_update_buffer_seconds: float = attrs.field(default=_DAY, validator=_seconds)
    deleted_retention_seconds: float = attrs.field(default=7 * _DAY, validator=_seconds)
    evicts: bool = False
    max_blob_bytes: int = attrs.field(default=4 * _MIB, validator=_bytes)
    compaction_bytes_per_second: float | None = attrs.field(default=float(_MIB), validator=_rate)
    purge_tombstones: bool = False
    close_active_segment: bool = False
    hard_delete: bool = False
    hard_delete_bytes_per_second: float | None = attrs.field(default=100.0 * 1024, validator=_rate)

    @classmethod
    def cache(cls, capacity_bytes: int, **changes: Any) -> Self:
        """Of a cache: what a crash takes is put again, a delete is final, and a full log gives up what expires next.

        Args:
            capacity_bytes: of the log, rounded down to whole segments; sixteen of them, or more of 64 MiB.
            **changes: fields with other values.
        """
        return cls(**{**_shape(capacity_bytes), "durability": "interval", "deleted_retention_seconds": 0.0,
                      "journal_max_entries": 0, "evicts": True, "compaction_bytes_per_second": None,
                      "purge_tombstones": True, **changes})

    @classmethod
    def archive(cls, capacity_bytes: int, **changes: Any) -> Self:
        """Of blobs that stay: each is synced, deletes can be undone for a month, compactions run slowly.

        Args:
            capacity_bytes: of the log, rounded down to whole segments; sixteen of them, or more of 64 MiB.
            **changes: fields with other values.
        """
        return cls(**{**_shape(capacity_bytes), "durability": "group", "deleted_retention_seconds": 30 * _DAY,
                      **changes})

    @classmethod
    def replicated(cls, capacity_bytes: int, **changes: Any) -> Self:
        """Of one of several replicas: peers have what a crash takes, and tombstones go once all peers have read them
        (`BlobStore(seen_by_all_peers=...)`) or they have expired.

        Args:
            capacity_bytes: of the log, rounded down to whole segments; sixteen of them, or more of 64 MiB.
            **changes: fields with other values.
        """
        return cls(**{**_shape(capacity_bytes), "durability": "group", "purge_tombstones": True, **changes})

    def check_capacity(self) -> None:
        """Check that a new store can have this capacity.

        Raises:
            InvalidInput: the capacity is no multiple of the segments' capacity.
        """
        if self.capacity_bytes % min(self.segment_bytes, self.capacity_bytes):
            raise InvalidInput(f"capacity_bytes is {self.capacity_bytes}, which is no multiple of segment_bytes "
                               f"{self.segment_bytes}; choose a divisor")


def _shape(capacity_bytes: int) -> dict[str, int]:
    """Capacity and segments of a preset."""
    if not 16 * MIN_SEGMENT_BYTES <= capacity_bytes <= MAX_NUMBER:
        raise InvalidInput(f"capacity_bytes is {capacity_bytes}; give {16 * MIN_SEGMENT_BYTES} or more")
    segments = max(16, -(-capacity_bytes // (64 * _MIB)))
    return {"capacity_bytes": capacity_bytes // segments * segments, "segment_bytes": capacity_bytes // segments}
