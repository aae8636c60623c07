# SPDX-License-Identifier: Apache-2.0
"""Messages of a transfer as bytes: frames with a length, a type, a version and a checksum.

The format, to the byte, is in `docs/formats/raftlog-transfer.md`.

>>> frame = encode(Probe(Envelope(transfer=7, attempt=1, term=3)))
>>> len(frame), decode(frame[LENGTH_BYTES:])
(32, Probe(envelope=Envelope(transfer=7, attempt=1, term=3)))
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeAlias, TypeVar

from compactlib.errors import InvalidInput, Unsupported
from compactlib.files.checksum import crc32
from compactlib.raftlog.model.values import MAX_INDEX
from compactlib.raftlog.replication.errors import AbortReason, FrameDamaged
from compactlib.raftlog.replication.messages import (
    EntryChunk,
    Envelope,
    Installed,
    LiveChunk,
    Offer,
    Phase,
    Position,
    Probe,
    Progress,
    Refusal,
    SentEntry,
    StateChunk,
    TransferMessage,
    Unknown,
    Wait,
    Withdrawal,
)
from compactlib.raftlog.snapshots.model import MAX_CLUSTER_BYTES, SnapshotManifest

VERSION = 2
"""The version that this release writes and reads; 1 had no log id in an offer."""
LENGTH_BYTES = 4
"""Bytes of the length before each frame."""
MAX_FRAME_BYTES = 80_000_000
"""The default limit of a frame, its length not counted: room for the largest entry of `TransferLimits`."""
MAX_TEXT_BYTES = 1000
MAX_LOG_ID_BYTES = 255

_LENGTH = struct.Struct("<I")
_HEAD = struct.Struct("<BBHQIQ")
_CRC = struct.Struct("<I")
_META = struct.Struct("<QQIQQIQIIH")
_OFFSET = struct.Struct("<Q")
_CHUNK = struct.Struct("<QI")
_ENTRY = struct.Struct("<QQII")
_PROGRESS = struct.Struct("<BQQQ")
_REASON = struct.Struct("<H")
_REFUSAL = struct.Struct("<HQ")
_MIN_BYTES = _HEAD.size + _CRC.size


def encode(message: TransferMessage) -> bytes:
    """The frame of a message, its length first.

    Raises:
        InvalidInput: it is longer than 4 GiB.
    """
    number = _NUMBERS[type(message)]
    envelope = message.envelope
    head = _HEAD.pack(number, VERSION, 0, envelope.transfer, envelope.attempt, envelope.term)
    body = _BODIES[number - 1][1](message)
    pieces = [head, *body]
    crc = 0
    for piece in pieces:
        crc = crc32(piece, crc)
    length = sum(map(len, pieces)) + _CRC.size
    if length >> 32:
        raise InvalidInput(f"a frame of {length} bytes was to be sent, at most {(1 << 32) - 1} fit; send less at once")
    return b"".join([_LENGTH.pack(length), *pieces, _CRC.pack(crc)])


def frame_length(data: bytes, *, max_bytes: int = MAX_FRAME_BYTES, source: str = "<frame>") -> int:
    """The length in the first 4 bytes of a frame.

    Raises:
        FrameDamaged: no frame is so short, or longer than `max_bytes`.
    """
    (length,) = _LENGTH.unpack(data)
    if not _MIN_BYTES <= length <= max_bytes:
        raise FrameDamaged(path=source, offset=0, expected=f"a length of {_MIN_BYTES} to {max_bytes}",
                           found=str(length))
    return int(length)


def decode(frame: bytes, *, source: str = "<frame>") -> TransferMessage:
    """The message in a frame, without its length.

    Raises:
        FrameDamaged: a check fails.
        Unsupported: another release sent it.
    """
    if len(frame) < _MIN_BYTES:
        raise FrameDamaged(path=source, offset=0, expected=f"at least {_MIN_BYTES} bytes", found=str(len(frame)))
    view = memoryview(frame)
    (stored,) = _CRC.unpack_from(frame, len(frame) - _CRC.size)
    actual = crc32(view[:-_CRC.size])
    if stored != actual:
        raise FrameDamaged(path=source, offset=len(frame) - _CRC.size, expected=f"CRC {actual:#010x}",
                           found=f"{stored:#010x}")
    number, version, zero, transfer, attempt, term = _HEAD.unpack_from(frame)
    if not number or not version or zero:
        raise FrameDamaged(path=source, offset=0, expected=f"a message number, version {VERSION} and zeros",
                           found=f"{number}, {version}, {zero}")
    if version != VERSION or number > len(_BODIES):
        raise Unsupported(f"{source}: message {number} of version {version}; this release knows messages 1 to "
                          f"{len(_BODIES)} of version {VERSION}: have both sides run the same release")
    parse = _BODIES[number - 1][2]
    try:
        message: TransferMessage = parse(Envelope(transfer, attempt, term), frame[_HEAD.size:-_CRC.size])
    except (struct.error, ValueError) as error:
        # ValueError: an enum's number, text that is no UTF-8, or a value that InvalidInput refused.
        raise FrameDamaged(path=source, offset=_HEAD.size, expected=f"the body of message {number}",
                           found=str(error)) from None
    return message


# -- bodies

Pieces: TypeAlias = Sequence[bytes]
_PieceT = TypeVar("_PieceT", LiveChunk, StateChunk)
_BareT = TypeVar("_BareT", Probe, Unknown, Wait)


def _offer(message: Offer) -> Pieces:
    meta, log_id = message.meta, message.log_id.encode()
    if len(log_id) > MAX_LOG_ID_BYTES:
        raise InvalidInput(f"the log id {message.log_id!r:.100} has {len(log_id)} bytes; at most {MAX_LOG_ID_BYTES} "
                           f"fit")
    return [_META.pack(meta.index, meta.term, meta.machine_version, meta.live_count, meta.live_bytes, meta.live_crc,
                       meta.state_bytes, meta.state_crc, len(meta.cluster), len(log_id)), meta.cluster, log_id]


def _parse_offer(envelope: Envelope, body: bytes) -> Offer:
    (index, term, version, live_count, live_bytes, live_crc, state_bytes, state_crc, size,
     id_size) = _META.unpack_from(body)
    names = body[_META.size:]
    if len(names) != size + id_size or size > MAX_CLUSTER_BYTES or id_size > MAX_LOG_ID_BYTES:
        raise ValueError(f"{len(names)} bytes of cluster and log id, {size} and {id_size} announced")
    return Offer(envelope, SnapshotManifest(
        index=index, term=term, machine_version=version, cluster=names[:size], live_count=live_count,
        live_bytes=live_bytes, live_crc=live_crc, state_bytes=state_bytes, state_crc=state_crc),
        names[size:].decode())


def _piece(message: LiveChunk | StateChunk) -> Pieces:
    return [_OFFSET.pack(message.offset), message.data]


def _parse_piece(kind: type[_PieceT], envelope: Envelope, body: bytes) -> _PieceT:
    return kind(envelope, _OFFSET.unpack_from(body)[0], body[_OFFSET.size:])


def _entries(message: EntryChunk) -> Pieces:
    pieces = [_CHUNK.pack(message.previous + 1, len(message.entries))]
    for entry in message.entries:
        pieces += [_ENTRY.pack(entry.index, entry.term, len(entry.payload), entry.crc), entry.payload]
    return pieces


def _parse_entries(envelope: Envelope, body: bytes) -> EntryChunk:
    previous, count = _CHUNK.unpack_from(body)
    place = _CHUNK.size
    entries: list[SentEntry] = []
    for _ in range(count):
        index, term, length, crc = _ENTRY.unpack_from(body, place)
        place += _ENTRY.size
        if place + length > len(body):
            raise ValueError(f"entry {index} of {length} bytes reaches beyond the frame")
        entries.append(SentEntry(index, term, crc, body[place:place + length]))
        place += length
    if place != len(body):
        raise ValueError(f"{len(body) - place} bytes behind the last entry")
    return EntryChunk(envelope, previous - 1, tuple(entries))


def _nothing(message: Probe | Unknown | Wait) -> Pieces:
    return []


def _parse_nothing(kind: type[_BareT], envelope: Envelope, body: bytes) -> _BareT:
    if body:
        raise ValueError(f"{len(body)} bytes where nothing follows")
    return kind(envelope)


def _withdrawal(message: Withdrawal) -> Pieces:
    return [_REASON.pack(message.reason.value), _text(message.detail)]


def _parse_withdrawal(envelope: Envelope, body: bytes) -> Withdrawal:
    (reason,) = _REASON.unpack_from(body)
    return Withdrawal(envelope, AbortReason(reason), _parse_text(body[_REASON.size:]))


def _progress(message: Progress) -> Pieces:
    position = message.position
    offset = position.offset + (position.phase is Phase.ENTRIES)
    return [_PROGRESS.pack(position.phase, offset, _applied(message.last_applied), message.life)]


def _parse_progress(envelope: Envelope, body: bytes) -> Progress:
    number, offset, applied, life = _PROGRESS.unpack(body)
    phase = Phase(number)
    return Progress(envelope, Position(phase, offset - (phase is Phase.ENTRIES)), applied - 1, life)


def _installed(message: Installed) -> Pieces:
    return [_OFFSET.pack(message.index)]


def _parse_installed(envelope: Envelope, body: bytes) -> Installed:
    return Installed(envelope, _OFFSET.unpack(body)[0])


def _refusal(message: Refusal) -> Pieces:
    return [_REFUSAL.pack(message.reason.value, _applied(message.last_applied)), _text(message.detail)]


def _parse_refusal(envelope: Envelope, body: bytes) -> Refusal:
    reason, applied = _REFUSAL.unpack_from(body)
    return Refusal(envelope, AbortReason(reason), applied - 1, _parse_text(body[_REFUSAL.size:]))


def _applied(last_applied: int) -> int:
    # One more than the index, so that "nothing" is 0; the very last index of all is written as the one before it.
    return min(last_applied + 1, MAX_INDEX)


def _text(text: str) -> bytes:
    return text.encode("utf-8", "replace")[:MAX_TEXT_BYTES].decode("utf-8", "ignore").encode()


def _parse_text(body: bytes) -> str:
    if len(body) > MAX_TEXT_BYTES:
        raise ValueError(f"{len(body)} bytes of text, at most {MAX_TEXT_BYTES} are sent")
    return body.decode()


_BODIES: tuple[tuple[type[TransferMessage], Callable[..., Pieces], Callable[[Envelope, bytes], TransferMessage]],
               ...] = (
    (Offer, _offer, _parse_offer),
    (LiveChunk, _piece, partial(_parse_piece, LiveChunk)),
    (EntryChunk, _entries, _parse_entries),
    (StateChunk, _piece, partial(_parse_piece, StateChunk)),
    (Probe, _nothing, partial(_parse_nothing, Probe)),
    (Withdrawal, _withdrawal, _parse_withdrawal),
    (Progress, _progress, _parse_progress),
    (Unknown, _nothing, partial(_parse_nothing, Unknown)),
    (Installed, _installed, _parse_installed),
    (Refusal, _refusal, _parse_refusal),
    (Wait, _nothing, partial(_parse_nothing, Wait)),
)
"""Each message with how it becomes bytes and back. Its number on the wire is its place here, from 1: append only."""
_NUMBERS = {kind: number for number, (kind, _, _) in enumerate(_BODIES, 1)}
