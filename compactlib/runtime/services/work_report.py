# SPDX-License-Identifier: Apache-2.0
"""The report of a service: all its work, as a value that prints as a table."""

from __future__ import annotations

from typing import Any, Literal

import attrs

from compactlib.report import Printed
from compactlib.runtime.services.agenda import Agenda, Cause, Condition, Ending


@attrs.frozen(kw_only=True)
class WorkRow:
    """One piece of work.

    Attributes:
        work: its name.
        lane: to which it belongs.
        condition: where it stands; `failing` waits to be tried again.
        cause: why its turn came or comes: that of the turn under way, `"asked"` for a request that waits, or `""`.
        failures: failed turns in a row.
        done: how many turns ended in `Done`.
        last_ending: what the last turn ended in; `""` before the first.
        last_told: the last report, reason or error, in words.
        last_seconds_ago: how long ago it ended, `None` before the first.
        next_try_in_seconds: when failing work is tried again, `None` for every other.
        next_due_in_seconds: when the next periodic turn is due, negative if it is overdue; `None` if none is.
    """

    work: str
    lane: str
    condition: Condition
    cause: Cause | Literal[""]
    failures: int
    done: int
    last_ending: Ending | Literal[""]
    last_told: str
    last_seconds_ago: float | None
    next_try_in_seconds: float | None
    next_due_in_seconds: float | None


@attrs.frozen(repr=False)
class WorkReport(Printed):
    """All work of a service at one moment, nothing left out. A `report.Status`.

    Attributes:
        what: the service.
        is_active: whether it does what is due.
        rows: in the order in which the work was added.
        failures: how often an unexpected exception was raised, by the work or in the service's own threads.
        last_error: the last of these in words, or `""`.
    """

    what: str
    is_active: bool
    rows: tuple[WorkRow, ...]
    failures: int = 0
    last_error: str = ""

    @classmethod
    def of(cls, agenda: Agenda, now: float, *, what: str = "a service", failures: int = 0,
           last_error: str = "") -> WorkReport:
        """The report of `agenda` at `now`."""
        return cls(what, agenda.is_active, tuple(
            WorkRow(
                work=item.name, lane=item.lane, condition=item.condition,
                cause=item.running.cause if item.running else "asked" if item.asked is not None else "",
                failures=item.failures, done=item.done, last_ending=item.ending, last_told=item.told,
                last_seconds_ago=None if item.finished_at is None else now - item.finished_at,
                next_try_in_seconds=max(item.retry_at - now, 0.0) if item.condition == "failing" else None,
                next_due_in_seconds=item.next_due_at - now if item.next_due_at is not None and item.may_run else None)
            for item in agenda.items), failures, last_error)

    @property
    def is_busy(self) -> bool:
        """Whether anything is being done."""
        return any(row.condition == "running" for row in self.rows)

    @property
    def failing(self) -> tuple[WorkRow, ...]:
        """The work whose last turn failed, whatever is done about it now."""
        return tuple(row for row in self.rows if row.failures)

    def row(self, work: str) -> WorkRow | None:
        """That of one piece of work, or `None` if there is none of this name."""
        return next((row for row in self.rows if row.work == work), None)

    def to_dicts(self) -> list[dict[str, Any]]:
        """One dictionary a piece of work."""
        return [attrs.asdict(row) for row in self.rows]

    def _summary(self) -> str:
        counts: dict[str, int] = {}
        for row in self.rows:
            counts[row.condition] = counts.get(row.condition, 0) + 1
        told = ", ".join(f"{count} {condition}" for condition, count in sorted(counts.items())) or "no work"
        failed = f"; {self.failures} errors, the last {self.last_error}" if self.failures else ""
        return f"{self.what} {'active' if self.is_active else 'not active'}: {told}{failed}"
