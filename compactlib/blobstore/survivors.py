# SPDX-License-Identifier: Apache-2.0
"""The survivors of one step of a compaction, the output of each, and the task that writes an output.

The choice is pure, over a frozen snapshot. Survivors are packed in the order of the sources, so outputs never outnumber
sources: the survivors of one source fit into one output. With `place`, they are packed class by class, the lowest class
first, unless that needs more outputs. Outputs take the first positions of the sources, and the highest generation of
the sources plus one.

Records with small gaps between them are read by one call and written by one call; the bytes that are written are the
bytes that were checked against their CRCs. One fsync makes the file durable. The task can run in any process that sees
the folder, twice, or concurrently with another attempt: each attempt writes its own file and publishes nothing.
"""

from __future__ import annotations

import contextlib
import os
from array import array
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate, chain
from typing import NamedTuple, TypeAlias

import attrs

from compactlib.blobstore.blobs import blob_state, expiry
from compactlib.blobstore.contents import LogContents, histories_in
from compactlib.blobstore.names import UNPUBLISHED_SUFFIX, SegmentName
from compactlib.blobstore.records import MAX_TIME_MS, IndexEntry, RecordKind, check_record
from compactlib.blobstore.segment import SEGMENT_HEADER_BYTES, Descriptor, SegmentFile, SegmentHeader, encode_header
from compactlib.blobstore.validity import Rules, Verdict, judge
from compactlib.budget import Budget
from compactlib.errors import CorruptData, InvalidInput
from compactlib.files.checksum import crc32
from compactlib.files.disk import Files, removed_on_failure
from compactlib.rewrite import Attempt, RewriteResult, RewrittenFile

_PUT = int(RecordKind.PUT)
_MOST_READ = 1 << 20
"""The bytes of one read, unless a record is larger."""
_MAX_GAP_BYTES = 16 << 10
"""The largest gap that is read and skipped, which takes less time than another call."""


class Survivor(NamedTuple):
    """A record to copy, as `place` sees it. Times are milliseconds since the epoch.

    Attributes:
        written_ms: the time of its operation.
        until_ms: the last time at which it is kept; `MAX_TIME_MS` or more if unknown.
        size: bytes of the record.
        earlier_ms: the times of older PUTs of its id that the log still holds, in any order.
        now_ms: the time at which the step began.
    """

    written_ms: int
    until_ms: int
    size: int
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

    def add(self, offset: int, size: int, sequence: int) -> None:
        """Add a record."""
        self.offsets.append(offset)
        self.sizes.append(size)
        self.sequences.append(sequence)

    def in_order(self, rows: Sequence[int]) -> Picked:
        """Return the records in the order of these rows."""
        return Picked(self.segment, *(array("Q", map(column.__getitem__, rows))
                                      for column in (self.offsets, self.sizes, self.sequences)))


@attrs.frozen(kw_only=True, eq=False)
class CopyRecords:
    """One output: a `RewriteTask` that writes the new segment."""

    folder: str
    header: SegmentHeader  # the header of the new segment
    picked: tuple[Picked, ...]  # its records, source by source, at least one
    files: Files

    @property
    def name(self) -> str:
        """The name of the task."""
        return f"{self.folder} {self.header.name}"

    @property
    def source_files(self) -> tuple[str, ...]:
        """The paths of the sources."""
        return tuple(os.path.join(self.folder, part.segment.log_file) for part in self.picked)

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

    def run(self, attempt: Attempt) -> RewriteResult:
        """Copy, check and sync."""
        began = attempt.clock.monotonic()
        path = os.path.join(self.folder, f"{self.header.name.log_file}.{attempt.id}{UNPUBLISHED_SUFFIX}")
        total = sum(sum(part.sizes) for part in self.picked)
        with removed_on_failure(self.files, path), contextlib.closing(self.files.create(path)) as out:
            end, read, records, crc = SEGMENT_HEADER_BYTES, 0, 0, 0
            out.write_at(0, [encode_header(self.header)])
            self._report(attempt, 0, total)
            for part, source in zip(self.picked, self.source_files, strict=True):
                # Each record says by its CRC that it is of this store.
                with contextlib.closing(SegmentFile(source, self.header.store.header(part.segment))) as file:
                    for first, last in _runs(part.offsets, part.sizes):
                        size = sum(part.sizes[first:last])
                        attempt.budget.spend(size)
                        pieces, span = _read(file, part, first, last, self.header.store.salt)
                        out.write_at(end, pieces)
                        for piece in pieces:
                            crc = crc32(piece, crc)
                        end, read, records = end + size, read + span, records + last - first
                        self._report(attempt, end - SEGMENT_HEADER_BYTES, total)
            out.sync()
        return RewriteResult(task=self.name, attempt=attempt.id, files=(RewrittenFile(path, end, records, crc),),
                             bytes_read=read, bytes_written=total, seconds=attempt.clock.monotonic() - began)

    def _report(self, attempt: Attempt, done: int, total: int) -> None:
        attempt.observer.event("progress", work=f"compact {self.name}", done=done, total=total, unit="bytes")


@attrs.frozen(kw_only=True, eq=False)
class Survivors:
    """The choice of one step."""

    sources: tuple[SegmentName, ...]  # the segments to replace, in the order of copying
    outputs: tuple[CopyRecords, ...]  # the new segments, each with at least one record
    snapshot: LogContents
    sequence: int  # every record up to it is in the snapshot
    rules: Rules
    verdicts: Counter[Verdict]  # the number of records of the sources for each verdict

    @property
    def copied_bytes(self) -> int:
        """Bytes of records to copy."""
        return sum(output.end - SEGMENT_HEADER_BYTES for output in self.outputs)

    def are_hit_by(self, entries: Iterable[IndexEntry], now: LogContents) -> bool:
        """Whether one of these newer entries, of the contents `now`, revives a blob with a PUT that is dropped.

        By its own clock the store refuses that; after the clock was set back, or by a peer, it is possible. A blob that
        was put again since has another PUT.
        """
        for entry in entries:
            if entry.kind in (RecordKind.UNDELETE, RecordKind.TTL_UPDATE):
                state = blob_state(now.find(entry.id))
                put = None if state is None else state.put
                if put is not None and put.segment in self.sources and (
                        judge(put, self.snapshot.history(entry.id), self.rules, self.sources) is not Verdict.KEEP):
                    return True
        return False


def choose_survivors(snapshot: LogContents, sequence: int, sources: Sequence[SegmentName], rules: Rules, *,
                     folder: str, store: Descriptor, files: Files, retention_ms: int, place: Place | None,
                     budget: Budget) -> Survivors:
    """Choose the survivors of one step, in one pass over the blobs of its sources.

    Every record of the snapshot is durable. `budget` is checked for each blob.
    """
    verdicts, kept = Counter[Verdict](), {name: Picked(name) for name in sources}
    classes = {name: array("q") for name in sources}
    for history in histories_in(snapshot.all_parts, kept):
        budget.check()
        blob = blob_state(history) if len(history) > 1 else None
        for entry in history:
            if entry.segment not in kept:
                continue
            verdict = judge(entry, history, rules, kept, blob)
            if verdict is not Verdict.KEEP:
                verdicts[verdict] += 1
                continue
            kept[entry.segment].add(entry.offset, entry.size, entry.sequence)
            if place is not None:
                classes[entry.segment].append(_class_of(place, entry, history, rules.now_ms, retention_ms))
    placed = array("q")
    for name, part in list(kept.items()):
        # The pass has found the records blob by blob; they are copied in the order of the segment.
        order = sorted(range(len(part.offsets)), key=part.offsets.__getitem__)
        kept[name] = part.in_order(order)
        if place is not None:
            placed.extend(map(classes[name].__getitem__, order))
    ordered = list(kept.values())
    verdicts[Verdict.KEEP] = sum(len(part.offsets) for part in ordered)
    outputs = _packed(((part, row) for part in ordered for row in range(len(part.offsets))), store.segment_bytes)
    if len(outputs) > 1 and placed:
        by_class = _packed(_by_class(ordered, placed), store.segment_bytes)
        if len(by_class) <= len(outputs):
            outputs = by_class
    generation = 1 + max(name.generation for name in sources)
    tasks = tuple(CopyRecords(folder=folder, header=store.header(SegmentName(source.position, generation)),
                              picked=tuple(picked), files=files)
                  for source, picked in zip(sources, outputs, strict=False))
    assert len(tasks) == len(outputs), "the survivors of one source fit into one output"
    return Survivors(sources=tuple(sources), outputs=tasks, snapshot=snapshot, sequence=sequence, rules=rules,
                     verdicts=verdicts)


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
        here[-1].add(part.offsets[row], size, part.sequences[row])
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
    record = Survivor(entry.op_time_ms, until, entry.size, earlier, now_ms)
    found: object = place(record)
    if not isinstance(found, int) or abs(found) >= 1 << 63:
        raise InvalidInput(f"place() gave {found!r:.100} as the class of {record}; give a whole number of 64 bits")
    return found


def _runs(offsets: Sequence[int], sizes: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield ranges of rows, first and end, of records that one call reads."""
    first = 0
    while first < len(offsets):
        last, end = first + 1, offsets[first] + sizes[first]
        while (last < len(offsets) and 0 <= offsets[last] - end <= _MAX_GAP_BYTES
               and offsets[last] + sizes[last] - offsets[first] <= _MOST_READ):
            end = offsets[last] + sizes[last]
            last += 1
        yield first, last
        first = last


def _read(file: SegmentFile, part: Picked, first: int, last: int, salt: int) -> tuple[list[memoryview], int]:
    """Read and check a range of records; return them without the gaps, and the number of bytes read."""
    start = part.offsets[first]
    data = memoryview(file.read(start, part.offsets[last - 1] + part.sizes[last - 1] - start))
    pieces: list[memoryview] = []
    begin = end = 0
    for row in range(first, last):
        at, size, sequence = part.offsets[row] - start, part.sizes[row], part.sequences[row]
        record = data[at:at + size]
        found = check_record(record, size, salt, sequence)
        if found is not None:
            raise CorruptData(path=file.path, offset=start + at, index=sequence, found=found,
                              expected=f"record {sequence} of {size} bytes")
        if at != end:
            pieces.append(data[begin:end])
            begin = at
        end = at + size
    return [*pieces, data[begin:end]], len(data)
