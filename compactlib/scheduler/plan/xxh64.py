# SPDX-License-Identifier: Apache-2.0
"""XXH64 with seed 0, in plain Python: what jobs are named by. Not for secrets."""

from __future__ import annotations

import struct

_P1 = 0x9E3779B185EBCA87
_P2 = 0xC2B2AE3D27D4EB4F
_P3 = 0x165667B19E3779F9
_P4 = 0x85EBCA77C2B2AE63
_P5 = 0x27D4EB2F165667C5
_MASK = (1 << 64) - 1
_STRIPE = 32


def xxh64(data: bytes) -> int:
    """The hash of `data`, 0 .. 2**64 - 1. About 2 microseconds, and 2 more for each 32 bytes."""
    size = len(data)
    stripes = size // _STRIPE
    value = _stripes(data, stripes) if stripes else _P5
    value = (value + size) & _MASK
    place = stripes * _STRIPE
    while place + 8 <= size:
        lane = int.from_bytes(data[place:place + 8], "little") * _P2 & _MASK
        lane = (lane << 31 | lane >> 33) * _P1 & _MASK
        value ^= lane
        value = ((value << 27 | value >> 37) * _P1 + _P4) & _MASK
        place += 8
    if place + 4 <= size:
        value ^= int.from_bytes(data[place:place + 4], "little") * _P1 & _MASK
        value = ((value << 23 & _MASK | value >> 41) * _P2 + _P3) & _MASK
        place += 4
    for byte in data[place:]:
        value ^= byte * _P5 & _MASK
        value = (value << 11 & _MASK | value >> 53) * _P1 & _MASK
    value ^= value >> 33
    value = value * _P2 & _MASK
    value ^= value >> 29
    value = value * _P3 & _MASK
    return value ^ value >> 32


def _stripes(data: bytes, stripes: int) -> int:
    """All whole stripes of 32 bytes, in four lanes that are mixed at the end."""
    a, b, c, d = (_P1 + _P2) & _MASK, _P2, 0, -_P1 & _MASK
    # A rotation by shifts leaves bits above 64; multiplying and masking takes them off, since they are whole
    # multiples of 2**64.
    for one, two, three, four in struct.iter_unpack("<4Q", data[:stripes * _STRIPE]):
        a = (a + one * _P2) & _MASK
        a = (a << 31 | a >> 33) * _P1 & _MASK
        b = (b + two * _P2) & _MASK
        b = (b << 31 | b >> 33) * _P1 & _MASK
        c = (c + three * _P2) & _MASK
        c = (c << 31 | c >> 33) * _P1 & _MASK
        d = (d + four * _P2) & _MASK
        d = (d << 31 | d >> 33) * _P1 & _MASK
    value = (a << 1 | a >> 63) + (b << 7 | b >> 57) + (c << 12 | c >> 52) + (d << 18 | d >> 46) & _MASK
    for lane in (a, b, c, d):
        mixed = lane * _P2 & _MASK
        mixed = (mixed << 31 | mixed >> 33) * _P1 & _MASK
        value = ((value ^ mixed) * _P1 + _P4) & _MASK
    return value
