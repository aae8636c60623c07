# SPDX-License-Identifier: Apache-2.0
"""`StagingOptions`: retries, limits and grace periods of a repository."""

from __future__ import annotations

from math import inf

import attrs

from compactlib._arguments import is_seconds, is_whole
from compactlib.kv import Retries

MAX_BATCH_KEYS = 1000
"""The most keys of a `delete_many`, `put_many` or `get_many`."""


_RETRIES = Retries(10, first_seconds=0.005, longest_seconds=5.0)


@attrs.frozen(kw_only=True)
class StagingOptions:
    """Settings of a `Repository`.

    Attributes:
        retries: number and waits of the tries of a put or delete whose staging token was replaced, of a read whose
            layers were replaced, and of a change of a branch record.
        max_scanned: staged and committed entries that a page of a listing or diff reads before it ends early.
        grace_seconds: age of a dropped token before `reclaim` removes its entries; must exceed the longest read, which
            would have to start over.
        owns_ranges: whether this repository alone uses the ranges (of the object store, or of the prefix): only then
            `reclaim` collects unneeded ranges.
        range_grace_seconds: age of a range before it may be collected; must exceed the longest commit, compaction and
            scan.

    Raises:
        InvalidInput: a number is out of its range.
    """

    retries: Retries = _RETRIES
    max_scanned: int = attrs.field(default=100_000, validator=is_whole(1))
    grace_seconds: float = attrs.field(default=3600.0, validator=is_seconds(most=inf))
    owns_ranges: bool = False
    range_grace_seconds: float = attrs.field(default=86_400.0, validator=is_seconds(most=inf))
