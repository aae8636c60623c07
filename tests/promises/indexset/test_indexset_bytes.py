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
HEADER_BYTES = 28


def golden_set() -> IndexSet:
    """Runs and gaps of every size, then a stretch like a log's live indexes."""
    powers = [(1 << bits, (1 << bits) + (1 << bits // 2) - 1) for bits in range(4, 64)]
    rng = random.Random(20)
    scattered = [(at, at + rng.choice([0, 0, 0, 1, 5])) for at in rng.sample(range(3 << 40, (3 << 40) + 5_000), 500)]
    return IndexSet.from_runs([(0, 2), *powers, *scattered, (MAX_INDEX, MAX_INDEX)])


def by_the_page(index_set: IndexSet) -> bytes:
    """The bytes as the format's page describes them, written down once more."""
    gaps, spans = [], []
    begin = index_set.first if index_set else 0
    previous_last = begin - 2
    for first, last in index_set.runs():
        gaps.append(first - previous_last - 2)
        spans.append(last - first)
        previous_last = last
    columns = [(narrowest(gaps), gaps), (narrowest(spans) if any(spans) else 0, spans)]
    body = b"".join(number.to_bytes(width, "little") for width, numbers in columns if width for number in numbers)
    return sealed(1, index_set.run_count, columns[0][0], columns[1][0], body, first=begin)


def narrowest(numbers: list[int]) -> int:
    return next(width for width in (1, 2, 4, 8) if max(numbers, default=0) < 1 << 8 * width)


def sealed(version: int, runs: int, of_gaps: int, of_spans: int, body: bytes, *, first: int = 0) -> bytes:
    checked = b"CLINDSET" + struct.pack("<HQQBB", version, runs, first, of_gaps, of_spans) + body
    return checked + struct.pack("<I", zlib.crc32(checked))


def test_the_example_of_the_page() -> None:
    block = re.search(r"```hex\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert block is not None
    stored = bytes.fromhex("".join(line[:26] for line in block.group(1).splitlines()))
    assert EXAMPLE.to_bytes() == stored == by_the_page(EXAMPLE)
    assert IndexSet.from_bytes(stored) == EXAMPLE
    assert len(IndexSet().to_bytes()) == 32


def test_the_golden_file() -> None:
    stored = GOLDEN.read_bytes()
    assert IndexSet.from_bytes(stored) == golden_set()
    assert golden_set().to_bytes() == stored


@given(st.lists(st.tuples(st.integers(0, 63), st.integers(0, MAX_INDEX), st.integers(0, 3)), max_size=30))
def test_any_set_is_stored_as_on_the_page(choices: list[tuple[int, int, int]]) -> None:
    starts = [(at >> shift, length) for shift, at, length in choices]
    index_set = IndexSet.from_runs((at, min(at + length, MAX_INDEX)) for at, length in starts)
    assert index_set.to_bytes() == by_the_page(index_set)


def test_a_high_first_member_widens_no_gap() -> None:
    live = IndexSet.from_iterable(range(10_000_000, 10_200_000, 2))
    assert len(live.to_bytes()) == 32 + live.run_count


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
    damaged[30] ^= 1
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


@pytest.mark.parametrize("stored", [
    sealed(1, 0, 1, 0, b"\x02"),                            # more gaps than runs
    sealed(1, 2, 1, 0, b"\x02"),                            # fewer
    sealed(1, MAX_INDEX, 1, 0, b"\x02"),
    sealed(1, 1, 1, 1, b"\x03"),                            # a span is missing
    sealed(1, 1, 1, 1, b"\x02\x00\x00"),                    # one too many
    sealed(1, 1, 0, 1, b"\x02"),                            # no such width
    sealed(1, 1, 1, 3, b"\x02\x00\x00\x00"),
    sealed(1, 2, 8, 0, MAX_INDEX.to_bytes(8, "little") + bytes(8)),     # above 2**64 - 1
    sealed(1, 1, 8, 1, MAX_INDEX.to_bytes(8, "little") + b"\x01"),
    sealed(1, 1, 1, 1, b"\x00\x01", first=MAX_INDEX),
])
def test_invalid_bytes_are_damage_even_with_a_good_checksum(stored: bytes) -> None:
    with pytest.raises(CorruptData) as caught:
        IndexSet.from_bytes(stored)
    assert caught.value.offset == HEADER_BYTES


@given(st.integers(0, 4), st.sampled_from([1, 1, 1, 2, 4, 8, 0]), st.sampled_from([0, 0, 1, 2, 8]),
       st.binary(max_size=30), st.integers(0, MAX_INDEX))
def test_accepted_bytes_are_a_set(runs: int, of_gaps: int, of_spans: int, body: bytes, first: int) -> None:
    try:
        taken = IndexSet.from_bytes(sealed(1, runs, of_gaps, of_spans, body, first=first))
    except CorruptData:
        return
    taken.audit()
    assert taken.run_count == runs


def test_the_largest_numbers_fit() -> None:
    for index_set in (IndexSet.range(0, MAX_INDEX), IndexSet.range(MAX_INDEX, MAX_INDEX), IndexSet.range(1, MAX_INDEX)):
        stored = index_set.to_bytes()
        assert len(stored) <= 32 + 10 + 10
        assert list(pairwise(IndexSet.from_bytes(stored).runs())) == []
        assert IndexSet.from_bytes(stored) == index_set
