# SPDX-License-Identifier: Apache-2.0
"""Proof that a store holds what it should: records against their CRC, the index against the log, before against after.

`verify` looks at one store: at records without index entry (`orphan`: dropped by the next compaction) and entries
without record (`missing`), `damage`, `order`, `name`, and files that no compaction needs
any more (`leftover`).
`compare` looks at two pictures of it, from before and after compactions, and says where they differ in a way that no
compaction may cause: `gone`, `kept`, `changed`, `extra`. Pictures hold no content, but its checksums.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import Any

import attrs

from compactlib.blobstore.compaction.progress.compaction_file import LOG_NAME
from compactlib.blobstore.compaction.run.store_compactions import OwnedStore
from compactlib.blobstore.compaction.swap import Snapshot
from compactlib.blobstore.model.names import UNPUBLISHED_SUFFIX, SegmentName, place_of_index_file, segment_of_log_file
from compactlib.blobstore.model.values import IndexEntry, milliseconds
from compactlib.blobstore.segment.reader import SEGMENT_HEADER_BYTES, SegmentFile
from compactlib.blobstore.segment.scan import DamagedRange, ScannedRecord, scan_records
from compactlib.blobstore.validity.verdicts import PurgeRules, Rules, Verdict, judge
from compactlib.errors import Busy, CompactlibError, CorruptData
from compactlib.files.disk import list_folder, read_exactly
from compactlib.report import Finding, VerifyReport
from compactlib.runtime.budget import Budget

_TRAILER_BYTES = 4
_MAX_TRIES = 20


def verify(store: OwnedStore, *, budget: Budget | None = None) -> VerifyReport:
    """Read every record of a store and compare log, index and folder. Writers and compactions may go on meanwhile.

    Reads the whole log once; memory: one index entry a record of the largest segment.

    Args:
        store: the store.
        budget: asked for the bytes to read, segment by segment; closing the store ends it as well.

    Raises:
        StorageError: the disk refused.
        BudgetSpent: the budget ran out, or the store is being closed.
        Closed: the store is closed.
        Busy: compactions took segments away under it again and again; wait for them, or look later.
    """
    lent = (Budget() if budget is None else budget).lend()
    with store.compactions.ownership.cancels(lent):
        for _ in range(_MAX_TRIES):
            report = _verified(store, lent)
            if report is not None:
                return report
    raise Busy(f"compactions of store {store.name} have taken segments away from the verifier {_MAX_TRIES} times; "
               f"verify again when none is running")


def _verified(store: OwnedStore, budget: Budget) -> VerifyReport | None:
    """One try; `None` if a compaction took a segment away before it was looked at."""
    findings: list[Finding] = []
    records = read = 0
    snapshot = store.snapshot()
    for info in snapshot.segments:
        budget.spend(max(info.end - SEGMENT_HEADER_BYTES, 0))
        try:
            file = SegmentFile(os.path.join(store.folder, info.name.log_file))
        except CompactlibError as error:
            if info.name not in {each.name for each in store.snapshot().segments}:
                return None
            findings.append(Finding("damage", str(info.name), str(error), error))
            continue
        if file.header.name != info.name:
            findings.append(Finding("name", str(info.name), f"its header names segment {file.header.name}"))
        found, count = verify_segment(snapshot, info.name, file, info.end)
        findings += found
        records += count
        read += info.end
    findings += _verify_folder(store)
    return VerifyReport(tuple(findings), records, read)


def verify_segment(snapshot: Snapshot, name: SegmentName, file: SegmentFile, end: int) -> tuple[list[Finding], int]:
    """Compare the records of a segment with its index; what was found, and how many entries the index has."""
    entries = {entry.offset: entry for entry in snapshot.entries_of(name)}
    count = len(entries)
    findings: list[Finding] = []
    if list(entries) != sorted(entries):
        findings.append(Finding("order", str(name), "its index entries do not ascend by offset"))
    for found in scan_records(file, SEGMENT_HEADER_BYTES, end):
        place = f"{name}:{found.offset}"
        if isinstance(found, DamagedRange):
            findings.append(_damage(file, name, found.offset, "a record", found.found,
                                    f"{found.end - found.offset} bytes that are no record: {found.found}"))
            continue
        entry = entries.pop(found.offset, None)
        if entry is None:
            findings.append(Finding("orphan", place, f"record {found.header.sequence} of {found.header.id!r} has no "
                                                     f"index entry"))
        elif not _describes(entry, found):
            findings.append(_damage(
                file, name, found.offset, f"record {entry.sequence} of {entry.id!r}",
                f"record {found.header.sequence} of {found.header.id!r}",
                f"the index names record {entry.sequence} of {entry.id!r}, the log holds {found.header.sequence} of "
                f"{found.header.id!r}"))
        if not found.whole:
            findings.append(_damage(
                file, name, found.offset, "a content that fits its CRC", "another one",
                f"the content of record {found.header.sequence} of {found.header.id!r} does not fit its CRC"))
    findings += [Finding("missing", f"{name}:{entry.offset}", f"record {entry.sequence} of {entry.id!r} is not there")
                 for entry in entries.values()]
    return findings, count


def _damage(file: SegmentFile, name: SegmentName, offset: int, expected: str, found: str, what: str) -> Finding:
    return Finding("damage", f"{name}:{offset}", what,
                   CorruptData(path=file.path, offset=offset, expected=expected, found=found))


def _describes(entry: IndexEntry, found: ScannedRecord) -> bool:
    header = found.header
    return (entry.id, entry.kind, entry.life_version, entry.sequence, entry.op_time_ms, entry.expires_ms, entry.size,
            entry.account, entry.container) == (
        header.id, header.kind, header.life_version, header.sequence, header.op_time_ms, header.expires_ms,
        header.size, header.account, header.container)


def _verify_folder(store: OwnedStore) -> Iterator[Finding]:
    names = list_folder(store.folder)
    known = {info.name for info in store.snapshot().segments}
    in_progress = LOG_NAME in names
    for name in names:
        segment, place = segment_of_log_file(name), place_of_index_file(name)
        owner = segment if segment is not None else None if place is None else place.segment
        if not in_progress and ((owner is not None and owner not in known) or name.endswith(UNPUBLISHED_SUFFIX)):
            yield Finding("leftover", name, "no segment of the log, and no compaction is in progress")


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
        yield entry, int.from_bytes(read_exactly(file.fileno(), _TRAILER_BYTES, entry.end - _TRAILER_BYTES), "little")


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
