# SPDX-License-Identifier: Apache-2.0
"""Run one piece of work in several threads at once."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

ResultT = TypeVar("ResultT")


def in_threads(count: int, work: Callable[[int], ResultT]) -> list[ResultT]:
    """Run `work(0)`, `work(1)`, ... each in a thread of its own, all begun together; return their results.

    Raises:
        BaseException: what one of them raised, after all have ended.
    """
    together = threading.Barrier(count)

    def run(number: int) -> ResultT:
        together.wait()
        return work(number)

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(run, range(count)))
