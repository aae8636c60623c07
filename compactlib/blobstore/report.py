# SPDX-License-Identifier: Apache-2.0
"""What compactions and reclaims did, and the status of a store."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import attrs

from compactlib.blobstore.errors import UNMANAGED
from compactlib.blobstore.names import SegmentName
from compactlib.blobstore.validity import Verdict
from compactlib.errors import CorruptData
from compactlib.report import Printed


@attrs.frozen(kw_only=True, repr=False)
class BlobCompactionReport(Printed):
    """What one compaction of a store did.

    `repr()` is one line, `str()` a table, notebooks show the table, `to_dicts()` gives its rows as data.

    Attributes:
        store: the store's name.
        victims: what it set out to compact.
        sources: segments that are gone.
        targets: segments that were written and are there.
        steps: how many commits it took.
        copied_records: records copied.
        copied_bytes: bytes of records copied.
        bytes_written: of the new segments on disk, their headers and indexes included.
        bytes_freed: by how much less is on disk; compare `BlobPlan.bytes_freed`.
        verdicts: how many records had which verdict.
        classes: how many records were copied of each class, if the store places survivors.
        left_out: victims that stay because a record in them is damaged.
        damage: what was found there.
        seconds: how long it took.
        why: why nothing was done, or not all.
        is_partial: whether some victims are left for another compaction.
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
    classes: Mapping[int, int] = attrs.field(factory=Counter)
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
        """By how many segments the log got shorter."""
        return len(self.sources) - len(self.targets)

    def to_dicts(self) -> list[dict[str, Any]]:
        """One row a verdict, one a class of survivors, and one a damaged segment."""
        verdicts = sorted(self.verdicts.items(), key=lambda item: item[0].name)
        rows: list[dict[str, Any]] = [{"what": verdict.name.lower(), "records": count, "why": verdict.value}
                                      for verdict, count in verdicts]
        rows += [{"what": f"class {number}", "records": count, "why": "placed together"}
                 for number, count in sorted(self.classes.items())]
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
    """What `BlobStore.reclaim` did.

    Attributes:
        store: the store's name.
        removed: names of the files that were removed: what attempts had left.
        bytes_freed: how large they were.
        erased_records: records whose content was overwritten.
        erased_bytes: bytes written over them.
        sequence: every delete up to this one was carried out; 0 if the store is not configured so.
        why: why nothing was done, or not all.
        is_partial: whether deletes that are in effect are left for the next call.
    """

    store: str
    removed: tuple[str, ...] = ()
    bytes_freed: int = 0
    erased_records: int = 0
    erased_bytes: int = 0
    sequence: int = 0
    why: str = ""
    is_partial: bool = False

    @property
    def is_empty(self) -> bool:
        """Whether nothing was done."""
        return not self.removed and not self.erased_records

    def to_dicts(self) -> list[dict[str, Any]]:
        """One row a file, and one for the hard delete."""
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
    """A store in numbers.

    Attributes:
        name: the store's.
        capacity_bytes: capacity of the log.
        used_bytes: used capacity: whole segments before the active one, and that one up to its end.
        segments: how many log segments are in use.
        free_segments: how many more the log may have.
        eligible_segments: how many of them a compaction may take.
        damaged_segments: how many segments are lost, or were left out by compactions because of damage.
        active_segment: the name of the one that is appended to.
        records: index entries in all.
        index_memory_bytes: memory of their columns, and of the directory of their hashes.
        unsynced: whether records were written that are not known to be durable.
        next_sequence: the number of the next record.
        is_busy: whether a compaction or a reclaim is under way.
        is_managed: whether a `CompactionManager` compacts it; if not, nothing does but a call.
        last_error: what an executor, a task or a question of the host's raised last in a compaction that is none of the
            library's errors, as `Kind: message`; empty if nothing.
        failures: how often that was.
    """

    name: str
    capacity_bytes: int
    used_bytes: int
    segments: int
    free_segments: int
    eligible_segments: int
    damaged_segments: int
    active_segment: str
    records: int
    index_memory_bytes: int
    unsynced: bool
    next_sequence: int
    is_busy: bool
    is_managed: bool
    last_error: str
    failures: int

    def _summary(self) -> str:
        state = "busy" if self.is_busy else "open"
        damaged = f" ({self.damaged_segments} damaged)" if self.damaged_segments else ""
        unmanaged = "" if self.is_managed else f"; {UNMANAGED}"
        return (f"blob store {self.name}: {self.used_bytes:,} of {self.capacity_bytes:,} bytes used in {self.segments} "
                f"segments{damaged}, {self.records:,} records, {state}{unmanaged}")
