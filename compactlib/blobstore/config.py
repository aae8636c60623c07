# SPDX-License-Identifier: Apache-2.0
"""`BlobStoreConfig`: the settings of a store. A number out of its range raises `InvalidInput`.

Begin with a preset, `cache`, `archive` or `replicated`, or with the defaults, and change single settings. The choice of
segments to compact is not a setting but a policy, which is an argument of the store.
"""

from __future__ import annotations

from typing import Any, Literal, Self, TypeAlias

import attrs

from compactlib._arguments import is_above, is_one_of, is_seconds, is_whole
from compactlib.blobstore.names import MAX_NUMBER, MAX_SEGMENTS, MIN_SEGMENT_BYTES
from compactlib.errors import InvalidInput

Durability: TypeAlias = Literal["each", "group", "interval"]
"""When a write is synced: `"each"`: by itself, before it returns; `"group"`: before it returns, with one sync for all
waiting threads; `"interval"`: with the first write after `sync_interval_seconds`, or by `BlobStore.flush()`."""

_MIB = 1 << 20
_DAY = 86_400.0
_MOST_SECONDS = 1e15
"""Thirty million years: a record can hold any current time plus or minus this span."""


_size, _bytes, _count = is_whole(MIN_SEGMENT_BYTES), is_whole(), is_whole(1)
_seconds, _rate = is_seconds(most=_MOST_SECONDS), is_above(0, or_none=True)


@attrs.frozen(kw_only=True)
class BlobStoreConfig:
    """The settings of a store. Sizes are bytes, times are seconds.

    Attributes:
        capacity_bytes: capacity of the whole log; used only when the store is created.
        segment_bytes: capacity of one segment, a divisor of `capacity_bytes`; used only when the store is created. A
            log of one segment, as by default up to 64 MiB, is never compacted.
        durability: when a write is synced.
        sync_interval_seconds: the largest age of unsynced writes at the next write, with `"interval"`.
        max_open_segments: files kept open for reading.
        journal_max_entries: size of the journal: segments with these newest records are not eligible; at most the
            newest quarter of the log's segments.
        find_max_entries: records read for one result of `entries_since`.
        ttl_update_buffer_seconds: a blob that expires sooner than this cannot be made permanent.
        deleted_retention_seconds: time after a delete in which the blob can be undeleted and compactions keep it.
        evicts: a write into a full log evicts the blobs that expire next, an eighth of the log at a time, instead of
            raising `StoreFull`. Blobs that never expire are not evicted.
        max_blob_bytes: room that a plan's benefit assumes free in each output. With larger blobs, a compaction may free
            fewer segments than its plan says.
        compaction_bytes_per_second: rate of a compaction, unless its budget has a rate; `None` for no limit.
        purge_tombstones: compactions remove tombstones that are not needed any more.
        hard_delete: `reclaim` overwrites the content of deleted blobs.
        hard_delete_bytes_per_second: rate of the hard delete, unless its budget has a rate; `None` for no limit.
    """

    capacity_bytes: int = attrs.field(default=1024 * _MIB, validator=_size)
    segment_bytes: int = attrs.field(default=64 * _MIB, validator=_size)
    durability: Durability = attrs.field(default="each", validator=is_one_of(Durability))
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
    hard_delete: bool = False
    hard_delete_bytes_per_second: float | None = attrs.field(default=100.0 * 1024, validator=_rate)

    @classmethod
    def cache(cls, capacity_bytes: int, **changes: Any) -> Self:
        """Return the settings of a cache: a crash may lose recent puts, a delete is final, and a full log evicts.

        Args:
            capacity_bytes: capacity of the log, rounded down to whole segments; 16 segments, or more of 64 MiB.
            **changes: settings with other values.
        """
        return cls(**{**_shape(capacity_bytes), "durability": "interval", "deleted_retention_seconds": 0.0,
                      "journal_max_entries": 0, "evicts": True, "compaction_bytes_per_second": None,
                      "purge_tombstones": True, **changes})

    @classmethod
    def archive(cls, capacity_bytes: int, **changes: Any) -> Self:
        """Return the settings of an archive: puts are synced, deletes are final after 30 days. Arguments as `cache`."""
        return cls(**{**_shape(capacity_bytes), "durability": "group", "deleted_retention_seconds": 30 * _DAY,
                      **changes})

    @classmethod
    def replicated(cls, capacity_bytes: int, **changes: Any) -> Self:
        """Return the settings of a replica: a tombstone is removed once it has expired or all peers have read it
        (`BlobStore(seen_by_all_peers=...)`). Arguments as `cache`.
        """
        return cls(**{**_shape(capacity_bytes), "durability": "group", "purge_tombstones": True, **changes})

    def check_capacity(self) -> None:
        """Raise `InvalidInput` if the capacity of a new store is no multiple of its segments' capacity, or has too many
        of them, or is larger than any offset.
        """
        size = min(self.segment_bytes, self.capacity_bytes)
        if self.capacity_bytes > MAX_NUMBER:
            raise InvalidInput(f"capacity_bytes is {self.capacity_bytes}; choose at most {MAX_NUMBER}")
        if self.capacity_bytes % size or self.capacity_bytes // size > MAX_SEGMENTS:
            raise InvalidInput(f"capacity_bytes is {self.capacity_bytes} and segment_bytes {self.segment_bytes}; "
                               f"choose a divisor of the capacity, for at most {MAX_SEGMENTS:,} segments")


def _shape(capacity_bytes: int) -> dict[str, int]:
    """Return the capacities of a preset: at least 16 segments, of at most 64 MiB."""
    if not 16 * MIN_SEGMENT_BYTES <= capacity_bytes <= MAX_NUMBER:
        raise InvalidInput(f"capacity_bytes is {capacity_bytes}; give {16 * MIN_SEGMENT_BYTES} or more")
    segments = max(16, -(-capacity_bytes // (64 * _MIB)))
    return {"capacity_bytes": capacity_bytes // segments * segments, "segment_bytes": capacity_bytes // segments}
