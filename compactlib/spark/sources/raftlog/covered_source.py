# SPDX-License-Identifier: Apache-2.0
"""The Spark stream `compactlib.raftlog.covered`; `register` makes it known."""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from typing import Any

from pyspark.sql.datasource import DataSource, SimpleDataSourceStreamReader
from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from compactlib.spark.sources.planned_reader import sql_schema
from compactlib.spark.sources.raftlog.covered_rows import (
    COLUMNS,
    CoveredLooks,
    LogLook,
    StreamOptions,
    between,
    crossed,
)

NAME = "compactlib.raftlog.covered"
"""What `spark.readStream.format` takes."""


class CoveredSource(DataSource):
    """Segments that a snapshot has come to cover, log by log, once enough of them have; see `covered_rows`."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        self._parsed = StreamOptions.parse(options)

    @classmethod
    def name(cls) -> str:
        """What `spark.readStream.format` takes."""
        return NAME

    def schema(self) -> str:
        """The columns, as Spark SQL."""
        return sql_schema(COLUMNS)

    def simpleStreamReader(self, schema: StructType) -> SimpleDataSourceStreamReader:  # noqa: N802
        """Looks at the logs, in a process of the driver's."""
        return CoveredReader(self._parsed)


class CoveredReader(SimpleDataSourceStreamReader, SupportsTriggerAvailableNow):
    """The stream's reader: its rows are few, so that the driver reads them itself."""

    def __init__(self, options: StreamOptions) -> None:
        self._options = options
        self._looks = CoveredLooks(options.folders)
        self._last_look: dict[str, LogLook] | None = None

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Nothing that comes later is reported."""
        self._last_look = self._looks.look()

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        """Nothing was reported yet."""
        return {}

    def read(self, start: dict[str, Any]) -> tuple[Iterator[tuple[Any, ...]], dict[str, Any]]:
        """What has crossed a threshold since `start`, and where that ends."""
        found = self._looks.look() if self._last_look is None else self._last_look
        end = crossed(start, found, self._options)
        # Not the generator itself: Spark copies what it is given.
        return iter(list(between(start, end, found))), end

    def readBetweenOffsets(  # noqa: N802
            self, start: dict[str, Any], end: dict[str, Any]) -> Iterator[tuple[Any, ...]]:
        """The rows of a batch that is repeated after a crash, of what is still there."""
        return between(start, end, self._looks.look())
