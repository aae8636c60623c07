# SPDX-License-Identifier: Apache-2.0
"""Files mapped into memory without keeping a descriptor open, which `mmap.mmap` does before Python 3.13."""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import weakref

_LIBC = ctypes.CDLL(None, use_errno=True)
_LIBC.mmap.restype = ctypes.c_void_p
_LIBC.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
_LIBC.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_FAILED = ctypes.c_void_p(-1).value
MAX_MAPPED_FILES = 1 << 15
"""Half of what Linux lets a process map unless told otherwise: without any, no thread begins, and no module loads."""
MAPPED_ADDRESSES: set[int] = set()


def map_file(descriptor: int, size: int) -> memoryview:
    """The first `size` bytes of a file, to be read; mapped until the last view of them is gone. The descriptor may be
    closed, and the file removed; whoever cuts it off ends the processes that read it.

    Raises:
        OSError: it cannot be mapped, or so many are.
    """
    if len(MAPPED_ADDRESSES) >= MAX_MAPPED_FILES:
        raise OSError(errno.ENOMEM, f"{MAX_MAPPED_FILES} files are mapped")
    address = _LIBC.mmap(None, size, mmap.PROT_READ, mmap.MAP_SHARED, descriptor, 0)
    if address == _FAILED:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    # Of one of few types: one for each size would take 3 KiB, until the garbage is collected.
    region = (ctypes.c_ubyte * (1 << (size - 1).bit_length())).from_address(address)
    MAPPED_ADDRESSES.add(address)
    weakref.finalize(region, _unmap, address, size).atexit = False
    return memoryview(region).cast("B")[:size].toreadonly()


def _unmap(address: int, size: int) -> None:
    MAPPED_ADDRESSES.discard(address)
    _LIBC.munmap(address, size)
