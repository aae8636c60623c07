# SPDX-License-Identifier: Apache-2.0
"""The gates that hold a store's compactions back, each with its value and its setting: `BlobStore.why`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import attrs

from compactlib.blobstore.compaction.plan.plan import BlobPlan
from compactlib.blobstore.compaction.run.store_compactions import OwnedStore
from compactlib.blobstore.compaction.sense.statistics import log_statistics
from compactlib.blobstore.store.status import BlobStoreStatus
from compactlib.blobstore.store.upkeep import Upkeep
from compactlib.report import Printed


@attrs.frozen
class Gate:
    """One condition between garbage and free space.

    Attributes:
        name: what it is.
        is_shut: whether it holds anything back now.
        value: how it stands, in words.
        setting: what changes it.
    """

    name: str
    is_shut: bool
    value: str
    setting: str


@attrs.frozen(repr=False)
class StoreGates(Printed):
    """Every gate of a store, shut or open, as of one moment. `str()` is a table.

    Attributes:
        store: the store's name.
        gates: in the order in which garbage passes them.
        plan: what a compaction would do now.
    """

    store: str
    gates: tuple[Gate, ...]
    plan: BlobPlan

    @property
    def shut(self) -> tuple[Gate, ...]:
        """Those that hold something back."""
        return tuple(gate for gate in self.gates if gate.is_shut)

    def to_dicts(self) -> list[dict[str, Any]]:
        """One row a gate."""
        return [attrs.asdict(gate) for gate in self.gates]

    def _summary(self) -> str:
        shut = ", ".join(gate.name for gate in self.shut) or "none"
        what = "nothing" if self.plan.is_empty else "something"
        return f"{self.store}: {what} to compact; gates that are shut: {shut}"


def gates_of(store: OwnedStore, plan: BlobPlan, status: BlobStoreStatus, upkeep: Upkeep | None) -> StoreGates:
    """See `BlobStore.why`."""
    return StoreGates(store.name, tuple(_gates(store, plan, status, upkeep)), plan)


def _gates(store: OwnedStore, plan: BlobPlan, status: BlobStoreStatus, upkeep: Upkeep | None) -> Iterator[Gate]:
    config, snapshot = store.config, store.snapshot()
    total = status.segments + status.free_segments
    held = status.segments - 1 - len(snapshot.eligible())
    waiting = _valid_bytes(store, config.deleted_retention_seconds) - _valid_bytes(store, 0.0)
    yield Gate("writes", status.stopped is not None, status.stopped or "go on", "close the store, and open it again")
    yield Gate("room in the log", not status.free_segments, f"{status.free_segments} of {total} segments are free",
               f"capacity_bytes={store.capacity_bytes}, evicts={config.evicts}")
    yield Gate("the segment that is written to", True,
               f"{status.active_segment} with {snapshot.segments[-1].records} records is never compacted",
               f"segment_bytes={store.segment_bytes}, close_active_segment={config.close_active_segment}")
    yield Gate("journal", held > 0, f"the newest {status.journal_entries} records keep {held} more segments",
               f"journal_max_entries={config.journal_max_entries}")
    yield Gate("damage", status.damaged_segments > 0, f"{status.damaged_segments} segments are left out",
               "mend or replace their files; see verify()")
    yield Gate("retention", waiting > 0, f"{waiting} dead bytes can still be undeleted",
               f"deleted_retention_seconds={config.deleted_retention_seconds}")
    yield Gate("policy", plan.is_empty, plan.why, repr(store.compactions.policy))
    short = plan.bytes_available is not None and plan.bytes_needed > plan.bytes_available
    room = "unknown" if plan.bytes_available is None else plan.bytes_available
    yield Gate("room on the disk", short, f"{plan.bytes_needed} bytes needed, {room} available",
               f"swap_segments={config.swap_segments}")
    yield Gate("an earlier compaction", status.compaction is not None or status.is_busy,
               f"in {status.compaction}" if status.compaction else "running" if status.is_busy else "none",
               "compact() finishes it, drop_compaction() gives it up")
    told = "nothing but a call compacts" if upkeep is None else "; ".join(
        f"{row.work}: {row.condition}, {row.last_told or 'no turn yet'}" for row in upkeep.report().rows)
    yield Gate("triggers", upkeep is None, told, f"triggers={() if upkeep is None else upkeep.triggers!r}")


def _valid_bytes(store: OwnedStore, retention: float) -> int:
    """What compactions would keep if deletes counted after so many seconds."""
    now, rules = store.clock.now(), store.compactions.questions.purge_rules(store.config)
    return sum(log_statistics(store.snapshot(), now - retention, now, rules).valid_bytes.values())
