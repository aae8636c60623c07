# SPDX-License-Identifier: Apache-2.0
"""`IndexSet`: an immutable sorted set of non-negative 64-bit integers, kept as runs.

A set is two columns of numbers: the first and the last member (inclusive) of every run. Runs ascend, and at least one
non-member lies between two neighbours, so equal sets have equal columns. A set takes 16 bytes a run, or 8 bytes a
member while no two members are neighbours, since both columns are then the same. Operations on whole sets merge sorted
columns in C loops (`list.sort`, which merges two sorted parts in linear time, then `map` and `compress`).

>>> live = IndexSet.from_iterable([9, 1, 2, 4, 3, 9, 20, 21])
>>> list(live.runs())
[(1, 4), (9, 9), (20, 21)]
>>> list(live - IndexSet.range(3, 9))
[1, 2, 20, 21]
>>> live
IndexSet(7 in 3 runs, 1..21)

The stored form is that of `docs/formats/indexset.md`: equal sets have equal bytes on all machines.
"""

from __future__ import annotations

import sys
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, chain, compress, islice, repeat
from operator import add, ge, index as as_int, lt, sub
from typing import Any, NoReturn, TypeAlias, final

from compactlib.errors import AuditFailed, CorruptData, InvalidInput, NotFound, Unsorted
from compactlib.files.record_frame import RecordFrame

__all__ = ["IndexSet"]

MAX_INDEX = (1 << 64) - 1
"""The highest index there can be."""

_Column: TypeAlias = "array[int]"
_Runs: TypeAlias = "tuple[_Column, _Column]"
_FRAME = RecordFrame("index set format", b"CLINDSET", 1, "<HQQBB")
_CODES = {1: "B", 2: "H", 4: "I", 8: "Q"}


@final
class IndexSet:
    """An immutable sorted set of integers from 0 to 2**64 - 1, kept as maximal runs. `IndexSet()` is empty.

    Sets compare, hash and pickle by value. `len()` is stored, not counted; above `sys.maxsize` members it raises
    OverflowError, as for a `range`, and `count` still works.

    - Making a set: `from_iterable`, `from_sorted`, `from_runs`, `range`, `from_bytes`.
    - Reading it: `in`, `holds`, `first`, `last`, `count`, `run_count`.
    - Its members: iteration, `reversed`, `members`, `runs`, `columns`.
    - A part of it: `at_least`, `at_most`, `between`.
    - With others: `|` or `union`, `&`, `-`. `a` is a subset if `not a - b`; they share no member if `not a & b`.
    """

    __slots__ = ("__weakref__", "_count", "_firsts", "_lasts")

    _firsts: _Column
    _lasts: _Column
    _count: int

    def __init__(self) -> None:
        nothing = array("Q")
        self._fill(nothing, nothing)

    def _fill(self, firsts: _Column, lasts: _Column) -> None:
        if firsts == lasts:
            lasts = firsts  # runs of one share their column: half the memory, and the sign for shortcuts
        set_field = object.__setattr__
        set_field(self, "_firsts", firsts)
        set_field(self, "_lasts", lasts)
        set_field(self, "_count", len(firsts) if lasts is firsts else sum(lasts) - sum(firsts) + len(firsts))

    @classmethod
    def _of(cls, runs: _Runs) -> IndexSet:
        made = cls.__new__(cls)
        made._fill(*runs)
        return made

    # --- making a set -------------------------------------------------------------------------------------------

    @classmethod
    def from_iterable(cls, indexes: Iterable[int]) -> IndexSet:
        """Return the set of indexes in any order, repeated or not. Cost: O(n log n); linear where they ascend.

        >>> IndexSet.from_iterable([3, 1, 2, 3])
        IndexSet(3 in 1 run, 1..3)

        Raises:
            InvalidInput: a value is not an integer, or out of range; names it.
        """
        ordered = sorted(_column(list(indexes)))
        return cls._of(_joined(ordered, ordered))

    @classmethod
    def from_sorted(cls, indexes: Iterable[int]) -> IndexSet:
        """Return the set of indexes that ascend strictly. Cost: O(n).

        Raises:
            InvalidInput: a value is not an integer, or out of range; names it.
            Unsorted: a value does not exceed the value before it; the message names both.
        """
        values = _column(list(indexes)).tolist()
        _check_ascending(values)
        return cls._of(_joined(values, values))

    @classmethod
    def from_runs(cls, runs: Iterable[tuple[int, int]]) -> IndexSet:
        """Return the set of all members of runs, pairs `(first, last)`, in any order, overlapping or not.

        >>> list(IndexSet.from_runs([(7, 9), (1, 3), (4, 5), (2, 2)]).runs())
        [(1, 5), (7, 9)]

        Raises:
            InvalidInput: a run is not a pair of indexes, or ends before it begins.

        Cost: O(runs log runs); linear where they ascend.
        """
        firsts, lasts = _split_pairs(runs)
        return cls._of(_joined(sorted(firsts), sorted(lasts)))

    @classmethod
    def range(cls, first: int, last: int) -> IndexSet:
        """Return the set of all indexes from `first` to `last`, both inclusive.

        Raises:
            InvalidInput: an end is not an index, or `first` exceeds `last`.
        """
        return cls._of(_split_pairs([(first, last)]))

    @classmethod
    def from_bytes(cls, data: bytes | bytearray | memoryview, *, path: str = "", offset: int = 0) -> IndexSet:
        """Return the set that `to_bytes` was called on. Cost: O(runs).

        Args:
            data: the bytes of `to_bytes`.
            path: the file of the bytes, for errors.
            offset: the offset of the bytes in the file, for errors.

        Raises:
            CorruptData: a byte was changed, cut off or added.
            Unsupported: another release wrote it.
        """
        return cls._of(_decoded(data, path or "<bytes>", offset))

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
        """The lowest member; raises `NotFound` if the set is empty."""
        return self._firsts[0] if self else _no_member("first")

    @property
    def last(self) -> int:
        """The highest member; raises `NotFound` if the set is empty."""
        return self._lasts[-1] if self else _no_member("last")

    def __contains__(self, value: object) -> bool:
        # Cost: O(log runs). For many values at once, intersect sets.
        if type(value) is not int:
            try:
                value = as_int(value)  # type: ignore[arg-type]
            except TypeError:
                return False
        return self.holds(value)

    def holds(self, index: int) -> bool:
        """Return `index in self` for an `int`; a fifth quicker. Cost: O(log runs)."""
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
        """Iterate over the maximal runs as `(first, last)`, both inclusive, ascending."""
        return zip(self._firsts, self._lasts, strict=True)

    @property
    def columns(self) -> tuple[memoryview, memoryview]:
        """The first and the last members of the runs, as read-only 64-bit numbers of this machine."""
        return memoryview(self._firsts).toreadonly(), memoryview(self._lasts).toreadonly()

    def members(self) -> list[int]:
        """Return all members, ascending. Cost: O(members) in C."""
        return self._firsts.tolist() if self._lasts is self._firsts else list(self)

    # --- taking a part ------------------------------------------------------------------------------------------

    def at_least(self, index: int) -> IndexSet:
        """Return the members from `index` upwards. Cost: O(log runs), and a copy of the columns kept."""
        return self.between(index, MAX_INDEX)

    def at_most(self, index: int) -> IndexSet:
        """Return the members up to and including `index`. Cost: as `at_least`."""
        return self.between(0, index)

    def between(self, first: int, last: int) -> IndexSet:
        """Return the members in `first..last`, both inclusive; none if `first` exceeds `last`. Cost: as `at_least`.

        >>> list(IndexSet.from_runs([(1, 3), (5, 9), (11, 11)]).between(3, 6).runs())
        [(3, 3), (5, 6)]
        """
        return self._taking(_between(self._runs, first, last))

    # --- combining ----------------------------------------------------------------------------------------------

    def union(self, *others: IndexSet) -> IndexSet:
        """Return the members of any of the sets. Cost: O(runs) for two, O(runs log sets) for more."""
        return self._taking(_union([self._runs, *(other._runs for other in others)]))

    def __or__(self, other: IndexSet) -> IndexSet:
        return self.union(other)

    def __and__(self, other: IndexSet) -> IndexSet:
        # Cost: O(runs where their ranges meet).
        return self._taking(_intersection(self._runs, other._runs))

    def __sub__(self, other: IndexSet) -> IndexSet:
        # Cost: O(runs where their ranges meet), and a copy.
        return self._taking(_difference(self._runs, other._runs))

    # --- as a value ---------------------------------------------------------------------------------------------

    def to_bytes(self) -> bytes:
        """Return the set as compact bytes with a checksum (`docs/formats/indexset.md`). Cost: O(runs).

        A run takes 1, 2, 4 or 8 bytes for the gap before it, as many as the largest gap needs. With runs of several
        members, each takes as many more as the longest run needs.
        """
        return _encoded(self._runs)

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
        raise AttributeError(f"an IndexSet cannot be changed; make another set (setting {name})")

    def audit(self) -> None:
        """Check that the runs ascend, do not touch, and add up to `count`.

        Raises:
            AuditFailed: they do not; says where.
        """
        before, counted = -2, 0
        if len(self._firsts) != len(self._lasts):
            raise AuditFailed(f"{len(self._firsts)} runs begin, {len(self._lasts)} end")
        for run, (first, last) in enumerate(self.runs()):
            if not before + 2 <= first <= last:
                raise AuditFailed(f"run {run} is {first}..{last} after a run that ends at {before}; it must begin at "
                                  f"{before + 2} or above and not end before it begins")
            before, counted = last, counted + last - first + 1
        if counted != self._count:
            raise AuditFailed(f"the runs hold {counted} members, the set says {self._count}")

    @property
    def _runs(self) -> _Runs:
        return self._firsts, self._lasts

    def _taking(self, runs: _Runs) -> IndexSet:
        return self if runs[0] is self._firsts and runs[1] is self._lasts else IndexSet._of(runs)


# --- checks of arguments ------------------------------------------------------------------------------------------


def _column(values: list[Any]) -> _Column:
    try:
        return array("Q", values)
    except (TypeError, OverflowError):
        position = next(place for place, value in enumerate(values) if not _is_index(value))
        raise InvalidInput(f"{values[position]!r} at position {position} is no index; indexes are integers from 0 to "
                           f"{MAX_INDEX}") from None


def _is_index(value: Any) -> bool:
    try:
        return 0 <= as_int(value) <= MAX_INDEX
    except TypeError:
        return False


def _split_pairs(pairs: Iterable[tuple[int, int]]) -> _Runs:
    """Return runs in any order as two columns, not yet canonical; `InvalidInput` names the first invalid run."""
    listed = list(pairs)
    try:
        firsts, lasts = [first for first, _ in listed], [last for _, last in listed]
    except (TypeError, ValueError) as error:
        raise InvalidInput(f"runs are pairs (first, last): {error}") from None
    runs = _column(firsts), _column(lasts)
    if not all(map(ge, lasts, firsts)):
        first, last = next((first, last) for first, last in listed if last < first)
        raise InvalidInput(f"the run ({first}, {last}) ends before it begins; pass (first, last), both inclusive")
    return runs


def _check_ascending(values: Sequence[int]) -> None:
    if not all(map(lt, values, islice(values, 1, None))):
        position = next(place for place in range(1, len(values)) if values[place] <= values[place - 1])
        raise _unsorted(values[position - 1], values[position], f" at position {position}")


def _unsorted(previous: int, found: int, place: str = "") -> Unsorted:
    return Unsorted(f"{found}{place} follows {previous}; the values must ascend strictly", previous=previous,
                    found=found)


def _no_member(which: str) -> NoReturn:
    raise NotFound(f"an empty set has no {which} member; ask `if index_set:` first")


# --- algebra: canonical runs in, canonical runs out --------------------------------------------------------------
#
# Two sets are combined by a sweep over all their starts and all their ends, each sorted and no longer paired: the
# number of runs that cover an index is the number of starts up to it less the number of ends below it. Sets are first
# cut to their common range, by bisection.


def _joined(starts: list[int], ends: list[int]) -> _Runs:
    """Return the union of runs, given their sorted starts and their sorted ends.

    A run of the union ends at the k-th end if the next start is at least two above it, since as many runs have closed
    as opened. The same list may be passed twice, for runs of one member, repeated or not.
    """
    if not starts:
        return array("Q"), array("Q")
    edges = list(map(lt, map(add, ends, repeat(1)), islice(starts, 1, None)))
    return (array("Q", [starts[0], *compress(islice(starts, 1, None), edges)]),
            array("Q", [*compress(ends, edges), ends[-1]]))


def _between(runs: _Runs, first: int, last: int) -> _Runs:
    """Return the part in `first..last`; the same columns if that is all. O(log runs) and a copy."""
    firsts, lasts = runs
    start, stop = bisect_left(lasts, first), bisect_right(firsts, last)
    if start >= stop or first > last:
        return array("Q"), array("Q")
    if not start and stop == len(firsts) and first <= firsts[0] and lasts[-1] <= last:
        return runs
    if firsts is lasts:  # runs of one: nothing to cut within a run
        firsts = lasts = firsts[start:stop]
        return firsts, lasts
    firsts, lasts = firsts[start:stop], lasts[start:stop]
    firsts[0] = max(firsts[0], first)
    lasts[-1] = min(lasts[-1], last)
    return firsts, lasts


def _union(families: Sequence[_Runs]) -> _Runs:
    held = sorted((runs for runs in families if runs[0]), key=lambda runs: runs[0][0])
    if not held:
        return array("Q"), array("Q")
    if len(held) == 1:
        return held[0]
    if len(held) == 2 and held[0][1][-1] < held[1][0][0]:
        return _followed(*held)
    return _joined(sorted(chain.from_iterable(firsts for firsts, _ in held)),
                   sorted(chain.from_iterable(lasts for _, lasts in held)))


def _intersection(left: _Runs, right: _Runs) -> _Runs:
    if left[0] and right[0]:
        left, right = _between(left, right[0][0], right[1][-1]), _between(right, left[0][0], left[1][-1])
    if len(left[0]) < 2 or len(right[0]) < 2:
        one, other = sorted((left, right), key=lambda runs: len(runs[0]))
        return _between(other, one[0][0], one[1][-1]) if one[0] else one
    starts = ends = _merged(left[0], right[0])
    if left[0] is not left[1] or right[0] is not right[1]:  # not all runs are of one member
        ends = _merged(left[1], right[1])
    # Two runs are open from the (k+1)-th start to the k-th end, if that is not before it.
    overlaps = list(map(ge, ends, islice(starts, 1, None)))
    return (array("Q", list(compress(islice(starts, 1, None), overlaps))),
            array("Q", list(compress(ends, overlaps))))


def _difference(runs: _Runs, removed: _Runs) -> _Runs:
    if not runs[0]:
        return runs
    first, last = runs[0][0], runs[1][-1]
    firsts, lasts = _between(removed, first, last)
    if not firsts:
        return runs
    gaps = (array("Q", list(map(add, islice(lasts, len(lasts) - 1), repeat(1)))),
            array("Q", list(map(sub, islice(firsts, 1, None), repeat(1)))))
    below, above = _between(runs, first, firsts[0] - 1), _between(runs, lasts[-1] + 1, last)
    return _followed(_followed(below, _intersection(runs, gaps)), above)


def _followed(low: _Runs, high: _Runs) -> _Runs:
    """Return both as one set; the second begins above the end of the first."""
    if low[0] and high[0] and low[1][-1] + 1 == high[0][0]:
        return low[0] + high[0][1:], low[1][:-1] + high[1]
    return low[0] + high[0], low[1] + high[1]


def _merged(left: Sequence[int], right: Sequence[int]) -> list[int]:
    values = list(left)
    values += right
    values.sort()
    return values


# --- the stored form ----------------------------------------------------------------------------------------------


def _encoded(runs: _Runs) -> bytes:
    firsts, lasts = runs
    gaps = [0, *map(sub, islice(firsts, 1, None), map(add, lasts, repeat(2)))][:len(firsts)]
    spans = [] if firsts is lasts else list(map(sub, lasts, firsts))
    widths = _width_of(gaps), _width_of(spans) if spans else 0
    return _FRAME.encode(len(firsts), firsts[0] if firsts else 0, *widths, body=b"".join(
        _little_endian(array(_CODES[width], numbers)).tobytes()
        for width, numbers in zip(widths, (gaps, spans), strict=True) if width))


def _decoded(data: bytes | bytearray | memoryview, path: str, offset: int) -> _Runs:
    run_count, first, gap_width, span_width, body = _FRAME.decode(bytes(data), path, offset=offset)

    def require(holds: bool, expected: str, found: object) -> None:
        if not holds:
            raise CorruptData(path=path, offset=offset + _FRAME.header_bytes, expected=expected, found=str(found))

    require(gap_width in _CODES and span_width in (0, *_CODES), "numbers of 1, 2, 4 or 8 bytes",
            (gap_width, span_width))
    require(len(body) == run_count * (gap_width + span_width), f"{run_count} runs", f"{len(body)} bytes")
    gaps = array(_CODES[gap_width], body[:run_count * gap_width])
    spans: _Column | list[int] = [0] * run_count
    if span_width:
        spans = _little_endian(array(_CODES[span_width], body[run_count * gap_width:]))
    lasts = list(accumulate(map(add, map(add, _little_endian(gaps), spans), repeat(2)), initial=first - 2))[1:]
    require(not lasts or lasts[-1] <= MAX_INDEX, f"indexes up to {MAX_INDEX}", lasts[-1:])
    return array("Q", list(map(sub, lasts, spans))), array("Q", lasts)


def _width_of(numbers: list[int]) -> int:
    """Return the width of the largest number in bytes."""
    most = max(numbers, default=0)
    return next(width for width in _CODES if most < 1 << 8 * width)


def _little_endian(column: _Column) -> _Column:
    """Convert a column to or from little-endian."""
    if sys.byteorder == "big":
        column.byteswap()
    return column
