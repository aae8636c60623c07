# SPDX-License-Identifier: Apache-2.0
"""Up to when the cluster's data placement follows the catalog: the minimum time of a rebalance (restriction 4).

A zone's *change points* are the versions that move data: those that change its partitions or its `placement`. Until
every partition has followed a change point, the catalog just below it is still needed. The progress is read per zone,
where placement keeps it, so a finished rebalance holds nothing.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Mapping
from typing import Protocol

import attrs

from compactlib.catalog.history import RetainedVersions
from compactlib.catalog.schema import CatalogTable, Zone
from compactlib.catalog.timestamp import Timestamp
from compactlib.catalog.values import Culprit, Factor, Floor, Need


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
        """Return the progress of all zones, from one moment."""


@attrs.define
class _ChangePoints:
    """The versions of one zone that move data.

    Attributes:
        placement: partitions and settings as of the last of them.
        times: their commit times, ascending.
        activations: when they became active.
        updates: by commit time of whatever changed the zone: how many change points there were then.
        deleted: when the version became active in which the zone is gone; `None` while it is there.
    """

    placement: tuple[int, Mapping[str, object]] = (0, {})
    times: list[Timestamp] = attrs.field(factory=list)
    activations: list[Timestamp] = attrs.field(factory=list)
    updates: dict[Timestamp, int] = attrs.field(factory=dict)
    deleted: Timestamp | None = None

    def changed(self, zone: Zone, commit: Timestamp, activation: Timestamp) -> None:
        """Take in what a version makes of the zone."""
        if self.placement != (zone.partitions, zone.placement):
            self.placement = zone.partitions, zone.placement
            self.times.append(commit)
            self.activations.append(activation)
        self.updates[commit] = len(self.times)

    def after(self, change: Timestamp, safe: Timestamp) -> Timestamp:
        """Return the last time below the change that comes after this one."""
        # Named by its activation: later ones may have been committed by then, and are not followed by that.
        at = self.updates.get(change) or max(bisect_right(self.activations, change), 1)
        if at < len(self.times):
            return self.times[at] - 1
        return safe if self.deleted is None else self.deleted - 1


def rebalance_minimum(view: RetainedVersions, placement: Placement) -> tuple[Timestamp, int | None]:
    """Return the lowest time that a rebalance may still need, and its zone; `safe` and `None` if there is none.

    Cost: O(versions + zones).
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
        followed.update(has.get(each, first) for each in range(points.placement[0]))
    return [points.after(change, safe) for change in followed]


def _change_points(view: RetainedVersions) -> dict[int, _ChangePoints]:
    """Return the change points of each zone that ever had a table."""
    first = view.catalog(view.earliest)
    found: dict[int, _ChangePoints] = defaultdict(_ChangePoints)
    used = {table.zone_id for table in first.tables.values()}
    for zone in first.zones.values():
        # The zone's own time, not the version's: after a cut, the first retained version may be a later one.
        found[zone.id].changed(zone, zone.updated_at, first.activation)
    for update in map(view.update, range(view.earliest + 1, view.latest + 1)):
        for kind, dropped in update.drops:
            if kind == "zone":
                found[dropped].deleted = update.activation
        for one in update.puts:
            if isinstance(one, Zone):
                found[one.id].changed(one, update.commit, update.activation)
            elif isinstance(one, CatalogTable):
                used.add(one.zone_id)
    return {zone: points for zone, points in found.items() if zone in used}


class RebalanceNeed:
    """The source of restriction 4 over a host's placement. Any thread may call it."""

    def __init__(self, source: PlacementSource) -> None:
        self._source = source

    def need(self, view: RetainedVersions) -> Need | None:
        """Return the lowest time that a rebalance may still need."""
        time, zone = rebalance_minimum(view, self._source.placement())
        return Floor(Factor.REBALANCE, max(time, 0), Culprit(zone=zone))
