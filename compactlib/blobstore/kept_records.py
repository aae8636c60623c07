# SPDX-License-Identifier: Apache-2.0
"""Which records a compaction of their segment alone would keep, with NumPy: a few passes over the columns of the index.

What most blobs are is judged at once: put and never touched again, or put and deleted. The histories of the others are
judged one by one, as the statistics do.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate, groupby
from operator import attrgetter, eq

import numpy as np
from numpy.typing import NDArray

from compactlib.blobstore.contents import LogSnapshot
from compactlib.blobstore.index_segment import IndexSegment
from compactlib.blobstore.lifetimes import lifetimes
from compactlib.blobstore.names import SegmentName
from compactlib.blobstore.validity import FOREVER, PurgeRules
from compactlib.blobstore.values import IndexEntry, RecordFlag, RecordKind, milliseconds

_BY_ID = attrgetter("id")
_BY_AGE = attrgetter("sequence", "segment")


def kept_records(snapshot: LogSnapshot, reference_time: float, now: float) -> dict[SegmentName, bytearray]:
    """For each segment with records one byte for each of them, in order: 1 if a compaction of the segment alone would
    keep it. O(n log n), some 100 bytes of memory an entry meanwhile.

    Args:
        snapshot: of a store.
        reference_time: deletes made strictly before it are in effect; seconds since the epoch.
        now: blobs that expire strictly before it have expired; seconds since the epoch.
    """
    parts = snapshot.index_parts()
    if not parts:
        return {}
    found: dict[SegmentName, bytearray] = {}
    start = 0
    kept = _Judge(parts, milliseconds(reference_time), milliseconds(now)).kept()
    for part in parts:
        found.setdefault(part.segment, bytearray()).extend(kept[start:start + len(part)].tobytes())
        start += len(part)
    return found


class _Judge:
    """All records behind one another, at places that count from 0."""

    def __init__(self, parts: Sequence[IndexSegment], reference_ms: int, now_ms: int) -> None:
        self._parts = parts
        self._times = reference_ms, now_ms
        self._starts = list(accumulate(map(len, parts), initial=0))
        self._kept: NDArray[np.bool_] = np.zeros(self._starts[-1], np.bool_)

    def kept(self) -> NDArray[np.bool_]:
        """Whether each is kept."""
        hashes = np.empty(len(self._kept), np.uint64)
        for start, part in zip(self._starts, self._parts, strict=False):
            hashes[start + np.asarray(part.rows)] = part.hashes
        order = np.lexsort((self._column("sequences"), hashes))
        hashes = hashes[order]
        first = np.flatnonzero(np.concatenate(([True], hashes[1:] != hashes[:-1])))
        counts = np.diff(first, append=len(order))
        second = np.minimum(first + 1, len(order) - 1)
        left = np.flatnonzero(~self._judged(order[first], counts, order[second]))
        for begin, count in zip(first[left].tolist(), counts[left].tolist(), strict=True):
            self._judge_each(order[begin:begin + count].tolist())
        return self._kept

    def _judged(self, first: NDArray[np.int64], counts: NDArray[np.int64],
                second: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Judge the blobs that are plain, of which these are the two oldest records; which ones they are."""
        reference_ms, now_ms = self._times
        kinds, expiries = self._column("kinds"), self._column("expiries")
        permanent = (expiries < 0) | (self._column("flags") & RecordFlag.TTL_UPDATED != 0)
        not_expired = np.where(permanent, FOREVER, expiries) >= now_ms
        is_put = kinds[first] == RecordKind.PUT
        alone, pair = is_put & (counts == 1), is_put & (counts == 2) & (kinds[second] == RecordKind.DELETE)
        # Two ids may have one hash.
        pair[pair] = list(map(eq, self._ids(first[pair]), self._ids(second[pair])))
        self._kept[first[alone]] = not_expired[first[alone]]
        puts, deletes = first[pair], second[pair]
        self._kept[puts] = not_expired[deletes] & (self._column("op_times")[deletes] >= reference_ms)
        self._kept[deletes] = True
        plain: NDArray[np.bool_] = alone | pair
        return plain

    def _judge_each(self, places: Sequence[int]) -> None:
        """Judge records one by one, which have one hash."""
        entries = list(map(self._entry, places))
        place_of = {(entry.segment, entry.offset): place for entry, place in zip(entries, places, strict=True)}
        for _, history in groupby(sorted(entries, key=_BY_ID), _BY_ID):
            for life in lifetimes(sorted(history, key=_BY_AGE), PurgeRules()):
                self._kept[place_of[life.segment, life.offset]] = life.is_kept(*self._times)

    def _column(self, name: str) -> NDArray[np.int64]:
        return np.concatenate([np.asarray(getattr(part.columns, name)) for part in self._parts])

    def _entry(self, place: int) -> IndexEntry:
        part = bisect_right(self._starts, place) - 1
        return self._parts[part].columns.entry(place - self._starts[part])

    def _ids(self, places: NDArray[np.int64]) -> list[bytes]:
        parts = np.searchsorted(self._starts, places, "right") - 1
        ids, rows = [part.columns.ids for part in self._parts], places - np.asarray(self._starts)[parts]
        return [ids[part][row] for part, row in zip(parts.tolist(), rows.tolist(), strict=True)]
