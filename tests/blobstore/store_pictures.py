# SPDX-License-Identifier: Apache-2.0
"""What a store holds, before compactions against after.

`compare` looks at two pictures of a store and says where they differ in a way that no compaction may cause: `gone`,
`kept`, `changed`, `extra`, `name`, `order`. Pictures hold no content, but its checksums.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import Any

import attrs

from compactlib.blobstore.compaction.run.store_compactions import OwnedStore
from compactlib.blobstore.compaction.swap import Snapshot
from compactlib.blobstore.model.names import SegmentName
from compactlib.blobstore.model.values import IndexEntry, milliseconds
from compactlib.blobstore.segment.reader import SegmentFile
from compactlib.blobstore.segment.records import TRAILER_BYTES
from compactlib.blobstore.validity.verdicts import PurgeRules, Rules, Verdict, judge
from compactlib.files.disk import read_exactly
from compactlib.report import Finding, VerifyReport


@attrs.frozen
class StorePicture:
    """What a store held at one moment: its index, and the checksum of each record.

    Attributes:
        segments: each segment's index entries with the CRC in the last bytes of their records, in log order.
    """

    segments: dict[SegmentName, tuple[tuple[IndexEntry, int], ...]]

    @classmethod
    def of(cls, store: OwnedStore) -> StorePicture:
        """Take the picture: four bytes are read a record. Whether they are right is for `verify` to say.

        Raises:
            StorageError: the disk refused.
        """
        snapshot = store.snapshot()
        return cls({info.name: tuple(_with_crc(store, snapshot, info.name)) for info in snapshot.segments})

    @property
    def last_sequence(self) -> int:
        """The newest record."""
        return max((entry.sequence for records in self.segments.values() for entry, _ in records), default=0)


def _with_crc(store: OwnedStore, snapshot: Snapshot, name: SegmentName) -> Iterator[tuple[IndexEntry, int]]:
    file = SegmentFile(os.path.join(store.folder, name.log_file))
    for entry in snapshot.entries_of(name):
        yield entry, int.from_bytes(read_exactly(file.fileno(), TRAILER_BYTES, entry.end - TRAILER_BYTES), "little")


def compare(before: StorePicture, after: StorePicture, reference_time: float, now: float, *,
            ended: float | None = None, rules: PurgeRules | None = None, victims: Sequence[SegmentName] = ()
            ) -> VerifyReport:
    """What compactions between two pictures should not have done: nothing, if all is well.

    Segments that are in both pictures are the same; of the others, what had to go is gone, the rest is there with the
    same bytes and in the same order, and nothing else. Records that were written in between are left out. If several
    compactions came between, `reference_time` is that of the last.

    Args:
        before: from before the compaction.
        after: from after it.
        reference_time: deletes made strictly before it were in effect.
        now: when the compaction began to copy.
        ended: when it had copied everything: what expired in between may be there or not; `now` if not given.
        rules: what else the compaction was allowed to remove.
        victims: what it took, in the order of copying; those that are not named come behind, in log order.
    """
    comparing = _Comparing(before, after, victims)
    purge = PurgeRules() if rules is None else rules
    first, last = (Rules(reference_ms=milliseconds(reference_time), now_ms=milliseconds(time), purge=purge)
                   for time in (now, now if ended is None else ended))
    comparing.names()
    comparing.untouched()
    comparing.compacted(first, last)
    comparing.order()
    return VerifyReport(tuple(comparing.findings), sum(map(len, before.segments.values())), 0)


class _Comparing:
    def __init__(self, before: StorePicture, after: StorePicture, victims: Sequence[SegmentName]) -> None:
        self.before = before
        self.after = after
        self.findings: list[Finding] = []
        gone = dict.fromkeys([*victims, *sorted(before.segments)])
        self.gone = {name: turn for turn, name in enumerate(
            name for name in gone if name in before.segments and name not in after.segments)}
        self.new = [name for name in after.segments if name not in before.segments]
        newest = before.last_sequence
        # Where records of the first picture are now, without those of segments that were left alone.
        self.moved = {entry.sequence: (entry, crc) for name in self.new for entry, crc in after.segments[name]
                      if entry.sequence <= newest}

    def _say(self, kind: str, place: object, what: str) -> None:
        self.findings.append(Finding(kind, str(place), what))

    def names(self) -> None:
        """Positions are unique; a segment that took another's place has a higher generation."""
        positions = [name.position for name in self.after.segments]
        if len(set(positions)) < len(positions):
            self._say("name", "the log", "two segments have one position")
        generations = {name.position: name.generation for name in self.gone}
        for name in self.new:
            if name.generation <= generations.get(name.position, -1):
                self._say("name", name, f"it took the place of generation {generations[name.position]}")

    def untouched(self) -> None:
        """A segment that is in both pictures has the same records; more at its end if it was the active one."""
        for name in sorted(self.before.segments.keys() & self.after.segments.keys()):
            old, new = self.before.segments[name], self.after.segments[name]
            if _bare(new[:len(old)]) != _bare(old):
                self._say("changed", name, "it was not compacted, and its records are not the same")
            for entry, _ in new[len(old):]:
                if entry.sequence <= self.before.last_sequence:
                    self._say("extra", entry.position, f"record {entry.sequence} of {entry.id!r} was not there before")

    def compacted(self, first: Rules, last: Rules) -> None:
        """What had to go is gone, and the rest is there with the same bytes."""
        histories: dict[bytes, list[IndexEntry]] = {}
        for records in self.before.segments.values():
            for entry, _ in records:
                histories.setdefault(entry.id, []).append(entry)
        for name in sorted(self.gone):
            for entry, crc in self.before.segments[name]:
                history = histories[entry.id]
                place = history.index(entry)
                verdicts = [judge(history, rules, self.gone)[place] for rules in (first, last)]
                self._judge(entry, crc, verdicts)
        stayed = {entry.sequence: _bare([(entry, crc)]) for name, records in self.before.segments.items()
                  if name not in self.gone for entry, crc in records}
        for entry, crc in self.moved.values():
            # A compaction that was dropped between two cycles has copied part of a segment that is still there.
            if stayed.get(entry.sequence) == _bare([(entry, crc)]):
                continue
            self._say("extra", entry.position, f"record {entry.sequence} of {entry.id!r} comes from nowhere")

    def _judge(self, entry: IndexEntry, crc: int, verdicts: Sequence[Verdict]) -> None:
        found = None if Verdict.DUPLICATE in verdicts else self.moved.pop(entry.sequence, None)
        if found is None and all(verdict is Verdict.KEEP for verdict in verdicts):
            self._say("gone", entry.position, f"record {entry.sequence} of {entry.id!r} had to be kept")
        if found is not None and not any(verdict is Verdict.KEEP for verdict in verdicts):
            self._say("kept", found[0].position, f"record {entry.sequence} of {entry.id!r} had to go: "
                                                 f"{verdicts[0].value}")
        if found is not None and _bare([found]) != _bare([(entry, crc)]):
            self._say("changed", found[0].position, f"record {entry.sequence} of {entry.id!r} is not what it was")

    def order(self) -> None:
        """Records of a new segment follow each other as they did before."""
        places = {entry.sequence: (turn, entry.offset) for name, turn in self.gone.items()
                  for entry, _ in self.before.segments[name]}
        for name in self.new:
            old = [places[entry.sequence] for entry, _ in self.after.segments[name] if entry.sequence in places]
            if old != sorted(old):
                self._say("order", name, "its records do not follow each other as they did before")


def _bare(records: Sequence[tuple[IndexEntry, int]]) -> list[tuple[Any, ...]]:
    """Records without their places."""
    return [(*entry[:9], entry.size, crc) for entry, crc in records]
