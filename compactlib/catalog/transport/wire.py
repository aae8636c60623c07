# SPDX-License-Identifier: Apache-2.0
"""Messages as bytes: frames with a length, a type, a version and a checksum (`docs/formats/catalog-messages.md`).

>>> from compactlib.catalog.round.messages import ReportRequest, RoundId
>>> from compactlib.catalog.model.values import NodeId
>>> request = ReportRequest(RoundId(term=3, coordinator=NodeId("a"), number=1))
>>> frame = encode(request)
>>> len(frame), decode(frame[4:]) == request
(17, True)

Whatever is wrong with a frame has a name: `UnknownMessage` and `MessageTooNew` for whole frames that this release
cannot read, so that its sender can be notified, and `MessageDamaged` for everything else.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

from compactlib.catalog.errors import MessageDamaged, MessageTooLarge, MessageTooNew, UnknownMessage
from compactlib.catalog.model.partitions import HostedPartitions
from compactlib.catalog.model.values import Culprit, Factor, Floor, NodeId, NodeReport, Unavailable
from compactlib.catalog.round.messages import (
    MAX_NAME_BYTES,
    MAX_TEXT_BYTES,
    MAX_ZONES,
    Hello,
    Message,
    PublishAnswer,
    PublishTime,
    Refusal,
    RefusalReason,
    ReportAnswer,
    ReportFailed,
    ReportRequest,
    RoundId,
    ZoneResult,
    checked_name,
    short_text,
)
from compactlib.errors import CompactlibError, CorruptData, InvalidInput
from compactlib.files.checksum import crc32

VERSION = 1
"""The format version that this release writes, and the highest that it reads."""
LENGTH_BYTES = 4
"""Bytes of the length before each frame, little-endian."""
MAX_MESSAGE_BYTES = 16 << 20
"""The default limit of one frame, its length not counted: room for a report on a million tables."""

_HEAD = struct.Struct("<HH")
_CRC = struct.Struct("<I")
_MIN_FRAME = _HEAD.size + _CRC.size

_FACTORS: tuple[Factor, ...] = (
    Factor.ACTIVE_TRANSACTIONS, Factor.RAFT_RECOVERY, Factor.INDEX_BUILD, Factor.REBALANCE, Factor.LOW_WATERMARK,
    Factor.PIN, Factor.MISSING_NODE, Factor.MISSING_PARTITION, Factor.DROPPED_TABLE, Factor.NO_ANSWER,
    Factor.UNAVAILABLE, Factor.NO_ASSIGNMENTS,
)
"""A factor's number on the wire is its place here: append only."""
_FACTOR_NUMBERS = {factor: number for number, factor in enumerate(_FACTORS)}
_MAX_FLOORS = 1000
_MAX_CULPRIT_PARTITIONS = 65_000

AnyMessage: TypeAlias = Message | Hello
"""What a frame can hold: `Hello` is for transports, the rest for nodes."""


def encode(message: AnyMessage, *, max_bytes: int = MAX_MESSAGE_BYTES) -> bytes:
    """The message as one frame, its length in front. O(size).

    Raises:
        MessageTooLarge: the frame exceeds `max_bytes`.
        InvalidInput: a name is empty or too long, or there are too many zones.
    """
    number, write, _ = _CODECS[type(message)]
    body = _Writer()
    body.data += _HEAD.pack(number, VERSION)
    write(body, message)
    size = len(body.data) + _CRC.size
    if size > max_bytes:
        raise MessageTooLarge(size=size, limit=max_bytes)
    return b"".join((size.to_bytes(LENGTH_BYTES, "little"), body.data, _CRC.pack(crc32(body.data))))


def decode(frame: bytes, *, sender: str = "") -> AnyMessage:
    """The message in a frame, its length taken off. O(size).

    Args:
        frame: what followed the length.
        sender: the node that sent it, for errors.

    Raises:
        MessageDamaged: not what `encode` wrote.
        UnknownMessage: a whole frame of a type that this release does not know.
        MessageTooNew: a whole frame in a format version that it does not read.
    """
    if len(frame) < _MIN_FRAME:
        raise MessageDamaged(sender=sender, offset=0, expected=f"at least {_MIN_FRAME} bytes", found=str(len(frame)))
    end = len(frame) - _CRC.size
    stored, computed = _CRC.unpack_from(frame, end)[0], crc32(memoryview(frame)[:end])
    if stored != computed:
        raise MessageDamaged(sender=sender, offset=end, expected=f"CRC {computed:08x}", found=f"{stored:08x}")
    number, version = _HEAD.unpack_from(frame)
    kind = _TYPES.get(number)
    if kind is None:
        raise UnknownMessage(message_type=number, sender=sender)
    if not 1 <= version <= VERSION:
        raise MessageTooNew(message_type=number, found=version, supported=VERSION, sender=sender)
    reader = _Reader(frame, _HEAD.size, end)
    try:
        message: AnyMessage = _CODECS[kind].read(reader)
        if reader.at != end:
            raise ValueError(f"{end - reader.at} bytes too many")
    except (ValueError, IndexError, OverflowError, CorruptData) as error:
        found = error.found if isinstance(error, CorruptData) else str(error)
        raise MessageDamaged(sender=sender, offset=reader.at, expected=f"a {kind.__name__}", found=found) from None
    return message


class _Writer:
    """Appends numbers, names and texts to bytes."""

    __slots__ = ("data",)

    def __init__(self) -> None:
        self.data = bytearray()

    def number(self, value: int) -> None:
        """A varint, 0 .. 2**64 - 1."""
        if not 0 <= value < 1 << 64:
            raise InvalidInput(f"{value} does not fit into a message; numbers are 0 to 2**64 - 1")
        data = self.data
        while value > 0x7F:
            data.append(value & 0x7F | 0x80)
            value >>= 7
        data.append(value)

    def optional(self, value: int | None) -> None:
        """0 for `None`, else the number plus 1."""
        self.number(0 if value is None else value + 1)

    def raw(self, value: bytes) -> None:
        """A length and as many bytes."""
        self.number(len(value))
        self.data += value

    def name(self, value: str) -> None:
        """A node's or a cluster's name."""
        self.raw(checked_name(value).encode())

    def text(self, value: str) -> None:
        """A reason, cut if it is too long."""
        self.raw(short_text(value).encode("utf-8", "replace"))

    def node(self, node: NodeId) -> None:
        """A name and an incarnation."""
        self.name(node.name)
        self.number(node.incarnation)

    def round(self, round_id: RoundId) -> None:
        """Term, coordinator, number."""
        self.number(round_id.term)
        self.node(round_id.coordinator)
        self.number(round_id.number)


class _Reader:
    """Reads what `_Writer` wrote; `ValueError` says what is wrong, and `at` where."""

    __slots__ = ("at", "data", "end")

    def __init__(self, data: bytes, at: int, end: int) -> None:
        self.data = data
        self.at = at
        self.end = end

    def number(self, most: int = (1 << 64) - 1) -> int:
        value = shift = 0
        while True:
            if self.at >= self.end:
                raise ValueError("the end of the frame inside a number")
            byte = self.data[self.at]
            self.at += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                break
            shift += 7
            if shift > 63:
                raise ValueError("a number of more than 10 bytes")
        if (shift and not byte) or value > most:
            raise ValueError(f"the number {value}, which is too large or could be shorter")
        return value

    def optional(self) -> int | None:
        value = self.number()
        return value - 1 if value else None

    def raw(self, most: int) -> bytes:
        size = self.number(most)
        start, self.at = self.at, self.at + size
        if self.at > self.end:
            raise ValueError(f"{size} bytes announced, {self.end - start} left")
        return self.data[start:self.at]

    def name(self) -> str:
        return checked_name(self.raw(MAX_NAME_BYTES).decode())

    def text(self) -> str:
        return self.raw(MAX_TEXT_BYTES).decode()

    def node(self) -> NodeId:
        return NodeId(self.name(), self.number())

    def round(self) -> RoundId:
        return RoundId(self.number(), self.node(), self.number())


def _write_hello(to: _Writer, message: Hello) -> None:
    to.name(message.cluster)
    to.node(message.node)


def _read_hello(of: _Reader) -> Hello:
    return Hello(of.name(), of.node())


def _write_request(to: _Writer, message: ReportRequest) -> None:
    to.round(message.round)


def _read_request(of: _Reader) -> ReportRequest:
    return ReportRequest(of.round())


def _write_culprit(to: _Writer, culprit: Culprit) -> None:
    to.text(culprit.node)
    to.optional(culprit.table)
    to.number(len(culprit.partitions))
    for partition in culprit.partitions:
        to.number(partition)
    to.optional(culprit.index)
    to.optional(culprit.zone)
    to.text(culprit.owner)


def _read_culprit(of: _Reader) -> Culprit:
    node, table = of.text(), of.optional()
    partitions = tuple(of.number() for _ in range(of.number(_MAX_CULPRIT_PARTITIONS)))
    return Culprit(node=node, table=table, partitions=partitions, index=of.optional(), zone=of.optional(),
                   owner=of.text())


def _read_factor(of: _Reader) -> Factor:
    number = of.number()
    if number >= len(_FACTORS):
        raise ValueError(f"factor {number}; the last one is {len(_FACTORS) - 1}")
    return _FACTORS[number]


def _write_answer(to: _Writer, message: ReportAnswer) -> None:
    report = message.report
    if len(report.floors) + len(report.unavailable) > _MAX_FLOORS:
        raise InvalidInput(f"a report with {len(report.floors)} floors and {len(report.unavailable)} unavailable "
                           f"sources; the limit is {_MAX_FLOORS} together")
    to.round(message.round)
    to.node(report.node)
    to.number(report.transactions_from)
    to.number(len(report.floors))
    for floor in report.floors:
        to.number(_FACTOR_NUMBERS[floor.factor])
        to.number(floor.time)
        _write_culprit(to, floor.culprit)
    to.number(len(report.unavailable))
    for absent in report.unavailable:
        to.number(_FACTOR_NUMBERS[absent.factor])
        to.text(absent.reason)
        _write_culprit(to, absent.culprit)
    to.raw(report.hosted.to_bytes())


def _read_answer(of: _Reader) -> ReportAnswer:
    round_id, node, transactions_from = of.round(), of.node(), of.number()
    floors = tuple(Floor(_read_factor(of), of.number(), _read_culprit(of)) for _ in range(of.number(_MAX_FLOORS)))
    absent = tuple(Unavailable(_read_factor(of), of.text(), _read_culprit(of)) for _ in range(of.number(_MAX_FLOORS)))
    hosted = HostedPartitions.from_bytes(of.raw(of.end))
    report = NodeReport(node=node, floors=floors, unavailable=absent, hosted=hosted,
                        transactions_from=transactions_from)
    return ReportAnswer(round_id, report)


def _write_failed(to: _Writer, message: ReportFailed) -> None:
    to.round(message.round)
    to.node(message.node)
    to.text(message.reason)


def _read_failed(of: _Reader) -> ReportFailed:
    return ReportFailed(of.round(), of.node(), of.text())


def _write_publish(to: _Writer, message: PublishTime) -> None:
    to.round(message.round)
    to.number(message.time)


def _read_publish(of: _Reader) -> PublishTime:
    return PublishTime(of.round(), of.number())


def _write_published(to: _Writer, message: PublishAnswer) -> None:
    if len(message.zones) > MAX_ZONES:
        raise InvalidInput(f"{len(message.zones)} zones in one answer; the limit is {MAX_ZONES}")
    to.round(message.round)
    to.node(message.node)
    to.text(message.error)
    to.number(len(message.zones))
    for result in message.zones:
        to.number(result.zone)
        to.number(result.published)
        to.number(result.skipped)
        to.text(result.error)


def _read_published(of: _Reader) -> PublishAnswer:
    round_id, node, error = of.round(), of.node(), of.text()
    zones = tuple(ZoneResult(of.number(), of.number(), of.number(), of.text()) for _ in range(of.number(MAX_ZONES)))
    return PublishAnswer(round_id, node, zones, error)


def _write_refusal(to: _Writer, message: Refusal) -> None:
    to.node(message.node)
    to.number(message.reason)
    to.number(message.term)
    to.number(message.round is not None)
    if message.round is not None:
        to.round(message.round)
    to.text(message.detail)


def _read_refusal(of: _Reader) -> Refusal:
    node, reason, term = of.node(), RefusalReason(of.number()), of.number()
    return Refusal(node, reason, term, of.round() if of.number(1) else None, of.text())


class _Codec(NamedTuple):
    number: int
    write: Callable[[_Writer, Any], None]
    read: Callable[[_Reader], AnyMessage]


_CODECS: dict[type[Any], _Codec] = {
    Hello: _Codec(1, _write_hello, _read_hello),
    ReportRequest: _Codec(2, _write_request, _read_request),
    ReportAnswer: _Codec(3, _write_answer, _read_answer),
    ReportFailed: _Codec(4, _write_failed, _read_failed),
    PublishTime: _Codec(5, _write_publish, _read_publish),
    PublishAnswer: _Codec(6, _write_published, _read_published),
    Refusal: _Codec(7, _write_refusal, _read_refusal),
}
_TYPES: dict[int, type[Any]] = {codec.number: kind for kind, codec in _CODECS.items()}


def refusal_of(error: CompactlibError, me: NodeId) -> Refusal | None:
    """What to answer to a frame that `decode` refused; `None` if the frame was damaged, so its type is unknown."""
    if isinstance(error, UnknownMessage):
        return Refusal(me, RefusalReason.UNKNOWN_TYPE, 0, None, str(error))
    if isinstance(error, MessageTooNew):
        return Refusal(me, RefusalReason.UNKNOWN_VERSION, 0, None, str(error))
    return None
