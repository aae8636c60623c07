# SPDX-License-Identifier: Apache-2.0
"""A metarange: the list of ranges of an immutable sorted set of records, and its file.

docs/formats/staging-metarange.md describes the file. It is independent of the file format of ranges.
"""

from __future__ import annotations

import hashlib
import struct
from bisect import bisect_left
from collections.abc import Sequence
from typing import Final, Self

import attrs

from compactlib.staging.errors import DamagedRange
from compactlib.staging.ranges.plain import header_of
from compactlib.staging.ranges.rows import DIGEST_BYTES
from compactlib.staging.ranges.split import SplitRule
from compactlib.staging.values import MetaRangeId, RangeEntry, RangeId

_HEADER: Final = header_of(b"CLMETA", 1)
_RULE: Final = struct.Struct("<QQII")
_ENTRY: Final = struct.Struct("<20sQQII")
_PURPOSE: Final = b"compactlib.meta"


@attrs.frozen
class MetaRange:
    """A metarange in memory: ascending ranges, none empty; the rule closes each except perhaps the last."""

    rule: SplitRule
    entries: Sequence[RangeEntry]
    _max_keys: list[bytes] = attrs.field(init=False, repr=False, eq=False)

    def __attrs_post_init__(self) -> None:
        object.__setattr__(self, "_max_keys", [entry.max_key for entry in self.entries])

    @property
    def ids(self) -> set[RangeId]:
        """The ids of its ranges. O(ranges)."""
        return {entry.range_id for entry in self.entries}

    def find(self, key: bytes) -> int:
        """Return the position of the first range whose last key is >= `key`. O(log ranges)."""
        return bisect_left(self._max_keys, key)

    def body(self) -> bytes:
        """Return the bytes whose hash is the id."""
        rule = self.rule
        pieces = [_RULE.pack(rule.min_bytes, rule.max_bytes, rule.raggedness, len(self.entries))]
        for entry in self.entries:
            pieces += (_ENTRY.pack(bytes.fromhex(entry.range_id), entry.count, entry.size_bytes, len(entry.min_key),
                                   len(entry.max_key)), entry.min_key, entry.max_key)
        return b"".join(pieces)

    def encode(self) -> tuple[MetaRangeId, bytes]:
        """Return the id and the file."""
        body = self.body()
        return _id_of(body), _HEADER.encode() + body

    @classmethod
    def decode(cls, data: bytes, metarange_id: MetaRangeId, path: str) -> Self:
        """Return the metarange of a file; `DamagedRange` if the bytes are damaged, or of another metarange."""
        _HEADER.decode_header(data, path)
        found = _id_of(memoryview(data)[_HEADER.size:])
        if found != metarange_id:
            raise DamagedRange(path=path, offset=_HEADER.size, expected=f"the content of metarange {metarange_id}",
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
