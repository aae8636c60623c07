# SPDX-License-Identifier: Apache-2.0
"""`BranchView`: one state of a branch, seen through its layers; and `consistently`, which reads until a view held.

A view is only a list of places to look: the tokens of a record, and the metarange under them. While a view is read, a
commit or a compaction may move the contents of those places elsewhere, and a cleanup may empty them. A read through a
view is therefore worth something only if the branch's record still names all its layers afterwards. One place needs no
second look: what lies in the staging token is newer than everything else, and a write that is newer still was not
acknowledged before the read began.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import TypeVar

import attrs

from compactlib.kv.store import Predicate
from compactlib.staging.context import StagingContext
from compactlib.staging.layers import MergedTokens
from compactlib.staging.record import BranchRecord
from compactlib.staging.staged import Staged
from compactlib.staging.tokens import FoundStaged
from compactlib.staging.values import MetaRangeId, Record

T = TypeVar("T")

_MAX_CELLS = 10_000
"""Entries asked for in one read: as many sealed tokens are looked into at once."""


@attrs.frozen
class Found:
    """Where a key was found.

    Attributes:
        layer: 0 for the staging token, 1 and up for the sealed ones, newest first; one more for the base; `None` if no
            layer holds anything of the key.
        record: its value; `None` if it has none: no record anywhere, or a tombstone on top.
        staged: the staged entry, if it was found in a token.
        predicate: of the cell in the staging token, if it was found there.
    """

    layer: int | None = None
    record: Record | None = None
    staged: Staged | None = None
    predicate: Predicate | None = None

    @classmethod
    def in_token(cls, layer: int, cell: FoundStaged) -> Found:
        """What a token holds."""
        return cls(layer, cell.staged.record, cell.staged, cell.predicate if layer == 0 else None)

    @property
    def in_staging_token(self) -> bool:
        """Whether it was found where writes go."""
        return self.layer == 0


@attrs.frozen
class BranchView:
    """A state of a branch: the tokens of its record, newest first, over its base.

    Attributes:
        context: the stores.
        branch: the branch's name.
        record: the record.
        head: the metarange of HEAD; `None` if nothing was ever committed.
    """

    context: StagingContext
    branch: str
    record: BranchRecord
    head: MetaRangeId | None

    @classmethod
    def of(cls, context: StagingContext, branch: str, record: BranchRecord) -> BranchView:
        """The view of a record. Reads the HEAD commit, if it is not in memory."""
        context.events.record_seen(branch, record)
        return cls(context, branch, record, context.commits.metarange_of(record.commit_id))

    @property
    def base(self) -> MetaRangeId | None:
        """See `BranchRecord.base`."""
        return self.record.base(self.head)

    def find(self, key: bytes) -> Found:
        """Where the newest record or tombstone of a key is. One request per token down to it, then the base."""
        found = self.find_staged(key)
        if found.layer is not None:
            return found
        record = self.context.committed.get(self.base, key)
        return found if record is None else Found(len(self.record.tokens), record)

    def find_staged(self, key: bytes) -> Found:
        """The same in the tokens alone."""
        for layer, token in enumerate(self.record.tokens):
            cell = self.context.tokens.get(token, key)
            if cell is not None:
                return Found.in_token(layer, cell)
        return Found()

    def find_many(self, keys: Sequence[bytes]) -> dict[bytes, Found]:
        """The same as `find` for many keys; opens each range of the base once.

        Where the store reads many keys in one request, one for the staging token and one for all sealed ones.
        """
        if len(keys) < 2:
            return {key: self.find(key) for key in keys}
        found = self._find_many_staged(keys)
        missing = [key for key, place in found.items() if place.layer is None]
        if missing:
            base_layer = len(self.record.tokens)
            found.update((key, Found(base_layer, record))
                         for key, record in self.context.committed.get_many(self.base, missing).items())
        return found

    def _find_many_staged(self, keys: Sequence[bytes]) -> dict[bytes, Found]:
        tokens = self.record.tokens
        found = dict.fromkeys(keys, Found())
        step = max(1, _MAX_CELLS // len(keys)) if self.context.tokens.reads_many else 1
        # The staging token by itself: what is there is newest, and most of what is asked for may be.
        for first, end in pairwise([0, *range(1, len(tokens), step), len(tokens)]):
            missing = [key for key, place in found.items() if place.layer is None]
            cells = self.context.tokens.get_many(tokens[first:end], missing)
            for key in missing:
                for layer in range(first, end):
                    cell = cells.get((tokens[layer], key))
                    if cell is not None:
                        found[key] = Found.in_token(layer, cell)
                        break
        return found

    def staged(self, start: bytes = b"", *, prefix: bytes = b"", page_size: int | None = None) -> MergedTokens:
        """The newest staged entry of every key, tombstones included, in order."""
        return MergedTokens(self.context.tokens, self.record.tokens, start, prefix=prefix, page_size=page_size)


def consistently(context: StagingContext, branch: str, read: Callable[[BranchView], tuple[T, bool]]) -> T:
    """Read through views of a branch until one held; see `BranchStore.consistently`."""
    return context.branches.consistently(
        branch, lambda found: read(BranchView.of(context, branch, found.record)), operation="read")[0]
