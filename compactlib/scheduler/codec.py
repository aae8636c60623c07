"""Records as bytes: a header, JSON, a checksum. `docs/formats/scheduler-state.md` says them to the byte."""

from __future__ import annotations

import enum
import json
import struct
from typing import Any

from compactlib.checksum import crc32
from compactlib.errors import CorruptData, InvalidInput, Unsupported
from compactlib.scheduler.model import Command
from compactlib.scheduler.plain import Plain, from_plain, to_plain
from compactlib.scheduler.poll import PollRequest, PollResponse
from compactlib.scheduler.update import Operation

MAGIC = b"CLSCHED\0"
VERSION = 1
_HEAD = struct.Struct("<8sHHI")
_CRC = struct.Struct("<I")


class RecordKind(enum.IntEnum):
    """What a record holds."""

    HEAD = 1
    ROWS = 2
    COMMAND = 3
    MESSAGE = 4


def encode_record(kind: RecordKind, plain: Plain) -> bytes:
    """A record of plain values. O(size).

    Raises:
        InvalidInput: a number in it is infinite or none.
    """
    try:
        body = json.dumps(plain, separators=(",", ":"), allow_nan=False).encode("ascii")
    except ValueError as error:
        raise InvalidInput(f"the values cannot be stored: {error}; give finite numbers") from None
    data = _HEAD.pack(MAGIC, VERSION, kind, len(body)) + body
    return data + _CRC.pack(crc32(data))


def decode_record(data: bytes, kind: RecordKind, place: str) -> Plain:
    """The plain values of a record. O(size).

    Args:
        data: the record.
        kind: what it must be.
        place: where it was read, for the errors.

    Raises:
        CorruptData: the bytes are not those of such a record.
        Unsupported: it was written by a newer release.
    """
    if len(data) < _HEAD.size + _CRC.size:
        raise CorruptData(path=place, offset=len(data), expected=f"at least {_HEAD.size + _CRC.size} bytes",
                          found=f"{len(data)} bytes")
    magic, version, found_kind, size = _HEAD.unpack_from(data)
    if magic != MAGIC:
        raise CorruptData(path=place, offset=0, expected=f"magic {MAGIC!r}", found=repr(magic))
    end = len(data) - _CRC.size
    (stored,) = _CRC.unpack_from(data, end)
    actual = crc32(memoryview(data)[:end])
    if stored != actual:
        raise CorruptData(path=place, offset=end, expected=f"CRC {actual:#010x}", found=f"{stored:#010x}")
    if version > VERSION:
        raise Unsupported(f"{place}: scheduler record version {version}; this release reads up to {VERSION}: upgrade")
    if version < 1 or found_kind != kind or _HEAD.size + size != end:
        raise CorruptData(path=place, offset=8, expected=f"version 1, kind {int(kind)}, {end - _HEAD.size} bytes",
                          found=f"version {version}, kind {found_kind}, {size} bytes")
    try:
        return json.loads(data[_HEAD.size:end])
    except (ValueError, RecursionError) as error:
        raise CorruptData(path=place, offset=_HEAD.size, expected="JSON", found=str(error)) from error


def encode_command(command: Command, operation: Operation) -> bytes:
    """A command and what it does, for a replicated log or a journal. O(size).

    Raises:
        InvalidInput: a number in it is infinite or none.
    """
    return encode_record(RecordKind.COMMAND, [to_plain(command), to_plain(operation)])


def decode_command(data: bytes, place: str = "a command") -> tuple[Command, Operation]:
    """The inverse of `encode_command`.

    Raises:
        CorruptData: the bytes are not those of a command.
        Unsupported: it was written by a newer release.
    """
    plain = decode_record(data, RecordKind.COMMAND, place)
    values = decode_values(plain, place)
    if len(values) == 2 and isinstance(values[0], Command) and isinstance(values[1], Operation):
        return values[0], values[1]
    raise CorruptData(path=place, offset=_HEAD.size, expected="a command and an operation", found=f"{values!r:.200}")


def encode_message(message: PollRequest | PollResponse | Operation) -> bytes:
    """A request, a response or an operation, for a transport or for somebody else's log. O(size).

    Raises:
        InvalidInput: a number in it is infinite or none.
    """
    return encode_record(RecordKind.MESSAGE, [to_plain(message)])


def decode_message(data: bytes, place: str = "a message") -> PollRequest | PollResponse | Operation:
    """The inverse of `encode_message`.

    Raises:
        CorruptData: the bytes are not those of a message.
        Unsupported: it was written by a newer release.
    """
    values = decode_values(decode_record(data, RecordKind.MESSAGE, place), place)
    if len(values) == 1 and isinstance(values[0], PollRequest | PollResponse | Operation):
        return values[0]
    raise CorruptData(path=place, offset=_HEAD.size, expected="a message", found=f"{values!r:.200}")


def decode_values(plain: Plain, place: str) -> list[Any]:
    """The values of a list; whatever is wrong with them is `CorruptData`."""
    if not isinstance(plain, list):
        raise CorruptData(path=place, offset=_HEAD.size, expected="a list", found=type(plain).__name__)
    try:
        return [from_plain(part) for part in plain]
    except (ValueError, TypeError, RecursionError) as error:
        raise CorruptData(path=place, offset=_HEAD.size, expected="the scheduler's values", found=str(error)) from error
