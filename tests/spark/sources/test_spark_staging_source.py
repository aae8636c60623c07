# SPDX-License-Identifier: Apache-2.0
"""The data source compactlib.staging in a session."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import DataFrame, SparkSession

from compactlib.kv import SqliteStore
from compactlib.objects import LocalObjects
from compactlib.spark import register
from compactlib.staging import CommittedRanges, Repository, SplitRule
from tests.spark.sources.branches import expected_rows, seal

pytestmark = pytest.mark.spark

TOMBSTONES = ("SELECT split_part(decode(key, 'UTF-8'), '/', 1) AS prefix, count_if(deleted) AS tombstones, count(*) AS "
              "keys FROM branch_rows GROUP BY prefix ORDER BY prefix")
OPENER = """
from contextlib import closing, contextmanager
from compactlib.kv import SqliteStore
from compactlib.objects import LocalObjects
from compactlib.staging import CommittedRanges, Repository

@contextmanager
def open_repository(folder):
    with closing(SqliteStore(folder + "/kv.sqlite", create=False)) as store:
        yield Repository(store, CommittedRanges(LocalObjects(folder + "/ranges")))
"""


@pytest.fixture
def repo(tmp_path: Path) -> Iterator[Repository]:
    """Commits, a compaction, a sealed token and a staging token; three ranges."""
    with closing(SqliteStore(tmp_path / "kv.sqlite", synchronous="normal")) as store:
        objects = LocalObjects(tmp_path / "ranges")
        repo = Repository(store, CommittedRanges(objects, rule=SplitRule(max_bytes=5 << 10)))
        main = repo.create_branch("main")
        main.put_many({b"%s/%02d" % (folder, number): bytes(1 << 10) for folder in (b"a", b"b", b"c")
                       for number in range(4)})
        main.commit("first")
        main.put(b"a/00", b"compacted")
        repo.compact()
        main.delete_many([b"a/01", b"c/02"])
        main.put(b"b/00", b"sealed")
        seal(repo, "main")
        main.delete(b"c/03")
        main.put(b"d/00", b"staged")
        yield repo


def load(spark: SparkSession, folder: Path, **options: str) -> DataFrame:
    register(spark)
    stores = {} if "opener" in options else {"kv": str(folder / "kv.sqlite")}
    return spark.read.format("compactlib.staging").options(**stores, **options).load(
        str(folder) if "opener" in options else str(folder / "ranges"))


def rows(frame: DataFrame) -> list[dict[str, Any]]:
    return [{name: bytes(value) if isinstance(value, bytearray) else value for name, value in row.asDict().items()}
            for row in sorted(frame.collect(), key=lambda row: row["key"])]


def test_rows_columns_and_partitions(spark: SparkSession, tmp_path: Path, repo: Repository) -> None:
    frame = load(spark, tmp_path, branch="main", tombstones="true", partition_bytes="1")
    assert [(field.name, field.dataType.simpleString()) for field in frame.schema.fields] == [
        ("key", "binary"), ("identity", "binary"), ("length", "bigint"), ("state", "string"), ("deleted", "boolean"),
        ("value", "binary")]
    assert rows(frame) == expected_rows(repo, "main")
    base = repo.branch("main").status().compacted_metarange_id
    assert frame.rdd.getNumPartitions() == len(repo.context.committed.ranges_of(base)) == 3
    narrow = load(spark, tmp_path, branch="main", prefix="a/", payload="false", partition_bytes="1")
    assert narrow.rdd.getNumPartitions() == 1
    assert [row["key"] for row in rows(narrow)] == [b"a/00", b"a/02", b"a/03"]
    assert narrow.columns == ["key", "identity", "length", "state"]


def test_head(spark: SparkSession, tmp_path: Path, repo: Repository) -> None:
    found = rows(load(spark, tmp_path, at="main"))
    assert [(row["key"], row["value"]) for row in found] == [
        (key, record.data) for key, record in repo.at("main").records()]


def test_tombstones_of_each_prefix_in_sql(spark: SparkSession, tmp_path: Path, repo: Repository) -> None:
    load(spark, tmp_path, branch="main", tombstones="true", payload="false").createOrReplaceTempView("branch_rows")
    try:
        found = {row["prefix"]: row["tombstones"] for row in spark.sql(TOMBSTONES).collect()}
    finally:
        spark.catalog.dropTempView("branch_rows")
    assert sum(found.values()) == repo.plan().view.tombstones
    assert found == {f"{prefix}": repo.branch("main").list(prefix=f"{prefix}/".encode()).tombstones
                     for prefix in "abcd"} == {"a": 1, "b": 0, "c": 2, "d": 0}


def test_stores_that_a_function_opens(spark: SparkSession, tmp_path: Path, repo: Repository) -> None:
    module = tmp_path / "opens_a_branch.py"
    module.write_text(OPENER)
    spark.addArtifacts(str(module), pyfile=True)
    frame = load(spark, tmp_path, opener="opens_a_branch:open_repository", branch="main", tombstones="true")
    assert rows(frame) == expected_rows(repo, "main")


def test_a_frame_is_stale_once_the_branch_has_other_layers(spark: SparkSession, tmp_path: Path, repo: Repository,
                                                           ) -> None:
    frame = load(spark, tmp_path, branch="main")
    count = frame.count()
    repo.branch("main").commit("second")
    with pytest.raises(PySparkException, match="load the branch again"):
        frame.count()
    assert load(spark, tmp_path, branch="main").count() == count


def test_a_wrong_option_fails_before_anything_is_read(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(AnalysisException, match="by one of branch, at, metarange"):
        load(spark, tmp_path)
