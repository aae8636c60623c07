# SPDX-License-Identifier: Apache-2.0
"""The library's data sources, for any session."""

from __future__ import annotations

from typing import TYPE_CHECKING

from compactlib.spark.executors.jobs import require_spark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def register(spark: SparkSession) -> None:
    """Make `spark.read.format(...).load(folder)` work in this session for `compactlib.raftlog` and
    `compactlib.blobstore`; `docs/spark.md` has their columns and options.

    A DataFrame sees the files that it found when it was first executed; after a compaction it may fail with `Stale`.
    With `payload=false` and `damaged=column` payloads are checked but not passed on.
    """
    require_spark("a data source of compactlib")
    from compactlib.spark.sources.blobstore import BlobStoreSource
    from compactlib.spark.sources.raftlog import RaftLogSource

    for source in (RaftLogSource, BlobStoreSource):
        spark.dataSource.register(source)
