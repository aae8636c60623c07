"""Makes the library's data sources known to a session."""

from __future__ import annotations

from typing import TYPE_CHECKING

from compactlib.spark.dependencies import require_spark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def register(spark: SparkSession) -> None:
    """Make `spark.read.format("compactlib.raftlog").load(folder)` work in this session.

    Rows are the entries that the segments still hold, one partition per segment, ascending by index within it:
    `segment`, `index`, `term`, `offset` (of the payload in the segment's file), `length` (all bigint), `live` (boolean:
    above the last snapshot, or in its live set) and `payload` (binary). Options:

    * `first`, `last`: a range of indexes; segments outside it get no partition. (A `where` on `index` gives the same
      rows, but is applied after reading: Spark's own push-down into Python sources mixes up queries.)
    * `payload`: `false` leaves the column out, and payload bytes unread and unchecked.
    * `damaged`: `fail` (default) ends the read at a damaged entry, naming file, offset and index; `column` gives it a
      null payload and its error in the column `error`. With `payload=false` and `column`, payloads are checked but
      not passed on: the cheap way to look for damage.

    The folder must be reachable under the same path from every worker. Nothing is locked or written: a log in use may
    be read. A DataFrame sees the segments that it found when it was first executed; after a compaction at a later
    snapshot it may fail with `Stale`, and is then to be loaded again.

    Args:
        spark: a classic or a Spark Connect session, on which `ship_library` was called if its workers need it.

    Raises:
        MissingDependency: PySpark or one of its packages is not installed.
    """
    require_spark("the data source compactlib.raftlog")
    from compactlib.spark.raftlog_source import RaftLogSource

    spark.dataSource.register(RaftLogSource)
