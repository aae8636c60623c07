# SPDX-License-Identifier: Apache-2.0
"""Fences: refuse the commit of a late worker in the storage that it would change.

>>> from compactlib.fences import FencedOff, MemoryFence
>>> fence = MemoryFence()
>>> fence.admit("log 7", 57).token
57
>>> try:
...     fence.admit("log 7", 41)
... except FencedOff as late:
...     late.highest
57
"""

from typing import TYPE_CHECKING

from compactlib._lazy import offer

if TYPE_CHECKING:
    from compactlib.fences.cell_fence import KVFence as KVFence, ObjectFence as ObjectFence
    from compactlib.fences.errors import (
        CommittedOtherwise as CommittedOtherwise,
        FencedOff as FencedOff,
        OtherLog as OtherLog,
    )
    from compactlib.fences.fence import (
        MAX_TOKEN as MAX_TOKEN,
        MAX_VALUE_BYTES as MAX_VALUE_BYTES,
        Admission as Admission,
        Commitment as Commitment,
        Fence as Fence,
        LockingFence as LockingFence,
        MemoryFence as MemoryFence,
        TokenFence as TokenFence,
    )
    from compactlib.fences.file_fence import FileFence as FileFence
else:
    offer(__name__, {
        "compactlib.fences.cell_fence": "KVFence ObjectFence",
        "compactlib.fences.errors": "CommittedOtherwise FencedOff OtherLog",
        "compactlib.fences.fence":
            "MAX_TOKEN MAX_VALUE_BYTES Admission Commitment Fence LockingFence MemoryFence TokenFence",
        "compactlib.fences.file_fence": "FileFence",
    })
