# SPDX-License-Identifier: Apache-2.0
"""Which records outlive one step of a compaction, and into which output each goes. Pure, over a frozen snapshot.

Survivors are packed one behind the other in the order of the sources, so outputs never outnumber sources: what one
source keeps fits into one output. With `place`, they are packed class by class, the lowest class first, unless that
would take more outputs. Outputs take the first positions of the sources, with the highest of their generations plus
one.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate, chain
from typing import NamedTuple, TypeAlias

import attrs

from compactlib.blobstore.contents import OFTEN, LogContents
from compactlib.blobstore.names import SegmentName
from compactlib.blobstore.records import MAX_TIME_MS, IndexEntry, RecordKind
from compactlib.blobstore.segment import SEGMENT_HEADER_BYTES
from compactlib.blobstore.validity import BlobEnd, Rules, Verdict, judge
from compactlib.errors import InvalidInput

_PUT = int(RecordKind.PUT)


class Survivor(NamedTuple):
    """A record that is copied, as `place` sees it. Times are milliseconds since the epoch.

    Attributes:
        written_ms: when its operation was made.
        until_ms: until when it is kept, as far as is known; `MAX_TIME_MS` or more if nothing says.
        size: bytes of the record.
        copies: how often its segment was compacted: at least as often as it was copied.
        earlier_ms: when the PUTs of its id were made that it has replaced and the log still holds, in any order.
        now_ms: when the step began.
    """

    written_ms: int
    until_ms: int
    size: int
    copies: int
    earlier_ms: Sequence[int] = ()
    now_ms: int = 0

    @property
    def is_known(self) -> bool:
        """Whether it is known until when it is kept."""
        return self.until_ms < MAX_TIME_MS


Place: TypeAlias = Callable[[Survivor], int]
"""Returns the class of a record, a whole number: records of one class share outputs. Pure."""


@attrs.define(eq=False)
class Picked:
    """The records that one source gives to one output, ascending by offset; 24 bytes each.

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
class OutputPlan:
    """One output.

    Attributes:
        name: its name.
        picked: what it gets, source by source.
    """

    name: SegmentName
    picked: tuple[Picked, ...]

    @property
    def records(self) -> int:
        """How many records it gets."""
        return sum(len(part.offsets) for part in self.picked)

    @property
    def end(self) -> int:
        """The offset behind its last record."""
        return SEGMENT_HEADER_BYTES + sum(sum(part.sizes) for part in self.picked)

    @property
    def written(self) -> Picked:
        """Its records, at the offsets that they have in the output."""
        sizes = array("Q", chain.from_iterable(part.sizes for part in self.picked))
        offsets = array("Q", accumulate(sizes, initial=SEGMENT_HEADER_BYTES))
        return Picked(self.name, offsets[:-1], sizes,
                      array("Q", chain.from_iterable(part.sequences for part in self.picked)))


@attrs.frozen(kw_only=True, eq=False)
class Survivors:
    """What one step copies.

    Attributes:
        sources: the segments that it replaces, in the order of copying.
        outputs: what it writes, none of them empty.
        verdicts: how many records of the sources had which verdict.
        last_sequence: the newest record that the decision knew of.
        classes: how many records are copied of each class, if they are placed.
    """

    sources: tuple[SegmentName, ...]
    outputs: tuple[OutputPlan, ...]
    verdicts: Counter[Verdict]
    last_sequence: int
    classes: Counter[int]

    @property
    def copied_bytes(self) -> int:
        """Bytes of records to copy."""
        return sum(output.end - SEGMENT_HEADER_BYTES for output in self.outputs)

    def copies(self, entry: IndexEntry) -> bool:
        """Whether a record of a source is copied."""
        return any(part.segment == entry.segment and entry.offset in part.offsets
                   for output in self.outputs for part in output.picked)

    def are_hit_by(self, entries: Iterable[IndexEntry], snapshot: LogContents) -> bool:
        """Whether one of these newer entries revives a blob whose PUT is dropped.

        The store refuses that for what is gone by its clock; a clock that was set back, or a peer, may still do it.
        """
        for entry in entries:
            if entry.kind in (RecordKind.UNDELETE, RecordKind.TTL_UPDATE):
                put = BlobEnd.of(snapshot.history(entry.id)).put
                if put is not None and put.segment in self.sources and not self.copies(put):
                    return True
        return False


def choose_survivors(snapshot: LogContents, sources: Sequence[SegmentName], rules: Rules, *, segment_bytes: int,
                     retention_ms: int, place: Place | None, check: Callable[[], None]) -> Survivors:
    """Decide one step, in one pass over the index entries of its sources.

    Args:
        snapshot: of the log; every record in it is durable.
        sources: the segments to replace, in the order of copying.
        rules: what is kept.
        segment_bytes: capacity of a segment.
        retention_ms: for how long a deleted blob is kept.
        place: gives the class of each survivor.
        check: called with each piece of work; what it raises ends it.
    """
    compacting, verdicts, kept = frozenset(sources), Counter[Verdict](), [Picked(name) for name in sources]
    classes = array("q")
    often, ends = dict[bytes, list[IndexEntry]](), dict[bytes, BlobEnd]()
    for part in kept:
        for entry, history in snapshot.histories_of(part.segment, often, check):
            check()
            end = ends.get(entry.id)
            if end is None and len(history) > OFTEN:
                end = ends[entry.id] = BlobEnd.of(history)
            verdict = judge(entry, history, rules, compacting, end)
            if verdict is not Verdict.KEEP:
                verdicts[verdict] += 1
            else:
                part.offsets.append(entry.offset)
                part.sizes.append(entry.size)
                part.sequences.append(entry.sequence)
                if place is not None:
                    classes.append(_class_of(place, entry, history, rules.now_ms, retention_ms))
        verdicts[Verdict.KEEP] += len(part.offsets)
    outputs = _packed(((part, row) for part in kept for row in range(len(part.offsets))), segment_bytes)
    if place is not None and len(outputs) > 1:
        by_class = _packed(_by_class(kept, classes), segment_bytes)
        if len(by_class) <= len(outputs):
            outputs = by_class
    generation = 1 + max(name.generation for name in sources)
    named = tuple(OutputPlan(SegmentName(source.position, generation), tuple(picked))
                  for source, picked in zip(sources, outputs, strict=False))
    assert len(named) == len(outputs), "what one source keeps fits into one output"
    return Survivors(sources=tuple(sources), outputs=named, verdicts=verdicts, last_sequence=snapshot.last_sequence,
                     classes=Counter(classes))


def _packed(records: Iterable[tuple[Picked, int]], segment_bytes: int) -> list[list[Picked]]:
    """Return what each output gets, if these rows are packed one behind the other."""
    room, left, outputs = segment_bytes - SEGMENT_HEADER_BYTES, 0, list[list[Picked]]()
    for part, row in records:
        size = part.sizes[row]
        if size > left:
            outputs.append([])
            left = room
        left -= size
        here = outputs[-1]
        if not here or here[-1].segment != part.segment or here[-1].offsets[-1] > part.offsets[row]:
            here.append(Picked(part.segment))
        here[-1].offsets.append(part.offsets[row])
        here[-1].sizes.append(size)
        here[-1].sequences.append(part.sequences[row])
    return outputs


def _by_class(kept: Sequence[Picked], classes: Sequence[int]) -> Iterator[tuple[Picked, int]]:
    """Yield the rows class by class, those of one class as they are copied."""
    starts = list(accumulate((len(part.offsets) for part in kept), initial=0))
    for number in sorted(range(len(classes)), key=classes.__getitem__):
        place = bisect_right(starts, number) - 1
        yield kept[place], number - starts[place]


def _class_of(place: Place, entry: IndexEntry, history: Sequence[IndexEntry], now_ms: int, retention_ms: int) -> int:
    until, earlier = MAX_TIME_MS, list[int]()
    if entry.kind == _PUT:
        end = BlobEnd.of(history)
        until = min(end.expires_ms, end.deleted_ms + retention_ms)
        earlier = [each.op_time_ms for each in history if each.kind == _PUT and each.sequence < entry.sequence]
    record = Survivor(entry.op_time_ms, until, entry.size, entry.segment.generation, earlier, now_ms)
    found: object = place(record)
    if not isinstance(found, int) or abs(found) >= 1 << 63:
        raise InvalidInput(f"place() gave {found!r:.100} as the class of {record}; give a whole number of 64 bits")
    return found
