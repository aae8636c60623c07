# SPDX-License-Identifier: Apache-2.0
"""Shared by the tests of `RaftLog`: small logs, rows of entries, readable entries."""

from __future__ import annotations

from pathlib import Path

from compactlib.indexset import IndexSet
from compactlib.raftlog import (
    LogOptions,
    RaftLog,
    SegmentLimits,
    StoreOptions,
    open_log,
)
from compactlib.raftlog.names import segment_name
from compactlib.raftlog.segment.reader import SegmentReader

SMALL = StoreOptions(log=LogOptions(limits=SegmentLimits(max_entries=8), keep_links_seconds=0.0), background=False)


def rows(first: int, last: int, term: int = 1) -> list[tuple[int, int, bytes]]:
    return [(index, term, b"%d" % index) for index in range(first, last + 1)]


def overwrite(log: RaftLog, entries: list[tuple[int, int, bytes]]) -> None:
    """Truncate the log from the first of the entries, and append them, without a sync."""
    log.reset(entries[0][0] - 1)
    log.append(entries)


def indexes(log: RaftLog) -> list[int]:
    return [entry.index for entry in log.entries()]


def held(log: RaftLog) -> IndexSet:
    """The indexes that its segments hold, dead or not."""
    found = IndexSet()
    for ref in log.refs:
        with SegmentReader(Path(log.folder) / segment_name(ref.number)) as reader:
            found |= reader.index.index_set().between(ref.first, ref.last)
    return found


def reopened(log: RaftLog) -> RaftLog:
    folder = Path(log.folder).parents[1]
    log.close()
    return open_log(folder, SMALL)
