# SPDX-License-Identifier: Apache-2.0
"""Statistics of a Raft log's segments, from their numbers."""

from __future__ import annotations

from collections.abc import Sequence

from compactlib.raftlog import LogView, SegmentLimits
from compactlib.raftlog.values import SegmentRef, SegmentStats


def segments_of(*counts: tuple[int, int, int, int]) -> tuple[SegmentStats, ...]:
    """Segments 1, 2, 3, ... with the given `(entries, live entries, payload bytes, live payload bytes)`.

    Each covers as many indexes as it holds entries, from 1 on, without gaps.
    """
    segments: list[SegmentStats] = []
    first = 1
    for number, (entries, live_entries, data_bytes, live_bytes) in enumerate(counts, 1):
        ref = SegmentRef(number, first, first + entries - 1)
        segments.append(SegmentStats(ref=ref, entries=entries, data_bytes=data_bytes, live_entries=live_entries,
                                     live_bytes=live_bytes))
        first += entries
    return tuple(segments)


def view_of_candidates(segments: Sequence[SegmentStats], limits: SegmentLimits) -> LogView:
    """A log in which a policy may choose from `segments`, each with something alive: a newest one follows them."""
    number, last = (segments[-1].number, segments[-1].ref.last) if segments else (0, 0)
    newest = SegmentStats(ref=SegmentRef(number + 1, last + 1, last + 1), entries=1, data_bytes=1, live_entries=1,
                          live_bytes=1)
    return LogView(segments=(*segments, newest), snapshot_index=last, limits=limits)
