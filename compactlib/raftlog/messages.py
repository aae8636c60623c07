# SPDX-License-Identifier: Apache-2.0
"""The messages of a transfer, and the encoding of their frames (`docs/formats/raftlog-transfer.md`). Pure.

A frame is a head of 12 bytes (length of the body, kind, CRC of both), the body, and the CRC of the body. The CRC of the
head keeps a side from waiting for the bytes of a damaged length.

>>> frame = encode(Installed(index=60))
>>> len(frame), body_bytes(frame[:HEAD_BYTES], limit=100), decode(frame)
(24, 8, Installed(index=60))
"""

from __future__ import annotations

import struct
from typing import TypeAlias

import attrs

from compactlib.errors import InvalidInput, Unsupported
from compactlib.files.checksum import crc32
from compactlib.raftlog.errors import FrameDamaged, RefusalReason
from compactlib.raftlog.snapshot_meta import MAX_CLUSTER_BYTES, SnapshotManifest
from compactlib.raftlog.values import MAX_INDEX, Entry

VERSION = 1
"""The version of the transfer; an offer names it. `Refuse` has the same bytes in every version."""
HEAD_BYTES = 12
CRC_BYTES = 4
MAX_LOG_ID_BYTES = 255
MAX_TEXT_BYTES = 1000
MAX_FRAME_ENTRIES = 1024
OVERHEAD_BYTES = 1 << 17
"""Upper bound of a frame's size without payloads."""

_HEAD = struct.Struct("<IB3x")
_CRC = struct.Struct("<I")
_VERSION = struct.Struct("<H")
_OFFER = struct.Struct("<QQQIQQIQIIH")
_ACCEPT = struct.Struct("<QQQ")
_OFFSET = struct.Struct("<Q")
_ENTRIES = struct.Struct("<QI")
_ENTRY = struct.Struct("<QQI")
_REFUSE = struct.Struct("<BQQ")


@attrs.frozen
class Offer:
    """The sender has a snapshot.

    Attributes:
        term: the leader's.
        manifest: of the snapshot.
        log_id: of the log, the same on all members.
    """

    term: int
    manifest: SnapshotManifest
    log_id: str


@attrs.frozen
class Accept:
    """The receiver accepts the snapshot.

    Attributes:
        last_applied: of its machine, -1 before the first entry; the receiver needs the live entries above.
        state_offset: bytes of the state that it has from an earlier stream.
        max_entry_bytes: its limit of a payload.
    """

    last_applied: int
    state_offset: int
    max_entry_bytes: int


@attrs.frozen
class Live:
    """A piece of the live set's bytes."""

    offset: int
    data: bytes


@attrs.frozen
class Entries:
    """Live entries, ascending; `previous` is the index of the first entry's predecessor, to detect a lost frame."""

    previous: int
    entries: tuple[Entry, ...]


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
        last_applied: of the receiver, -1 before the first entry or if it is not known.
        detail: the reason in words, cut at 1,000 bytes.
    """

    reason: RefusalReason
    term: int
    last_applied: int
    detail: str


Message: TypeAlias = Offer | Accept | Live | Entries | State | Installed | Refuse
_KINDS: tuple[type[Message], ...] = (Offer, Accept, Live, Entries, State, Installed, Refuse)
"""The kind of a frame is the place of its message here, from 1: append only."""


def encode(message: Message) -> bytes:
    """The frame of a message.

    Raises:
        InvalidInput: the log's id is too long.
    """
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
    body = memoryview(frame)[HEAD_BYTES:HEAD_BYTES + length]
    if len(frame) != HEAD_BYTES + length + CRC_BYTES or crc32(body) != _CRC.unpack_from(frame, HEAD_BYTES + length)[0]:
        raise FrameDamaged(expected=f"{length} bytes with their CRC", found=f"{len(frame)} bytes in all")
    if not 1 <= kind <= len(_KINDS):
        raise Unsupported(f"a frame of kind {kind} came; this release knows kinds 1 to {len(_KINDS)}: have both sides "
                          f"run the same release")
    try:
        return _message(_KINDS[kind - 1], body)
    except (struct.error, ValueError) as error:
        # ValueError: invalid UTF-8, an unknown reason, or a value that the manifest refuses.
        raise FrameDamaged(expected=f"a frame of kind {kind}", found=str(error)) from None


def _pieces(message: Message) -> list[bytes]:
    match message:
        case Offer(term, of, log_id):
            name = log_id.encode()
            if len(name) > MAX_LOG_ID_BYTES:
                raise InvalidInput(f"the log id {log_id!r:.100} has {len(name)} bytes; at most {MAX_LOG_ID_BYTES} fit")
            return [_VERSION.pack(VERSION), _OFFER.pack(
                term, of.index, of.term, of.machine_version, of.live_count, of.live_bytes, of.live_crc, of.state_bytes,
                of.state_crc, len(of.cluster), len(name)), of.cluster, name]
        case Accept(last_applied, state_offset, max_entry_bytes):
            return [_ACCEPT.pack(_above(last_applied), state_offset, max_entry_bytes)]
        case Live(offset, data) | State(offset, data):
            return [_OFFSET.pack(offset), data]
        case Entries(previous, entries):
            pieces = [_ENTRIES.pack(_above(previous), len(entries))]
            for index, term, payload in entries:
                pieces += (_ENTRY.pack(index, term, len(payload)), payload)
            return pieces
        case Installed(index):
            return [_OFFSET.pack(index)]
        case Refuse(reason, term, last_applied, detail):
            text = detail.encode("utf-8", "replace")[:MAX_TEXT_BYTES].decode("utf-8", "ignore").encode()
            return [_REFUSE.pack(reason.value, term, _above(last_applied)), text]


def _message(kind: type[Message], body: memoryview) -> Message:
    if kind is Offer:
        return _offer(body)
    if kind is Accept:
        applied, state_offset, max_entry_bytes = _ACCEPT.unpack(body)
        return Accept(applied - 1, state_offset, max_entry_bytes)
    if kind is Live or kind is State:
        return kind(_OFFSET.unpack_from(body)[0], bytes(body[_OFFSET.size:]))
    if kind is Entries:
        return _entries(body)
    if kind is Installed:
        return Installed(*_OFFSET.unpack(body))
    reason, term, applied = _REFUSE.unpack_from(body)
    return Refuse(RefusalReason(reason), term, applied - 1, bytes(body[_REFUSE.size:]).decode())


def _offer(body: memoryview) -> Offer:
    (version,) = _VERSION.unpack_from(body)
    if version != VERSION:
        raise Unsupported(f"the snapshot is offered in version {version} of the transfer; this release knows version "
                          f"{VERSION}: have both sides run the same release")
    (term, index, of_term, machine_version, live_count, live_bytes, live_crc, state_bytes, state_crc, cluster_bytes,
     id_bytes) = _OFFER.unpack_from(body, _VERSION.size)
    names = bytes(body[_VERSION.size + _OFFER.size:])
    if len(names) != cluster_bytes + id_bytes or cluster_bytes > MAX_CLUSTER_BYTES or id_bytes > MAX_LOG_ID_BYTES:
        raise ValueError(f"{len(names)} bytes of cluster and log id, {cluster_bytes} and {id_bytes} announced")
    manifest = SnapshotManifest(
        index=index, term=of_term, machine_version=machine_version, cluster=names[:cluster_bytes],
        live_count=live_count, live_bytes=live_bytes, live_crc=live_crc, state_bytes=state_bytes, state_crc=state_crc)
    return Offer(term, manifest, names[cluster_bytes:].decode())


def _entries(body: memoryview) -> Entries:
    above, count = _ENTRIES.unpack_from(body)
    place = _ENTRIES.size
    entries: list[Entry] = []
    for _ in range(count):
        index, term, length = _ENTRY.unpack_from(body, place)
        place += _ENTRY.size
        entries.append(Entry(index, term, bytes(body[place:place + length])))
        place += length
    if place != len(body):
        raise ValueError(f"entries of {place} bytes in a body of {len(body)}")
    return Entries(above - 1, tuple(entries))


def _above(index: int) -> int:
    # index + 1, so that -1 is 0. The highest index does not fit, and is written as its predecessor.
    return min(index + 1, MAX_INDEX)
