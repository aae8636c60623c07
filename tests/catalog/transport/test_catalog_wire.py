# SPDX-License-Identifier: Apache-2.0
"""Messages as bytes: every message survives, every damage has a name, and the bytes stay what they were."""

from __future__ import annotations

import struct
import zlib
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from compactlib.catalog import NodeId, NodeReport, ZoneResult
from compactlib.catalog.errors import MessageDamaged, MessageTooLarge, MessageTooNew, UnknownMessage
from compactlib.catalog.model.partitions import HostedPartitions
from compactlib.catalog.model.values import Culprit, Factor, Floor, Unavailable
from compactlib.catalog.round.messages import (
    MAX_NAME_BYTES,
    MAX_TEXT_BYTES,
    Hello,
    PublishAnswer,
    PublishTime,
    Refusal,
    RefusalReason,
    ReportAnswer,
    ReportFailed,
    ReportRequest,
    RoundId,
    checked_name,
    short_text,
)
from compactlib.catalog.transport import wire
from compactlib.errors import CorruptData, InvalidInput, NotFound, Unsupported
from tests.tools.need_strategies import node_ids, node_reports

GOLDEN = Path(__file__).parents[2] / "promises" / "golden" / "catalog" / "messages-v1.bin"
ROUND = RoundId(3, NodeId("node-é", 7), 129)
REPORT = NodeReport(
    node=NodeId("b", 1 << 40),
    floors=(Floor(Factor.LOW_WATERMARK, 98304005), Floor(Factor.INDEX_BUILD, 1, Culprit(
        node="b", table=0, partitions=(0, 5, 300), index=4, zone=9, owner="build of ix"))),
    unavailable=(Unavailable(Factor.RAFT_RECOVERY, "not flushed yet", Culprit(table=7)),),
    hosted=HostedPartitions.of({7: range(25), 8: range(25), 70: [0, 64]}),
    transactions_from=(1 << 63) - 1,
)
MESSAGES: list[wire.AnyMessage] = [
    Hello("cluster", NodeId("a")),
    ReportRequest(ROUND),
    ReportAnswer(ROUND, REPORT),
    ReportAnswer(ROUND, NodeReport(node=NodeId("a"), transactions_from=1)),
    ReportFailed(ROUND, NodeId("b"), "HostFailed: disk"),
    PublishTime(ROUND, 98304005),
    PublishAnswer(ROUND, NodeId("b"), (ZoneResult(1, 25, 0), ZoneResult(300, 0, 5, "no leader")), ""),
    PublishAnswer(ROUND, NodeId("b"), (), "TimeBeforeHistory: gone"),
    Refusal(NodeId("b"), RefusalReason.STALE_TERM, 4, ROUND, "term 3 is over"),
    Refusal(NodeId("b"), RefusalReason.UNKNOWN_TYPE, 0, None, ""),
]
KINDS = st.sampled_from(MESSAGES)


def body_of(message: wire.AnyMessage) -> bytes:
    return wire.encode(message)[wire.LENGTH_BYTES:]


def framed(number: int, version: int, body: bytes = b"") -> bytes:
    """A whole frame without its length."""
    content = struct.pack("<HH", number, version) + body
    return content + zlib.crc32(content).to_bytes(4, "little")


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_every_message_survives(message: wire.AnyMessage) -> None:
    frame = wire.encode(message)
    assert int.from_bytes(frame[:4], "little") == len(frame) - 4
    assert wire.decode(frame[4:]) == message


def test_the_golden_bytes_are_what_this_release_writes_and_reads() -> None:
    assert GOLDEN.read_bytes() == b"".join(map(wire.encode, MESSAGES))


def test_every_factor_has_a_number_of_its_own() -> None:
    floors = tuple(Floor(factor, 5) for factor in Factor)
    message = ReportAnswer(ROUND, NodeReport(node=NodeId("a"), floors=floors, transactions_from=1))
    assert wire.decode(body_of(message)) == message


NAMES = st.text(st.characters(exclude_categories=["C", "Z"]), min_size=1, max_size=20)
NODES = node_ids()
ROUNDS = st.builds(RoundId, st.integers(1, (1 << 64) - 1), NODES, st.integers(1, 1 << 40))
TIMES = st.integers(1, (1 << 63) - 1)
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=50)
REPORTS = node_reports(factors=list(Factor))
COUNTS = st.integers(0, 99)
ZONES = st.lists(st.builds(ZoneResult, st.integers(0, 1 << 40), COUNTS, COUNTS, TEXTS), max_size=3)
ANY = st.one_of(
    st.builds(Hello, NAMES, NODES), st.builds(ReportRequest, ROUNDS), st.builds(ReportAnswer, ROUNDS, REPORTS),
    st.builds(ReportFailed, ROUNDS, NODES, TEXTS), st.builds(PublishTime, ROUNDS, TIMES),
    st.builds(PublishAnswer, ROUNDS, NODES, ZONES.map(tuple), TEXTS),
    st.builds(Refusal, NODES, st.sampled_from(RefusalReason), st.integers(0, 99), st.none() | ROUNDS, TEXTS))


@given(ANY)
def test_any_message_survives(message: wire.AnyMessage) -> None:
    assert wire.decode(body_of(message)) == message


@given(KINDS, st.data())
def test_a_flipped_bit_or_a_cut_is_damage(message: wire.AnyMessage, data: st.DataObject) -> None:
    frame = body_of(message)
    at = data.draw(st.integers(0, len(frame) - 1))
    flipped = bytearray(frame)
    flipped[at] ^= 1 << data.draw(st.integers(0, 7))
    for wrong in (bytes(flipped), frame[:at]):
        with pytest.raises(MessageDamaged) as caught:
            wire.decode(wrong, sender="b")
        assert caught.value.sender == "b"
        assert isinstance(caught.value, CorruptData)


@given(KINDS, st.data())
def test_a_wrong_body_under_a_right_checksum_never_breaks(message: wire.AnyMessage, data: st.DataObject) -> None:
    content = bytearray(body_of(message)[:-4])
    for _ in range(data.draw(st.integers(1, 3))):
        content[data.draw(st.integers(4, len(content) - 1))] = data.draw(st.integers(0, 255))
    content += data.draw(st.binary(max_size=2))
    frame = bytes(content) + zlib.crc32(content).to_bytes(4, "little")
    try:
        found = wire.decode(frame)
    except MessageDamaged:
        return
    assert body_of(found) == frame or isinstance(found, Refusal | Hello | ReportFailed | PublishAnswer | ReportAnswer)


def test_a_message_of_an_unknown_type_is_named() -> None:
    with pytest.raises(UnknownMessage, match="unknown type 99 from b: this node is older") as caught:
        wire.decode(framed(99, 1, b"whatever"), sender="b")
    assert (caught.value.message_type, caught.value.sender) == (99, "b")
    assert isinstance(caught.value, Unsupported)
    refusal = wire.refusal_of(caught.value, NodeId("a"))
    assert refusal == Refusal(NodeId("a"), RefusalReason.UNKNOWN_TYPE, 0, None, str(caught.value))


@pytest.mark.parametrize("version", [0, 2, 65535])
def test_a_message_of_an_unknown_version_is_named(version: int) -> None:
    with pytest.raises(MessageTooNew, match=f"format version {version}") as caught:
        wire.decode(framed(2, version))
    assert (caught.value.message_type, caught.value.found, caught.value.supported) == (2, version, 1)
    refusal = wire.refusal_of(caught.value, NodeId("a"))
    assert refusal is not None
    assert refusal.reason is RefusalReason.UNKNOWN_VERSION
    assert wire.refusal_of(NotFound("x"), NodeId("a")) is None


@pytest.mark.parametrize(("body", "found"), [
    (b"", "the end of the frame inside a number"),
    (b"\x03\x01a\x01\x01\x00", "1 bytes too many"),
    (b"\x03\x05a\x01\x01", "5 bytes announced"),
    (b"\x83\x00\x01a\x01\x01", "could be shorter"),
    (b"\xff" * 11, "a number of more than 10 bytes"),
    (b"\x03\x00\x01\x01", "no node name"),
    (b"\x03\x02\xff\xfe\x01\x01", "can't decode"),
    (b"\xff" * 9 + b"\x7f\x01a\x01\x01", "too large"),
])
def test_each_way_to_be_wrong_has_words(body: bytes, found: str) -> None:
    with pytest.raises(MessageDamaged, match=found):
        wire.decode(framed(2, 1, body))


@pytest.mark.parametrize("size", [0, 7])
def test_a_frame_too_short_for_a_head_is_damage(size: int) -> None:
    with pytest.raises(MessageDamaged, match="at least 8 bytes"):
        wire.decode(bytes(size))


def test_factors_and_reasons_that_do_not_exist_are_damage() -> None:
    refusal = bytearray(body_of(MESSAGES[-1])[:-4])
    refusal[4 + 2 + 1] = 77
    with pytest.raises(MessageDamaged, match="77"):
        wire.decode(bytes(refusal) + zlib.crc32(refusal).to_bytes(4, "little"))
    answer = ReportAnswer(RoundId(1, NodeId("a"), 1), NodeReport(
        node=NodeId("a"), floors=(Floor(Factor.ACTIVE_TRANSACTIONS, 9),), transactions_from=1))
    content = bytearray(body_of(answer)[:-4])
    at = content.index(b"\x01\x00\x09") + 1
    content[at] = 50
    with pytest.raises(MessageDamaged, match="factor 50"):
        wire.decode(bytes(content) + zlib.crc32(content).to_bytes(4, "little"))


def test_a_message_over_the_limit_is_not_encoded() -> None:
    with pytest.raises(MessageTooLarge) as caught:
        wire.encode(MESSAGES[2], max_bytes=40)
    assert caught.value.limit == 40
    assert caught.value.size > 40


@pytest.mark.parametrize("name", ["", "a\n", "x" * (MAX_NAME_BYTES + 1), "é" * 128])
def test_names_that_are_none_are_refused(name: str) -> None:
    with pytest.raises(InvalidInput):
        checked_name(name)
    with pytest.raises(InvalidInput):
        wire.encode(Hello("cluster", NodeId(name)))


@pytest.mark.parametrize("message", [
    PublishAnswer(ROUND, NodeId("a"), (ZoneResult(0),) * 100_001),
    ReportAnswer(ROUND, NodeReport(node=NodeId("a"), floors=(Floor(Factor.PIN, 1),) * 1001, transactions_from=1)),
    ReportRequest(RoundId(-1, NodeId("a"), 1)),
    ReportRequest(RoundId(1 << 64, NodeId("a"), 1)),
])
def test_what_exceeds_the_limits_of_a_message_is_refused(message: wire.AnyMessage) -> None:
    with pytest.raises(InvalidInput):
        wire.encode(message)


def test_long_reasons_are_cut_between_characters() -> None:
    assert short_text("short") == "short"
    cut = short_text("é" * 2000)
    assert len(cut.encode()) <= MAX_TEXT_BYTES
    assert cut.endswith("é...")
    message = ReportFailed(ROUND, NodeId("a"), "é" * 2000)
    assert wire.decode(body_of(message)) == ReportFailed(ROUND, NodeId("a"), cut)


def test_a_report_takes_few_bytes_however_many_tables_a_zone_has() -> None:
    spread = {table: [partition for partition in range(25) if (partition * 7) % 40 < 3] for table in range(1000)}
    report = NodeReport(node=NodeId("node-17"), floors=(Floor(Factor.LOW_WATERMARK, 1 << 50),),
                        hosted=HostedPartitions.of(spread), transactions_from=1 << 50)
    assert len(wire.encode(ReportAnswer(ROUND, report))) < 100
