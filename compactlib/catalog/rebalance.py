# SPDX-License-Identifier: Apache-2.0
"""The lowest time that a rebalance may need, from the progress of the host's data placement.

A zone's *change points* are the versions that move data: versions that change its partitions or its `placement`. Until
every partition has followed a change point, the version just below it is still needed. The progress is read per zone
from the host's placement, so a finished rebalance needs nothing.
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
from compactlib.catalog.values import Culprit, Factor, Floor


@attrs.frozen(kw_only=True)
class ZoneProgress:
    """The changes that the partitions of a zone follow. A change is identified by `Zone.updated_at`, the commit time of
    the version that made it; never by the version's activation, before which a further change may have been committed.

    Attributes:
        stable: by partition, the change of its present assignments.
        pending: by partition, the change that it is moving to.
        planned: by partition, the change that it will move to after the pending change.
        trigger: the last change whose rebalance was started for all partitions; `None` before the first.
    """

    stable: Mapping[int, Timestamp] = attrs.field(factory=dict)
    pending: Mapping[int, Timestamp] = attrs.field(factory=dict)
    planned: Mapping[int, Timestamp] = attrs.field(factory=dict)
    trigger: Timestamp | None = None


@attrs.frozen(kw_only=True)
class Placement:
    """The progress of all zones, read at the same moment.

    Attributes:
        safe: the time up to which the progress is complete.
        zones: by zone id; an absent zone has made no progress.
    """

    safe: Timestamp
    zones: Mapping[int, ZoneProgress] = attrs.field(factory=dict)


class PlacementSource(Protocol):
    """The host's data placement."""

    def placement(self) -> Placement:
        """Return the progress of all zones at the same moment."""


@attrs.define
class _ChangePoints:
    """The change points of a zone.

    Attributes:
        placement: partitions and settings after the last change point.
        times: commit times, ascending.
        deleted: activation of the version that dropped the zone; `None` if there is no such version.
    """

    placement: tuple[int, Mapping[str, object]] = (0, {})
    times: list[Timestamp] = attrs.field(factory=list)
    deleted: Timestamp | None = None

    def changed(self, zone: Zone) -> None:
        """Add a version that changes the zone."""
        if self.placement != (zone.partitions, zone.placement):
            self.placement = zone.partitions, zone.placement
            self.times.append(zone.updated_at)

    def after(self, change: Timestamp, safe: Timestamp) -> Timestamp:
        """Return the last time before the change point that follows `change`."""
        at = max(bisect_right(self.times, change), 1)
        if at < len(self.times):
            return self.times[at] - 1
        return safe if self.deleted is None else self.deleted - 1


def _needed(points: _ChangePoints, progress: ZoneProgress, safe: Timestamp) -> list[Timestamp]:
    first = points.times[0]
    followed: set[Timestamp] = set()
    if points.deleted is None or progress.stable or progress.pending or progress.planned:
        followed.add(first if progress.trigger is None else progress.trigger)
    if progress.pending or progress.planned:
        # The slowest partition counts. Planned changes have not begun, so only stable and pending changes are followed.
        has = {**progress.stable, **progress.pending}
        followed.update(has.get(each, first) for each in range(points.placement[0]))
    return [points.after(change, safe) for change in followed]


def _change_points(view: RetainedVersions) -> dict[int, _ChangePoints]:
    """Return the change points of each zone that ever had a table."""
    first = view.catalog(view.earliest)
    found: dict[int, _ChangePoints] = defaultdict(_ChangePoints)
    used = {table.zone_id for table in first.tables.values()}
    for zone in first.zones.values():
        found[zone.id].changed(zone)
    for update in map(view.update, range(view.earliest + 1, view.latest + 1)):
        for kind, dropped in update.drops:
            if kind == "zone":
                found[dropped].deleted = update.activation
        for item in update.puts:
            if isinstance(item, Zone):
                found[item.id].changed(item)
            elif isinstance(item, CatalogTable):
                used.add(item.zone_id)
    return {zone: points for zone, points in found.items() if zone in used}


class RebalanceNeed:
    """The source of a rebalance's needs, from a host's placement. Any thread may call it."""

    def __init__(self, source: PlacementSource) -> None:
        self._source = source

    def need(self, view: RetainedVersions) -> Floor:
        """Return the lowest time that a rebalance may still need, and its zone; `safe` without a rebalance.

        Cost: O(versions + zones).
        """
        placement = self._source.placement()
        lowest, lowest_zone = placement.safe, None
        for zone, points in _change_points(view).items():
            for needed in _needed(points, placement.zones.get(zone, ZoneProgress()), placement.safe):
                if needed < lowest:
                    lowest, lowest_zone = needed, zone
        return Floor(Factor.REBALANCE, max(lowest, 0), Culprit(zone=lowest_zone))
