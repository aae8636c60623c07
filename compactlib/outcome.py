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

from compactlib.errors import BudgetSpent, Busy, CompactionFailed, CompactlibError, Rejected
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


@attrs.frozen(kw_only=True)
class Ending(Printed):
    """The report of a call that returned an outcome without a report: nothing was done, or a part.

    Attributes:
        why: the reason, in one sentence.
        is_empty: whether nothing was done.
        is_partial: whether work is left because the budget was spent.
        report: what was done, where the outcome had a report besides its error.
    """

    why: str
    is_empty: bool = True
    is_partial: bool = False
    report: Any = None


def raised(outcome: Any) -> Any:
    """Return the report of an outcome, or raise its error; a report is returned as it is.

    An adapter: it lets callers be written for reports and exceptions while some engines still return outcomes. It
    ends with the last of them.

    | outcome | becomes |
    |---|---|
    | `Done(stats)` | `stats` |
    | `Skipped(reason)` | an empty report with `why`; `Busy` if it is busy |
    | `Failed(error)` that changed nothing | the error, raised |
    | `Failed(BudgetSpent)` after a part | a partial report |
    | `Failed(error)` after a part | `CompactionFailed`, if the error alone would say that nothing was changed |
    """
    match outcome:
        case Done(stats):
            return stats
        case Skipped(reason, is_busy=True):
            raise Busy(reason)
        case Skipped(reason):
            return Ending(why=reason)
        case Failed(error, changed):
            report = getattr(outcome, "report", None)
            if changed == "no" or (report is None and not isinstance(error, Rejected)):
                raise error
            part = Ending(why=str(error), is_empty=False, is_partial=isinstance(error, BudgetSpent), report=report)
            if part.is_partial:
                return part
            failures = {str(each.members): each.error for each in getattr(report, "failed", ())} or {"commit": error}
            raise CompactionFailed(report=part if report is None else report, failures=failures) from error
    return outcome


def is_empty(report: Any) -> bool:
    """Return whether a report of `raised` says that nothing was done; reports of old engines do not say so."""
    return bool(getattr(report, "is_empty", False))


def _rows(stats: Any) -> list[dict[str, Any]]:
    if hasattr(stats, "to_dicts"):
        return [dict(row) for row in stats.to_dicts()]
    if attrs.has(type(stats)):
        return [attrs.asdict(stats, recurse=False)]
    return [{"stats": stats}]
