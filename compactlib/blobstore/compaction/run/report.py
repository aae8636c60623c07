# SPDX-License-Identifier: Apache-2.0
"""What a compaction did, as a value."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any, TypeAlias

import attrs

from compactlib.blobstore.model.names import SegmentName
from compactlib.blobstore.validity.verdicts import Verdict
from compactlib.errors import CorruptData
from compactlib.outcome import Outcome
from compactlib.report import Printed


@attrs.frozen(kw_only=True, repr=False)
class BlobCompactionReport(Printed):
    """What one compaction of a store did, from its beginning or from where it was resumed in this process.

    `repr()` is one line, `str()` a table, notebooks show the table, `to_dicts()` gives its rows as data.

    Attributes:
        store: the store's name.
        number: the compaction's number in its store.
        victims: what it set out to compact.
        sources: segments that are gone.
        targets: segments that were written.
        cycles: how many rounds it took.
        copied_records: records copied; by this process only.
        copied_bytes: bytes of records copied, by all cycles.
        bytes_written: of the new segments on disk, their headers and indexes included; of the cycles that ended in this
            process.
        bytes_freed: by how much less is on disk, as far as those cycles go; compare `BlobPlan.bytes_freed`.
        verdicts: how many records had which verdict; of the cycles that this process decided.
        classes: how many records were copied of each class, if the store places survivors; of the same cycles.
        left_out: victims that stay because a record in them is damaged.
        damage: what was found there.
        resumed: whether it had been begun by an earlier run.
        seconds: how long this run took.
        finished: the report of an earlier compaction, which was interrupted and has been finished first, or of one that
            freed nothing because of what it had to leave out.
    """

    store: str
    number: int
    victims: tuple[SegmentName, ...]
    sources: tuple[SegmentName, ...]
    targets: tuple[SegmentName, ...]
    cycles: int
    copied_records: int
    copied_bytes: int
    bytes_written: int = 0
    bytes_freed: int = 0
    verdicts: Mapping[Verdict, int] = attrs.field(factory=Counter)
    classes: Mapping[int, int] = attrs.field(factory=Counter)
    left_out: tuple[SegmentName, ...] = ()
    damage: tuple[CorruptData, ...] = ()
    resumed: bool = False
    seconds: float = 0.0
    finished: BlobCompactionReport | None = None

    @property
    def freed_segments(self) -> int:
        """By how many segments the log got shorter."""
        return len(self.sources) - len(self.targets)

    def to_dicts(self) -> list[dict[str, Any]]:
        """One row a verdict, one a class of survivors, and one a damaged segment."""
        rows: list[dict[str, Any]] = [{"what": verdict.name.lower(), "records": count, "why": verdict.value}
                for verdict, count in sorted(self.verdicts.items(), key=lambda item: item[0].name)]
        rows += [{"what": f"class {number}", "records": count, "why": "placed together"}
                 for number, count in sorted(self.classes.items())]
        rows += [{"what": "damaged", "records": None, "why": str(error)} for error in self.damage]
        return rows

    def _summary(self) -> str:
        left_out, earlier = list(self.left_out), self.finished
        while earlier is not None:
            left_out[:0], earlier = earlier.left_out, earlier.finished
        trouble = f", LEFT OUT {', '.join(map(str, left_out))} for damage" if left_out else ""
        return (f"compaction {self.number} of {self.store}: {len(self.sources)} segments into {len(self.targets)} in "
                f"{self.cycles} cycles, copied {self.copied_records:,} records, {self.copied_bytes:,} bytes in "
                f"{self.seconds:.3f} s, {self.bytes_freed:,} bytes less on disk{trouble}")


@attrs.frozen
class HardDeleteReport:
    """What one hard delete did.

    Attributes:
        records: records overwritten.
        bytes_written: bytes written over them.
        sequence: every delete up to this one has been looked at.
        is_whole: whether every delete that is in effect has been looked at; a slice may end before.
    """

    records: int
    bytes_written: int
    sequence: int
    is_whole: bool = True


@attrs.frozen(kw_only=True, repr=False)
class BlobReclaimReport(Printed):
    """What `BlobStore.reclaim` did.

    Attributes:
        store: the store's name.
        removed: names of the files that were removed: what attempts had left, and logs of old compactions.
        bytes_freed: how large they were.
        erased: what the hard delete did, `None` if the store is not configured so.
    """

    store: str
    removed: tuple[str, ...] = ()
    bytes_freed: int = 0
    erased: HardDeleteReport | None = None

    def to_dicts(self) -> list[dict[str, Any]]:
        """One row a file, and one for the hard delete."""
        rows: list[dict[str, Any]] = [{"what": "removed", "file": name, "records": None} for name in self.removed]
        if self.erased is not None:
            rows.append({"what": "overwritten", "file": None, "records": self.erased.records})
        return rows

    def _summary(self) -> str:
        erased = "" if self.erased is None else f", overwrote the content of {self.erased.records:,} deleted blobs"
        return f"reclaim of {self.store}: {len(self.removed)} files, {self.bytes_freed:,} bytes{erased}"


BlobCompactionOutcome: TypeAlias = Outcome[BlobCompactionReport]
"""`Done(report)`, `Skipped` if there was nothing to do, `Failed` with the error; then the next compaction goes on."""
