# SPDX-License-Identifier: Apache-2.0
"""`checksum`: whichever implementation is installed gives zlib's values, for every kind of buffer."""

from __future__ import annotations

import subprocess
import sys
import zlib

import pytest
from hypothesis import given, strategies as st

from compactlib.files.checksum import CRC32_IMPLEMENTATION, Crc32, installed

IMPLEMENTATIONS = dict(installed())
TEXT = b"123456789"
each_implementation = pytest.mark.parametrize("implementation", IMPLEMENTATIONS.values(), ids=IMPLEMENTATIONS.keys())


@each_implementation
def test_check_value_of_the_polynomial(implementation: Crc32) -> None:
    assert implementation(TEXT) == 0xCBF43926


@each_implementation
@given(data=st.binary(max_size=300), start=st.integers(0, (1 << 32) - 1), cut=st.integers(0, 300))
def test_checksum_agrees_with_zlib_in_parts(implementation: Crc32, data: bytes, start: int, cut: int) -> None:
    whole = implementation(data, start)
    assert whole == zlib.crc32(data, start)
    assert 0 <= whole < 1 << 32
    assert implementation(data[cut:], implementation(data[:cut], start)) == whole


@pytest.mark.parametrize(("hidden", "chosen"), [((), CRC32_IMPLEMENTATION), (("isal", "zlib_ng"), "zlib")])
def test_the_choice_falls_back_when_packages_are_missing(hidden: tuple[str, ...], chosen: str) -> None:
    script = f"""
import sys
for name in {hidden!r}:
    sys.modules[name] = None
from compactlib.files.checksum import CRC32_IMPLEMENTATION, crc32
print(CRC32_IMPLEMENTATION, crc32({TEXT!r}))
"""
    told = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert told.stdout.split() == [chosen, str(0xCBF43926)]
