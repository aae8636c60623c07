# SPDX-License-Identifier: Apache-2.0
"""What tells an SQLite file from a copy of it: its inode, and when that was made.

Both stay with a file that is written, renamed, or mounted elsewhere, and both are new in a copy. An inode alone may be
given out again, and fresh volumes of one kind give the same ones. Devices are left out: their numbers change with each
mount.
"""

from __future__ import annotations

import os
import struct
import sys

_AT_FDCWD = -100
_BIRTH = 0x800
_BYTES = 256
_BIRTH_OFFSET = 80
"""In Linux's `struct statx`, which is the same on every machine."""


def place_of_file(path: str) -> str:
    """The place of a file, in words that are compared and shown."""
    born = _born_at(path)
    return f"SQLite file of inode {os.stat(path).st_ino}" + (f", made at {born} s of the epoch" if born else "")


def _born_at(path: str) -> str:
    """When the file was made; empty where the system or the file system does not say."""
    if sys.platform != "linux":
        return str(getattr(os.stat(path), "st_birthtime", ""))
    # Python has no statx before 3.15.
    import ctypes

    statx = getattr(ctypes.CDLL(None), "statx", None)
    found = ctypes.create_string_buffer(_BYTES)
    if statx is None or statx(_AT_FDCWD, os.fsencode(path), 0, _BIRTH, found) != 0:
        return ""
    mask, = struct.unpack_from("=I", found)
    seconds, nanoseconds = struct.unpack_from("=qI", found, _BIRTH_OFFSET)
    return f"{seconds}.{nanoseconds:09}" if mask & _BIRTH else ""
