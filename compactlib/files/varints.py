# SPDX-License-Identifier: Apache-2.0
"""Many varints at once: 7 bits a byte, least significant first, the top bit set on every byte but the last.

A loop over bytes costs about a microsecond a number. Here a block of numbers is laid out in lanes of 64 bits and
read as one large integer, whose shifts and masks then work on every lane in a few C loops.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from itertools import compress, repeat
from typing import TypeVar

_BLOCK = 4096
_LANE_BYTES = 8
_LANE_BITS = 7 * _LANE_BYTES  # what a varint of one lane can hold; longer ones are rare and coded one by one
_MAX_BYTES = 10
_CODE = re.compile(rb"[\x80-\xff]*[\x00-\x7f]")
_FAULT = re.compile(rb"[\x80-\xff](?:\x00|\Z)")

# From 56 bits in a row to 8 groups of 7: the upper half of each group moves up, in three steps (low, high, shift).
_SPREAD = (
    (0x0000_0000_0FFF_FFFF, 0x00FF_FFFF_F000_0000, 4),
    (0x0000_3FFF_0000_3FFF, 0x0FFF_C000_0FFF_C000, 2),
    (0x007F_007F_007F_007F, 0x3F80_3F80_3F80_3F80, 1),
)
_SEVEN_BITS = 0x7F7F_7F7F_7F7F_7F7F
_TOP_BITS = 0x8080_8080_8080_8080

_T = TypeVar("_T")


def encode_varints(numbers: list[int]) -> bytes:
    """The numbers (0 .. 2**70 - 1), each in the fewest bytes, one after the other."""
    if not numbers or max(numbers) < 0x80:
        return bytes(numbers)
    return b"".join(b"".join(map(_encode_one, block)) if max(block) >> _LANE_BITS else _encode_lanes(block)
                    for block in _blocks(numbers))


def decode_varints(data: bytes) -> list[int]:
    """The numbers that `encode_varints` was given.

    Raises:
        ValueError: not what `encode_varints` wrote; its second argument is the place in `data`.
    """
    if data.isascii():  # every number in one byte
        return list(data)
    fault = _FAULT.search(data)
    if fault:
        raise ValueError("a number that does not end, or could be shorter", fault.start())
    numbers: list[int] = []
    for codes in _blocks(_CODE.findall(data)):
        longest = max(codes, key=len)
        if len(longest) > _MAX_BYTES:
            raise ValueError(f"a number of {len(longest)} bytes", data.index(longest))
        numbers += map(_decode_one, codes) if len(longest) > _LANE_BYTES else _decode_lanes(codes)
    return numbers


def _blocks(values: list[_T]) -> Iterator[list[_T]]:
    for start in range(0, len(values), _BLOCK):
        yield values[start:start + _BLOCK]


def _ones(count: int) -> int:
    """1 in each of `count` lanes: times a mask of one lane, it is that mask in every lane."""
    return int.from_bytes(b"\1".ljust(_LANE_BYTES, b"\0") * count, "little")


def _encode_lanes(numbers: list[int]) -> bytes:
    count = len(numbers)
    ones = _ones(count)
    lanes = int.from_bytes(struct.pack(f"<{count}Q", *numbers), "little")
    for low, high, shift in _SPREAD:
        lanes = lanes & low * ones | (lanes & high * ones) << shift
    # The top bit of every byte that has a byte with content above it in its lane: here its code goes on.
    filled = (lanes + _SEVEN_BITS * ones) & _TOP_BITS * ones
    goes_on = filled >> 8 & (_TOP_BITS >> 8) * ones
    for shift in (8, 16, 32):
        goes_on |= goes_on >> shift & (_TOP_BITS >> 8 + shift) * ones
    size = count * _LANE_BYTES
    kept = filled | goes_on | ones
    return bytes(compress((lanes | goes_on).to_bytes(size, "little"), kept.to_bytes(size, "little")))


def _decode_lanes(codes: list[bytes]) -> tuple[int, ...]:
    count = len(codes)
    ones = _ones(count)
    padded = b"".join(map(bytes.ljust, codes, repeat(_LANE_BYTES), repeat(b"\0")))
    lanes = int.from_bytes(padded, "little") & _SEVEN_BITS * ones
    for low, high, shift in reversed(_SPREAD):
        lanes = lanes & low * ones | lanes >> shift & high * ones
    return struct.unpack(f"<{count}Q", lanes.to_bytes(count * _LANE_BYTES, "little"))


def _encode_one(number: int) -> bytes:
    code = bytearray()
    while number > 0x7F:
        code.append(number & 0x7F | 0x80)
        number >>= 7
    code.append(number)
    return bytes(code)


def _decode_one(code: bytes) -> int:
    number = 0
    for byte in reversed(code):
        number = number << 7 | byte & 0x7F
    return number
