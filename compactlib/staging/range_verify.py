"""A deep check of a metarange: that every range holds what its id promises, and that all are cut as the rule says."""

from __future__ import annotations

from typing import Any

import attrs

from compactlib.report import Table
from compactlib.staging.errors import DamagedRange
from compactlib.staging.metarange import MetaRange
from compactlib.staging.model import RangeEntry
from compactlib.staging.range_files import RangeFiles
from compactlib.staging.rows import Rows
from compactlib.staging.split import SplitRule


@attrs.frozen(kw_only=True)
class Verified:
    """A metarange in which everything is as it should be.

    Attributes:
        ranges: ranges read.
        records: records in them.
        size_bytes: their logical size.
    """

    ranges: int
    records: int
    size_bytes: int

    def to_dicts(self) -> list[dict[str, Any]]:
        """One row: every number."""
        return [attrs.asdict(self)]

    def _repr_html_(self) -> str:
        return Table.from_dicts(self.to_dicts())._repr_html_()


def verify_metarange(files: RangeFiles, metarange: MetaRange) -> Verified:
    """Read every range past the cache, compute its id anew from the records, and check order, sizes and cuts.

    An ordinary read relies on a file's checksum; this also finds a file that was written wrongly. O(records).

    Raises:
        DamagedRange: something is not as it should be; says what.
        RangeNotFound: a range is missing.
    """
    before = b""
    for place, entry in enumerate(metarange.entries):
        files.cache.drop(entry.range_id)
        rows = files.read_range(entry, keep=False)
        path = files.path_of_range(entry.range_id)
        before = _check_order(rows, before, path)
        _check_content(rows, entry, path)
        _check_cuts(rows, metarange.rule, path, is_last=place == len(metarange.entries) - 1)
    return Verified(ranges=len(metarange.entries), records=sum(entry.count for entry in metarange.entries),
                    size_bytes=sum(entry.size_bytes for entry in metarange.entries))


def _check_order(rows: Rows, before: bytes, path: str) -> bytes:
    for place in range(len(rows)):
        key = rows.key(place)
        if key <= before:
            raise DamagedRange(path=path, offset=0, expected=f"record {place} to lie above {before[:100]!r}",
                               found=repr(key[:100]))
        before = key
    return before


def _check_content(rows: Rows, entry: RangeEntry, path: str) -> None:
    found = rows.content_id()
    if found != entry.range_id:
        raise DamagedRange(path=path, offset=0, expected=f"the records of range {entry.range_id}",
                           found=f"those of {found}")
    if rows.size_bytes != entry.size_bytes:
        raise DamagedRange(path=path, offset=0, expected=f"{entry.size_bytes} logical bytes, as the metarange says",
                           found=f"{rows.size_bytes}")


def _check_cuts(rows: Rows, rule: SplitRule, path: str, *, is_last: bool) -> None:
    places = sorted(rows.find(key) for key in rows.cut_keys(rule.raggedness))
    cuts = rule.cuts(rows.ends(), places)
    if cuts != [len(rows)] and not (is_last and not cuts):
        raise DamagedRange(path=path, offset=0, expected=f"one cut by {rule!r}, after the last of {len(rows)} records",
                           found=f"cuts after {cuts[:5]}")
