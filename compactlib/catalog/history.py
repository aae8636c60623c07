# SPDX-License-Identifier: Apache-2.0
"""`RetainedVersions`: the retained versions of a catalog at a moment, by number and by time.

A history is a list of updates, the first of which makes the earliest version of the empty catalog. The latest catalog
is always in memory. Any other catalog is built on request from the nearest cached catalog below it. The last few
requested are cached, and about every thousandth on the way, or fewer where catalogs have more than a thousand objects.
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
"""The least number of updates between two catalogs that stay cached."""
_RECENT = 16


@attrs.define(eq=False)
class _Cache:
    """Cached catalogs; shared by a history and the histories that extend it."""

    kept: list[Catalog] = attrs.field(factory=lambda: [EMPTY])  # Invariant: ascending
    recent: dict[int, Catalog] = attrs.field(factory=dict)
    lock: threading.Lock = attrs.field(factory=threading.Lock)

    def nearest(self, version: int) -> Catalog:
        """Return the highest cached catalog up to this version."""
        with self.lock:
            kept = self.kept[self._place(version) - 1]
            below = max((each for each in self.recent if each <= version), default=0)
            return self.recent[below] if below > kept.version else kept

    def add(self, catalog: Catalog) -> None:
        """Cache a catalog: for the life of the history if it is far above the kept catalog below, else as recent."""
        with self.lock:
            at = self._place(catalog.version)
            if _is_far_above(self.kept[at - 1], catalog):
                self.kept.insert(at, catalog)
            else:
                self.recent[catalog.version] = catalog
                while len(self.recent) > _RECENT:
                    del self.recent[next(iter(self.recent))]

    def _place(self, version: int) -> int:
        return bisect_right(self.kept, version, key=lambda each: each.version)


def _is_far_above(below: Catalog, catalog: Catalog) -> bool:
    """Return whether the updates between two catalogs justify the memory of the higher catalog."""
    return catalog.version - below.version >= max(UPDATES_BETWEEN, len(catalog))


@attrs.frozen(eq=False, repr=False)
class RetainedVersions:
    """The versions retained at a moment, earliest to latest. Immutable; any thread may read it."""

    # Shared with histories that extend this history, which ends at `_end`.
    _updates: list[Update] = attrs.field(factory=lambda: [EMPTY.as_update()])
    _latest: Catalog = EMPTY
    _end: int = attrs.field(default=attrs.Factory(lambda self: len(self._updates), takes_self=True), kw_only=True)
    _cache: _Cache = attrs.field(factory=_Cache, kw_only=True)

    # -- reading

    @property
    def earliest(self) -> int:
        """The first retained version."""
        return self._updates[0].version

    @property
    def latest(self) -> int:
        """The last registered version, which may become active later."""
        return self._latest.version

    def catalog(self, version: int) -> Catalog:
        """Return the catalog of a version. O(updates between two cached catalogs), O(1) for the latest.

        Raises:
            CatalogVersionNotFound: the version is not retained, or does not exist yet.
        """
        at = self._place(version)
        if version == self.latest:
            return self._latest
        found = self._cache.nearest(version)
        if found.version == version:
            return found
        made = found.copy()
        for update in self._updates[max(found.version + 1 - self.earliest, 0):at + 1]:
            made.apply(update)
            if made.version < version and _is_far_above(found, made):
                found = made.copy()
                self._cache.add(found)
        self._cache.add(made)
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
        return self.update(version).activation

    def has(self, version: int) -> bool:
        """Return whether this version is retained."""
        return self.earliest <= version <= self.latest

    def update(self, version: int) -> Update:
        """Return the update to this version from the version before; for the earliest, from the empty catalog. O(1)."""
        return self._updates[self._place(version)]

    def __len__(self) -> int:
        return self._end

    def __iter__(self) -> Iterator[Catalog]:
        return map(self.catalog, range(self.earliest, self.latest + 1))

    def _place(self, version: int) -> int:
        if not self.has(version):
            raise CatalogVersionNotFound(version=version, earliest=self.earliest, latest=self.latest)
        return version - self.earliest

    # -- the next history

    def followed_by(self, updates: Sequence[Update], latest: Catalog) -> RetainedVersions:
        """Return this history with the versions that follow. One thread at a time may extend a history.

        O(updates), unless this history was extended before: then O(versions).

        Args:
            updates: the updates of each version.
            latest: the last version.
        """
        if not updates:
            return self
        if len(self._updates) > self._end:  # another history extends this history already
            return RetainedVersions([*self._updates[:self._end], *updates], latest)
        self._updates.extend(updates)
        return RetainedVersions(self._updates, latest, cache=self._cache)

    def beginning_with(self, version: int) -> RetainedVersions:
        """Return this history without the versions below this version. O(versions kept)."""
        above = self._updates[self._place(version) + 1:self._end]
        return RetainedVersions([self.catalog(version).as_update(), *above], self._latest)

    def __eq__(self, other: object) -> bool:
        """Return whether both retain the same versions. O(n), unless they are the same object."""
        if not isinstance(other, RetainedVersions):
            return NotImplemented
        return self is other or self._updates[:self._end] == other._updates[:other._end]

    def __reduce__(self) -> tuple[Any, ...]:
        return RetainedVersions, (self._updates[:self._end], self._latest)

    def audit(self) -> None:
        """Check the cached catalogs against a replay of the updates. O(changes).

        Raises:
            AuditFailed: a cached catalog differs.
        """
        replayed, kept = EMPTY.copy(), {each.version: each for each in (*self._cache.kept, self._latest)}
        for update in self._updates[:self._end]:
            replayed.apply(update)
            if replayed != kept.get(replayed.version, replayed):
                raise AuditFailed(f"{kept[replayed.version]!r} is in memory; a replay of its updates gives "
                                  f"{replayed!r}")

    def __repr__(self) -> str:
        return f"RetainedVersions({self.earliest} to {self.latest})"
