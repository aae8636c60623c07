# SPDX-License-Identifier: Apache-2.0
"""Families of runs: the two columns an `IndexSet` is kept in, and how they are made from what a caller passes.

A family is two columns, the first and the last member (inclusive) of every run. It is canonical when its runs ascend
and at least one non-member lies between two neighbours; then equal sets have equal columns.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from itertools import compress, islice, repeat
from operator import add, ge, lt
from typing import Any, TypeAlias

from compactlib.errors import AuditFailed, InvalidInput, Unsorted

MAX_INDEX = (1 << 64) - 1
"""The highest index there can be."""

Column: TypeAlias = "array[int]"
Runs: TypeAlias = "tuple[Column, Column]"


def column(values: list[Any]) -> Column:
    """The values as unsigned 64-bit integers.

    Raises:
        InvalidInput: one is no integer, or outside 0 .. 2**64 - 1; names it.
    """
    try:
        return array("Q", values)
    except (TypeError, OverflowError):
        raise _first_invalid(values) from None


def _first_invalid(values: list[Any]) -> InvalidInput:
    position = 0
    try:
        while True:
            array("Q", [values[position]])
            position += 1
    except (TypeError, OverflowError):
        return InvalidInput(f"{values[position]!r} at position {position} is no index; indexes are integers from 0 to "
                            f"{MAX_INDEX}")


def joined(starts: list[int], ends: list[int]) -> Runs:
    """The canonical family of what any number of runs cover, given all their starts and all their ends, each in order.

    Counting pairs them again: a run ends at the k-th end when the next start lies at least two above, for then as
    many runs were closed as opened. The same list may be passed twice: runs of one, repeated or not.
    """
    if not starts:
        return array("Q"), array("Q")
    edges = list(map(lt, map(add, ends, repeat(1)), islice(starts, 1, None)))
    return (array("Q", [starts[0], *compress(islice(starts, 1, None), edges)]),
            array("Q", [*compress(ends, edges), ends[-1]]))


def split_pairs(pairs: Iterable[tuple[int, int]]) -> Runs:
    """Runs in any order as two columns, not yet canonical.

    Raises:
        InvalidInput: something is no pair of indexes, or a run ends before it begins; names it.
    """
    listed = list(pairs)
    try:
        firsts, lasts = [first for first, _ in listed], [last for _, last in listed]
    except (TypeError, ValueError) as error:
        raise InvalidInput(f"runs are pairs (first, last): {error}") from None
    runs = column(firsts), column(lasts)
    if not all(map(ge, lasts, firsts)):
        first, last = next((first, last) for first, last in listed if last < first)
        raise InvalidInput(f"the run ({first}, {last}) ends before it begins; pass (first, last), both inclusive")
    return runs


def check_ascending(values: Sequence[int]) -> None:
    """Pass values that ascend strictly.

    Raises:
        Unsorted: one does not exceed the one before it; names the first such pair.
    """
    if not all(map(lt, values, islice(values, 1, None))):
        position = next(place for place in range(1, len(values)) if values[place] <= values[place - 1])
        raise unsorted(values[position - 1], values[position], f" at position {position}")


def unsorted(previous: int, found: int, place: str = "") -> Unsorted:
    """The error for `found` where something above `previous` was due."""
    return Unsorted(f"{found}{place} follows {previous}; the values must ascend strictly", previous=previous,
                    found=found)


def audit(runs: Runs) -> None:
    """Check that a family is canonical.

    Raises:
        AuditFailed: it is not; says where.
    """
    firsts, lasts = runs
    if len(firsts) != len(lasts):
        raise AuditFailed(f"{len(firsts)} runs begin, {len(lasts)} end")
    before = -2
    for run, (first, last) in enumerate(zip(firsts, lasts, strict=True)):
        if not before + 2 <= first <= last:
            raise AuditFailed(f"run {run} is {first}..{last} after a run that ends at {before}; it must begin at "
                              f"{before + 2} or above and not end before it begins")
        before = last
