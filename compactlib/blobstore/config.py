# SPDX-License-Identifier: Apache-2.0
"""`BlobStoreConfig`: everything about a store, its statistics and its compactions that a host may choose.

Begin with one of its presets, `cache`, `archive` or `replicated`, or with the defaults, and change what you need. What
is worth compacting, a policy decides, which is given to the store.

`docs/design/blobstore.md` maps each name to the key of Ambry (`store....`) and to that system's default.
"""

from __future__ import annotations

import math
from typing import Any, Literal, Self, TypeAlias

import attrs

from compactlib.blobstore.model.names import MAX_NUMBER, MIN_SEGMENT_BYTES
from compactlib.blobstore.model.pace import Pace
from compactlib.blobstore.model.placement import SurvivorPlacement
from compactlib.errors import InvalidInput

Durability: TypeAlias = Literal["each", "group", "interval"]
"""When a write is synced: `"each"` before it returns, alone; `"group"` before it returns, one sync for all threads that
wait; `"interval"` with the first write after `sync_interval_seconds`, or with `BlobStore.flush()`."""

_MIB = 1 << 20
_HOUR = 3600.0
_DAY = 24 * _HOUR


@attrs.frozen(kw_only=True)
class BlobStoreConfig:
    """How a store is kept and compacted. Sizes are bytes, times are seconds.

    Attributes:
        capacity_bytes: capacity of the whole log; used when the store is created, and never again.
        segment_bytes: capacity of one segment, a divisor of `capacity_bytes`; used when the store is created.
        durability: when a write is synced.
        sync_interval_seconds: how old un-synced writes may get with `"interval"`.
        max_open_segments: files kept open for reading.
        index_max_entries: records per index segment; the open one is kept in memory as objects.
        index_max_bytes: bytes per index segment.
        journal_max_entries: how many of the newest records keep their segments from being compacted; never more than
            the newest quarter of the log's segments.
        find_max_entries: entries in one answer of `entries_since`.
        ttl_update_buffer_seconds: a blob that expires sooner than this cannot be made permanent any more.
        deleted_retention_seconds: how long after a delete its blob can be undeleted and is kept by compactions.
        evicts: a write that finds the log full gives up the blobs that expire next, an eighth of the log at a time,
            instead of raising `StoreFull`; of blobs that never expire, none.

        stats_bucket_count: time buckets of the incremental statistics; 0 counts everything at each look; `None` keeps
            what the policy needs: a week of buckets for one that has to know what dies when, none for the others.
        stats_bucket_seconds: span of one bucket.
        stats_entries_per_second: how many index entries a background scan reads, `None` for no limit.

        max_blob_bytes: what is kept free in each target segment when a plan's benefit is computed. Of larger blobs, a
            compaction may free fewer segments than its plan says, or none, each time again.
        pace: rate of a compaction that is given no budget, and how far it falls on a slow disk; `None` for no limit.
        compaction_buffer_bytes: how much is read at once where bytes pass through the process.
        swap_segments: how many segments beyond the capacity a compaction may fill before it frees its sources.
        placement: which survivors share a new segment (`ByAge` or `ByEnd` of `compactlib.blobstore.model.placement`),
            with `swap_segments` of 2 or more; `None`: those that are copied one after the other.
        purge_tombstones: remove deletes that are no longer needed.
        close_active_segment: a full compaction may close the active segment, so that it becomes eligible.

        hard_delete: `reclaim` overwrites the content of deleted blobs; a manager does it in slices of their own.
        hard_delete_bytes_per_second: rate of that, `None` for no limit.

    Raises:
        InvalidInput: a number is out of its range.
    """

    capacity_bytes: int = 1024 * _MIB
    segment_bytes: int = 64 * _MIB
    durability: Durability = "each"
    sync_interval_seconds: float = 60.0
    max_open_segments: int = 256
    index_max_entries: int = 10_000
    index_max_bytes: int = 20 * _MIB
    journal_max_entries: int = 20_000
    find_max_entries: int = 5_000
    ttl_update_buffer_seconds: float = _DAY
    deleted_retention_seconds: float = 7 * _DAY
    evicts: bool = False

    stats_bucket_count: int | None = None
    stats_bucket_seconds: float = _HOUR
    stats_entries_per_second: int | None = 240_000

    max_blob_bytes: int = 4 * _MIB
    pace: Pace | None = attrs.field(factory=Pace)
    compaction_buffer_bytes: int = 10 * _MIB
    swap_segments: int = 1
    placement: SurvivorPlacement | None = None
    purge_tombstones: bool = False
    close_active_segment: bool = False

    hard_delete: bool = False
    hard_delete_bytes_per_second: float | None = 100.0 * 1024

    def __attrs_post_init__(self) -> None:
        for field in attrs.fields(type(self)):
            _check_type(field.name, str(field.type), getattr(self, field.name))
        if self.durability not in ("each", "group", "interval"):
            raise InvalidInput(f"durability is {self.durability!r}; it is 'each', 'group' or 'interval'")
        for name, least in _LEAST.items():
            value = getattr(self, name)
            most = _MOST_SECONDS if name.endswith("_seconds") else math.inf
            if value is not None and not (least <= value <= most and value < math.inf):
                raise InvalidInput(f"{name} is {value}; give {least} or more" + f", up to {most:g}" * (most < math.inf))
        for name in _RATES:
            rate = getattr(self, name)
            if rate is not None and not 0 < rate < math.inf:
                raise InvalidInput(f"{name} is {rate}; give a positive rate, or None for no limit")
        if max(self.capacity_bytes, self.segment_bytes) > MAX_NUMBER:
            raise InvalidInput(f"a log of {self.capacity_bytes} bytes is beyond what its format can hold")

    @classmethod
    def cache(cls, capacity_bytes: int, **changes: Any) -> Self:
        """Of a cache: what a crash takes is put again, a delete is final, and a full log gives up what expires next.

        Args:
            capacity_bytes: of the log, rounded down to whole segments; sixteen of them, or more of 64 MiB.
            **changes: fields with other values.
        """
        return cls(**{**_shape(capacity_bytes), "durability": "interval", "deleted_retention_seconds": 0.0,
                      "journal_max_entries": 0, "evicts": True, "pace": None, "purge_tombstones": True,
                      **changes})

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
        (`Questions.seen_by_all_peers`) or they have expired.

        Args:
            capacity_bytes: of the log, rounded down to whole segments; sixteen of them, or more of 64 MiB.
            **changes: fields with other values.
        """
        return cls(**{**_shape(capacity_bytes), "durability": "group", "purge_tombstones": True, **changes})

    def check_capacity(self) -> None:
        """Whether a new store can have this capacity; asked only when one is created.

        Raises:
            InvalidInput: the capacity is no multiple of the segments' capacity.
        """
        if self.capacity_bytes % min(self.segment_bytes, self.capacity_bytes):
            raise InvalidInput(f"capacity_bytes is {self.capacity_bytes}, which is no multiple of segment_bytes "
                               f"{self.segment_bytes}; choose a divisor")


def _shape(capacity_bytes: int) -> dict[str, int]:
    """Capacity and segments of a preset."""
    _check_type("capacity_bytes", "int", capacity_bytes)
    if not 16 * MIN_SEGMENT_BYTES <= capacity_bytes <= MAX_NUMBER:
        raise InvalidInput(f"capacity_bytes is {capacity_bytes}; give {16 * MIN_SEGMENT_BYTES} or more")
    segments = max(16, -(-capacity_bytes // (64 * _MIB)))
    return {"capacity_bytes": capacity_bytes // segments * segments, "segment_bytes": capacity_bytes // segments}


def _check_type(name: str, wanted: str, value: object) -> None:
    """Whether a setting is of its type, so that no comparison below fails with a `TypeError`."""
    if value is None:
        right = wanted.endswith("| None")
    elif wanted.startswith(("int", "float")):
        right = isinstance(value, int if wanted.startswith("int") else int | float) and not isinstance(value, bool)
    else:
        # A class has its instances' methods, too.
        right = not isinstance(value, type) and callable(getattr(value, "place", None)) if name == "placement" else (
            isinstance(value, {"bool": bool, "Pace | None": Pace}.get(wanted, str)))
    if not right:
        raise InvalidInput(f"{name} is {value!r}; its type is {wanted}")


_MOST_SECONDS = 1e15
"""Thirty million years; added to a time, or taken from one, it is a time still that a record can hold."""
_LEAST: dict[str, float] = {
    "capacity_bytes": MIN_SEGMENT_BYTES, "segment_bytes": MIN_SEGMENT_BYTES, "sync_interval_seconds": 0,
    "max_open_segments": 1, "index_max_entries": 1, "index_max_bytes": 1, "journal_max_entries": 0,
    "find_max_entries": 1, "ttl_update_buffer_seconds": 0, "deleted_retention_seconds": 0, "stats_bucket_count": 0,
    "max_blob_bytes": 0, "compaction_buffer_bytes": 1, "swap_segments": 1,
    "stats_bucket_seconds": 0.001,
}
_RATES = ("stats_entries_per_second", "hard_delete_bytes_per_second")
