# SPDX-License-Identifier: Apache-2.0
"""The stored form of an IndexSet: as its page says, readable for ever, and never misread."""

from __future__ import annotations

import random
import re
import struct
import sys
import zlib
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from compactlib.errors import CorruptData, Unsupported
from compactlib.indexset import IndexSet

PAGE = Path(__file__).parents[3] / "docs" / "formats" / "indexset.md"
GOLDEN = Path(__file__).parents[1] / "golden" / "indexset" / "indexset-v1.bin"
MAX_INDEX = (1 << 64) - 1

EXAMPLE = IndexSet.from_iterable([1, 2, 3, 4, 9, 300, 301])
HEADER_BYTES = 18


def golden_set() -> IndexSet:
    """Runs and gaps of every size a varint can have, then a stretch like a log's live indexes."""
    powers = [(1 << bits, (1 << bits) + (1 << bits // 2) - 1) for bits in range(4, 64)]
    rng = random.Random(20)
    scattered = [(at, at + rng.choice([0, 0, 0, 1, 5])) for at in rng.sample(range(3 << 40, (3 << 40) + 50_000), 5_000)]
    return IndexSet.from_runs([(0, 2), *powers, *scattered, (MAX_INDEX, MAX_INDEX)])


def varint(number: int) -> bytes:
    groups = [number & 0x7F]
    while number := number >> 7:
        groups.append(number & 0x7F)
    return bytes([*(group | 0x80 for group in groups[:-1]), groups[-1]])


def by_the_page(index_set: IndexSet) -> bytes:
    """The bytes as the format's page describes them, written down once more."""
    heads, tails = b"", b""
    previous_last = -2
    for first, last in index_set.runs():
        gap = first - previous_last - 2
        heads += varint(2 * gap + (last > first))
        tails += varint(last - first - 1) if last > first else b""
        previous_last = last
    return sealed(1, index_set.run_count, heads + tails)


def sealed(version: int, runs: int, body: bytes) -> bytes:
    checked = b"CLINDSET" + struct.pack("<HQ", version, runs) + body
    return checked + struct.pack("<I", zlib.crc32(checked))


def test_the_example_of_the_page() -> None:
    block = re.search(r"```hex\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert block is not None
    stored = bytes.fromhex("".join(line[:26] for line in block.group(1).splitlines()))
    assert EXAMPLE.to_bytes() == stored == by_the_page(EXAMPLE)
    assert IndexSet.from_bytes(stored) == EXAMPLE
    assert len(IndexSet().to_bytes()) == 22


def test_the_golden_file_of_version_1() -> None:
    stored = GOLDEN.read_bytes()
    assert IndexSet.from_bytes(stored) == golden_set()
    assert golden_set().to_bytes() == stored


@given(st.lists(st.tuples(st.integers(0, 63), st.integers(0, MAX_INDEX), st.integers(0, 3)), max_size=30))
def test_any_set_is_stored_as_the_page_says(choices: list[tuple[int, int, int]]) -> None:
    starts = [(at >> shift, length) for shift, at, length in choices]
    index_set = IndexSet.from_runs((at, min(at + length, MAX_INDEX)) for at, length in starts)
    assert index_set.to_bytes() == by_the_page(index_set)


@pytest.mark.parametrize("bits", [3, 6, 7, 13, 20, 40, 50])
@pytest.mark.parametrize("rare", [0, 57, 62])
def test_many_runs_are_stored_as_the_page_says(bits: int, rare: int) -> None:
    # Enough for several blocks of varints; `rare`: once in a while a gap too large for the quick way.
    rng = random.Random(bits)
    at = 0
    runs = []
    for number in range(9_000):
        gap = rng.getrandbits(rare) if rare and number % 5_000 == 4_999 else rng.getrandbits(rng.randint(0, bits))
        first = at + 2 + gap
        at = first + rng.choice([0, 1, rng.getrandbits(bits)])
        runs.append((first, at))
    index_set = IndexSet.from_runs(runs)
    assert index_set.run_count == 9_000
    assert index_set.to_bytes() == by_the_page(index_set)
    assert IndexSet.from_bytes(index_set.to_bytes()) == index_set


@pytest.mark.parametrize("highest", [0, 1 << 40, (1 << 61) - 9_000, 1 << 61, 1 << 62, MAX_INDEX])
@pytest.mark.parametrize("longest", [0, 127, 128])
@pytest.mark.parametrize("widest", [63, 64])
@pytest.mark.parametrize("has_numpy", [True, False])
def test_close_runs_have_the_same_bytes_with_numpy_and_without(
        monkeypatch: pytest.MonkeyPatch, has_numpy: bool, widest: int, longest: int, highest: int) -> None:
    # Numbers to the most that a byte holds and one beyond; indexes to the highest that there is.
    if not has_numpy:
        monkeypatch.setitem(sys.modules, "compactlib.indexset.array_encoding", None)
    rng = random.Random(widest * 1000 + longest)
    at, runs = 0, []
    for number in range(2_000):
        first = at + 2 + (widest if number == 1_500 else rng.randint(0, 5))
        at = first + (longest + 1 if number == 1_600 else rng.randint(0, 2))
        runs.append((first, at))
    shift = min(highest, MAX_INDEX - at)
    index_set = IndexSet.from_runs((first + shift, last + shift) for first, last in runs)
    stored = by_the_page(index_set)
    assert index_set.to_bytes() == stored
    assert IndexSet.from_bytes(stored) == index_set


def test_equal_sets_have_equal_bytes() -> None:
    assert (EXAMPLE.at_most(4) | EXAMPLE.at_least(5)).to_bytes() == EXAMPLE.to_bytes()


# --- damage ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("has_numpy", [True, False])
def test_damage_among_many_close_runs_is_told_with_numpy_and_without(
        monkeypatch: pytest.MonkeyPatch, has_numpy: bool) -> None:
    if not has_numpy:
        monkeypatch.setitem(sys.modules, "compactlib.indexset.array_encoding", None)
    for runs, body in ((2_000, b"\x02" * 1_999), (2_000, b"\x03" * 2_000), (2_000, b"\x02" * 2_001),
                       (1 << 60, b"\x02" * 3_000), (2_000, b"\x80\0" + b"\x02" * 1_999),
                       (2_000, b"\x80" * 11 + b"\x02" * 1_999), (2_000, varint(1 << 66) + b"\x02" * 1_999)):
        with pytest.raises(CorruptData) as caught:
            IndexSet.from_bytes(sealed(1, runs, body))
        assert caught.value.offset == HEADER_BYTES, runs


def test_any_flipped_bit_is_found() -> None:
    stored = EXAMPLE.to_bytes()
    for place in range(len(stored)):
        for bit in range(8):
            damaged = bytearray(stored)
            damaged[place] ^= 1 << bit
            with pytest.raises(CorruptData):
                IndexSet.from_bytes(damaged)


@given(st.integers(0, GOLDEN.stat().st_size - 1), st.integers(1, 255))
def test_any_flipped_byte_of_a_long_one_is_found(place: int, flip: int) -> None:
    damaged = bytearray(GOLDEN.read_bytes())
    damaged[place] ^= flip
    with pytest.raises(CorruptData):
        IndexSet.from_bytes(damaged)


def test_any_cut_or_addition_is_found() -> None:
    stored = EXAMPLE.to_bytes()
    for cut in range(len(stored)):
        for damaged in (stored[:cut], stored[len(stored) - cut:], stored[:cut] + stored[cut + 1:]):
            with pytest.raises(CorruptData):
                IndexSet.from_bytes(damaged)
    for damaged in (stored + b"\0", b"\0" + stored, stored + stored):
        with pytest.raises(CorruptData):
            IndexSet.from_bytes(damaged)


def test_an_error_names_the_file_and_the_place_in_it() -> None:
    damaged = bytearray(EXAMPLE.to_bytes())
    damaged[20] ^= 1
    with pytest.raises(CorruptData) as caught:
        IndexSet.from_bytes(damaged, path="/log/SNAPSHOT", offset=28)
    assert caught.value.path == "/log/SNAPSHOT"
    assert caught.value.offset == 28 + len(damaged) - 4
    assert "/log/SNAPSHOT at offset 52" in str(caught.value)


def test_bytes_of_another_kind_are_told_from_damage() -> None:
    other = b"CLRAFSEG" + EXAMPLE.to_bytes()[8:]
    with pytest.raises(CorruptData, match=r"expected magic b'CLINDSET', found b'CLRAFSEG'"):
        IndexSet.from_bytes(other)


def test_a_later_version_is_no_damage() -> None:
    with pytest.raises(Unsupported, match="version 2"):
        IndexSet.from_bytes(sealed(2, 0, b"whatever that may hold"), path="/log/SNAPSHOT")


@pytest.mark.parametrize(("stored", "offset"), [
    (sealed(0, 0, b""), 8),                                              # there was no version 0
    (sealed(1, 0, b"\x02"), HEADER_BYTES),                               # more heads than runs
    (sealed(1, 2, b"\x02"), HEADER_BYTES),                               # fewer
    (sealed(1, MAX_INDEX, b"\x02"), HEADER_BYTES),
    (sealed(1, 1, b"\x03"), HEADER_BYTES),                               # a tail is missing
    (sealed(1, 1, b"\x02\x00"), HEADER_BYTES),                           # one too many
    (sealed(1, 2, b"\x03\x02\x00\x00"), HEADER_BYTES),
    (sealed(1, 1, b"\x82"), HEADER_BYTES),                               # a number that does not end
    (sealed(1, 2, b"\x02\x82\x80"), HEADER_BYTES + 2),
    (sealed(1, 2, b"\x02\x82\x80\x00"), HEADER_BYTES + 2),               # not in the fewest bytes
    (sealed(1, 2, b"\x02" + b"\x80" * 10 + b"\x01"), HEADER_BYTES + 1),  # 11 bytes
    (sealed(1, 1, varint(1 << 65)), HEADER_BYTES),                       # above 2**64 - 1
    (sealed(1, 1, varint(3) + varint(MAX_INDEX)), HEADER_BYTES),
    (sealed(1, 2, varint(2 * MAX_INDEX) + varint(0)), HEADER_BYTES),
])
def test_bytes_that_nobody_wrote_are_damage_even_with_a_good_checksum(stored: bytes, offset: int) -> None:
    with pytest.raises(CorruptData) as caught:
        IndexSet.from_bytes(stored)
    assert caught.value.offset == offset


@given(st.integers(0, 4), st.lists(st.integers(0, 1 << 66), max_size=8).map(lambda all_: b"".join(map(varint, all_)))
       | st.binary(max_size=30))
def test_whatever_is_taken_is_canonical(runs: int, body: bytes) -> None:
    stored = sealed(1, runs, body)
    try:
        taken = IndexSet.from_bytes(stored)
    except CorruptData:
        return
    taken.audit()
    assert taken.to_bytes() == stored


def test_the_largest_numbers_fit() -> None:
    for index_set in (IndexSet.range(0, MAX_INDEX), IndexSet.range(MAX_INDEX, MAX_INDEX), IndexSet.range(1, MAX_INDEX)):
        stored = index_set.to_bytes()
        assert len(stored) <= 22 + 10 + 10
        assert list(pairwise(IndexSet.from_bytes(stored).runs())) == []
        assert IndexSet.from_bytes(stored) == index_set
