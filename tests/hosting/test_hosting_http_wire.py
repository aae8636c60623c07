# SPDX-License-Identifier: Apache-2.0
"""The two forms of what is said over HTTP: they come back as they were, and nothing else is taken."""

from __future__ import annotations

import contextlib
import json
import random
import re
import tracemalloc
from pathlib import Path
from typing import Any

import attrs
import pytest

from compactlib.errors import InvalidInput, Unsupported
from compactlib.files.record_frame import RecordFrame
from compactlib.hosting.http.wire import JSON, MAX_VALUES, RECORD, decode, encode
from compactlib.scheduler import (
    AddBlocks,
    BlockMeta,
    CompactedBlocks,
    JobPlan,
    JobStatus,
    NoOutput,
    PollRequest,
    PollResponse,
    StatusUpdate,
    Tick,
)
from compactlib.scheduler.model.poll import Assignment, StatusAnswer, Verdict
from compactlib.scheduler.model.update import BlocksAdded
from compactlib.scheduler.model.values import BlockTombstones, ShardTombstone
from compactlib.scheduler.persistence.codec import MAGIC, encode_message
from tests.harness.effort import Effort

META = BlockMeta(id="01J8F0000000000000000000X1", tenant="ac\u00fcme", shard=3, level=1, min_time=1.5, max_time=2.5,
                 size_bytes=(1 << 63) - 1)
PLAN = JobPlan(name="j", tenant="acme", shard=3, compaction_level=0, source_blocks=("a", "b"), size_bytes=18,
               tombstones=(BlockTombstones(name="t", tenant="acme", shard=3, level=0, blocks=("z",)),
                           ShardTombstone(name="s", tenant="", shard=0, timestamp=0.0, duration=21600.0)))
RESULTS = CompactedBlocks(tenant="acme", shard=3, source_blocks=("a", "b"), new_blocks=(META,))
MESSAGES: list[Any] = [
    PollRequest(), AddBlocks(()), PollResponse(), BlocksAdded(), AddBlocks((META, META)),
    BlocksAdded(("a",), ("b", "c"), (), ("d",)),
    PollRequest((StatusUpdate("ab", 41, JobStatus.SUCCESS, RESULTS),
                 StatusUpdate("cd", 1 << 70, 99, CompactedBlocks(tenant="", shard=0, source_blocks=(),
                                                                 no_output=NoOutput.MISSING), "\ud800\0")), 3, ("t",)),
    PollResponse((PLAN,), (Assignment("ab", 41, 5.5, (META,)),),
                 (StatusAnswer("ab", Verdict.NOT_FOUND), StatusAnswer("cd", Verdict.ACCEPTED, 0.1 + 0.2)),
                 PLAN.tombstones, 7.0, "by level, failures and age"),
]


@pytest.mark.parametrize("media", [JSON, RECORD])
@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_a_message_comes_back_as_it_was(message: Any, media: str) -> None:
    assert decode(encode(message, media), media, type(message)) == message


def test_json_has_the_fields_by_their_names() -> None:
    said = decode(b'{"status_updates": [{"name": "j", "token": 41, "status": "failed", "reason": "no disk"}]}', JSON,
                  PollRequest)
    assert said == PollRequest((StatusUpdate("j", 41, JobStatus.FAILED, reason="no disk"),))
    assert json.loads(encode(said, JSON)) == {
        "status_updates": [
            {"name": "j", "token": 41, "status": "failed", "compacted_blocks": None, "reason": "no disk"}],
        "job_capacity": 0, "deleted_tombstones": []}
    answer = PollResponse((PLAN,), answers=(StatusAnswer("j", Verdict.STALE_TOKEN),), now=7.5)
    assert json.loads(encode(answer, JSON)) == {
        "compaction_jobs": [{
            "name": "j", "tenant": "acme", "shard": 3, "compaction_level": 0, "source_blocks": ["a", "b"],
            "tombstones": [{"name": "t", "tenant": "acme", "shard": 3, "level": 0, "blocks": ["z"]},
                           {"name": "s", "tenant": "", "shard": 0, "timestamp": 0.0, "duration": 21600.0}],
            "size_bytes": 18}],
        "assignments": [], "answers": [{"name": "j", "verdict": "stale token", "holder_deadline": None, "detail": ""}],
        "tombstones": [], "now": 7.5, "why": ""}


PAGE = Path(__file__).parents[2] / "docs" / "formats" / "scheduler-http.md"
OBJECTS = (PollRequest, StatusUpdate, CompactedBlocks, BlockMeta, PollResponse, JobPlan, Assignment, StatusAnswer,
           BlockTombstones, ShardTombstone, AddBlocks, BlocksAdded)


def test_the_page_names_every_object_its_fields_and_what_they_may_be() -> None:
    page = PAGE.read_text()
    rows = dict(re.findall(r"^\| `(\w+)` \| (.*) \|$", page.partition("## Objects")[2], re.MULTILINE))
    assert set(rows) == {kind.__name__ for kind in OBJECTS}
    for kind in OBJECTS:
        fields = re.findall(r"`([a-z_]+)`(\??)", rows[kind.__name__])
        assert [name for name, _ in fields] == [field.name for field in attrs.fields(kind)]
        if kind in OBJECTS[:4]:
            assert [name for name, may_go in fields if not may_go] == [
                field.name for field in attrs.fields(kind) if field.default is attrs.NOTHING]
    for text in (*(status.name.lower() for status in JobStatus if status), *(verdict.value for verdict in Verdict),
                 *(reason.value for reason in NoOutput)):
        assert f'"{text}"' in page


def test_the_examples_of_the_page_are_requests() -> None:
    asks, reports = (decode(text.encode(), JSON, PollRequest)
                     for text in re.findall(r"^```json\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL))
    assert asks == PollRequest(job_capacity=2)
    assert [said.status for said in reports.status_updates] == [
        JobStatus.IN_PROGRESS, JobStatus.SUCCESS, JobStatus.FAILED, JobStatus.RELEASED]


def test_a_whole_number_stands_for_a_time() -> None:
    text = b'{"blocks": [{"id": "a", "tenant": "", "shard": 0, "level": 0, "min_time": 0, "max_time": 7}]}'
    [block] = decode(text, JSON, AddBlocks).blocks
    assert (block.max_time, type(block.max_time)) == (7.0, float)


@pytest.mark.parametrize(("text", "why"), [
    ("[]", r"PollRequest: found \[\], give an object with status_updates, job_capacity"),
    ('{"capacity": 1}', r"PollRequest: found an object with \['capacity'\]; a PollRequest has status_updates"),
    ('{"status_updates": [{"name": "a"}]}', r"PollRequest\.status_updates\[0\]: .*, and needs name, status, token"),
    ('{"status_updates": [{"name": "a", "token": "1", "status": "failed"}]}',
     r"PollRequest\.status_updates\[0\]\.token: found '1', give a whole number"),
    ('{"status_updates": [{"name": "a", "token": 1, "status": "lost"}]}',
     r"\.status: found 'lost', give one of 'unspecified', 'in_progress', 'success', 'failed', 'released'"),
    ('{"status_updates": {}}', r"PollRequest\.status_updates: found \{\}, give an array"),
    ('{"job_capacity": true}', r"PollRequest\.job_capacity: found True, give a whole number"),
    ('{"job_capacity": 1.5}', r"give a whole number"), ('{"job_capacity": null}', r"give a whole number"),
    ('{"job_capacity": NaN}', r"NaN is no number"), ('{"job_capacity": %s}' % ("9" * 5000), r"5000 digits"),
    ("[" * 100_000, r"no PollRequest in JSON"), ("{", r"no PollRequest in JSON"), ("", r"no PollRequest in JSON"),
    ('{"deleted_tombstones": [1]}', r"PollRequest\.deleted_tombstones\[0\]: found 1, give a text")])
def test_what_is_no_request_is_refused_and_its_place_named(text: str, why: str) -> None:
    with pytest.raises(InvalidInput, match=why):
        decode(text.encode(), JSON, PollRequest)


@pytest.mark.parametrize("fields", [
    {"id": ""}, {"id": "a\0"}, {"shard": -1}, {"min_time": 2, "max_time": 1}, {"size_bytes": 1 << 63},
    {"rows": -1}, {"rows": 1 << 63}, {"rows": "5"}, {"columns": "a\0"}, {"columns": None},
    {"max_time": 10 ** 500}, {"max_time": float("inf")}])
def test_a_block_that_cannot_be_is_refused(fields: dict[str, Any]) -> None:
    block = {"id": "a", "tenant": "", "shard": 0, "level": 0}
    assert len(decode(json.dumps({"blocks": [block]}).encode(), JSON, AddBlocks).blocks) == 1
    with pytest.raises(InvalidInput):
        decode(json.dumps({"blocks": [{**block, **fields}]}).encode(), JSON, AddBlocks)


def test_what_is_no_utf_8_or_no_record_is_refused() -> None:
    with pytest.raises(InvalidInput, match="no PollRequest in JSON"):
        decode(b'{"\xff": 1}', JSON, PollRequest)
    with pytest.raises(InvalidInput, match="no record of a PollRequest: expected"):
        decode(b"CLSCHED", RECORD, PollRequest)
    with pytest.raises(InvalidInput, match="a Tick was sent where a PollRequest is expected"):
        decode(encode_message(Tick()), RECORD, PollRequest)
    with pytest.raises(Unsupported, match="version 6"):
        decode(RecordFrame("later", MAGIC, 6, "<HH").encode(4, body=b"[]"), RECORD, PollRequest)
    with pytest.raises(InvalidInput, match="finite"):
        encode(PollResponse(now=float("inf")), JSON)


def test_how_many_values_there_are_is_looked_at_before_they_are_made() -> None:
    count = MAX_VALUES + 1
    for data, media in ((b'{"deleted_tombstones":[%s""]}' % (b'"",' * count), JSON), (b"[" * count, JSON),
                        (b"{}" * count, RECORD)):
        tracemalloc.start()
        with pytest.raises(InvalidInput, match="at most 1,000,000 are read; send it in parts"):
            decode(data, media, PollRequest)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
        tracemalloc.stop()


def test_whatever_is_changed_is_a_value_or_refused_by_name(effort: Effort) -> None:
    rng = random.Random(7)
    for _ in range(effort(2_000, 200_000)):
        message, media = rng.choice(MESSAGES), rng.choice([JSON, RECORD])
        data = bytearray(encode(message, media))
        for _ in range(rng.randrange(1, 4)):
            at = rng.randrange(len(data) + 1)
            match rng.randrange(4):
                case 0:
                    data[at:at + rng.randrange(8)] = b""
                case 1:
                    data[at:at] = rng.choice([b"[", b"]", b"{", b"}", b'"', b",", b"0", b"null", b"1e400", b"\\u"])
                case 2:
                    data[at:at + 1] = bytes([rng.randrange(256)])
                case _:
                    data[at:at] = data[rng.randrange(len(data) + 1):][:rng.randrange(40)]
        with contextlib.suppress(InvalidInput, Unsupported):
            assert isinstance(decode(bytes(data), media, type(message)), type(message))
