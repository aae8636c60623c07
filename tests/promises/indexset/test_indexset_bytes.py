# SPDX-License-Identifier: Apache-2.0
"""The stored form of an IndexSet: as its page says, readable for ever, and never misread."""

from __future__ import annotations

import random
import re
import struct
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
HEADER_BYTES = 20


def golden_set() -> IndexSet:
    """Runs and gaps of every size, then a stretch like a log's live indexes."""
    powers = [(1 << bits, (1 << bits) + (1 << bits // 2) - 1) for bits in range(4, 64)]
    rng = random.Random(20)
    scattered = [(at, at + rng.choice([0, 0, 0, 1, 5])) for at in rng.sample(range(3 << 40, (3 << 40) + 50_000), 5_000)]
    return IndexSet.from_runs([(0, 2), *powers, *scattered, (MAX_INDEX, MAX_INDEX)])


def narrowest(numbers: list[int], bits_beside: int) -> int:
    """The width with which a column and its large numbers take the fewest bytes; of two, the smaller."""
    sizes = {width: width * len(numbers) + 8 * sum(number >= (1 << 8 * width - bits_beside) - 1 for number in numbers)
             for width in (1, 2, 4, 8)}
    return min(sizes, key=lambda width: (sizes[width], width))


def by_the_page(index_set: IndexSet) -> bytes:
    """The bytes as the format's page describes them, written down once more."""
    gaps, tails, longer = [], [], []
    previous_last = -2
    for first, last in index_set.runs():
        gaps.append(first - previous_last - 2)
        longer.append(last > first)
        if last > first:
            tails.append(last - first - 1)
        previous_last = last
    of_heads, of_tails = narrowest(gaps, 1), narrowest(tails, 0)
    most_gap, most_tail = (1 << 8 * of_heads - 1) - 1, (1 << 8 * of_tails) - 1
    heads = [2 * min(gap, most_gap) + long for gap, long in zip(gaps, longer, strict=True)]
    body = b"".join(number.to_bytes(width, "little") for width, numbers in (
        (of_heads, heads), (8, [gap for gap in gaps if gap >= most_gap]),
        (of_tails, [min(tail, most_tail) for tail in tails]), (8, [tail for tail in tails if tail >= most_tail]))
        for number in numbers)
    return sealed(1, index_set.run_count, of_heads, of_tails, body)


def sealed(version: int, runs: int, of_heads: int, of_tails: int, body: bytes) -> bytes:
    checked = b"CLINDSET" + struct.pack("<HQBB", version, runs, of_heads, of_tails) + body
    return checked + struct.pack("<I", zlib.crc32(checked))


def test_the_example_of_the_page() -> None:
    block = re.search(r"```hex\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert block is not None
    stored = bytes.fromhex("".join(line[:26] for line in block.group(1).splitlines()))
    assert EXAMPLE.to_bytes() == stored == by_the_page(EXAMPLE)
    assert IndexSet.from_bytes(stored) == EXAMPLE
    assert len(IndexSet().to_bytes()) == 24


def test_the_golden_file_of_version_2() -> None:
    stored = GOLDEN.read_bytes()
    assert IndexSet.from_bytes(stored) == golden_set()
    assert golden_set().to_bytes() == stored


@given(st.lists(st.tuples(st.integers(0, 63), st.integers(0, MAX_INDEX), st.integers(0, 3)), max_size=30))
def test_any_set_is_stored_as_on_the_page(choices: list[tuple[int, int, int]]) -> None:
    starts = [(at >> shift, length) for shift, at, length in choices]
    index_set = IndexSet.from_runs((at, min(at + length, MAX_INDEX)) for at, length in starts)
    assert index_set.to_bytes() == by_the_page(index_set)


@pytest.mark.parametrize("bits", [3, 6, 7, 13, 20, 40, 50])
@pytest.mark.parametrize("rare", [0, 57, 62])
def test_many_runs_are_stored_as_on_the_page(bits: int, rare: int) -> None:
    # `rare`: once in a while a gap that takes more bytes than the others.
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


def test_equal_sets_have_equal_bytes() -> None:
    assert (EXAMPLE.at_most(4) | EXAMPLE.at_least(5)).to_bytes() == EXAMPLE.to_bytes()


# --- damage ---------------------------------------------------------------------------------------------------------


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
    damaged[22] ^= 1
    with pytest.raises(CorruptData) as caught:
        IndexSet.from_bytes(damaged, path="/log/SNAPSHOT", offset=28)
    assert caught.value.path == "/log/SNAPSHOT"
    assert caught.value.offset == 28 + len(damaged) - 4
    assert f"/log/SNAPSHOT at offset {28 + len(damaged) - 4}" in str(caught.value)


def test_bytes_of_another_kind_are_no_damage() -> None:
    other = b"CLRAFSEG" + EXAMPLE.to_bytes()[8:]
    with pytest.raises(CorruptData, match=r"expected magic b'CLINDSET', found b'CLRAFSEG'"):
        IndexSet.from_bytes(other)


@pytest.mark.parametrize("version", [2, 3])
def test_another_version_is_no_damage(version: int) -> None:
    with pytest.raises(Unsupported, match=f"version {version}"):
        IndexSet.from_bytes(sealed(version, 0, 1, 1, b"whatever that may hold"), path="/log/SNAPSHOT")


def large(*numbers: int) -> bytes:
    return b"".join(number.to_bytes(8, "little") for number in numbers)


@pytest.mark.parametrize("stored", [
    sealed(1, 0, 1, 1, b"\x02"),                            # more heads than runs
    sealed(1, 2, 1, 1, b"\x02"),                            # fewer
    sealed(1, MAX_INDEX, 1, 1, b"\x02"),
    sealed(1, 1, 1, 1, b"\x03"),                            # a tail is missing
    sealed(1, 1, 1, 1, b"\x02\x00"),                        # one too many
    sealed(1, 1, 0, 1, b"\x02"),                            # no such width
    sealed(1, 1, 1, 3, b"\x02"),
    sealed(1, 1, 2, 1, b"\x02\x00"),                        # a width that is not the narrowest
    sealed(1, 1, 1, 2, b"\x03\x00\x00"),
    sealed(1, 1, 1, 1, b"\xfe"),                            # a large gap is missing
    sealed(1, 1, 1, 1, b"\xfe" + large(126)),               # one that is not large
    sealed(1, 1, 1, 1, b"\xfe" + large(127, 127)),          # one too many
    sealed(1, 1, 1, 1, b"\x03\xff" + large(254)),           # a tail that is not large
    sealed(1, 2, 1, 1, b"\xfe\x02" + large(MAX_INDEX)),     # above 2**64 - 1
    sealed(1, 1, 1, 1, b"\x03\xff" + large(MAX_INDEX)),
])
def test_invalid_bytes_are_damage_even_with_a_good_checksum(stored: bytes) -> None:
    with pytest.raises(CorruptData) as caught:
        IndexSet.from_bytes(stored)
    assert caught.value.offset == HEADER_BYTES


@given(st.integers(0, 4), st.sampled_from([1, 1, 1, 2, 4, 8, 0]), st.sampled_from([1, 1, 1, 2, 8]),
       st.lists(st.integers(0, 3) | st.sampled_from([254, 255]), max_size=5).map(bytes)
       | st.binary(max_size=30))
def test_accepted_bytes_are_canonical(runs: int, of_heads: int, of_tails: int, body: bytes) -> None:
    stored = sealed(1, runs, of_heads, of_tails, body)
    try:
        taken = IndexSet.from_bytes(stored)
    except CorruptData:
        return
    taken.audit()
    assert taken.to_bytes() == stored


def test_the_largest_numbers_fit() -> None:
    for index_set in (IndexSet.range(0, MAX_INDEX), IndexSet.range(MAX_INDEX, MAX_INDEX), IndexSet.range(1, MAX_INDEX)):
        stored = index_set.to_bytes()
        assert len(stored) <= 24 + 10 + 10
        assert list(pairwise(IndexSet.from_bytes(stored).runs())) == []
        assert IndexSet.from_bytes(stored) == index_set
