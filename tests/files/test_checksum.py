# SPDX-License-Identifier: Apache-2.0
"""`checksum`: whichever implementation is installed gives zlib's values, for every kind of buffer."""

from __future__ import annotations

import mmap
import subprocess
import sys
import zlib
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, strategies as st

from compactlib.files import checksum
from compactlib.files.checksum import CRC32_IMPLEMENTATION, Crc32, crc32, installed

if TYPE_CHECKING:
    from collections.abc import Callable

    from typing_extensions import Buffer

IMPLEMENTATIONS = dict(installed())
TEXT = b"123456789"
each_implementation = pytest.mark.parametrize("implementation", IMPLEMENTATIONS.values(), ids=IMPLEMENTATIONS.keys())


def test_the_fastest_that_is_installed_is_used_and_the_standard_library_always_is_there() -> None:
    assert next(iter(IMPLEMENTATIONS)) == CRC32_IMPLEMENTATION
    assert crc32 is IMPLEMENTATIONS[CRC32_IMPLEMENTATION]
    assert list(IMPLEMENTATIONS)[-1] == "zlib"
    assert checksum.crc32 is crc32


@each_implementation
def test_check_value_of_the_polynomial(implementation: Crc32) -> None:
    assert implementation(TEXT) == 0xCBF43926


@each_implementation
@pytest.mark.parametrize("view", [bytes, bytearray, memoryview, lambda data: memoryview(b"x" + data)[1:]],
                         ids=["bytes", "bytearray", "memoryview", "slice"])
def test_every_kind_of_buffer(implementation: Crc32, view: Callable[[bytes], Buffer]) -> None:
    assert implementation(view(TEXT)) == 0xCBF43926


@each_implementation
def test_a_mapped_file(implementation: Crc32, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(TEXT * 1000)
    with open(tmp_path / "file", "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        assert implementation(mapped) == zlib.crc32(TEXT * 1000)


@each_implementation
def test_nothing_changes_nothing(implementation: Crc32) -> None:
    assert implementation(b"") == 0
    assert implementation(b"", 0xDEADBEEF) == 0xDEADBEEF


@each_implementation
def test_what_is_not_contiguous_is_refused(implementation: Crc32) -> None:
    with pytest.raises(BufferError):
        implementation(memoryview(TEXT)[::2])


@each_implementation
@given(data=st.binary(max_size=300), start=st.integers(0, (1 << 32) - 1), cut=st.integers(0, 300))
def test_agrees_with_zlib_in_one_go_and_continued(implementation: Crc32, data: bytes, start: int, cut: int) -> None:
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
