# SPDX-License-Identifier: Apache-2.0
"""Plans of many stores: what they show."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from compactlib.errors import CorruptData, InvalidInput, NotFound
from compactlib.executors import Executor, LocalExecutor
from compactlib.outcome import Done, Failed, Skipped
from compactlib.raftlog import DropDead, SegmentLog
from compactlib.raftlog.errors import NotALog
from compactlib.runtime import Budget
from compactlib.spark import compact_stores, plan_stores
from compactlib.spark.stores.store_plans import PlanLog, StorePlan, StoresPlan, StoreWork
from tests.spark.store_jobs import LIMITS, PLAN_LOG, build_logs, compact_log, contents, copied_logs

ROOT = Path(__file__).parents[3]

PLAN = StoresPlan((
    StorePlan("absent", Failed(NotFound("no such store; check the path"))),
    StorePlan("broken", Failed(CorruptData(path="broken/1", offset=0, expected="a segment", found="zeros"))),
    StorePlan("large", StoreWork(900.0, "copies 900 bytes")),
    StorePlan("small", StoreWork(1.0, "drops a segment")),
    StorePlan("done", Skipped("nothing is dead")),
))


class TestStoresPlan:
    def test_it_says_in_one_line_what_there_is_to_do(self) -> None:
        assert repr(PLAN) == ("<StoresPlan: 5 stores: 2 with work of 901, 1 without, 1 could not be looked at, "
                              "1 missing>")
        assert "copies 900 bytes" in str(PLAN)
        assert "no such store" in PLAN._repr_html_()
        assert PLAN.to_dicts()[2] == {"store": "large", "plan": "work", "weight": 900.0, "reason": "copies 900 bytes"}
        assert [row["plan"] for row in PLAN.to_dicts()] == ["missing", "failed", "work", "work", "skipped"]
        assert PLAN.missing == ("absent",)
        assert not StoresPlan(PLAN.stores[4:]).work

    def test_stores_with_work_get_a_job_and_so_does_one_that_could_not_be_looked_at(self) -> None:
        opened: list[str] = []

        def compact(name: str, executor: Executor, budget: Budget) -> Any:
            opened.append(name)
            return Done(name)

        assert list(PLAN.work.items()) == [("broken", 900.0), ("large", 900.0), ("small", 1.0)]
        jobs = PLAN.jobs(compact)
        assert [(job.name, job.weight) for job in jobs] == [("broken", 900.0), ("large", 900.0), ("small", 1.0)]
        outcomes = list(compact_stores(jobs, LocalExecutor(), stores_at_once=1))
        assert opened == ["broken", "large", "small"]
        assert [row["outcome"] for each in outcomes for row in each.to_dicts()] == ["done"] * 3

    @pytest.mark.parametrize("weight", [-1.0, float("nan")])
    def test_a_weight_that_cannot_be_packed_is_refused(self, weight: float) -> None:
        with pytest.raises(InvalidInput, match="give 0 or more"):
            StoreWork(weight)


class TestPlanLog:
    def test_it_plans_as_the_log_itself_does(self, tmp_path: Path) -> None:
        for folder in build_logs(tmp_path / "logs", 5):
            found = PLAN_LOG(folder)
            with SegmentLog(folder, LIMITS) as log:
                plan = log.plan(log.policy)
            assert isinstance(found, StoreWork)
            assert found.weight == plan.bytes_to_copy > 0
            assert found.reason == plan.table().title
            compact_log(folder, LocalExecutor(), Budget())
            again = PLAN_LOG(folder)
            assert isinstance(again, Skipped)
            assert "nothing to do" in again.reason

    def test_dropping_what_is_dead_copies_nothing(self, tmp_path: Path) -> None:
        (folder,) = build_logs(tmp_path / "logs", 1)
        drops = PlanLog(policy=DropDead())
        assert isinstance(drops(folder), Skipped)
        with SegmentLog(folder, LIMITS) as log:
            assert log.last_index is not None
            log.record_snapshot(log.last_index - 1, live=[])
        assert drops(folder).reason.startswith("drop() at snapshot")
        assert isinstance(drops(folder), StoreWork)
        assert drops(folder) == StoreWork(0.0, drops(folder).reason)

    def test_what_a_crash_has_left_is_work(self, tmp_path: Path) -> None:
        (folder,) = build_logs(tmp_path / "logs", 1)
        compact_log(folder, LocalExecutor(), Budget())
        (Path(folder) / "rewrite-lost").mkdir()
        found = PLAN_LOG(folder)
        assert isinstance(found, StoreWork)
        assert found.weight == 0.0
        assert found.reason.endswith("left by an interrupted run: rewrite-lost")
        compact_log(folder, LocalExecutor(), Budget())
        assert isinstance(PLAN_LOG(folder), Skipped)

    def test_what_is_no_log(self, tmp_path: Path) -> None:
        with pytest.raises(NotALog):
            PLAN_LOG(str(tmp_path))


FEW_FILES = """
import resource, sys
from compactlib.outcome import Done
from compactlib.executors import LocalExecutor
from compactlib.spark.stores.many_stores import compact_stores
from tests.spark.store_jobs import job
resource.setrlimit(resource.RLIMIT_NOFILE, (80, 80))
for each in compact_stores(map(job, sys.argv[1:]), LocalExecutor(2), stores_at_once=40):
    if isinstance(each.outcome, Done):
        print(each.name)
"""


def test_stores_that_find_no_open_file_left_are_there_again_in_the_next_plan(tmp_path: Path) -> None:
    """A process may have so many files open; those that come too late fail alone, as they were."""
    templates = build_logs(tmp_path / "templates", 5)
    folders = copied_logs(tmp_path / "logs", templates, 40)
    ran = subprocess.run([sys.executable, "-c", FEW_FILES, *folders], cwd=ROOT, capture_output=True, text=True,
                         timeout=120, check=True)
    done = set(ran.stdout.split())
    left = {folder: found for folder in folders if isinstance(found := PLAN_LOG(folder), StoreWork)}
    assert set(left) - done
    # One that committed may have found no file to look for what it can remove; opening it does.
    assert all(left[folder].weight == 0 and "left by an interrupted run" in left[folder].reason
               for folder in done & set(left))
    for folder in (*left, *templates):
        assert not isinstance(compact_log(folder, LocalExecutor(), Budget()), Failed)
        assert isinstance(PLAN_LOG(folder), Skipped)
    for number, folder in enumerate(folders):
        assert contents(folder) == contents(templates[number % 5])


@pytest.mark.spark
class TestOnSpark:
    def test_a_plan_lists_every_store(self, spark: SparkSession, tmp_path: Path) -> None:
        """Damage, stores that are none, and stores that are done are rows like the others."""
        ready, damaged, done = build_logs(tmp_path / "logs", 3)
        segment = min(Path(damaged).glob("*.segment"))
        segment.write_bytes(b"\xff" * segment.stat().st_size)
        compact_log(done, LocalExecutor(), Budget())
        absent = str(tmp_path / "absent")
        plan = plan_stores(spark, [ready, damaged, done, absent], PLAN_LOG)
        kinds = {row["store"]: row["plan"] for row in plan.to_dicts()}
        assert kinds == {ready: "work", damaged: "failed", done: "skipped", absent: "missing"}
        errors = {each.name: each.found.error for each in plan.stores if isinstance(each.found, Failed)}
        assert isinstance(errors[damaged], CorruptData)
        assert isinstance(errors[absent], NotALog)

    def test_a_plan_that_is_none(self, spark: SparkSession) -> None:
        def planned(name: str) -> Any:
            return 7

        (only,) = plan_stores(spark, ["a"], planned).stores
        assert "it must give StoreWork or Skipped" in only.reason
        with pytest.raises(InvalidInput, match="'a' is listed twice"):
            plan_stores(spark, ["a", "b", "a"], planned)
        assert plan_stores(spark, [], planned).stores == ()
