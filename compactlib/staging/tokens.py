# SPDX-License-Identifier: Apache-2.0
"""`StagingTokens`: the staged entries of tokens, each token a partition of the key-value store.

A token is drawn at random, entered in the repository's register, used by one branch, and dropped; it never comes back.
The register is what the sweep for orphans reads: a token that is in it and in no branch record is of no use any more.
Dropping marks a token; physical removal is the cleanup's, after a grace period.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Final

import attrs

from compactlib.clock import Clock
from compactlib.errors import InvalidInput
from compactlib.files.record_frame import RecordFrame
from compactlib.kv import Condition, Delete, KeyNotFound, KVStore, PredicateFailed, Put
from compactlib.kv.batches import change_many, get_many
from compactlib.kv.errors import TooLarge
from compactlib.kv.store import Predicate
from compactlib.staging.names import (
    DROPPED,
    TOKENS,
    StagingToken,
    dropped_key,
    token_key,
    token_partition,
)
from compactlib.staging.staged import Staged, decode_staged, encode_staged
from compactlib.staging.stored import Fields, frame_of, pack, unpack
from compactlib.staging.values import Record

_REGISTER: Final = frame_of(b"CLTOKEN\0")
_DROPPED: Final = frame_of(b"CLDROPPD")


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
class TokenMark:
    """A token in the register, or in the list of dropped ones.

    Attributes:
        token: which token.
        branch: whose it was.
        at: when it was entered or dropped, in seconds since the epoch, by the clock of the process that did it.
        predicate: of the mark's cell in the key-value store.
    """

    token: StagingToken
    branch: str
    at: float
    predicate: Predicate


class StagingTokens:
    """Staged entries of tokens, the register of tokens, and the marks of dropped ones. Threads may share it.

    Every method raises what the key-value store raises, and `CorruptData` or `Unsupported` for what cannot be read.

    Args:
        store: where.
        partition: the repository's, for register and marks.
        random: draws tokens and write ids; must not repeat in any process (`random.SystemRandom()`).
        clock: dates register and marks.
    """

    def __init__(self, store: KVStore, partition: bytes, random: random.Random, clock: Clock) -> None:
        self._store = store
        self._partition = partition
        self._random = random
        self._clock = clock

    # --- tokens

    def draw(self) -> StagingToken:
        """A token that was never used, not in the register. No request. For branch records, see `issue`."""
        return StagingToken(f"stg-{self._random.getrandbits(128):032x}")

    def draw_write_id(self) -> bytes:
        """8 random bytes, never all zeros. No request."""
        return self._random.randrange(1, 1 << 64).to_bytes(8, "little")

    def issue(self, branch: str) -> StagingToken:
        """A new token, entered in the register so that a branch record may name it. One write.

        For one compare-and-set only: a token that a record may have named once must not come back in another one.
        """
        token = self.draw()
        self.enter(token, branch)
        return token

    def enter(self, token: StagingToken, branch: str) -> None:
        """Enter a token in the register. One write; again does no harm."""
        entry = self.entry(token, branch)
        self._store.set(entry.partition, entry.key, entry.value)

    def entry(self, token: StagingToken, branch: str) -> Put:
        """What enters a token in the register, for a `transact`. No request."""
        return Put(self._partition, token_key(token), self._mark(_REGISTER, branch))

    def knows(self, token: StagingToken) -> bool:
        """Whether the token is one of this repository that was not cleaned up yet. One or two reads."""
        for key in token_key(token), dropped_key(token):
            with contextlib.suppress(KeyNotFound):
                self._store.get(self._partition, key)
                return True
        return False

    def registered(self) -> Iterator[TokenMark]:
        """Every token of the register, in order."""
        return self._marks(TOKENS, _REGISTER)

    def mark_dropped(self, dropped: Mapping[StagingToken, str]) -> None:
        """Say that no branch record names these tokens, each of a branch, any more. One write for all, where the store
        can; again does no harm.
        """
        change_many(self._store, self._partition, {
            dropped_key(token): self._mark(_DROPPED, branch) for token, branch in dropped.items()})

    def dropped(self) -> Iterator[TokenMark]:
        """Every mark of a dropped token, in order."""
        return self._marks(DROPPED, _DROPPED)

    def unmark_dropped(self, mark: TokenMark) -> None:
        """Take back the mark of a token, unless it was marked anew. One write."""
        with contextlib.suppress(PredicateFailed):
            self._store.delete_if(self._partition, dropped_key(mark.token), mark.predicate)

    def date_anew(self, mark: TokenMark, *, is_dropped: bool) -> None:
        """Give a mark, or an entry of the register, the present time, unless another writer wrote it. One write."""
        key, frame = ((dropped_key, _DROPPED) if is_dropped else (token_key, _REGISTER))
        with contextlib.suppress(PredicateFailed):
            self._store.set_if(self._partition, key(mark.token), self._mark(frame, mark.branch), mark.predicate)

    def forget(self, tokens: Iterable[StagingToken]) -> None:
        """Remove tokens from the register, each before its mark: after their entries were removed. One write for all,
        where the store can.
        """
        change_many(self._store, self._partition, {
            key: None for token in tokens for key in (token_key(token), dropped_key(token))})

    def forget_emptied(self, marks: Sequence[TokenMark]) -> None:
        """Remove tokens whose entries were removed from the register, then their marks, unless one was marked anew:
        something was written to it meanwhile. One write for many, where the store can.
        """
        partition, at_once = self._partition, self._store.limits.max_transact // 3
        for at in range(0, len(marks), max(1, at_once)):
            part = marks[at:at + max(1, at_once)]
            if at_once:
                with contextlib.suppress(PredicateFailed, TooLarge):
                    self._store.transact(
                        [Condition(partition, dropped_key(mark.token), mark.predicate) for mark in part],
                        deletes=[Delete(partition, key(mark.token)) for mark in part
                                 for key in (token_key, dropped_key)])
                    continue
            change_many(self._store, partition, {token_key(mark.token): None for mark in part})
            for mark in part:
                self.unmark_dropped(mark)

    # --- entries

    def get(self, token: StagingToken, key: bytes) -> FoundStaged | None:
        """The entry of a key, tombstones included; `None` if there is none. One read."""
        partition = token_partition(token)
        try:
            found = self._store.get(partition, key)
        except KeyNotFound:
            return None
        return FoundStaged(decode_staged(found.value, _place(token, key)), found.predicate)

    def get_many(self, tokens: Sequence[StagingToken], keys: Sequence[bytes],
                 ) -> dict[tuple[StagingToken, bytes], FoundStaged]:
        """The entries of keys in any of these tokens, tombstones included. One read for all, where the store can."""
        cells = {(token_partition(token), key): (token, key) for token in tokens for key in keys}
        return {cells[cell]: FoundStaged(decode_staged(found.value, _place(*cells[cell])), found.predicate)
                for cell, found in get_many(self._store, cells).items()}

    @property
    def reads_many(self) -> bool:
        """Whether `get_many` is fewer reads than there are entries."""
        return self._store.limits.max_get_many > 1

    def set_many(self, token: StagingToken, entries: Mapping[bytes, Staged]) -> None:
        """Write entries, whatever was there. One write for all, where the store can.

        Raises:
            InvalidInput: the identity of a record is not bytes; nothing was written.
            PartlyWritten: it ended after the first of several writes.
        """
        cells = {key: _encoded(key, staged) for key, staged in entries.items()}
        change_many(self._store, token_partition(token), cells)

    def set(self, token: StagingToken, key: bytes, staged: Staged) -> None:
        """Write an entry, whatever was there. One write.

        Raises:
            InvalidInput: the identity of the record is not bytes; the old entry stays.
        """
        self._store.set(token_partition(token), key, _encoded(key, staged))

    def set_if(self, token: StagingToken, key: bytes, staged: Staged, predicate: Predicate | None) -> None:
        """Write an entry if its cell is in the expected state; as `KVStore.set_if`. One write.

        Raises:
            PredicateFailed: it is not; nothing was written.
        """
        self._store.set_if(token_partition(token), key, _encoded(key, staged), predicate)

    def scan(self, token: StagingToken, start: bytes = b"", *, prefix: bytes = b"", page_size: int | None = None,
             ) -> StagedScan:
        """The entries of a token from the first key >= `start` on, in order, tombstones included."""
        return StagedScan(self._store, token, start, prefix, page_size)

    def is_empty(self, token: StagingToken) -> bool:
        """Whether the token holds no entry at all. One read."""
        with self._store.scan(token_partition(token), page_size=1, keys_only=True) as entries:
            return next(entries, None) is None

    def remove_some(self, token: StagingToken, limit: int) -> int:
        """Remove the first entries, at most `limit`; gives how many there were. One write for all, where the store can.

        May be interrupted and called again. Of a token in use only the cleanup may ask for it.

        Raises:
            PartlyWritten: it ended after the first of several writes.
        """
        partition = token_partition(token)
        with self._store.scan(partition, keys_only=True) as entries:
            keys = [entry.key for entry in islice(entries, limit)]
        change_many(self._store, partition, dict.fromkeys(keys))
        return len(keys)

    def _mark(self, frame: RecordFrame, branch: str) -> bytes:
        return pack(frame, {"branch": branch, "at_ms": round(self._clock.now() * 1000)})

    def _marks(self, prefix: bytes, frame: RecordFrame) -> Iterator[TokenMark]:
        with self._store.scan(self._partition, prefix=prefix) as entries:
            for entry in entries:
                place = f"key {entry.key!r} of partition {self._partition!r}"
                fields = Fields(unpack(frame, entry.value, place), place)
                mark = TokenMark(StagingToken(entry.key[len(prefix):].decode("ascii", "replace")),
                                 fields.take("branch", str), fields.take("at_ms", int) / 1000, entry.predicate)
                fields.end()
                yield mark


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


def _encoded(key: bytes, staged: Staged) -> bytes:
    record: Any = staged.record
    if record is not None and not (isinstance(record, Record) and all(
            isinstance(part, bytes) for part in (record.identity, record.data))):
        raise InvalidInput(f"the entry of key {key[:100]!r} is no record of bytes: {record!r}; its identity and data "
                           f"are bytes, and a tombstone is None")
    return encode_staged(staged)


def _place(token: StagingToken, key: bytes) -> str:
    return f"key {key[:100]!r} of staging token {token}"
