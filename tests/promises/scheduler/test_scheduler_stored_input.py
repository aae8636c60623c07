# SPDX-License-Identifier: Apache-2.0
"""What a log could not give back is refused before it is written there: a scheduler that was asked for it goes on, and
can be opened again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import attrs
import pytest

from compactlib.errors import InvalidInput
from compactlib.hosting import LocalLog, SchedulerHost
from compactlib.kv import MemoryStore
from compactlib.scheduler import (
    AddBlocks,
    BlockMeta,
    CompactedBlocks,
    Configure,
    JobStatus,
    LevelConfig,
    NoOutput,
    PollRequest,
    Requeue,
    Retain,
    SchedulerConfig,
    StatusUpdate,
    StoredScheduler,
)
from compactlib.scheduler.errors import BadConfig

PAIRS = SchedulerConfig(levels=(LevelConfig(max_blocks=2),))


@pytest.mark.parametrize("operation", [
    "tick", AddBlocks(("a",)), Retain("soon"), Retain(None), Retain(True), Retain(10**400), Requeue((5,)),  # type: ignore[arg-type]
    Configure("x")], ids=repr)  # type: ignore[arg-type]
def test_an_operation_that_is_none_is_not_written_down(operation: Any) -> None:
    kv = MemoryStore()
    scheduler = StoredScheduler(kv)
    with pytest.raises(InvalidInput, match="nothing was changed"):
        scheduler.apply(operation)
    scheduler.audit()
    assert scheduler.add_blocks((BlockMeta(id="a", tenant="A", shard=1, level=0),)).queued == ("a",)
    assert len(StoredScheduler(kv).service.state.blocks) == 1


@pytest.mark.parametrize(("method", "given"), [
    ("retain", "soon"), ("retain", 10**400), ("requeue", [5]), ("configure", "x"), ("add_blocks", ["a"])])
def test_a_host_that_is_given_something_else_goes_on(method: str, given: Any, tmp_path: Path) -> None:
    with SchedulerHost(LocalLog(tmp_path / "log"), MemoryStore()) as host:
        with pytest.raises(InvalidInput):
            getattr(host, method)(given)
        assert host.tick().flushed == 0


@pytest.mark.parametrize("changes", [
    {"name": 5, "status": JobStatus.IN_PROGRESS}, {"status": JobStatus.FAILED, "reason": ("why",)},
    {"no_output": "empty"}, {"no_output": "nothing"}, {"source_blocks": ["a", "b"]}], ids=repr)
def test_a_poll_is_recorded_as_it_is_carried_out_or_refused(changes: dict[str, Any]) -> None:
    kv = MemoryStore()
    scheduler = StoredScheduler(kv, PAIRS)
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
    scheduler.audit()
    assert len(StoredScheduler(kv).service.state.jobs) == 2


def test_room_for_jobs_is_a_whole_number() -> None:
    half: Any = 1.5
    with pytest.raises(InvalidInput, match=r"job_capacity is 1\.5"):
        StoredScheduler(MemoryStore()).poll(PollRequest(job_capacity=half))


@pytest.mark.parametrize("field", ["standalone_cleanup", "refuse_future_tokens", "evict_at_limit", "check_results",
                                   "strict_states"])
@pytest.mark.parametrize("given", [2, "yes", None])
def test_a_setting_that_is_on_or_off_is_nothing_else(field: str, given: Any) -> None:
    with pytest.raises(BadConfig, match=f"{field} is {given!r}; give True or False"):
        attrs.evolve(SchedulerConfig(), **{field: given})
    numbers: dict[str, Any] = {field: 1}
    truths: dict[str, Any] = {field: True}
    as_one, as_true = (attrs.evolve(SchedulerConfig(), **settings) for settings in (numbers, truths))
    assert StoredScheduler(MemoryStore(), as_one).service.config == as_true


def test_a_setting_that_no_float_can_be_is_refused() -> None:
    with pytest.raises(BadConfig, match="int too large"):
        SchedulerConfig(lease_seconds=10**400)
