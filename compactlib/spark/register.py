"""Makes the library's data sources known to a session."""

from __future__ import annotations

from typing import TYPE_CHECKING

from compactlib.spark.dependencies import require_spark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def register(spark: SparkSession) -> None:
    """Make `spark.read.format(...).load(folder)` work in this session for `compactlib.raftlog` and
    `compactlib.blobstore`. The columns are in `docs/spark.md`.

    Rows of a log are the entries that its segments still hold, one partition per segment, ascending by index within it:
    `segment`, `index`, `term`, `offset` (of the payload in the segment's file), `length` (all bigint), `live` (boolean:
    above the last snapshot, or in its live set) and `payload` (binary). Options:

    * `first`, `last`: a range of indexes; segments outside it get no partition. (A `where` on `index` gives the same
      rows, but is applied after reading: Spark's own push-down into Python sources mixes up queries.)

    Rows of a blob store are the records of its log, one partition per segment, ascending by offset. Options:

    * `segments`: names of segments, separated by commas; the others get no partition.
    * `now`, `reference_time`: seconds since the epoch at which `valid` is judged, as `log_statistics` does; `now` is
      when planning happens if not given, and `reference_time` (from when on deletes are not in effect) is `now`.

    Options of both:

    * `payload`: `false` leaves the column out, and payload bytes unread and unchecked.
    * `damaged`: `fail` (default) ends the read at damage, naming file and offset; `column` gives the row a null payload
      and its error in the column `error`. With `payload=false` and `column`, payloads are checked but not passed on:
      the cheap way to look for damage.

    The folder must be reachable under the same path from every worker. Nothing is locked or written: a log or
    store in use may be read. A DataFrame sees the segments that it found when it was first executed; after a compaction
    it may fail with `Stale`, and is then to be loaded again.

    Args:
        spark: a classic or a Spark Connect session, on which `ship_library` was called if its workers need it.

    Raises:
        MissingDependency: PySpark or one of its packages is not installed.
    """
    require_spark("a data source of compactlib")
    from compactlib.spark.blobstore_source import BlobStoreSource
    from compactlib.spark.raftlog_source import RaftLogSource

    for source in (RaftLogSource, BlobStoreSource):
        spark.dataSource.register(source)
