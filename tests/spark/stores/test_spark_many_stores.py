# SPDX-License-Identifier: Apache-2.0
"""Compactions of many stores with one executor; all but the last class without Spark."""

from __future__ import annotations

import threading
from collections.abc import Generator, Iterable
from pathlib import Path
from typing import Any

import attrs
import pytest
from pyspark.sql import SparkSession

from compactlib.errors import BudgetSpent, CompactlibError, CorruptData, InvalidInput, TaskFailed
from compactlib.executors import Executor, LocalExecutor, RewriteFailure, RewriteTask
from compactlib.outcome import Done, Failed
from compactlib.rewrite import RewriteOutcome
from compactlib.runtime.budget import Budget
from compactlib.runtime.observe import Observer
from compactlib.spark import SparkExecutor
from compactlib.spark.executors.packing import weight_of
from compactlib.spark.executors.shared_executor import SharedExecutor
from compactlib.spark.stores.many_stores import StoreJob, StoreOutcome, compact_stores, map_items, outcome_table
from tests.spark.rewrite_tasks import FailingTask, ReturningTask
from tests.spark.store_jobs import build_logs, contents, groups_of, job, planned_bytes


@attrs.define
class Counting:
    """Counts the batches and tasks that it passes on."""

    executor: Executor
    batches: list[int] = attrs.field(factory=list)

    def run(self, tasks: Iterable[RewriteTask], *, budget: Budget | None = None,
            observer: Observer | None = None) -> Any:
        listed = list(tasks)
        self.batches.append(len(listed))
        return self.executor.run(listed, budget=budget, observer=observer)


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
        table = outcome_table(StoreOutcome(name, outcome) for name, outcome in found.items())
        assert "5 stores, 2 failed" in str(table)
        assert "a host&#x27;s own" in table._repr_html_()
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
        with pytest.raises(InvalidInput, match="same name"):
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


class TestSharedExecutor:
    @pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit()])
    def test_what_ends_a_process_is_an_answer_and_the_next_batch_is_run(self, error: BaseException) -> None:
        broken = [error]

        class Ending:
            def run(self, tasks: Iterable[RewriteTask], *, budget: Budget | None = None,
                    observer: Observer | None = None) -> Any:
                if broken:
                    raise broken.pop()
                return LocalExecutor().run(tasks, budget=budget, observer=observer)

        with SharedExecutor(Ending()) as shared:
            for _ in range(4):
                (outcome,) = shared.lane("a").run([FailingTask("t", "corrupt")])
                assert isinstance(outcome, RewriteFailure)
            shared.audit()
            assert isinstance(outcome, RewriteFailure)
            assert isinstance(outcome.error, CorruptData)

    def test_tasks_of_many_lanes_make_one_batch(self) -> None:
        """Both batches are held up, so that what comes meanwhile goes together, the heaviest first."""
        gate = threading.Event()
        seen: list[list[str]] = []

        class Held:
            def run(self, tasks: Iterable[RewriteTask], *, budget: Budget | None = None,
                    observer: Observer | None = None) -> Generator[RewriteOutcome, None, None]:
                listed = list(tasks)
                seen.append([task.name for task in listed])
                gate.wait()
                yield from (RewriteFailure(task.name, CompactlibError("held")) for task in listed)

        def weigh(task: RewriteTask) -> float:
            return float(task.name)

        with SharedExecutor(Held(), weigh=weigh) as shared:
            def ask(lane: str, *names: str) -> threading.Thread:
                tasks = [ReturningTask(name, None) for name in names]
                thread = threading.Thread(target=lambda: list(shared.lane(lane).run(tasks)))
                thread.start()
                return thread

            threads = [ask("first", "1")]
            while len(seen) < 1:
                threading.Event().wait(0.001)
            threads.append(ask("second", "1"))
            while len(seen) < 2:
                threading.Event().wait(0.001)
            threads += [ask("a", "3", "1"), ask("b", "2", "4")]
            while shared.waiting < 4:
                threading.Event().wait(0.001)
            shared.audit()
            gate.set()
            for thread in threads:
                thread.join()
        assert seen == [["first:1"], ["second:1"], ["b:4", "a:3", "b:2", "a:1"]]

    def test_a_lane_s_weight_is_divided_among_its_tasks(self) -> None:
        seen: list[RewriteTask] = []

        class Noting:
            def run(self, tasks: Iterable[RewriteTask], *, budget: Budget | None = None,
                    observer: Observer | None = None) -> Generator[RewriteOutcome, None, None]:
                for task in tasks:
                    seen.append(task)
                    yield RewriteFailure(task.name, CompactlibError("noted"))

        with SharedExecutor(Noting()) as shared:
            assert list(shared.lane("none", 5.0).run([])) == []
            list(shared.lane("heavy", 12.0).run([ReturningTask(str(number), None) for number in range(4)]))
        assert [(task.name, weight_of(task)) for task in seen] == [(f"heavy:{number}", 3.0) for number in range(4)]

    def test_each_lane_gets_its_own_under_its_own_name(self) -> None:
        with SharedExecutor(LocalExecutor()) as shared:
            (left,) = shared.lane("left").run([FailingTask("same", "corrupt")])
            (right,) = shared.lane("right").run([FailingTask("same", "leaf")])
        assert isinstance(left, RewriteFailure)
        assert isinstance(right, RewriteFailure)
        assert (left.task, right.task) == ("same", "same")
        assert type(left.error) is not type(right.error)

    def test_an_executor_that_raises_fails_the_tasks(self) -> None:
        class Broken:
            def run(self, tasks: Iterable[RewriteTask], *, budget: Budget | None = None,
                    observer: Observer | None = None) -> Generator[RewriteOutcome, None, None]:
                raise RuntimeError("the cluster is gone")

        with SharedExecutor(Broken()) as shared:
            (outcome,) = shared.lane("a").run([ReturningTask("task", None)])
        assert isinstance(outcome, RewriteFailure)
        assert "the cluster is gone" in str(outcome.error)

    def test_an_executor_that_leaves_tasks_out_fails_them(self) -> None:
        class Forgetful:
            def run(self, tasks: Iterable[RewriteTask], *, budget: Budget | None = None,
                    observer: Observer | None = None) -> Generator[RewriteOutcome, None, None]:
                yield from ()

        with SharedExecutor(Forgetful()) as shared:
            (outcome,) = shared.lane("a").run([ReturningTask("task", None)])
        assert isinstance(outcome, RewriteFailure)
        assert "without an outcome" in str(outcome.error)

    def test_closed(self) -> None:
        shared = SharedExecutor(LocalExecutor())
        shared.close()
        (outcome,) = shared.lane("a").run([ReturningTask("task", None)])
        assert isinstance(outcome, RewriteFailure)
        assert isinstance(outcome.error, BudgetSpent)

    def test_what_a_lane_s_task_writes_is_charged_to_its_budget(self, tmp_path: Path) -> None:
        (folder,) = build_logs(tmp_path / "logs", 1)
        budget = Budget()
        with SharedExecutor(LocalExecutor()) as shared:
            outcome = job(folder).compact(shared.lane("log"), budget)
        assert isinstance(outcome, Done)
        assert budget.spent_bytes == outcome.stats.bytes_written > 0


@pytest.mark.spark
class TestOnSpark:
    def test_planned_in_one_job_and_compacted_together(self, spark: SparkSession, tmp_path: Path) -> None:
        """Plans on the workers, largest first; few batches for all; the bytes are those of the local executor."""
        ours, theirs = build_logs(tmp_path / "ours", 10), build_logs(tmp_path / "theirs", 10)
        plans = map_items(spark, ours, planned_bytes)
        assert [plan.value for plan in plans] == [planned_bytes(folder) for folder in ours]
        counting = Counting(SparkExecutor(spark))
        jobs = [job(plan.item, float(plan.value or 0)) for plan in plans]
        assert all(groups_of(each.outcome) for each in compact_stores(jobs, counting))
        assert len(counting.batches) < 10
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

