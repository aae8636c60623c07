# SPDX-License-Identifier: Apache-2.0
"""A deep check of metaranges: the content of every range matches its id, and the rule has cut every range.

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
from compactlib.staging.values import LiveMetaRanges, MetaRangeId, RangeId


def verify_ranges(files: RangeFiles, live: LiveMetaRanges, budget: Budget) -> VerifyReport:
    """Read metaranges and their ranges past the caches, each range once; see `CommittedRanges.verify`."""
    findings: list[Finding] = []
    seen: dict[tuple[RangeId, SplitRule, bool], tuple[int, int]] = {}  # with its records, and their bytes
    for metarange_id in (*sorted(live.needed), *sorted(live.history)):
        budget.check()
        path = files.path_of_metarange(metarange_id)
        metarange = _metarange(files, metarange_id, path, findings, is_history=metarange_id not in live.needed)
        before = b""
        for place, entry in enumerate(metarange.entries):
            is_last = place == len(metarange.entries) - 1
            if entry.min_key <= before:
                findings.append(finding(path, _damage(path, f"range {place} to lie above {before[:100]!r}",
                                                      entry.min_key[:100])))
            before = entry.max_key
            key = entry.range_id, metarange.rule, is_last
            if key not in seen:
                budget.check()
                seen[key] = 0, 0
                findings += (finding(files.path_of_range(entry.range_id), error)
                             for error in _problems(files, metarange, place, seen))
    return VerifyReport(findings=tuple(findings), records=sum(count for count, _ in seen.values()),
                        bytes_read=sum(size for _, size in seen.values()))


def _metarange(files: RangeFiles, metarange_id: MetaRangeId, path: str, findings: list[Finding], *, is_history: bool,
               ) -> MetaRange:
    files.forget(metarange_id)
    try:
        return files.read_metarange(metarange_id, SplitRule())
    except (CorruptData, Unsupported, MetaRangeNotFound) as error:
        if is_history and isinstance(error, MetaRangeNotFound):
            # A commit before HEAD names it.
            findings.append(Finding("orphan", path, "collected while its commit was unreachable, or lost", error))
        else:
            findings.append(finding(path, error))
    return MetaRange(SplitRule(), ())


def _problems(files: RangeFiles, metarange: MetaRange, place: int,
              seen: dict[tuple[RangeId, SplitRule, bool], tuple[int, int]]) -> Iterator[CompactlibError]:
    entry, rule = metarange.entries[place], metarange.rule
    path, is_last = files.path_of_range(entry.range_id), place == len(metarange.entries) - 1
    files.forget(entry.range_id)
    try:
        rows = files.read_range(entry, keep=False)
    except (CorruptData, Unsupported, RangeNotFound) as error:
        yield error
        return
    seen[entry.range_id, rule, is_last] = len(rows), entry.size_bytes
    before = b""
    for number in range(len(rows)):
        key = rows.key(number)
        if key <= before:
            yield _damage(path, f"record {number} to lie above {before[:100]!r}", key[:100])
            return
        before = key
    if rows.size_bytes != entry.size_bytes:
        yield _damage(path, f"{entry.size_bytes} logical bytes, as the metarange says", rows.size_bytes)
    cuts = rule.cuts(rows.ends(), sorted(map(rows.find, rows.cut_keys(rule.raggedness))))
    if cuts != [len(rows)] and not (is_last and not cuts):
        yield _damage(path, f"one cut by {rule!r}, after the last of {len(rows)} records", cuts[:5])


def _damage(path: str, expected: str, found: object) -> DamagedRange:
    return DamagedRange(path=path, offset=0, expected=expected, found=str(found))


def finding(path: str, error: CompactlibError) -> Finding:
    """Return the finding of an unreadable or missing part."""
    kind = ("version" if isinstance(error, Unsupported)
            else "missing" if isinstance(error, RangeNotFound | MetaRangeNotFound) else "damage")
    return Finding(kind, path, str(error), error)
