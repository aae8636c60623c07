# SPDX-License-Identifier: Apache-2.0
"""The inner loop of a rewrite with NumPy: columns as arrays, and payloads of one size picked from a span at once."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from itertools import pairwise
from typing import Any

import attrs
import numpy as np
from numpy.typing import NDArray

from compactlib.errors import StorageError
from compactlib.indexset.index_set import IndexSet
from compactlib.raftlog.compaction.copier import Copier, Part, places_of
from compactlib.raftlog.model.values import SegmentRef
from compactlib.raftlog.segment.load import sealed_records
from compactlib.raftlog.segment.spans import MAX_GAP_BYTES, MAX_SPAN_BYTES

_RECORD = np.dtype([("index", "<u8"), ("term", "<u8"), ("length", "<u4"), ("head", "<u4"), ("offset", "<u8"),
                    ("crc", "<u4"), ("zero", "<u4")])


@attrs.define(eq=False, kw_only=True)
class _ArrayPart(Part):
    """A part whose columns are arrays.

    Attributes:
        records: the entries' index records, as they lie in the source.
        rows: which rows of `size` bytes the payloads are, from the first one on; `None` if they lie in no such, and
            then where they lie is told by lists.
    """

    records: NDArray[Any]
    rows: NDArray[np.int64] | None


class ArrayCopier(Copier):
    """As `Copier`, byte for byte."""

    def __init__(self) -> None:
        super().__init__()
        self._read = memoryview(bytearray(MAX_SPAN_BYTES))
        self._span: NDArray[np.uint8] = np.frombuffer(self._read, np.uint8)

    def part(self, stack: ExitStack, path: str, live: IndexSet, ref: SegmentRef) -> Part:
        """See `Copier.part`. Segments that are sealed and native, as all but the newest are, stay undecoded."""
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            stack.callback(os.close, descriptor)
            region = sealed_records(descriptor, path)
        except OSError as error:
            raise StorageError.from_os(error, "open", path) from error
        records = None if region is None else _live_records(np.frombuffer(region, _RECORD), live, ref)
        if records is None:
            return super().part(stack, path, live, ref)
        return _array_part(path, descriptor, records)

    def encoded_index(self, parts: Sequence[Part], data_start: int) -> bytes | memoryview:
        """See `Copier.encoded_index`."""
        plain = super().encoded_index
        records = np.concatenate([part.records if isinstance(part, _ArrayPart)
                                  else np.frombuffer(plain([part], 0), _RECORD) for part in parts if len(part)])
        ends = np.cumsum(records["length"], dtype=np.uint64)
        records["offset"] = ends - records["length"] + np.uint64(data_start)
        return records.view(np.uint8).data

    def _spans(self, part: Part, first: int, stop: int) -> Iterator[tuple[int, int]]:
        if not isinstance(part, _ArrayPart) or part.rows is None:
            yield from super()._spans(part, first, stop)
            return
        offsets, ends = np.asarray(part.offsets), np.asarray(part.ends)
        cuts = first + 1 + np.flatnonzero(offsets[first + 1:stop] - ends[first:stop - 1] > MAX_GAP_BYTES)
        for start, end in pairwise([first, *cuts.tolist(), stop]):
            while start < end:
                beyond = int(ends[start:end].searchsorted(offsets[start] + MAX_SPAN_BYTES, "right"))
                yield start, start + max(beyond, 1)
                start += max(beyond, 1)

    def _scatter(self, part: Part, first: int, stop: int, payloads: list[memoryview], target: memoryview) -> int:
        if not isinstance(part, _ArrayPart) or part.rows is None:
            return super()._scatter(part, first, stop, payloads, target)
        size, base = part.size, int(part.offsets[first])
        span = int(part.ends[stop - 1]) - base
        got = os.preadv(part.descriptor, [self._read[:span]], base)
        rows = part.rows[first:stop] - part.rows[first]
        np.take(self._span[:span].reshape(-1, size), rows, axis=0, mode="clip",
                out=np.frombuffer(target, np.uint8).reshape(-1, size))
        return got


def _array_part(path: str, descriptor: int, records: NDArray[Any]) -> _ArrayPart:
    offsets, lengths = records["offset"].astype(np.int64), records["length"].astype(np.int64)
    size = int(lengths[0]) if (lengths == lengths[0]).all() else 0
    rows = (offsets - offsets[0]) // (size or 1)
    in_rows = size > 0 and bool((rows * size == offsets - offsets[0]).all())
    columns: dict[str, Any] = {"indexes": records["index"], "terms": records["term"], "lengths": lengths,
                               "offsets": offsets if in_rows else offsets.tolist(),
                               "ends": offsets + lengths if in_rows else (offsets + lengths).tolist(),
                               "places": places_of(range(len(records)) if size else lengths.tolist(), size)}
    return _ArrayPart(path=path, descriptor=descriptor, **columns, heads=records["head"].tolist(),
                      crcs=records["crc"].tolist(), records=records, rows=rows if in_rows else None)


def _live_records(records: NDArray[Any], live: IndexSet, ref: SegmentRef) -> NDArray[Any] | None:
    """The records of what is live within a segment's range; `None` if there are none, or some are missing."""
    here = live if live and ref.first <= live.first and live.last <= ref.last else live.between(ref.first, ref.last)
    if not here or not len(records):
        return None
    firsts, lasts = (np.frombuffer(column, np.uint64) for column in here.columns)
    indexes, first = records["index"], int(records["index"][0])
    if first <= here.first and here.last < first + len(records) == int(indexes[-1]) + 1:
        starts, stops = ((column - np.uint64(first)).astype(np.intp) for column in (firsts, lasts))
        stops += 1
    else:
        starts, stops = indexes.searchsorted(firsts), indexes.searchsorted(lasts, "right")
    bounds = np.bincount(starts, minlength=len(records) + 1) - np.bincount(stops, minlength=len(records) + 1)
    found = np.flatnonzero(np.cumsum(bounds) > 0)
    # As rows of words, which are picked five times as fast as records.
    words = records.view(np.uint64).reshape(len(records), -1).take(found, axis=0)
    return words.reshape(-1).view(_RECORD) if len(found) == len(here) else None
