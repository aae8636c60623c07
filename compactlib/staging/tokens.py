# SPDX-License-Identifier: Apache-2.0
"""`StagingTokens`: the staged entries of tokens, each token a partition of the key-value store; and the drop marks.

A token is drawn at random, named by one branch record, and dropped; it never comes back. The step that takes tokens out
of a record writes one *drop mark* with their names, so that there is no moment in which a token is in neither. The
cleanup removes their entries after a grace period, and then the mark.

A reset of a prefix fills a token before a record names it. It first writes a mark that says so (`is_prepared`), and the
step that names the token deletes the mark, on the condition that it is unchanged. The cleanup *claims* such a mark
before it empties the token: it rewrites it as that of a dropped one, and then no record can name the token any more.

1. A token that a record names has no mark, but for a late write (`mark_late`) to a token that was dropped meanwhile.
2. A token that no record names has a mark, or holds nothing.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Final

import attrs

from compactlib.clock import Clock
from compactlib.errors import InvalidInput
from compactlib.files.record_frame import RecordFrame
from compactlib.kv import KeyNotFound, KVStore, PredicateFailed, Put
from compactlib.kv.batches import change_many, get_many
from compactlib.kv.store import Predicate
from compactlib.staging.names import DROPPED, StagingToken, token_partition
from compactlib.staging.staged import Staged, decode_staged, encode_staged
from compactlib.staging.stored import Fields, pack, unpack
from compactlib.staging.values import Change, Record

_MARK: Final = RecordFrame("drop mark", b"CLDROPPD", 2, "<H2xI")


@attrs.frozen
class FoundStaged:
    """A staged entry and the state of its cell.

    Attributes:
        staged: the entry.
        predicate: of its cell in the key-value store.
    """

    staged: Staged
    predicate: Predicate


@attrs.frozen
class DropMark:
    """Tokens that no branch record names.

    Attributes:
        key: of the mark's cell.
        branch: whose they were.
        tokens: their names.
        at: when the mark was written, in seconds since the epoch, by the clock of the process that did it.
        is_prepared: whether a record may yet name the one token.
        predicate: of the mark's cell.
    """

    key: bytes
    branch: str
    tokens: tuple[StagingToken, ...]
    at: float
    is_prepared: bool
    predicate: Predicate


class StagingTokens:
    """Staged entries of tokens, and drop marks. Threads may share it.

    Every method raises what the key-value store raises, and `CorruptData` or `Unsupported` for what cannot be read.

    Args:
        store: where.
        partition: the repository's, for the marks.
        random: draws tokens, marks and write ids; must not repeat in any process (`random.SystemRandom()`).
        clock: dates the marks.
    """

    def __init__(self, store: KVStore, partition: bytes, random: random.Random, clock: Clock) -> None:
        self._store = store
        self._partition = partition
        self._random = random
        self._clock = clock

    def draw(self) -> StagingToken:
        """Return a token that was never used. No request."""
        return StagingToken(f"stg-{self._random.getrandbits(128):032x}")

    def draw_write_id(self) -> bytes:
        """Return 8 random bytes, never all zeros. No request."""
        return self._random.randrange(1, 1 << 64).to_bytes(8, "little")

    # --- drop marks

    def mark(self, branch: str, tokens: Iterable[StagingToken], *, is_prepared: bool = False) -> Put:
        """Return the write of a new mark, for the step that drops these tokens. No request."""
        return self._mark(DROPPED + b"%016x" % self._random.getrandbits(64), branch, tokens, is_prepared=is_prepared)

    def mark_prepared(self, branch: str, token: StagingToken) -> DropMark | None:
        """Write the mark of a token that is filled before a record names it; `None` if it was claimed at once.

        Two requests.
        """
        put = self.mark(branch, [token], is_prepared=True)
        self._store.set(put.partition, put.key, put.value)
        try:
            found = self._store.get(put.partition, put.key)
        except KeyNotFound:
            return None
        mark = self._decoded(put.key, found.value, found.predicate)
        return mark if mark.is_prepared else None

    def mark_late(self, branch: str, token: StagingToken) -> None:
        """Mark a dropped token into which an entry was written late: the cleanup may be over. One write."""
        put = self.mark(branch, [token])
        self._store.set(put.partition, put.key, put.value)

    def marks(self) -> Iterator[DropMark]:
        """Return every mark."""
        with self._store.scan(self._partition, prefix=DROPPED) as entries:
            for entry in entries:
                yield self._decoded(entry.key, entry.value, entry.predicate)

    def claim(self, mark: DropMark) -> bool:
        """Rewrite a prepared mark as that of a dropped token; returns whether it was still there. One write."""
        put = self._mark(mark.key, mark.branch, mark.tokens, is_prepared=False)
        try:
            self._store.set_if(put.partition, put.key, put.value, mark.predicate)
        except PredicateFailed:
            return False
        return True

    def forget(self, marks: Iterable[DropMark]) -> None:
        """Remove marks whose tokens are empty. One write for all, where the store takes so many."""
        change_many(self._store, self._partition, dict.fromkeys(mark.key for mark in marks))

    def _mark(self, key: bytes, branch: str, tokens: Iterable[StagingToken], *, is_prepared: bool) -> Put:
        return Put(self._partition, key, pack(_MARK, {
            "branch": branch, "tokens": list(tokens), "at_ms": round(self._clock.now() * 1000),
            "is_prepared": is_prepared}))

    def _decoded(self, key: bytes, value: bytes, predicate: Predicate) -> DropMark:
        place = f"key {key!r} of partition {self._partition!r}"
        fields = Fields(unpack(_MARK, value, place), place)
        mark = DropMark(key, fields.take("branch", str), tuple(map(StagingToken, fields.take_texts("tokens"))),
                        fields.take("at_ms", int) / 1000, fields.take("is_prepared", bool), predicate)
        fields.end()
        return mark

    # --- entries

    def get(self, token: StagingToken, key: bytes) -> FoundStaged | None:
        """Return the entry of a key, tombstones included; `None` if there is none. One read."""
        partition = token_partition(token)
        try:
            found = self._store.get(partition, key)
        except KeyNotFound:
            return None
        return FoundStaged(decode_staged(found.value, _place(token, key)), found.predicate)

    def get_many(self, tokens: Sequence[StagingToken], keys: Sequence[bytes],
                 ) -> dict[tuple[StagingToken, bytes], FoundStaged]:
        """Return the entries of keys in any of these tokens, tombstones included. One read for as many as it takes."""
        cells = {(token_partition(token), key): (token, key) for token in tokens for key in keys}
        return {cells[cell]: FoundStaged(decode_staged(found.value, _place(*cells[cell])), found.predicate)
                for cell, found in get_many(self._store, cells).items()}

    def set_many(self, token: StagingToken, entries: Mapping[bytes, Staged]) -> None:
        """Write entries, whatever was there. One write for as many as it takes.

        Raises:
            InvalidInput: the identity of a record is not bytes; nothing was written.
            OutcomeUnknown: it ended after the first of several writes.
        """
        cells = {key: _encoded(key, staged) for key, staged in entries.items()}
        change_many(self._store, token_partition(token), cells)

    def scan(self, token: StagingToken, start: bytes = b"", *, prefix: bytes = b"", page_size: int | None = None,
             ) -> StagedScan:
        """Return the entries of a token from the first key >= `start` on, in order, tombstones included."""
        return StagedScan(self._store, token, start, prefix, page_size)

    def is_empty(self, token: StagingToken) -> bool:
        """Whether the token holds no entry at all. One read."""
        with self._store.scan(token_partition(token), page_size=1, keys_only=True) as entries:
            return next(entries, None) is None

    def remove_some(self, token: StagingToken, limit: int) -> int:
        """Remove the first entries, at most `limit`; returns how many there were. For the cleanup of dropped tokens."""
        partition = token_partition(token)
        with self._store.scan(partition, keys_only=True) as entries:
            keys = [entry.key for entry in islice(entries, limit)]
        change_many(self._store, partition, dict.fromkeys(keys))
        return len(keys)


class StagedScan:
    """The entries of one token in order of their keys; can seek. For one thread; holds nothing that needs closing."""

    def __init__(self, store: KVStore, token: StagingToken, start: bytes, prefix: bytes, page_size: int | None) -> None:
        self._token = token
        self._entries = store.scan(token_partition(token), start, prefix=prefix, page_size=page_size)

    def __iter__(self) -> StagedScan:
        return self

    def __next__(self) -> tuple[bytes, Staged]:
        entry = next(self._entries)
        return entry.key, decode_staged(entry.value, _place(self._token, entry.key))

    def seek(self, key: bytes) -> None:
        """Go on with the first key >= `key`."""
        self._entries.seek(key)


class MergedTokens:
    """The newest entry of every key of some tokens, in order of the keys; can seek. For one thread.

    O(log tokens) for an entry. What a store raises goes through, and never ends the stream early: the next call goes on
    with the same entry.

    Args:
        tokens: where the entries are.
        newest_first: which tokens.
        start: begin at the first key >= `start`.
        prefix: only keys that begin so.
        page_size: how many entries to ask each token for at first.

    Attributes:
        scanned: how many entries were read so far, those that a newer one hides included.
    """

    def __init__(self, tokens: StagingTokens, newest_first: Sequence[StagingToken], start: bytes = b"", *,
                 prefix: bytes = b"", page_size: int | None = None) -> None:
        self.scanned: int = 0
        self._scans: list[StagedScan] = [tokens.scan(token, start, prefix=prefix, page_size=page_size)
                                         for token in newest_first]
        self._heap: list[tuple[bytes, int, Staged]] = []
        self._filled = 0  # how many tokens are in the heap, if they hold anything more
        self._given: bytes | None = None  # the last key: its entries are passed over first

    def __iter__(self) -> Iterator[tuple[bytes, Staged]]:
        return self

    def __next__(self) -> tuple[bytes, Staged]:
        while self._filled < len(self._scans):
            entry = next(self._scans[self._filled], None)
            if entry is not None:
                heapq.heappush(self._heap, (entry[0], self._filled, entry[1]))
                self.scanned += 1
            self._filled += 1
        while self._heap and self._heap[0][0] == self._given:
            self._advance(self._heap[0][1])
        if not self._heap:
            raise StopIteration
        self._given, _, staged = self._heap[0]
        return self._given, staged

    def seek(self, key: bytes) -> None:
        """Go on with the first key >= `key`."""
        for scan in self._scans:
            scan.seek(key)
        self._heap, self._filled, self._given = [], 0, None

    def _advance(self, layer: int) -> None:
        """Replace the head of the heap, which is of this layer, by the layer's next entry."""
        entry = next(self._scans[layer], None)
        if entry is None:
            heapq.heappop(self._heap)
        else:
            self.scanned += 1
            heapq.heapreplace(self._heap, (entry[0], layer, entry[1]))


def changes_of(tokens: StagingTokens, newest_first: Sequence[StagingToken]) -> Iterator[tuple[bytes, Change]]:
    """Return what some tokens together change, as `CommittedRanges.apply` takes it: one change per key, in order."""
    for key, staged in MergedTokens(tokens, newest_first):
        yield key, staged.record


def _encoded(key: bytes, staged: Staged) -> bytes:
    record: Any = staged.record
    if record is not None and not (isinstance(record, Record) and all(
            isinstance(part, bytes) for part in (record.identity, record.data))):
        raise InvalidInput(f"the entry of key {key[:100]!r} is no record of bytes: {record!r}; its identity and data "
                           f"are bytes, and a tombstone is None")
    return encode_staged(staged)


def _place(token: StagingToken, key: bytes) -> str:
    return f"key {key[:100]!r} of staging token {token}"
