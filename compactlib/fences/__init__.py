# SPDX-License-Identifier: Apache-2.0
"""Fences: what keeps a worker that comes too late from changing anything, where the data lies.

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

from compactlib._lazy import offer

offer(__name__)
