# SPDX-License-Identifier: Apache-2.0
"""`IndexSet`: an immutable sorted set of non-negative 64-bit integers, kept as runs.

Live indexes of a log come in runs as often as scattered; both cost little here: 16 bytes a run, and 8 bytes a member
while no two members are neighbours. Everything done to whole sets is a merge of sorted columns in C.

>>> live = IndexSet.from_iterable([9, 1, 2, 4, 3, 9, 20, 21])
>>> list(live.runs())
[(1, 4), (9, 9), (20, 21)]
>>> list(live - IndexSet.range(3, 9))
[1, 2, 20, 21]
>>> live
IndexSet(7 in 3 runs, 1..21)
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator
from itertools import chain, repeat
from operator import add, index as as_int, sub
from typing import NoReturn, final

from attrs.exceptions import FrozenInstanceError

from compactlib._arguments import require_type
from compactlib.errors import AuditFailed, InvalidInput, NotFound
from compactlib.indexset import (
    algebra as _indexset_algebra,
    encoding as _indexset_bytes,
    runs as _indexset_runs,
)
from compactlib.indexset.positions import common_positions, merge_positions
from compactlib.indexset.runs import (
    MAX_INDEX,
    Column,
    Runs,
    check_ascending,
    column,
    joined,
    split_pairs,
    unsorted,
)

__all__ = ["MAX_INDEX", "IndexSet", "IndexSetBuilder", "common_positions", "merge_positions"]


@final
class IndexSet:
    """An immutable sorted set of integers from 0 to 2**64 - 1, kept as maximal runs. `IndexSet()` is empty.

    Sets compare, hash, pickle and combine (`|`, `&`, `-`) by value. `len()` is known, not counted; above
    `sys.maxsize` members it raises OverflowError, as for a `range`, and `count` still works.
    """

    __slots__ = ("__weakref__", "_count", "_firsts", "_lasts")

    _firsts: Column
    _lasts: Column
    _count: int

    def __init__(self) -> None:
        nothing = array("Q")
        self._fill(nothing, nothing)

    def _fill(self, firsts: Column, lasts: Column) -> None:
        if firsts == lasts:
            lasts = firsts  # runs of one share their column: half the memory, and the sign for shortcuts
        set_field = object.__setattr__
        set_field(self, "_firsts", firsts)
        set_field(self, "_lasts", lasts)
        set_field(self, "_count", len(firsts) if lasts is firsts else sum(lasts) - sum(firsts) + len(firsts))

    @classmethod
    def _of(cls, runs: Runs) -> IndexSet:
        made = cls.__new__(cls)
        made._fill(*runs)
        return made

    # --- making one ---------------------------------------------------------------------------------------------

    @classmethod
    def from_iterable(cls, indexes: Iterable[int]) -> IndexSet:
        """The set of `indexes`, in any order, repeated or not.

        >>> IndexSet.from_iterable([3, 1, 2, 3])
        IndexSet(3 in 1 run, 1..3)

        Args:
            indexes: integers from 0 to 2**64 - 1.

        Raises:
            InvalidInput: a value is no integer or out of range.

        Cost: O(n log n); linear where the input ascends.
        """
        ordered = sorted(column(list(indexes)))
        return cls._of(joined(ordered, ordered))

    @classmethod
    def from_sorted(cls, indexes: Iterable[int]) -> IndexSet:
        """The set of `indexes`, which ascend strictly.

        Raises:
            InvalidInput: a value is no integer or out of range.
            Unsorted: one does not exceed the one before it; names both.

        Cost: O(n).
        """
        values = column(list(indexes)).tolist()
        check_ascending(values)
        return cls._of(joined(values, values))

    @classmethod
    def from_runs(cls, runs: Iterable[tuple[int, int]]) -> IndexSet:
        """The set of all members of `runs`, pairs `(first, last)`, both inclusive, in any order, overlapping or not.

        >>> list(IndexSet.from_runs([(7, 9), (1, 3), (4, 5), (2, 2)]).runs())
        [(1, 5), (7, 9)]

        Raises:
            InvalidInput: a run is no pair of indexes, or ends before it begins.

        Cost: O(runs log runs); linear where they ascend.
        """
        firsts, lasts = split_pairs(runs)
        return cls._of(joined(sorted(firsts), sorted(lasts)))

    @classmethod
    def range(cls, first: int, last: int) -> IndexSet:
        """The set of all indexes from `first` to `last`, both inclusive.

        Raises:
            InvalidInput: an end is no index, or `first` exceeds `last`.
        """
        return cls._of(split_pairs([(first, last)]))

    @classmethod
    def from_bytes(cls, data: bytes | bytearray | memoryview, *, path: str = "", offset: int = 0) -> IndexSet:
        """The set that `to_bytes` was called on.

        Args:
            data: exactly what `to_bytes` gave.
            path: the file it was read from, for the message of an error.
            offset: where in that file `data` begins, for the same.

        Raises:
            CorruptData: a byte was changed, cut off or added.
            Unsupported: a later release wrote it.
            InvalidInput: these are no bytes.

        Cost: O(runs).
        """
        require_type("data", data, (bytes, bytearray, memoryview), "bytes")
        return cls._of(_indexset_bytes.decode(data, path or "<bytes>", offset))

    # --- asking it ----------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return self._count

    def __bool__(self) -> bool:
        return self._count > 0

    @property
    def count(self) -> int:
        """How many members there are, up to 2**64."""
        return self._count

    @property
    def run_count(self) -> int:
        """How many runs the members form."""
        return len(self._firsts)

    @property
    def first(self) -> int:
        """The lowest member.

        Raises:
            NotFound: the set is empty.
        """
        return self._firsts[0] if self else _no_member("first")

    @property
    def last(self) -> int:
        """The highest member.

        Raises:
            NotFound: the set is empty.
        """
        return self._lasts[-1] if self else _no_member("last")

    def __contains__(self, value: object) -> bool:
        # Cost: O(log runs). For many values at once, intersect sets or use `merge_positions`.
        if type(value) is not int:
            try:
                value = as_int(value)  # type: ignore[arg-type]
            except TypeError:
                return False
        return self.holds(value)

    def holds(self, index: int) -> bool:
        """`index in self`, for what is known to be a whole number; a fifth quicker. O(log runs)."""
        run = bisect_right(self._firsts, index) - 1
        return run >= 0 and index <= self._lasts[run]

    def __iter__(self) -> Iterator[int]:
        if self._lasts is self._firsts:
            return iter(self._firsts)
        return chain.from_iterable(map(range, self._firsts, map(add, self._lasts, repeat(1))))

    def __reversed__(self) -> Iterator[int]:
        if self._lasts is self._firsts:
            return reversed(self._firsts)
        stops = map(sub, reversed(self._firsts), repeat(1))
        return chain.from_iterable(map(range, reversed(self._lasts), stops, repeat(-1)))

    def runs(self) -> Iterator[tuple[int, int]]:
        """The maximal runs as `(first, last)`, both inclusive, ascending."""
        return zip(self._firsts, self._lasts, strict=True)

    @property
    def columns(self) -> tuple[memoryview, memoryview]:
        """The first and the last members of the runs, as 64-bit numbers of this machine that cannot be written to."""
        return memoryview(self._firsts).toreadonly(), memoryview(self._lasts).toreadonly()

    def members(self) -> list[int]:
        """All members, ascending. Cost: O(members) in C."""
        return self._firsts.tolist() if self._lasts is self._firsts else list(self)

    def overlaps(self, first: int, last: int) -> bool:
        """Whether a member lies in `first..last`, both inclusive; an empty range has none. Cost: O(log runs)."""
        run = bisect_left(self._lasts, first)
        return first <= last and run < len(self._firsts) and self._firsts[run] <= last

    def isdisjoint(self, other: IndexSet) -> bool:
        """Whether the two sets share no member. Cost: O(runs where their ranges meet)."""
        return not _indexset_algebra.overlap(self._runs, other._runs)

    def issubset(self, other: IndexSet) -> bool:
        """Whether every member is one of `other`. Cost: as `intersection`."""
        return self.intersection(other)._count == self._count

    # --- taking a part ------------------------------------------------------------------------------------------

    def at_least(self, index: int) -> IndexSet:
        """The members from `index` upwards. Cost: O(log runs), and a copy of the columns kept."""
        return self.between(index, MAX_INDEX)

    def at_most(self, index: int) -> IndexSet:
        """The members up to and including `index`. Cost: as `at_least`."""
        return self.between(0, index)

    def between(self, first: int, last: int) -> IndexSet:
        """The members in `first..last`, both inclusive; none if `first` exceeds `last`. Cost: as `at_least`.

        >>> list(IndexSet.from_runs([(1, 3), (5, 9), (11, 11)]).between(3, 6).runs())
        [(3, 3), (5, 6)]
        """
        return self._taking(_indexset_algebra.between(self._runs, first, last))

    def chunks(self, size: int) -> Iterator[IndexSet]:
        """The members in sets of `size` each, ascending; the last one may be smaller. Each is made when asked for.

        >>> [list(chunk) for chunk in IndexSet.from_runs([(1, 3), (5, 6)]).chunks(2)]
        [[1, 2], [3, 5], [6]]

        Raises:
            InvalidInput: `size` is less than 1.

        Cost: O(runs) at the start, O(log runs + runs of the chunk) for each.
        """
        if size < 1:
            raise InvalidInput(f"chunks of {size} members; a chunk holds at least 1")
        return map(IndexSet._of, _indexset_algebra.chunks(self._runs, size))

    # --- combining ----------------------------------------------------------------------------------------------

    def union(self, *others: IndexSet) -> IndexSet:
        """The members of any of the sets. Cost: O(runs) for two, O(runs log sets) for more."""
        return self._taking(_indexset_algebra.union([self._runs, *(other._runs for other in others)]))

    def intersection(self, other: IndexSet) -> IndexSet:
        """The members of both sets. Cost: O(runs where their ranges meet)."""
        return self._taking(_indexset_algebra.intersection(self._runs, other._runs))

    def difference(self, other: IndexSet) -> IndexSet:
        """The members of this set that are not in `other`. Cost: O(runs where their ranges meet), and a copy."""
        return self._taking(_indexset_algebra.difference(self._runs, other._runs))

    def __or__(self, other: IndexSet) -> IndexSet:
        return self._combined(other, IndexSet.union)

    def __and__(self, other: IndexSet) -> IndexSet:
        return self._combined(other, IndexSet.intersection)

    def __sub__(self, other: IndexSet) -> IndexSet:
        return self._combined(other, IndexSet.difference)

    # --- as a value ---------------------------------------------------------------------------------------------

    def to_bytes(self) -> bytes:
        """The set as compact bytes with a checksum (`docs/formats/indexset.md`); equal sets give equal bytes.

        About one byte a run while most gaps are below 127 indexes, two below 32,767. Cost: O(runs).
        """
        return _indexset_bytes.encode(self._runs)

    def __eq__(self, other: object) -> bool:
        return self._runs == other._runs if isinstance(other, IndexSet) else NotImplemented

    def __hash__(self) -> int:
        return hash((self._firsts.tobytes(), self._lasts.tobytes()))

    def __reduce__(self) -> tuple[object, ...]:
        return IndexSet.from_bytes, (self.to_bytes(),)

    def __repr__(self) -> str:
        if not self:
            return "IndexSet(empty)"
        runs = "1 run" if self.run_count == 1 else f"{self.run_count:,} runs"
        return f"IndexSet({self._count:,} in {runs}, {self.first}..{self.last})"

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise FrozenInstanceError

    def __delattr__(self, name: str) -> NoReturn:
        raise FrozenInstanceError

    def audit(self) -> None:
        """Check that the runs ascend, do not touch, and add up to `count`.

        Raises:
            AuditFailed: they do not; says where.
        """
        _indexset_runs.audit(self._runs)
        counted = sum(last - first + 1 for first, last in self.runs())
        if counted != self._count:
            raise AuditFailed(f"the runs hold {counted} members, the set says {self._count}")

    @property
    def _runs(self) -> Runs:
        return self._firsts, self._lasts

    def _combined(self, other: object, how: Callable[[IndexSet, IndexSet], IndexSet]) -> IndexSet:
        return how(self, other) if isinstance(other, IndexSet) else NotImplemented

    def _taking(self, runs: Runs) -> IndexSet:
        return self if runs[0] is self._firsts and runs[1] is self._lasts else IndexSet._of(runs)


class IndexSetBuilder:
    """Collects ascending indexes as they come, and makes sets of them. Keeps the runs they form: 16 bytes a run.

    >>> builder = IndexSetBuilder()
    >>> builder.append_run(1, 4)
    >>> builder.append(6)
    >>> builder.build()
    IndexSet(5 in 2 runs, 1..6)
    """

    def __init__(self) -> None:
        # The first and the last member of each run in turn, so that one call takes both, or neither in an interrupt.
        self._ends: Column = array("Q")

    def append(self, index: int) -> None:
        """Take one index, above all taken before. Cost: O(1).

        Raises:
            InvalidInput: no integer from 0 to 2**64 - 1; nothing was taken.
            Unsorted: not above the last one; nothing was taken.
        """
        self.append_run(index, index)

    def append_run(self, first: int, last: int) -> None:
        """Take all indexes from `first` to `last`, both inclusive and above all taken before. Cost: O(1).

        Raises:
            InvalidInput: no indexes, or `first` exceeds `last`; nothing was taken.
            Unsorted: `first` is not above the last one; nothing was taken.
        """
        try:
            first, last = as_int(first), as_int(last)
        except TypeError:
            split_pairs([(first, last)])
            raise
        ends = self._ends
        following = ends[-1] + 1 if ends else 0
        if not following <= first <= last <= MAX_INDEX:
            split_pairs([(first, last)])
            raise unsorted(following - 1, first)
        if first == following and ends:
            ends[-1] = last
        else:
            ends.extend((first, last))

    def build(self) -> IndexSet:
        """The set of everything taken so far; the builder may go on. Cost: O(runs), a copy."""
        return IndexSet._of((self._ends[::2], self._ends[1::2]))

    def audit(self) -> None:
        """Check the runs taken so far.

        Raises:
            AuditFailed: they are not in order; says where.
        """
        self.build().audit()

    def __repr__(self) -> str:
        return f"IndexSetBuilder({self.build()!r})"


def _no_member(which: str) -> NoReturn:
    raise NotFound(f"an empty set has no {which} member; ask `if index_set:` first")
