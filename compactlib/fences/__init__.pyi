# SPDX-License-Identifier: Apache-2.0
from compactlib.fences.cell_fence import KVFence as KVFence, ObjectFence as ObjectFence
from compactlib.fences.errors import (
    CommittedOtherwise as CommittedOtherwise,
    FencedOff as FencedOff,
    OtherLog as OtherLog,
)
from compactlib.fences.fence import (
    Admission as Admission,
    Commitment as Commitment,
    Fence as Fence,
    LockingFence as LockingFence,
    MemoryFence as MemoryFence,
    TokenFence as TokenFence,
)
from compactlib.fences.file_fence import FileFence as FileFence
