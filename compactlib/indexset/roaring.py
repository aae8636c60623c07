# SPDX-License-Identifier: Apache-2.0
"""The extra `compactlib[fast]`: roaring bitmaps, to sort scattered indexes faster and to exchange sets with others."""

from __future__ import annotations

from array import array
from itertools import chain, compress, islice, repeat
from operator import add, ge, le, lt, sub
from typing import TYPE_CHECKING

from compactlib.errors import InvalidInput, MissingDependency
from compactlib.indexset.runs import Column, Runs

if TYPE_CHECKING:
    from pyroaring import AbstractBitMap64, BitMap64

# Measured with pyroaring 1.2.0 on 1,000,000 unsorted indexes: 6 to 17 times faster than sorting while they lie within
# 100 places of each other on average, 1.5 times at 8,600 places, 5 times slower at a million (a container for each).
_MIN_INDEXES = 4096
_MAX_SPREAD = 4096

_MAX_MEMBERS = 1 << 40  # 2**24 containers: about a second, and a gigabyte
_LONG_RUN = 64


def bitmap_class(purpose: str) -> type[BitMap64]:
    """The class `pyroaring.BitMap64`, with all that is used here.

    Raises:
        MissingDependency: it is not installed, or older than 1.1; `purpose` says what needs it.
    """
    try:
        from pyroaring import BitMap64

        BitMap64.shift  # noqa: B018 - 1.1 brought it
    except (ImportError, AttributeError):
        raise MissingDependency(package="pyroaring>=1.1", extra="fast", purpose=purpose) from None
    return BitMap64


def pays(indexes: Column) -> bool:
    """Whether a bitmap sorts these indexes faster than `list.sort`, and is installed."""
    if len(indexes) < _MIN_INDEXES or all(map(le, indexes, islice(indexes, 1, None))):
        return False
    if max(indexes) - min(indexes) >= _MAX_SPREAD * len(indexes):
        return False
    try:
        bitmap_class("sorting")
    except MissingDependency:
        return False
    return True


def runs_of(indexes: Column) -> Runs:
    """The runs of indexes in any order."""
    return from_bitmap(bitmap_class("IndexSet.from_iterable(engine='roaring')")(indexes))


def to_bitmap(runs: Runs, count: int) -> BitMap64:
    """The same members as a bitmap.

    Raises:
        InvalidInput: more members than a bitmap in memory can hold.
        MissingDependency: pyroaring is not installed.
    """
    if count > _MAX_MEMBERS:
        raise InvalidInput(f"a bitmap of {count} members would not fit into memory; the limit is {_MAX_MEMBERS}")
    made = bitmap_class("IndexSet.to_roaring")
    firsts, lasts = runs
    if firsts is lasts:
        return made(firsts)
    is_long = list(map(ge, map(sub, lasts, firsts), repeat(_LONG_RUN)))
    is_short = list(map(lt, map(sub, lasts, firsts), repeat(_LONG_RUN)))
    stops = map(add, compress(lasts, is_short), repeat(1))
    bitmap = made(list(chain.from_iterable(map(range, compress(firsts, is_short), stops))))
    for first, last in compress(zip(firsts, lasts, strict=True), is_long):
        bitmap.add_range(first, last)  # without `last`: the end is exclusive, and 2**64 does not fit
        bitmap.add(last)
    return bitmap


def from_bitmap(bitmap: AbstractBitMap64) -> Runs:
    """The runs of a bitmap: a member begins (ends) a run if the index below (above) is no member."""
    begins = bitmap - bitmap.shift(1)
    ends = bitmap - bitmap.shift(-1)
    return array("Q", begins.to_array()), array("Q", ends.to_array())
