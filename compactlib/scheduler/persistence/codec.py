# SPDX-License-Identifier: Apache-2.0
"""Records as bytes: a header, JSON, a checksum. `docs/formats/scheduler-state.md` says them to the byte."""

from __future__ import annotations

import enum
import json
from collections.abc import Iterable
from sys import float_info
from typing import Any, TypeAlias

from compactlib.errors import CorruptData, InvalidInput
from compactlib.files.record_frame import RecordFrame
from compactlib.scheduler.config import SchedulerConfig
from compactlib.scheduler.model.poll import PollRequest, PollResponse
from compactlib.scheduler.model.update import (
    AddBlocks,
    BlocksAdded,
    Configure,
    Opening,
    Operation,
    PlanUpdate,
    Requeue,
    Retain,
    Tick,
)
from compactlib.scheduler.model.values import BlockMeta, Command
from compactlib.scheduler.persistence.plain import Plain, from_plain, misfit, to_plain

MAGIC = b"CLSCHED\0"
VERSION = 5
RECORDS = RecordFrame("scheduler record", MAGIC, VERSION, "<HH")
"""The kind, then the body."""

Change: TypeAlias = Operation | SchedulerConfig | Opening
"""What a command carries: an operation, or the settings that hold from there on, in a host's log as an opening."""
Message: TypeAlias = PollRequest | PollResponse | BlocksAdded | Change
"""What a transport carries, and a host's own log: a request, an answer, an operation or settings."""

_JSON = json.JSONEncoder(separators=(",", ":"), allow_nan=False)


class RecordKind(enum.IntEnum):
    """What a record holds."""

    STATE = 1
    COMMAND = 2
    OPENING = 3
    MESSAGE = 4


def encode_record(kind: RecordKind, plain: Plain) -> bytes:
    """A record of plain values. O(size).

    Raises:
        InvalidInput: a number in it is infinite or none.
    """
    return RECORDS.encode(kind, body=_json(plain))


def encode_rows(rows: Iterable[Plain]) -> bytes:
    """The record of a state with these rows, of which one at a time is needed. O(size)."""
    return RECORDS.encode(RecordKind.STATE, body=b"[" + b",".join(map(_json, rows)) + b"]")


def _json(plain: Plain) -> bytes:
    try:
        return _JSON.encode(plain).encode("ascii")
    except ValueError as error:
        raise InvalidInput(f"the values cannot be stored: {error}; give finite numbers") from None


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
    number, body = RECORDS.decode(data, place)
    if number != kind:
        raise CorruptData(path=place, offset=len(MAGIC) + 2, expected=f"kind {int(kind)}", found=f"kind {number}")
    try:
        return json.loads(body)
    except (ValueError, RecursionError) as error:
        raise CorruptData(path=place, offset=RECORDS.header_bytes, expected="JSON", found=str(error)) from error


def is_opening(data: bytes) -> bool:
    """Whether a record says that it is a command with settings; nothing is checked."""
    return data[len(MAGIC) + 2:RECORDS.header_bytes] == RecordKind.OPENING.to_bytes(2, "little")


def check_operation(operation: Operation) -> None:
    """Raise `InvalidInput` unless it is one that can be carried out; what `prepare` made is trusted. O(parts)."""
    if type(operation) is PlanUpdate or type(operation) is Tick:
        return
    problem: str | None = f"a {type(operation).__name__} is no operation"
    if type(operation) is AddBlocks:
        # BlockMeta looks after itself.
        fits = type(operation.blocks) is tuple and all(type(block) is BlockMeta for block in operation.blocks)
        problem = None if fits else f"AddBlocks.blocks cannot be {operation.blocks!r:.200}"
    elif type(operation) in (Retain, Requeue, Configure):
        problem = misfit(operation, type(operation))
        if type(operation) is Retain and problem is None and not abs(operation.before) <= float_info.max:
            problem = f"Retain.before cannot be {operation.before}"
    if problem is not None:
        raise InvalidInput(f"{problem}; nothing was changed")


def encode_command(command: Command, change: Operation | SchedulerConfig) -> bytes:
    """A command and what it does, for a replicated log or a journal. O(size).

    Raises:
        InvalidInput: a number in it is infinite or none, or it holds what has no stored form.
    """
    if isinstance(change, SchedulerConfig):
        return encode_record(RecordKind.OPENING, [_plain(command), _plain(change)])
    # What a log holds is carried out by whoever reads it, for ever.
    check_operation(change)
    return encode_record(RecordKind.COMMAND, [_plain(command), _plain(change)])


def _plain(value: Any) -> Plain:
    try:
        return to_plain(value)
    except (TypeError, AttributeError) as error:
        raise InvalidInput(f"{value!r:.200} cannot be stored: {error}") from error


def decode_command(data: bytes, place: str = "a command") -> tuple[Command, Operation]:
    """A command with an operation; the inverse of `encode_command`.

    Raises:
        CorruptData: the bytes are not those of such a command.
        Unsupported: it was written by another release.
    """
    command, operation = _decode(data, RecordKind.COMMAND, (Command, Operation), place)
    return command, operation


def decode_entry(data: bytes, place: str) -> tuple[Command, Change]:
    """A command with an operation or with settings; otherwise as `decode_command`."""
    if not is_opening(data):
        return decode_command(data, place)
    command, config = _decode(data, RecordKind.OPENING, (Command, SchedulerConfig), place)
    return command, config


def encode_message(message: Message) -> bytes:
    """A message as bytes. O(size).

    Raises:
        InvalidInput: a number in it is infinite or none, or it holds what has no stored form.
    """
    return encode_record(RecordKind.MESSAGE, [_plain(message)])


def decode_message(data: bytes, place: str = "a message") -> Message:
    """The inverse of `encode_message`.

    Raises:
        CorruptData: the bytes are not those of a message.
        Unsupported: it was written by another release.
    """
    message: Message
    [message] = _decode(data, RecordKind.MESSAGE, (Message,), place)
    return message


def _decode(data: bytes, kind: RecordKind, types: tuple[Any, ...], place: str) -> list[Any]:
    """The values of a record, one of each type; whatever is wrong with them is `CorruptData`."""
    plain = decode_record(data, kind, place)
    try:
        values = [from_plain(part) for part in plain]
        if len(values) == len(types) and all(map(isinstance, values, types)):
            return values
        found = f"{values!r:.200}"
    except (ValueError, TypeError, RecursionError) as error:
        found = str(error)
    raise CorruptData(path=place, offset=RECORDS.header_bytes, expected=f"values of {kind.name.lower()}", found=found)
