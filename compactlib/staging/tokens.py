# SPDX-License-Identifier: Apache-2.0
"""The staged entries of tokens in the key-value store: each token is a partition.

A token is drawn at random, named by one branch record, and dropped; it is never reused.
`docs/formats/staging-records.md` has the stored forms.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Final, Self

import attrs

from compactlib.errors import CorruptData
from compactlib.files.record_frame import RecordFrame
from compactlib.kv import KVStore
from compactlib.kv.batches import change_many
from compactlib.kv.scan import Entries
from compactlib.staging.values import Change, Record, StagingToken, token_partition

if TYPE_CHECKING:
    from compactlib.staging.ranges.committed import RangeScan

WRITE_ID_BYTES: Final = 8
_ENTRY: Final = RecordFrame("staged entry", b"", 1, "<BB8sI")
_VALUE: Final = 0
_TOMBSTONE: Final = 1


@attrs.frozen
class Staged:
    """One staged entry; the record is `None` for a tombstone.

    `write_id` is drawn by a conditional write, which recognizes its entry by it; else zeros.
    """

    record: Change
    write_id: bytes = bytes(WRITE_ID_BYTES)


def encode_staged(staged: Staged) -> bytes:
    """Return the stored form of a staged entry."""
    record = staged.record
    if record is None:
        return _ENTRY.encode(_TOMBSTONE, staged.write_id, 0)
    return _ENTRY.encode(_VALUE, staged.write_id, len(record.identity), body=record.identity + record.data)


def decode_staged(data: bytes, place: str) -> Staged:
    """Return the entry of a stored form; `place` names its cell in errors."""
    kind, write_id, identity_bytes, body = _ENTRY.decode(data, place)
    if kind == _TOMBSTONE and identity_bytes == len(body) == 0:
        return Staged(None, write_id)
    if kind != _VALUE or identity_bytes > len(body):
        raise CorruptData(path=place, offset=1, expected="a value or a tombstone that fills its bytes",
                          found=f"kind {kind}, identity of {identity_bytes} bytes")
    return Staged(Record(body[:identity_bytes], body[identity_bytes:]), write_id)


def place_of(token: StagingToken, key: bytes) -> str:
    """Return the name of a staged entry's cell, for errors."""
    return f"key {key[:100]!r} of staging token {token}"


def get_staged(store: KVStore, tokens: Sequence[StagingToken], keys: Sequence[bytes],
               ) -> dict[tuple[StagingToken, bytes], Staged]:
    """Return the entries of keys in tokens, tombstones included. One read for as many keys as the store takes."""
    cells = {(token_partition(token), key): (token, key) for token in tokens for key in keys}
    return {cells[cell]: decode_staged(found.value, place_of(*cells[cell]))
            for cell, found in store.get_many(cells).items()}


def set_staged(store: KVStore, token: StagingToken, entries: Mapping[bytes, Staged]) -> None:
    """Write or overwrite entries. `OutcomeUnknown` if a later of several writes fails."""
    change_many(store, token_partition(token), {key: encode_staged(staged) for key, staged in entries.items()})


def remove_staged(store: KVStore, token: StagingToken, limit: int) -> int:
    """Remove at most `limit` entries of a dropped token, and return their number."""
    partition = token_partition(token)
    with store.scan(partition, keys_only=True) as entries:
        keys = [entry.key for entry in islice(entries, limit)]
    change_many(store, partition, dict.fromkeys(keys))
    return len(keys)


class MergedTokens:
    """Iterates over the newest record or tombstone of each key of tokens, in order. For one thread.

    `base` is the oldest layer, already at `start`; it is not limited to the prefix. `page_size` is that of the first
    page read of each token. `scanned` counts the entries read, including hidden ones. O(log tokens) for an entry.
    """

    def __init__(self, store: KVStore, newest_first: Sequence[StagingToken], start: bytes = b"", *,
                 prefix: bytes = b"", page_size: int | None = None, base: RangeScan | None = None) -> None:
        self.scanned: int = 0
        self._scans = {token: store.scan(token_partition(token), start, prefix=prefix, page_size=page_size)
                       for token in newest_first}
        self._base = base
        self._merged = self._merge()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> tuple[bytes, Change]:
        return next(self._merged)

    def seek(self, key: bytes) -> None:
        """Continue with the first key >= `key`."""
        for scan in self._scans.values():
            scan.seek(key)
        if self._base is not None:
            self._base.seek(key)
        self._merged = self._merge()

    def _merge(self) -> Iterator[tuple[bytes, Change]]:
        layers = [_entries(layer, token, scan) for layer, (token, scan) in enumerate(self._scans.items())]
        base = ((key, len(layers), record) for key, record in self._base or ())
        given = None
        for key, _, record in heapq.merge(*layers, base):
            self.scanned += 1
            if key != given:  # else an older entry
                given = key
                yield key, record


def _entries(layer: int, token: StagingToken, scan: Entries) -> Iterator[tuple[bytes, int, Change]]:
    for entry in scan:
        yield entry.key, layer, decode_staged(entry.value, place_of(token, entry.key)).record
