# SPDX-License-Identifier: Apache-2.0
"""A deep check of metaranges: the records of every range ascend, and the rule has cut every range.

An ordinary read relies on the checksums of a file; this check also finds a wrongly written file.
"""

from __future__ import annotations

from collections.abc import Iterator

from compactlib.budget import Budget
from compactlib.errors import CompactlibError, CorruptData, Unsupported
from compactlib.report import Finding, VerifyReport
from compactlib.staging.errors import DamagedRange, MetaRangeNotFound, RangeNotFound
from compactlib.staging.ranges.files import RangeFiles
from compactlib.staging.ranges.metarange import MetaRange
from compactlib.staging.ranges.split import SplitRule
from compactlib.staging.values import LiveMetaRanges, RangeEntry, RangeId


def verify_ranges(files: RangeFiles, live: LiveMetaRanges, budget: Budget) -> VerifyReport:
    """Read metaranges and their ranges past the caches, each range once. O(records of all ranges).

    A missing metarange of the history is an `orphan`, which is harmless.
    """
    findings: list[Finding] = []
    seen: set[tuple[RangeId, SplitRule]] = set()
    records = bytes_read = 0
    for metarange_id in (*sorted(live.needed), *sorted(live.history)):
        budget.check()
        path = files.path_of_metarange(metarange_id)
        files.forget(metarange_id)
        try:
            metarange = files.read_metarange(metarange_id)
        except (CorruptData, Unsupported, MetaRangeNotFound) as error:
            if metarange_id not in live.needed and isinstance(error, MetaRangeNotFound):
                # A commit before HEAD names it.
                findings.append(Finding("orphan", path, "collected while its commit was unreachable, or lost", error))
            else:
                findings.append(finding(path, error))
            continue
        findings += (finding(path, error) for error in _problems_of_list(path, metarange))
        for entry in metarange.entries:
            if (entry.range_id, metarange.rule) not in seen:
                budget.check()
                seen.add((entry.range_id, metarange.rule))
                problems = list(_problems_of_range(files, entry, metarange.rule))
                findings += (finding(files.path_of_range(entry.range_id), error) for error in problems)
                if not problems:
                    records, bytes_read = records + entry.count, bytes_read + entry.size_bytes
    return VerifyReport(findings=tuple(findings), records=records, bytes_read=bytes_read)


def _problems_of_list(path: str, metarange: MetaRange) -> Iterator[DamagedRange]:
    before = b""
    for place, entry in enumerate(metarange.entries):
        if entry.min_key <= before:
            yield _damage(path, f"range {place} to lie above {before[:100]!r}", entry.min_key[:100])
        before = entry.max_key
        if place < len(metarange.entries) - 1 and not metarange.rule.closes(entry.max_key, entry.size_bytes):
            yield _damage(path, f"range {place} to end at a cut by {metarange.rule!r}", entry.max_key[:100])


def _problems_of_range(files: RangeFiles, entry: RangeEntry, rule: SplitRule) -> Iterator[CompactlibError]:
    path = files.path_of_range(entry.range_id)
    try:
        rows = files.reread(entry)
    except (CorruptData, Unsupported, RangeNotFound) as error:
        yield error
        return
    keys = [rows.key(number) for number in range(len(rows))]
    for number in range(1, len(keys)):
        if keys[number] <= keys[number - 1]:
            yield _damage(path, f"record {number} to lie above {keys[number - 1][:100]!r}", keys[number][:100])
            return
    if rows.size_bytes != entry.size_bytes:
        yield _damage(path, f"{entry.size_bytes} logical bytes, as the metarange says", rows.size_bytes)
    cuts = rule.cuts(rows.ends(), sorted(map(rows.find, rows.cut_keys(rule.raggedness))))
    if cuts not in ([], [len(rows)]):
        yield _damage(path, f"no cut by {rule!r} before the last of {len(rows)} records", cuts[:5])


def _damage(path: str, expected: str, found: object) -> DamagedRange:
    return DamagedRange(path=path, offset=0, expected=expected, found=str(found))


def finding(path: str, error: CompactlibError) -> Finding:
    """Return the finding of an unreadable or missing part."""
    kind = ("version" if isinstance(error, Unsupported)
            else "missing" if isinstance(error, RangeNotFound | MetaRangeNotFound) else "damage")
    return Finding(kind, path, str(error), error)
