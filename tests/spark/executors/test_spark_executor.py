# SPDX-License-Identifier: Apache-2.0
"""SparkExecutor on a classic session."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import attrs
import pytest
from pyspark.sql import SparkSession

from compactlib.budget import Budget
from compactlib.errors import BudgetSpent, CompactlibError, CorruptData, TaskFailed
from compactlib.executors import LocalExecutor, RewriteFailure, RewriteResult, RewriteTask
from compactlib.rewrite import RewriteOutcome
from compactlib.spark import NotVisible, SparkExecutor
from compactlib.testing import ExecutorConformance
from tests.harness.recording import Progress, RecordingObserver
from tests.spark.rewrite_tasks import (
    PARTITION,
    AlwaysKilledTask,
    CopyTask,
    FailingTask,
    KilledOnceTask,
    LeafError,
    NamingTask,
    ReturningTask,
    WaitingTask,
    described,
)

pytestmark = pytest.mark.spark


class Job:
    """A folder with sources and a private folder for outputs."""

    def __init__(self, folder: Path) -> None:
        self.sources = folder / "sources"
        self.private = folder / "private"
        self.sources.mkdir()
        self.private.mkdir()

    def copy_task(self, number: int, size: int = 2500) -> CopyTask:
        name = f"copy-{number}"
        return CopyTask(name, self._source(name, number, size), str(self.private))

    def killed_once_task(self, number: int) -> KilledOnceTask:
        name = f"killed-{number}"
        return KilledOnceTask(name, self._source(name, number, 2500), str(self.private), str(self.sources / "marker"))

    def _source(self, name: str, number: int, size: int) -> str:
        source = self.sources / name
        source.write_bytes(bytes([number % 256]) * size)
        return str(source)


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return Job(tmp_path)


def first_job(job: Job) -> list[RewriteTask]:
    """As many tasks as one job has on the two cores of these tests."""
    return [job.copy_task(number) for number in range(8)]


def by_name(outcomes: Sequence[RewriteOutcome]) -> dict[str, RewriteOutcome]:
    named = {outcome.task: outcome for outcome in outcomes}
    assert len(named) == len(outcomes), "an outcome came twice"
    return named


def results(outcomes: Sequence[RewriteOutcome]) -> dict[str, RewriteResult]:
    found = {}
    for name, outcome in by_name(outcomes).items():
        assert isinstance(outcome, RewriteResult), outcome
        found[name] = outcome
    return found


def failure(outcome: RewriteOutcome) -> CompactlibError:
    assert isinstance(outcome, RewriteFailure), outcome
    return outcome.error


class TestConformance(ExecutorConformance):
    isolates_tasks = True

    @pytest.fixture(autouse=True)
    def _on(self, spark: SparkSession) -> None:
        self.session = spark

    def make_executor(self) -> SparkExecutor:
        return SparkExecutor(self.session)


class TestResults:
    def test_files_are_those_of_the_local_executor(self, spark: SparkSession, job: Job) -> None:
        tasks = [job.copy_task(number) for number in range(3)]
        ours = results(list(SparkExecutor(spark).run(tasks)))
        theirs = results(list(LocalExecutor().run(tasks)))
        assert ours.keys() == theirs.keys()
        for name, result in ours.items():
            local = theirs[name]
            (our_file,), (their_file,) = result.files, local.files
            assert Path(our_file.path).read_bytes() == Path(their_file.path).read_bytes()
            assert our_file.path.endswith(result.attempt)
            assert attrs.evolve(our_file, path=their_file.path) == their_file
            assert attrs.evolve(result, attempt=local.attempt, files=local.files) == local

    def test_tasks_may_share_a_partition(self, spark: SparkSession) -> None:
        executor = SparkExecutor(spark, tasks_per_partition=4)
        outcomes = results(list(executor.run([ReturningTask(f"t{n}", PARTITION) for n in range(10)])))
        partitions = [outcome.files[0].path for outcome in outcomes.values()]
        assert len(outcomes) == 10
        assert set(partitions) == {f"partition://{number}" for number in range(3)}
        assert max(map(partitions.count, partitions)) <= 4
        assert len({outcome.attempt for outcome in outcomes.values()}) == 10

    def test_a_class_of_a_notebook(self, spark: SparkSession) -> None:
        @attrs.frozen
        class NotebookTask:
            name: str

            def run(self, attempt: Any) -> RewriteResult:
                return described(self, attempt, "notebook://")

        (result,) = results(list(SparkExecutor(spark).run([NotebookTask("from a cell")]))).values()
        assert result.files[0].path == "notebook://"

    def test_a_name_that_utf8_cannot_hold(self, spark: SparkSession) -> None:
        name = "caf\udce9 \N{SNOWMAN}"
        assert list(results(list(SparkExecutor(spark).run([ReturningTask(name, PARTITION)])))) == [name]

    def test_workers_import_the_shipped_library(self, spark: SparkSession, job: Job, shipped_archive: str) -> None:
        observer = RecordingObserver()
        results(list(SparkExecutor(spark).run([job.copy_task(1)], observer=observer)))
        ((_, told),) = observer.events
        assert f"/{shipped_archive}/compactlib/" in told["library"]


class TestJobs:
    def test_outcomes_arrive_while_other_jobs_run(self, spark: SparkSession, job: Job) -> None:
        """The last task waits for a file that the caller makes when it has the outcomes of the first job."""
        go = job.sources / "go"
        outcomes = SparkExecutor(spark).run([*first_job(job), WaitingTask("late", str(go))])
        assert {next(outcomes).task for _ in range(8)} == {task.name for task in first_job(job)}
        go.touch()
        assert [outcome.task for outcome in outcomes] == ["late"]

    def test_leaving_ends_the_jobs(self, spark: SparkSession, job: Job) -> None:
        outcomes = SparkExecutor(spark).run([*first_job(job), WaitingTask("late", str(job.sources / "never"))])
        next(outcomes)
        outcomes.close()
        # The cores are free: this would wait for one for good.
        assert len(results(list(SparkExecutor(spark).run([job.copy_task(12), job.copy_task(13)])))) == 2
        # Spark notifies its own listeners a little later; a job that was not cancelled would run on.
        while spark.sparkContext.statusTracker().getActiveJobsIds():
            time.sleep(0.01)

    def test_a_run_is_small_jobs(self, spark: SparkSession) -> None:
        tracker = spark.sparkContext.statusTracker()
        before = set(tracker.getJobIdsForGroup())
        results(list(SparkExecutor(spark).run([ReturningTask(f"t{n}", PARTITION) for n in range(20)])))
        jobs = [tracker.getJobInfo(number) for number in set(tracker.getJobIdsForGroup()) - before]
        stages = [tracker.getStageInfo(stage) for each in jobs if each is not None for stage in each.stageIds]
        assert sorted(stage.numTasks for stage in stages if stage is not None) == [4, 8, 8]


class TestFailures:
    def test_each_task_has_its_own(self, spark: SparkSession, job: Job) -> None:
        tasks: list[RewriteTask] = [
            FailingTask("corrupt", "corrupt"), FailingTask("leaf", "leaf"), FailingTask("foreign", "foreign"),
            FailingTask("unpicklable", "unpicklable"), ReturningTask("nothing", None),
            ReturningTask("a lock", threading.Lock()), job.copy_task(1),
        ]
        named = by_name(list(SparkExecutor(spark).run(tasks)))
        assert named.keys() == {task.name for task in tasks}

        corrupt = failure(named["corrupt"])
        assert isinstance(corrupt, CorruptData)
        assert (corrupt.path, corrupt.offset, corrupt.expected, corrupt.found, corrupt.index) == (
            "/a/b", 7, "crc 1", "crc 2", 9)
        leaf = failure(named["leaf"])
        assert isinstance(leaf, LeafError)
        assert leaf.place == 3
        foreign = failure(named["foreign"])
        assert isinstance(foreign, TaskFailed)
        assert (foreign.task, foreign.kind) == ("foreign", "ZeroDivisionError")
        assert "in run" in foreign.detail
        assert "CompactlibError: holds a lock" in str(failure(named["unpicklable"]))
        assert "'nothing' returned None" in str(failure(named["nothing"]))
        unsent = failure(named["a lock"])
        assert isinstance(unsent, TaskFailed)
        assert "cannot pickle" in str(unsent)
        assert isinstance(named["copy-1"], RewriteResult)

    def test_a_class_that_the_workers_do_not_have(self, spark: SparkSession, job: Job) -> None:
        tasks: list[RewriteTask] = [UnshippedTask("unshipped"), job.copy_task(1)]
        named = by_name(list(SparkExecutor(spark).run(tasks)))
        error = failure(named["unshipped"])
        assert isinstance(error, TaskFailed)
        assert error.kind == "ModuleNotFoundError"
        assert "addArtifacts" in str(error)
        assert isinstance(named["copy-1"], RewriteResult)

    def test_sources_that_driver_and_worker_do_not_see_alike(self, spark: SparkSession, tmp_path: Path) -> None:
        here = tmp_path / "here"
        here.write_bytes(b"1234")
        tasks = [NamingTask("right", str(here), 4, (str(here),)),
                 NamingTask("others", str(here), 4, (str(here), "/proc/self/stat"))]  # begins with the process's id
        named = by_name(list(SparkExecutor(spark).run(tasks)))
        assert isinstance(failure(named["others"]), NotVisible)
        assert "/proc/self/stat is not the same file on" in str(failure(named["others"]))
        assert "same path" in str(failure(named["others"]))
        assert isinstance(named["right"], RewriteResult)


@attrs.frozen
class UnshippedTask:
    """Lives in this module, which the workers do not have."""

    name: str

    def run(self, attempt: Any) -> RewriteResult:
        raise AssertionError("it cannot even be loaded")


class TestKilledWorkers:
    def test_outcomes_before_a_workers_death_are_reported_once(self, spark: SparkSession, job: Job) -> None:
        """The news of a partition that died has not come, those of the others have; each task counts once."""
        tasks = [job.copy_task(1), job.killed_once_task(2), *(job.copy_task(number) for number in range(3, 9))]
        budget = Budget()
        outcomes = results(list(SparkExecutor(spark, tasks_per_partition=2).run(tasks, budget=budget)))
        assert outcomes.keys() == {task.name for task in tasks}
        assert budget.spent_bytes == 8 * 2500

    def test_a_task_that_kills_its_worker_in_every_attempt_fails_alone(self, spark: SparkSession, job: Job) -> None:
        observer = RecordingObserver()
        tasks: list[RewriteTask] = [AlwaysKilledTask("deadly"), *(job.copy_task(number) for number in range(1, 20))]
        named = by_name(list(SparkExecutor(spark).run(tasks, observer=observer)))
        error = failure(named.pop("deadly"))
        assert len(results(list(named.values()))) == 19
        assert isinstance(error, TaskFailed)
        assert error.task == "deadly"
        assert "Job aborted due to stage failure" in str(error)
        assert "failed 4 times" in str(error)
        assert "it killed its worker in every attempt" in str(error)
        assert len(str(error)) < 700
        assert observer.progresses[-1] == Progress("rewrite", 20, 20, "groups")


class TestBudget:
    def test_a_total_is_never_exceeded(self, spark: SparkSession, job: Job) -> None:
        budget = Budget(total_bytes=8000)
        tasks = [job.copy_task(number) for number in range(5)]
        outcomes = by_name(list(SparkExecutor(spark).run(tasks, budget=budget)))
        done = [outcome for outcome in outcomes.values() if isinstance(outcome, RewriteResult)]
        refused = [failure(outcome) for outcome in outcomes.values() if isinstance(outcome, RewriteFailure)]
        # One at a time, of 2500 bytes in pieces of 1000: 500 are left for the others.
        assert sorted(result.task for result in done) == ["copy-0", "copy-1", "copy-2"]
        assert all(isinstance(error, BudgetSpent) and error.reason == "bytes" for error in refused)
        assert len(refused) == 2
        assert budget.spent_bytes == 7500

    def test_a_deadline_that_has_passed(self, spark: SparkSession, job: Job) -> None:
        outcomes = list(SparkExecutor(spark).run([job.copy_task(1), job.copy_task(2)], budget=Budget(deadline=1.0)))
        errors = [failure(outcome) for outcome in by_name(outcomes).values()]
        assert [error.reason for error in errors if isinstance(error, BudgetSpent)] == ["deadline", "deadline"]
        assert errors[0] is not errors[1]
        assert list(job.private.iterdir()) == []

    def test_cancel_ends_the_jobs(self, spark: SparkSession, job: Job) -> None:
        """What had come by then stays; the other task would wait for good."""
        budget = Budget()
        outcomes = SparkExecutor(spark).run([*first_job(job), WaitingTask("late", str(job.sources / "never"))],
                                            budget=budget)
        first = [next(outcomes) for _ in range(8)]
        budget.cancel()
        (late,) = outcomes
        assert len(results(first)) == 8
        error = failure(late)
        assert isinstance(error, BudgetSpent)
        assert (late.task, error.reason) == ("late", "cancelled")

    def test_no_job_begins_while_paused(self, spark: SparkSession, job: Job) -> None:
        budget = Budget()
        tasks = [job.copy_task(number) for number in range(17)]  # jobs of 8, 8 and 1
        outcomes = SparkExecutor(spark).run(tasks, budget=budget)
        came = [next(outcomes)]
        budget.pause()
        came += [next(outcomes) for _ in range(15)]
        assert not [path for path in job.private.iterdir() if path.name.startswith("copy-16")]
        thread = threading.Thread(target=lambda: came.extend(outcomes))
        thread.start()
        budget.resume()
        thread.join()
        assert results(came).keys() == {task.name for task in tasks}
