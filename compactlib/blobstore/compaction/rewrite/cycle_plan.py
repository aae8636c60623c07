# SPDX-License-Identifier: Apache-2.0
"""Planning one cycle of a compaction: which records are copied where, decided from a frozen view of the store.

Records are packed tightly, in the order in which the victims are copied, or class by class (`packing`). A cycle fills
at most so many new segments as there are swaps; the source at which they are full is copied up to there, and stays for
the next cycle, which goes on behind.

The new segments take the first positions of the sources, with the highest generation of the cycle plus one. They never
outnumber the sources: what one source keeps fits into one new segment.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from typing import TypeAlias

import attrs

from compactlib.blobstore.compaction.rewrite.packing import Packing
from compactlib.blobstore.compaction.swap import Snapshot
from compactlib.blobstore.model.names import LogPosition, SegmentName
from compactlib.blobstore.model.values import IndexEntry, RecordKind
from compactlib.blobstore.validity.verdicts import Rules, Verdict, judge_one
from compactlib.errors import CorruptData
from compactlib.files.checksum import crc32
from compactlib.runtime.breather import Breather, unhurried

Classify: TypeAlias = Callable[[IndexEntry, Sequence[IndexEntry]], int]

_PUT, _TTL_UPDATE = int(RecordKind.PUT), int(RecordKind.TTL_UPDATE)


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

    def append(self, offset: int, size: int, sequence: int) -> None:
        """One record more."""
        self.offsets.append(offset)
        self.sizes.append(size)
        self.sequences.append(sequence)


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

    def take(self, part: Picked) -> None:
        """All records that a source gives to it."""
        self.picked.append(part)
        self.end += sum(part.sizes)

    def append(self, segment: SegmentName, offset: int, size: int, sequence: int) -> None:
        """One record more of a source; those of a source come one after the other."""
        if not self.picked or self.picked[-1].segment != segment:
            self.picked.append(Picked(segment))
        self.picked[-1].append(offset, size, sequence)
        self.end += size

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
        classes: how many records are copied of each class, if they are placed.
    """

    sources: tuple[SegmentName, ...]
    partial: LogPosition | None
    targets: tuple[TargetPlan, ...]
    verdicts: Counter[Verdict]
    dropped_bytes: int
    last_sequence: int
    classes: Mapping[int, int] = attrs.field(factory=dict)

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
               dropped_put: Callable[[IndexEntry], object] | None = None, classify: Classify | None = None,
               breather: Breather | None = None) -> CyclePlan:
    """Decide the next cycle over the victims that remain. One pass over their index entries; 28 bytes a kept record,
    some 70 where they are placed.

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
        classify: gives the class of a record that is kept, from it and all records of its blob, if they are placed.
        breather: lets other threads run now and then.

    Raises:
        CorruptData: the index has two records that cannot both be (two of one sequence); it names the segment that
            cannot be decided about.
    """
    packing = Packing(segment_bytes - header_bytes, swap_segments, is_placed=classify is not None)
    cycle = _Cycle(packing, header_bytes, classify)
    for name in remaining:
        start = copied_before.offset if copied_before is not None and copied_before.segment == name else 0
        if not cycle.take(name, _judged(snapshot, name, start, rules, turns, dropped_put,
                                          unhurried if breather is None else breather.breathe)):
            break
    return cycle.finish(snapshot.last_sequence)


def _judged(snapshot: Snapshot, name: SegmentName, start: int, rules: Rules,
            compacting: Mapping[SegmentName, int], dropped_put: Callable[[IndexEntry], object] | None,
            breathe: Callable[[], None]) -> Iterator[tuple[IndexEntry, list[IndexEntry], Verdict]]:
    """Each record with those of its blob and its verdict; one that is outdone comes without the others, and goes."""
    for entry, history in snapshot.histories_of(name, start=start, breathe=breathe):
        breathe()
        try:
            if history:
                verdict = judge_one(entry, history, rules, compacting)
            else:
                verdict = Verdict.REPLACED if entry.kind in (_PUT, _TTL_UPDATE) else Verdict.SUPERSEDED
        except CorruptData as error:
            # It is this segment that nothing can be decided about, whichever of the records is wrong.
            raise CorruptData(path=name.log_file, offset=entry.offset, index=entry.sequence, expected=error.expected,
                              found=error.found) from None
        if dropped_put is not None and verdict is not Verdict.KEEP and entry.kind == _PUT and len(history) != 1:
            dropped_put(entry)
        yield entry, history, verdict


class _Cycle:
    """What is known of a cycle while its sources are gone through."""

    def __init__(self, packing: Packing, header: int, classify: Classify | None) -> None:
        self.packing = packing
        self.header = header
        self.classify = classify
        self.classes = array("I")
        self.kept: list[Picked] = []
        self.sources: list[SegmentName] = []
        self.partial: LogPosition | None = None
        self.verdicts: Counter[Verdict] = Counter()
        self.dropped_bytes = 0

    def take(self, name: SegmentName, judged: Iterator[tuple[IndexEntry, Sequence[IndexEntry], Verdict]]) -> bool:
        """Take what is kept of one source; `False` if the new segments are full before its end."""
        verdicts: Counter[Verdict] = Counter()
        dropped, part = 0, Picked(name)
        admit, append = self.packing.admit, part.append
        for entry, history, verdict in judged:
            if verdict is not Verdict.KEEP:
                dropped += entry.size
                verdicts[verdict] += 1
                continue
            if not admit(entry.size):
                if part.offsets:
                    self.partial = entry.position
                    self._note(part, verdicts, dropped)
                return False
            append(entry.offset, entry.size, entry.sequence)
            if self.classify is not None:
                self.classes.append(self.classify(entry, history))
        self._note(part, verdicts, dropped)
        self.sources.append(name)
        self.packing.sources += 1
        return True

    def _note(self, part: Picked, verdicts: Counter[Verdict], dropped: int) -> None:
        verdicts[Verdict.KEEP] += len(part.offsets)
        self.kept.append(part)
        self.verdicts += verdicts
        self.dropped_bytes += dropped

    def finish(self, last_sequence: int) -> CyclePlan:
        """The cycle, its new segments named."""
        numbers, done = self.packing.placed(self.classes), 0
        assert self.packing.filled <= len(self.sources), "what one source keeps fits into one new segment"
        generation = 1 + max(name.generation for name in self.sources)
        targets = [TargetPlan(SegmentName(source.position, generation), self.header)
                   for source in islice(self.sources, self.packing.filled)]
        for part in self.kept:
            own = numbers[done:done + len(part.offsets)]
            done += len(own)
            if own and own.count(own[0]) == len(own):
                # All to one segment, as most are where none are placed.
                targets[own[0]].take(part)
                continue
            for number, offset, size, sequence in zip(own, part.offsets, part.sizes, part.sequences, strict=True):
                targets[number].append(part.segment, offset, size, sequence)
        return CyclePlan(sources=tuple(self.sources), partial=self.partial, targets=tuple(targets),
                         verdicts=self.verdicts, dropped_bytes=self.dropped_bytes, last_sequence=last_sequence,
                         classes=Counter(self.classes))
