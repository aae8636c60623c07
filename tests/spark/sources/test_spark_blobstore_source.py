# SPDX-License-Identifier: Apache-2.0
"""The data source compactlib.blobstore in a session."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from compactlib.clock import ManualClock
from compactlib.spark import register
from compactlib.spark.sources.blobstore import BlobOptions, plan_slices, read_slice
from tests.harness.blob_stores import START, flip, garbage_store, snapshot_of

pytestmark = pytest.mark.spark

VALID_BYTES = "SELECT segment, sum(CASE WHEN valid THEN size ELSE 0 END) AS valid_bytes FROM records GROUP BY segment"


def test_rows_partitions_and_valid_bytes_in_sql(spark: SparkSession, tmp_path: Path) -> None:
    register(spark)
    clock = ManualClock(START)
    with garbage_store(tmp_path / "store", clock) as store:
        store.flush()
        view = store.view()
        times = {"now": str(clock.now()), "reference_time": str(view.reference_time), "partition_bytes": "1"}
        frame = spark.read.format("compactlib.blobstore").options(**times).load(store.folder)
        wanted = BlobOptions.parse({"path": store.folder, **times})
        plain = [row for part in plan_slices(wanted) for batch in read_slice(part, wanted) for row in batch.to_pylist()]
        found = [row.asDict() for row in frame.orderBy("segment", "offset").collect()]
        assert found == sorted(plain, key=lambda row: (row["segment"], row["offset"]))
        segments = [str(segment.name) for segment in view.segments if segment.used_bytes]
        assert frame.rdd.getNumPartitions() == len(segments)
        frame.createOrReplaceTempView("records")
        assert {row["segment"]: row["valid_bytes"] for row in spark.sql(VALID_BYTES).collect()} == {
            str(segment.name): segment.valid_bytes for segment in view.segments if segment.used_bytes}
        narrow = {"segments": segments[1], "payload": "false"}
        one = spark.read.format("compactlib.blobstore").options(**narrow).load(store.folder)
        assert {row["segment"] for row in one.select("segment").collect()} == {segments[1]}
        assert "payload" not in one.columns


def test_damage_names_file_and_offset(spark: SparkSession, tmp_path: Path) -> None:
    register(spark)
    with garbage_store(tmp_path / "store", ManualClock(START)) as store:
        snapshot = snapshot_of(store)
        entry = next(snapshot.entries_of(snapshot.segments[0].name))
        path = Path(store.folder) / entry.segment.log_file
        flip(path, entry.end - 6)
        with pytest.raises(PySparkException, match=f"{path}.*offset {entry.offset}"):
            spark.read.format("compactlib.blobstore").load(store.folder).count()
