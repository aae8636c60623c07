# SPDX-License-Identifier: Apache-2.0
"""`RetainedVersions`: the retained versions of a catalog at a moment, by number and by time.

A history is its first catalog and the updates that follow. Any other catalog is built on request, from the nearest
catalog below it that is cached. Every thousandth catalog is cached, at longer distances where a catalog has more than a
thousand objects, so that a request applies at most that many updates. The latest catalog is always cached, and so are
the last few requested.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import Any

import attrs

from compactlib.catalog.errors import CatalogVersionNotFound, TimeBeforeHistory
from compactlib.catalog.schema import EMPTY, Catalog, Update
from compactlib.catalog.timestamp import Timestamp
from compactlib.errors import AuditFailed

UPDATES_BETWEEN = 1000
"""The least number of updates between two cached catalogs."""
_RECENT = 16


@attrs.define(eq=False)
class _Cache:
    """Cached catalogs, by version; shared by a history and the histories that extend it."""

    kept: list[Catalog]  # Invariant: ascending; the first is the history's first
    recent: dict[int, Catalog] = attrs.field(factory=dict)
    lock: threading.Lock = attrs.field(factory=threading.Lock)

    def nearest(self, version: int) -> Catalog:
        """Return the highest cached catalog up to this version."""
        with self.lock:
            kept = self.kept[bisect_right(self.kept, version, key=lambda each: each.version) - 1]
            below = max((each for each in self.recent if each <= version), default=0)
            return self.recent[below] if below > kept.version else kept

    def remember(self, catalog: Catalog) -> None:
        with self.lock:
            self.recent[catalog.version] = catalog
            while len(self.recent) > _RECENT:
                del self.recent[next(iter(self.recent))]


def is_far_above(kept: Catalog, catalog: Catalog) -> bool:
    """Return whether the distance between two catalogs justifies caching the higher catalog."""
    distance = catalog.version - kept.version
    return distance >= UPDATES_BETWEEN and distance >= len(catalog)


class RetainedVersions:
    """The versions retained at a moment, earliest to latest. Immutable; any thread may read it.

    Args:
        first: the earliest version; default version 0.
    """

    __slots__ = ("_cache", "_end", "_latest", "_updates", "earliest")

    def __init__(self, first: Catalog = EMPTY) -> None:
        self.earliest: int = first.version
        """The first retained version."""
        # Shared with histories that extend this history, which ends at `_end`. The first stands for the first catalog.
        self._updates: list[Update] = [Update(version=first.version, commit=first.commit, activation=first.activation,
                                              next_id=first.next_id)]
        self._end = 1
        self._cache = _Cache([first])
        self._latest = first

    # -- reading

    @property
    def latest(self) -> int:
        """The last registered version, which may become active later."""
        return self.earliest + self._end - 1

    def catalog(self, version: int) -> Catalog:
        """Return the catalog of a version. O(updates between two cached catalogs), O(1) for the latest.

        Raises:
            CatalogVersionNotFound: the version is not retained, or does not exist yet.
        """
        self._require(version)
        if version == self._latest.version:
            return self._latest
        found = self._cache.nearest(version)
        if found.version == version:
            return found
        made = found.copy()
        for each in range(found.version + 1, version + 1):
            made.apply(self.update(each))
        self._cache.remember(made)
        return made

    def at(self, time: Timestamp) -> Catalog:
        """Return the catalog in force at `time`, from its activation (inclusive) on. Costs as much as `catalog`.

        Raises:
            TimeBeforeHistory: `time` is below the earliest retained activation.
        """
        return self.catalog(self.version_at(time))

    def version_at(self, time: Timestamp) -> int:
        """Return the version in force at `time`; see `at`. O(log n)."""
        at = bisect_right(self._updates, time, 0, self._end, key=lambda each: each.activation)
        if not at:
            raise TimeBeforeHistory(time=time, earliest=self.earliest, earliest_time=self._updates[0].activation)
        return self.earliest + at - 1

    def activation(self, version: int) -> Timestamp:
        """Return when this version becomes active; see `catalog`. O(1)."""
        self._require(version)
        return self._updates[version - self.earliest].activation

    def has(self, version: int) -> bool:
        """Return whether this version is retained."""
        return self.earliest <= version <= self.latest

    def update(self, version: int) -> Update:
        """Return the update from the version before to this version; both must be retained."""
        self._require(version - 1)
        self._require(version)
        return self._updates[version - self.earliest]

    def __len__(self) -> int:
        return self._end

    def __iter__(self) -> Iterator[Catalog]:
        return map(self.catalog, range(self.earliest, self.latest + 1))

    def _require(self, version: int) -> None:
        if not self.has(version):
            raise CatalogVersionNotFound(version=version, earliest=self.earliest, latest=self.latest)

    # -- the next history

    def followed_by(self, updates: Sequence[Update], catalogs: Sequence[Catalog]) -> RetainedVersions:
        """Return this history extended by the versions that follow. One thread at a time may extend a history.

        O(updates), unless this history was extended before: then O(versions).

        Args:
            updates: of each version.
            catalogs: the catalogs of some of these versions, ascending; the last version is required.
        """
        if not updates:
            return self
        after = RetainedVersions(self._cache.kept[0])
        after._cache, after._updates, after._latest = self._cache, self._updates, catalogs[-1]
        if len(self._updates) > self._end:  # another history extends this history already
            after._updates, after._cache = self._updates[:self._end], _Cache(list(self._cache.kept))
        after._updates += updates
        after._end = self._end + len(updates)
        with after._cache.lock:
            for catalog in catalogs:
                if is_far_above(after._cache.kept[-1], catalog):
                    after._cache.kept.append(catalog)
        return after

    def beginning_with(self, first: Catalog) -> RetainedVersions:
        """Return this history without the versions below `first`; above the latest, `first` alone. O(versions kept)."""
        above = range(first.version + 1, self.latest + 1)
        kept = [each for each in self._cache.kept if each.version in above]
        return RetainedVersions(first).followed_by([self.update(each) for each in above], [*kept, self._latest])

    def __eq__(self, other: object) -> bool:
        """Return whether both retain the same versions. O(n), unless they are the same object."""
        if not isinstance(other, RetainedVersions):
            return NotImplemented
        return self is other or (
            self.earliest == other.earliest and self.catalog(self.earliest) == other.catalog(other.earliest)
            and self._updates[:self._end] == other._updates[:other._end])

    def __reduce__(self) -> tuple[Any, ...]:
        return _restored, (self.catalog(self.earliest), self._updates[1:self._end], self._latest)

    def audit(self) -> None:
        """Check the cached catalogs against a replay of the updates. O(changes).

        Raises:
            AuditFailed: a cached catalog differs.
        """
        replayed = self.catalog(self.earliest).copy()
        kept = {each.version: each for each in (*self._cache.kept, self._latest)}
        for version in range(self.earliest + 1, self.latest + 1):
            replayed.apply(self.update(version))
            if version in kept and kept[version] != replayed:
                raise AuditFailed(f"{kept[version]!r} is in memory; a replay of its updates gives {replayed!r}")

    def __repr__(self) -> str:
        return f"RetainedVersions({self.earliest} to {self.latest})"


def _restored(first: Catalog, updates: Sequence[Update], latest: Catalog) -> RetainedVersions:
    return RetainedVersions(first).followed_by(updates, [latest])
