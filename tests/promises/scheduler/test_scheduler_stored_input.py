# SPDX-License-Identifier: Apache-2.0
"""A command that the log could not decode later is refused before its write: the scheduler works on, and can be opened
again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from compactlib.commandlog import KVLog
from compactlib.errors import InvalidInput
from compactlib.kv import MemoryStore, SnapshotStore
from compactlib.raftlog import LocalLog
from compactlib.scheduler import (
    BlockMeta,
    CompactedBlocks,
    JobStatus,
    LevelConfig,
    NoOutput,
    PollRequest,
    Scheduler,
    SchedulerConfig,
    StatusUpdate,
)
from tests.harness.scheduler_audit import audit

PAIRS = SchedulerConfig(levels=(LevelConfig(max_blocks=2),))


@pytest.mark.parametrize("settings", [
    {"levels": ()}, {"max_jobs_per_poll": (1 << 20) + 1}, {"max_jobs_per_poll": 0}, {"lease_seconds": 0},
    {"lease_seconds": float("inf")}, {"backoff_seconds": -1}], ids=str)
def test_settings_out_of_their_range_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput, match=next(iter(settings))):
        SchedulerConfig(**settings)


def test_explanation_is_the_same_after_a_restart() -> None:
    kv = MemoryStore()
    scheduler = opened(kv, SchedulerConfig(levels=(LevelConfig(max_blocks=1),), lease_seconds=10))
    scheduler.add_blocks((BlockMeta(id="a", tenant="A", shard=1, level=0),))
    for _ in range(2):
        scheduler.poll(PollRequest(job_capacity=1))
    said = scheduler.poll(PollRequest(job_capacity=1)).why
    assert "lease_seconds=10" in said
    scheduler.snapshot()
    assert opened(kv).poll(PollRequest(job_capacity=1)).why == said


def opened(kv: MemoryStore, config: SchedulerConfig | None = None) -> Scheduler:
    return Scheduler(KVLog(kv), SnapshotStore(kv), config)


@pytest.mark.parametrize(("method", "given"), [
    ("retain", "soon"), ("retain", None), ("retain", True), ("retain", 10**400), ("requeue", [5]), ("configure", "x"),
    ("add_blocks", ["a"])], ids=repr)
def test_an_operation_that_cannot_be_stored_is_not_written(method: str, given: Any) -> None:
    kv = MemoryStore()
    scheduler = opened(kv)
    with pytest.raises(InvalidInput, match="nothing was changed"):
        getattr(scheduler, method)(given)
    scheduler.read(audit)
    assert scheduler.add_blocks((BlockMeta(id="a", tenant="A", shard=1, level=0),)).queued == ("a",)
    assert opened(kv).status()["blocks"] == 1


@pytest.mark.parametrize(("method", "given"), [
    ("retain", "soon"), ("retain", 10**400), ("requeue", [5]), ("configure", "x"), ("add_blocks", ["a"])])
def test_a_scheduler_works_on_after_an_invalid_argument(method: str, given: Any,
                                                        tmp_path: Path) -> None:
    with Scheduler(LocalLog(tmp_path / "log"), SnapshotStore(MemoryStore())) as scheduler:
        with pytest.raises(InvalidInput):
            getattr(scheduler, method)(given)
        assert scheduler.retain(0.0).blocks == 0


@pytest.mark.parametrize("changes", [
    {"name": 5, "status": JobStatus.IN_PROGRESS}, {"status": JobStatus.FAILED, "reason": ("why",)},
    {"no_output": "empty"}, {"no_output": "nothing"}, {"source_blocks": ["a", "b"]}], ids=repr)
def test_a_poll_is_recorded_as_it_is_carried_out_or_refused(changes: dict[str, Any]) -> None:
    kv = MemoryStore()
    scheduler = opened(kv, PAIRS)
    scheduler.add_blocks(BlockMeta(id=name, tenant="A", shard=1, level=0) for name in "abcd")
    scheduler.poll(PollRequest(job_capacity=1))
    given = scheduler.poll(PollRequest(job_capacity=1))
    results = {"source_blocks": ("a", "b"), "no_output": NoOutput.EMPTY}
    said = {"name": given.assignments[0].name, "status": JobStatus.SUCCESS, "reason": "",
            **{name: value for name, value in changes.items() if name not in results}}
    if said["status"] is JobStatus.SUCCESS:
        said["compacted_blocks"] = CompactedBlocks(tenant="A", shard=1, **{**results, **changes})
    with pytest.raises(InvalidInput, match="this is no request"):
        scheduler.poll(PollRequest((StatusUpdate(token=given.assignments[0].token, **said),), job_capacity=1))
    scheduler.read(audit)
    assert opened(kv).status()["jobs"] == 2


def test_room_for_jobs_is_a_whole_number() -> None:
    half: Any = 1.5
    with pytest.raises(InvalidInput, match=r"job_capacity is 1\.5"):
        opened(MemoryStore()).poll(PollRequest(job_capacity=half))


def test_a_setting_that_no_float_can_be_is_refused() -> None:
    with pytest.raises(InvalidInput, match="lease_seconds is 1000"):
        SchedulerConfig(lease_seconds=10**400)
