# SPDX-License-Identifier: Apache-2.0
"""A merge of blocks whose driver dies or whose store refuses: known blocks stay, and a sweep removes the rest."""

from __future__ import annotations

import enum
import functools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import pyarrow as pa
import pytest
from pyarrow import parquet
from pyspark.sql import SparkSession

from compactlib.budget import Budget
from compactlib.clock import ManualClock
from compactlib.errors import CorruptData
from compactlib.fences import FencedOff, MemoryFence
from compactlib.objects import LocalObjects, ObjectStore
from compactlib.objects.errors import ObjectStoreFailed
from compactlib.scheduler import BlockMeta, JobPlan, RunningJob
from compactlib.spark import BlockFolder, MergeBlocks
from compactlib.testing import Killed, ObjectsInFront, Request

pytestmark = pytest.mark.spark

SOURCES = ("b0", "b1")
LATER = 1e12


class Fault(enum.Enum):
    """How a request fails."""

    REFUSED = "refused"
    UNKNOWN_DONE = "done, without an answer"
    CRASH_BEFORE = "crash before"
    CRASH_AFTER = "crash after"


@attrs.frozen
class FaultyHere:
    """Opens the store with faults in this process, and without them where it was sent to.

    Attributes:
        root: where the objects lie.
        name: the requests that fail.
        fault: how they fail.
        passed: the number of operations carried out before.
    """

    root: str
    name: str
    fault: Fault
    passed: int = 0

    def __call__(self) -> ObjectStore:
        left, crashed = iter([None] * self.passed), list[bool]()

        def step(request: Request, act: Callable[[], Any]) -> Any:
            fault = next(left, self.fault) if request.kind == self.name else None
            if crashed or fault is None:
                if crashed:
                    raise Killed("a request after the crash")
                return act()
            if fault in (Fault.UNKNOWN_DONE, Fault.CRASH_AFTER):
                act()
            if fault in (Fault.CRASH_BEFORE, Fault.CRASH_AFTER):
                crashed.append(True)
                raise Killed(str(request))
            raise ObjectStoreFailed(operation=request.kind, key=request.path, detail=fault.value)

        return ObjectsInFront(LocalObjects(self.root), step)

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return functools.partial, (LocalObjects, self.root)


def written(root: Path) -> BlockFolder:
    """A folder with the sources in it."""
    folder = BlockFolder(functools.partial(LocalObjects, str(root)))
    for number, name in enumerate(SOURCES):
        put(root, folder.key_of("acme", 3, name), [number, number + 10, number + 20])
    return folder


def put(root: Path, key: str, values: list[int]) -> None:
    (root / key).parent.mkdir(parents=True, exist_ok=True)
    parquet.write_table(pa.table({"at": values}), root / key)


def names(root: Path) -> set[str]:
    return {path.name.removeprefix("block-").removesuffix(".parquet") for path in root.rglob("block-*.parquet")}


def running(token: int) -> RunningJob:
    plan = JobPlan(name="the-job", tenant="acme", shard=3, compaction_level=0, source_blocks=SOURCES)
    clock = ManualClock(0.0)
    return RunningJob(plan, token, 100.0, budget=Budget(clock=clock), clock=clock)


def merging(spark: SparkSession, folder: BlockFolder, fence: MemoryFence) -> MergeBlocks:
    return MergeBlocks(spark, folder, fence, sort_by=("at",), target_bytes=300)


def sources() -> list[BlockMeta]:
    return [BlockMeta(id=name, tenant="acme", shard=3, level=0) for name in SOURCES]


class Overtaken(MemoryFence):
    """Another worker has the job at the first one's commit."""

    def commit(self, resource: str, token: int, value: bytes) -> Any:
        self.admit(resource, 9)
        return super().commit(resource, token, value)


class Dying(MemoryFence):
    """The driver dies at its first commit, before or after it."""

    def __init__(self, *, commits: bool) -> None:
        super().__init__()
        self._commits = [commits]

    def commit(self, resource: str, token: int, value: bytes) -> Any:
        if not self._commits:
            return super().commit(resource, token, value)
        if self._commits.pop():
            super().commit(resource, token, value)
        raise Killed("the driver")


def test_blocks_of_a_late_worker_are_swept(spark: SparkSession, tmp_path: Path) -> None:
    folder, fence = written(tmp_path), Overtaken()
    with pytest.raises(FencedOff):
        merging(spark, folder, fence)(running(7))
    assert set(SOURCES) < names(tmp_path)
    done = merging(spark, folder, fence)(running(9))
    made = {block.id for block in done.new_blocks}
    assert sum(block.rows or 0 for block in done.new_blocks) == 6
    folder.sweep([*sources(), *done.new_blocks], now=LATER, older_than_seconds=1.0)
    assert names(tmp_path) == {*SOURCES, *made}


@pytest.mark.parametrize("commits", [False, True])
def test_a_driver_that_died_at_its_commit_makes_the_same_blocks_again(spark: SparkSession, tmp_path: Path,
                                                                      commits: bool) -> None:
    folder, fence = written(tmp_path), Dying(commits=commits)
    with pytest.raises(Killed):
        merging(spark, folder, fence)(running(7))
    left = {path: path.read_bytes() for path in tmp_path.rglob("block-*.parquet")}
    assert len(left) > len(SOURCES)
    done = merging(spark, folder, fence)(running(7))
    assert {path: path.read_bytes() for path in tmp_path.rglob("block-*.parquet")} == left
    committed = fence.committed("the-job")
    assert committed is not None
    assert json.loads(committed.value) == [block.id for block in done.new_blocks]
    assert names(tmp_path) == {*SOURCES, *json.loads(committed.value)}


@attrs.frozen
class OthersOnWorkers:
    """Opens one store in this process, and another one where it was sent to."""

    here: str
    there: str

    def __call__(self) -> ObjectStore:
        return LocalObjects(self.here)

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return functools.partial, (LocalObjects, self.there)


def test_rows_that_are_lost_on_the_way_are_damage(spark: SparkSession, tmp_path: Path) -> None:
    """Workers find blocks of the same length with a row less, as if these had changed since they were counted."""
    folder, there = written(tmp_path / "here"), tmp_path / "there"
    for name in SOURCES:
        key, table, padding = folder.key_of("acme", 3, name), pa.table({"at": [1, 2]}), 0
        (there / key).parent.mkdir(parents=True, exist_ok=True)
        while not (there / key).exists() or (there / key).stat().st_size != (tmp_path / "here" / key).stat().st_size:
            with parquet.ParquetWriter(there / key, table.schema, store_schema=False) as writer:
                writer.write_table(table)
                writer.add_key_value_metadata({"padding": "x" * padding})
            padding += 1
            assert padding < 2000
    others = BlockFolder(OthersOnWorkers(str(tmp_path / "here"), str(there)))
    with pytest.raises(CorruptData, match=r"expected 6 rows of 2 blocks, found 4 rows"):
        merging(spark, others, MemoryFence())(running(7))


def test_another_object_under_the_key_of_a_block_is_never_replaced(spark: SparkSession, tmp_path: Path) -> None:
    folder = written(tmp_path)
    block, *_ = merging(spark, folder, MemoryFence())(running(7)).new_blocks
    path = tmp_path / folder.key_of("acme", 3, block.id)
    path.unlink()
    path.write_bytes(b"another")
    with pytest.raises(CorruptData, match="as written"):
        merging(spark, folder, MemoryFence())(running(7))
    assert path.read_bytes() == b"another"


@pytest.mark.parametrize(("name", "passed"), [("list", 0), ("delete", 0), ("delete", 2)])
@pytest.mark.parametrize("fault", [Fault.REFUSED, Fault.UNKNOWN_DONE, Fault.CRASH_BEFORE, Fault.CRASH_AFTER])
def test_a_sweep_that_fails_is_called_again(tmp_path: Path, name: str, passed: int, fault: Fault) -> None:
    folder = written(tmp_path)
    for number in range(4):
        put(tmp_path, folder.key_of("acme", 3, f"unknown{number}"), [number])
    failing = BlockFolder(FaultyHere(str(tmp_path), name, fault, passed))
    with pytest.raises(Killed if "crash" in fault.value else ObjectStoreFailed):
        failing.sweep(sources(), now=LATER, older_than_seconds=1.0)
    is_done = fault in (Fault.UNKNOWN_DONE, Fault.CRASH_AFTER)
    removed = passed + is_done if name == "delete" else 0
    assert len(names(tmp_path)) == len(SOURCES) + 4 - removed
    assert folder.sweep(sources(), now=LATER, older_than_seconds=1.0) == 4 - removed
    assert names(tmp_path) == set(SOURCES)
