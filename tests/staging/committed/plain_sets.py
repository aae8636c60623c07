# SPDX-License-Identifier: Apache-2.0
"""The model of the committed layer's tests: dictionaries."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from compactlib.objects import MemoryObjects
from compactlib.staging import CommittedRanges, Record, SplitRule
from compactlib.staging.ranges.rows import RangeFormat
from compactlib.staging.values import Change, Difference, MetaRangeId

RecordSet = dict[bytes, Record]
SMALL_RANGES = SplitRule(raggedness=4, max_bytes=300)


def committed(objects: MemoryObjects | None = None, *, rule: SplitRule = SMALL_RANGES,
              range_format: RangeFormat | None = None, cache_bytes: int = 1 << 20) -> CommittedRanges:
    """A committed layer with ranges of a few records."""
    return CommittedRanges(MemoryObjects() if objects is None else objects, rule=rule, range_format=range_format,
                           cache_bytes=cache_bytes)


def written(layer: CommittedRanges, records: Mapping[bytes, Record]) -> MetaRangeId:
    """The id of these records, written from scratch."""
    return layer.apply(None, sorted(records.items())).metarange_id


def changed(records: Mapping[bytes, Record], changes: Mapping[bytes, Change]) -> RecordSet:
    """What an apply must make of these records: one of equal identity stays."""
    result = dict(records)
    for key, record in changes.items():
        if record is None:
            result.pop(key, None)
        elif key not in result or result[key].identity != record.identity:
            result[key] = record
    return result


def differences(left: Mapping[bytes, Record], right: Mapping[bytes, Record]) -> list[Difference]:
    """Return the expected diff of these two."""
    found = (Difference.between(key, left.get(key), right.get(key)) for key in sorted({*left, *right}))
    return [difference for difference in found if difference is not None]


def simple(text: str) -> RecordSet:
    """Records from `"a=1 b=2"`; each identity is that of its data."""
    pairs = (item.split("=") for item in text.split())
    return {key.encode(): Record.of(value.encode()) for key, value in pairs}


def tombstones(keys: Iterable[bytes]) -> dict[bytes, Change]:
    """Changes that remove these keys."""
    return dict.fromkeys(keys)
