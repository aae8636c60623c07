# SPDX-License-Identifier: Apache-2.0
"""A deep check of metaranges: that every range holds what its id promises, and that all are cut as the rule says."""

from __future__ import annotations

from collections.abc import Iterator

from compactlib.budget import Budget
from compactlib.errors import CompactlibError, CorruptData, Unsupported
from compactlib.report import Finding
from compactlib.staging.errors import DamagedRange, MetaRangeNotFound, RangeNotFound
from compactlib.staging.ranges.files import RangeFiles
from compactlib.staging.ranges.metarange import MetaRange
from compactlib.staging.ranges.rows import Rows
from compactlib.staging.ranges.split import SplitRule
from compactlib.staging.values import MetaRangeId, RangeEntry, RangeId


class RangeVerifier:
    """Reads metaranges and their ranges past the cache; each range once, however many share it.

    An ordinary read relies on a file's checksum; this also finds a file that was written wrongly. O(records).

    Args:
        files: where they lie.
        budget: asked before each file.

    Attributes:
        findings: what was not as it should be.
        records: records read.
        bytes_read: logical bytes of the ranges read.
    """

    def __init__(self, files: RangeFiles, budget: Budget) -> None:
        self.findings: list[Finding] = []
        self.records: int = 0
        self.bytes_read: int = 0
        self._files = files
        self._budget = budget
        self._seen: set[tuple[RangeId, SplitRule, bool]] = set()

    def verify(self, metarange_id: MetaRangeId, *, is_history: bool = False) -> None:
        """Check a metarange, and compute the ids of its ranges anew from their records.

        Args:
            metarange_id: which one.
            is_history: a commit before HEAD has it, so that it may have been collected while no branch reached that.
        """
        self._budget.check()
        self._files.forget(metarange_id)
        path = self._files.path_of_metarange(metarange_id)
        try:
            metarange = self._files.read_metarange(metarange_id, SplitRule())
        except MetaRangeNotFound as error:
            what = "collected while no branch reached its commit, or lost" if is_history else str(error)
            self.findings.append(Finding("orphan" if is_history else "missing", path, what, error))
            return
        except (CorruptData, Unsupported) as error:
            self.findings.append(_finding(path, error))
            return
        for place, entry in enumerate(metarange.entries):
            is_last = place == len(metarange.entries) - 1
            if (entry.range_id, metarange.rule, is_last) in self._seen:
                continue
            self._seen.add((entry.range_id, metarange.rule, is_last))
            self._budget.check()
            self._check(entry, metarange, path, place, is_last=is_last)

    def _check(self, entry: RangeEntry, metarange: MetaRange, metarange_path: str, place: int, *,
               is_last: bool) -> None:
        path = self._files.path_of_range(entry.range_id)
        before = metarange.entries[place - 1].max_key if place else b""
        if entry.min_key <= before:
            self.findings.append(_finding(metarange_path, DamagedRange(
                path=metarange_path, offset=0, expected=f"range {place} to lie above {before[:100]!r}",
                found=repr(entry.min_key[:100]))))
        self._files.forget(entry.range_id)
        try:
            rows = self._files.read_range(entry, keep=False)
        except (CorruptData, Unsupported, RangeNotFound) as error:
            self.findings.append(_finding(path, error))
            return
        self.records += len(rows)
        self.bytes_read += entry.size_bytes
        self.findings += [_finding(path, error) for error in _problems(rows, entry, metarange.rule, path,
                                                                       is_last=is_last)]


def _finding(path: str, error: CompactlibError) -> Finding:
    kind = "missing" if isinstance(error, RangeNotFound) else "version" if isinstance(error, Unsupported) else "damage"
    return Finding(kind, path, str(error), error)


def _problems(rows: Rows, entry: RangeEntry, rule: SplitRule, path: str, *, is_last: bool) -> Iterator[DamagedRange]:
    before = b""
    for place in range(len(rows)):
        key = rows.key(place)
        if key <= before:
            yield DamagedRange(path=path, offset=0, expected=f"record {place} to lie above {before[:100]!r}",
                               found=repr(key[:100]))
            return
        before = key
    found = rows.content_id()
    if found != entry.range_id:
        yield DamagedRange(path=path, offset=0, expected=f"the records of range {entry.range_id}",
                           found=f"those of {found}")
    if rows.size_bytes != entry.size_bytes:
        yield DamagedRange(path=path, offset=0, expected=f"{entry.size_bytes} logical bytes, as the metarange says",
                           found=f"{rows.size_bytes}")
    places = sorted(rows.find(key) for key in rows.cut_keys(rule.raggedness))
    cuts = rule.cuts(rows.ends(), places)
    if cuts != [len(rows)] and not (is_last and not cuts):
        yield DamagedRange(path=path, offset=0, expected=f"one cut by {rule!r}, after the last of {len(rows)} records",
                           found=f"cuts after {cuts[:5]}")
