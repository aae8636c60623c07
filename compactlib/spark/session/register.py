# SPDX-License-Identifier: Apache-2.0
"""Makes the library's data sources known to a session."""

from __future__ import annotations

from typing import TYPE_CHECKING

from compactlib.spark.dependencies import require_spark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def register(spark: SparkSession) -> None:
    """Make `spark.read.format(...).load(folder)` work in this session for `compactlib.raftlog`,
    `compactlib.blobstore` and `compactlib.staging`. The columns are in `docs/spark.md`.

    Rows of a log are the entries that its segments still hold, partitioned by segments, ascending by index within one:
    `segment`, `index`, `term`, `offset` (of the payload in the segment's file), `length` (all bigint), `live` (boolean:
    above the last snapshot, or in its live set) and `payload` (binary). Options:

    * `first`, `last`: a range of indexes; segments outside it are not read. (A `where` on `index` gives the same
      rows, but is applied after reading: Spark's own push-down into Python sources mixes up queries.)
    * `as_of`: the index of a snapshot or checkpoint: the log as that one saw it, entries up to there, `live` by its
      live set. `snapshots`: the folder of the log's `SnapshotFolder`; the log's last snapshot needs none.

    Rows of a blob store are the records of its log, partitioned by segments, ascending by offset. Options:

    * `segments`: names of segments, separated by commas; the others are not read.
    * `now`, `reference_time`: seconds since the epoch at which `valid` is judged, as `log_statistics` does; `now` is
      when planning happens if not given, and `reference_time` (from when on deletes are not in effect) is `now`.

    Rows of a branch are its records, partitioned by ranges of its base, ascending by key: `key`, `identity` (binary),
    `length` (of the value, bigint), `state` (string: `committed`, `compacted`, `sealed` or `staged`) and `value`
    (binary). The path is the folder of the ranges. Options:

    * `branch`, `at` (a commit, or a branch whose HEAD to read) or `metarange`: what to read. `repository`: of which.
    * `kv`: the SQLite file of the branches; or `opener`: `module:function`, a function that workers can import, which
      is given the path and opens any stores (see `compactlib.spark.sources.staging.options.RepositoryOpener`). A
      metarange alone needs neither.
    * `prefix`, `first`, `last`: which keys, as text, or with `keys=hex` as hexadecimal digits; ranges outside are not
      read.
    * `tombstones`: `true` gives the keys whose newest staged entry is a tombstone too, and the column `deleted`.
    * `payload`: `false` leaves the values out.

    `spark.readStream.format("compactlib.raftlog.covered")` tells of the segments of logs that a snapshot has come to
    cover, log by log, once enough of them have: `folder` (string), `segment`, `first`, `last`, `bytes` and `snapshot`
    (bigint). Options: `folders` (a list in JSON; or the path of one log), `min_segments` (4) or `min_bytes`: from how
    many on a log is named. Those that do not exist yet are waited for. It is for `foreachBatch`, where
    `compact_on_workers` compacts what a batch names; a batch that is repeated after a crash names the same.

    Option of all tables: `partition_bytes`: up to which size neighbouring segments or ranges share a partition (128
    MiB).

    Options of logs and blob stores:

    * `payload`: `false` leaves the column out, and payload bytes unread and unchecked.
    * `damaged`: `fail` (default) ends the read at damage, naming file and offset; `column` gives the row a null payload
      and its error in the column `error`. With `payload=false` and `column`, payloads are checked but not passed on:
      the cheap way to look for damage.

    The folder must be reachable under the same path from every worker. Nothing is locked or written: what is in use may
    be read. A DataFrame sees the files that it found when it was first executed; after a compaction it may fail with
    `Stale`, and is then to be loaded again.

    Args:
        spark: a classic or a Spark Connect session, on which `ship_library` was called if its workers need it.

    Raises:
        MissingDependency: PySpark or one of its packages is not installed.
    """
    require_spark("a data source of compactlib")
    from compactlib.spark.sources.blobstore.rows import BlobStoreSource
    from compactlib.spark.sources.raftlog.covered import CoveredSource
    from compactlib.spark.sources.raftlog.rows import RaftLogSource
    from compactlib.spark.sources.staging.rows import StagingSource

    for source in (RaftLogSource, BlobStoreSource, StagingSource, CoveredSource):
        spark.dataSource.register(source)
