# SPDX-License-Identifier: Apache-2.0
"""What is of another type than it should be, or at the end of its range, is refused by name and changes nothing."""

from __future__ import annotations

from typing import Any

import pytest

from compactlib.errors import CompactlibError, InvalidInput
from compactlib.scheduler import (
    AddBlocks,
    BlockMeta,
    Command,
    CompactedBlocks,
    JobStatus,
    LevelConfig,
    PollRequest,
    Requeue,
    Retain,
    SchedulerConfig,
    StatusUpdate,
    Tick,
)
from compactlib.scheduler.model.poll import Verdict
from compactlib.scheduler.model.values import BlockEntry
from compactlib.scheduler.persistence.codec import encode_command, encode_message
from compactlib.scheduler.persistence.state_rows import dump_rows
from tests.scheduler.build import Host, P, S, output, say

PAIRS = SchedulerConfig(levels=(LevelConfig(max_blocks=2),))
FINE: dict[str, Any] = {"id": "a", "tenant": "A", "shard": 1, "level": 0}
STRANGE: list[Any] = [None, "x", b"x", 1.5j, [], {}, object()]


@pytest.fixture
def host() -> Host:
    host = Host(PAIRS)
    host.add("a", "b")
    return host


@pytest.mark.parametrize("strange", STRANGE, ids=lambda strange: type(strange).__name__)
@pytest.mark.parametrize("field", ["status_updates", "job_capacity", "deleted_tombstones"])
def test_a_request_of_strange_things_changes_nothing(host: Host, field: str, strange: Any) -> None:
    if strange in ([], {}) or (field == "deleted_tombstones" and strange in ("x", b"x")):
        strange = object()  # these are sequences that name nothing
    before = list(dump_rows(host.service.state))
    with pytest.raises(CompactlibError):
        host.service.poll(host.command(), PollRequest(**{field: strange}))
    assert list(dump_rows(host.service.state)) == before


@pytest.mark.parametrize("strange", [None, b"x", 1.5j, [], object()], ids=lambda strange: type(strange).__name__)
@pytest.mark.parametrize("field", ["name", "token", "status", "compacted_blocks", "reason"])
def test_an_update_of_strange_things_is_refused_or_answered(host: Host, field: str, strange: Any) -> None:
    response = host.assigned()
    fields: dict[str, Any] = {"name": response.compaction_jobs[0].name, "token": response.assignments[0].token,
                              "status": JobStatus.FAILED if field == "reason" else S,
                              "compacted_blocks": output(response.compaction_jobs[0], "x")}
    try:
        answer = host.service.poll(host.command(), PollRequest((StatusUpdate(**{**fields, field: strange}),)))
    except CompactlibError as refused:
        assert isinstance(refused, InvalidInput)
    else:
        assert answer.answers[0].verdict in (Verdict.NOT_FOUND, Verdict.BAD_RESULT, Verdict.ACCEPTED)
    host.audit()
    host.poll(1, say(response, P))
    encode_command(Command(99, 1, 0.0), host.service.prepare(host.command(), PollRequest(job_capacity=1)))


@pytest.mark.parametrize("results", ["x", {"tenant": "A"}, CompactedBlocks(
    tenant="A", shard=1, source_blocks=("a", "b"), new_blocks=("x",))], ids=lambda strange: type(strange).__name__)  # type: ignore[arg-type]
def test_results_that_are_none_are_refused_by_name(host: Host, results: Any) -> None:
    response = host.assigned()
    with pytest.raises(InvalidInput, match="this is no request: "):
        host.service.poll(host.command(), PollRequest((say(response, S, results=results),)))
    host.audit()
    assert len(host.service.state.jobs) == 1


@pytest.mark.parametrize("operation", [
    None, 5, "tick", AddBlocks, AddBlocks(None), AddBlocks((None,)), AddBlocks((PAIRS,)), AddBlocks([1]),  # type: ignore[arg-type]
    Retain("x"), Retain(None), Retain(float("nan")), Retain(float("inf")), Requeue(None), Requeue((5,)),  # type: ignore[arg-type]
    Requeue("ab"), PollRequest()], ids=lambda strange: type(strange).__name__)  # type: ignore[arg-type]
def test_an_operation_that_is_none_changes_nothing(host: Host, operation: Any) -> None:
    before = list(dump_rows(host.service.state))
    with pytest.raises(InvalidInput):
        host.service.apply(host.command(), operation)
    assert list(dump_rows(host.service.state)) == before
    host.apply(Tick())


@pytest.mark.parametrize("command", [
    Command(-1, 1, 0.0), Command(1 << 64, 1, 0.0), Command(5, -1, 0.0), Command(5, 1 << 64, 0.0),
    Command(5, 1, float("nan")), Command(5, 1, float("inf")), Command("x", 1, 0.0), Command(5, None, 0.0),  # type: ignore[arg-type]
    Command(5, 1, "now"), None, 5], ids=lambda strange: type(strange).__name__)  # type: ignore[arg-type]
def test_a_command_that_no_log_has_is_refused(host: Host, command: Any) -> None:
    for call in (lambda: host.service.apply(command, Tick()), lambda: host.service.poll(command, PollRequest())):
        with pytest.raises(InvalidInput, match="no entry of a log"):
            call()


def test_the_last_index_and_term_of_a_log_are_as_good_as_any(host: Host) -> None:
    last = (1 << 64) - 1
    host.service.poll(Command(last - 1, last, -1e12), PollRequest(job_capacity=1))
    response = host.service.poll(Command(last, last, 1e12), PollRequest(job_capacity=1))
    assert response.assignments[0].token == last
    assert encode_message(response)
    host.service.audit()


@pytest.mark.parametrize("strange", STRANGE, ids=lambda strange: type(strange).__name__)
@pytest.mark.parametrize("field", ["id", "tenant", "shard", "level", "min_time", "max_time", "size_bytes"])
def test_a_block_of_strange_things_is_none(field: str, strange: Any) -> None:
    if (field, strange) in (("id", "x"), ("tenant", "x"), ("min_time", None), ("max_time", None)):
        return
    with pytest.raises(InvalidInput):
        BlockMeta(**{**FINE, field: strange})
    if field not in ("min_time", "max_time"):
        with pytest.raises(InvalidInput):
            BlockEntry(index=1, appended_at=0.0, **{**FINE, field: strange})
