# SPDX-License-Identifier: Apache-2.0
"""Bad input of every kind: each has an outcome with a name, and changes nothing that it should not."""

from __future__ import annotations

from typing import Any

import attrs
import pytest

from compactlib.errors import InvalidInput, Unsupported
from compactlib.scheduler import (
    AddBlocks,
    BlockMeta,
    Command,
    CompactedBlocks,
    JobStatus,
    LevelConfig,
    PollRequest,
    PollResponse,
    Requeue,
    SchedulerConfig,
    StatusUpdate,
)
from compactlib.scheduler.errors import BadConfig, CommandOutOfOrder
from compactlib.scheduler.model.poll import Verdict
from compactlib.scheduler.model.update import BlocksAdded, Requeued
from compactlib.scheduler.persistence.codec import (
    MAGIC,
    VERSION,
    RecordKind,
    decode_command,
    decode_record,
    encode_command,
    encode_record,
)
from compactlib.scheduler.persistence.state_rows import dump_rows
from compactlib.scheduler.plan.prepare import MAX_UPDATES
from tests.scheduler.build import Host, P, S, output, say

PAIRS = SchedulerConfig(levels=(LevelConfig(max_blocks=2),))


@pytest.fixture
def host() -> Host:
    host = Host(PAIRS)
    host.add("a", "b")
    return host


@pytest.fixture
def response(host: Host) -> PollResponse:
    return host.assigned()


def rows(host: Host) -> list[list[Any]]:
    """The state, apart from the number of the last command."""
    return list(dump_rows(host.service.state))[1:]


def verdicts(answer: PollResponse) -> list[Verdict]:
    return [one.verdict for one in answer.answers]


def refused(host: Host, update: StatusUpdate, verdict: Verdict) -> None:
    """The update is answered so, gives the worker nothing, and changes nothing."""
    before = rows(host)
    answer = host.poll(0, update)
    assert (verdicts(answer), answer.assignments) == ([verdict], ())
    assert rows(host) == before


@pytest.mark.parametrize("status", [P, S, JobStatus.FAILED, JobStatus.RELEASED])
def test_an_unknown_job(host: Host, response: PollResponse, status: JobStatus) -> None:
    refused(host, StatusUpdate("nobody", 1, status), Verdict.NOT_FOUND)


@pytest.mark.parametrize("status", [P, JobStatus.FAILED, JobStatus.RELEASED, S])
def test_a_stale_token(host: Host, response: PollResponse, status: JobStatus) -> None:
    refused(host, say(response, status, token=2), Verdict.STALE_TOKEN)


@pytest.mark.parametrize("token", [-1, 0])
def test_a_token_that_was_never_one(host: Host, response: PollResponse, token: int) -> None:
    refused(host, say(response, P, token=token), Verdict.STALE_TOKEN)


@pytest.mark.parametrize("ahead", [2, 1 << 64, 1 << 200])
def test_a_token_of_the_future(host: Host, response: PollResponse, ahead: int) -> None:
    refused(host, say(response, P, token=host.index + ahead), Verdict.FUTURE_TOKEN)


@pytest.mark.parametrize("status", [JobStatus.UNSPECIFIED, 5, -1, 1 << 70])
def test_a_status_that_no_worker_sends(host: Host, response: PollResponse, status: int) -> None:
    refused(host, say(response, status), Verdict.BAD_STATUS)


@pytest.mark.parametrize("status", [S, JobStatus.FAILED, JobStatus.RELEASED])
def test_an_update_about_a_job_that_nobody_has(host: Host, status: JobStatus) -> None:
    host.poll(1)
    [(_, state)] = host.service.jobs(host.now)
    refused(host, StatusUpdate(state.name, host.index, status), Verdict.WRONG_STATE)


def test_renewing_a_job_that_nobody_has_gives_it_properly_if_at_all(host: Host) -> None:
    host.poll(1)
    [(_, state)] = host.service.jobs(host.now)
    answer = host.poll(0, StatusUpdate(state.name, host.index, P))
    assert verdicts(answer) == [Verdict.WRONG_STATE]
    # The worker thought that it ran a job, so it has room for one; under a token of its own.
    assert [lease.token for lease in answer.assignments] == [host.index]


def test_results_for_another_tenant(host: Host, response: PollResponse) -> None:
    plan = response.compaction_jobs[0]
    results = attrs.evolve(output(plan, "x"), tenant="B")
    answer = host.poll(0, say(response, S, results=results))
    assert verdicts(answer) == [Verdict.BAD_RESULT]
    assert "tenant 'B'" in answer.answers[0].detail
    assert host.service.job(plan.name)[0].failures == 1


@pytest.mark.parametrize(("first", "second"), [(P, P), (P, S), (S, P), (S, S), (JobStatus.FAILED, P)])
def test_two_updates_about_one_job(host: Host, response: PollResponse, first: JobStatus, second: JobStatus) -> None:
    results = output(response.compaction_jobs[0], "x")
    answer = host.poll(0, say(response, first, results=results), say(response, second, results=results))
    assert verdicts(answer) == [Verdict.ACCEPTED, Verdict.DUPLICATE]
    assert len(host.service.state.jobs) == (first is not S)


def test_two_updates_of_which_the_first_is_refused(host: Host, response: PollResponse) -> None:
    answer = host.poll(0, say(response, P, token=1), say(response, P))
    assert verdicts(answer) == [Verdict.STALE_TOKEN, Verdict.ACCEPTED]


def test_no_capacity(host: Host) -> None:
    before = rows(host)
    answer = host.poll(0)
    assert answer == PollResponse(now=host.now, why=answer.why)
    assert answer.why.startswith("the worker has no room: job_capacity=0")
    assert rows(host) == before


def test_less_than_no_capacity(host: Host) -> None:
    before = rows(host)
    with pytest.raises(InvalidInput, match="job_capacity is -1"):
        host.poll(-1)
    assert rows(host) == before


def test_more_capacity_than_a_poll_gives() -> None:
    host = Host(attrs.evolve(PAIRS, levels=(LevelConfig(max_blocks=1),), max_jobs_per_poll=3))
    host.add(*"abcdefg")
    host.poll(1 << 60)
    assert len(host.poll(1 << 60).compaction_jobs) == 3


def test_more_updates_than_a_poll_takes(host: Host) -> None:
    for request in (PollRequest((StatusUpdate("x", 1, P),) * (MAX_UPDATES + 1)),
                    PollRequest(deleted_tombstones=("x",) * (MAX_UPDATES + 1))):
        with pytest.raises(InvalidInput, match=f"at most {MAX_UPDATES}"):
            host.service.prepare(host.command(), request)


def test_a_level_that_the_configuration_does_not_know(host: Host) -> None:
    assert host.add("x", level=1) == BlocksAdded(terminal=("x",))
    assert host.add("y", level=1 << 40) == BlocksAdded(terminal=("y",))
    assert host.service.state.index is not None
    assert len(host.service.state.index) == 4
    with pytest.raises(InvalidInput, match="level -1"):
        BlockMeta(id="x", tenant="t", shard=0, level=-1)


def test_a_block_that_is_pushed_again(host: Host) -> None:
    # Queued, in a job, in quarantine or done with: a retry never queues it twice.
    again = AddBlocks((BlockMeta(id="a", tenant="A", shard=1, level=0),))
    assert host.apply(again) == BlocksAdded(duplicate=("a",))
    response = host.assigned()
    assert host.apply(again) == BlocksAdded(duplicate=("a",))
    host.poll(0, say(response, S, results=output(response.compaction_jobs[0], "x")))
    assert host.apply(again) == BlocksAdded(tombstoned=("a",))


@pytest.mark.parametrize("number", ["shard", "level", "size_bytes"])
def test_a_number_that_no_field_of_64_bits_holds(number: str) -> None:
    # Sums of such ones could grow beyond the digits that are read again.
    block = {"id": "x", "tenant": "t", "shard": 0, "level": 0}
    assert getattr(BlockMeta(**{**block, number: (1 << 63) - 1}), number) == (1 << 63) - 1  # type: ignore[arg-type]
    for value in (1 << 63, 10 ** 4000):
        with pytest.raises(InvalidInput, match="give 0 to 9223372036854775807 each"):
            BlockMeta(**{**block, number: value})  # type: ignore[arg-type]


@pytest.mark.parametrize("times", [(2.0, 1.0), (float("nan"), 1.0), (0.0, float("inf")), (float("-inf"), 0.0),
                                   (0.0, 10 ** 400)])
def test_a_block_whose_times_are_none(times: tuple[float, float]) -> None:
    with pytest.raises(InvalidInput, match="finite times"):
        BlockMeta(id="x", tenant="t", shard=0, level=0, min_time=times[0], max_time=times[1])


def test_a_job_that_is_not_in_quarantine(host: Host) -> None:
    assert host.apply(Requeue(("nobody",))) == Requeued((), ("nobody",), 0)


def test_a_command_that_does_not_follow_the_last_one(host: Host) -> None:
    with pytest.raises(CommandOutOfOrder, match="command 1 comes after 1"):
        host.service.poll(Command(1, 1, host.now), PollRequest(job_capacity=1))


def test_a_reason_that_is_too_long(host: Host, response: PollResponse) -> None:
    host.poll(0, say(response, JobStatus.FAILED, reason="x" * 100_000))
    assert len(host.service.job(response.compaction_jobs[0].name)[0].last_failure) == 1000


def test_a_stored_record_of_a_newer_version() -> None:
    data = bytearray(encode_command(Command(1, 1, 0.0), AddBlocks(())))
    newer = encode_record(RecordKind.COMMAND, [])
    assert data[:8] == newer[:8] == MAGIC
    data[8:10] = (VERSION + 1).to_bytes(2, "little")
    from compactlib.files.checksum import crc32

    data[-4:] = crc32(bytes(data[:-4])).to_bytes(4, "little")
    with pytest.raises(Unsupported, match=f"version {VERSION + 1}"):
        decode_command(bytes(data))
    with pytest.raises(Unsupported, match=f"version {VERSION + 1}"):
        decode_record(bytes(data), RecordKind.COMMAND, "here")


def test_results_that_name_too_much_are_no_exception(host: Host, response: PollResponse) -> None:
    results = CompactedBlocks(tenant="A", shard=1, source_blocks=tuple(str(number) for number in range(10_000)))
    assert verdicts(host.poll(0, say(response, S, results=results))) == [Verdict.BAD_RESULT]


@pytest.mark.parametrize("strange", ["x", None, 1.5, float("nan"), [], object()])
@pytest.mark.parametrize("name", [
    "max_failures", "max_queue_size", "max_quarantine_size", "max_jobs_per_poll", "cleanup_batch_size",
    "cleanup_min_level", "cleanup_max_level", "max_tombstones"])
def test_a_count_that_is_no_whole_number_is_refused_by_name(name: str, strange: Any) -> None:
    with pytest.raises(BadConfig, match=f"^{name} is .*; give a whole number"):
        SchedulerConfig(**{name: strange})


def test_a_level_s_counts_are_whole_numbers() -> None:
    for wrong in ({"max_blocks": float("nan")}, {"max_job_bytes": 1e9}, {"max_blocks": None}):
        given: dict[str, Any] = {"max_blocks": 2, **wrong}
        with pytest.raises(BadConfig, match="give a whole number"):
            LevelConfig(**given)
    assert LevelConfig(max_blocks=2, max_job_bytes=None).max_job_bytes is None
