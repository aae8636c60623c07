# SPDX-License-Identifier: Apache-2.0
"""Which index segments know an id: their hashes merged into a few sorted runs, so that a look-up does not ask each.

A store of ten thousand segments would else answer every get after ten thousand searches. Runs are immutable, and shared
by successive states of the log; an index segment that a compaction has removed leaves a gap in its run, and a run that
is mostly gaps is given up. A run is merged with what has come since once that is a quarter of it, so that an entry is
merged O(log n) times.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain, pairwise, repeat

import attrs

from compactlib.blobstore.index_segment import IndexSegment
from compactlib.errors import AuditFailed

MAX_SINGLES = 16
"""How many index segments may be asked one by one before they are merged into a run."""
MAX_RUN_ENTRIES = 1 << 17
"""How long a run may become by merging: a tenth of a second under the lock of the writers."""

_LOOKS_A_SEARCH = 8
"""How many hashes are looked at in the time of one search."""
_SEARCHED, _LOOKED_AT = 32, 128
"""How many are searched, and looked at, before others may have the interpreter."""


@attrs.frozen(eq=False)
class HashRun:
    """The hashes of several index segments, sorted.

    Attributes:
        hashes: ascending.
        slots: for each, the number of its index segment among `owners`; ascending among equal hashes.
        owners: the index segments; `None` for one that was removed.
        slot_of: the number of each index segment, by its `id`, so that one that was removed is let go.
        entries: how many hashes are of index segments that were not removed.
    """

    hashes: array[int] = attrs.field(repr=False)
    slots: array[int] = attrs.field(repr=False)
    owners: Sequence[IndexSegment | None] = attrs.field(repr=False)
    slot_of: Mapping[int, int] = attrs.field(repr=False)
    entries: int

    @classmethod
    def of(cls, owners: Sequence[IndexSegment]) -> HashRun:
        """Merge the hashes of these. O(n log of their number)."""
        hashes = list(chain.from_iterable(owner.hashes for owner in owners))
        slots = list(chain.from_iterable(repeat(slot, len(owner)) for slot, owner in enumerate(owners)))
        order = sorted(range(len(hashes)), key=hashes.__getitem__)
        return cls(array("Q", map(hashes.__getitem__, order)), array("I", map(slots.__getitem__, order)), owners,
                   {id(owner): slot for slot, owner in enumerate(owners)}, len(hashes))

    def live(self) -> list[IndexSegment]:
        """The index segments that were not removed."""
        return [owner for owner in self.owners if owner is not None]

    def owners_of(self, hashed: int) -> list[IndexSegment]:
        """The index segments that hold this hash and were not removed. One search."""
        place, end = bisect_left(self.hashes, hashed), bisect_right(self.hashes, hashed)
        found: list[IndexSegment] = []
        while place < end:
            slot = self.slots[place]
            if (owner := self.owners[slot]) is not None:
                found.append(owner)
            # Of each once: an id that was put again and again has many entries in one.
            place += 1
            if place < end and self.slots[place] == slot:
                place = bisect_right(self.slots, slot, place, end)
        return found

    def without(self, gone: Collection[IndexSegment]) -> HashRun:
        """The same run without these index segments, those of them that it has."""
        # Another one may have the `id` of one that is no more.
        held = [(slot, index) for index in gone if (slot := self.slot_of.get(id(index), -1)) >= 0
                and self.owners[slot] is index]
        if not held:
            return self
        owners = list(self.owners)
        for slot, _ in held:
            owners[slot] = None
        return attrs.evolve(self, owners=owners, entries=self.entries - sum(len(index) for _, index in held))


@attrs.frozen(eq=False)
class IndexDirectory:
    """All sealed index segments of a log, found by hash.

    Attributes:
        runs: merged ones.
        singles: those that are asked one by one, the newest ones mostly.
    """

    runs: tuple[HashRun, ...] = ()
    singles: tuple[IndexSegment, ...] = ()

    def owners(self, hashed: int) -> list[IndexSegment]:
        """The index segments that hold this hash. One search a run and a single."""
        found: list[IndexSegment] = []
        for single in self.singles:
            hashes = single.hashes
            place = bisect_left(hashes, hashed)
            if place < len(hashes) and hashes[place] == hashed:
                found.append(single)
        for run in self.runs:
            found += run.owners_of(hashed)
        return found

    def shared(self, index: IndexSegment, check: Callable[[], None]) -> dict[int, tuple[int, list[IndexSegment]]]:
        """The rows of an index segment of this directory whose hash another record has, too: for each the hash, and the
        index segments that hold others.

        One search a run and a larger single for each of its entries, and a look at each entry of a smaller single.

        Args:
            index: the index segment.
            check: called with each piece of work; what it raises ends it.
        """
        own = set(index.hashes)
        found: dict[int, dict[IndexSegment, None]] = {}
        if len(own) < len(index):
            found.update((hashed, {index: None}) for hashed, after in pairwise(index.hashes) if hashed == after)
        for single in self.singles:
            if single is not index:
                for hashed in _common(own, single.hashes, check):
                    found.setdefault(hashed, {})[single] = None
        for run in self.runs:
            for hashed in _common(own, run.hashes, check):
                for owner in run.owners_of(hashed):
                    if owner is not index:
                        found.setdefault(hashed, {})[owner] = None
        return {row: (hashed, list(found[hashed])) for hashed, row in zip(index.hashes, index.rows, strict=True)
                if hashed in found}

    def updated(self, sealed: Iterable[IndexSegment]) -> IndexDirectory:
        """The directory of these index segments, built with what this one has merged before. O(their number)."""
        every = list(sealed)
        alive, known = set(every), set(self.indexes())
        return self.changed(known - alive, [index for index in every if index not in known])

    def changed(self, gone: Collection[IndexSegment], new: Iterable[IndexSegment]) -> IndexDirectory:
        """The directory without the index segments `gone`, which it holds, and with `new`, which it does not.

        Amortised O(log n) for each entry of the new ones, however many there are besides.
        """
        runs: list[HashRun] = []
        singles = [single for single in self.singles if single not in gone]
        for run in self.runs:
            kept = run.without(gone)
            # A run that is mostly gaps is dissolved, and what is left of it merged anew.
            if 2 * kept.entries >= len(kept.hashes):
                runs.append(kept)
            else:
                singles += kept.live()
        singles += new
        if len(singles) <= MAX_SINGLES:
            return IndexDirectory(tuple(runs), tuple(singles))
        size = sum(map(len, singles))
        while runs and runs[-1].entries <= min(4 * size, MAX_RUN_ENTRIES - size):
            last = runs.pop()
            size += last.entries
            singles = [*last.live(), *singles]
        runs.extend(map(HashRun.of, _grouped(singles)))
        return IndexDirectory(tuple(runs), ())

    def indexes(self) -> list[IndexSegment]:
        """All that it covers."""
        return [*self.singles, *(owner for run in self.runs for owner in run.live())]

    def memory_bytes(self) -> int:
        """How much memory the runs take beside the index segments."""
        return sum(12 * len(run.hashes) for run in self.runs)

    def audit(self, sealed: Iterable[IndexSegment]) -> None:
        """Check that exactly these index segments are covered, once each.

        Raises:
            AuditFailed: they are not, or a run is out of order.
        """
        held = self.indexes()
        if len(held) != len(set(held)) or set(held) != set(sealed):
            raise AuditFailed(f"the directory covers {len(held)} index segments, not those of the log")
        for run in self.runs:
            if any(map(int.__gt__, run.hashes, run.hashes[1:])) or run.entries != sum(map(len, run.live())):
                raise AuditFailed("the hashes of a run are out of order, or counted wrong")


def _common(own: set[int], hashes: array[int], check: Callable[[], None]) -> Iterator[int]:
    """Those of `own` that are among these, which ascend; one that is there several times may come twice."""
    if len(hashes) > _LOOKS_A_SEARCH * len(own):
        for number, hashed in enumerate(own):
            place = bisect_left(hashes, hashed)
            if place < len(hashes) and hashes[place] == hashed:
                yield hashed
            if number % _SEARCHED == 0:
                check()
        return
    for start in range(0, len(hashes), _LOOKED_AT):
        yield from own.intersection(hashes[start:start + _LOOKED_AT])
        check()


def _grouped(indexes: Sequence[IndexSegment]) -> Iterator[list[IndexSegment]]:
    group: list[IndexSegment] = []
    size = 0
    for index in indexes:
        if group and size + len(index) > MAX_RUN_ENTRIES:
            yield group
            group, size = [], 0
        group.append(index)
        size += len(index)
    if group:
        yield group
