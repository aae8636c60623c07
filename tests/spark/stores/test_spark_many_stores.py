# SPDX-License-Identifier: Apache-2.0
"""Compactions of many stores with one executor; all but the last class without Spark."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest
from pyspark import TaskContext
from pyspark.sql import SparkSession

from compactlib.errors import BudgetSpent, Busy, CompactlibError, InvalidInput, TaskFailed
from compactlib.executors import Executor, LocalExecutor, RewriteTask
from compactlib.outcome import Done, Failed
from compactlib.raftlog import SegmentLog
from compactlib.rewrite import Attempt, RewriteOutcome, RewriteResult
from compactlib.runtime import Budget, RecordingObserver
from compactlib.spark import SparkExecutor, StoreJob, compact_stores
from compactlib.spark.executors.items import MOST_ITEMS_IN_A_PART, map_items
from compactlib.spark.stores.many_stores import StoreOutcome
from tests.spark.rewrite_tasks import CopyTask
from tests.spark.store_jobs import build_logs, contents, groups_of, job, open_log, planned_bytes


class TestCompactStores:
    def test_every_store_is_compacted_as_it_would_be_alone(self, tmp_path: Path) -> None:
        ours, theirs = build_logs(tmp_path / "ours", 12), build_logs(tmp_path / "theirs", 12)
        found = {each.name: each.outcome for each in compact_stores(map(job, ours), LocalExecutor(2))}
        assert found.keys() == set(ours)
        for folder, alone in zip(ours, theirs, strict=True):
            assert isinstance(job(alone).compact(LocalExecutor(), Budget()), Done)
            assert contents(folder) == contents(alone)
            assert groups_of(found[folder]) >= 1

    def test_again_finds_nothing_to_do(self, tmp_path: Path) -> None:
        folders = build_logs(tmp_path / "logs", 4)
        list(compact_stores(map(job, folders), LocalExecutor()))
        before = [contents(folder) for folder in folders]
        again = list(compact_stores(map(job, folders), LocalExecutor()))
        assert [groups_of(each.outcome) for each in again] == [0, 0, 0, 0]
        assert [contents(folder) for folder in folders] == before

    def test_stopped_and_started_again_it_goes_on(self, tmp_path: Path) -> None:
        folders = build_logs(tmp_path / "logs", 8)
        run = compact_stores(map(job, folders), LocalExecutor(), stores_at_once=1)
        first = [next(run).name for _ in range(3)]
        run.close()
        left = [folder for folder in folders if planned_bytes(folder)]
        assert not set(first) & set(left)
        assert len(left) >= 4
        again = {each.name: groups_of(each.outcome) for each in compact_stores(map(job, folders), LocalExecutor())}
        assert [folder for folder in folders if again[folder]] == left
        assert not any(map(planned_bytes, folders))

    def test_a_store_that_fails_stops_no_other(self, tmp_path: Path) -> None:
        folders = build_logs(tmp_path / "logs", 3)

        def broken(executor: Executor, budget: Budget) -> object:
            raise ZeroDivisionError("a host's own")

        jobs = [*map(job, folders), StoreJob("broken", broken), job(str(tmp_path / "absent" / "log"))]
        found = {each.name: each.outcome for each in compact_stores(jobs, LocalExecutor())}
        assert len(found) == 5
        assert "a host&#x27;s own" in StoreOutcome("broken", found["broken"])._repr_html_()
        assert isinstance(found["broken"], Failed)
        assert isinstance(found["broken"].error, TaskFailed)
        assert isinstance(found[str(tmp_path / "absent" / "log")], Failed)
        assert all(groups_of(found[folder]) for folder in folders)

    def test_the_heaviest_store_begins_first(self) -> None:
        begun: list[str] = []

        def noting(name: str) -> StoreJob:
            def compact(executor: Executor, budget: Budget) -> object:
                begun.append(name)
                return None

            return StoreJob(name, compact, float(name))

        outcomes = [each.name for each in compact_stores(map(noting, "31524"), LocalExecutor(), stores_at_once=1)]
        assert begun == outcomes == ["5", "4", "3", "2", "1"]

    def test_a_spent_budget_is_every_store_s_outcome(self, tmp_path: Path) -> None:
        folders = build_logs(tmp_path / "logs", 2)
        budget = Budget()
        budget.cancel()
        for each in compact_stores(map(job, folders), LocalExecutor(), budget=budget):
            assert isinstance(each.outcome, Failed)
            assert isinstance(each.outcome.error, BudgetSpent)
            assert each.to_dicts()[0]["store"] == each.name
            assert each.name in each._repr_html_()

    def test_bad_input(self) -> None:
        with pytest.raises(InvalidInput, match="'a' is listed twice"):
            compact_stores([job("a"), job("a")], LocalExecutor())
        with pytest.raises(InvalidInput, match="stores_at_once is 0"):
            compact_stores([job("a")], LocalExecutor(), stores_at_once=0)


    @pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit()])
    def test_what_ends_a_process_is_raised_by_the_run_and_nobody_waits_for_good(self, error: BaseException) -> None:
        def ends(executor: Executor, budget: Budget) -> object:
            raise error

        jobs = [StoreJob("a", ends), StoreJob("b", lambda executor, budget: Done(1))]
        with pytest.raises(type(error)):
            list(compact_stores(jobs, LocalExecutor(), stores_at_once=1))


def test_what_the_executor_reports_reaches_the_run_s_observer_and_the_store_s(tmp_path: Path) -> None:
    own, all_of_them, budget = RecordingObserver(), RecordingObserver(), Budget()

    def compact(executor: Executor, lent: Budget) -> object:
        return list(executor.run([CopyTask("copy", __file__, str(tmp_path))], budget=lent, observer=own))

    (each,) = compact_stores([StoreJob("a", compact)], LocalExecutor(), budget=budget, observer=all_of_them)
    assert isinstance(each.outcome[0], RewriteResult)
    assert [name for name, _ in all_of_them.events] == [name for name, _ in own.events] == ["copied"]
    assert budget.spent_bytes == each.outcome[0].bytes_written > 0


def test_a_task_may_not_close_its_own_store_through_the_shared_executor(tmp_path: Path) -> None:
    """On whichever thread: the task is work of the store's own run."""
    (folder,) = build_logs(tmp_path / "logs", 1)
    refused: list[Exception] = []

    @attrs.frozen
    class Closing:
        task: RewriteTask
        log: SegmentLog

        @property
        def name(self) -> str:
            return self.task.name

        def run(self, attempt: Attempt) -> RewriteResult:
            try:
                self.log.close()
            except Busy as error:
                refused.append(error)
            return self.task.run(attempt)

    def compact(executor: Executor, budget: Budget) -> object:
        with open_log(folder) as log:
            class Wrapping:
                def run(self, tasks: Iterable[RewriteTask], **given: Any) -> Iterator[RewriteOutcome]:
                    return executor.run([Closing(task, log) for task in tasks], **given)

            return log.compact(policy=log.policy, executor=Wrapping(), budget=budget)

    (each,) = compact_stores([StoreJob(folder, compact)], LocalExecutor(2))
    assert isinstance(each.outcome, Done)
    assert refused


@pytest.mark.spark
class TestOnSpark:
    def test_planned_in_one_job_and_compacted_together(self, spark: SparkSession, tmp_path: Path) -> None:
        """Plans on the workers, largest first; the bytes are those of the local executor."""
        ours, theirs = build_logs(tmp_path / "ours", 10), build_logs(tmp_path / "theirs", 10)
        plans = map_items(spark, ours, planned_bytes)
        assert [plan.value for plan in plans] == [planned_bytes(folder) for folder in ours]
        jobs = [job(plan.item, float(plan.value or 0)) for plan in plans]
        assert all(groups_of(each.outcome) for each in compact_stores(jobs, SparkExecutor(spark)))
        for folder in theirs:
            job(folder).compact(LocalExecutor(), Budget())
        assert [contents(folder) for folder in ours] == [contents(folder) for folder in theirs]

    def test_an_item_that_fails_is_an_answer(self, spark: SparkSession, tmp_path: Path) -> None:
        (folder,) = build_logs(tmp_path / "logs", 1)
        good, bad = map_items(spark, [folder, str(tmp_path / "absent")], planned_bytes, weights=[1, 2])
        assert (good.value, good.error) == (planned_bytes(folder), None)
        assert bad.value is None
        assert isinstance(bad.error, CompactlibError)
        assert map_items(spark, [], planned_bytes) == []
        with pytest.raises(InvalidInput, match="weights"):
            map_items(spark, [folder], planned_bytes, weights=[])

    def test_what_cannot_travel_is_the_answer_of_its_item_alone(self, spark: SparkSession) -> None:
        """An error with a lock in it, and a value that no process can read back."""
        class Unreadable:
            def __reduce__(self) -> tuple[type[int], tuple[str]]:
                return int, ("no number",)

        class Locked(CompactlibError):
            def __init__(self) -> None:
                super().__init__("mine")
                self.lock = threading.Lock()

        def answer(item: int) -> object:
            if item == 1:
                raise Locked
            return Unreadable() if item == 2 else item

        whole, locked, unreadable, last = map_items(spark, range(4), answer, parts=1)
        assert [(each.value, each.error) for each in (whole, last)] == [(0, None), (3, None)]
        assert isinstance(locked.error, TaskFailed)
        assert "Locked: mine" in str(locked.error)
        assert isinstance(unreadable.error, TaskFailed)
        assert "no number" in str(unreadable.error)

    def test_there_are_enough_parts_for_a_cluster_to_grow_by(self, spark: SparkSession) -> None:
        """Workers that are not there yet are not counted, but what waits for them is."""
        def part(item: int) -> int:
            context = TaskContext.get()
            assert context is not None
            return context.partitionId()

        parts = Counter(each.value for each in map_items(spark, range(1000), part))
        assert len(parts) == 16
        assert max(parts.values()) <= MOST_ITEMS_IN_A_PART
        assert len({each.value for each in map_items(spark, range(1000), part, parts=3)}) == 3

