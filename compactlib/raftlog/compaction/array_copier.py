# SPDX-License-Identifier: Apache-2.0
"""The inner loop of a rewrite with NumPy: columns as arrays, and payloads of one size picked from a span at once."""

from __future__ import annotations

import os
from array import array
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from compactlib.indexset.index_set import IndexSet
from compactlib.raftlog.compaction.copier import Copier, Part
from compactlib.raftlog.model.values import SegmentRef
from compactlib.raftlog.segment.liveness import live_positions
from compactlib.raftlog.segment.reader import PickedPayloads, SegmentReader
from compactlib.raftlog.segment.spans import MAX_SPAN_BYTES

_RECORD = np.dtype([("index", "<u8"), ("term", "<u8"), ("length", "<u4"), ("head", "<u4"), ("offset", "<u8"),
                    ("crc", "<u4"), ("zero", "<u4")])


class ArrayCopier(Copier):
    """As `Copier`, byte for byte."""

    def __init__(self) -> None:
        super().__init__()
        self._read = memoryview(bytearray(MAX_SPAN_BYTES))
        self._span: NDArray[np.uint8] = np.frombuffer(self._read, np.uint8)

    def part(self, reader: SegmentReader, live: IndexSet, ref: SegmentRef) -> Part:
        """See `Copier.part`."""
        index = reader.index
        positions = np.array(live_positions(index, live, ref), np.intp)
        offsets, lengths, heads, crcs = (_at(column, positions).tolist() for column in (
            index.columns.offsets, index.columns.lengths, index.columns.heads, index.columns.crcs))
        wanted = PickedPayloads(positions, offsets, lengths, heads, crcs,  # type: ignore[arg-type]  # as a sequence
                                index.zero_means_unchecked)
        return Part(reader, wanted, heads, crcs)

    def encoded_index(self, parts: Sequence[Part], data_start: int) -> bytes:
        """See `Copier.encoded_index`."""
        records = np.zeros(sum(len(part.wanted.positions) for part in parts), _RECORD)
        start = 0
        for part in parts:
            columns, positions = part.reader.index.columns, np.asarray(part.wanted.positions)
            here = records[start:start + len(positions)]
            here["index"], here["term"] = _at(columns.indexes, positions), _at(columns.terms, positions)
            here["length"], here["head"], here["crc"] = _at(columns.lengths, positions), part.heads, part.crcs
            start += len(positions)
        ends = np.cumsum(records["length"], dtype=np.uint64)
        records["offset"] = ends - records["length"] + np.uint64(data_start)
        return records.tobytes()

    def _scatter(self, descriptor: int, wanted: PickedPayloads, ends: Sequence[int], payloads: list[memoryview],
                 first: int, stop: int) -> int:
        size, base = len(payloads[first]), wanted.offsets[first]
        span = ends[stop - 1] - base
        starts = np.array(wanted.offsets[first:stop], np.int64) - base
        rows, rest = np.divmod(starts, size) if self._size else (starts, starts)
        if not self._size or span > MAX_SPAN_BYTES or rest.any():
            return super()._scatter(descriptor, wanted, ends, payloads, first, stop)
        got = os.preadv(descriptor, [self._read[:span]], base)
        target = np.frombuffer(self._out[first * size:stop * size], np.uint8).reshape(-1, size)
        np.take(self._span[:span].reshape(-1, size), rows, axis=0, out=target, mode="clip")
        return got


def _at(column: array[int], positions: NDArray[np.intp]) -> NDArray[Any]:
    values: NDArray[Any] = np.frombuffer(column, f"u{column.itemsize}")
    return values[positions]
