# SPDX-License-Identifier: Apache-2.0
"""How a simulated blob store is laid out, and when its policy is asked."""

from __future__ import annotations

import math
from typing import Any, Self

import attrs

from compactlib._arguments import is_seconds, is_whole, require_whole
from compactlib.blobstore import BlobStoreConfig
from compactlib.blobstore.policy import SEGMENT_HEADER_BYTES, fraction, record_size, whole
from compactlib.errors import InvalidInput
from compactlib.lab.description import describe
from compactlib.lab.placement import NEVER, Placement
from compactlib.lab.survivors import SurvivorPlacement
from compactlib.lab.workloads import Workload

MAX_SEGMENTS = 1 << 24
_MOST_OUTPUTS = 8
"""So many segments a step of a real store fills, if the disk has room."""
_LONGEST_SECONDS = NEVER // 1000


@attrs.frozen(kw_only=True)
class BlobLayout:
    """The store of a replay. Sizes are bytes, times seconds.

    Attributes:
        capacity_bytes: of the whole log.
        segment_bytes: of one segment, its header included.
        header_bytes: of a segment's header.
        max_blob_bytes: what a plan's benefit keeps free in each output.
        record_overhead_bytes: what a record takes beside its content.
        tombstone_bytes: size of the record that a delete writes, which is kept for good; 0: none is written.
        deleted_retention_seconds: how long a delete is not yet in effect.
        swap_segments: how many segments a compaction fills before it frees its sources; decides names, and with
            `survivors` which ones share a segment.
        check_every_operations: ask the policy after so many operations; 0: not by number.
        min_free_segments: also ask, and again as long as it finds something, when fewer are free; >= 0. `None`: 1, or
            with a placement as many as it has classes, each of which a compaction may begin a segment of.
        forecast_seconds: how far ahead the policy is shown what dies when; 0: not at all.
        bucket_seconds: if there is a forecast, its steps.
        intervals: into about how many parts the report is cut, if the length of the workload is known, >= 1.
        max_dead_fraction: also ask, once after the operations of each moment, while more than this part of what the log
            holds is dead in segments that are closed; 0 to 1, 1: not by that.
        placement: which open segment a record goes to (`compactlib.lab.policies`); survivors then go on in
            segments that stay open between compactions, and what is replaced is dead at once. `None`: as in a store,
            what users write goes to one segment, and survivors into segments that each compaction closes at its end,
            and a write that is refused replaces nothing; with a placement, what it would have replaced is dead.
        survivors: which survivors share a segment, as a store's `place`; only without a placement.
        copies_renew: whether a copy counts as a write for `SegmentView.last_modified`. In a store it does not.

    Raises:
        InvalidInput: a value is out of its range or of another type, or a placement has more classes than the log has
            room for, or is to place tombstones.
    """

    capacity_bytes: int = attrs.field(validator=is_whole(1))
    segment_bytes: int = attrs.field(validator=is_whole(1))
    header_bytes: int = whole(SEGMENT_HEADER_BYTES)
    max_blob_bytes: int = whole(0)
    record_overhead_bytes: int = whole(0)
    tombstone_bytes: int = whole(0)
    deleted_retention_seconds: float = attrs.field(default=0.0, validator=is_seconds(most=_LONGEST_SECONDS))
    swap_segments: int = whole(1, least=1)
    check_every_operations: int = whole(0)
    min_free_segments: int | None = attrs.field(default=None, validator=is_whole(or_none=True))
    forecast_seconds: float = attrs.field(default=0.0, validator=is_seconds(most=_LONGEST_SECONDS))
    bucket_seconds: float = attrs.field(default=3600.0, validator=is_seconds(0.001, _LONGEST_SECONDS))
    intervals: int = whole(20, least=1)
    max_dead_fraction: float = fraction(1.0)
    placement: Placement | None = None
    survivors: SurvivorPlacement | None = None
    copies_renew: bool = False

    def __attrs_post_init__(self) -> None:
        if not self.header_bytes < self.segment_bytes <= self.capacity_bytes:
            raise InvalidInput(f"segment_bytes {self.segment_bytes} with header_bytes {self.header_bytes} do not fit "
                               f"capacity_bytes {self.capacity_bytes}")
        if not 2 <= self.segments <= MAX_SEGMENTS:
            raise InvalidInput(f"capacity_bytes {self.capacity_bytes} is a log of {self.segments} segments; give 2 to "
                               f"{MAX_SEGMENTS}")
        for name in ("placement", "survivors"):
            if isinstance(given := getattr(self, name), type):
                raise InvalidInput(f"{name} is the class {given.__name__}; give one that is made of it: "
                                   f"{given.__name__}()")
        classes = getattr(self.placement, "classes", None)
        if self.placement is not None and not (isinstance(classes, int) and classes >= 1):
            raise InvalidInput(f"placement is {self.placement!r:.100}, whose classes are {classes!r}; give it "
                               f"`classes`, how many it has, at least 1")
        if self.placement is not None and self.tombstone_bytes:
            raise InvalidInput("a placement has no class for tombstones; give tombstone_bytes=0")
        if self.placement is not None and self.survivors is not None:
            raise InvalidInput("a placement places survivors, too; give it, or survivors")
        if self.placement is not None and self.segments <= self.placement.classes:
            raise InvalidInput(f"{self.placement.classes} classes in a log of {self.segments} segments; each takes one "
                               f"segment, and compactions need room")

    @property
    def segments(self) -> int:
        """How many segments the log has."""
        return self.capacity_bytes // self.segment_bytes

    @property
    def deaths_are_watched(self) -> bool:
        """Whether a placement or a question depends on what is dead at each moment."""
        return self.placement is not None or self.max_dead_fraction < 1

    @property
    def room_bytes(self) -> int:
        """What a segment holds beside its header."""
        return self.segment_bytes - self.header_bytes

    @classmethod
    def of_slots(cls, segments: int, records_per_segment: int, record_bytes: int = 1, **more: Any
                 ) -> Self:
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
    def for_workload(cls, workload: Workload, utilisation: float = 0.8, *, segments: int = 400, seed: int = 0,
                     **more: Any) -> Self:
        """A log just large enough that what lives at one time is at most such a part of it. Reads the workload once.

        Args:
            workload: what will be replayed.
            utilisation: live bytes as a part of the log, above 0 and below 1.
            segments: of the log; fewer, if else the largest record would not fit.
            seed: of the workload.
            more: other settings; headers and records' overhead count as they say, and there are none by default.

        Raises:
            InvalidInput: the utilisation is none, nothing lives in the workload, or a value is of another type.
        """
        require_whole("segments", segments, 1)
        if not 0 < utilisation < 1:
            raise InvalidInput(f"utilisation is {utilisation}; it is a part of the log, above 0 and below 1")
        found = describe(workload, seed=seed)
        if not found.peak_live_bytes:
            raise InvalidInput(f"{found.workload} puts nothing; give one that does")
        values: dict[str, Any] = {"header_bytes": 0, "record_overhead_bytes": 0, **more}
        overhead, header = values["record_overhead_bytes"], values["header_bytes"]
        require_whole("record_overhead_bytes", overhead)
        require_whole("header_bytes", header)
        live = found.peak_live_bytes + overhead * found.peak_live_keys
        try:
            room = max(math.ceil(live / utilisation / segments), found.largest_bytes + overhead)
        except OverflowError:
            raise InvalidInput(f"utilisation is {utilisation}; with that, the segments and record_overhead_bytes that "
                               f"were given, no log is so large") from None
        segment = room + header
        count = max(math.ceil(live / utilisation / room), 2)
        return cls(capacity_bytes=count * segment, segment_bytes=segment, **values)

    @classmethod
    def of_store(cls, config: BlobStoreConfig, *, id_bytes: int, **more: Any) -> Self:
        """The settings of a real store whose ids have `id_bytes` bytes each.

        Every sealed segment may be taken, as in a store whose journal is empty (`journal_max_entries=0`). For a policy
        that looks ahead, give `forecast_seconds`: a store shows seven days, by the hour.
        Of a compaction that fills more than eight segments, names may be others unless `survivors` are laid out.

        Args:
            config: the store's.
            id_bytes: length of an id.
            more: other settings.
        """
        overhead = record_size(id_bytes, 0)
        values: dict[str, Any] = {
            "record_overhead_bytes": overhead, "tombstone_bytes": overhead, "max_blob_bytes": config.max_blob_bytes,
            "deleted_retention_seconds": config.deleted_retention_seconds, "swap_segments": _MOST_OUTPUTS, **more}
        return cls(capacity_bytes=config.capacity_bytes, segment_bytes=config.segment_bytes,
                   **values)
