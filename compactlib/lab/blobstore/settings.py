"""How the store of a replay is laid out, and when its policy is asked."""

from __future__ import annotations

from typing import Any

import attrs

from compactlib.blobstore.compaction.plan.policy import Policy
from compactlib.blobstore.config import BlobStoreConfig
from compactlib.blobstore.segment.reader import SEGMENT_HEADER_BYTES
from compactlib.blobstore.segment.records import record_size
from compactlib.errors import InvalidInput
from compactlib.lab.blobstore.replay import replay_blobs
from compactlib.lab.results.reports import ReplayReport
from compactlib.lab.traces.workloads import Workload
from compactlib.runtime.observe import Observer

MAX_SEGMENTS = 1 << 24


@attrs.frozen(kw_only=True)
class BlobSettings:
    """The store of a replay. Sizes are bytes, times seconds.

    Attributes:
        capacity_bytes: of the whole log.
        segment_bytes: of one segment, its header included.
        header_bytes: of a segment's header.
        max_blob_bytes: what a plan's benefit keeps free in each output.
        record_overhead_bytes: what a record takes beside its content.
        tombstone_bytes: size of the record that a delete writes, which is kept for good; 0: none is written.
        deleted_retention_seconds: how long a delete is not yet in effect.
        swap_segments: how many segments a compaction fills before it frees its sources; decides names alone.
        check_every_operations: ask the policy after so many operations; 0: not by number.
        min_free_segments: also ask, and again as long as it finds something, when fewer are free; >= 0.
        forecast_seconds: how far ahead the policy is shown what dies when; 0: not at all.
        bucket_seconds: if there is a forecast, its steps.
        intervals: into about how many parts the report is cut, if the length of the workload is known, >= 1.

    Raises:
        InvalidInput: a number is out of its range.
    """

    capacity_bytes: int
    segment_bytes: int
    header_bytes: int = SEGMENT_HEADER_BYTES
    max_blob_bytes: int = 0
    record_overhead_bytes: int = 0
    tombstone_bytes: int = 0
    deleted_retention_seconds: float = 0.0
    swap_segments: int = 1
    check_every_operations: int = 0
    min_free_segments: int = 1
    forecast_seconds: float = 0.0
    bucket_seconds: float = 3600.0
    intervals: int = 20

    def __attrs_post_init__(self) -> None:
        if not 0 <= self.header_bytes < self.segment_bytes <= self.capacity_bytes:
            raise InvalidInput(f"segments of {self.segment_bytes} bytes with headers of {self.header_bytes} do not fit "
                               f"a log of {self.capacity_bytes}")
        if not 2 <= self.segments <= MAX_SEGMENTS:
            raise InvalidInput(f"a log of {self.segments} segments; give 2 to {MAX_SEGMENTS}")
        for name in ("max_blob_bytes", "record_overhead_bytes", "tombstone_bytes", "deleted_retention_seconds",
                     "check_every_operations", "min_free_segments", "forecast_seconds"):
            if getattr(self, name) < 0:
                raise InvalidInput(f"{name} is {getattr(self, name)}; it cannot be negative")
        if self.swap_segments < 1 or self.intervals < 1 or self.bucket_seconds <= 0:
            raise InvalidInput(f"swap_segments {self.swap_segments}, intervals {self.intervals}, bucket_seconds "
                               f"{self.bucket_seconds}: give positive numbers")

    @property
    def segments(self) -> int:
        """How many segments the log has."""
        return self.capacity_bytes // self.segment_bytes

    @property
    def room_bytes(self) -> int:
        """What a segment holds beside its header."""
        return self.segment_bytes - self.header_bytes

    def replay(self, workload: Workload, policy: Policy, *, seed: int,
               observer: Observer | None = None) -> ReplayReport:
        """See `replay_blobs`, and `Setup.replay`."""
        return replay_blobs(workload, policy, self, seed=seed, observer=observer)

    def read_report(self, text: str) -> ReplayReport:
        """See `Setup.read_report`."""
        return ReplayReport.from_json(text)

    def name_of(self, policy: Policy) -> str:
        """See `Setup.name_of`."""
        return policy.name

    @classmethod
    def of_slots(cls, segments: int, records_per_segment: int, record_bytes: int = 1, **more: Any
                 ) -> BlobSettings:
        """A log without headers, of segments that hold so many records of one size: as the literature reckons.

        Args:
            segments: of the log.
            records_per_segment: how many records of `record_bytes` fit.
            record_bytes: the size of each.
            more: other settings.
        """
        size = records_per_segment * record_bytes
        values: dict[str, Any] = {"header_bytes": 0, **more}
        return cls(capacity_bytes=segments * size, segment_bytes=size, **values)

    @classmethod
    def of_store(cls, config: BlobStoreConfig, *, id_bytes: int, **more: Any) -> BlobSettings:
        """The settings of a real store whose ids have `id_bytes` bytes each.

        Every sealed segment may be taken, as in a store whose journal is empty (`journal_max_entries=0`). For a policy
        that looks ahead, the configuration says how far (`stats_bucket_count`).

        Args:
            config: the store's.
            id_bytes: length of an id.
            more: other settings.
        """
        buckets = config.stats_bucket_count or 0
        overhead = record_size(id_bytes, 0)
        values: dict[str, Any] = {
            "record_overhead_bytes": overhead, "tombstone_bytes": overhead, "max_blob_bytes": config.max_blob_bytes,
            "deleted_retention_seconds": config.deleted_retention_seconds, "swap_segments": config.swap_segments,
            "forecast_seconds": buckets * config.stats_bucket_seconds, "bucket_seconds": config.stats_bucket_seconds,
            **more}
        return cls(capacity_bytes=config.capacity_bytes, segment_bytes=config.segment_bytes,
                   **values)
