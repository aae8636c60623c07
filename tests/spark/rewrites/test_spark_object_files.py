# SPDX-License-Identifier: Apache-2.0
"""Files of tasks that travel through an object store: here with threads, and on Spark."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from compactlib.clock import ManualClock
from compactlib.errors import InvalidInput
from compactlib.executors import Executor, LocalExecutor, RewriteFailure
from compactlib.objects import LocalObjects
from compactlib.objects.errors import BadDigest
from compactlib.outcome import Done, Failed
from compactlib.runtime.budget import Budget
from compactlib.spark import SparkExecutor
from compactlib.spark.rewrites.object_files import ObjectsExecutor, TaskFiles
from tests.blobstore.compaction_stores import START, answers, garbage_store, plan_of
from tests.spark.rewrite_tasks import ReturningTask
from tests.spark.store_jobs import build_logs, contents, job


def through_objects(folder: Path, executor: Executor) -> ObjectsExecutor:
    return ObjectsExecutor(executor, partial(LocalObjects, str(folder)), scratch=None)


def keys(folder: Path) -> list[str]:
    with LocalObjects(folder) as store:
        return [info.key for info in store.list()]


def test_a_log_is_compacted_as_without(tmp_path: Path) -> None:
    (ours,), (theirs,) = build_logs(tmp_path / "ours", 1), build_logs(tmp_path / "theirs", 1)
    assert isinstance(job(ours).compact(through_objects(tmp_path / "objects", LocalExecutor()), Budget()), Done)
    job(theirs).compact(LocalExecutor(), Budget())
    assert contents(ours) == contents(theirs)
    assert keys(tmp_path / "objects") == []


def test_a_blob_store_is_compacted_as_without(tmp_path: Path) -> None:
    with garbage_store(tmp_path / "store", ManualClock(START), count=30, swap_segments=8) as store:
        before = answers(store, 30)
        executor = through_objects(tmp_path / "objects", LocalExecutor())
        assert isinstance(store.compact(plan_of(store), executor=executor, budget=Budget()), Done)
        assert answers(store, 30) == before
        assert store.verify().findings == ()
    assert keys(tmp_path / "objects") == []


def test_an_input_that_is_not_what_was_put_fails_its_task(tmp_path: Path) -> None:
    class Damaging:
        """Flips a byte of an input before the tasks run."""

        def run(self, tasks: object, **given: object) -> object:
            path = next((tmp_path / "objects").glob("rewrites/*/in/*/0"))
            data = bytearray(path.read_bytes())
            data[50] ^= 1
            path.write_bytes(bytes(data))
            return LocalExecutor().run(tasks, **given)  # type: ignore[arg-type]

    (folder,) = build_logs(tmp_path / "logs", 1)
    before = contents(folder)
    outcome = job(folder).compact(through_objects(tmp_path / "objects", Damaging()), Budget())  # type: ignore[arg-type]
    assert isinstance(outcome, Failed)
    assert isinstance(outcome.error, BadDigest)
    assert contents(folder) == before


def test_an_input_that_is_gone_fails_its_task(tmp_path: Path) -> None:
    kind = TaskFiles(ReturningTask, lambda task: [str(tmp_path / "absent")], lambda task: str(tmp_path),
                     lambda task, folder: task)
    executor = ObjectsExecutor(LocalExecutor(), partial(LocalObjects, str(tmp_path / "objects")), kinds=[kind])
    (outcome,) = executor.run([ReturningTask("task", None)])
    assert isinstance(outcome, RewriteFailure)
    assert "absent" in str(outcome.error)


def test_what_nobody_knows_is_refused_at_once(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="ReturningTask"):
        through_objects(tmp_path / "objects", LocalExecutor()).run([ReturningTask("task", None)])


def test_leftovers_are_swept_by_age(tmp_path: Path) -> None:
    executor = through_objects(tmp_path / "objects", LocalExecutor())
    with LocalObjects(tmp_path / "objects") as store:
        store.create("rewrites/run/out/late/0", b"an attempt that nobody waited for")
        store.create("other", b"not ours")
        (info,) = store.list("rewrites/")
    assert executor.sweep(now=info.modified_at + 5, older_than_seconds=10) == 0
    assert executor.sweep(now=info.modified_at + 11, older_than_seconds=10) == 1
    assert keys(tmp_path / "objects") == ["other"]


@pytest.mark.spark
def test_on_spark(spark: SparkSession, tmp_path: Path) -> None:
    (ours,), (theirs,) = build_logs(tmp_path / "ours", 1), build_logs(tmp_path / "theirs", 1)
    assert isinstance(job(ours).compact(through_objects(tmp_path / "objects", SparkExecutor(spark)), Budget()), Done)
    job(theirs).compact(LocalExecutor(), Budget())
    assert contents(ours) == contents(theirs)
    assert keys(tmp_path / "objects") == []
