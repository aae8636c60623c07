# SPDX-License-Identifier: Apache-2.0
"""The inner loop of a rewrite with NumPy: index records, and payloads of one size, are picked at once."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from compactlib.indexset.index_set import IndexSet
from compactlib.raftlog.compaction.copier import Copier, Part
from compactlib.raftlog.segment import format as native
from compactlib.raftlog.segment.spans import MAX_GAP_BYTES, MAX_SPAN_BYTES

_RECORD_WORDS = native.RECORD_BYTES // 8


class ArrayCopier(Copier):
    """As `Copier`, byte for byte."""

    def __init__(self) -> None:
        super().__init__()
        self._read = memoryview(bytearray(MAX_SPAN_BYTES))
        self._span: NDArray[np.uint8] = np.frombuffer(self._read, np.uint8)
        self._rows: NDArray[np.int64] | None = None
        """Which rows of one size the payloads of the present part are, from the first one on; `None` if they lie in
        no such."""

    def pieces(self, part: Part) -> Iterator[tuple[memoryview, int]]:
        """See `Copier.pieces`."""
        self._rows = _rows_of(part)
        yield from super().pieces(part)

    def encoded_index(self, parts: Sequence[Part], data_start: int) -> memoryview:
        """See `Copier.encoded_index`."""
        records = np.frombuffer(bytearray().join(part.records for part in parts), "<u8").reshape(-1, _RECORD_WORDS)
        lengths = records.view("<u4")[:, 4]
        records[:, 3] = np.cumsum(lengths, dtype=np.uint64) - lengths + np.uint64(data_start)
        return records.view(np.uint8).reshape(-1).data

    def _picked(self, region: bytes, here: IndexSet) -> bytes | memoryview:
        records = np.frombuffer(region, "<u8").reshape(-1, _RECORD_WORDS)
        firsts, lasts = (np.frombuffer(column, np.uint64) for column in here.columns)
        indexes, first = records[:, 0], int(records[0, 0])
        if first <= here.first and here.last <= int(indexes[-1]) == first + len(records) - 1:
            starts, stops = ((column - np.uint64(first)).astype(np.intp) for column in (firsts, lasts))
            stops += 1
        else:
            starts, stops = indexes.searchsorted(firsts), indexes.searchsorted(lasts, "right")
        bounds = np.bincount(starts, minlength=len(records) + 1) - np.bincount(stops, minlength=len(records) + 1)
        # Rows of words are picked five times as fast as records.
        picked: NDArray[np.uint64] = records.take(np.flatnonzero(np.cumsum(bounds) > 0), axis=0)
        return picked.view(np.uint8).reshape(-1).data

    def _spans(self, part: Part, first: int, stop: int) -> Iterator[tuple[int, int]]:
        if self._rows is None:
            yield from super()._spans(part, first, stop)
            return
        size, rows = part.size, self._rows[first:stop]
        cuts = first + 1 + np.flatnonzero(np.diff(rows) > MAX_GAP_BYTES // size + 1)
        most = max(MAX_SPAN_BYTES // size, 1)
        for start, end in pairwise([first, *cuts.tolist(), stop]):
            while start < end:
                beyond = first + int(rows[:end - first].searchsorted(rows[start - first] + most))
                yield start, beyond
                start = beyond

    def _scatter(self, part: Part, first: int, stop: int, payloads: list[memoryview], target: memoryview) -> int:
        if self._rows is None:
            return super()._scatter(part, first, stop, payloads, target)
        size, base = part.size, part.columns.offsets[first]
        span = part.end_of(stop - 1) - base
        got = os.preadv(part.descriptor, [self._read[:span]], base)
        np.take(self._span[:span].reshape(-1, size), self._rows[first:stop] - self._rows[first], axis=0, mode="clip",
                out=np.frombuffer(target, np.uint8).reshape(-1, size))
        return got


def _rows_of(part: Part) -> NDArray[np.int64] | None:
    size = part.size
    if not size:
        return None
    offsets = np.frombuffer(part.columns.offsets, np.uint64).astype(np.int64)
    offsets -= offsets[0]
    rows = offsets // size
    return rows if (rows * size == offsets).all() else None
