# SPDX-License-Identifier: Apache-2.0
"""The inner loop of a rewrite: live payloads, joined as the new segment holds them, each checked against its CRC.

The system reads them straight to where they are written from, and what lies between two of them over a few bytes that
nobody looks at. `ArrayCopier` gives the same bytes faster, where NumPy is installed.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from itertools import accumulate, chain, islice, repeat
from operator import add, sub

import attrs

from compactlib.errors import StorageError
from compactlib.files.checksum import crc32
from compactlib.files.disk import read_exactly
from compactlib.indexset.index_set import IndexSet
from compactlib.raftlog.model.values import SegmentRef
from compactlib.raftlog.segment import format as native
from compactlib.raftlog.segment.index import picked
from compactlib.raftlog.segment.liveness import live_positions
from compactlib.raftlog.segment.reader import SegmentReader, damage
from compactlib.raftlog.segment.spans import MAX_GAP_BYTES, MAX_SPAN_BYTES, read_spans

_CALL_PAYLOADS = 512
"""Read with one call, and the gaps between them: POSIX systems take 1,024 buffers."""


@attrs.define(eq=False, kw_only=True)
class Part:
    """What one source contributes: the entries to copy, ascending, in columns.

    Attributes:
        path: the source.
        descriptor: the source, open.
        is_native: whether its checksums are those of the native format.
        zero_means_unchecked: see `SegmentIndex`.
        indexes: of the entries.
        terms: of the entries.
        lengths: of their payloads.
        offsets: where each payload begins in the file.
        ends: where each ends in the file.
        heads: the CRC of each entry's index, term and length.
        crcs: each entry's CRC.
        places: where each payload begins among them all, and where the last one ends.
    """

    path: str
    descriptor: int
    is_native: bool = True
    zero_means_unchecked: bool = False
    indexes: Sequence[int]
    terms: Sequence[int]
    lengths: Sequence[int]
    offsets: Sequence[int]
    ends: Sequence[int]
    heads: list[int]
    crcs: list[int]
    places: Sequence[int]

    def __len__(self) -> int:
        return len(self.heads)

    @property
    def size(self) -> int:
        """Of every payload; 0 if they differ."""
        return self.places.step if isinstance(self.places, range) else 0


def places_of(lengths: Sequence[int], size: int) -> Sequence[int]:
    """`Part.places` of payloads that all have `size`, unless that is 0."""
    return range(0, size * (len(lengths) + 1), size) if size else list(accumulate(lengths, initial=0))


class Copier:
    """Buffers that are used again for each piece; for one thread."""

    def __init__(self) -> None:
        self._out = memoryview(bytearray(MAX_SPAN_BYTES))
        self._gaps = _Gaps()
        self._size = 0
        self._views: list[memoryview] = []

    def part(self, stack: ExitStack, path: str, live: IndexSet, ref: SegmentRef) -> Part:
        """What is to be copied of the segment at `path`, which stays open until `stack` is closed.

        Raises:
            LiveIndexMissing: a live index within the range is not in the segment.
            CorruptData: the segment's header or index is damaged.
            StorageError: the segment cannot be opened.
        """
        reader = stack.enter_context(SegmentReader(path))
        columns, positions = reader.index.columns, live_positions(reader.index, live, ref)
        lengths, offsets = picked(columns.lengths, positions), picked(columns.offsets, positions)
        return Part(
            path=path, descriptor=reader.fileno(), is_native=reader.format == "native",
            zero_means_unchecked=reader.index.zero_means_unchecked, indexes=picked(columns.indexes, positions),
            terms=picked(columns.terms, positions), lengths=lengths, offsets=offsets,
            ends=list(map(add, offsets, lengths)), heads=list(picked(columns.heads, positions)),
            crcs=list(picked(columns.crcs, positions)),
            places=places_of(lengths, lengths[0] if len(set(lengths)) == 1 else 0))

    def pieces(self, part: Part) -> Iterator[tuple[memoryview, int]]:
        """The part's payloads, joined to pieces of up to 1 MiB (one larger payload is a piece), and the bytes read
        for each. A piece is valid until the next one is asked for.

        Raises:
            CorruptData: a payload is damaged.
            StorageError: the source cannot be read.
        """
        places, first = part.places, 0
        while first < len(part):
            # As many as the buffer holds, at least one.
            stop = max(bisect_right(places, places[first] + MAX_SPAN_BYTES, first, len(places)) - 1, first + 1)
            payloads = self._room(part.size, places[first:stop + 1])
            try:
                got, is_whole = self._fill(part, first, stop, payloads)
                if not is_whole or list(map(crc32, payloads, part.heads[first:stop])) != part.crcs[first:stop]:
                    _look_again(part, first, payloads)
            except OSError as error:
                raise StorageError.from_os(error, "read", part.path) from error
            if not part.is_native:
                _checksum_anew(part, first, payloads)
            yield self._out[:places[stop] - places[first]], got
            first = stop

    def encoded_index(self, parts: Sequence[Part], data_start: int) -> bytes | memoryview:
        """The index records of all parts' entries, one after the other from `data_start`."""
        def joined(column: str) -> list[int]:
            return list(chain.from_iterable(getattr(part, column) for part in parts))

        lengths = joined("lengths")
        return native.encode_records(joined("indexes"), joined("terms"), lengths, joined("heads"),
                                     list(accumulate(lengths[:-1], initial=data_start)), joined("crcs"))

    def _room(self, size: int, places: Sequence[int]) -> list[memoryview]:
        """A view of the buffer for each payload."""
        count, total = len(places) - 1, places[-1] - places[0]
        if total > len(self._out):
            self._out, self._size = memoryview(bytearray(total)), 0
        if not size:
            cuts = list(map(sub, places, repeat(places[0])))
            return list(map(self._out.__getitem__, map(slice, cuts, islice(cuts, 1, None))))
        if size != self._size or count > len(self._views):
            # No more than asked for: of payloads of one byte, the buffer holds a million.
            self._size, self._views = size, [self._out[start:start + size] for start in range(0, total, size)]
        return self._views[:count]

    def _fill(self, part: Part, first: int, stop: int, payloads: list[memoryview]) -> tuple[int, bool]:
        """Read payloads to their views; how many bytes were read, and whether the file held them all."""
        places = part.places
        read, is_whole = 0, True
        for start, end in self._spans(part, first, stop):
            span, live = int(part.ends[end - 1] - part.offsets[start]), places[end] - places[start]
            place = places[start] - places[first]
            target = self._out[place:place + live]
            if span == live:
                got = os.preadv(part.descriptor, [target], part.offsets[start])
            else:
                got = self._scatter(part, start, end, payloads[start - first:end - first], target)
            is_whole = is_whole and got == span
            read += got
        return read, is_whole

    def _spans(self, part: Part, first: int, stop: int) -> Iterator[tuple[int, int]]:
        """Which of a part's payloads to read with one call."""
        offsets, ends = part.offsets[first:stop], part.ends[first:stop]
        return ((first + start, first + end) for start, end in read_spans(offsets, ends))

    def _scatter(self, part: Part, first: int, stop: int, payloads: list[memoryview], target: memoryview) -> int:
        """Read one span of payloads with gaps between them to their views, which together are `target`.

        Returns how many bytes were read.
        """
        gaps = list(map(sub, part.offsets[first + 1:stop], part.ends[first:stop]))
        gaps.append(0)
        read_over = list(map(self._gaps.__getitem__, gaps))
        read = 0
        for start in range(0, stop - first, _CALL_PAYLOADS):
            end = min(start + _CALL_PAYLOADS, stop - first)
            # Payloads and gaps in turn, those of no bytes too: to leave them out takes longer than to read nothing.
            buffers = [target] * (2 * (end - start))
            buffers[::2], buffers[1::2] = payloads[start:end], read_over[start:end]
            # What lies behind the last one is read over by the next call's offset.
            buffers.pop()
            read += os.preadv(part.descriptor, buffers, part.offsets[first + start]) + gaps[end - 1]
        return read


class _Gaps(dict[int, memoryview]):
    """Where gaps are read to, by their size: all to the same bytes."""

    def __init__(self) -> None:
        super().__init__()
        self._bytes = memoryview(bytearray(MAX_GAP_BYTES))

    def __missing__(self, size: int) -> memoryview:
        made = self[size] = self._bytes[:size]
        return made


def _look_again(part: Part, first: int, payloads: Sequence[memoryview]) -> None:
    """Read payloads one by one of which a checksum failed: Ra's may have none.

    Raises:
        CorruptData: one is damaged.
    """
    for place, view in enumerate(payloads, first):
        offset, crc = int(part.offsets[place]), part.crcs[place]
        payload = read_exactly(part.descriptor, len(view), offset)
        found = crc32(payload, part.heads[place])
        unchecked = part.zero_means_unchecked and not crc
        if len(payload) < len(view) or (found != crc and not unchecked):
            raise damage(part.path, offset, int(part.indexes[place]), (found, len(payload)), (crc, len(view)))
        view[:] = payload


def _checksum_anew(part: Part, first: int, payloads: Sequence[memoryview]) -> None:
    """Other formats' checksums cover other bytes."""
    stop = first + len(payloads)
    heads = part.heads[first:stop] = list(map(native.head_crc, *(
        map(int, column[first:stop]) for column in (part.indexes, part.terms, part.lengths))))
    part.crcs[first:stop] = map(crc32, payloads, heads)
