"""`BlobStoreConfig`: everything about a store, its statistics, policies and compactions that a host may choose.

`docs/blobstore.md` maps each name to the key of the seed (`store....`) and to that system's default.
"""

from __future__ import annotations

import math
from typing import Literal, TypeAlias

import attrs

from compactlib.blobstore.names import MAX_NUMBER
from compactlib.blobstore.segment import MIN_SEGMENT_BYTES
from compactlib.errors import InvalidInput

Durability: TypeAlias = Literal["each", "group", "interval"]
"""When a write is synced: `"each"` before it returns, alone; `"group"` before it returns, one sync for all threads that
wait; `"interval"` with the first write after `sync_interval_seconds`, or with `BlobStore.flush()`."""

_MIB = 1 << 20
_HOUR = 3600.0
_DAY = 24 * _HOUR


@attrs.frozen(kw_only=True)
class BlobStoreConfig:
    """How a store is kept and compacted. Sizes are bytes, times are seconds, fractions lie in 0 .. 1.

    Attributes:
        capacity_bytes: capacity of the whole log; used when the store is created, and never again.
        segment_bytes: capacity of one segment, a divisor of `capacity_bytes`; used when the store is created.
        durability: when a write is synced.
        sync_interval_seconds: how old un-synced writes may get with `"interval"`.
        max_open_segments: files kept open for reading.
        index_max_entries: records per index segment; the open one is kept in memory as objects.
        index_max_bytes: bytes per index segment.
        journal_max_entries: how many of the newest records keep their segments from being compacted.
        find_max_entries: entries in one answer of `entries_since`.
        ttl_update_buffer_seconds: a blob that expires sooner than this cannot be made permanent any more.
        deleted_retention_seconds: how long after a delete its blob can be undeleted and is kept by compactions.

        stats_bucket_count: time buckets of the incremental statistics; 0 counts everything at each look; `None` keeps
            what the policy needs: a week of buckets for `expiry_forecast`, none for the others.
        stats_bucket_seconds: span of one bucket.
        stats_entries_per_second: how many index entries a background scan reads, `None` for no limit.

        compaction_policy: name of the policy.
        min_used_fraction: how full the log has to be before anything is compacted.
        min_reclaimed_segments: how many segments a plan has to free.
        max_blob_bytes: what is kept free in each target segment when a plan's benefit is computed.
        skip_valid_ends: `compact_all` leaves out wholly valid segments at both ends.
        weight_on_benefit: `stats_based` lets each segment cost at least `min_cost_fraction` of its capacity.
        min_cost_fraction: see `weight_on_benefit`.
        middle_range_interval_seconds: how often `stats_based` takes the widest range between two nearly empty segments;
            0 never.
        middle_range_max_valid_fraction: how full the two may be.
        full_compaction_interval_seconds: how often `hybrid` compacts everything.
        full_compaction_stagger_seconds: random delay on top, so that many stores do not do it at once.

        compaction_triggers: `"periodic"`, `"admin"`, both or none.
        compaction_check_seconds: time between two periodic checks.
        compaction_bytes_per_second: rate of a compaction, `None` for no limit.
        compaction_min_bytes_per_second: what the rate may fall to while the disk is slow.
        compaction_latency_threshold_seconds: latency of the disk per MiB from which on the rate falls.
        compaction_rate_divisor: by how much faster it falls.
        compaction_buffer_bytes: how much is read at once where bytes pass through the process.
        swap_segments: how many segments beyond the capacity a compaction may fill before it frees its sources.
        purge_tombstones: remove deletes that nobody needs any more.
        ignore_idle_peers_seconds: peers not heard of for so long do not hold tombstones back; 0 never ignores.
        compaction_history_seconds: how long finished compaction logs are kept.
        drop_dead_containers: compactions drop the records of containers that are gone.
        container_retention_seconds: how long after its deletion a container counts as gone.
        close_active_segment: a full compaction may close the active segment, so that it becomes eligible.

        hard_delete: the manager overwrites the content of deleted blobs, after each check of the store.
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

    stats_bucket_count: int | None = None
    stats_bucket_seconds: float = _HOUR
    stats_entries_per_second: int | None = 240_000

    compaction_policy: str = "stats_based"
    min_used_fraction: float = 0.5
    min_reclaimed_segments: int = 1
    max_blob_bytes: int = 4 * _MIB
    skip_valid_ends: bool = False
    weight_on_benefit: bool = False
    min_cost_fraction: float = 0.06
    middle_range_interval_seconds: float = 0.0
    middle_range_max_valid_fraction: float = 0.3
    full_compaction_interval_seconds: float = 6 * _DAY
    full_compaction_stagger_seconds: float = 0.0

    compaction_triggers: tuple[str, ...] = ()
    compaction_check_seconds: float = 7 * _DAY
    compaction_bytes_per_second: float | None = float(_MIB)
    compaction_min_bytes_per_second: float = 512.0 * 1024
    compaction_latency_threshold_seconds: float = 0.020
    compaction_rate_divisor: float = 1.0
    compaction_buffer_bytes: int = 10 * _MIB
    swap_segments: int = 1
    purge_tombstones: bool = False
    ignore_idle_peers_seconds: float = 0.0
    compaction_history_seconds: float = 21 * _DAY
    drop_dead_containers: bool = False
    container_retention_seconds: float = 14 * _DAY
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
            if value is not None and not least <= value < math.inf:
                raise InvalidInput(f"{name} is {value}; give {least} or more")
        for name in _FRACTIONS:
            if not 0 <= getattr(self, name) <= 1:
                raise InvalidInput(f"{name} is {getattr(self, name)}; a fraction lies in 0 .. 1")
        for name in _RATES:
            rate = getattr(self, name)
            if rate is not None and not 0 < rate < math.inf:
                raise InvalidInput(f"{name} is {rate}; give a positive rate, or None for no limit")
        if max(self.capacity_bytes, self.segment_bytes) > MAX_NUMBER:
            raise InvalidInput(f"a log of {self.capacity_bytes} bytes is beyond what its format can hold")

    def check_capacity(self) -> None:
        """Whether a new store can have this capacity; asked only when one is created (notes 1.1).

        Raises:
            InvalidInput: the capacity is no multiple of the segments' capacity.
        """
        if self.capacity_bytes % min(self.segment_bytes, self.capacity_bytes):
            raise InvalidInput(f"capacity_bytes is {self.capacity_bytes}, which is no multiple of segment_bytes "
                               f"{self.segment_bytes}; choose a divisor")


def _check_type(name: str, wanted: str, value: object) -> None:
    """Whether a setting is of its type, so that no comparison below fails with a `TypeError`."""
    if value is None:
        right = wanted.endswith("| None")
    elif wanted.startswith(("int", "float")):
        right = isinstance(value, int if wanted.startswith("int") else int | float) and not isinstance(value, bool)
    else:
        right = isinstance(value, {"bool": bool, "tuple[str, ...]": tuple}.get(wanted, str))
    if not right:
        raise InvalidInput(f"{name} is {value!r}; its type is {wanted}")


_LEAST: dict[str, float] = {
    "capacity_bytes": MIN_SEGMENT_BYTES, "segment_bytes": MIN_SEGMENT_BYTES, "sync_interval_seconds": 0,
    "max_open_segments": 1, "index_max_entries": 1, "index_max_bytes": 1, "journal_max_entries": 0,
    "find_max_entries": 1, "ttl_update_buffer_seconds": 0, "deleted_retention_seconds": 0, "stats_bucket_count": 0,
    "min_reclaimed_segments": 1, "max_blob_bytes": 0, "middle_range_interval_seconds": 0,
    "full_compaction_interval_seconds": 0, "full_compaction_stagger_seconds": 0,
    "compaction_latency_threshold_seconds": 0, "compaction_buffer_bytes": 1, "swap_segments": 1,
    "ignore_idle_peers_seconds": 0, "compaction_history_seconds": 0, "container_retention_seconds": 0,
}
_FRACTIONS = ("min_used_fraction", "min_cost_fraction", "middle_range_max_valid_fraction")
_RATES = ("stats_bucket_seconds", "stats_entries_per_second", "compaction_check_seconds", "compaction_bytes_per_second",
          "compaction_min_bytes_per_second", "compaction_rate_divisor", "hard_delete_bytes_per_second")
