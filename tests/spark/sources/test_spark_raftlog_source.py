# SPDX-License-Identifier: Apache-2.0
"""The data source compactlib.raftlog in a session."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, EqualTo, Filter, InputPartition
from pyspark.sql.types import StructType

from compactlib.raftlog import LogReader, SegmentLog
from compactlib.spark import register
from tests.spark.raftlogs import build_log, expected_rows, flip_byte

pytestmark = pytest.mark.spark

Load = Callable[..., DataFrame]
PUSHDOWN = "spark.sql.python.filterPushdown.enabled"


@pytest.fixture
def load(spark: SparkSession) -> Load:
    register(spark)

    def loaded(folder: Path, **options: str) -> DataFrame:
        return spark.read.format("compactlib.raftlog").options(**options).load(str(folder))

    return loaded


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_log(tmp_path_factory.mktemp("source") / "log")


def rows(frame: DataFrame) -> list[dict[str, Any]]:
    return sorted((row.asDict() for row in frame.collect()), key=lambda row: (row["index"], row["segment"]))


def test_rows_columns_and_partitions(load: Load, log: Path) -> None:
    frame = load(log)
    assert [(field.name, field.dataType.simpleString()) for field in frame.schema.fields] == [
        ("store", "string"), ("segment", "bigint"), ("index", "bigint"), ("term", "bigint"), ("offset", "bigint"),
        ("length", "bigint"),
        ("live", "boolean"), ("payload", "binary")]
    wanted = expected_rows(log)
    assert rows(frame) == wanted
    assert frame.count() == len(wanted)
    assert frame.rdd.getNumPartitions() == 1
    alone = load(log, partition_bytes="1")
    assert rows(alone) == wanted
    assert alone.rdd.getNumPartitions() == len({row["segment"] for row in wanted})


def test_a_range_without_payload(load: Load, log: Path) -> None:
    frame = load(log, first="60", last="120", payload="false", partition_bytes="1")
    assert "payload" not in frame.columns
    wanted = [{name: value for name, value in row.items() if name != "payload"} for row in expected_rows(log, 60, 120)]
    assert rows(frame) == wanted
    assert frame.rdd.getNumPartitions() == 2


def test_in_sql(load: Load, log: Path, spark: SparkSession) -> None:
    load(log).createOrReplaceTempView("raftlog_entries")
    answer = spark.sql("SELECT segment, count(*) AS entries, sum(length) AS bytes FROM raftlog_entries "
                       "WHERE NOT live AND index BETWEEN 10 AND 90 GROUP BY segment ORDER BY segment").collect()
    dead = [row for row in expected_rows(log, 10, 90) if not row["live"]]
    assert [tuple(row) for row in answer] == [
        (number, len(lengths), sum(lengths)) for number in (1, 2)
        if (lengths := [row["length"] for row in dead if row["segment"] == number])]


def test_live_ratio_in_sql(load: Load, log: Path, spark: SparkSession) -> None:
    load(log, payload="false").createOrReplaceTempView("raftlog_entries")
    try:
        found = spark.sql("SELECT segment, sum(CASE WHEN live THEN length ELSE 0 END) AS live_bytes, "
                          "live_bytes / sum(length) AS live_ratio FROM raftlog_entries GROUP BY segment").collect()
    finally:
        spark.catalog.dropTempView("raftlog_entries")
    with LogReader(log) as reader:
        assert {row["segment"]: row["live_bytes"] for row in found} == {
            each.number: each.live_bytes for each in reader.stats()}
    assert 0 < min(row["live_ratio"] for row in found) < max(row["live_ratio"] for row in found) == 1


def test_an_empty_log(load: Load, tmp_path: Path) -> None:
    SegmentLog(tmp_path).close()
    assert load(tmp_path).count() == 0


def test_damage_fails_the_read_or_comes_in_a_column(load: Load, tmp_path: Path) -> None:
    log = build_log(tmp_path / "log")
    damaged = next(row for row in expected_rows(log) if row["index"] == 60)
    path = log / "0000000000000002.segment"
    flip_byte(path, damaged["offset"])
    with pytest.raises(PySparkException) as caught:
        load(log).collect()
    assert f"{path} at offset {damaged['offset']} (index 60)" in str(caught.value)

    broken = load(log, damaged="column").where("error IS NOT NULL").collect()
    assert [(row["index"], row["payload"]) for row in broken] == [(60, None)]
    assert f"{path} at offset {damaged['offset']} (index 60)" in broken[0]["error"]
    assert load(log, damaged="column").where("error IS NULL").count() == 190


def test_a_wrong_option_fails_before_anything_is_read(load: Load, log: Path) -> None:
    with pytest.raises(AnalysisException, match="unknown option 'paylod'"):
        load(log, paylod="false")


def test_the_schema_is_the_sources_own(load: Load, log: Path, spark: SparkSession) -> None:
    with pytest.raises(PySparkException, match="and cast or select afterwards"):
        spark.read.format("compactlib.raftlog").schema("index int").load(str(log)).collect()


def test_queries_stay_apart_where_the_session_pushes_filters(load: Load, log: Path, spark: SparkSession) -> None:
    spark.conf.set(PUSHDOWN, "true")
    try:
        frame = load(log)
        assert frame.where("index <= 10").count() == 10
        assert frame.count() == 191
        assert frame.where("index <= 10").union(frame.where("index > 185")).count() == 16
    finally:
        spark.conf.unset(PUSHDOWN)


class _Ten(DataSource):
    """Ten rows, of which a pushed filter leaves those that equal its value."""

    @classmethod
    def name(cls) -> str:
        return "ten"

    def schema(self) -> str:
        return "value bigint"

    def reader(self, schema: StructType) -> DataSourceReader:
        return _TenReader()


class _TenReader(DataSourceReader):
    def __init__(self) -> None:
        self.values = range(10)

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802
        for condition in filters:
            if isinstance(condition, EqualTo):
                self.values = range(condition.value, condition.value + 1)
            else:
                yield condition

    def read(self, partition: InputPartition) -> Any:
        return iter([(value,) for value in self.values])


@pytest.mark.xfail(reason="Spark reads later queries through the filters of earlier ones, so our source takes none; "
                          "once this passes it may, see docs/spark.md, Good to know")
def test_spark_keeps_pushed_filters_apart(spark: SparkSession) -> None:
    from pyspark import cloudpickle

    from tests.spark.sources import test_spark_raftlog_source

    spark.conf.set(PUSHDOWN, "true")
    cloudpickle.register_pickle_by_value(test_spark_raftlog_source)  # type: ignore[no-untyped-call]
    try:
        spark.dataSource.register(_Ten)
        frame = spark.read.format("ten").load()
        counts = frame.count(), frame.where("value = 3").count(), frame.count()
    finally:
        cloudpickle.unregister_pickle_by_value(test_spark_raftlog_source)  # type: ignore[no-untyped-call]
        spark.conf.unset(PUSHDOWN)
    assert counts == (10, 1, 10)
