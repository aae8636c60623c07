# SPDX-License-Identifier: Apache-2.0
"""`StagingTokens`: the staged entries of tokens, each token a partition of the key-value store; and the drop marks.

A token is drawn at random, named by one branch record, and dropped; it is never reused. The step that removes tokens
from a record writes a *drop mark* with their names, so that a token is always in a record or in a mark. The cleanup
removes the entries after a grace period, and then the mark.

1. A token that a record names has no mark.
2. A token that no record names has a mark, or is empty. A late write to a dropped token marks it again (`mark_late`).

`docs/formats/staging-records.md` has the stored forms.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Final, Self

import attrs

from compactlib.clock import Clock
from compactlib.errors import CorruptData
from compactlib.files.record_frame import RecordFrame
from compactlib.kv import KVStore
from compactlib.kv.batches import change_many
from compactlib.kv.scan import Entries
from compactlib.kv.store import Address
from compactlib.staging.names import DROPPED, StagingToken, token_partition
from compactlib.staging.record import StoredForm
from compactlib.staging.values import Change, Record

if TYPE_CHECKING:
    from compactlib.staging.ranges.cursor import RangeScan

WRITE_ID_BYTES: Final = 8
_ENTRY: Final = RecordFrame("staged entry", b"", 1, "<BB8sI")
_VALUE: Final = 0
_TOMBSTONE: Final = 1


@attrs.frozen
class Staged:
    """One staged entry.

    Attributes:
        record: the record; `None` for a tombstone.
        write_id: drawn by the writing operation, so that a conditional put recognizes its own write; zeros if no
            operation reads it.
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


@attrs.frozen(kw_only=True)
class DropMark:
    """Tokens that no branch record names.

    Attributes:
        branch: the branch of the tokens, for people.
        tokens: their names.
        at_ms: time of the write, in milliseconds since the epoch, by the writer's clock.
    """

    branch: str
    tokens: tuple[StagingToken, ...]
    at_ms: int


MARKS: Final = StoredForm(b"CLDROPPD", DropMark)


class StagingTokens:
    """Staged entries of tokens, and drop marks. Threads may share it.

    Every method raises the errors of the key-value store, and `CorruptData` or `Unsupported` for unreadable entries.
    `random` must not repeat values in any process (`random.SystemRandom()`).
    """

    def __init__(self, store: KVStore, partition: bytes, random: random.Random, clock: Clock) -> None:
        self.store: KVStore = store
        self._partition = partition
        self._random = random
        self._clock = clock

    def draw(self) -> StagingToken:
        """Return a new token. No request."""
        return StagingToken(f"stg-{self._random.getrandbits(128):032x}")

    def draw_write_id(self) -> bytes:
        """Return 8 random bytes, never all zeros. No request."""
        return self._random.randrange(1, 1 << 64).to_bytes(WRITE_ID_BYTES, "little")

    # --- drop marks

    def mark(self, branch: str, tokens: Iterable[StagingToken]) -> dict[Address, bytes]:
        """Return the write of a new mark, for the step that drops these tokens. No request."""
        mark = DropMark(branch=branch, tokens=tuple(tokens), at_ms=round(self._clock.now() * 1000))
        return {(self._partition, DROPPED + b"%016x" % self._random.getrandbits(64)): MARKS.encode(mark)}

    def mark_late(self, branch: str, token: StagingToken) -> None:
        """Mark a dropped token after a late write to it, as the cleanup may have ended before. One write."""
        self.store.transact(changes=self.mark(branch, [token]))

    def marks(self) -> Iterator[tuple[bytes, DropMark]]:
        """Yield the key and the value of every mark."""
        with self.store.scan(self._partition, prefix=DROPPED) as entries:
            for entry in entries:
                yield entry.key, MARKS.decode(entry.value, f"key {entry.key!r} of partition {self._partition!r}")

    def forget(self, keys: Iterable[bytes]) -> None:
        """Remove marks of empty tokens by their keys. One write, where the store takes as many keys."""
        change_many(self.store, self._partition, dict.fromkeys(keys))

    # --- entries

    def get_many(self, tokens: Sequence[StagingToken], keys: Sequence[bytes],
                 ) -> dict[tuple[StagingToken, bytes], Staged]:
        """Return the entries of keys in tokens, tombstones included. One read for as many keys as the store takes."""
        cells = {(token_partition(token), key): (token, key) for token in tokens for key in keys}
        return {cells[cell]: decode_staged(found.value, place_of(*cells[cell]))
                for cell, found in self.store.get_many(cells).items()}

    def set_many(self, token: StagingToken, entries: Mapping[bytes, Staged]) -> None:
        """Write or overwrite entries. One write for as many keys as the store takes.

        Raises `OutcomeUnknown` if a later of several writes fails.
        """
        change_many(self.store, token_partition(token),
                    {key: encode_staged(staged) for key, staged in entries.items()})

    def is_empty(self, token: StagingToken) -> bool:
        """Return whether the token has no entry. One read."""
        with self.store.scan(token_partition(token), page_size=1, keys_only=True) as entries:
            return next(entries, None) is None

    def remove_some(self, token: StagingToken, limit: int) -> int:
        """Remove at most `limit` entries of a dropped token, and return their number."""
        partition = token_partition(token)
        with self.store.scan(partition, keys_only=True) as entries:
            keys = [entry.key for entry in islice(entries, limit)]
        change_many(self.store, partition, dict.fromkeys(keys))
        return len(keys)


class MergedTokens:
    """Iterates over the newest record or tombstone of each key of tokens, in order of the keys. For one thread.

    O(log tokens) for an entry.

    Args:
        tokens: holds the entries.
        newest_first: the tokens to merge.
        start: begin at the first key >= `start`.
        prefix: only staged keys with this prefix.
        page_size: size of the first page read of each token.
        base: the oldest layer, already at `start`; it is not limited to the prefix.

    Attributes:
        scanned: number of entries read, including hidden ones.
    """

    def __init__(self, tokens: StagingTokens, newest_first: Sequence[StagingToken], start: bytes = b"", *,
                 prefix: bytes = b"", page_size: int | None = None, base: RangeScan | None = None) -> None:
        self.scanned: int = 0
        self._scans = {token: tokens.store.scan(token_partition(token), start, prefix=prefix, page_size=page_size)
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
