"""What a compaction did, as a value."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any, TypeAlias

import attrs

from compactlib.blobstore.names import SegmentName
from compactlib.blobstore.validity import Verdict
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
        verdicts: how many records had which verdict; of the cycles that this process decided.
        left_out: victims that stay because a record in them is damaged.
        damage: what was found there.
        resumed: whether it had been begun by an earlier run.
        seconds: how long this run took.
    """

    store: str
    number: int
    victims: tuple[SegmentName, ...]
    sources: tuple[SegmentName, ...]
    targets: tuple[SegmentName, ...]
    cycles: int
    copied_records: int
    copied_bytes: int
    verdicts: Mapping[Verdict, int] = attrs.field(factory=Counter)
    left_out: tuple[SegmentName, ...] = ()
    damage: tuple[CorruptData, ...] = ()
    resumed: bool = False
    seconds: float = 0.0

    @property
    def freed_segments(self) -> int:
        """By how many segments the log got shorter."""
        return len(self.sources) - len(self.targets)

    @property
    def dropped_records(self) -> int:
        """Records that were not copied."""
        return sum(count for verdict, count in self.verdicts.items() if verdict is not Verdict.KEEP)

    def to_dicts(self) -> list[dict[str, Any]]:
        """One row a verdict, and one a damaged segment."""
        rows: list[dict[str, Any]] = [{"what": verdict.name.lower(), "records": count, "why": verdict.value}
                for verdict, count in sorted(self.verdicts.items(), key=lambda item: item[0].name)]
        rows += [{"what": "damaged", "records": None, "why": str(error)} for error in self.damage]
        return rows

    def _summary(self) -> str:
        trouble = f", LEFT OUT {', '.join(map(str, self.left_out))} for damage" if self.left_out else ""
        return (f"compaction {self.number} of {self.store}: {len(self.sources)} segments into {len(self.targets)} in "
                f"{self.cycles} cycles, copied {self.copied_records:,} records, {self.copied_bytes:,} bytes in "
                f"{self.seconds:.3f} s{trouble}")


BlobCompactionOutcome: TypeAlias = Outcome[BlobCompactionReport]
"""`Done(report)`, `Skipped` if there was nothing to do, `Failed` with the error; then it can be resumed or dropped."""
