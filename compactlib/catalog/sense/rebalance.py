# SPDX-License-Identifier: Apache-2.0
"""Up to when the cluster's data placement follows the catalog: the minimum time of a rebalance (restriction 4).

A zone's *change points* are the versions that move data: those that change its partitions, replicas, quorum, filter,
storage profiles or consistency. Until every partition has followed a change point, the catalog just below it is still
needed. The progress is read per zone, where placement keeps it, so a finished rebalance holds nothing.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections.abc import Callable, Mapping
from typing import Protocol

import attrs

from compactlib.catalog.model.timestamp import HIGHEST, Timestamp
from compactlib.catalog.model.values import Culprit, Factor, Floor, Need
from compactlib.catalog.schema.versions import RetainedVersions
from compactlib.errors import AuditFailed


@attrs.frozen(kw_only=True)
class ZoneProgress:
    """How far the partitions of one zone have followed the catalog. A change is named by the commit time of its version
    (`Zone.updated_at`), or by the version's activation.

    Attributes:
        stable: by partition, the change that its present assignments follow.
        pending: by partition, the change that it is moving to.
        planned: by partition, the change that it will move to next, when it has its pending assignments.
        trigger: the last change whose rebalance was started for all partitions; `None` if none ever was.
    """

    stable: Mapping[int, Timestamp] = attrs.field(factory=dict)
    pending: Mapping[int, Timestamp] = attrs.field(factory=dict)
    planned: Mapping[int, Timestamp] = attrs.field(factory=dict)
    trigger: Timestamp | None = None


@attrs.frozen(kw_only=True)
class Placement:
    """The progress of all zones, read at one moment.

    Attributes:
        safe: up to this time, everything is known.
        zones: by zone id; a zone that is absent has made no progress.
    """

    safe: Timestamp
    zones: Mapping[int, ZoneProgress] = attrs.field(factory=dict)


class PlacementSource(Protocol):
    """Where a host's placement says how far it is."""

    def placement(self) -> Placement:
        """The progress of all zones, from one moment."""


@attrs.frozen
class _ChangePoints:
    partitions: int
    times: tuple[Timestamp, ...]  # commit times of the changes, ascending
    activations: tuple[Timestamp, ...]
    updates: dict[Timestamp, int]  # by commit time of whatever changed the zone: how many change points there were then
    deleted: Timestamp | None

    def after(self, change: Timestamp, safe: Timestamp) -> Timestamp:
        """The last time below the change that comes after this one."""
        # Named by its activation: later ones may have been committed by then, and are not followed by that.
        at = self.updates.get(change) or max(bisect_right(self.activations, change), 1)
        if at < len(self.times):
            return self.times[at] - 1
        return safe if self.deleted is None else self.deleted - 1


def rebalance_minimum(view: RetainedVersions, placement: Placement) -> tuple[Timestamp, int | None]:
    """The lowest time that a rebalance may still need, and the zone that needs it; `safe` and `None` if none does.

    Cost: O(versions x zones with tables).
    """
    lowest: tuple[Timestamp, int | None] = placement.safe, None
    for zone, points in _change_points(view).items():
        progress = placement.zones.get(zone, ZoneProgress())
        for needed in _needed(points, progress, placement.safe):
            if needed < lowest[0]:
                lowest = needed, zone
    return lowest


def _needed(points: _ChangePoints, progress: ZoneProgress, safe: Timestamp) -> list[Timestamp]:
    first = points.times[0]
    followed: set[Timestamp] = set()
    if points.deleted is None or progress.stable or progress.pending or progress.planned:
        followed.add(first if progress.trigger is None else progress.trigger)
    if progress.pending or progress.planned:
        # The last of the partitions counts. A plan has begun nothing: what they have, or move to, is what they follow.
        has = {**progress.stable, **progress.pending}
        followed.update(has.get(each, first) for each in range(points.partitions))
    return [points.after(change, safe) for change in followed]


def _change_points(view: RetainedVersions) -> dict[int, _ChangePoints]:
    """By zone that ever had a table: its change points."""
    found: dict[int, _ChangePoints] = {}
    placements: dict[int, tuple[object, ...]] = {}
    used: set[int] = set()
    before: object = None
    for catalog in view:
        used.update(catalog.tables_in)
        if catalog.zones is before:
            continue
        before = catalog.zones
        for zone in catalog.zones.values():
            known = found.get(zone.id)
            if known is not None and placements[zone.id] == zone.placement():
                known.updates[zone.updated_at] = len(known.times)
                continue
            # The zone's own time, not the version's: after a cut, the first retained version may be a later one.
            times = (zone.updated_at,) if known is None else (*known.times, zone.updated_at)
            activations = (catalog.activation,) if known is None else (*known.activations, catalog.activation)
            placements[zone.id] = zone.placement()
            updates = {} if known is None else known.updates
            updates[zone.updated_at] = len(times)
            found[zone.id] = _ChangePoints(zone.partitions, times, activations, updates, None)
        for zone_id, points in found.items():
            if points.deleted is None and zone_id not in catalog.zones:
                found[zone_id] = attrs.evolve(points, deleted=catalog.activation)
    return {zone_id: points for zone_id, points in found.items() if zone_id in used}


class RebalanceNeed:
    """The source of restriction 4 over a host's placement. Any thread may call it."""

    def __init__(self, source: PlacementSource) -> None:
        self._source = source

    def need(self, view: RetainedVersions) -> Need | None:
        """See `NeedSource.need`."""
        time, zone = rebalance_minimum(view, self._source.placement())
        return Floor(Factor.REBALANCE, max(time, 0), Culprit(zone=zone))


class PlacementTracker:
    """A ready `PlacementSource`: a host reports to it what its placement does. Any thread may call it.

    Args:
        safe: gives the time up to which everything has been reported.
    """

    def __init__(self, safe: Callable[[], Timestamp]) -> None:
        self._safe = safe
        self._lock = threading.Lock()
        self._zones: dict[int, ZoneProgress] = {}

    def started(self, zone: int, change: Timestamp) -> None:
        """The rebalance for this change was started for all partitions of the zone."""
        self._edit(zone, lambda known: attrs.evolve(known, trigger=max(known.trigger or 0, change)))

    def moving(self, zone: int, partition: int, change: Timestamp) -> None:
        """A partition has begun to move to the assignments of this change."""
        self._edit(zone, lambda known: attrs.evolve(known, pending={**known.pending, partition: change},
                                                    planned=_later(known.planned, partition, change)))

    def plans(self, zone: int, partition: int, change: Timestamp) -> None:
        """A partition will move to the assignments of this change as soon as it has those that it moves to now."""
        self._edit(zone, lambda known: attrs.evolve(known, planned={**known.planned, partition: change}))

    def settled(self, zone: int, partition: int, change: Timestamp) -> None:
        """A partition has the assignments of this change."""
        def edit(known: ZoneProgress) -> ZoneProgress:
            return attrs.evolve(known, stable={**known.stable, partition: change},
                                pending=_later(known.pending, partition, change),
                                planned=_later(known.planned, partition, change))

        self._edit(zone, edit)

    def gone(self, zone: int) -> None:
        """Nothing of the zone is left on any node."""
        with self._lock:
            self._zones.pop(zone, None)

    def placement(self) -> Placement:
        """See `PlacementSource.placement`."""
        with self._lock:
            return Placement(safe=min(self._safe(), HIGHEST), zones=dict(self._zones))

    def audit(self) -> None:
        """Check that no partition moves, or is to move, to an older change than the one it has.

        Raises:
            AuditFailed: one does; the message names it.
        """
        for zone, progress in self.placement().zones.items():
            for partition, change in [*progress.pending.items(), *progress.planned.items()]:
                has = progress.stable.get(partition, 0)
                if change < has:
                    raise AuditFailed(f"partition {partition} of zone {zone} moves from change {has} back to {change}")

    def _edit(self, zone: int, edit: Callable[[ZoneProgress], ZoneProgress]) -> None:
        with self._lock:
            self._zones[zone] = edit(self._zones.get(zone, ZoneProgress()))


def _later(changes: Mapping[int, Timestamp], partition: int, change: Timestamp) -> dict[int, Timestamp]:
    """Without the partition's, if it is none after `change`."""
    return {one: time for one, time in changes.items() if one != partition or time > change}
