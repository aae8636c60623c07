# SPDX-License-Identifier: Apache-2.0
"""`checksum`: whichever implementation is installed gives zlib's values, for every kind of buffer."""

from __future__ import annotations

import subprocess
import sys
import zlib

import pytest
from hypothesis import given, strategies as st

from compactlib.files.checksum import crc32


@given(data=st.binary(max_size=300), start=st.integers(0, (1 << 32) - 1), cut=st.integers(0, 300))
def test_checksum_agrees_with_zlib_in_parts(data: bytes, start: int, cut: int) -> None:
    whole = crc32(data, start)
    assert whole == zlib.crc32(data, start)
    assert 0 <= whole < 1 << 32
    assert crc32(data[cut:], crc32(data[:cut], start)) == whole


@pytest.mark.parametrize("hidden", [(), ("isal",)])
def test_each_implementation_gives_the_check_value(hidden: tuple[str, ...]) -> None:
    script = f"""
import sys
for name in {hidden!r}:
    sys.modules[name] = None
from compactlib.files.checksum import crc32
print(crc32(b"123456789"), not any(name in crc32.__module__ for name in {hidden!r}))
"""
    told = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert told.stdout.split() == [str(0xCBF43926), "True"]
