# SPDX-License-Identifier: Apache-2.0
"""A run over many stores makes none: one that does not exist is named, and fails."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from compactlib.errors import InvalidInput
from compactlib.raftlog import LogOptions, LogPlan, LogReader, SeedPolicy, SegmentLimits, SegmentLog
from compactlib.spark import compact_on_workers, plan_many

pytestmark = pytest.mark.spark

ROOT = Path(__file__).parents[2]
PROGRAM = re.search(r"```py\n(import sys\n.*?)```", (ROOT / "docs" / "spark-cluster.md").read_text(), re.DOTALL)
OPTIONS = LogOptions(limits=SegmentLimits(max_entries=100))
MISSING = ("ordres", "*.log", "an-empty-folder")


def stores(top: Path) -> list[str]:
    """A log with work, and names of stores that do not exist."""
    with SegmentLog(top / "orders", OPTIONS) as log:
        log.append((index, 1, b"x" * 200) for index in range(1, 1001))
        log.snapshot(900, live=range(10, 901, 10))
    (top / "an-empty-folder").mkdir()
    (top / "photos").mkdir()
    (top / "photos" / "me.jpg").write_text("hello")
    return [str(top / name) for name in ("orders", *MISSING, "photos")]


def test_a_plan_names_stores_that_are_missing(tmp_path: Path) -> None:
    names = stores(tmp_path)

    def plan(folder: str) -> LogPlan:
        with LogReader(folder) as log:
            return log.plan(SeedPolicy())

    with pytest.raises(InvalidInput, match="threads is 0"):
        plan_many(names, plan, threads=0)
    rows = plan_many(names, plan).to_dicts()
    assert [(row["store"], row["plan"]) for row in rows] == [
        (names[0], "work"), *((name, "failed") for name in names[1:])]
    assert "ordres" in rows[1]["why"]
    assert rows[0]["bytes_to_copy"] > 0


def test_a_run_makes_no_store_that_is_missing(spark: SparkSession, tmp_path: Path) -> None:
    names = stores(tmp_path)

    def open_log(folder: str) -> SegmentLog:
        """Creates an absent store."""
        return SegmentLog(folder, LogOptions())

    before = sorted(os.listdir(tmp_path))
    found = {row.store: row for row in compact_on_workers(spark, names, open_log, policy=SeedPolicy()).collect()}
    assert {name: found[name].outcome for name in names} == {names[0]: "done", **dict.fromkeys(names[1:], "failed")}
    assert {found[name].error for name in names[1:-1]} == {"NotFound"}
    assert "ordres" in found[names[1]].reason
    assert sorted(os.listdir(tmp_path)) == before
    assert os.listdir(tmp_path / "an-empty-folder") == []
    assert os.listdir(tmp_path / "photos") == ["me.jpg"]


def test_a_run_over_names_that_are_no_paths_calls_exists(spark: SparkSession, tmp_path: Path) -> None:
    stores(tmp_path)
    top = str(tmp_path)

    def open_log(name: str) -> SegmentLog:
        return SegmentLog(os.path.join(top, name), LogOptions(), create=False)

    outcomes = compact_on_workers(spark, ["orders", "ordres"], open_log, policy=SeedPolicy(),
                                  exists=lambda name: name == "orders").collect()
    assert {row.store: (row.outcome, row.error) for row in outcomes} == {
        "orders": ("done", None), "ordres": ("failed", "NotFound")}


def test_the_program_of_the_page_fails_when_a_store_is_missing(tmp_path: Path) -> None:
    """The program as the page prints it, with a session on this machine."""
    assert PROGRAM is not None
    stores(tmp_path)
    program = tmp_path / "compact_all.py"
    program.write_text("from tests.harness.spark_session import spark_session\nspark_session('all')\n" + PROGRAM[1])
    run = subprocess.run([sys.executable, str(program), str(tmp_path / "orders"), str(tmp_path / "ordres")],
                         capture_output=True, text=True, check=False, env={**os.environ, "PYTHONPATH": str(ROOT)},
                         timeout=250)
    assert run.returncode == 1, run.stdout + run.stderr
    assert "rewrote" in run.stdout
    assert not (tmp_path / "ordres").exists()
