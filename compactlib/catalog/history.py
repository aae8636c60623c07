# SPDX-License-Identifier: Apache-2.0
"""`RetainedVersions`: the versions of a catalog that are retained at one moment, by number and by time.

A history is one catalog and the updates that lead on from it, as they are stored. A catalog in between is made when it
is asked for, from the nearest one below that is there: one is kept every thousand versions, more where a catalog has
more objects than that, so that a version costs as much as a thousand updates at most. The last few that were asked for
are kept as well, and the latest always.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import Any

import attrs

from compactlib.catalog.errors import CatalogVersionNotFound, TimeBeforeHistory
from compactlib.catalog.schema import EMPTY, UPDATES, Catalog, Update
from compactlib.catalog.timestamp import Timestamp
from compactlib.errors import AuditFailed

UPDATES_BETWEEN = 1000
"""At least so many updates lie between two catalogs that are kept."""
_RECENT = 16


@attrs.define(eq=False)
class _Made:
    """Catalogs that are made, by version; shared by all histories that go on from one another."""

    kept: list[Catalog]  # Invariant: ascending, the first one is the history's first
    recent: dict[int, Catalog] = attrs.field(factory=dict)
    lock: threading.Lock = attrs.field(factory=threading.Lock)

    def nearest(self, version: int) -> Catalog:
        """Return the highest catalog that is made, up to this version."""
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
    """Return whether so many updates lie between two catalogs that the higher one is worth its memory."""
    return catalog.version - kept.version >= max(UPDATES_BETWEEN, len(catalog))


class RetainedVersions:
    """The versions retained at one moment, earliest to latest. Immutable; any thread may read it.

    Args:
        first: the earliest version; default version 0.
    """

    __slots__ = ("_activations", "_end", "_latest", "_made", "_updates", "earliest")

    def __init__(self, first: Catalog = EMPTY) -> None:
        self.earliest: int = first.version
        """The first retained version."""
        # By version, from the first one on; shared with histories that go on from this one, which ends at `_end`.
        self._activations: list[Timestamp] = [first.activation]
        self._updates: list[bytes] = [b""]
        self._end = 1
        self._made = _Made([first])
        self._latest = first

    # -- looking up

    @property
    def latest(self) -> int:
        """The last registered version, possibly not yet active."""
        return self.earliest + self._end - 1

    def catalog(self, version: int) -> Catalog:
        """Return the catalog of exactly this version. O(updates between two kept catalogs), O(1) for the latest.

        Raises:
            CatalogVersionNotFound: it is not retained, or does not exist yet.
        """
        self._require(version)
        if version == self._latest.version:
            return self._latest
        found = self._made.nearest(version)
        if found.version == version:
            return found
        made = found.copy()
        for each in range(found.version + 1, version + 1):
            made.apply(self.update(each))
        self._made.remember(made)
        return made

    def at(self, time: Timestamp) -> Catalog:
        """Return the catalog in force at `time`; one that becomes active exactly then is. As `catalog`.

        Raises:
            TimeBeforeHistory: `time` is below the earliest retained activation.
        """
        return self.catalog(self.version_at(time))

    def version_at(self, time: Timestamp) -> int:
        """Return the version in force at `time`; see `at`. O(log n)."""
        at = bisect_right(self._activations, time, 0, self._end)
        if not at:
            raise TimeBeforeHistory(time=time, earliest=self.earliest, earliest_time=self._activations[0])
        return self.earliest + at - 1

    def activation(self, version: int) -> Timestamp:
        """Return when this version becomes active; see `catalog`. O(1)."""
        self._require(version)
        return self._activations[version - self.earliest]

    def has(self, version: int) -> bool:
        """Return whether exactly this version is retained."""
        return self.earliest <= version <= self.latest

    def update(self, version: int) -> Update:
        """Return what led to this version from the one before it, which is retained as well."""
        return UPDATES.decode(self.payload(version), f"the update to version {version}")

    def payload(self, version: int) -> bytes:
        """Return the same as it is stored."""
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

    # -- the next value

    def followed_by(self, updates: Sequence[tuple[Timestamp, bytes]], made: Sequence[Catalog]) -> RetainedVersions:
        """Return these with the versions that follow. O(updates) for the newest value; one thread at a time builds on a
        value.

        Args:
            updates: of each version, its activation, and the update that led to it as it is stored.
            made: the last of the versions, and perhaps some before it, ascending.
        """
        if not updates:
            return self
        after = RetainedVersions.__new__(RetainedVersions)
        after.earliest, after._made, after._latest = self.earliest, self._made, made[-1]
        after._activations, after._updates = self._activations, self._updates
        if len(self._updates) > self._end:  # another value builds on this one already
            after._activations, after._updates = self._activations[:self._end], self._updates[:self._end]
            after._made = _Made(list(self._made.kept))
        after._activations += [activation for activation, _ in updates]
        after._updates += [payload for _, payload in updates]
        after._end = self._end + len(updates)
        with after._made.lock:
            for catalog in made:
                if is_far_above(after._made.kept[-1], catalog):
                    after._made.kept.append(catalog)
        return after

    def beginning_with(self, first: Catalog) -> RetainedVersions:
        """Return these without what lies below a version; or that version alone, above the latest. O(versions kept)."""
        above = range(first.version + 1, self.latest + 1)
        kept = [each for each in self._made.kept if each.version in above]
        return RetainedVersions(first).followed_by([(self.activation(each), self.payload(each)) for each in above],
                                                   [*kept, self._latest])

    def __eq__(self, other: object) -> bool:
        """Return whether both retain the same versions. O(n), unless they are one."""
        if not isinstance(other, RetainedVersions):
            return NotImplemented
        return self is other or (
            self.earliest == other.earliest and self.catalog(self.earliest) == other.catalog(other.earliest)
            and self._updates[1:self._end] == other._updates[1:other._end])

    def __reduce__(self) -> tuple[Any, ...]:
        updates = list(zip(self._activations[1:self._end], self._updates[1:self._end], strict=True))
        return _of, (self.catalog(self.earliest), updates, self._latest)

    def audit(self) -> None:
        """Check that the catalogs in memory are what the updates lead to. O(changes).

        Raises:
            AuditFailed: one is not.
        """
        replayed = self.catalog(self.earliest).copy()
        kept = {each.version: each for each in (*self._made.kept, self._latest)}
        for version in range(self.earliest + 1, self.latest + 1):
            replayed.apply(self.update(version))
            if version in kept and kept[version] != replayed:
                raise AuditFailed(f"{kept[version]!r} is in memory, and its updates lead to {replayed!r}")

    def __repr__(self) -> str:
        return f"RetainedVersions({self.earliest} to {self.latest})"


def _of(first: Catalog, updates: Sequence[tuple[Timestamp, bytes]], latest: Catalog) -> RetainedVersions:
    return RetainedVersions(first).followed_by(updates, [latest])
