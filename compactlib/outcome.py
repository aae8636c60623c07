# SPDX-License-Identifier: Apache-2.0
"""What a piece of work ended in: `Done(stats)`, `Skipped(reason)` or `Failed(error)`; never `None` or a bool.

All three print in one line, show as a table in notebooks, and pickle; `to_dicts()` gives them as plain data.

>>> match Skipped("nothing is dead"):
...     case Done(stats): print(stats)
...     case Skipped(reason): print("skipped:", reason)
...     case Failed(error): raise error
skipped: nothing is dead
"""

from __future__ import annotations

from typing import Any, Generic, Literal, TypeAlias, TypeVar

import attrs

from compactlib.errors import CompactlibError
from compactlib.report import Printed

StatsT_co = TypeVar("StatsT_co", covariant=True)


@attrs.frozen
class Done(Printed, Generic[StatsT_co]):
    """The work was carried out; `stats` says how much.

    Attributes:
        stats: the numbers: an attrs value, or any object with a `to_dicts` of its own.
    """

    stats: StatsT_co

    def to_dicts(self) -> list[dict[str, Any]]:
        """The rows of the stats' own `to_dicts()`, or one row of its fields; each begins with `outcome: done`."""
        return [{"outcome": "done", **row} for row in _rows(self.stats)]


@attrs.frozen
class Skipped(Printed):
    """Nothing was done, on purpose.

    Attributes:
        reason: why, in one sentence.
        is_busy: whether it is only because another run is under way, so that asking again soon may do more.
    """

    reason: str
    is_busy: bool = attrs.field(default=False, kw_only=True)

    def to_dicts(self) -> list[dict[str, Any]]:
        """One row: `outcome: skipped` and the reason."""
        return [{"outcome": "skipped", "reason": self.reason}]


@attrs.frozen
class Failed(Printed):
    """The work was tried and given up.

    Attributes:
        error: one of the library's own, with its numbers.
        changed: whether anything has changed: `"no"`; `"partly"`, what was committed before stays; or `"unknown"`, the
            last step got no answer, as is the default for an error that says so. Whichever it is, calling again goes on
            from what is there.
    """

    error: CompactlibError
    changed: Literal["no", "partly", "unknown"] = attrs.field(
        default=attrs.Factory(lambda self: "unknown" if self.error._may_have_happened else "no", takes_self=True))

    def to_dicts(self) -> list[dict[str, Any]]:
        """One row: `outcome: failed`, the error's class and message, what has changed, and the error's attributes."""
        named = {"outcome": "failed", "error": type(self.error).__name__, "message": str(self.error),
                 "changed": self.changed}
        return [{**named, **self.error._state(), **named}]


Outcome: TypeAlias = Done[StatsT_co] | Skipped | Failed
"""One of the three; distinguish them with `match` or `isinstance`."""


def _rows(stats: Any) -> list[dict[str, Any]]:
    if hasattr(stats, "to_dicts"):
        return [dict(row) for row in stats.to_dicts()]
    if attrs.has(type(stats)):
        return [attrs.asdict(stats, recurse=False)]
    return [{"stats": stats}]
