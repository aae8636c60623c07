"""The state of every store that a manager looks after, as a value that prints itself."""

from __future__ import annotations

from typing import Any

import attrs

from compactlib.blobstore.manager_model import StoreCondition
from compactlib.blobstore.manager_state import ManagerState
from compactlib.report import Table


@attrs.frozen(kw_only=True)
class StoreReport:
    """One store, as its manager sees it.

    Attributes:
        store: its name.
        disk: where it lies.
        condition: where it stands; `failing` waits to be tried again.
        cause: why its turn came or comes: the run's cause, `"admin"` for a request that waits, or `""`.
        failures: failed runs in a row.
        compactions: how many runs compacted something.
        last_outcome: what the last run ended in: `"done"`, `"skipped"`, `"failed"`, `"stopped"`; `""` before the first.
        last_told: the last report, reason or error, in words.
        last_run_seconds_ago: how long ago it ended, `None` before the first.
        next_try_in_seconds: when a failing store is tried again, `None` for every other.
        next_check_in_seconds: when the next periodic check is due, negative if it is overdue; `None` if none is.
    """

    store: str
    disk: str
    condition: StoreCondition
    cause: str
    failures: int
    compactions: int
    last_outcome: str
    last_told: str
    last_run_seconds_ago: float | None
    next_try_in_seconds: float | None
    next_check_in_seconds: float | None


@attrs.frozen(repr=False)
class ManagerReport:
    """Every store of a manager at one moment, none left out.

    Attributes:
        is_active: whether the manager hands out work.
        stores: in the order in which they were added.
        errors: how often something was raised that nobody expected, by runs or in the manager's own threads.
        last_error: the last of them in words, or `""`.
    """

    is_active: bool
    stores: tuple[StoreReport, ...]
    errors: int = 0
    last_error: str = ""

    @classmethod
    def of(cls, state: ManagerState, now: float, *, periodic: bool, errors: int = 0,
           last_error: str = "") -> ManagerReport:
        """The report of `state` at `now`; with `periodic` checks, when they are due."""
        return cls(state.is_active, tuple(
            StoreReport(
                store=entry.name, disk=entry.disk, condition=entry.condition,
                cause=entry.running.cause if entry.running else "admin" if entry.asked is not None else "",
                failures=entry.failures, compactions=entry.compactions, last_outcome=entry.outcome,
                last_told=entry.told,
                last_run_seconds_ago=None if entry.finished_at is None else now - entry.finished_at,
                next_try_in_seconds=max(entry.retry_at - now, 0.0) if entry.condition == "failing" else None,
                next_check_in_seconds=entry.next_check_at - now if periodic and entry.may_run else None)
            for entry in state.stores), errors, last_error)

    @property
    def failing(self) -> tuple[StoreReport, ...]:
        """The stores whose last run failed, whatever is done about them now."""
        return tuple(store for store in self.stores if store.failures)

    def of_store(self, name: str) -> StoreReport | None:
        """The report of one store, or `None` if the manager does not have it."""
        return next((store for store in self.stores if store.store == name), None)

    def to_dicts(self) -> list[dict[str, Any]]:
        """One dictionary a store."""
        return [attrs.asdict(store) for store in self.stores]

    def table(self) -> Table:
        """The rows of `to_dicts()` under a summary."""
        return Table.from_dicts(self.to_dicts(), title=self._summary())

    def _summary(self) -> str:
        counts: dict[str, int] = {}
        for store in self.stores:
            counts[store.condition] = counts.get(store.condition, 0) + 1
        told = ", ".join(f"{count} {condition}" for condition, count in sorted(counts.items()))
        state = "running" if self.is_active else "stopped"
        failed = f"; {self.errors} errors, the last {self.last_error}" if self.errors else ""
        return f"manager {state}, {len(self.stores)} stores" + (f": {told}" if told else "") + failed

    def __repr__(self) -> str:
        return f"<ManagerReport: {self._summary()}>"

    def __str__(self) -> str:
        return str(self.table())

    def _repr_html_(self) -> str:
        return self.table()._repr_html_()
