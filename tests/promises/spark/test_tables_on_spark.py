# SPDX-License-Identifier: Apache-2.0
"""The table of a log as a session reads it: its rows, its errors, and queries that stay apart."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import SparkSession

from compactlib.raftlog import LogOptions, LogReader, SegmentLimits, SegmentLog
from compactlib.spark import register

pytestmark = pytest.mark.spark

PUSHDOWN = "spark.sql.python.filterPushdown.enabled"


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("table") / "log"
    with SegmentLog(folder, LogOptions(limits=SegmentLimits(max_entries=50))) as log:
        log.append((index, 1, bytes([index]) * (index % 37)) for index in range(1, 181))
    return folder


def test_session_reads_the_rows_of_a_log(spark: SparkSession, log: Path) -> None:
    register(spark)
    frame = spark.read.format("compactlib.raftlog").option("partition_bytes", 1).load(str(log))
    with LogReader(log) as reader:
        assert sorted((row["index"], row["term"], row["payload"]) for row in frame.collect()) == [
            (entry.index, entry.term, entry.payload) for entry in reader.entries()]
        assert frame.rdd.getNumPartitions() == frame.select("segment").distinct().count() == len(reader.refs)


def test_wrong_option_or_schema_is_refused(spark: SparkSession, log: Path) -> None:
    register(spark)
    with pytest.raises(AnalysisException, match="unknown option 'paylod'"):
        spark.read.format("compactlib.raftlog").option("paylod", "false").load(str(log))
    with pytest.raises(PySparkException, match="SCHEMA_MISMATCH"):
        spark.read.format("compactlib.raftlog").schema("index int").load(str(log)).collect()


def test_queries_stay_apart_where_the_session_pushes_filters(spark: SparkSession, log: Path) -> None:
    register(spark)
    spark.conf.set(PUSHDOWN, "true")
    try:
        frame = spark.read.format("compactlib.raftlog").load(str(log))
        assert frame.where("index <= 10").count() == 10
        assert frame.count() == 180
        assert frame.where("index <= 10").union(frame.where("index > 175")).count() == 15
    finally:
        spark.conf.unset(PUSHDOWN)
