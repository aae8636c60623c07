# SPDX-License-Identifier: Apache-2.0
"""News of pieces that are done, as an accumulator; imported only where PySpark is."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from pyspark.accumulators import AccumulatorParam

from compactlib.spark.executors.jobs import Piece


class News(AccumulatorParam[list[tuple[str, Piece]]]):
    """On a worker, collects answers with the names of their jobs; in the driver, tells them to who listens.

    Args:
        listening: who hears of the answers of each job that runs; called in a thread of Spark's, one at a time.
    """

    def __init__(self, listening: Mapping[str, Callable[[Piece], None]]) -> None:
        self._listening = listening

    def zero(self, value: list[tuple[str, Piece]]) -> list[tuple[str, Piece]]:
        """Nothing yet."""
        return []

    def addInPlace(self, value1: list[tuple[str, Piece]],  # noqa: N802 - PySpark's name
                   value2: list[tuple[str, Piece]]) -> list[tuple[str, Piece]]:
        """Tell what has come; the driver keeps nothing."""
        for job, answer in value2:
            hear = self._listening.get(job)
            if hear is not None:
                hear(answer)
        return value1

    def __reduce__(self) -> tuple[Any, ...]:
        return _Collecting, ()


class _Collecting(AccumulatorParam[list[tuple[str, Piece]]]):
    def zero(self, value: list[tuple[str, Piece]]) -> list[tuple[str, Piece]]:
        return []

    def addInPlace(self, value1: list[tuple[str, Piece]],  # noqa: N802 - PySpark's name
                   value2: list[tuple[str, Piece]]) -> list[tuple[str, Piece]]:
        value1 += value2
        return value1
