# SPDX-License-Identifier: Apache-2.0
"""A Hypothesis strategy of the index entries of a blob store's log."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise

from hypothesis import strategies as st

from compactlib.blobstore.names import SegmentName
from compactlib.blobstore.values import NO_EXPIRY, IndexEntry, RecordFlag, RecordKind


@st.composite
def record_logs(draw: st.DrawFn, *, max_records: int = 24, blobs: int = 4,
                forgetful: bool = True) -> tuple[tuple[IndexEntry, ...], ...]:
    """The index entries of a log, segment by segment, each ascending by offset: blobs that were put, deleted, made
    permanent and undeleted, each as its state allowed, at times in milliseconds from 0 to a few hundred.

    Args:
        max_records: the most records.
        blobs: among how many blobs they are spread.
        forgetful: leave some records out, as if an earlier compaction had removed them, and let segments lie in another
            order than that of time.
    """
    writer = _Writer()
    for _ in range(draw(st.integers(0, max_records))):
        writer.step(draw(st.integers(0, blobs - 1)), draw(st.sampled_from(_STEPS)),
                    wait_ms=draw(st.sampled_from([0, 1, 1, 10])),
                    life_ms=draw(st.sampled_from([NO_EXPIRY, NO_EXPIRY, 0, 5, 50])))
    entries = writer.entries
    if forgetful and entries:
        gone = draw(st.sets(st.integers(0, len(entries) - 1), max_size=3))
        entries = [entry for place, entry in enumerate(entries) if place not in gone]
    cuts = draw(st.sets(st.integers(0, len(entries)), max_size=3))
    pieces = [entries[start:end] for start, end in pairwise([0, *sorted(cuts), len(entries)])]
    if forgetful:
        pieces = draw(st.permutations(pieces))
    return tuple(_laid_out(SegmentName(place, 0), piece) for place, piece in enumerate(pieces))


_STEPS = (RecordKind.PUT, RecordKind.PUT, RecordKind.DELETE, RecordKind.TTL_UPDATE, RecordKind.UNDELETE)
_SIZES = {RecordKind.PUT: 53, RecordKind.DELETE: 29, RecordKind.TTL_UPDATE: 37, RecordKind.UNDELETE: 31}


class _Writer:
    """Writes records as a store would: what a blob's state does not allow is left out."""

    def __init__(self) -> None:
        self.entries: list[IndexEntry] = []
        self._newest: dict[int, IndexEntry] = {}
        self._now_ms = 0

    def step(self, blob: int, kind: RecordKind, wait_ms: int, life_ms: int) -> None:
        self._now_ms += wait_ms
        before = self._newest.get(blob)
        if before is None:
            kind = RecordKind.PUT
        elif kind == RecordKind.PUT or (kind == RecordKind.UNDELETE) != (before.kind == RecordKind.DELETE):
            return
        permanent = kind == RecordKind.TTL_UPDATE or (before is not None and before.flags)
        expires = self._now_ms + life_ms if life_ms >= 0 else NO_EXPIRY
        self._newest[blob] = entry = IndexEntry(
            id=b"blob %d" % blob, kind=kind, flags=RecordFlag.TTL_UPDATED if permanent else RecordFlag.NONE,
            life_version=(before.life_version if before else 0) + (kind == RecordKind.UNDELETE),
            sequence=len(self.entries) + 1, op_time_ms=self._now_ms,
            expires_ms=NO_EXPIRY if permanent else before.expires_ms if before else expires,
            account=1, container=blob % 2, segment=SegmentName(0, 0), offset=0, size=_SIZES[kind] + blob)
        self.entries.append(entry)


def _laid_out(name: SegmentName, entries: Sequence[IndexEntry]) -> tuple[IndexEntry, ...]:
    """The entries one behind the other in a segment."""
    offsets = accumulate((entry.size for entry in entries), initial=64)
    return tuple(entry._replace(segment=name, offset=offset) for entry, offset in zip(entries, offsets, strict=False))
