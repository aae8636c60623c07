# SPDX-License-Identifier: Apache-2.0
"""CRC-32 (the polynomial of zlib), from the fastest implementation that is installed.

`isal` computes the same value several times faster than the standard library; the extra `compactlib[fast]` installs it.
"""

from __future__ import annotations

import contextlib
import zlib
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from typing_extensions import Buffer


class Crc32(Protocol):
    """The shape of `crc32`."""

    def __call__(self, data: Buffer, value: int = 0, /) -> int:
        """Return the CRC-32 of `data`, continued from `value`: 0 .. 2**32 - 1."""


def _fastest() -> Crc32:
    with contextlib.suppress(ImportError):
        from isal.isal_zlib import crc32 as isal_crc32

        return isal_crc32
    return zlib.crc32


crc32: Crc32 = _fastest()
"""`crc32(data, value=0) -> int`: CRC-32 of `data`, continued from `value`. O(bytes); a C function, called directly."""
