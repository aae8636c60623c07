# SPDX-License-Identifier: Apache-2.0
"""Planning one cycle of a compaction: which records are copied where, decided from a frozen view of the store.

Records are packed tightly, in the order in which the victims are copied. A cycle fills at most so many new segments as
there are swaps; the source at which they are full is copied up to there, and stays for the next cycle, which goes on
behind.

The new segments take the first positions of the sources, with the highest generation of the cycle plus one. They never
outnumber the sources: what one source keeps fits into one new segment.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice

import attrs

from compactlib.blobstore.compaction.swap import Snapshot
from compactlib.blobstore.model.breather import Breather, unhurried
from compactlib.blobstore.model.names import LogPosition, SegmentName
from compactlib.blobstore.model.values import IndexEntry, RecordKind
from compactlib.blobstore.validity.verdicts import Rules, Verdict, judge
from compactlib.errors import CorruptData
from compactlib.files.checksum import crc32

_PUT = int(RecordKind.PUT)


@attrs.define(eq=False)
class Picked:
    """The records that one source gives to one new segment, in the order of their offsets; 24 bytes each.

    Attributes:
        segment: the source.
        offsets: where each record begins in it.
        sizes: how long each is.
        sequences: the number of each.
    """

    segment: SegmentName
    offsets: array[int] = attrs.field(factory=lambda: array("Q"))
    sizes: array[int] = attrs.field(factory=lambda: array("Q"))
    sequences: array[int] = attrs.field(factory=lambda: array("Q"))


@attrs.define(eq=False)
class TargetPlan:
    """One new segment.

    Attributes:
        name: its name.
        end: the offset behind its last record.
        picked: what it gets, source by source.
    """

    name: SegmentName
    end: int
    picked: list[Picked] = attrs.field(factory=list)

    @property
    def records(self) -> int:
        """How many records it gets."""
        return sum(len(part.offsets) for part in self.picked)

    @property
    def fingerprint(self) -> int:
        """CRC-32 over what it gets; equal plans make equal files."""
        crc = 0
        for part in self.picked:
            crc = crc32(str(part.segment).encode(), crc)
            for column in (part.offsets, part.sizes, part.sequences):
                crc = crc32(column, crc)
        return crc


@attrs.frozen(kw_only=True, eq=False)
class CyclePlan:
    """What one cycle does.

    Attributes:
        sources: segments that are copied whole, and go.
        partial: the place up to which one more is copied.
        targets: the new segments, those that get nothing left out.
        verdicts: how many records of the sources had which verdict.
        dropped_bytes: sizes of the records that are not copied.
        last_sequence: the newest record that the decision knew of.
    """

    sources: tuple[SegmentName, ...]
    partial: LogPosition | None
    targets: tuple[TargetPlan, ...]
    verdicts: Counter[Verdict]
    dropped_bytes: int
    last_sequence: int

    @property
    def copied_bytes(self) -> int:
        """Bytes to copy."""
        return sum(sum(part.sizes) for target in self.targets for part in target.picked)

    def copies(self, entry: IndexEntry) -> bool:
        """Whether a record of a source is copied."""
        for target in self.targets:
            for part in target.picked:
                if part.segment == entry.segment:
                    place = bisect_left(part.offsets, entry.offset)
                    if place < len(part.offsets) and part.offsets[place] == entry.offset:
                        return True
        return False


def plan_cycle(snapshot: Snapshot, remaining: Sequence[SegmentName], turns: Mapping[SegmentName, int],
               copied_before: LogPosition | None, rules: Rules, *,
               swap_segments: int, segment_bytes: int, header_bytes: int,
               dropped_put: Callable[[IndexEntry], object] | None = None,
               breather: Breather | None = None) -> CyclePlan:
    """Decide the next cycle over the victims that remain. One pass over their index entries; 24 bytes a kept record.

    Args:
        snapshot: of the store.
        remaining: the victims, in the order in which they are copied.
        turns: for each of them, as which it is copied; those that are gone may be among them.
        copied_before: where to begin in the first of them, if an earlier cycle has copied what lies before.
        rules: what is kept.
        swap_segments: how many segments may be filled.
        segment_bytes: capacity of each.
        header_bytes: where the first record of a segment lies.
        dropped_put: called with each PUT that is not copied and has later records.
        breather: lets other threads run now and then.

    Raises:
        CorruptData: the index has two records that cannot both be (two of one sequence); it names the segment that
            cannot be decided about.
    """
    packing = _Packing(remaining, swap_segments, segment_bytes, header_bytes)
    for name in remaining:
        start = copied_before.offset if copied_before is not None and copied_before.segment == name else 0
        if not packing.take(name, _judged(snapshot, name, start, rules, turns, dropped_put,
                                          unhurried if breather is None else breather.breathe)):
            break
    return packing.finish(snapshot.last_sequence)


def _judged(snapshot: Snapshot, name: SegmentName, start: int, rules: Rules,
            compacting: Mapping[SegmentName, int], dropped_put: Callable[[IndexEntry], object] | None,
            breathe: Callable[[], None]) -> Iterator[tuple[IndexEntry, Verdict]]:
    for entry in snapshot.entries_of(name, start=start):
        breathe()
        history = snapshot.history_of(entry)
        try:
            verdict = judge(history, rules, compacting)[history.index(entry)]
        except CorruptData as error:
            # It is this segment that nothing can be decided about, whichever of the records is wrong.
            raise CorruptData(path=name.log_file, offset=entry.offset, index=entry.sequence, expected=error.expected,
                              found=error.found) from None
        if dropped_put is not None and verdict is not Verdict.KEEP and entry.kind == _PUT and len(history) > 1:
            dropped_put(entry)
        yield entry, verdict


class _Packing:
    """Fills one new segment after the other."""

    def __init__(self, remaining: Sequence[SegmentName], swaps: int, capacity: int, header: int) -> None:
        self.remaining = remaining
        self.swaps = swaps
        self.capacity = capacity
        self.header = header
        self.targets: list[TargetPlan] = []
        self.sources: list[SegmentName] = []
        self.partial: LogPosition | None = None
        self.verdicts: Counter[Verdict] = Counter()
        self.dropped_bytes = 0

    def take(self, name: SegmentName, judged: Iterator[tuple[IndexEntry, Verdict]]) -> bool:
        """Pack what is kept of one source; `False` if the new segments are full before its end."""
        verdicts: Counter[Verdict] = Counter()
        dropped = kept = 0
        for entry, verdict in judged:
            if verdict is not Verdict.KEEP:
                dropped += entry.size
                verdicts[verdict] += 1
                continue
            target = self._target_for(entry.size)
            if target is None:
                if kept:
                    self.partial = entry.position
                    self._note(verdicts, dropped)
                return False
            self._append(target, name, entry)
            verdicts[verdict] += 1
            kept += 1
        self._note(verdicts, dropped)
        self.sources.append(name)
        return True

    def _note(self, verdicts: Counter[Verdict], dropped: int) -> None:
        self.verdicts += verdicts
        self.dropped_bytes += dropped

    def _target_for(self, size: int) -> TargetPlan | None:
        if not self.targets or self.targets[-1].end + size > self.capacity:
            if len(self.targets) == self.swaps:
                return None
            # Its name depends on how far the cycle gets.
            self.targets.append(TargetPlan(SegmentName(0, 0), self.header))
        return self.targets[-1]

    @staticmethod
    def _append(target: TargetPlan, name: SegmentName, entry: IndexEntry) -> None:
        if not target.picked or target.picked[-1].segment != name:
            target.picked.append(Picked(name))
        part = target.picked[-1]
        part.offsets.append(entry.offset)
        part.sizes.append(entry.size)
        part.sequences.append(entry.sequence)
        target.end += entry.size

    def finish(self, last_sequence: int) -> CyclePlan:
        """The cycle, its new segments named."""
        assert len(self.targets) <= len(self.sources), "what one source keeps fits into one new segment"
        generation = 1 + max(name.generation for name in self.sources)
        for target, source in zip(self.targets, islice(self.sources, len(self.targets)), strict=True):
            target.name = SegmentName(source.position, generation)
        return CyclePlan(sources=tuple(self.sources), partial=self.partial, targets=tuple(self.targets),
                         verdicts=self.verdicts, dropped_bytes=self.dropped_bytes, last_sequence=last_sequence)
