# SPDX-License-Identifier: Apache-2.0
"""A metarange: the list of ranges of an immutable sorted set of records, its file, and the rule that cuts the ranges.

The rule sees the content alone, so that equal content is cut equally. A record closes its range (it is the last one in
it) when the range has reached `max_bytes`, or when it has reached `min_bytes` and the CRC-32 of the record's key is a
multiple of `raggedness`. So a cut depends on the records since the last cut only: far away from a change, every cut
stays where it was. The hash is CRC-32: it is in every language, in Spark and in zlib, and C computes it for a whole
list of keys.

docs/formats/staging-metarange.md describes the file. It is independent of the file format of ranges.
"""

from __future__ import annotations

import hashlib
import struct
from bisect import bisect_left
from collections.abc import Sequence
from typing import Final, Self

import attrs

from compactlib._arguments import is_whole
from compactlib.errors import CorruptData, InvalidInput
from compactlib.files.checksum import crc32
from compactlib.staging.ranges.rows import DIGEST_BYTES, header_of
from compactlib.staging.values import MetaRangeId, RangeEntry, RangeId, Record

LENGTHS_BYTES: Final = 12
"""The share of a record's three lengths in its logical size."""
UNLIMITED: Final = (1 << 62)
"""A `max_bytes` that no range reaches."""


def record_bytes(key: bytes, record: Record) -> int:
    """Return the logical size of a record: 12 bytes, key, identity and data; independent of format and compression."""
    return LENGTHS_BYTES + len(key) + len(record.identity) + len(record.data)


@attrs.frozen(kw_only=True)
class SplitRule:
    """The numbers of the rule. A metarange stores them: under different rules, equal content has different ids.

    Attributes:
        min_bytes: only the end closes a range below this logical size, >= 0.
        max_bytes: a range is closed once it reaches this logical size, >= 1.
        raggedness: one key in `raggedness` closes its range, 1 .. 2**32 - 1.

    Raises:
        InvalidInput: a number is out of its bounds, or `max_bytes` is below `min_bytes`.
    """

    min_bytes: int = attrs.field(default=0, validator=is_whole())
    max_bytes: int = attrs.field(default=20 << 20, validator=is_whole(1, UNLIMITED))
    raggedness: int = attrs.field(default=50_000, validator=is_whole(1, (1 << 32) - 1))

    def __attrs_post_init__(self) -> None:
        if self.min_bytes > self.max_bytes:
            raise InvalidInput(f"min_bytes is {self.min_bytes}; give at most max_bytes, {self.max_bytes}")

    def is_cut(self, key: bytes) -> bool:
        """Return whether this key closes its range, if the range is large enough."""
        return crc32(key) % self.raggedness == 0

    def closes(self, last_key: bytes, size_bytes: int) -> bool:
        """Return whether the rule closes a range of this size after this key."""
        return size_bytes >= self.max_bytes or (size_bytes >= self.min_bytes and self.is_cut(last_key))

    def cuts(self, ends: Sequence[int], candidates: Sequence[int]) -> list[int]:
        """Return the position after the last record of each closed range of a run that begins at a cut.

        `ends` has for each record the logical bytes up to its end, `candidates` the ascending positions of records
        whose key `is_cut`. The rest of the run is an open range. O(ranges * log records).
        """
        start, before = 0, 0
        found: list[int] = []
        while start < len(ends):
            allowed = max(bisect_left(ends, before + self.min_bytes, start), start)
            place = bisect_left(candidates, allowed)
            last = bisect_left(ends, before + self.max_bytes, start)
            if place < len(candidates):
                last = min(last, candidates[place])
            if last >= len(ends):
                break
            found.append(last + 1)
            start, before = last + 1, ends[last]
        return found


_HEADER: Final = header_of(b"CLMETA", 1)
_RULE: Final = struct.Struct("<QQII")
_ENTRY: Final = struct.Struct("<20sQQII")
_PURPOSE: Final = b"compactlib.meta"


@attrs.frozen
class MetaRange:
    """A metarange in memory: ascending ranges, none empty; the rule closes each except perhaps the last."""

    rule: SplitRule
    entries: Sequence[RangeEntry]

    @property
    def ids(self) -> set[RangeId]:
        """The ids of its ranges. O(ranges)."""
        return {entry.range_id for entry in self.entries}

    def find(self, key: bytes) -> int:
        """Return the position of the first range whose last key is >= `key`. O(log ranges)."""
        return bisect_left(self.entries, key, key=lambda entry: entry.max_key)

    def encode(self) -> tuple[MetaRangeId, bytes]:
        """Return the id and the file."""
        rule = self.rule
        pieces = [_RULE.pack(rule.min_bytes, rule.max_bytes, rule.raggedness, len(self.entries))]
        for entry in self.entries:
            pieces += (_ENTRY.pack(bytes.fromhex(entry.range_id), entry.count, entry.size_bytes, len(entry.min_key),
                                   len(entry.max_key)), entry.min_key, entry.max_key)
        body = b"".join(pieces)
        return _id_of(body), _HEADER.encode() + body

    @classmethod
    def decode(cls, data: bytes, metarange_id: MetaRangeId, path: str) -> Self:
        """Return the metarange of a file; `CorruptData` if the bytes are damaged, or of another metarange."""
        _HEADER.decode_header(data, path)
        found = _id_of(memoryview(data)[_HEADER.size:])
        if found != metarange_id:
            raise CorruptData(path=path, offset=_HEADER.size, expected=f"the content of metarange {metarange_id}",
                              found=f"that of {found}")
        low, high, raggedness, count = _RULE.unpack_from(data, _HEADER.size)
        at = _HEADER.size + _RULE.size
        entries = []
        for _ in range(count):
            range_id, records, size, low_length, high_length = _ENTRY.unpack_from(data, at)
            at += _ENTRY.size
            middle, end = at + low_length, at + low_length + high_length
            entries.append(RangeEntry(RangeId(range_id.hex()), data[at:middle], data[middle:end], records, size))
            at = end
        return cls(SplitRule(min_bytes=low, max_bytes=high, raggedness=raggedness), tuple(entries))


def _id_of(body: bytes | memoryview) -> MetaRangeId:
    return MetaRangeId(hashlib.blake2b(body, digest_size=DIGEST_BYTES, person=_PURPOSE).hexdigest())
