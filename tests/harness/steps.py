# SPDX-License-Identifier: Apache-2.0
"""Counts the steps of some work, for tests of how it grows: calls of Python and C functions, in every thread."""

from __future__ import annotations

import sys
import threading
from collections import Counter
from collections.abc import Callable
from types import FrameType
from typing import Any


def calls_of(work: Callable[[], object]) -> Counter[str]:
    """How often each function was called by `work`, by name; threads that were running before are not seen."""
    counts: Counter[str] = Counter()

    def count(frame: FrameType, event: str, argument: Any) -> None:
        if event == "call":
            counts[frame.f_code.co_name] += 1
        elif event == "c_call":
            counts[argument.__name__] += 1

    threading.setprofile(count)
    sys.setprofile(count)
    try:
        work()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    return counts
