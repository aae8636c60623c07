# SPDX-License-Identifier: Apache-2.0
"""A log whose records are placed in the open segments of several classes, as the simulators of the literature have it.

No store of the library places users' records: `BlobStore(place=...)` places the survivors of a compaction alone, and
`compactlib.lab` models it. This log counts records, which have one size and no time to live. A collection begins, once
for the writes of each moment, while more than a part of the records is dead in closed segments.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable

import attrs

from compactlib.blobstore import BlobPolicy, BlobView
from compactlib.blobstore.policy import FIRST_SEGMENT, SegmentName, SegmentView
from placement.placer import Contents, Placement, Victim


@attrs.define(eq=False)
class _Segment:
    """A segment: the keys of its records and their numbers, with those of dead records."""

    row: int
    name: SegmentName
    placed: int
    begun: int
    keys: array[int] = attrs.field(factory=lambda: array("q"))
    numbers: array[int] = attrs.field(factory=lambda: array("q"))
    dead: int = 0
    newest: int = 0
    view: SegmentView | None = None  # `None`: the segment has changed since the last view


class PlacedLog:
    """The log.

    Args:
        segments: the capacity that views show.
        per_segment: records that a segment takes.
        keys: the number of keys.
        dead: the part of the records that starts a collection, above 0 and below 1.
        copies_renew: whether a copy counts as a write for `SegmentView.last_modified`.

    Attributes:
        copies: the number of copied records.
    """

    def __init__(self, segments: int, per_segment: int, keys: int, policy: BlobPolicy, placement: Placement, *,
                 dead: float, copies_renew: bool = False) -> None:
        self.copies = 0
        self._capacity, self._room, self._policy, self._dead = segments * per_segment, per_segment, policy, dead
        self._copies_renew = copies_renew
        self._contents = Contents()
        self._placer = placement.placer()
        self._placer.contents, self._placer.segment_records = self._contents, per_segment
        self._placer.know_keys(keys)
        # Of each key: the number of its record, the time of its write, and its segment.
        self._number, self._written = array("q", (-1,)) * keys, array("q", (0,)) * keys
        self._where: list[_Segment | None] = [None] * keys
        self._now = 0
        self._rows, self._free_rows = 0, list[int]()
        self._order: list[_Segment] = []
        self._open: list[_Segment | None] = [None] * placement.classes
        self._begin(0)

    def write(self, key: int, now_ms: int) -> None:
        """Write the record of a key; times do not descend."""
        placer = self._placer
        if now_ms != self._now:
            if self._contents.dead > self._dead * self._contents.records:
                self._collect()
            self._now = now_ms
        if (old := self._where[key]) is not None:
            old.dead += 1
            old.view = None
            if self._open[old.placed] is not old:
                self._contents.dead += 1
            placer.left(key, old.row, old.placed)
        placer.writes += 1
        placed = placer.write(key, now_ms)
        self._number[key], self._written[key] = placer.writes, now_ms
        self._contents.records += 1
        self._append(key, placed, now_ms)

    @property
    def writes(self) -> int:
        """The number of written records."""
        return self._placer.writes

    def _append(self, key: int, placed: int, at_ms: int) -> None:
        segment = self._open[placed] or self._begin(placed)
        segment.keys.append(key)
        segment.numbers.append(self._number[key])
        segment.newest = max(segment.newest, at_ms)
        self._where[key] = segment
        if len(segment.keys) == self._room:
            self._close(placed)

    def _begin(self, placed: int) -> _Segment:
        if not self._free_rows:
            self._free_rows.append(self._rows)
            self._rows += 1
        name = self._order[-1].name.next_position if self._order else FIRST_SEGMENT
        segment = self._open[placed] = _Segment(self._free_rows.pop(), name, placed, self._placer.writes)
        self._order.append(segment)
        return segment

    def _close(self, placed: int) -> None:
        if (segment := self._open[placed]) is not None:
            self._placer.closed(segment.row, placed)
            self._contents.dead += segment.dead
            segment.view = self._open[placed] = None

    def _collect(self) -> None:
        """Copy the valid records of the policy's victims into the open segments of their classes."""
        names = {segment.name: segment for segment in self._order}
        victims = [names[name] for name in self._policy.choose(self._view(), self._now / 1000).victims]
        for victim in victims:
            self._copy(victim)
        gone = set(victims)
        self._order = [segment for segment in self._order if segment not in gone]
        self._free_rows += [victim.row for victim in victims]
        for placed in self._placer.brief:
            self._close(placed)

    def _copy(self, victim: _Segment) -> None:
        records = len(victim.keys)
        self._placer.taken(Victim(victim.row, victim.placed, victim.begun, records, records - victim.dead))
        self._contents.records -= victim.dead
        self._contents.dead -= victim.dead
        for key, number in zip(victim.keys, victim.numbers, strict=True):
            if self._number[key] == number:
                self.copies += 1
                self._append(key, self._placer.copy(key, self._now),
                             self._now if self._copies_renew else self._written[key])

    def _view(self) -> BlobView:
        written_to = {self._order[-1], *filter(None, self._open)}
        for segment in self._order:
            if segment.view is None or segment in written_to:
                used = len(segment.keys)
                segment.view = SegmentView(
                    name=segment.name, used_bytes=used, valid_bytes=used - segment.dead,
                    eligible=segment not in written_to, last_modified=segment.newest / 1000)
        return BlobView(
            store="placed", capacity_bytes=self._capacity, segment_bytes=self._room, header_bytes=0, max_blob_bytes=0,
            used_bytes=len(self._order) * self._room, reference_time=self._now / 1000, retention_seconds=0.0,
            segments=tuple(segment.view for segment in self._order if segment.view is not None), last_full_at=0.0)


def write_amplification(writes: Iterable[tuple[int, int]], log: PlacedLog) -> float:
    """Write keys, each at its time; return the records written, copies included, for each write."""
    for key, now_ms in writes:
        log.write(key, now_ms)
    return 1 + log.copies / log.writes
