# SPDX-License-Identifier: Apache-2.0
"""`DiffCache`: the differences of two metaranges that were read last, in chunks; neither side ever changes."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Final, TypeAlias

from compactlib.lru import Lru
from compactlib.staging.ranges.committed import CommittedRanges
from compactlib.staging.values import Difference, MetaRangeId

_CHUNK: Final = 100
_MAX_BYTES: Final = 64 << 20
_OVERHEAD_BYTES: Final = 200  # what Python's objects add to the bytes of one difference, roughly

_Key: TypeAlias = tuple[MetaRangeId | None, MetaRangeId | None, bytes, bytes | None]


class DiffCache:
    """Reads differences through a cache of 64 MiB. Threads may share it."""

    def __init__(self, committed: CommittedRanges) -> None:
        self._committed = committed
        self._chunks: Lru[_Key, tuple[Difference, ...]] = Lru(max_bytes=_MAX_BYTES)

    def diff(self, left: MetaRangeId | None, right: MetaRangeId | None, start: bytes = b"",
             end: bytes | None = None) -> Iterator[Difference]:
        """Return what `CommittedRanges.diff` gives. Reads no more than the chunk that is asked for."""
        source: Iterator[Difference] | None = None
        while left != right and (end is None or start < end):
            key = left, right, start, end
            chunk = self._chunks.get(key)
            if chunk is None:
                source = source or self._committed.diff(left, right, start, end)
                chunk = tuple(islice(source, _CHUNK))
                self._chunks.put(key, chunk, sum(map(_size, chunk)))
            else:
                source = None
            yield from chunk
            if len(chunk) < _CHUNK:
                return
            start = chunk[-1].key + b"\0"


def _size(difference: Difference) -> int:
    parts = (part for record in (difference.left, difference.right) if record is not None
             for part in (record.identity, record.data))
    return _OVERHEAD_BYTES + len(difference.key) + sum(map(len, parts))
