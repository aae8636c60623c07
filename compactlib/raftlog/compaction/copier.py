# SPDX-License-Identifier: Apache-2.0
"""The inner loop of a rewrite: live payloads, joined as the new segment holds them, each checked against its CRC.

The system reads them straight to where they are written from, and what lies between two of them over a few bytes that
nobody looks at. `ArrayCopier` gives the same bytes faster, where NumPy is installed.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate, chain, compress, islice, repeat
from operator import add, sub

import attrs

from compactlib.errors import StorageError
from compactlib.files.checksum import crc32
from compactlib.indexset.index_set import IndexSet
from compactlib.raftlog.model.values import SegmentRef
from compactlib.raftlog.segment import format as native
from compactlib.raftlog.segment.index import picked
from compactlib.raftlog.segment.liveness import live_positions
from compactlib.raftlog.segment.reader import PickedPayloads, SegmentReader, read_payloads
from compactlib.raftlog.segment.spans import MAX_GAP_BYTES, MAX_SPAN_BYTES, read_spans

_CALL_PAYLOADS = 512
"""Read with one call, and the gaps between them: POSIX systems take 1,024 buffers."""


@attrs.define(eq=False)
class Part:
    """What one source contributes.

    Attributes:
        reader: the source.
        wanted: the payloads to copy, ascending.
        heads: the CRC of each entry's index, term and length.
        crcs: each entry's CRC.
    """

    reader: SegmentReader
    wanted: PickedPayloads
    heads: Sequence[int]
    crcs: Sequence[int]


class Copier:
    """Buffers that are used again for each piece; for one thread."""

    def __init__(self) -> None:
        self._out = memoryview(bytearray(MAX_SPAN_BYTES))
        self._gaps = _Gaps()
        self._size = 0
        self._views: list[memoryview] = []

    def part(self, reader: SegmentReader, live: IndexSet, ref: SegmentRef) -> Part:
        """What is to be copied of one source.

        Raises:
            LiveIndexMissing: a live index within the range is not in the segment.
        """
        wanted = PickedPayloads.of(reader.index, live_positions(reader.index, live, ref))
        return Part(reader, wanted, wanted.heads, wanted.crcs)

    def pieces(self, part: Part) -> Iterator[tuple[memoryview, int]]:
        """The part's payloads, joined to pieces of up to 1 MiB (one larger payload is a piece), and the bytes read
        for each. A piece is valid until the next one is asked for.

        Raises:
            CorruptData: a payload is damaged.
            StorageError: the source cannot be read.
        """
        wanted = part.wanted
        if part.reader.format != "native":
            part.heads, part.crcs = [], []
        ends = list(map(add, wanted.offsets, wanted.lengths))
        places = list(accumulate(wanted.lengths, initial=0))
        first = 0
        while first < len(ends):
            # As many as the buffer holds, at least one.
            stop = max(bisect_right(places, places[first] + MAX_SPAN_BYTES, first, len(places)) - 1, first + 1)
            here = PickedPayloads(wanted.positions[first:stop], wanted.offsets[first:stop], wanted.lengths[first:stop],
                                  wanted.heads[first:stop], wanted.crcs[first:stop], wanted.zero_means_unchecked)
            payloads = self._room(here.lengths, places[first:stop + 1])
            try:
                got, is_whole = self._fill(part.reader.fileno(), here, ends[first:stop], payloads)
            except OSError as error:
                raise StorageError.from_os(error, "read", part.reader.path) from error
            if not is_whole or list(map(crc32, payloads, here.heads)) != list(here.crcs):
                _look_again(part.reader, here, payloads)
            if part.reader.format != "native":
                _checksum_anew(part, here, payloads)
            yield self._out[:places[stop] - places[first]], got
            first = stop

    def encoded_index(self, parts: Sequence[Part], data_start: int) -> bytes:
        """The index records of all parts' entries, one after the other from `data_start`."""
        def joined(column: str) -> list[int]:
            return list(chain.from_iterable(picked(getattr(part.reader.index.columns, column), part.wanted.positions)
                                            for part in parts))

        lengths = joined("lengths")
        return native.encode_records(
            joined("indexes"), joined("terms"), lengths, list(chain.from_iterable(part.heads for part in parts)),
            list(accumulate(lengths[:-1], initial=data_start)), list(chain.from_iterable(part.crcs for part in parts)))

    def _room(self, lengths: Sequence[int], places: Sequence[int]) -> list[memoryview]:
        """A view of the buffer for each payload."""
        size, total = lengths[0], places[-1] - places[0]
        if total > len(self._out):
            self._out, self._size = memoryview(bytearray(total)), 0
        if not size or total != size * len(lengths) or lengths.count(size) != len(lengths):
            self._size, self._views = 0, []
            cuts = list(map(sub, places, repeat(places[0])))
            return list(map(self._out.__getitem__, map(slice, cuts, islice(cuts, 1, None))))
        if size != self._size or len(lengths) > len(self._views):
            # No more than asked for: of payloads of one byte, the buffer holds a million.
            self._size, self._views = size, [self._out[start:start + size] for start in range(0, total, size)]
        return self._views[:len(lengths)]

    def _fill(self, descriptor: int, wanted: PickedPayloads, ends: Sequence[int],
              payloads: list[memoryview]) -> tuple[int, bool]:
        """Read payloads to their views; how many bytes were read, and whether the file held them all."""
        read, is_whole, place = 0, True, 0
        for first, stop in read_spans(wanted.offsets, ends):
            span, live = ends[stop - 1] - wanted.offsets[first], sum(wanted.lengths[first:stop])
            if span == live:
                got = os.preadv(descriptor, [self._out[place:place + live]], wanted.offsets[first])
            else:
                got = self._scatter(descriptor, wanted, ends, payloads, first, stop)
            is_whole = is_whole and got == span
            place += live
            read += got
        return read, is_whole

    def _scatter(self, descriptor: int, wanted: PickedPayloads, ends: Sequence[int], payloads: list[memoryview],
                 first: int, stop: int) -> int:
        """Read one span of payloads with gaps between them. Returns how many bytes were read."""
        gaps = list(map(sub, wanted.offsets[first + 1:stop], ends[first:stop]))
        gaps.append(0)
        read = 0
        for start in range(first, stop, _CALL_PAYLOADS):
            end = min(start + _CALL_PAYLOADS, stop)
            here = gaps[start - first:end - first]
            if end < stop:
                # What lies behind the last one is read over by the next call's offset.
                read += here[-1]
                here[-1] = 0
            buffers = chain.from_iterable(zip(payloads[start:end], map(self._gaps.__getitem__, here), strict=True))
            read += os.preadv(descriptor, list(compress(buffers, chain.from_iterable(zip(repeat(1), here)))),
                              wanted.offsets[start])
        return read


class _Gaps(dict[int, memoryview]):
    """Where gaps are read to, by their size: all to the same bytes."""

    def __init__(self) -> None:
        super().__init__()
        self._bytes = memoryview(bytearray(MAX_GAP_BYTES))

    def __missing__(self, size: int) -> memoryview:
        made = self[size] = self._bytes[:size]
        return made


def _look_again(reader: SegmentReader, wanted: PickedPayloads, payloads: Sequence[memoryview]) -> None:
    """Read payloads one by one of which a checksum failed: Ra's may have none.

    Raises:
        CorruptData: one is damaged.
    """
    views = iter(payloads)
    for span in read_payloads(reader.fileno(), wanted):
        if span.damaged:
            raise reader.damage_at(span.damaged[0])
        for payload in span.payloads:
            next(views)[:] = payload


def _checksum_anew(part: Part, wanted: PickedPayloads, payloads: Sequence[memoryview]) -> None:
    """Other formats' checksums cover other bytes."""
    columns = part.reader.index.columns
    heads = [native.head_crc(columns.indexes[position], columns.terms[position], columns.lengths[position])
             for position in wanted.positions]
    part.heads = [*part.heads, *heads]
    part.crcs = [*part.crcs, *map(crc32, payloads, heads)]
