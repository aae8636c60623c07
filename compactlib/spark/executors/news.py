# SPDX-License-Identifier: Apache-2.0
"""News of pieces that are done, as an accumulator; imported only where PySpark is."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias

from pyspark.accumulators import AccumulatorParam

Told: TypeAlias = tuple[str, tuple[int, bytes]]
"""The name of a job, and an answer of it."""


class News(AccumulatorParam[list[Told]]):
    """On a worker, collects answers; in the driver, passes them on to who listens, and keeps none.

    Args:
        listening: who hears of the answers of each job that runs; called in a thread of Spark's, one at a time. `None`
            on a worker.
    """

    def __init__(self, listening: Mapping[str, Callable[[tuple[int, bytes]], None]] | None = None) -> None:
        self._listening = listening

    def zero(self, value: list[Told]) -> list[Told]:
        """Nothing yet."""
        return []

    def addInPlace(self, value1: list[Told], value2: list[Told]) -> list[Told]:  # noqa: N802 - PySpark's name
        """More has come."""
        if self._listening is None:
            value1 += value2
            return value1
        for job, answer in value2:
            hear = self._listening.get(job)
            if hear is not None:
                hear(answer)
        return value1

    def __reduce__(self) -> tuple[type[News], tuple[()]]:
        return News, ()
