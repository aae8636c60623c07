# SPDX-License-Identifier: Apache-2.0
"""The messages of a transfer, and the encoding of their frames (`docs/formats/raftlog-transfer.md`). Pure.

A frame is a head of 12 bytes (length of the body, kind, CRC of both), the body, and the CRC of the body. The CRC of the
head keeps a side from waiting for the bytes of a damaged length. Pieces and entries are binary, other messages JSON.

>>> frame = encode(Installed(index=60))
>>> body_bytes(frame[:HEAD_BYTES], limit=100), frame[HEAD_BYTES:-CRC_BYTES], decode(frame)
(12, b'{"index":60}', Installed(index=60))
"""

from __future__ import annotations

import struct
from typing import Any, TypeAlias

import attrs

from compactlib._arguments import is_whole
from compactlib.codec import JsonCodec
from compactlib.errors import CorruptData, Unsupported
from compactlib.files.checksum import crc32
from compactlib.raftlog.errors import FrameDamaged, RefusalReason
from compactlib.raftlog.snapshot_meta import SnapshotManifest
from compactlib.raftlog.values import MAX_INDEX
from compactlib.raftlog.wal.frames import Frame, decode_frame

VERSION = 1
"""The version of the transfer; an offer begins with it. `Refuse` has the same bytes in every version."""
HEAD_BYTES = 12
CRC_BYTES = 4
MAX_TEXT_BYTES = 1000
MAX_FRAME_ENTRIES = 1024
OVERHEAD_BYTES = 1 << 17
"""Upper bound of a frame's size without payloads."""

_HEAD = struct.Struct("<IB3x")
_CRC = struct.Struct("<I")
_VERSION = struct.Struct("<H")
_OFFSET = struct.Struct("<Q")


@attrs.frozen
class Offer:
    """The sender has a snapshot.

    Attributes:
        term: the leader's.
        manifest: the manifest of the snapshot.
        log_id: the id of the log, the same on all members.
    """

    term: int = attrs.field(validator=is_whole(0, MAX_INDEX))
    manifest: SnapshotManifest
    log_id: str


@attrs.frozen
class Accept:
    """The receiver accepts the snapshot.

    Attributes:
        last_applied: the last index that its machine applied, -1 before the first; it needs the live entries above.
        state_offset: bytes of the state that it has from an earlier stream.
        max_entry_bytes: its limit of a payload.
    """

    last_applied: int = attrs.field(validator=is_whole(-1, MAX_INDEX))
    state_offset: int = attrs.field(validator=is_whole(0))
    max_entry_bytes: int


@attrs.frozen
class Live:
    """A piece of the live set's bytes."""

    offset: int
    data: bytes


@attrs.frozen
class Entries:
    """Live entries, ascending, as a sparse frame of the WAL; its `previous` is the index before the first of them."""

    frame: Frame


@attrs.frozen
class State:
    """A piece of the state."""

    offset: int
    data: bytes


@attrs.frozen
class Installed:
    """The snapshot is in force at the receiver, durably."""

    index: int


@attrs.frozen
class Refuse:
    """A side ends the transfer.

    Attributes:
        reason: why.
        term: the highest term that this side knows.
        last_applied: the last index that the receiver applied, -1 before the first entry or if it is not known.
        detail: the reason in words, cut at 1,000 bytes.
    """

    reason: RefusalReason
    term: int = attrs.field(validator=is_whole(0, MAX_INDEX))
    last_applied: int = attrs.field(validator=is_whole(-1, MAX_INDEX))
    detail: str


Message: TypeAlias = Offer | Accept | Live | Entries | State | Installed | Refuse
_KINDS: tuple[type[Message], ...] = (Offer, Accept, Live, Entries, State, Installed, Refuse)
"""The kind of a frame is the place of its message here, from 1: append only."""
_CODECS: dict[type[Message], JsonCodec[Any]] = {kind: JsonCodec(kind) for kind in (Offer, Accept, Installed, Refuse)}


def encode(message: Message) -> bytes:
    """The frame of a message."""
    body = b"".join(_pieces(message))
    head = _HEAD.pack(len(body), _KINDS.index(type(message)) + 1)
    return b"".join((head, _CRC.pack(crc32(head)), body, _CRC.pack(crc32(body))))


def body_bytes(head: bytes, *, limit: int) -> int:
    """The length of the body that follows the head of a frame.

    Raises:
        FrameDamaged: the head is damaged, or the body is longer than `limit`.
    """
    if crc32(head[:_HEAD.size]) != _CRC.unpack_from(head, _HEAD.size)[0]:
        raise FrameDamaged(expected="the head of a frame with its CRC", found=head.hex())
    length, _ = _HEAD.unpack_from(head)
    if length > limit:
        raise FrameDamaged(expected=f"a frame of at most {limit} bytes", found=str(length))
    return int(length)


def decode(frame: bytes) -> Message:
    """The message of a frame whose head was checked.

    Raises:
        FrameDamaged: the frame is damaged.
        Unsupported: another release sent it.
    """
    length, kind = _HEAD.unpack_from(frame)
    body = frame[HEAD_BYTES:HEAD_BYTES + length]
    if len(frame) != HEAD_BYTES + length + CRC_BYTES or crc32(body) != _CRC.unpack_from(frame, HEAD_BYTES + length)[0]:
        raise FrameDamaged(expected=f"{length} bytes with their CRC", found=f"{len(frame)} bytes in all")
    if not 1 <= kind <= len(_KINDS):
        raise Unsupported(f"a frame of kind {kind} came; this release knows kinds 1 to {len(_KINDS)}: have both sides "
                          f"run the same release")
    try:
        return _message(_KINDS[kind - 1], body)
    except (struct.error, ValueError, CorruptData) as error:
        raise FrameDamaged(expected=f"a frame of kind {kind}", found=str(error)) from None


def _pieces(message: Message) -> list[bytes]:
    match message:
        case Live(offset, data) | State(offset, data):
            return [_OFFSET.pack(offset), data]
        case Entries(frame):
            return frame.encode(0, 0, 0)
        case Offer():
            return [_VERSION.pack(VERSION), _CODECS[Offer].encode(message)]
        case Refuse(detail=detail):
            text = detail.encode("utf-8", "replace")[:MAX_TEXT_BYTES].decode("utf-8", "ignore")
            return [_CODECS[Refuse].encode(attrs.evolve(message, detail=text))]
    return [_CODECS[type(message)].encode(message)]


def _message(kind: type[Message], body: bytes) -> Message:
    if kind is Live or kind is State:
        return kind(_OFFSET.unpack_from(body)[0], body[_OFFSET.size:])
    if kind is Entries:
        decoded = decode_frame(body, 0, 0)
        if decoded is None or not decoded[0].is_sparse or decoded[0].frame_bytes != len(body):
            raise ValueError("no sparse frame")
        for _ in decoded[0].runs():
            pass
        return Entries(decoded[0])
    if kind is Offer:
        (version,) = _VERSION.unpack_from(body)
        if version != VERSION:
            raise Unsupported(f"the snapshot is offered in version {version} of the transfer; this release knows "
                              f"version {VERSION}: have both sides run the same release")
        body = body[_VERSION.size:]
    if len(body) > OVERHEAD_BYTES:
        # JSON takes many times as much memory.
        raise ValueError(f"{len(body)} bytes of JSON")
    message: Message = _CODECS[kind].decode(body, "<stream>")
    return message
