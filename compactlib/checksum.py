"""CRC-32 (the polynomial of zlib), from the fastest implementation that is installed.

`isal` and `zlib-ng` compute the same value several times faster than the standard library; the extra
`compactlib[fast]` brings the first. No format and no result depends on which one is found.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

    Crc32 = Callable[[ReadableBuffer, int], int]


def _fastest() -> Crc32:
    try:
        from isal.isal_zlib import crc32 as isal_crc32
    except ImportError:
        pass
    else:
        return isal_crc32
    try:
        from zlib_ng.zlib_ng import crc32 as zlib_ng_crc32
    except ImportError:
        return zlib.crc32
    return zlib_ng_crc32


crc32: Crc32 = _fastest()
"""`crc32(data, value=0) -> int`: CRC-32 of `data`, continued from `value`."""
