# SPDX-License-Identifier: Apache-2.0
"""The stored form of an `IndexSet`: `docs/formats/indexset.md` describes it to the byte.

    0        magic CLINDSET, version u16, number of runs u64, width of heads u8, width of tails u8     (20 bytes)
    20       heads, gaps too large for one; tails, tails too large for one
    end - 4  CRC-32 of everything before it

All numbers of a column have one width, the one that makes it smallest; those that do not fit follow it as 64 bits. So
both ways are loops in C, the bytes are at most nine times the runs, and equal sets have equal bytes on all machines.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Callable, Iterable
from itertools import accumulate, compress, count, islice, repeat
from operator import add, and_, eq, ge, lt, rshift, sub

from compactlib.errors import CorruptData
from compactlib.files.record_frame import RecordFrame
from compactlib.indexset.runs import MAX_INDEX, Column, Runs

_FRAME = RecordFrame("index set format", b"CLINDSET", 2, "<HQBB")
_CODES = {1: "B", 2: "H", 4: "I", 8: "Q"}


def _most_tail(width: int) -> int:
    """What stands in a column of tails for one that does not fit, and the first that does not."""
    return int((1 << 8 * width) - 1)


def _most_gap(width: int) -> int:
    """The same for a gap, beside which a head has one bit."""
    return _most_tail(width) >> 1


def encode(runs: Runs) -> bytes:
    """The bytes of a canonical family; equal families give equal bytes."""
    firsts, lasts = runs
    is_long = [] if firsts is lasts else list(map(lt, firsts, lasts))
    gaps = [*firsts[:1], *map(sub, islice(firsts, 1, None), map(add, lasts, repeat(2)))]
    tails = list(map(sub, compress(map(sub, lasts, firsts), is_long), repeat(1)))
    head_width, tail_width = _width_of(gaps, _most_gap), _width_of(tails, _most_tail)
    large_gaps = _taken_out(gaps, _most_gap(head_width))
    large_tails = _taken_out(tails, _most_tail(tail_width))
    heads = map(add, gaps, gaps) if firsts is lasts else map(add, map(add, gaps, gaps), is_long)
    body = b"".join((_column_bytes(head_width, heads), _column_bytes(8, large_gaps),
                     _column_bytes(tail_width, tails), _column_bytes(8, large_tails)))
    return _FRAME.encode(len(firsts), head_width, tail_width, body=body)


def decode(data: bytes | bytearray | memoryview, path: str, offset: int) -> Runs:
    """The canonical family that `encode` was given.

    Raises:
        CorruptData: not what `encode` wrote.
        Unsupported: written by another release.
    """
    run_count, head_width, tail_width, body = _FRAME.decode(bytes(data), path, offset=offset)

    def require(holds: bool, expected: str, found: object) -> None:
        if not holds:
            raise CorruptData(path=path, offset=offset + _FRAME.header_bytes, expected=expected, found=str(found))

    place = 0

    def column(width: int, size: int) -> Column:
        nonlocal place
        numbers = array(_CODES[width])
        part = body[place:place + width * size]
        require(len(part) == width * size, f"{size} numbers of {width} bytes", f"{len(part)} bytes")
        numbers.frombytes(part)
        if sys.byteorder == "big":
            numbers.byteswap()
        place += len(part)
        return numbers

    def put_back(numbers: list[int], most: int, width: int, most_of: Callable[[int], int]) -> None:
        large = column(8, numbers.count(most))
        if not large and width == 1:
            return
        require(not large or min(large) >= most, f"numbers from {most} on", "a smaller one")
        for at, number in zip(list(compress(count(), map(eq, numbers, repeat(most)))), large, strict=True):
            numbers[at] = number
        require(width == _width_of(numbers, most_of), "the width that takes the fewest bytes", width)

    for width in (head_width, tail_width):
        require(width in _CODES, "numbers of 1, 2, 4 or 8 bytes", width)
    heads = column(head_width, run_count)
    is_long = list(map(and_, heads, repeat(1)))
    gaps = list(map(rshift, heads, repeat(1)))
    put_back(gaps, _most_gap(head_width), head_width, _most_gap)
    tails = column(tail_width, sum(is_long)).tolist()
    put_back(tails, _most_tail(tail_width), tail_width, _most_tail)
    require(place == len(body), f"{place} bytes", len(body))
    if not gaps:
        return array("Q"), array("Q")
    if not tails:
        firsts = list(accumulate(map(add, gaps, repeat(2)), initial=-2))[1:]
        require(firsts[-1] <= MAX_INDEX, f"indexes up to {MAX_INDEX}", firsts[-1])
        return array("Q", firsts), array("Q", firsts)
    following = iter(tails)
    spans = [next(following) + 1 if long else 0 for long in is_long]
    lasts = list(accumulate(map(add, map(add, gaps, spans), repeat(2)), initial=-2))[1:]
    require(lasts[-1] <= MAX_INDEX, f"indexes up to {MAX_INDEX}", lasts[-1])
    return array("Q", list(map(sub, lasts, spans))), array("Q", lasts)


def _width_of(numbers: list[int], most_of: Callable[[int], int]) -> int:
    """The width with which a column and its large numbers take the fewest bytes; of two, the smaller."""
    if max(numbers, default=0) < most_of(1):
        return 1
    best, fewest = 1, len(numbers) * 9 + 1
    for width in _CODES:
        large = sum(map(ge, numbers, repeat(most_of(width))))
        size = width * len(numbers) + 8 * large
        if size < fewest:
            best, fewest = width, size
        if not large:
            break
    return best


def _taken_out(numbers: list[int], most: int) -> list[int]:
    """The numbers from `most` on, in whose places `most` stands afterwards."""
    if max(numbers, default=0) < most:
        return []
    places = list(compress(count(), map(ge, numbers, repeat(most))))
    large = [numbers[at] for at in places]
    for at in places:
        numbers[at] = most
    return large


def _column_bytes(width: int, numbers: Iterable[int]) -> bytes:
    stored = array(_CODES[width], list(numbers))
    if sys.byteorder == "big":
        stored.byteswap()
    return stored.tobytes()
