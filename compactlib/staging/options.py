"""`StagingOptions`: how often the branch protocol tries, and how much one call may do."""

from __future__ import annotations

from typing import Any

import attrs

from compactlib.errors import InvalidInput

MAX_BATCH_KEYS = 1000
"""The most keys of one `delete_many`, `put_many` or `get_many`."""


def _at_least(lowest: float) -> Any:
    def check(_: object, attribute: attrs.Attribute[Any], value: float) -> None:
        if not value >= lowest:
            raise InvalidInput(f"{attribute.name} is {value}; give at least {lowest}")

    return check


@attrs.frozen(kw_only=True)
class StagingOptions:
    """Settings of a `StagingArea`.

    Attributes:
        max_write_tries: how often a put or delete is written anew because the staging token changed under it.
        max_read_tries: how often a read starts over because the layers it read were replaced.
        max_update_tries: how often a change of a branch record is tried against others.
        first_backoff_seconds: the longest wait before the second try; doubles with each one. The wait is drawn between
            half of it and all of it. 0: no waits.
        max_backoff_seconds: where the doubling ends.
        max_scanned: how many staged and committed entries one page of a listing or diff looks at before it ends early.
        diff_cache_bytes: how much memory the differences between HEAD and compacted metaranges may take.

    Raises:
        InvalidInput: a number is out of its range.
    """

    max_write_tries: int = attrs.field(default=8, validator=_at_least(1))
    max_read_tries: int = attrs.field(default=10, validator=_at_least(1))
    max_update_tries: int = attrs.field(default=10, validator=_at_least(1))
    first_backoff_seconds: float = attrs.field(default=0.005, validator=_at_least(0))
    max_backoff_seconds: float = attrs.field(default=5.0, validator=_at_least(0))
    max_scanned: int = attrs.field(default=100_000, validator=_at_least(1))
    diff_cache_bytes: int = attrs.field(default=16 << 20, validator=_at_least(0))
