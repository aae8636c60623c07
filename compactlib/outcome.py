"""What a piece of work ended in: `Done(stats)`, `Skipped(reason)` or `Failed(error)`; never `None` or a bool."""

from __future__ import annotations

from typing import Generic, TypeAlias, TypeVar

import attrs

from compactlib.errors import CompactlibError

StatsT = TypeVar("StatsT", covariant=True)


@attrs.frozen
class Done(Generic[StatsT]):
    """The work was carried out; `stats` says how much."""

    stats: StatsT


@attrs.frozen
class Skipped:
    """Nothing was done, on purpose; `reason` says why in one sentence."""

    reason: str


@attrs.frozen
class Failed:
    """The work was tried and given up; nothing it concerned has changed. `error` is one of the library's own."""

    error: CompactlibError


Outcome: TypeAlias = Done[StatsT] | Skipped | Failed
"""One of the three; tell them apart with `match` or `isinstance`."""
