# SPDX-License-Identifier: Apache-2.0
"""`BranchView`: one state of a branch, seen through its layers; and `consistently`, which reads until a view held.

A view is only a list of places: the tokens of a record, and the metarange under them. While a view is read, a commit or
a compaction may move the contents of those places elsewhere, and a cleanup may empty them. A read through a view is
therefore worth something only if the branch's record still names all its layers afterwards. One place needs no second
look: what lies in the staging token is newer than everything else, and a write that is newer still was not acknowledged
before the read began.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import attrs

from compactlib.kv.store import Predicate
from compactlib.staging.context import StagingContext
from compactlib.staging.record import BranchRecord
from compactlib.staging.staged import Staged
from compactlib.staging.tokens import MergedTokens
from compactlib.staging.values import MetaRangeId, Record

T = TypeVar("T")

_MAX_CELLS = 10_000
"""Entries asked for in one call: as many sealed tokens are read at once."""


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
        """Return the view of a record. Reads the HEAD commit, if it is not in memory."""
        context.activity.read(branch, record)
        return cls(context, branch, record, context.commits.metarange_of(record.commit_id))

    @property
    def base(self) -> MetaRangeId | None:
        """The metarange under the tokens."""
        return self.record.base(self.head)

    def find(self, key: bytes) -> Found:
        """Return where the newest record or tombstone of a key is. At most two requests, and a range of the base."""
        return self.find_many((key,))[key]

    def find_many(self, keys: Sequence[bytes]) -> dict[bytes, Found]:
        """The same for many keys; opens each range of the base once."""
        found = self.find_staged(keys)
        missing = [key for key, place in found.items() if place.layer is None]
        if missing:
            base_layer = len(self.record.tokens)
            found.update((key, Found(base_layer, record))
                         for key, record in self.context.committed.get_many(self.base, missing).items())
        return found

    def find_staged(self, keys: Sequence[bytes]) -> dict[bytes, Found]:
        """The same in the tokens alone: one request for the staging token, one for all sealed ones."""
        found = dict.fromkeys(keys, Found())
        tokens = self.context.tokens
        for (_, key), cell in tokens.get_many([self.record.staging_token], keys).items():
            found[key] = Found(0, cell.staged.record, cell.staged, cell.predicate)
        step = max(1, _MAX_CELLS // max(1, len(keys)))
        for first in range(0, len(self.record.sealed_tokens), step):
            missing = [key for key, place in found.items() if place.layer is None]
            if not missing:
                break
            sealed = self.record.sealed_tokens[first:first + step]
            cells = tokens.get_many(sealed, missing)
            for key in missing:
                for layer, token in enumerate(sealed, first + 1):
                    if (token, key) in cells:
                        staged = cells[token, key].staged
                        found[key] = Found(layer, staged.record, staged)
                        break
        return found

    def staged(self, start: bytes = b"", *, prefix: bytes = b"", page_size: int | None = None) -> MergedTokens:
        """Return the newest staged entry of every key, tombstones included, in order."""
        return MergedTokens(self.context.tokens, self.record.tokens, start, prefix=prefix, page_size=page_size)


def consistently(context: StagingContext, branch: str, read: Callable[[BranchView], tuple[T, bool]]) -> T:
    """Read through views of a branch until one held; see `BranchStore.consistently`."""
    return context.branches.consistently(
        branch, lambda found: read(BranchView.of(context, branch, found.record)), operation="read")[0]
