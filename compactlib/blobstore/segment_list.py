# SPDX-License-Identifier: Apache-2.0
"""The file `SEGMENTS`: the store's descriptor, the segments of the log, and the last step of a compaction.

The file has a fixed size and two slots, which are written in turn, so that a write needs no room on the disk and never
overwrites the current list. The valid slot of the higher number counts. One such write commits a step of a compaction:
the new list names the outputs in place of the sources, and the step itself. The file is created as a whole, which makes
a folder a store (`docs/formats/blobstore-segments.md`).

`lay_out` compares the list with the folder; the owner and every reader use it to decide which segments are the log:

- a segment newer than the whole list was begun before a crash and not listed yet: it counts;
- an unlisted segment at the position of a listed one, in a later generation, is an output of a step that was not
  committed; it and the sources of the last step are leftovers;
- any other unlisted segment was restored by an operator: it does not count, and is reported;
- if an output of the last step is missing or damaged and all its sources are present, the step is undone. If a source
  is missing, too, the other sources may be the only whole copies: they count as restored;
- a listed segment that is missing is lost. It stays in the list, so that every opening reports it until it is restored;
- if a later generation is present at the position of a missing segment, the list is older than the folder, or damaged.
  The later generation counts, and is reported.
"""

from __future__ import annotations

import contextlib
import os
import struct
from collections.abc import Collection, Iterable, Mapping
from itertools import chain

import attrs

from compactlib.blobstore.names import MAX_NUMBER, MIN_SEGMENT_BYTES, SegmentName
from compactlib.blobstore.segment import Descriptor
from compactlib.errors import CorruptData, InvalidInput
from compactlib.files.disk import Files, OutFile, StrPath, read_if_there, write_durably
from compactlib.files.record_frame import RecordFrame

FILE_NAME = "SEGMENTS"
MAX_SOURCES = 200
"""The most segments that one step replaces."""
MAX_OUTPUTS = 8
"""The most segments that one step writes."""
_MORE_SEGMENTS = 64
"""Room in the list for lost segments, beyond the segments that the log may have."""
_PAGE = 4096
_FRAME = RecordFrame("list of segments", b"CLBLOBLS", 1, "<H2xIQq16sQqIII4x")
_COUNTS = struct.Struct("<64xIII4x")
_NAME = struct.Struct("<QQ")
_OUTPUT = struct.Struct("<QQQQ")
_NEVER = -1


@attrs.frozen
class Output:
    """A segment that a step has written."""

    name: SegmentName
    end: int  # the offset after its last record
    records: int  # the number of its records


@attrs.frozen
class Step:
    """The sources and outputs of one step of a compaction."""

    sources: tuple[SegmentName, ...]
    outputs: tuple[Output, ...]


@attrs.frozen(kw_only=True)
class SegmentList:
    """One state of the log."""

    store: Descriptor
    number: int = 0  # ascends with each write
    segments: tuple[SegmentName, ...] = ()  # the log, in order, lost segments included
    step: Step | None = None  # the last step, until the next write; files of its sources may still exist
    last_full_ms: int = _NEVER  # when the last full round ended, milliseconds since the epoch; -1: never

    def with_step(self, step: Step) -> SegmentList:
        """Return the list after a step."""
        kept = set(self.segments).difference(step.sources)
        return attrs.evolve(self, segments=tuple(sorted(kept | {each.name for each in step.outputs})), step=step)

    def without_step(self) -> SegmentList:
        """Return the list before its step."""
        if self.step is None:
            return self
        kept = set(self.segments).difference(each.name for each in self.step.outputs)
        return attrs.evolve(self, segments=tuple(sorted(kept.union(self.step.sources))), step=None)


def slot_bytes(log_segments: int) -> int:
    """Return the size of a slot for a log of at most `log_segments` segments."""
    names = (log_segments + _MORE_SEGMENTS + MAX_SOURCES) * _NAME.size
    return -(-(_FRAME.size + names + MAX_OUTPUTS * _OUTPUT.size) // _PAGE) * _PAGE


def encode_list(found: SegmentList) -> bytes:
    """Return the record of a list."""
    step = Step((), ()) if found.step is None else found.step
    numbers = [*chain.from_iterable((*found.segments, *step.sources)),
               *chain.from_iterable((*each.name, each.end, each.records) for each in step.outputs)]
    body = struct.pack(f"<{len(numbers)}Q", *numbers)
    store = found.store
    return _FRAME.encode(store.log_segments, store.segment_bytes, store.created_ms, store.incarnation, found.number,
                         found.last_full_ms, len(found.segments), len(step.sources), len(step.outputs), body=body)


def decode_list(data: bytes, path: str) -> SegmentList:
    """Return the list at the beginning of a slot."""
    if len(data) < _FRAME.size:
        raise CorruptData(path=path, offset=len(data), expected="a list of segments", found=f"{len(data)} bytes")
    count, sources, outputs = _COUNTS.unpack_from(data)
    length = _FRAME.size + (count + sources) * _NAME.size + outputs * _OUTPUT.size
    most, capacity, created_ms, incarnation, number, last_full_ms, *_, body = _FRAME.decode(data[:length], path)
    split, end = count * _NAME.size, (count + sources) * _NAME.size
    names, gone = (tuple(SegmentName(*each) for each in _NAME.iter_unpack(part))
                   for part in (body[:split], body[split:end]))
    made = tuple(Output(SegmentName(position, generation), size, records)
                 for position, generation, size, records in _OUTPUT.iter_unpack(body[end:]))
    if any(max(name) > MAX_NUMBER for name in (*names, *gone)) or list(names) != sorted(set(names)) or not most or (
            not MIN_SEGMENT_BYTES <= capacity <= MAX_NUMBER):
        raise CorruptData(path=path, offset=12, expected="the capacities of a store and ascending names of segments",
                          found="other numbers")
    return SegmentList(store=Descriptor(incarnation, capacity, most, created_ms), number=number, segments=names,
                       step=Step(gone, made) if gone else None, last_full_ms=last_full_ms)


def is_blob_store(folder: StrPath) -> bool:
    """Whether a folder holds a blob store; reads nothing."""
    return os.path.isfile(os.path.join(folder, FILE_NAME))


def read_list(folder: StrPath) -> tuple[SegmentList | None, str]:
    """Return the list of a folder: the valid one of the higher number; and the damage of the file, `""` for none.

    A slot that is neither valid nor empty is damage, or a crash has cut off its write.
    """
    path = os.path.join(folder, FILE_NAME)
    data = read_if_there(path)
    if data is None:
        return None, "no such file"
    half = len(data) // 2
    found: list[SegmentList] = []
    damage = ""
    for slot in (data[:half], data[half:]):
        try:
            found.append(decode_list(slot, path))
        except CorruptData:
            damage = "other bytes" if any(slot) or not slot else damage
    return max(found, key=lambda each: each.number, default=None), damage or ("" if found else "zeros")


class SegmentListFile:
    """Writes the list of an open store, which is `known`; one writer."""

    def __init__(self, files: Files, folder: str, known: SegmentList) -> None:
        self._files = files
        self._path = os.path.join(folder, FILE_NAME)
        self._slot_bytes = slot_bytes(known.store.log_segments)
        self._most_names = known.store.log_segments + _MORE_SEGMENTS
        self._out: OutFile | None = None
        self.known: SegmentList = known

    def make_ready(self) -> None:
        """Create the file in its full size unless it exists, so that `write` needs no room."""
        if self._out is not None:
            return
        try:
            is_whole = os.path.getsize(self._path) == 2 * self._slot_bytes
        except OSError:
            is_whole = False
        if not is_whole:
            slots = [bytes(self._slot_bytes), bytes(self._slot_bytes)]
            slots[self.known.number % 2] = encode_list(self.known).ljust(self._slot_bytes, b"\0")
            write_durably(self._files, self._path, slots)
        self._out = self._files.open(self._path)

    def write(self, new: SegmentList) -> None:
        """Write a list, durably; it counts from then on. One sync."""
        if len(new.segments) > self._most_names:
            raise InvalidInput(f"{self._path} has room for {self._most_names} segments, lost segments included; "
                               f"restore the lost segments, or copy the store with copy_store()")
        self.make_ready()
        assert self._out is not None
        new = attrs.evolve(new, number=self.known.number + 1)
        self._out.write_at(new.number % 2 * self._slot_bytes, [encode_list(new)])
        self._out.sync()
        self.known = new

    def close(self) -> None:
        """Close the file; closing again does nothing."""
        if self._out is not None:
            with contextlib.suppress(OSError):
                self._out.close()


@attrs.frozen(kw_only=True)
class Layout:
    """The segments that count."""

    segments: tuple[SegmentName, ...]  # the log, in order, without lost segments
    lost: tuple[SegmentName, ...] = ()  # segments of the log that are missing
    leftovers: tuple[SegmentName, ...] = ()  # segments that may be removed
    # one error for each segment that is lost or was restored, and one if the list is older than the folder
    damage: tuple[CorruptData, ...] = ()
    list: SegmentList  # the list of these segments


def lay_out(folder: str, known: SegmentList, present: Collection[SegmentName],
            bad: Mapping[SegmentName, CorruptData] | None = None) -> Layout:
    """Decide which of the present segments are the log, by the list.

    A segment that a crash cut off in its header is not present; `bad` has the damaged outputs of the last step.
    """
    damage = list((bad or {}).values())
    if known.step is not None:
        gone = [each.name for each in known.step.outputs if each.name not in present]
        if (gone or bad) and set(known.step.sources).issubset(present):
            known = known.without_step()
            damage += [_no_file(folder, name, "a new segment, whose sources are there and count") for name in gone]
        elif gone or bad:
            known = attrs.evolve(known, step=None)
    listed = set(known.segments)
    newest = max((name.position for name in listed), default=-1)
    begun = {name for name in present if name.position > newest}
    there = listed.intersection(present)
    missing = sorted(listed.difference(present))
    strays = set(present) - listed - begun
    adopted = _adopted(strays, missing)
    if adopted:
        damage.append(CorruptData(path=os.path.join(folder, FILE_NAME), offset=0,
                                  expected=f"a list with segment {min(adopted)}",
                                  found=f"an older or damaged one, with {missing[0]}"))
        missing = []
    damage += [_no_file(folder, name, "a segment of the log") for name in missing]
    held = {name.position: name.generation for name in there}
    removed = () if known.step is None else known.step.sources
    leftovers = {name for name in strays - adopted if name in removed
                 or name.generation > held.get(name.position, name.generation)}
    damage += [CorruptData(path=os.path.join(folder, name.log_file), offset=0, expected="segments of the list alone",
                           found="one that a compaction has removed, put back") for name in
               sorted(strays - adopted - leftovers)]
    counted = tuple(sorted(there | begun | adopted))
    return Layout(segments=counted, lost=tuple(missing), damage=tuple(damage), leftovers=tuple(sorted(leftovers)),
                  list=attrs.evolve(known, segments=tuple(sorted({*counted, *missing}))))


def _adopted(strays: Iterable[SegmentName], missing: Iterable[SegmentName]) -> set[SegmentName]:
    """Return the segments that replace missing ones: at each position the highest generation."""
    gone = {name.position: name.generation for name in missing}
    return set({name.position: name for name in sorted(strays)
                if name.generation > gone.get(name.position, name.generation)}.values())


def _no_file(folder: str, name: SegmentName, what: str) -> CorruptData:
    return CorruptData(path=os.path.join(folder, name.log_file), offset=0, expected=what, found="no such file")
