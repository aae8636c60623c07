# SPDX-License-Identifier: Apache-2.0
"""The uncommitted changes of a branch: its differences from HEAD, key by key.

The definition is by result: a key is listed if the branch gives another answer for it than
HEAD does. A staged entry therefore always decides alone, also when it restores what HEAD has: then a difference that a
compaction made of the same key is no longer one.
"""

from __future__ import annotations

from collections.abc import Iterator

from compactlib.staging.listing import upper_bound
from compactlib.staging.tokens import MergedTokens
from compactlib.staging.values import Difference
from compactlib.staging.view import BranchView


def uncommitted_keys(view: BranchView, start: bytes = b"", *, prefix: bytes = b"",
                     page_size: int | None = None, include_staging: bool = True,
                     ) -> Iterator[tuple[bytes, Difference | None]]:
    """Every key that might differ, in order, with its difference or `None`.

    Args:
        view: the branch.
        start: begin at the first key >= `start`.
        prefix: only keys that begin so.
        page_size: how many entries to ask each token for at first.
        include_staging: `False` leaves the staging token out, as if nothing had been written to it.
    """
    start = max(start, prefix)
    tokens = view.record.tokens if include_staging else view.record.sealed_tokens
    staged = MergedTokens(view.context.tokens, tokens, start, prefix=prefix, page_size=page_size)
    compacted = _compacted(view, start, prefix)
    entry, difference = next(staged, None), next(compacted, None)
    while entry is not None or difference is not None:
        if entry is None or (difference is not None and difference.key < entry[0]):
            assert difference is not None
            yield difference.key, difference
            difference = next(compacted, None)
            continue
        key = entry[0]
        if difference is not None and difference.key == key:
            yield key, Difference.between(key, difference.left, entry[1].record)
            difference = next(compacted, None)
        else:
            head = view.context.committed.get(view.head, key)
            yield key, Difference.between(key, head, entry[1].record)
        entry = next(staged, None)


def first_uncommitted(view: BranchView, *, include_staging: bool = True) -> Difference | None:
    """The first difference between a branch and its HEAD; `None` if there is none. May read all staged entries."""
    found = uncommitted_keys(view, page_size=1, include_staging=include_staging)
    return next((difference for _, difference in found if difference is not None), None)


def _compacted(view: BranchView, start: bytes, prefix: bytes) -> Iterator[Difference]:
    compacted = view.record.compacted_metarange_id
    if compacted is None:
        return
    yield from view.context.differences.diff(view.head, compacted, start, upper_bound(prefix))
