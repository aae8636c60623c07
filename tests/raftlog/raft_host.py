"""What the tests of `RaftLog` share: small logs, rows of entries, what can be read."""

from __future__ import annotations

from pathlib import Path

from compactlib.raftlog import (
    LogOptions,
    RaftLog,
    SegmentLimits,
    StoreOptions,
    open_log,
)

SMALL = StoreOptions(log=LogOptions(limits=SegmentLimits(max_entries=8), keep_links_seconds=0.0), background=False)


def rows(first: int, last: int, term: int = 1) -> list[tuple[int, int, bytes]]:
    return [(index, term, b"%d" % index) for index in range(first, last + 1)]


def indexes(log: RaftLog) -> list[int]:
    return [entry.index for entry in log.entries()]


def reopened(log: RaftLog) -> RaftLog:
    folder = Path(log.segments.folder).parents[1]
    log.close()
    return open_log(folder, SMALL)
