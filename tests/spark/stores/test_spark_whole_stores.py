# SPDX-License-Identifier: Apache-2.0
"""Whole stores compacted on workers: their outcomes, the rows of the table, and workers that die."""

from __future__ import annotations

import random
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from compactlib.budget import Budget, BudgetLimits
from compactlib.errors import CorruptData, InvalidInput
from compactlib.executors import LocalExecutor
from compactlib.raftlog import SeedPolicy, SegmentLog
from compactlib.spark import compact_on_workers
from tests.spark.store_jobs import (
    LIMITS,
    build_logs,
    compact_log,
    contents,
    copied_logs,
    open_deadly,
    open_log,
    open_mortal,
    open_noted,
    work_of,
)

POLICY = SeedPolicy()


def outcomes_of(frame: DataFrame) -> dict[str, tuple[str, str | None]]:
    return {row.store: (row.outcome, row.error) for row in frame.collect()}


def compacted_alone(folders: list[str]) -> list[dict[str, Any]]:
    for folder in folders:
        assert not compact_log(folder, LocalExecutor(), Budget()).is_empty
    return [contents(folder) for folder in folders]


@pytest.mark.spark
def test_limits_hold_for_each_store_and_rows_have_the_work(spark: SparkSession, tmp_path: Path) -> None:
    (folder,) = build_logs(tmp_path / "logs", 1)
    (row,) = compact_on_workers(spark, [folder], open_log, policy=POLICY, limits=BudgetLimits(total_bytes=1)).collect()
    assert (row.outcome, row.error) == ("failed", "BudgetSpent")
    (row,) = compact_on_workers(spark, [folder], open_log, policy=POLICY).collect()
    assert (row.outcome, row.error) == ("done", None)
    assert "rewrote 2 segments into 1" in row.reason
    assert f"wrote {row.bytes_written:,}, freed {row.bytes_freed:,} bytes" in row.reason
    assert min(row.bytes_written, row.bytes_freed, row.seconds) > 0


@pytest.mark.spark
class TestOnSpark:
    def test_every_store_ends_as_alone_and_a_second_run_is_empty(self, spark: SparkSession,
                                                                                    tmp_path: Path) -> None:
        ours, theirs = build_logs(tmp_path / "ours", 12), build_logs(tmp_path / "theirs", 12)
        notes = tmp_path / "notes"
        notes.mkdir()
        frame = compact_on_workers(spark, ours, partial(open_noted, notes=str(notes)), policy=POLICY)
        assert outcomes_of(frame) == dict.fromkeys(ours, ("done", None))
        frame.createOrReplaceTempView("outcomes")
        (row,) = spark.sql("SELECT sum(bytes_written) AS bytes, count_if(seconds > 0) AS stores "
                           "FROM outcomes").collect()
        assert row.bytes > 0
        assert row.stores == frame.count() == len(list(notes.iterdir())) == 12
        assert [contents(folder) for folder in ours] == compacted_alone(theirs)
        again = compact_on_workers(spark, ours, open_log, policy=POLICY)
        assert outcomes_of(again) == dict.fromkeys(ours, ("skipped", None))
        assert [contents(folder) for folder in ours] == [contents(folder) for folder in theirs]

    def test_a_store_that_fails_stops_no_other(self, spark: SparkSession, tmp_path: Path) -> None:
        ready, held, damaged = build_logs(tmp_path / "logs", 3)
        segment = min(Path(damaged).glob("*.segment"))
        segment.write_bytes(b"\xff" * segment.stat().st_size)
        absent = str(tmp_path / "absent" / "log")
        with SegmentLog(held, LIMITS):
            frame = compact_on_workers(spark, [ready, held, damaged, absent], open_log, policy=POLICY)
        found = outcomes_of(frame)
        assert (found[ready], found[held]) == (("done", None), ("skipped", None))
        assert found[damaged] == ("failed", CorruptData.__name__)
        assert found[absent][0] == "failed"

    def test_a_store_that_kills_every_worker_is_named_and_others_done(self, spark: SparkSession,
                                                                      tmp_path: Path) -> None:
        deadly, sound = build_logs(tmp_path / "logs", 2)
        frame = compact_on_workers(spark, [deadly, sound], partial(open_deadly, deadly=deadly))
        (row,) = frame.where(frame.store == deadly).collect()
        assert (row.outcome, row.error) == ("failed", "TaskFailed")
        assert "killed its worker in every attempt" in row.reason
        assert outcomes_of(compact_on_workers(spark, [sound], open_log))[sound][0] != "failed"

    def test_bad_input(self, spark: SparkSession) -> None:
        with pytest.raises(InvalidInput, match="'a' is listed twice"):
            compact_on_workers(spark, ["a", "b", "a"], open_log)
        with pytest.raises(InvalidInput, match="stores are '/logs/a'; give a list"):
            compact_on_workers(spark, "/logs/a", open_log)
        assert compact_on_workers(spark, [], open_log).count() == 0

    def test_two_hundred_stores(self, spark: SparkSession, tmp_path: Path) -> None:
        many(spark, tmp_path, 200)

    @pytest.mark.parametrize("seed", [1])
    def test_dead_workers_are_replaced_and_every_store_ends_as_alone(
            self, spark: SparkSession, tmp_path: Path, seed: int) -> None:
        killed_workers(spark, tmp_path, random.Random(seed))


def many(spark: SparkSession, base: Path, count: int) -> None:
    """Plan, compact and plan again several logs: each ends as it would alone, the second plan is empty."""
    templates = build_logs(base / "templates", 10)
    folders = copied_logs(base / "logs", templates, count)
    # A few that are far heavier than the rest.
    heavy = folders[3::97]
    for folder in heavy:
        with SegmentLog(folder, LIMITS) as log:
            last = max(log.last_index, 0)
            log.append((index, 1, b"heavy" * 200) for index in range(last + 1, last + 200))
            log.snapshot(last + 198, live=range(1, last + 198, 3))
    (twin,) = copied_logs(base / "twin", heavy, 1)
    assert work_of(folders) == folders
    frame = compact_on_workers(spark, folders, open_log, policy=POLICY)
    assert outcomes_of(frame) == dict.fromkeys(folders, ("done", None))
    *expected, heaviest = compacted_alone([*templates, twin])
    assert contents(heavy[0]) == heaviest
    assert not [folder for number, folder in enumerate(folders)
                if folder not in heavy and contents(folder) != expected[number % 10]]
    assert work_of(folders) == []


def killed_workers(spark: SparkSession, base: Path, rng: random.Random) -> None:
    """Three workers die at any change of the disk, with several stores open; Spark tries a task four times."""
    templates = build_logs(base / "templates", 10)
    folders = copied_logs(base / "logs", templates, 30)
    notes = base / "deaths"
    notes.mkdir()
    # A log takes some 30 changes.
    deaths = {folder: rng.randrange(30) for folder in rng.sample(folders, 3)}
    frame = compact_on_workers(spark, folders, partial(open_mortal, deaths=deaths, notes=str(notes)), policy=POLICY)
    assert list(notes.iterdir())
    found = outcomes_of(frame)
    assert found.keys() == set(folders)
    assert set(found.values()) <= {("done", None), ("skipped", None)}
    expected = compacted_alone(templates)
    for number, folder in enumerate(folders):
        assert contents(folder) == expected[number % 10]
        assert [path.name for path in Path(folder).iterdir() if path.is_dir()] == []
