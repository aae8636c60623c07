# SPDX-License-Identifier: Apache-2.0
"""The directory of the index: the hashes of its parts, merged into a few sorted runs.

Without it, a get in a store of ten thousand segments would search ten thousand parts. Runs are immutable, and shared by
successive states of the log. A part that a compaction has replaced leaves a gap in its run, and a run with more gaps
than entries is dissolved. A run is merged with newer parts once these are a quarter of its size, so that an entry is
merged O(log n) times.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, repeat
from operator import attrgetter

import attrs

from compactlib.blobstore.index import IndexPart

_MAX_SINGLES = 16
"""How many parts are searched separately before they are merged into a run."""
_MAX_RUN_ENTRIES = 1 << 17
"""The longest run that merging makes: a tenth of a second under the lock of the writers."""


@attrs.frozen(eq=False)
class _Run:
    """The hashes of several parts, sorted."""

    hashes: array[int]  # ascending
    slots: array[int]  # for each hash, the place of its part in `owners`; ascending among equal hashes
    owners: Sequence[IndexPart | None]  # the parts, ascending by their last sequence; `None` for a gap

    @classmethod
    def of(cls, owners: Sequence[IndexPart]) -> _Run:
        """Merge the hashes of parts. O(hashes * log parts)."""
        owners = sorted(owners, key=attrgetter("last_sequence"))
        hashes = list(chain.from_iterable(owner.hashes for owner in owners))
        slots = list(chain.from_iterable(repeat(slot, len(owner)) for slot, owner in enumerate(owners)))
        order = sorted(range(len(hashes)), key=hashes.__getitem__)
        return cls(array("Q", map(hashes.__getitem__, order)), array("I", map(slots.__getitem__, order)), owners)

    def live(self) -> list[IndexPart]:
        """Return the parts, without gaps."""
        return [owner for owner in self.owners if owner is not None]

    def owners_of(self, hashed: int) -> Iterable[IndexPart]:
        """Return the parts that hold a hash, descending by their last sequence, without gaps. One search."""
        hashes = self.hashes
        start, count = bisect_left(hashes, hashed), len(hashes)
        if start == count or hashes[start] != hashed:
            return ()
        if start + 1 == count or hashes[start + 1] != hashed:
            # Most ids have one record.
            owner = self.owners[self.slots[start]]
            return () if owner is None else (owner,)
        return self._newest_first(start, bisect_right(hashes, hashed, start))

    def _newest_first(self, start: int, end: int) -> Iterator[IndexPart]:
        while start < end:
            slot = self.slots[end - 1]
            if (owner := self.owners[slot]) is not None:
                yield owner
            # One part may hold many entries of an id that was often put.
            end = bisect_left(self.slots, slot, start, end)


@attrs.frozen(eq=False)
class IndexDirectory:
    """All sealed parts of the index of a log, found by hash."""

    runs: tuple[_Run, ...] = ()  # the merged parts
    singles: tuple[IndexPart, ...] = ()  # parts that are searched separately, mostly the newest

    def owners(self, hashed: int) -> list[Iterable[IndexPart]]:
        """Return the parts that hold a hash, in groups; in each group descending by their last sequence.

        One search for each run and each single.
        """
        found: list[Iterable[IndexPart]] = []
        for single in self.singles:
            hashes = single.hashes
            place = bisect_left(hashes, hashed)
            if place < len(hashes) and hashes[place] == hashed:
                found.append((single,))
        found.extend([run.owners_of(hashed) for run in self.runs])
        return found

    def updated(self, parts: Iterable[IndexPart]) -> IndexDirectory:
        """Return the directory of other parts, with the runs of this one as far as they serve. O(parts), amortised."""
        every = list(parts)
        alive, known = set(every), set(self.parts())
        singles = [single for single in self.singles if single in alive]
        runs: list[_Run] = []
        for run in self.runs:
            kept = run if alive.issuperset(run.live()) else attrs.evolve(
                run, owners=[owner if owner in alive else None for owner in run.owners])
            # The parts of a run with more gaps than entries are merged again.
            if 2 * _entries(kept.live()) >= len(kept.hashes):
                runs.append(kept)
            else:
                singles += kept.live()
        return IndexDirectory(tuple(runs), (*singles, *(part for part in every if part not in known)))._merged()

    def with_part(self, part: IndexPart) -> IndexDirectory:
        """Return the directory with one more part. O(log n), amortised."""
        return IndexDirectory(self.runs, (*self.singles, part) if len(part) else self.singles)._merged()

    def _merged(self) -> IndexDirectory:
        runs, singles = list(self.runs), list(self.singles)
        if len(singles) <= _MAX_SINGLES:
            return self
        size = _entries(singles)
        while runs and _entries(runs[-1].live()) <= min(4 * size, _MAX_RUN_ENTRIES - size):
            last = runs.pop().live()
            size += _entries(last)
            singles = [*last, *singles]
        runs.extend(map(_Run.of, _grouped(singles)))
        return IndexDirectory(tuple(runs))

    def parts(self) -> list[IndexPart]:
        """Return all parts."""
        return [*self.singles, *(owner for run in self.runs for owner in run.live())]


def _entries(parts: Iterable[IndexPart]) -> int:
    return sum(len(part.rows) for part in parts)


def _grouped(parts: Sequence[IndexPart]) -> Iterator[list[IndexPart]]:
    group: list[IndexPart] = []
    size = 0
    for part in parts:
        if group and size + len(part) > _MAX_RUN_ENTRIES:
            yield group
            group, size = [], 0
        group.append(part)
        size += len(part)
    if group:
        yield group
