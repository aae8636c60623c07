# SPDX-License-Identifier: Apache-2.0
"""The survivors of one step of a compaction, and the output of each. Pure, over a frozen snapshot.

Survivors are packed in the order of the sources, so outputs never outnumber sources: the survivors of one source fit
into one output. With `place`, they are packed class by class, the lowest class first, unless that needs more outputs.
Outputs take the first positions of the sources, and the highest generation of the sources plus one.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate, chain
from typing import NamedTuple, TypeAlias

import attrs

from compactlib.blobstore.blobs import BlobState, blob_state, expiry
from compactlib.blobstore.contents import OFTEN, LogContents
from compactlib.blobstore.names import SegmentName
from compactlib.blobstore.records import MAX_TIME_MS, IndexEntry, RecordKind
from compactlib.blobstore.segment import SEGMENT_HEADER_BYTES
from compactlib.blobstore.validity import Rules, Verdict, judge
from compactlib.errors import InvalidInput

_PUT = int(RecordKind.PUT)


class Survivor(NamedTuple):
    """A record to copy, as `place` sees it. Times are milliseconds since the epoch.

    Attributes:
        written_ms: the time of its operation.
        until_ms: the last time at which it is kept; `MAX_TIME_MS` or more if unknown.
        size: bytes of the record.
        copies: how often its segment was compacted, which is at least how often the record was copied.
        earlier_ms: the times of older PUTs of its id that the log still holds, in any order.
        now_ms: the time at which the step began.
    """

    written_ms: int
    until_ms: int
    size: int
    copies: int
    earlier_ms: Sequence[int] = ()
    now_ms: int = 0

    @property
    def is_known(self) -> bool:
        """Whether the time until which it is kept is known."""
        return self.until_ms < MAX_TIME_MS


Place: TypeAlias = Callable[[Survivor], int]
"""Returns the class of a record, a whole number: records of one class share outputs. Pure."""


@attrs.define(eq=False)
class Picked:
    """Records of one segment, ascending by offset, such as those that one output gets of one source; 24 bytes each."""

    segment: SegmentName
    offsets: array[int] = attrs.field(factory=lambda: array("Q"))  # the offset of each record in it
    sizes: array[int] = attrs.field(factory=lambda: array("Q"))  # the bytes of each record
    sequences: array[int] = attrs.field(factory=lambda: array("Q"))  # the number of each record

    def has(self, offset: int) -> bool:
        """Whether one of the records is at an offset. O(log n)."""
        place = bisect_left(self.offsets, offset)
        return place < len(self.offsets) and self.offsets[place] == offset


@attrs.define(eq=False)
class OutputPlan:
    """One output."""

    name: SegmentName
    picked: tuple[Picked, ...]  # its records, source by source

    @property
    def records(self) -> int:
        """The number of its records."""
        return sum(len(part.offsets) for part in self.picked)

    @property
    def end(self) -> int:
        """The offset after its last record."""
        return SEGMENT_HEADER_BYTES + sum(sum(part.sizes) for part in self.picked)

    @property
    def sequences(self) -> Iterator[int]:
        """The number of each record, in the order of the output."""
        return chain.from_iterable(part.sequences for part in self.picked)


@attrs.frozen(kw_only=True, eq=False)
class Survivors:
    """The choice of one step."""

    sources: tuple[SegmentName, ...]  # the segments to replace, in the order of copying
    outputs: tuple[OutputPlan, ...]  # the new segments, each with at least one record
    verdicts: Counter[Verdict]  # the number of records of the sources for each verdict
    last_sequence: int  # the newest record of the snapshot
    classes: Counter[int]  # the number of records to copy of each class, if they are placed

    @property
    def copied_bytes(self) -> int:
        """Bytes of records to copy."""
        return sum(output.end - SEGMENT_HEADER_BYTES for output in self.outputs)

    def copies(self, entry: IndexEntry) -> bool:
        """Whether a record of a source is copied."""
        return any(part.segment == entry.segment and part.has(entry.offset)
                   for output in self.outputs for part in output.picked)

    def are_hit_by(self, entries: Iterable[IndexEntry], snapshot: LogContents) -> bool:
        """Whether one of these newer entries revives a blob with a PUT that is dropped.

        By its own clock the store refuses that; after the clock was set back, or by a peer, it is possible.
        """
        for entry in entries:
            if entry.kind in (RecordKind.UNDELETE, RecordKind.TTL_UPDATE):
                state = blob_state(snapshot.history(entry.id))
                if state is not None and state.put is not None and state.put.segment in self.sources and (
                        not self.copies(state.put)):
                    return True
        return False


def choose_survivors(snapshot: LogContents, sources: Sequence[SegmentName], rules: Rules, *, segment_bytes: int,
                     retention_ms: int, place: Place | None, check: Callable[[], None]) -> Survivors:
    """Choose the survivors of one step, in one pass over the index entries of its sources.

    Every record of the snapshot is durable. `check` is called for each record; an exception ends the pass.
    """
    compacting, verdicts, kept = frozenset(sources), Counter[Verdict](), [Picked(name) for name in sources]
    classes = array("q")
    often, ends = dict[bytes, list[IndexEntry]](), dict[bytes, BlobState | None]()
    for part in kept:
        for entry, history in snapshot.histories_of(part.segment, often, check):
            check()
            end = ends.get(entry.id)
            if end is None and len(history) > OFTEN:
                end = ends[entry.id] = blob_state(history)
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
    assert len(named) == len(outputs), "the survivors of one source fit into one output"
    return Survivors(sources=tuple(sources), outputs=named, verdicts=verdicts, last_sequence=snapshot.last_sequence,
                     classes=Counter(classes))


def _packed(records: Iterable[tuple[Picked, int]], segment_bytes: int) -> list[list[Picked]]:
    """Return the records of each output, if these rows are packed in this order."""
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
    """Yield the rows class by class, within a class in the order of copying."""
    starts = list(accumulate((len(part.offsets) for part in kept), initial=0))
    for number in sorted(range(len(classes)), key=classes.__getitem__):
        place = bisect_right(starts, number) - 1
        yield kept[place], number - starts[place]


def _class_of(place: Place, entry: IndexEntry, history: Sequence[IndexEntry], now_ms: int, retention_ms: int) -> int:
    until, earlier = MAX_TIME_MS, list[int]()
    state = blob_state(history)
    if entry.kind == _PUT and state is not None:
        until = min(expiry(state.newest.expires_ms, state.newest.flags), state.deleted_ms + retention_ms)
        earlier = [each.op_time_ms for each in history if each.kind == _PUT and each.sequence < entry.sequence]
    record = Survivor(entry.op_time_ms, until, entry.size, entry.segment.generation, earlier, now_ms)
    found: object = place(record)
    if not isinstance(found, int) or abs(found) >= 1 << 63:
        raise InvalidInput(f"place() gave {found!r:.100} as the class of {record}; give a whole number of 64 bits")
    return found
