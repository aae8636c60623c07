# SPDX-License-Identifier: Apache-2.0
"""Verification of a store: records against their CRC, the index against the log, and the files of the folder.

Findings: `damage`; `missing` records, which the index names and the log does not hold, and lost segments; records
without an index entry (`orphan`: dropped by the next compaction); `order`; and leftover files (`leftover`).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable

from compactlib.blobstore.contents import LogContents
from compactlib.blobstore.erasure import pending_erasures
from compactlib.blobstore.names import SegmentName
from compactlib.blobstore.records import IndexEntry
from compactlib.blobstore.scan import Scanned, scan_records
from compactlib.blobstore.segment import SEGMENT_HEADER_BYTES, SegmentFile
from compactlib.budget import Budget
from compactlib.errors import CompactlibError, CorruptData
from compactlib.report import Finding, VerifyReport


def verify_log(folder: str, snapshot: LogContents, is_there: Callable[[SegmentName], bool], names: Iterable[str],
               budget: Budget) -> VerifyReport | None:
    """Read every record of a log, and compare it with its index. Writers and compactions may run concurrently.

    Args:
        folder: the store's folder.
        snapshot: a snapshot of the log.
        is_there: whether a segment is in the log now.
        names: the leftover files.
        budget: spends the bytes of each segment before it is read.

    Returns:
        The report; `None` if a compaction removed a segment before it was read.
    """
    findings: list[Finding] = []
    records = read = 0
    for segment in snapshot.segments:
        path = os.path.join(folder, segment.name.log_file)
        if segment.is_lost:
            error = CorruptData(path=path, offset=0, expected="a segment of the log", found="no such file")
            findings.append(Finding("missing", str(segment.name), str(error), error))
            continue
        budget.spend(max(segment.end - SEGMENT_HEADER_BYTES, 0))
        try:
            file = SegmentFile(path)
        except CompactlibError as error:
            if not is_there(segment.name):
                return None
            findings.append(Finding("damage", str(segment.name), str(error), error))
            continue
        if file.header.name != segment.name:
            findings.append(Finding("name", str(segment.name), f"its header names segment {file.header.name}"))
        found, count = verify_segment(snapshot, segment.name, file, segment.end)
        findings += found
        records += count
        read += segment.end
    findings += [Finding("leftover", name, "no segment of the log, and no compaction runs") for name in names]
    return VerifyReport(tuple(findings), records, read)


def verify_segment(snapshot: LogContents, name: SegmentName, file: SegmentFile, end: int) -> tuple[list[Finding], int]:
    """Compare the records of a segment with its index; return the findings, and the number of index entries.

    A record that a hard delete is overwriting, or has overwritten in part, is no finding.
    """
    entries = {entry.offset: entry for entry in snapshot.entries_of(name)}
    count = len(entries)
    findings: list[Finding] = []
    if list(entries) != sorted(entries):
        findings.append(Finding("order", str(name), "its index entries do not ascend by offset"))
    for found in scan_records(file, SEGMENT_HEADER_BYTES, end):
        here, entry = found.entry, entries.pop(found.offset, None)
        if here is None:
            findings.append(_damage(file, name, found, "a record",
                                    f"{found.end - found.offset} bytes that are no record: {found.found}"))
            continue
        if entry is None:
            findings.append(Finding("orphan", f"{name}:{found.offset}", f"record {here.sequence} of {here.id!r} has no "
                                                                        f"index entry"))
        elif not _describes(entry, here):
            findings.append(_damage(file, name, found, f"record {entry.sequence} of {entry.id!r}",
                                    f"record {here.sequence} of {here.id!r}"))
        if found.found:
            findings.append(_damage(file, name, found, f"record {here.sequence} of {here.id!r}", found.found))
    findings += [Finding("missing", f"{name}:{entry.offset}", f"record {entry.sequence} of {entry.id!r} is not there")
                 for entry in entries.values()]
    places = {each.place for each in findings}
    erased = {place for entry in snapshot.entries_of(name) if (place := f"{name}:{entry.offset}") in places
              and _is_erased(file, entry)} if findings else set()
    return [each for each in findings if each.place not in erased], count


def _is_erased(file: SegmentFile, entry: IndexEntry) -> bool:
    """Whether the note of the hard delete names a record, or the content was overwritten after the record was read."""
    # In this order: a record is overwritten before the note is cleared.
    pending = pending_erasures(os.path.dirname(file.path), file.header.incarnation)
    if entry.offset in pending.get(entry.segment, ()):
        return True
    return any(found.entry is not None and not found.found and found.entry.is_erased
               and _describes(entry, found.entry) for found in scan_records(file, entry.offset, entry.end))


def _damage(file: SegmentFile, name: SegmentName, at: Scanned, expected: str, found: str) -> Finding:
    error = CorruptData(path=file.path, offset=at.offset, expected=expected, found=found)
    return Finding("damage", f"{name}:{at.offset}", str(error), error)


def _describes(entry: IndexEntry, here: IndexEntry) -> bool:
    """Whether an index entry equals that of the record at its offset, except for its flags."""
    return entry == here._replace(flags=entry.flags, segment=entry.segment)
