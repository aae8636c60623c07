# SPDX-License-Identifier: Apache-2.0
"""The retained versions of the catalog: immutable values, swapped in one step.

`RetainedVersions` answers by version (exactly) and by time (the version in force then: the one with the greatest
activation time at or below it). It shares its lists with the next one, so adding a version costs O(1); none changes.

A long history is recovered with few of its catalogs made, and between them the updates that lead from one to the next:
they are carried out when one of their catalogs is asked for, and kept from then on.
"""

from __future__ import annotations

import threading
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from typing import Protocol, final

from compactlib.catalog.errors import ActivationNotAscending, CatalogVersionNotFound, TimeBeforeHistory
from compactlib.catalog.model.timestamp import Timestamp
from compactlib.catalog.schema.catalog import EMPTY, Catalog
from compactlib.errors import AuditFailed, InvalidInput


class Step(Protocol):
    """What leads from one version to the next, which is not made yet; carrying it out does not fail."""

    @property
    def version(self) -> int:
        """The version that it makes."""

    @property
    def activation(self) -> Timestamp:
        """When that becomes active."""

    def applied_to(self, catalog: Catalog) -> Catalog:
        """That version, made from the one before it."""


@final
class RetainedVersions:
    """The versions retained at one moment, earliest to latest. Immutable; any thread may read it.

    Args:
        steps: the versions, ascending, the first of them made; default version 0 alone.

    Raises:
        ActivationNotAscending: versions or activation times do not ascend strictly.
        InvalidInput: the first is not made.
    """

    __slots__ = ("_activations", "_end", "_steps", "_versions")

    def __init__(self, steps: Iterable[Catalog | Step] = (EMPTY,)) -> None:
        self._steps: list[Catalog | Step] = []
        self._versions: list[int] = []
        self._activations: list[Timestamp] = []
        self._end = 0
        for step in steps:
            self._push(step)
        if not self._end:
            self._push(EMPTY)

    def _push(self, step: Catalog | Step) -> None:
        if self._end:
            last = self._steps[self._end - 1]
            if step.version <= last.version or step.activation <= last.activation:
                raise ActivationNotAscending(version=step.version, activation=step.activation,
                                             previous=last.activation)
        elif not isinstance(step, Catalog):
            raise InvalidInput(f"a history begins with {step!r:.100}; give a Catalog, from which steps lead on")
        self._steps.append(step)
        self._versions.append(step.version)
        self._activations.append(step.activation)
        self._end += 1

    def _made(self, at: int) -> Catalog:
        """The catalog at a place; it and those before it are made if they are not yet, in whichever thread."""
        first = at
        while not isinstance(catalog := self._steps[first], Catalog):
            first -= 1
        for place in range(first + 1, at + 1):
            step = self._steps[place]
            catalog = self._steps[place] = step if isinstance(step, Catalog) else step.applied_to(catalog)
        return catalog

    # --- looking up ---------------------------------------------------------------------------------------------

    @property
    def earliest(self) -> int:
        """The first retained version."""
        return self._versions[0]

    @property
    def latest(self) -> int:
        """The last registered version, possibly not yet active."""
        return self._versions[self._end - 1]

    def catalog(self, version: int) -> Catalog:
        """The catalog of exactly this version. O(log n), but O(`recover.UPDATES_BETWEEN`) where it is not made yet.

        Raises:
            CatalogVersionNotFound: it is not retained, or does not exist yet.
        """
        at = bisect_left(self._versions, version, 0, self._end)
        if at == self._end or self._versions[at] != version:
            raise CatalogVersionNotFound(version=version, earliest=self.earliest, latest=self.latest)
        return self._made(at)

    def at(self, time: Timestamp) -> Catalog:
        """The catalog in force at `time`; one that becomes active exactly then is. As `catalog`.

        Raises:
            TimeBeforeHistory: `time` is below the earliest retained activation.
        """
        at = bisect_right(self._activations, time, 0, self._end)
        if not at:
            raise TimeBeforeHistory(time=time, earliest=self.earliest, earliest_time=self._activations[0])
        return self._made(at - 1)

    def version_at(self, time: Timestamp) -> int:
        """The version in force at `time`; see `at`."""
        return self.at(time).version

    def activation(self, version: int) -> Timestamp:
        """When this version becomes active; see `catalog`."""
        return self.catalog(version).activation

    def has(self, version: int) -> bool:
        """Whether exactly this version is retained."""
        at = bisect_left(self._versions, version, 0, self._end)
        return at < self._end and self._versions[at] == version

    def below(self, version: int) -> int | None:
        """The highest retained version strictly below this one; `None` if there is none."""
        at = bisect_left(self._versions, version, 0, self._end)
        return self._versions[at - 1] if at else None

    def __len__(self) -> int:
        return self._end

    def __iter__(self) -> Iterator[Catalog]:
        return map(self._made, range(self._end))

    def between(self, first: Timestamp, last: Timestamp) -> list[Catalog]:
        """The catalogs in force at some moment from `first` to `last`, both inclusive; at least one.

        Raises:
            TimeBeforeHistory: `first` is below the earliest retained activation.
        """
        start = bisect_right(self._activations, first, 0, self._end)
        if not start:
            raise TimeBeforeHistory(time=first, earliest=self.earliest, earliest_time=self._activations[0])
        end = max(bisect_right(self._activations, last, 0, self._end), start)
        return list(map(self._made, range(start - 1, end)))

    # --- the next value -----------------------------------------------------------------------------------------

    def with_catalog(self, catalog: Catalog) -> RetainedVersions:
        """These with one version more, or with a version that it has replaced.

        O(1) for the newest value; O(n) for an older one, or to replace. One thread at a time builds on a value.

        Raises:
            ActivationNotAscending: the version is new and does not follow the latest in version and time.
        """
        if self.has(catalog.version):
            return RetainedVersions(catalog if known.version == catalog.version else known
                                    for known in self._steps[:self._end])
        made = RetainedVersions.__new__(RetainedVersions)
        if len(self._steps) == self._end:  # no other value builds on this one yet
            made._steps, made._versions, made._activations = self._steps, self._versions, self._activations
        else:
            made._steps, made._versions, made._activations = (
                self._steps[:self._end], self._versions[:self._end], self._activations[:self._end])
        made._end = self._end
        made._push(catalog)
        return made

    def from_version(self, version: int) -> RetainedVersions:
        """These without what lies below `version`, which must be retained. O(versions kept)."""
        return self.from_catalog(self.catalog(version))

    def from_catalog(self, catalog: Catalog) -> RetainedVersions:
        """A version, and what lies above it here. O(versions kept)."""
        return RetainedVersions([catalog, *self._steps[bisect_right(self._versions, catalog.version, 0, self._end):
                                                       self._end]])

    def __eq__(self, other: object) -> bool:
        """Whether both retain the same versions. O(n), unless they are one."""
        if not isinstance(other, RetainedVersions):
            return NotImplemented
        return self is other or (len(self) == len(other) and all(
            mine == its for mine, its in zip(self, other, strict=True)))

    def __hash__(self) -> int:
        return hash((self.earliest, self.latest, self._activations[self._end - 1]))

    def audit(self) -> None:
        """Check that versions and times ascend and agree with the catalogs.

        Raises:
            AuditFailed: they do not.
        """
        shown = self._steps[:self._end]
        if not shown:
            raise AuditFailed("a history is never empty")
        if self._versions[:self._end] != [step.version for step in shown]:
            raise AuditFailed(f"the columns of {self!r} are not those of its versions")
        if self._activations[:self._end] != [step.activation for step in shown]:
            raise AuditFailed(f"the columns of {self!r} are not those of its versions")
        for column in (self._versions[:self._end], self._activations[:self._end]):
            if column != sorted(set(column)):
                raise AuditFailed(f"{column} does not ascend strictly")

    def __repr__(self) -> str:
        return f"RetainedVersions({self.earliest} to {self.latest})"


class CatalogVersions:
    """Holds what is retained now. One thread at a time changes it; readers take `retained` and keep it as they like.

    Args:
        retained: what to begin with; default version 0 alone.
    """

    def __init__(self, retained: RetainedVersions | None = None) -> None:
        self._retained = RetainedVersions() if retained is None else retained
        self._lock = threading.Lock()

    @property
    def retained(self) -> RetainedVersions:
        """What is retained now; the next value takes its place in one step."""
        return self._retained

    def register(self, catalog: Catalog) -> RetainedVersions:
        """Add a version, or replace one by an equal one.

        Raises:
            ActivationNotAscending: it does not follow the latest in version and activation time.
        """
        with self._lock:
            self._retained = self._retained.with_catalog(catalog)
            return self._retained

    def restart_from(self, catalog: Catalog) -> RetainedVersions:
        """Make a snapshot's version the earliest; everything below is forgotten, everything above stays.

        A snapshot above the latest version takes the place of the whole history.
        """
        with self._lock:
            before = self._retained
            if catalog.version < before.earliest:
                return before
            self._retained = before.from_catalog(catalog)
            return self._retained

    def audit(self) -> None:
        """Check what is retained; see `RetainedVersions.audit`."""
        self.retained.audit()

    def __repr__(self) -> str:
        return f"CatalogVersions({self._retained!r})"
