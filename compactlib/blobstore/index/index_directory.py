# SPDX-License-Identifier: Apache-2.0
"""Which index segments know an id: their hashes merged into a few sorted runs, so that a look-up does not ask each.

A store of ten thousand segments would else answer every get after ten thousand searches. Runs are immutable, and shared
by successive states of the log; an index segment that a compaction has removed leaves a gap in its run, and a run that
is mostly gaps is given up.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, repeat

import attrs

from compactlib.blobstore.index.index_segment import IndexSegment
from compactlib.errors import AuditFailed

MAX_SINGLES = 16
"""How many index segments may be asked one by one before they are merged into a run."""
MAX_RUN_ENTRIES = 1 << 17
"""How long a run may become by merging: a tenth of a second under the lock of the writers."""


@attrs.frozen(eq=False)
class HashRun:
    """The hashes of several index segments, sorted.

    Attributes:
        hashes: ascending.
        slots: for each, the number of its index segment among `owners`.
        owners: the index segments; `None` for one that was removed.
    """

    hashes: array[int] = attrs.field(repr=False)
    slots: array[int] = attrs.field(repr=False)
    owners: tuple[IndexSegment | None, ...] = attrs.field(repr=False)

    @classmethod
    def of(cls, owners: Sequence[IndexSegment]) -> HashRun:
        """Merge the hashes of these. O(n log of their number)."""
        hashes = list(chain.from_iterable(owner.hashes for owner in owners))
        slots = list(chain.from_iterable(repeat(slot, len(owner)) for slot, owner in enumerate(owners)))
        order = sorted(range(len(hashes)), key=hashes.__getitem__)
        return cls(array("Q", map(hashes.__getitem__, order)), array("I", map(slots.__getitem__, order)), tuple(owners))

    def live(self) -> list[IndexSegment]:
        """The index segments that were not removed."""
        return [owner for owner in self.owners if owner is not None]

    def without(self, alive: set[IndexSegment]) -> HashRun:
        """The same run, without the index segments that are not alive."""
        if all(owner is None or owner in alive for owner in self.owners):
            return self
        return HashRun(self.hashes, self.slots, tuple(owner if owner in alive else None for owner in self.owners))


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
            hashes = run.hashes
            place = bisect_left(hashes, hashed)
            while place < len(hashes) and hashes[place] == hashed:
                owner = run.owners[run.slots[place]]
                if owner is not None and owner not in found:
                    found.append(owner)
                place += 1
        return found

    def updated(self, sealed: Iterable[IndexSegment]) -> IndexDirectory:
        """The directory of these index segments, built with what this one has merged before."""
        every = list(sealed)
        alive = set(every)
        runs = []
        for run in self.runs:
            kept = run.without(alive)
            # A run that is mostly gaps is dissolved, and what is left of it merged anew.
            if 2 * sum(map(len, kept.live())) >= len(kept.hashes):
                runs.append(kept)
        covered = {owner for run in runs for owner in run.owners}
        singles = [index for index in every if index not in covered]
        if len(singles) <= MAX_SINGLES:
            return IndexDirectory(tuple(runs), tuple(singles))
        if runs:
            last = runs[-1].live()
            if sum(map(len, last)) + sum(map(len, singles)) <= MAX_RUN_ENTRIES:
                runs.pop()
                singles = [*last, *singles]
        runs.extend(map(HashRun.of, _grouped(singles)))
        return IndexDirectory(tuple(runs), ())

    def memory_bytes(self) -> int:
        """How much memory the runs take beside the index segments."""
        return sum(12 * len(run.hashes) for run in self.runs)

    def audit(self, sealed: Iterable[IndexSegment]) -> None:
        """Check that exactly these index segments are covered, once each.

        Raises:
            AuditFailed: they are not, or a run is out of order.
        """
        held = [*self.singles, *(owner for run in self.runs for owner in run.live())]
        if len(held) != len(set(held)) or set(held) != set(sealed):
            raise AuditFailed(f"the directory covers {len(held)} index segments, not those of the log")
        for run in self.runs:
            if any(map(int.__gt__, run.hashes, run.hashes[1:])):
                raise AuditFailed("the hashes of a run are out of order")


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
