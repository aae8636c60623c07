# SPDX-License-Identifier: Apache-2.0
"""Where the members of one sorted sequence stand in another: one linear merge, never a probe per member."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import compress, count, islice, repeat
from operator import eq, sub

from compactlib.errors import InvalidInput, Unsorted
from compactlib.indexset.runs import check_ascending


def merge_positions(column: Sequence[int], members: Sequence[int]) -> list[int]:
    """The positions in `column` of all of `members`.

    The answer is checked against the column before it is given, so input out of order never yields a wrong one: it
    is refused, unless the answer is right all the same.

    >>> merge_positions([5, 6, 9, 12, 40], [6, 12])
    [1, 3]

    Args:
        column: integers, strictly ascending.
        members: integers, strictly ascending, each of them in `column`.

    Returns:
        As many positions (from 0, ascending) as there are members.

    Raises:
        InvalidInput: a member is not in the column; names the first.
        Unsorted: one of the two does not ascend strictly, and the positions cannot be found.

    Cost: O(column + members) in C; O(members) where the column is dense (its members consecutive).
    """
    if not members:
        return []
    if not column:
        raise _complaint(column, members)
    if _dense(column):
        positions = list(map(sub, members, repeat(column[0])))
    else:
        positions = _positions_of_pairs(_pairs(column, members)[1])
    if not _right(column, members, positions):
        raise _complaint(column, members)
    return positions


def common_positions(column: Sequence[int], members: Sequence[int]) -> list[int]:
    """The positions in `column` of those `members` that it holds; the others are passed over.

    >>> common_positions([5, 6, 9, 12, 40], [1, 6, 7, 12, 99])
    [1, 3]

    Args:
        column: integers, strictly ascending.
        members: integers, strictly ascending.

    Returns:
        Positions (from 0, ascending).

    Raises:
        Unsorted: one of the two does not ascend strictly.

    Cost: as `merge_positions` where all members are in the column, else about twice that.
    """
    for values in (column, members):
        check_ascending(values)
    if not column or not members:
        return []
    values, pairs = _pairs(column, members)
    shared = list(compress(values, pairs))
    if len(shared) == len(members):
        return _positions_of_pairs(pairs)
    return merge_positions(column, shared)


def _dense(column: Sequence[int]) -> bool:
    return column[-1] - column[0] + 1 == len(column)


def _pairs(column: Sequence[int], members: Sequence[int]) -> tuple[list[int], list[bool]]:
    """Both in one ascending list, and for each place whether the next one holds the same value."""
    values = list(column)
    values += members
    values.sort()
    return values, list(map(eq, values, islice(values, 1, None)))


def _positions_of_pairs(pairs: list[bool]) -> list[int]:
    # Before the k-th pair stand k members too many.
    return list(map(sub, compress(count(), pairs), count()))


def _right(column: Sequence[int], members: Sequence[int], positions: list[int]) -> bool:
    if len(positions) != len(members) or min(positions) < 0 or max(positions) >= len(column):
        return False
    return list(map(column.__getitem__, positions)) == list(members)


def _complaint(column: Sequence[int], members: Sequence[int]) -> InvalidInput:
    try:
        check_ascending(column)
        check_ascending(members)
    except Unsorted as error:
        return error
    held = set(column)
    absent = [member for member in members if member not in held]
    return InvalidInput(f"{len(absent)} of {len(members)} members are not in the column, the first is {absent[0]}; "
                        "use common_positions to pass over them")
