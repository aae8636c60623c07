# SPDX-License-Identifier: Apache-2.0
"""The numbers of a store, under the same names whatever kind of store it is.

| name | kind | labels besides `kind` and `store` |
|---|---|---|
| `store_compactions` | counter | `outcome`: `done`, `skipped`, `failed`; `reason` |
| `store_compaction_seconds` | measurement | `outcome` |
| `store_read_bytes`, `store_copied_bytes`, `store_freed_bytes` | counters | |
| `store_live_bytes`, `store_dead_bytes`, `store_free_bytes`, `store_capacity_bytes` | levels | |
| `store_oldest_lease_seconds`, `store_oldest_unreclaimed_seconds` | levels | |

The two last are points of time, so that an age goes on between two notifications. `docs/metrics.md` says what
each kind of store means by them.
"""

from __future__ import annotations

import attrs

from compactlib.observer import Observer


@attrs.frozen(kw_only=True)
class Moved:
    """What a compaction moved, in bytes.

    Attributes:
        read: what it read.
        copied: what it wrote.
        freed: by how much less there is.
    """

    read: int = 0
    copied: int = 0
    freed: int = 0


@attrs.frozen(kw_only=True)
class StoreLevels:
    """A store at one moment; `None` where it does not know, or there is no such thing.

    Attributes:
        live_bytes: what a compaction would keep.
        dead_bytes: what one would free.
        free_bytes: how much more it may take.
        capacity_bytes: how much it may take in all.
        oldest_lease_seconds: since when somebody has held what must not go, in seconds since the epoch.
        oldest_unreclaimed_seconds: since when something dead has been waiting to go, in seconds since the epoch.
    """

    live_bytes: int | None = None
    dead_bytes: int | None = None
    free_bytes: int | None = None
    capacity_bytes: int | None = None
    oldest_lease_seconds: float | None = None
    oldest_unreclaimed_seconds: float | None = None


@attrs.frozen
class StoreNumbers:
    """Notifies an observer of one store.

    Attributes:
        kind: what kind of store: its package.
        store: its name.
    """

    kind: str
    store: str

    def ended(self, observer: Observer, outcome: str, reason: str, seconds: float | None, moved: Moved) -> None:
        """Notify that a compaction has ended.

        Args:
            observer: is notified.
            outcome: `done`, `skipped` or `failed`.
            reason: of one that is done its policy, of one that failed the error's class; one that was skipped found
                another under way (`busy`), or nothing worth it (`nothing`).
            seconds: how long it took; `None` if that is unknown.
            moved: what it moved; 0 is counted too, so that each series begins with the store.
        """
        labels = {"kind": self.kind, "store": self.store}
        observer.event("store_compactions", add=1, **labels, outcome=outcome, reason=reason)
        if seconds is not None:
            observer.event("store_compaction_seconds", sample=seconds, **labels, outcome=outcome)
        self.moved(observer, moved)

    def moved(self, observer: Observer, moved: Moved) -> None:
        """Count bytes that were moved, by a reclaim for example; a store that has grown has freed none."""
        labels = {"kind": self.kind, "store": self.store}
        for name, value in (("store_read_bytes", moved.read), ("store_copied_bytes", moved.copied),
                            ("store_freed_bytes", moved.freed)):
            observer.event(name, add=max(0, value), **labels)

    def levels(self, observer: Observer, levels: StoreLevels) -> None:
        """Notify of the levels now; a size that is unknown is left out, an age that has ended is cleared."""
        named: tuple[tuple[str, float | None], ...] = (
            ("store_live_bytes", levels.live_bytes), ("store_dead_bytes", levels.dead_bytes),
            ("store_free_bytes", levels.free_bytes), ("store_capacity_bytes", levels.capacity_bytes),
            ("store_oldest_lease_seconds", levels.oldest_lease_seconds),
            ("store_oldest_unreclaimed_seconds", levels.oldest_unreclaimed_seconds))
        for name, value in named:
            if value is not None or name.endswith("_seconds"):
                observer.event(name, kind=self.kind, store=self.store, value=value)
