# SPDX-License-Identifier: Apache-2.0
"""A frozen log made of lists of index entries, for tests of what only looks at an index."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from compactlib.blobstore import RecordKind
from compactlib.blobstore.compaction.sense.statistics import all_lifetimes
from compactlib.blobstore.compaction.swap import SegmentInfo, Snapshot
from compactlib.blobstore.index.index_segment import IndexSegment
from compactlib.blobstore.model.names import SegmentName
from compactlib.blobstore.model.values import NO_EXPIRY, IndexEntry, RecordFlag, milliseconds
from compactlib.blobstore.segment.reader import SEGMENT_HEADER_BYTES
from compactlib.runtime.breather import unhurried

KEY = b"sixteen bytes .."
SIZES = {RecordKind.PUT: 53, RecordKind.DELETE: 29, RecordKind.TTL_UPDATE: 37, RecordKind.UNDELETE: 29}
"""Sizes of the records in the tests' logs, in bytes."""


class LogOf:
    """A snapshot of a log that holds these entries, segment by segment, each ascending by offset.

    Args:
        segments: the entries of each segment; segment i is named i_0 unless its entries say otherwise.
        index_entries: how many entries one index segment holds.
    """

    def __init__(self, segments: Sequence[Sequence[IndexEntry]], *, index_entries: int = 3) -> None:
        self._segments = {SegmentName(place, 0) if not entries else entries[0].segment: tuple(entries)
                          for place, entries in enumerate(segments)}
        self._index_entries = index_entries
        self.journal_floor: SegmentName | None = None
        self.probes = 0

    @property
    def segments(self) -> tuple[SegmentInfo, ...]:
        return tuple(
            SegmentInfo(name=name, end=entries[-1].end if entries else SEGMENT_HEADER_BYTES, records=len(entries),
                        last_modified_ms=max((entry.op_time_ms for entry in entries), default=0),
                        first_sequence=min((entry.sequence for entry in entries), default=0),
                        last_sequence=max((entry.sequence for entry in entries), default=0))
            for name, entries in sorted(self._segments.items()))

    @property
    def last_sequence(self) -> int:
        return max((info.last_sequence for info in self.segments), default=0)

    def has(self, segment: SegmentName) -> bool:
        return segment in self._segments

    @property
    def used_bytes(self) -> int:
        return sum(info.end for info in self.segments)

    def eligible(self) -> tuple[SegmentName, ...]:
        return tuple(sorted(self._segments))[:-1]

    def entries_of(self, segment: SegmentName, *, start: int = 0) -> Iterator[IndexEntry]:
        return (entry for entry in self._segments.get(segment, ()) if entry.offset >= start)

    def history(self, blob_id: bytes) -> list[IndexEntry]:
        self.probes += 1
        return sorted((entry for entry in self.all() if entry.id == blob_id), key=lambda entry: entry.sequence)

    def histories_of(self, segment: SegmentName, *, start: int = 0, breathe: Callable[[], None] = unhurried,
                     ) -> Iterator[tuple[IndexEntry, list[IndexEntry]]]:
        return ((entry, self.history(entry.id)) for entry in self.entries_of(segment, start=start))

    def all(self) -> list[IndexEntry]:
        return [entry for entries in self._segments.values() for entry in entries]

    def sealed_parts(self, segment: SegmentName) -> tuple[IndexSegment, ...]:
        return tuple(part for part in self.index_parts() if part.segment == segment)

    def index_parts(self) -> tuple[IndexSegment, ...]:
        step = self._index_entries
        return tuple(IndexSegment.of_entries(name, piece, piece[0].offset, piece[-1].end, KEY)
                     for name, entries in self._segments.items()
                     for piece in (entries[start:start + step] for start in range(0, len(entries), step)))


class Writing:
    """Writes records into segments by short words: `log.put("a", at=5, expires=9)`."""

    def __init__(self) -> None:
        self.segments: list[list[IndexEntry]] = [[]]
        self._sequence = 0
        self._newest: dict[bytes, IndexEntry] = {}

    def roll(self) -> None:
        self.segments.append([])

    def put(self, blob: str, at: int = 0, *, expires: int = NO_EXPIRY, container: int = 0) -> None:
        self._write(blob, RecordKind.PUT, at, expires=expires, container=container)

    def delete(self, blob: str, at: int) -> None:
        self._write(blob, RecordKind.DELETE, at)

    def undelete(self, blob: str, at: int) -> None:
        self._write(blob, RecordKind.UNDELETE, at)

    def ttl_update(self, blob: str, at: int) -> None:
        self._write(blob, RecordKind.TTL_UPDATE, at)

    def log(self) -> LogOf:
        return LogOf(self.segments)

    def _write(self, blob: str, kind: RecordKind, at: int, *, expires: int = NO_EXPIRY, container: int = 0) -> None:
        before = self._newest.get(blob.encode())
        permanent = kind == RecordKind.TTL_UPDATE or (before is not None and before.flags)
        segment = self.segments[-1]
        self._sequence += 1
        entry = IndexEntry(
            id=blob.encode(), kind=kind, flags=RecordFlag.TTL_UPDATED if permanent else RecordFlag.NONE,
            life_version=(before.life_version if before else 0) + (kind == RecordKind.UNDELETE),
            sequence=self._sequence, op_time_ms=at,
            expires_ms=NO_EXPIRY if permanent else before.expires_ms if before else expires, account=0,
            container=before.container if before else container, segment=SegmentName(len(self.segments) - 1, 0),
            offset=segment[-1].end if segment else SEGMENT_HEADER_BYTES, size=SIZES[kind])
        segment.append(entry)
        self._newest[entry.id] = entry


def kept_offsets(snapshot: Snapshot, reference_time: float, now: float) -> dict[SegmentName, set[int]]:
    """Where the records begin that a compaction of their segment alone would keep: those that `log_statistics` counts.

    Args:
        snapshot: of a store.
        reference_time: deletes made strictly before it are in effect; seconds since the epoch.
        now: blobs that expire strictly before it have expired; seconds since the epoch.
    """
    reference_ms, now_ms = milliseconds(reference_time), milliseconds(now)
    kept: dict[SegmentName, set[int]] = {info.name: set() for info in snapshot.segments}
    for life in all_lifetimes(snapshot):
        if life.is_kept(reference_ms, now_ms):
            kept[life.segment].add(life.offset)
    return kept
