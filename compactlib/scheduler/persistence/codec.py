# SPDX-License-Identifier: Apache-2.0
"""Records as bytes: a header, JSON, a checksum. `docs/formats/scheduler-state.md` says them to the byte."""

from __future__ import annotations

import enum
import json
from typing import Any

from compactlib._arguments import refuses_misfits
from compactlib.errors import CorruptData, InvalidInput
from compactlib.files.record_frame import RecordFrame
from compactlib.scheduler.model.poll import PollRequest, PollResponse
from compactlib.scheduler.model.update import Operation
from compactlib.scheduler.model.values import Command
from compactlib.scheduler.persistence.plain import Plain, from_plain, to_plain

MAGIC = b"CLSCHED\0"
VERSION = 3
RECORDS = RecordFrame("scheduler record", MAGIC, VERSION, "<HHI")
"""Kind and length of the body, then the body."""


class RecordKind(enum.IntEnum):
    """What a record holds."""

    HEAD = 1
    ROWS = 2
    COMMAND = 3
    MESSAGE = 4
    SETTINGS = 5


def encode_record(kind: RecordKind, plain: Plain) -> bytes:
    """A record of plain values. O(size).

    Raises:
        InvalidInput: a number in it is infinite or none.
    """
    try:
        body = json.dumps(plain, separators=(",", ":"), allow_nan=False).encode("ascii")
    except ValueError as error:
        raise InvalidInput(f"the values cannot be stored: {error}; give finite numbers") from None
    return RECORDS.encode(kind, len(body), body=body)


def decode_record(data: bytes, kind: RecordKind, place: str) -> Plain:
    """The plain values of a record. O(size).

    Args:
        data: the record.
        kind: what it must be.
        place: where it was read, for the errors.

    Raises:
        CorruptData: the bytes are not those of such a record.
        Unsupported: it was written by another release.
    """
    number, size, body = RECORDS.decode(data, place)
    if (number, size) != (kind, len(body)):
        raise CorruptData(path=place, offset=10, expected=f"kind {int(kind)}, {len(body)} bytes",
                          found=f"kind {number}, {size} bytes")
    try:
        return json.loads(body)
    except (ValueError, RecursionError) as error:
        raise CorruptData(path=place, offset=RECORDS.header_bytes, expected="JSON", found=str(error)) from error


def kind_of(data: bytes) -> int:
    """The kind that a record says it is of; nothing is checked. 0 for bytes that are too short for a record."""
    return int.from_bytes(data[10:12], "little") if len(data) >= RECORDS.header_bytes else 0


def encode_command(command: Command, operation: Operation) -> bytes:
    """A command and what it does, for a replicated log or a journal. O(size).

    Raises:
        InvalidInput: a number in it is infinite or none, or it holds what has no stored form.
    """
    return encode_record(RecordKind.COMMAND, [_plain(command), _plain(operation)])


def _plain(value: Any) -> Plain:
    try:
        return to_plain(value)
    except (TypeError, AttributeError) as error:
        raise InvalidInput(f"{value!r:.200} cannot be stored: {error}") from error


@refuses_misfits
def decode_command(data: bytes, place: str = "a command") -> tuple[Command, Operation]:
    """The inverse of `encode_command`.

    Raises:
        CorruptData: the bytes are not those of a command.
        Unsupported: it was written by another release.
    """
    plain = decode_record(data, RecordKind.COMMAND, place)
    values = decode_values(plain, place)
    if len(values) == 2 and isinstance(values[0], Command) and isinstance(values[1], Operation):
        return values[0], values[1]
    raise CorruptData(path=place, offset=RECORDS.header_bytes, expected="a command and an operation",
                      found=f"{values!r:.200}")


def encode_message(message: PollRequest | PollResponse | Operation) -> bytes:
    """A request, a response or an operation, for a transport or for a host's own log. O(size).

    Raises:
        InvalidInput: a number in it is infinite or none, or it holds what has no stored form.
    """
    return encode_record(RecordKind.MESSAGE, [_plain(message)])


@refuses_misfits
def decode_message(data: bytes, place: str = "a message") -> PollRequest | PollResponse | Operation:
    """The inverse of `encode_message`.

    Raises:
        CorruptData: the bytes are not those of a message.
        Unsupported: it was written by another release.
    """
    values = decode_values(decode_record(data, RecordKind.MESSAGE, place), place)
    if len(values) == 1 and isinstance(values[0], PollRequest | PollResponse | Operation):
        return values[0]
    raise CorruptData(path=place, offset=RECORDS.header_bytes, expected="a message", found=f"{values!r:.200}")


def decode_values(plain: Plain, place: str) -> list[Any]:
    """The values of a list; whatever is wrong with them is `CorruptData`."""
    if not isinstance(plain, list):
        raise CorruptData(path=place, offset=RECORDS.header_bytes, expected="a list", found=type(plain).__name__)
    try:
        return [from_plain(part) for part in plain]
    except (ValueError, TypeError, RecursionError) as error:
        raise CorruptData(path=place, offset=RECORDS.header_bytes, expected="the scheduler's values",
                          found=str(error)) from error
