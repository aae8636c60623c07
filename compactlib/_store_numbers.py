# SPDX-License-Identifier: Apache-2.0
"""Metrics of a store, with the same names for every kind of store.

| name | kind | labels besides `kind` and `store` |
|---|---|---|
| `store_compactions` | counter | `outcome`: `done`, `skipped`, `failed`; `reason` |
| `store_compaction_seconds` | histogram | `outcome` |
| `store_read_bytes`, `store_copied_bytes`, `store_freed_bytes` | counters | |
| `store_live_bytes`, `store_dead_bytes`, `store_free_bytes`, `store_capacity_bytes` | gauges | |
| `store_oldest_lease_seconds`, `store_oldest_unreclaimed_seconds` | gauges | |

The last two are times since the epoch, so that a dashboard computes an age between two events. The label `kind` is the
store's package, `store` its name.
"""

from __future__ import annotations

from typing import Any

from compactlib.errors import BudgetSpent, Busy
from compactlib.observer import Observer


def outcome_of(ended: Any, policy: str) -> tuple[str, str]:
    """Return the outcome of a compaction that ended in this report or exception, and the reason; `policy` did it."""
    if isinstance(ended, Busy) and not isinstance(ended, BudgetSpent):
        return "skipped", "busy"
    if isinstance(ended, BaseException):
        return "failed", type(ended).__name__
    return ("skipped", "nothing") if ended.is_empty else ("done", policy)


def notify_compaction(observer: Observer, kind: str, store: str, outcome: str, reason: str, seconds: float | None, *,
                      read: int = 0, copied: int = 0, freed: int = 0) -> None:
    """Report the end of a compaction, and the bytes it moved.

    Args:
        observer: receives the events.
        kind: the store's package.
        store: the store's name.
        outcome: `done`, `skipped` or `failed`; see `outcome_of`.
        reason: the policy's name if done; the error's class if failed; `busy` or `nothing` if skipped.
        seconds: the duration; `None` if it is unknown.
        read: bytes read.
        copied: bytes written.
        freed: bytes freed.
    """
    observer.event("store_compactions", add=1, kind=kind, store=store, outcome=outcome, reason=reason)
    if seconds is not None:
        observer.event("store_compaction_seconds", sample=seconds, kind=kind, store=store, outcome=outcome)
    notify_bytes(observer, kind, store, read=read, copied=copied, freed=freed)


def notify_bytes(observer: Observer, kind: str, store: str, *, read: int = 0, copied: int = 0, freed: int = 0) -> None:
    """Count bytes moved. Zeros are sent too, so that each series exists from the start; growth counts as 0 freed."""
    for name, value in (("store_read_bytes", read), ("store_copied_bytes", copied), ("store_freed_bytes", freed)):
        observer.event(name, add=max(0, value), kind=kind, store=store)


def notify_levels(observer: Observer, kind: str, store: str, *, live_bytes: int, dead_bytes: int | None = None,
                  free_bytes: int | None = None, capacity_bytes: int | None = None,
                  oldest_lease_seconds: float | None = None, oldest_unreclaimed_seconds: float | None = None) -> None:
    """Report the present levels of a store. Unknown sizes (`None`) are left out, and `None` clears an age.

    Args:
        observer: receives the events.
        kind: the store's package.
        store: the store's name.
        live_bytes: bytes that a compaction would keep.
        dead_bytes: bytes that a compaction would free.
        free_bytes: room left.
        capacity_bytes: room in all.
        oldest_lease_seconds: when the oldest lease was taken, in seconds since the epoch.
        oldest_unreclaimed_seconds: when the oldest garbage became garbage, in seconds since the epoch.
    """
    levels = {"store_live_bytes": live_bytes, "store_dead_bytes": dead_bytes, "store_free_bytes": free_bytes,
              "store_capacity_bytes": capacity_bytes, "store_oldest_lease_seconds": oldest_lease_seconds,
              "store_oldest_unreclaimed_seconds": oldest_unreclaimed_seconds}
    for name, value in levels.items():
        if value is not None or name.endswith("_seconds"):
            observer.event(name, kind=kind, store=store, value=value)
