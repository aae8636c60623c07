# SPDX-License-Identifier: Apache-2.0
"""Records as bytes: every value comes back, damage is found, and golden files stay readable.

`python -m tests.scheduler.persistence.test_scheduler_codec` writes the golden file anew; a change in it is a new
format.
"""

from __future__ import annotations

import contextlib
import random
from pathlib import Path
from typing import Any

import attrs
import pytest
from hypothesis import given, strategies as st

from compactlib.errors import CorruptData, InvalidInput, Unsupported
from compactlib.files.checksum import crc32
from compactlib.files.record_frame import RecordFrame
from compactlib.scheduler import (
    AddBlocks,
    BlockMeta,
    Command,
    CompactedBlocks,
    Configure,
    FairTenants,
    JobPlan,
    JobStatus,
    LevelConfig,
    NoOutput,
    PollRequest,
    PollResponse,
    Requeue,
    Retain,
    SchedulerConfig,
    SchedulerService,
    StatusUpdate,
    Tick,
)
from compactlib.scheduler.model.poll import Assignment, StatusAnswer, Verdict
from compactlib.scheduler.model.update import (
    AssignedJob,
    BlocksAdded,
    CompletedJob,
    EvictedJob,
    NewJob,
    Opening,
    PlanUpdate,
    RefusedOutputs,
    ReturnedJob,
    TombstoneLease,
    UpdatedJob,
)
from compactlib.scheduler.model.values import BlockTombstones, JobState, ShardTombstone
from compactlib.scheduler.persistence.codec import (
    MAGIC,
    RecordKind,
    decode_command,
    decode_entry,
    decode_message,
    decode_record,
    encode_command,
    encode_message,
    encode_record,
    encode_rows,
    is_opening,
)
from compactlib.scheduler.persistence.plain import FIELDS, from_plain, to_plain
from compactlib.scheduler.persistence.state_rows import decode_state, dump_rows, encode_state
from compactlib.scheduler.queue.state import SchedulerState
from tests.scheduler.build import Host, output, say

GOLDEN = Path(__file__).parents[2] / "promises" / "golden" / "scheduler" / "update.command"
GOLDEN_STATE = GOLDEN.with_name("state.record")

META = BlockMeta(id="01J8F0000000000000000000X1", tenant="acme", shard=3, level=1, min_time=1.5, max_time=2.5,
                 size_bytes=9, rows=5, columns="c0ffee")
PLAN = JobPlan(name="ab-Tacme-S3-L0", tenant="acme", shard=3, compaction_level=0, source_blocks=("a", "b"),
               size_bytes=18, tombstones=(BlockTombstones(name="t", tenant="acme", shard=3, level=0, blocks=("z",)),))
STATE = JobState(name=PLAN.name, compaction_level=0, status=JobStatus.IN_PROGRESS, token=41, lease_expires_at=0.1 + 0.2,
                 added_at=1e9, failures=2, sequence=(41 << 20) + 1, not_before=3.0, last_failure='said "ö\x00\ud800"',
                 releases=3)
RESULTS = CompactedBlocks(tenant="acme", shard=3, source_blocks=("a", "b"), new_blocks=(META,))
UPDATE = PlanUpdate(
    index=41, term=7, now=1727049615.25, new_jobs=(NewJob(STATE, PLAN),),
    assigned_jobs=(AssignedJob(STATE, attrs.evolve(STATE, token=40), PLAN),), updated_jobs=(UpdatedJob(STATE),),
    returned_jobs=(ReturnedJob(STATE, 40),), completed_jobs=(CompletedJob(STATE, RESULTS), CompletedJob(STATE, None)),
    evicted_jobs=(EvictedJob(STATE),), refused_outputs=(RefusedOutputs("ab", (META,)),),
    leased_tombstones=(TombstoneLease(ShardTombstone(name="s", tenant="", shard=0, timestamp=0.0, duration=21600.0),
                                      5.0),),
    deleted_tombstones=("t",), shared=((0, 3),), turns=((0, "acme", 3, 1 << 80),),
    answers=(StatusAnswer("ab", Verdict.STALE_TOKEN, 3.5, "token 1"), StatusAnswer("cd", Verdict.ACCEPTED)),
    limits=SchedulerConfig(max_queue_size=5).limits, policy="fair_tenants", why="tenants in weighted turns")
OPERATIONS = [UPDATE, AddBlocks((META, META)), AddBlocks(()), Tick(), Retain(1e9), Requeue(("a", "b")),
              Configure(SchedulerConfig(max_failures=7))]
MESSAGES: list[Any] = [
    *OPERATIONS,
    PollRequest((StatusUpdate("ab", 41, JobStatus.SUCCESS, RESULTS, "", "k.seal"),
                 StatusUpdate("cd", 1 << 70, 99, attrs.evolve(RESULTS, new_blocks=(), no_output=NoOutput.EMPTY))),
                3, ("t",)),
    PollResponse((PLAN,), (Assignment("ab", 41, 5.5, "k.seal", (META,)),), (StatusAnswer("ab", Verdict.NOT_FOUND),),
                 PLAN.tombstones, 7.0, "by level, failures and age"),
    BlocksAdded(("a",), ("b", "c"), (), ("d",)),
    Opening(SchedulerConfig(max_failures=7), with_index=True), Opening(SchedulerConfig(), with_index=False),
]


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: type(operation).__name__)
def test_a_command_comes_back_as_it_was(operation: Any) -> None:
    command = Command(42, 7, 1727049615.123456789)
    again = decode_command(encode_command(command, operation))
    assert again == (command, operation)
    assert encode_command(*again) == encode_command(command, operation)


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_a_message_comes_back_as_it_was(message: Any) -> None:
    assert decode_message(encode_message(message)) == message


def test_statuses_and_tokens_of_a_request_survive() -> None:
    request = decode_message(encode_message(PollRequest(
        (StatusUpdate("a", 40, JobStatus.IN_PROGRESS), StatusUpdate("b", 41, JobStatus.SUCCESS, RESULTS)), 3)))
    assert isinstance(request, PollRequest)
    assert [(said.name, said.token, said.status) for said in request.status_updates] == [("a", 40, 1), ("b", 41, 2)]
    assert (request.job_capacity, request.status_updates[1].compacted_blocks) == (3, RESULTS)


@pytest.mark.parametrize("odd", [{}, b"x", [0, {}]])
def test_what_stands_for_no_value_is_refused_in_each_field_of_the_settings(odd: Any) -> None:
    plain: Any = to_plain(SchedulerConfig())
    for place in range(1, len(plain)):
        with pytest.raises(ValueError, match=r"cannot be|stands for no value"):
            from_plain([*plain[:place], odd, *plain[place + 1:]])


def test_statuses_come_back_as_the_very_members() -> None:
    again = from_plain(to_plain(STATE))
    assert again.status is JobStatus.IN_PROGRESS
    assert from_plain(to_plain(StatusAnswer("a", Verdict.ACCEPTED))).verdict is Verdict.ACCEPTED


def test_the_golden_file_is_read_and_written_as_ever() -> None:
    data = GOLDEN.read_bytes()
    assert decode_command(data) == (Command(42, 7, 1727049616.0), UPDATE)
    assert encode_command(Command(42, 7, 1727049616.0), UPDATE) == data


def test_another_version_is_refused_by_name() -> None:
    with pytest.raises(Unsupported, match="version 6; this release reads 5: upgrade"):
        decode_command(RecordFrame("later", MAGIC, 6, "<HH").encode(RecordKind.COMMAND, body=b"[]"))


CONFIGS = [SchedulerConfig(), SchedulerConfig(
    levels=(LevelConfig(max_blocks=1), LevelConfig(max_blocks=2, max_job_bytes=5, max_age_seconds=0.5)),
    last_key="name", max_failures=0, lease_seconds=1)]


@pytest.mark.parametrize("config", CONFIGS)
def test_settings_come_back_as_they_were(config: SchedulerConfig) -> None:
    assert decode_message(encode_message(config)) == config
    opening = encode_command(Command(1, 2, 3.0), config)
    assert decode_entry(opening, "here") == (Command(1, 2, 3.0), config)
    assert (is_opening(opening), is_opening(encode_command(Command(1, 2, 3.0), Tick()))) == (True, False)
    with pytest.raises(CorruptData, match="kind 3"):
        decode_command(opening)
    assert decode_state(encode_state(SchedulerState(config, None)), "here").config == config


def settings(**changes: Any) -> Any:
    """The stored settings, with other fields."""
    names = FIELDS["settings"][1]
    tag, *fields = to_plain(SchedulerConfig())
    return [tag, *(changes.get(name, field) for name, field in zip(names, fields, strict=True))]


@pytest.mark.parametrize("plain", [
    ["settings"], [], 5, ["limits"], {}, settings(levels=[0]), settings(levels=[0, ["level", 0, 0, None, 0]]),
    settings(levels=3), settings(levels=[0, 3]), settings(levels=[0, ["tick"]]), [*settings(), "red"],
    settings(max_failures=None), settings(max_failures="3"), settings(last_key="size"), settings(last_key=[0]),
    settings(check_results=2), settings(check_results="yes"), settings(lease_seconds=0), settings(lease_seconds=None),
])
def test_settings_that_make_no_sense_are_corrupt(plain: Any) -> None:
    with pytest.raises(CorruptData):
        decode_message(encode_record(RecordKind.MESSAGE, [plain]))
    with pytest.raises(CorruptData):
        decode_entry(encode_record(RecordKind.OPENING, [to_plain(Command(1, 1, 1.0)), plain]), "here")
    rows = list(dump_rows(SchedulerState(SchedulerConfig(), None)))
    with pytest.raises(CorruptData, match="settings"):
        decode_state(encode_rows([plain, settings(), *rows]), "here")
    with pytest.raises(CorruptData, match="settings"):
        decode_state(encode_rows([settings(), plain, *rows]), "here")
    with pytest.raises(CorruptData, match="settings"):
        decode_state(encode_rows(rows), "here")
    state = decode_state(encode_rows([settings(max_failures=7), settings(), *rows]), "here")
    assert (state.config, state.opened_with) == (SchedulerConfig(max_failures=7), SchedulerConfig())


def golden_state() -> SchedulerState:
    """A state with rows of every kind."""
    config = SchedulerConfig(levels=(LevelConfig(max_blocks=2), LevelConfig(max_blocks=9)), max_failures=1,
                             max_queue_size=2, cleanup_batch_size=0)
    host = Host(service=SchedulerService(config, policy=FairTenants()))
    host.add("a", "b")
    done = host.assigned()
    host.poll(0, say(done, JobStatus.SUCCESS, results=output(done.compaction_jobs[0], "ab")))
    host.add("c", "d", "e", "f")
    failed = host.assigned(2)
    host.poll(0, *(say(failed, JobStatus.FAILED, which=which, reason="no") for which in range(2)))
    host.add("g", "h", "i", "j", "k", "l", "m")
    host.now += 1000
    host.poll(1)
    return host.service.state


def test_the_golden_state_has_every_kind_of_row_and_is_read_and_written_as_ever() -> None:
    page = (Path(__file__).parents[3] / "docs" / "formats" / "scheduler-state.md").read_text()
    data, state = GOLDEN_STATE.read_bytes(), golden_state()
    tags = {row[0] for row in dump_rows(state)}
    assert tags == {"state", "index", "block", "tombstone", "queue", "group", "batch", "turns", "job", "quarantined"}
    assert all(f"| `{tag}` |" in page for tag in tags)
    assert encode_state(state) == data
    again = decode_state(data, "here")
    again.audit()
    assert encode_state(again) == data


def test_any_bit_of_a_state_flipped_and_any_cut_is_found() -> None:
    data = GOLDEN_STATE.read_bytes()
    for bit in range(8 * len(data)):
        damaged = bytearray(data)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(CorruptData):
            decode_state(bytes(damaged), "here")
    for size in range(len(data)):
        with pytest.raises(CorruptData):
            decode_state(data[:size], "here")


def test_the_example_of_the_format_s_page() -> None:
    page = (Path(__file__).parents[3] / "docs" / "formats" / "scheduler-state.md").read_text()
    data = bytes.fromhex(page.split("```hex")[1].split("```")[0])
    assert encode_command(Command(1, 1, 1000.0), Tick()) == data
    assert crc32(data[:-4]) == int.from_bytes(data[-4:], "little")


def test_the_format_s_page_names_every_value_and_its_fields() -> None:
    page = (Path(__file__).parents[3] / "docs" / "formats" / "scheduler-state.md").read_text()
    for tag, (kind, names) in FIELDS.items():
        assert f"| `{tag}` | `{kind.__name__}` | {', '.join(names)} |" in page, tag


def test_any_byte_flipped_or_cut_is_found() -> None:
    data, rng = encode_command(Command(1, 1, 0.0), UPDATE), random.Random(3)
    for place in range(len(data)):
        damaged = bytearray(data)
        damaged[place] ^= 1 << rng.randrange(8)
        with pytest.raises((CorruptData, Unsupported)):
            decode_command(bytes(damaged))
        with pytest.raises(CorruptData):
            decode_command(data[:place])
    with pytest.raises(CorruptData):
        decode_command(data + b"x")


@given(st.recursive(st.none() | st.integers() | st.text(max_size=4) | st.floats(allow_nan=False, allow_infinity=False)
                    | st.sampled_from(sorted(FIELDS)), lambda inner: st.lists(inner, max_size=6), max_leaves=12))
def test_whatever_a_valid_checksum_covers_is_a_value_or_corrupt(plain: Any) -> None:
    for kind, decode in ((RecordKind.COMMAND, decode_command), (RecordKind.MESSAGE, decode_message)):
        with contextlib.suppress(CorruptData):
            decode(encode_record(kind, plain))


@pytest.mark.parametrize("wrong", [
    ["poll", [0, "text"], 0, [0]], ["poll", [0], "many", [0]], ["poll", [0], None, [0]], ["poll", [0], 1.5, [0]],
    ["poll", [0], 0], ["nonsense"], [], [0, 1], ["add", [0, ["tick"]]], ["requeue", [0, 5]], ["tick", 1],
    ["add", [0, ["meta", "", "t", 0, 0, 0.0, 0.0, 0]]], ["add", [0, ["meta", "a", "t", -1, 0, 0.0, 0.0, 0]]],
    ["update", *[[0]] * 17], True,
])
def test_a_message_whose_parts_have_the_wrong_type_is_corrupt(wrong: Any) -> None:
    with pytest.raises(CorruptData):
        decode_message(encode_record(RecordKind.MESSAGE, [wrong]))


def test_another_kind_of_record_is_refused() -> None:
    with pytest.raises(CorruptData, match="kind 2"):
        decode_command(encode_message(Tick()))
    with pytest.raises(CorruptData, match="magic"):
        decode_record(b"NOTSCHED" + encode_message(Tick())[8:], RecordKind.MESSAGE, "here")


def test_numbers_that_json_cannot_hold_are_refused() -> None:
    with pytest.raises(InvalidInput, match="finite"):
        encode_message(Retain(float("inf")))
    with pytest.raises(TypeError, match="set has no stored form"):
        to_plain(set())


def test_every_stored_class_names_all_its_fields() -> None:
    for kind, names in FIELDS.values():
        left_out = {field.name for field in attrs.fields(kind)} - set(names)
        assert left_out == {AssignedJob: {"plan"}, Command: {"expiry"}, PlanUpdate: {"notes_time"}}.get(kind, set())


if __name__ == "__main__":
    GOLDEN.write_bytes(encode_command(Command(42, 7, 1727049616.0), UPDATE))
    GOLDEN_STATE.write_bytes(encode_state(golden_state()))
