# SPDX-License-Identifier: Apache-2.0
"""`StagingOptions`: how often the branch protocol tries, and how much one call may do."""

from __future__ import annotations

from math import inf
from typing import Any, Literal, TypeAlias

import attrs

from compactlib._arguments import is_seconds, is_whole, require_one_of
from compactlib.kv import Retries

OnNewSealed: TypeAlias = Literal["abort", "keep"]
"""What a compaction does about tokens that were sealed while it ran: give up, or leave them in front of its result."""

MAX_BATCH_KEYS = 1000
"""The most keys of one `delete_many`, `put_many` or `get_many`."""


_RETRIES = Retries(10, first_seconds=0.005, longest_seconds=5.0)


def _one_of(_: object, attribute: attrs.Attribute[Any], value: Any) -> None:
    require_one_of(attribute.name, value, OnNewSealed)


@attrs.frozen(kw_only=True)
class StagingOptions:
    """Settings of a `Repository`.

    Attributes:
        retries: how often, and with which waits, a put or delete is written anew because the staging token changed
            under it, a read starts over because the layers it read were replaced, and a change of a branch record is
            tried against others.
        max_scanned: how many staged and committed entries one page of a listing or diff looks at before it ends early.
        on_new_sealed: `"abort"`: a compaction yields to a writer that sealed a token meanwhile, most likely a
            commit, which does what a compaction does. `"keep"`: it leaves the new tokens in front of the result.
        grace_seconds: how long `reclaim` leaves the entries of a dropped token; must exceed the longest read, so that
            none has to start over for this.
        owns_ranges: whether the ranges (all of the object store, or of the prefix in it) are this repository's alone:
            only then does `reclaim` collect those that are not needed.
        range_grace_seconds: how old a range is before it may be collected; must exceed the longest commit, compaction
            and scan.

    Raises:
        InvalidInput: a number is out of its range.
    """

    retries: Retries = _RETRIES
    max_scanned: int = attrs.field(default=100_000, validator=is_whole(1))
    on_new_sealed: OnNewSealed = attrs.field(default="abort", validator=_one_of)
    grace_seconds: float = attrs.field(default=3600.0, validator=is_seconds(most=inf))
    owns_ranges: bool = False
    range_grace_seconds: float = attrs.field(default=86_400.0, validator=is_seconds(most=inf))
