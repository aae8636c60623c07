# SPDX-License-Identifier: Apache-2.0
"""Verification of one segment: its records against their CRC, and its index against the records.

Findings: `damage`; `missing` records, which the index names and the log does not hold, and lost segments; records
without an index entry (`orphan`: dropped by the next compaction); `order`; and leftover files (`leftover`).
"""

from __future__ import annotations

import os

from compactlib.blobstore.contents import LogSegment
from compactlib.blobstore.erasure import pending_erasures
from compactlib.blobstore.scan import scan_records
from compactlib.blobstore.segment import SEGMENT_HEADER_BYTES, SegmentFile
from compactlib.errors import CompactlibError, CorruptData
from compactlib.files.disk import look_at
from compactlib.report import Finding


def verify_segment(folder: str, segment: LogSegment) -> list[Finding]:
    """Read every record of a segment, and compare it with the index. A writer may append concurrently.

    A record that a hard delete is overwriting is no finding: damage counts if it is there twice, and the note of the
    hard delete, read in between, does not name the record. The note is cleared after its records are overwritten.
    """
    name = str(segment.name)
    path = os.path.join(folder, segment.name.log_file)
    if segment.is_lost:
        error = CorruptData(path=path, offset=0, expected="a segment of the log", found="no such file")
        return [Finding("missing", name, str(error), error)]
    try:
        file = SegmentFile(path)
    except CompactlibError as error:
        if not segment.records and look_at(path) is None:
            return []  # the creation of the store was cut off
        return [Finding("damage", name, str(error), error)]
    found = _compare(file, segment)
    if found:
        erasing = pending_erasures(folder, file.header.incarnation).get(segment.name, set())
        still = {each.place for each in _compare(file, segment)} - {f"{name}:{offset}" for offset in erasing}
        found = [each for each in found if each.place in still]
    if file.header.name != segment.name:
        found.append(Finding("name", name, f"its header names segment {file.header.name}"))
    return found


def _compare(file: SegmentFile, segment: LogSegment) -> list[Finding]:
    name = segment.name
    findings: list[Finding] = []
    entries = {entry.offset: entry for entry in segment.entries()}
    if list(entries) != sorted(entries):
        findings.append(Finding("order", str(name), "its index entries do not ascend by offset"))
    for each in scan_records(file, SEGMENT_HEADER_BYTES, segment.end):
        here, entry, damage = each.entry, entries.pop(each.offset, None), each.found
        place = f"{name}:{each.offset}"
        if here is None:
            damage = f"{each.end - each.offset} bytes that are no record: {damage}"
        elif entry is None:
            findings.append(Finding("orphan", place, f"record {here.sequence} of {here.id!r} has no index entry"))
        elif entry != here._replace(flags=entry.flags, segment=name):
            damage = damage or f"record {here.sequence} of {here.id!r}"
        if damage:
            expected = "a record" if entry is None else f"record {entry.sequence} of {entry.id!r}"
            error = CorruptData(path=file.path, offset=each.offset, expected=expected, found=damage)
            findings.append(Finding("damage", place, str(error), error))
    findings += [Finding("missing", f"{name}:{entry.offset}", f"record {entry.sequence} of {entry.id!r} is not there")
                 for entry in entries.values()]
    return findings
