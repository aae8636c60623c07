# SPDX-License-Identifier: Apache-2.0
"""Keeps the modules of a Spark worker out of its later garbage collections."""

from __future__ import annotations

import functools
import gc
from collections.abc import Iterator
from typing import TypeVar

_T = TypeVar("_T")


def settled(results: Iterator[_T], *, on_worker: bool | None = None) -> Iterator[_T]:
    """The results of a task; after the first task of a worker process, what is loaded is collected no more.

    Spark's daemon collects garbage after every task of a worker that it uses again (`pyspark/daemon.py`, 4.3.0). With
    pandas and PyArrow loaded that looks at half a million objects, some 35 ms of processor time a task. Objects that
    are alive when the first task ends are mostly modules and classes; they are set aside for good (`gc.freeze`).
    Later garbage is collected as before.

    Args:
        results: what the task yields.
        on_worker: whether this process is a worker of Spark's, where this may be done; asked of Spark if `None`.
    """
    yield from results
    if _is_worker() if on_worker is None else on_worker:
        _set_aside_once()


@functools.cache
def _set_aside_once() -> None:
    gc.freeze()


def _is_worker() -> bool:
    from pyspark import TaskContext

    return TaskContext.get() is not None
