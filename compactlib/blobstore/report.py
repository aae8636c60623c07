# SPDX-License-Identifier: Apache-2.0
"""The reports of compactions and reclaims, and the status of a store."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import attrs

from compactlib.blobstore.contents import LogContents
from compactlib.blobstore.errors import HOW_TO_COMPACT
from compactlib.blobstore.names import SegmentName
from compactlib.blobstore.segment import Descriptor
from compactlib.blobstore.validity import Verdict
from compactlib.errors import CorruptData
from compactlib.report import Printed


@attrs.frozen(kw_only=True, repr=False)
class BlobCompactionReport(Printed):
    """The result of one compaction of a store.

    Attributes:
        store: the store's name.
        victims: the segments of its plan.
        sources: segments that were replaced.
        targets: new segments in the log.
        steps: the number of commits.
        copied_records, copied_bytes: the records that were copied.
        bytes_written: size of the new segments on disk, headers and indexes included.
        bytes_freed: bytes freed on disk, outputs subtracted; compare `BlobPlan.bytes_freed`.
        verdicts: the number of records for each verdict.
        left_out: victims that were not compacted because a record in them is damaged.
        damage: the damage found in them.
        seconds: the duration.
        why: why nothing was done, or why the rest was not done.
        is_partial: whether some victims remain for another compaction.
    """

    store: str
    victims: tuple[SegmentName, ...] = ()
    sources: tuple[SegmentName, ...] = ()
    targets: tuple[SegmentName, ...] = ()
    steps: int = 0
    copied_records: int = 0
    copied_bytes: int = 0
    bytes_written: int = 0
    bytes_freed: int = 0
    verdicts: Mapping[Verdict, int] = attrs.field(factory=Counter)
    left_out: tuple[SegmentName, ...] = ()
    damage: tuple[CorruptData, ...] = ()
    seconds: float = 0.0
    why: str = ""
    is_partial: bool = False

    @property
    def is_empty(self) -> bool:
        """Whether nothing was done."""
        return not self.steps

    @property
    def freed_segments(self) -> int:
        """The number of segments freed, outputs subtracted."""
        return len(self.sources) - len(self.targets)

    def to_dicts(self) -> list[dict[str, Any]]:
        """Return one row a verdict, and one a damaged segment."""
        verdicts = sorted(self.verdicts.items(), key=lambda item: item[0].name)
        rows: list[dict[str, Any]] = [{"what": verdict.name.lower(), "records": count, "why": verdict.value}
                                      for verdict, count in verdicts]
        rows += [{"what": "damaged", "records": None, "why": str(error)} for error in self.damage]
        return rows

    def _summary(self) -> str:
        if self.is_empty:
            return f"nothing was compacted in {self.store}: {self.why}"
        trouble = f", LEFT OUT {', '.join(map(str, self.left_out))} for damage" if self.left_out else ""
        part = f", NOT ALL: {self.why}" if self.is_partial else ""
        return (f"compaction of {self.store}: {len(self.sources)} segments into {len(self.targets)} in {self.steps} "
                f"steps, copied {self.copied_records:,} records, {self.copied_bytes:,} bytes in {self.seconds:.3f} s, "
                f"{self.bytes_freed:,} bytes less on disk{trouble}{part}")


@attrs.frozen(kw_only=True, repr=False)
class BlobReclaimReport(Printed):
    """The result of `BlobStore.reclaim`.

    Attributes:
        store: the store's name.
        removed: names of the leftover files that were removed.
        bytes_freed: the bytes of these files.
        erased_records, erased_bytes: the records whose content was overwritten, and the bytes written over them.
        sequence: every delete up to this one was carried out; 0 without `hard_delete`.
        was_reset: the damage of the state file, because of which the hard delete began at the first record.
        why: why nothing was done, or why the rest was not done.
        is_partial: whether deletes in effect remain for the next call.
    """

    store: str
    removed: tuple[str, ...] = ()
    bytes_freed: int = 0
    erased_records: int = 0
    erased_bytes: int = 0
    sequence: int = 0
    was_reset: str = ""
    why: str = ""
    is_partial: bool = False

    @property
    def is_empty(self) -> bool:
        """Whether nothing was done."""
        return not self.removed and not self.erased_records

    def to_dicts(self) -> list[dict[str, Any]]:
        """Return one row a file, and one for the hard delete."""
        rows: list[dict[str, Any]] = [{"what": "removed", "file": name, "records": None} for name in self.removed]
        if self.erased_records:
            rows.append({"what": "overwritten", "file": None, "records": self.erased_records})
        return rows

    def _summary(self) -> str:
        part = f"; {self.why}" if self.why else ""
        return (f"reclaim of {self.store}: {len(self.removed)} files, {self.bytes_freed:,} bytes, overwrote the "
                f"content of {self.erased_records:,} deleted blobs{part}")


@attrs.frozen(kw_only=True, repr=False)
class BlobStoreStatus(Printed):
    """The counters of a store; of a `BlobReader`, as of its last refresh.

    Attributes:
        name: the store's name.
        capacity_bytes: capacity of the log, fixed when the store was created.
        segment_bytes: capacity of each segment, fixed when the store was created.
        used_bytes: used capacity: every segment before the active one counts whole, the active one up to its end.
        segments, free_segments: how many segments the log has, and how many more it may have.
        damaged_segments: how many segments are lost, or were left out of compactions because of damage.
        active_segment: the name of the active segment.
        records: the number of index entries.
        next_sequence: the number of the next record.
        eligible_segments: how many segments a compaction may take; a reader does not know.
        unsynced: whether records were written since the last sync.
        is_busy: whether a compaction or a reclaim is running; a reader does not see them.
        compactions: how many compactions have begun since the store was opened; `None` of a reader.
        last_error: the last unexpected exception of an executor, a task or a callback of the host in a compaction, as
            `Kind: message`; empty if there was none.
        failures: the number of such exceptions.
    """

    name: str
    capacity_bytes: int
    segment_bytes: int
    used_bytes: int
    segments: int
    free_segments: int
    damaged_segments: int
    active_segment: str
    records: int
    next_sequence: int
    eligible_segments: int = 0
    unsynced: bool = False
    is_busy: bool = False
    compactions: int | None = None
    last_error: str = ""
    failures: int = 0

    @classmethod
    def of(cls, name: str, descriptor: Descriptor, contents: LogContents, *, damaged_segments: int = 0,
           next_sequence: int | None = None, **owner: Any) -> BlobStoreStatus:
        """Return the counters of a log; `owner` has the fields that only its owner knows."""
        segments = contents.segments
        lost = sum(segment.is_lost for segment in segments)
        return cls(
            name=name, capacity_bytes=descriptor.capacity_bytes, segment_bytes=descriptor.segment_bytes,
            segments=len(segments), used_bytes=contents.used_bytes(descriptor.segment_bytes),
            free_segments=max(descriptor.log_segments - len(segments), 0), damaged_segments=damaged_segments + lost,
            active_segment=str(contents.active.name), records=sum(segment.records for segment in segments),
            next_sequence=contents.last_sequence + 1 if next_sequence is None else next_sequence, **owner)

    def _summary(self) -> str:
        damaged = f" ({self.damaged_segments} damaged)" if self.damaged_segments else ""
        idle = f"; nothing has compacted it since it was opened: {HOW_TO_COMPACT}" if (
            self.compactions == 0 and self.eligible_segments) else ""
        return (f"blob store {self.name}: {self.used_bytes:,} of {self.capacity_bytes:,} bytes used in {self.segments} "
                f"segments{damaged}, {self.records:,} records{', busy' if self.is_busy else ''}{idle}")
