# SPDX-License-Identifier: Apache-2.0
"""Proof that a store holds what it should: records against their CRC, the index against the log.

`verify` looks at one store: at records without index entry (`orphan`: dropped by the next compaction) and entries
without record (`missing`), `damage`, `order`, `name`, and files that no compaction needs
any more (`leftover`).
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

from compactlib.blobstore.compaction.progress.compaction_file import LOG_NAME
from compactlib.blobstore.compaction.run.store_compactions import OwnedStore
from compactlib.blobstore.compaction.swap import Snapshot
from compactlib.blobstore.model.names import UNPUBLISHED_SUFFIX, SegmentName, place_of_index_file, segment_of_log_file
from compactlib.blobstore.model.values import IndexEntry, RecordFlag
from compactlib.blobstore.segment.erasure import state_in
from compactlib.blobstore.segment.reader import SEGMENT_HEADER_BYTES, SegmentFile
from compactlib.blobstore.segment.scan import DamagedRange, ScannedRecord, scan_records
from compactlib.errors import Busy, CompactlibError, CorruptData, Unsupported
from compactlib.files.disk import list_folder
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
    lent = (Budget() if budget is None else budget).child()
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
    """Compare the records of a segment with its index; what was found, and how many entries the index has.

    What a hard delete overwrites meanwhile, or was kept from overwriting wholly, is no finding.
    """
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
    places = {each.place for each in findings}
    erased = {place for entry in snapshot.entries_of(name) if (place := f"{name}:{entry.offset}") in places
              and _is_erased(file, entry)} if findings else set()
    return [each for each in findings if each.place not in erased], count


def _is_erased(file: SegmentFile, entry: IndexEntry) -> bool:
    """Whether a hard delete is about to overwrite the content of a record, or has done so since it was read."""
    with contextlib.suppress(CorruptData, Unsupported):
        # In this order: what is named no more, is overwritten.
        state = state_in(os.path.dirname(file.path)).read()
        if state is not None and any((each.segment, each.offset) == (entry.segment, entry.offset)
                                     for each in state.erasures):
            return True
    return any(isinstance(found, ScannedRecord) and found.whole and bool(found.header.flags & RecordFlag.ERASED)
               and _describes(entry, found) for found in scan_records(file, entry.offset, entry.end))


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
