# SPDX-License-Identifier: Apache-2.0
"""Flushing a memtable to segments: all entries above the snapshot, only live ones below. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import attrs

from compactlib.indexset.index_set import IndexSet
from compactlib.raftlog.memtable.table import Slab, Table, visible_slabs
from compactlib.raftlog.model.snapshot_meta import SnapshotMeta
from compactlib.report import Printed

STALE_BYTES = 1024


@attrs.frozen
class NewestStats:
    """What a plan may know of the segment that is appended to.

    Attributes:
        last: its last index, -1 if it is empty.
        data_bytes: its payload bytes.
    """

    last: int = -1
    data_bytes: int = 0


@attrs.frozen
class FlushPlan(Printed):
    """What to write to a log's segments.

    Attributes:
        successor: whether to begin a new segment first, so that compaction can have the one that has gone stale.
        slabs: what to write, ascending.
        dead: entries of the tables that are left out.
    """

    successor: bool
    slabs: tuple[Slab, ...]
    dead: int

    @property
    def indexes(self) -> IndexSet:
        """What is written."""
        return IndexSet.from_runs((slab.first, slab.last) for slab in self.slabs)

    @property
    def entries(self) -> int:
        """How many entries are written."""
        return sum(len(slab.payloads) for slab in self.slabs)

    def to_dicts(self) -> list[dict[str, Any]]:
        """One row for each run that is written."""
        return [{"first": slab.first, "last": slab.last, "term": slab.term, "bytes": sum(map(len, slab.payloads))}
                for slab in self.slabs]

    def __repr__(self) -> str:
        return (f"FlushPlan({self.entries:,} entries in {len(self.slabs)} runs, {self.dead:,} dead left out"
                f"{', in a new segment' if self.successor else ''})")


def plan_flush(tables: Sequence[Table], row: SnapshotMeta, newest: NewestStats | None = None, *,
               below: int | None = None) -> FlushPlan:
    """What of `tables` (oldest first) to write to segments. O(runs of tables and live set).

    Args:
        tables: those that wait; newer ones shorten older ones.
        row: the log's row, read once.
        newest: the segment that is appended to; it has gone stale if it ends below everything that is live and holds
            more than 1024 bytes (then only its place keeps compaction from it).
        below: tables that do not wait yet answer from here on, so that nothing from here on is written.
    """
    visible = visible_slabs(tables, below)
    kept: list[Slab] = []
    for slab in visible:
        kept += _needed(slab, row)
    stale = newest is not None and -1 < newest.last < row.smallest_live_index and newest.data_bytes > STALE_BYTES
    dead = sum(len(slab.payloads) for slab in visible) - sum(len(slab.payloads) for slab in kept)
    return FlushPlan(bool(stale and kept), tuple(kept), dead)


def _needed(slab: Slab, row: SnapshotMeta) -> list[Slab]:
    if slab.first > row.index:
        return [slab]
    parts = [_part(slab, first, last) for first, last
             in row.live.between(slab.first, min(slab.last, row.index)).runs()]
    if slab.last > row.index:
        parts.append(_part(slab, row.index + 1, slab.last))
    return parts


def _part(slab: Slab, first: int, last: int) -> Slab:
    return Slab(first, slab.term, slab.payloads[first - slab.first:last + 1 - slab.first])
