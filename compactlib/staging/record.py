# SPDX-License-Identifier: Apache-2.0
"""`BranchRecord`: the stored value that names the layers of a branch; changed by compare-and-set only.

The layers, newest first: the staging token, the sealed tokens, and the base: the compacted metarange if there is one,
else that of the HEAD commit.

`Cells` are the stored values of a repository. docs/formats/staging-records.md describes each byte.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from random import Random
from typing import Final, TypeVar

import attrs

from compactlib.clock import Clock
from compactlib.errors import Busy, CompactlibError, CorruptData
from compactlib.files.durable_record import JsonRecord
from compactlib.kv import KVStore, Retries
from compactlib.kv.batches import sound_entries
from compactlib.kv.cell import Cell, Found, Judge, Swap, swap
from compactlib.kv.store import Address
from compactlib.staging.values import CommitId, MetaRangeId, StagingToken, is_commit_id, is_staging_token

T = TypeVar("T")


@attrs.frozen
class Cells:
    """The partition of a repository in the key-value store, and how its cells are changed. Threads may share it."""

    store: KVStore
    partition: bytes
    retries: Retries
    clock: Clock
    rng: Random

    def address(self, key: bytes) -> Address:
        """Return the address of a key."""
        return self.partition, key

    def place(self, key: bytes) -> str:
        """Return the name of a cell, for errors."""
        return f"key {key!r} of partition {self.partition!r}"

    def cell(self, key: bytes, kind: type[T]) -> Cell[T]:
        """Return the cell of a key that holds values of this type."""
        return Cell(self.store, self.partition, key, kind, retries=self.retries, clock=self.clock, rng=self.rng)

    def get(self, key: bytes) -> bytes | None:
        """Return the value of a key; `None` without one. One read."""
        found = self.store.get_many([self.address(key)])
        return found[self.address(key)].value if found else None

    def scan(self, prefix: bytes, damage: dict[bytes, CompactlibError] | None = None) -> Iterator[tuple[bytes, bytes]]:
        """Yield the keys with a prefix and their values, in order; see `compactlib.kv.batches.sound_entries`."""
        for entry in sound_entries(self.store, self.partition, damage, prefix=prefix):
            yield entry.key, entry.value

    def tries(self) -> Iterator[int]:
        """Yield the number of each try of a call, after a wait from the second on."""
        return self.retries.paced(self.clock, self.rng)

    def swap(self, read: Iterable[Address], decide: Callable[[Found], Swap[T]], *, operation: str,
             may_repeat: bool = False, judge: Judge[T] | None = None) -> T:
        """Read cells, decide, and write if none of them has changed; see `compactlib.kv.cell.swap`."""
        return swap(self.store, read, decide, operation=operation, may_repeat=may_repeat, judge=judge,
                    retries=self.retries, clock=self.clock, rng=self.rng)


MAX_SEALED_TOKENS: Final = 1000
"""The most sealed tokens of a branch: bounds the size of the record and the cost of a read."""


@attrs.frozen(kw_only=True)
class BranchRecord:
    """The layers of a branch. `new` makes the record of a new branch.

    Attributes:
        version: 1 for a new branch, incremented by every write of the record. Invariant: records of a branch with equal
            versions are equal, so that a store that compares values has no ABA.
        commit_id: HEAD; `None` without a commit.
        staging_token: takes the writes.
        sealed_tokens: tokens that take no more writes, newest first.
        compacted_metarange_id: the result of the last compaction; `None` if the branch was not compacted since HEAD
            last moved. An empty metarange is not `None`.
        compaction_started_at_ms: start of the last compaction, in milliseconds since the epoch.
    """

    version: int
    commit_id: CommitId | None
    staging_token: StagingToken
    sealed_tokens: tuple[StagingToken, ...]
    compacted_metarange_id: MetaRangeId | None
    compaction_started_at_ms: int | None

    @classmethod
    def new(cls, staging_token: StagingToken, commit_id: CommitId | None = None) -> BranchRecord:
        """Return the first record of a branch."""
        return cls(version=1, commit_id=commit_id, staging_token=staging_token, sealed_tokens=(),
                   compacted_metarange_id=None, compaction_started_at_ms=None)

    @property
    def compaction_started_at(self) -> float | None:
        """Start of the last compaction, in seconds since the epoch."""
        return None if self.compaction_started_at_ms is None else self.compaction_started_at_ms / 1000

    @property
    def tokens(self) -> tuple[StagingToken, ...]:
        """All tokens, newest first."""
        return (self.staging_token, *self.sealed_tokens)

    @property
    def is_bare(self) -> bool:
        """Whether the branch has no layer between HEAD and the staging token."""
        return not self.sealed_tokens and self.compacted_metarange_id is None

    def base(self, head: MetaRangeId | None) -> MetaRangeId | None:
        """Return the metarange under the tokens: the compacted one if there is one, else `head`, that of HEAD."""
        return head if self.compacted_metarange_id is None else self.compacted_metarange_id

    def sealed_with(self, token: StagingToken) -> BranchRecord:
        """Return the record after a seal: `token` takes the writes. Raises `Busy` at the limit."""
        if len(self.sealed_tokens) >= MAX_SEALED_TOKENS:
            raise Busy(f"the branch has {MAX_SEALED_TOKENS:,} sealed tokens, the limit; compact it, or reset it")
        return attrs.evolve(self, staging_token=token, sealed_tokens=self.tokens)

    def emptied(self, token: StagingToken, commit_id: CommitId | None) -> BranchRecord:
        """Return the record with HEAD at `commit_id`, `token` for the writes, and no other layer."""
        return attrs.evolve(self, commit_id=commit_id, staging_token=token, sealed_tokens=(),
                            compacted_metarange_id=None)

    def compacted(self, metarange_id: MetaRangeId | None, *, newer: int = 0) -> BranchRecord:
        """Return the record with a compacted metarange in place of all sealed tokens but the `newer` first."""
        return attrs.evolve(self, sealed_tokens=self.sealed_tokens[:newer], compacted_metarange_id=metarange_id)

    @property
    def layers(self) -> tuple[object, ...]:
        """All that a plan depends on."""
        return self.commit_id, self.compacted_metarange_id, self.compaction_started_at_ms, self.tokens

    def is_outdated_by(self, newest: BranchRecord) -> bool:
        """Return whether this is an earlier state of the branch than `newest`.

        A lower version is not enough: the branch may have been deleted, and created again with other tokens.
        """
        return self.version < newest.version and not set(self.tokens).isdisjoint(newest.tokens)

    def extends(self, older: BranchRecord) -> bool:
        """Return whether the record still names all layers of `older`: only seals happened since.

        Then a read through `older` is valid: no cleanup can have removed a layer.
        """
        kept = older.tokens
        return (self.commit_id == older.commit_id and self.compacted_metarange_id == older.compacted_metarange_id
                and self.tokens[-len(kept):] == kept)


_FORM: Final = JsonRecord("branch record", b"CLBRANCH", 1, BranchRecord)


def encode_branch_record(record: BranchRecord) -> bytes:
    """Return the stored form of a branch record."""
    return _FORM.encode(record)


@lru_cache(100)  # most operations read a record twice; at most 100 records of 80 KiB
def decode_branch_record(data: bytes, place: str) -> BranchRecord:
    """Return the record of a stored form; `CorruptData` also if its fields contradict each other."""
    record = _FORM.decode(data, place)
    tokens, head = record.tokens, record.commit_id
    if record.version < 1 or len(set(tokens)) != len(tokens) or not all(map(is_staging_token, tokens)) or (
            head is not None and not is_commit_id(head)):
        raise CorruptData(path=place, offset=0, expected="a version of at least 1, a commit, and distinct tokens",
                          found=str(record))
    return record
