# SPDX-License-Identifier: Apache-2.0
"""Which partitions of which tables a node hosts, as bitmaps: small in memory, smaller on the wire.

>>> hosted = HostedPartitions.of({7: range(25), 8: range(25), 9: [0, 3]})
>>> hosted.has(9, 3), hosted.has(9, 1), bin(hosted.mask(9))
(True, False, '0b1001')
>>> len(hosted.to_bytes())
19
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise, repeat
from operator import itemgetter
from typing import Any, final

from attrs.exceptions import FrozenInstanceError

from compactlib.errors import CorruptData, InvalidInput
from compactlib.files.varints import decode_varints, encode_varints

MAX_PARTITIONS = 65_000
"""Partitions that a zone may have."""
MAX_TABLES = 1_000_000
"""Tables that one node may report."""


def mask_of(partitions: Iterable[int]) -> int:
    """A bitmap with bit p set for each partition p.

    Raises:
        InvalidInput: a partition is negative or at `MAX_PARTITIONS` or above.
    """
    mask = 0
    for partition in partitions:
        if not 0 <= partition < MAX_PARTITIONS:
            raise InvalidInput(f"partition {partition} is out of range; a zone has 1 to {MAX_PARTITIONS} partitions")
        mask |= 1 << partition
    return mask


def partitions_of(mask: int) -> Iterator[int]:
    """The partitions whose bits are set, ascending. O(set bits)."""
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low


@final
class HostedPartitions:
    """An immutable map from table id to the bitmap of its partitions on one node. `HostedPartitions()` is empty.

    Equal bitmaps are kept once: a thousand tables of one zone take 16 bytes each.
    """

    __slots__ = ("_masks", "_tables")

    _tables: array[int]
    _masks: tuple[int, ...]

    def __init__(self) -> None:
        self._fill([], [])

    def _fill(self, tables: list[int], masks: list[int]) -> None:
        shared: dict[int, int] = {}
        object.__setattr__(self, "_tables", array("q", tables))
        object.__setattr__(self, "_masks", tuple(shared.setdefault(mask, mask) for mask in masks))

    @classmethod
    def of(cls, partitions: Mapping[int, Iterable[int]]) -> HostedPartitions:
        """From lists of partitions; a table without partitions is left out.

        Raises:
            InvalidInput: a table id or a partition is out of range, or there are too many tables.
        """
        return cls.from_masks({table: mask_of(hosted) for table, hosted in partitions.items()})

    @classmethod
    def from_masks(cls, masks: Mapping[int, int]) -> HostedPartitions:
        """From bitmaps; an empty one is left out.

        Raises:
            InvalidInput: a table id or a bitmap is out of range, or there are too many tables.
        """
        if len(masks) > MAX_TABLES:
            raise InvalidInput(f"{len(masks)} tables in one report; the limit is {MAX_TABLES}")
        tables = sorted(table for table, mask in masks.items() if mask)
        if tables and not 0 <= tables[0] <= tables[-1] < 1 << 63:
            raise InvalidInput(f"table ids from {tables[0]} to {tables[-1]}; an id is an integer from 0 to 2**63 - 1")
        columns = [masks[table] for table in tables]
        if columns and (min(columns) < 0 or max(columns).bit_length() > MAX_PARTITIONS):
            raise InvalidInput(f"a bitmap is negative or wider than {MAX_PARTITIONS} partitions")
        made = cls.__new__(cls)
        made._fill(tables, columns)
        return made

    @classmethod
    def _of(cls, tables: array[int], masks: tuple[int, ...]) -> HostedPartitions:
        made = cls.__new__(cls)
        object.__setattr__(made, "_tables", tables)
        object.__setattr__(made, "_masks", masks)
        return made

    def mask(self, table: int) -> int:
        """The table's bitmap; 0 if nothing of it is hosted. O(log tables)."""
        at = bisect_left(self._tables, table)
        return self._masks[at] if at < len(self._tables) and self._tables[at] == table else 0

    def has(self, table: int, partition: int) -> bool:
        """Whether this partition is hosted."""
        return partition >= 0 and bool(self.mask(table) >> partition & 1)

    def masks(self) -> dict[int, int]:
        """All bitmaps by table, ascending. O(tables)."""
        return dict(zip(self._tables, self._masks, strict=True))

    def __len__(self) -> int:
        return len(self._tables)

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return zip(self._tables, self._masks, strict=True)

    def to_bytes(self) -> bytes:
        """The wire form: distinct bitmaps once, then tables as runs of neighbours with one bitmap. O(tables).

        All numbers are varints (7 bits a byte, least significant first): how many bitmaps; each one's length in
        bytes; how many runs; for each run the gap to the one before, its length, and its bitmap's place; after
        them the bitmaps, least significant byte first. Equal maps give equal bytes.
        """
        places: dict[int, int] = {}
        numbers: list[int] = []
        runs = 0
        end = 0  # the first id above the last run
        table = mask = -1
        for table, mask in self:
            place = places.setdefault(mask, len(places))
            if runs and table == end and numbers[-1] == place:
                numbers[-2] += 1
            else:
                numbers += (table - end, 1, place)
                runs += 1
            end = table + 1
        bitmaps = [bitmap.to_bytes((bitmap.bit_length() + 7) // 8, "little") for bitmap in places]
        head = encode_varints([len(bitmaps), *map(len, bitmaps), runs, *numbers])
        return len(head).to_bytes(4, "little") + head + b"".join(bitmaps)

    @classmethod
    def from_bytes(cls, data: bytes | bytearray | memoryview, *, path: str = "hosted partitions") -> HostedPartitions:
        """The map that `to_bytes` was given.

        Raises:
            CorruptData: not what `to_bytes` writes; `path` names the place in the message.
        """
        raw = bytes(data)
        try:
            return _decoded(raw)
        except (ValueError, IndexError, StopIteration, OverflowError) as error:
            raise CorruptData(path=path, offset=0, expected="the bitmaps of a node's partitions",
                              found=f"{len(raw)} bytes that are none ({error})") from None

    def __setattr__(self, name: str, value: object) -> None:
        raise FrozenInstanceError

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, HostedPartitions):
            return NotImplemented
        return self._tables == other._tables and self._masks == other._masks

    def __hash__(self) -> int:
        return hash((self._tables.tobytes(), self._masks))

    def __reduce__(self) -> tuple[Any, ...]:
        return HostedPartitions.from_masks, (self.masks(),)

    def __repr__(self) -> str:
        held = sum(mask.bit_count() for mask in self._masks)
        return f"HostedPartitions({held} partitions of {len(self._tables)} tables)"


def picker(places: Sequence[int]) -> Callable[[Sequence[int]], tuple[int, ...]]:
    """A function that takes these places of a sequence, in order, in one C call."""
    if len(places) == 1:
        (only,) = places
        return lambda row: (row[only],)
    return itemgetter(*places)


class ReportedColumns:
    """Takes the bitmaps of the same tables out of one node's report after the other.

    Nodes of one zone host the same tables, so where a table stands is looked up once for all of them.

    Args:
        tables: table ids, at least one.
    """

    def __init__(self, tables: Sequence[int]) -> None:
        self._tables = tables
        self._pickers: dict[bytes, Callable[[Sequence[int]], tuple[int, ...]]] = {}

    def masks_of(self, hosted: HostedPartitions) -> tuple[int, ...]:
        """The node's bitmap of each table, 0 for one that it does not host."""
        column = hosted._tables.tobytes()
        pick = self._pickers.get(column)
        if pick is None:
            places = {table: place for place, table in enumerate(hosted._tables)}
            absent = len(places)
            pick = self._pickers[column] = picker([places.get(table, absent) for table in self._tables])
        return pick((*hosted._masks, 0))


def _decoded(raw: bytes) -> HostedPartitions:
    head_end = 4 + int.from_bytes(raw[:4], "little")
    if len(raw) < 4 or head_end > len(raw):
        raise ValueError("the head is cut short")
    numbers = iter(decode_varints(raw[4:head_end]))
    lengths = [next(numbers) for _ in range(_limited(next(numbers), MAX_TABLES))]
    runs = _limited(next(numbers), MAX_TABLES)
    body = list(numbers)
    if len(body) != 3 * runs or head_end + sum(lengths) != len(raw):
        raise ValueError("a length does not fit")
    ends = [head_end]
    for length in lengths:
        ends.append(ends[-1] + length)
    bitmaps = [int.from_bytes(raw[start:end], "little") for start, end in pairwise(ends)]
    is_shortest = len(set(bitmaps)) == len(bitmaps) and all(
        bitmap and (bitmap.bit_length() + 7) // 8 == length for bitmap, length in zip(bitmaps, lengths, strict=True))
    _limited(max(map(int.bit_length, bitmaps), default=0), MAX_PARTITIONS)
    # A few bytes may stand for a million tables: everything is checked before they are made of it.
    _limited(sum(body[1::3]), MAX_TABLES)
    end, last, used = 0, -1, 0
    for gap, length, place in zip(body[::3], body[1::3], body[2::3], strict=True):
        is_shortest = is_shortest and length > 0 and place <= used and (gap > 0 or place != last)
        used = max(used, place + 1)
        end, last = end + gap + length, place
    _limited(end, 1 << 63)
    if not is_shortest or used != len(bitmaps):
        raise ValueError("not in the shortest form")
    tables: array[int] = array("q")
    masks: list[int] = []
    end = 0
    for gap, length, place in zip(body[::3], body[1::3], body[2::3], strict=True):
        tables.extend(range(end + gap, end + gap + length))
        masks += repeat(bitmaps[place], length)
        end += gap + length
    return HostedPartitions._of(tables, tuple(masks))


def _limited(number: int, limit: int) -> int:
    if number > limit:
        raise ValueError(f"{number} exceeds the limit of {limit}")
    return number
