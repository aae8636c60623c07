# SPDX-License-Identifier: Apache-2.0
"""`send_snapshot` and `receive_snapshot`: a snapshot with its live entries goes to another member over a stream.

    sender                                        receiver
    Offer ─────────────────────────────────────▶  refuses, or accepts
          ◀─────────────────────────────────────  Accept(last_applied, state_offset)
    Live… Entries… State… ─────────────────────▶  writes them beside the log
          ◀─────────────────────────────────────  Installed, once the snapshot is in force, durably

Both sides are generators without I/O but the logs': they yield frames to write, and take frames that were read. `_run`
runs a side over a stream of asyncio that the host has opened; each step, with its disk work, in a thread. Live entries
are sent in the order of the log and before the state, each frame with the index before its first entry. Neither side
has timers: the host closes a silent stream, which ends both sides.

A frame (`docs/formats/raftlog-transfer.md`) is a head of 12 bytes (length of the body, kind, version, CRC of these),
the body, and the CRC of the body. The CRC of the head keeps a side from waiting for the bytes of a damaged length.
Pieces and entries are binary, other messages JSON.

>>> frame = encode(Installed(index=60))
>>> body_bytes(frame[:HEAD_BYTES], limit=100), frame[HEAD_BYTES:-CRC_BYTES], decode(frame)
(12, b'{"index":60}', Installed(index=60))

The receiver changes nothing in the log before the whole snapshot is on the disk and was checked. The state that has
arrived stays for the next stream with the same snapshot, unless a disk refused or the state is not the manifest's.
"""

from __future__ import annotations

import asyncio
import contextlib
import struct
from collections.abc import Callable, Generator, Iterator
from functools import partial
from itertools import islice
from typing import Any, Protocol, TypeAlias, TypeVar

import attrs

from compactlib._arguments import is_whole
from compactlib.codec import JsonCodec
from compactlib.errors import CompactlibError, CorruptData, InvalidInput, Stale, StorageError, Unsupported
from compactlib.files.checksum import crc32
from compactlib.indexset import IndexSet
from compactlib.raftlog.errors import FrameDamaged, RefusalReason, TransferBroken, TransferRefused
from compactlib.raftlog.pins import Pin
from compactlib.raftlog.raft_log import RaftLog
from compactlib.raftlog.snapshot_meta import SnapshotManifest
from compactlib.raftlog.snapshots import Incoming
from compactlib.raftlog.values import MAX_INDEX, MAX_PAYLOAD_BYTES, Entry
from compactlib.raftlog.wal.frames import Frame, decode_frame, sparse_frame

VERSION = 1
"""The version of the transfer, in each frame. `Refuse` has the same bytes in every version."""
HEAD_BYTES = 12
CRC_BYTES = 4
MAX_TEXT = 1000
MAX_FRAME_ENTRIES = 1024
OVERHEAD_BYTES = 1 << 17
"""Upper bound of a frame's size without payloads."""
_MAX_CHUNK_BYTES = 8 << 20
_MAX_MACHINE_VERSION = (1 << 32) - 1

_HEAD = struct.Struct("<IBB2x")
_CRC = struct.Struct("<I")
_OFFSET = struct.Struct("<Q")


@attrs.frozen
class Offer:
    """The sender has a snapshot of the log `log_id`, and leads in `term`."""

    term: int = attrs.field(validator=is_whole(0, MAX_INDEX))
    manifest: SnapshotManifest
    log_id: str


@attrs.frozen
class Accept:
    """The receiver accepts: it needs the live entries above `last_applied`, and the state from an offset."""

    last_applied: int = attrs.field(validator=is_whole(-1, MAX_INDEX))
    state_offset: int = attrs.field(validator=is_whole(0))
    max_entry_bytes: int


@attrs.frozen
class Piece:
    """A piece of the bytes of the live set or of the state."""

    offset: int
    data: bytes


class Live(Piece):
    """A piece of the live set."""


@attrs.frozen
class Entries:
    """Live entries, ascending, as a sparse frame of the WAL; its `previous` is the index before the first of them."""

    frame: Frame


class State(Piece):
    """A piece of the state."""


@attrs.frozen
class Installed:
    """The snapshot is in force at the receiver, durably."""

    index: int


@attrs.frozen
class Refuse:
    """A side ends the transfer; the fields are those of `TransferRefused`."""

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
    if isinstance(message, Piece):
        body = [_OFFSET.pack(message.offset), message.data]
    elif isinstance(message, Entries):
        body = message.frame.encode(0, 0, 0)
    else:
        body = [_CODECS[type(message)].encode(message)]
    crc = 0
    for part in body:
        crc = crc32(part, crc)
    head = _HEAD.pack(sum(map(len, body)), _KINDS.index(type(message)) + 1, VERSION)
    return b"".join((head, _CRC.pack(crc32(head)), *body, _CRC.pack(crc)))


def body_bytes(head: bytes, *, limit: int) -> int:
    """The length of the body that follows the head of a frame.

    Raises:
        FrameDamaged: the head is damaged, or the body is longer than `limit`.
    """
    if crc32(head[:_HEAD.size]) != _CRC.unpack_from(head, _HEAD.size)[0]:
        raise FrameDamaged(expected="the head of a frame with its CRC", found=head.hex())
    length = int(_HEAD.unpack_from(head)[0])
    if length > limit:
        raise FrameDamaged(expected=f"a frame of at most {limit} bytes", found=str(length))
    return length


def decode(frame: bytes) -> Message:
    """The message of a frame whose head was checked.

    Raises:
        FrameDamaged: the frame is damaged.
        Unsupported: another release sent it.
    """
    length, number, version = _HEAD.unpack_from(frame)
    body = frame[HEAD_BYTES:HEAD_BYTES + length]
    if len(frame) != HEAD_BYTES + length + CRC_BYTES or crc32(body) != _CRC.unpack_from(frame, HEAD_BYTES + length)[0]:
        raise FrameDamaged(expected=f"{length} bytes with their CRC", found=f"{len(frame)} bytes in all")
    kind = _KINDS[number - 1] if 1 <= number <= len(_KINDS) else None
    if kind is None or (version != VERSION and kind is not Refuse):
        raise Unsupported(f"a frame of kind {number} in version {version} came; this release knows kinds 1 to "
                          f"{len(_KINDS)} in version {VERSION}: have both sides run the same release")
    try:
        if kind is Live or kind is State:
            return kind(_OFFSET.unpack_from(body)[0], body[_OFFSET.size:])
        if kind is Entries:
            return Entries(_sparse_frame(body))
        if len(body) > OVERHEAD_BYTES:
            # JSON takes many times as much memory.
            raise ValueError(f"{len(body)} bytes of JSON")
        message: Message = _CODECS[kind].decode(body, "<stream>")
        return message
    except (struct.error, ValueError, CorruptData) as error:
        raise FrameDamaged(expected=f"a frame of kind {number}", found=str(error)) from None


def _sparse_frame(body: bytes) -> Frame:
    decoded = decode_frame(body, 0, 0)
    frame = None if decoded is None else decoded[0]
    if frame is None or not frame.is_sparse or frame.frame_bytes != len(body) or frame.entries > MAX_FRAME_ENTRIES:
        raise ValueError(f"no sparse frame of at most {MAX_FRAME_ENTRIES} entries")
    for _ in frame.runs():
        pass  # raises if the lengths of the payloads do not fit
    return frame


# -- the calls


@attrs.frozen(kw_only=True)
class TransferReport:
    """A transfer that has ended well: the snapshot is in force at the follower, durably.

    Attributes:
        index: the snapshot's index.
        entries: count of live entries that were sent.
        resumed_at: bytes of the state that an earlier stream had transferred.
    """

    index: int
    entries: int
    resumed_at: int


_MessageT = TypeVar("_MessageT", bound=Message)
_T = TypeVar("_T")

Talk: TypeAlias = Generator[bytes, "bytes | None", _T]
"""A part of one side of a transfer. It yields a frame to write; or `b""`, and is sent the next frame that arrives.
`TransferBroken` is thrown into it when the stream ends."""
Side: TypeAlias = Generator[bytes | TransferReport, "bytes | None", None]
"""One side of a transfer, which yields its report last."""


class ByteReader(Protocol):
    """The reading half of a stream, as `asyncio.StreamReader`."""

    async def readexactly(self, n: int) -> bytes:
        """Return the next `n` bytes; raise an `EOFError` or `OSError` if the stream ends before."""


class ByteWriter(Protocol):
    """The writing half of a stream, as `asyncio.StreamWriter`."""

    def write(self, data: bytes) -> None:
        """Queue bytes."""

    async def drain(self) -> None:
        """Return when more may be queued; raise an `OSError` if the stream has ended."""


Stream: TypeAlias = tuple[ByteReader, ByteWriter]
"""Reader and writer, as `asyncio.open_connection` returns them."""


async def send_snapshot(stream: Stream, log: RaftLog, *, term: int, chunk_bytes: int = 1 << 20) -> TransferReport:
    """Send the newest snapshot of a leader's log to a follower, with the live entries that the follower needs.

    Compactions and newer snapshots do not disturb it. After an error or a cancelled call, close the stream.

    Args:
        stream: reader and writer, opened and closed by the host. The other end calls `receive_snapshot`.
        log: the leader's; the follower's has the same `log_id`.
        term: the leader's.
        chunk_bytes: payload of a frame, up to 8 MiB; a larger entry has its own frame.

    Raises:
        TransferRefused: the follower refuses the snapshot; `reason` decides the leader's next step. `ALREADY_APPLIED`
            also if the log has all entries that the follower lacks (`StoreOptions.keep_trailing`): send entries from
            `last_applied + 1` on.
        TransferBroken: the stream ended, also if the follower has refused the rest; send again over another stream.
        FrameDamaged, Unsupported: the peer's answer is damaged, or of another release.
        NotFound: there is no snapshot yet.
        CorruptData, LiveIndexMissing, StorageError: the snapshot or an entry cannot be read.
    """
    return await _run(_sending(log, term, min(chunk_bytes, _MAX_CHUNK_BYTES)), stream, max_bytes=OVERHEAD_BYTES)


async def receive_snapshot(stream: Stream, log: RaftLog, *, last_applied: int,
                           machine_versions: tuple[int, int] = (0, _MAX_MACHINE_VERSION),
                           max_entry_bytes: int = 64_000_000, max_live_bytes: int = 32 << 20) -> TransferReport:
    """Receive a snapshot for a follower's log, and install it. Then the host restores its machine from it.

    Until this returns, the host applies and appends no entries. The log is not changed before the whole snapshot has
    arrived and was checked; then only the entries that contradict the snapshot are truncated. The leader's term is
    recorded (`RaftLog.record_hard_state`); a higher term that is recorded during the transfer ends it.

    A call that is cancelled during the installation returns when that has ended: check `log.state`. After an error,
    close the stream.

    Args:
        stream: reader and writer, opened and closed by the host. The other end calls `send_snapshot`.
        log: the follower's.
        last_applied: the last index that the machine has applied, -1 before the first.
        machine_versions: the lowest and the highest machine version that the machine restores.
        max_entry_bytes: limit of a payload; a payload is held in memory.
        max_live_bytes: limit of the live set as `IndexSet.to_bytes`, where a run of scattered indexes takes a byte or
            two; decoding it takes up to 120 times as much memory.

    Raises:
        TransferRefused: a side has ended the transfer, for a `reason`.
        TransferBroken: the stream ended. The state that has arrived stays, and the next call continues behind it.
        FrameDamaged, Unsupported: a frame is damaged, or of another release.
        LiveIndexMissing: the log lacks live entries that its machine has applied.
        CorruptData: the state that arrived is not the state that was offered; it was discarded.
        StorageError: the disk refused.
        Busy: another snapshot of the log is being received.
        Closed: the log was closed, perhaps by a failure during the installation: open it again.
        InvalidInput: the log has a snapshot from which the machine was not restored.
    """
    side = _receiving(log, last_applied, machine_versions, max_entry_bytes, max_live_bytes)
    return await _run(side, stream, max_bytes=max(max_entry_bytes, _MAX_CHUNK_BYTES) + OVERHEAD_BYTES)


async def _run(side: Side, stream: Stream, *, max_bytes: int) -> TransferReport:
    """Run a side to its end."""
    reader, writer = stream
    step: Callable[[], bytes | TransferReport] = partial(next, side)
    try:
        while not isinstance(made := await _in_thread(step), TransferReport):
            step = partial(side.send, None)
            try:
                if made:
                    writer.write(made)
                    await writer.drain()
                else:
                    head = await reader.readexactly(HEAD_BYTES)
                    rest = await reader.readexactly(body_bytes(head, limit=max_bytes) + CRC_BYTES)
                    step = partial(side.send, head + rest)
            except (OSError, EOFError) as error:
                step = partial(side.throw, TransferBroken(
                    f"the stream ended before the transfer did ({type(error).__name__}: {error}); send the snapshot "
                    f"again over another stream"))
            except FrameDamaged as error:
                step = partial(side.throw, error)
        return made
    finally:
        side.close()


async def _in_thread(call: Callable[[], _T]) -> _T:
    """Call in a thread. A cancelled call is waited for, because it uses the side."""
    running = asyncio.get_running_loop().run_in_executor(None, call)
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        while not running.done():
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.wait([running])
        if not running.cancelled():
            running.exception()
        raise


# -- the leader's side


def _sending(log: RaftLog, term: int, chunk_bytes: int) -> Side:
    if chunk_bytes < 1:
        raise InvalidInput(f"chunk_bytes is {chunk_bytes}; give at least 1")
    with contextlib.ExitStack() as held:
        # No snapshot is taken in between.
        with log._snapshotting:
            row = log.state
            state = held.enter_context(log.open_state())
            pin = held.enter_context(log.pin(row.live))
        last_applied = -1

        def refusal(reason: RefusalReason, detail: str) -> TransferRefused:
            return TransferRefused(reason=reason, detail=detail, index=row.index, term=term, last_applied=last_applied)

        try:
            # The follower names its files itself: 1 says that there is a state.
            yield encode(Offer(term, attrs.evolve(state.manifest, attempt=1), log.log_id))
            accept = _expected((yield b""), Accept, index=row.index)
            last_applied = previous = accept.last_applied
            kept_from = log.state.kept_from  # a newer snapshot may have removed entries since the offer
            if last_applied >= kept_from:
                raise refusal(RefusalReason.ALREADY_APPLIED, f"the follower has applied up to {last_applied}, and the "
                              f"leader's log holds every entry from {kept_from} on; send those")
            if accept.state_offset > state.manifest.state_bytes:
                raise FrameDamaged(expected=f"an offset up to {state.manifest.state_bytes}",
                                   found=f"{accept.state_offset}")
            live = row.live.to_bytes()
            for offset in range(0, len(live), chunk_bytes):
                yield encode(Live(offset, live[offset:offset + chunk_bytes]))
            needed = row.live.at_least(last_applied + 1)
            for group in _groups(pin, needed, chunk_bytes):
                for index, _, payload in group:
                    if len(payload) > accept.max_entry_bytes:
                        raise refusal(RefusalReason.TOO_LARGE, f"live entry {index} has {len(payload)} bytes, the "
                                      f"follower takes at most max_entry_bytes={accept.max_entry_bytes}; raise that "
                                      f"there")
                indexes, terms, payloads = zip(*group, strict=True)
                yield encode(Entries(sparse_frame(indexes, terms, payloads, previous if previous >= 0 else None)))
                previous = indexes[-1]
            offset = accept.state_offset
            for data in state.pieces(offset, piece_bytes=chunk_bytes):
                yield encode(State(offset, data))
                offset += len(data)
            installed = _expected((yield b""), Installed, index=row.index)
            if installed.index != row.index:
                raise FrameDamaged(expected=f"snapshot {row.index} installed", found=f"{installed.index}")
        except CompactlibError as error:
            yield from _refusing(error, term=term, last_applied=last_applied)
            raise
    yield TransferReport(index=row.index, entries=needed.count, resumed_at=accept.state_offset)


def _groups(pin: Pin, indexes: IndexSet, chunk_bytes: int) -> Iterator[list[Entry]]:
    """The pinned entries of each frame."""
    group: list[Entry] = []
    size = 0
    for index in indexes:
        entry = pin.read(index)
        size += len(entry.payload)
        if group and (size > chunk_bytes or len(group) == MAX_FRAME_ENTRIES):
            yield group
            group, size = [], len(entry.payload)
        group.append(entry)
    if group:
        yield group


# -- the follower's side


def _receiving(log: RaftLog, last_applied: int, machine_versions: tuple[int, int], max_entry_bytes: int,
               max_live_bytes: int) -> Side:
    if not 0 < max_entry_bytes <= MAX_PAYLOAD_BYTES - OVERHEAD_BYTES:
        raise InvalidInput(f"max_entry_bytes is {max_entry_bytes}; a frame takes entries of 1 to "
                           f"{MAX_PAYLOAD_BYTES - OVERHEAD_BYTES} bytes")
    if last_applied < log.state.index:
        raise InvalidInput(f"last_applied is {last_applied}, and the log's snapshot covers {log.state.index}: restore "
                           f"the machine by that first")
    try:
        receiver = _Receiver(log, _expected((yield b""), Offer, index=-1), last_applied)
        receiver.require_welcome(machine_versions, max_live_bytes)
        report = yield from receiver.received(max_entry_bytes)
    except CompactlibError as error:
        yield from _refusing(error, term=log.hard_state.term, last_applied=last_applied)
        raise
    # The snapshot is in force, also where this frame does not arrive.
    with contextlib.suppress(TransferBroken):
        yield encode(Installed(report.index))
    yield report


@attrs.frozen
class _Receiver:
    """The follower's side, once an offer has arrived."""

    log: RaftLog
    offer: Offer
    last_applied: int

    def require_welcome(self, machine_versions: tuple[int, int], max_live_bytes: int) -> None:
        """Return if the offered snapshot can be taken; the term of its leader is durable then."""
        manifest, (lowest, highest) = self.offer.manifest, machine_versions
        if self.offer.log_id != self.log.log_id:
            raise self._refusal(RefusalReason.OTHER_LOG, f"the leader sends the log {self.offer.log_id!r}, the stream "
                                f"leads to {self.log.log_id!r}")
        with contextlib.suppress(Stale):
            self.log.record_hard_state(self.offer.term)
        self._require_term()
        if manifest.index <= self.last_applied:
            raise self._refusal(RefusalReason.ALREADY_APPLIED, f"entries up to {self.last_applied} are applied")
        if not lowest <= manifest.machine_version <= highest:
            raise self._refusal(RefusalReason.UNSUPPORTED, f"the state is of machine version "
                                f"{manifest.machine_version}, this member restores {lowest} to {highest}: upgrade it")
        if manifest.live_bytes > max_live_bytes:
            raise self._refusal(RefusalReason.TOO_LARGE, f"the live set has {manifest.live_bytes} bytes, the follower "
                                f"takes at most max_live_bytes={max_live_bytes}")

    def received(self, max_entry_bytes: int) -> Talk[TransferReport]:
        manifest = self.offer.manifest
        incoming = self.log._begin_receiving(manifest)
        offset = resumed_at = incoming.state_bytes
        try:
            yield encode(Accept(self.last_applied, offset, max_entry_bytes))
            data = bytearray()
            while len(data) < manifest.live_bytes:
                data += yield from self._next_piece(Live, len(data), manifest.live_bytes)
            live = manifest.live_set(bytes(data), path="<stream>")
            needed = live.at_least(self.last_applied + 1)
            yield from self._take_entries(iter(needed), needed.count, incoming)
            while offset < manifest.state_bytes:
                part = yield from self._next_piece(State, offset, manifest.state_bytes)
                with self.log._guard.use():
                    self.log._require_open()
                    incoming.write(offset, part)
                offset += len(part)
            self.log._install(incoming, live)
        except (CorruptData, StorageError, TransferRefused) as error:
            # The leader checks the state while it sends all of it: its refusal may mean that the pieces are damaged.
            is_wrong = (error.by_peer and offset > 0 and not resumed_at if isinstance(error, TransferRefused)
                        else not isinstance(error, FrameDamaged))
            if is_wrong:
                with contextlib.suppress(StorageError), self.log._guard.use():
                    # The row of a closed log may name the files, and the next transfer may have them.
                    if not self.log.is_closed:
                        incoming.discard()
            raise
        finally:
            incoming.close()
        return TransferReport(index=manifest.index, entries=needed.count, resumed_at=resumed_at)

    def _take_entries(self, needed: Iterator[int], count: int, incoming: Incoming) -> Talk[None]:
        """Write the needed entries beside the log; each frame follows the one before."""
        previous, term = self.last_applied, self.offer.manifest.term
        while count:
            frame = (yield from self._next(Entries)).frame
            found = [(index, of) for index, of, _ in frame.runs()]
            indexes, due = [index for index, _ in found], list(islice(needed, len(found)))
            before = -1 if frame.previous is None else frame.previous
            if before != previous or not indexes or indexes != due:
                raise FrameDamaged(expected=f"entries after {previous}: {due[:3]}, …",
                                   found=f"entries after {before}: {indexes[:3]}, …")
            if any(of > term for _, of in found):
                raise FrameDamaged(expected=f"entries of terms up to {term}", found="a higher one")
            with self.log._guard.use():
                self.log._require_open()
                incoming.write_frame(frame)
            previous, count = indexes[-1], count - len(indexes)

    def _next_piece(self, kind: type[Live | State], offset: int, end: int) -> Talk[bytes]:
        piece = yield from self._next(kind)
        if piece.offset != offset or not piece.data or offset + len(piece.data) > end:
            raise FrameDamaged(expected=f"bytes from {offset} on, up to {end}",
                               found=f"{len(piece.data)} from {piece.offset} on")
        return piece.data

    def _next(self, kind: type[_MessageT]) -> Talk[_MessageT]:
        message = _expected((yield b""), kind, index=self.offer.manifest.index)
        self._require_term()
        return message

    def _require_term(self) -> None:
        """Return if the follower knows no term above the sender's."""
        term = self.log.hard_state.term
        if term > self.offer.term:
            raise self._refusal(RefusalReason.HIGHER_TERM, f"the sender leads in term {self.offer.term}, the follower "
                                f"knows term {term}")

    def _refusal(self, reason: RefusalReason, detail: str) -> TransferRefused:
        return TransferRefused(reason=reason, detail=detail, index=self.offer.manifest.index,
                               term=self.log.hard_state.term, last_applied=self.last_applied)


# -- both sides


def _expected(frame: bytes | None, kind: type[_MessageT], *, index: int) -> _MessageT:
    """The message in a frame, which must be of this kind or a refusal. `index` is the snapshot's."""
    assert frame is not None, "a side that waits is sent a frame"
    message = decode(frame)
    if isinstance(message, kind):
        return message
    if isinstance(message, Refuse):
        raise TransferRefused(reason=message.reason, detail=message.detail, index=index, term=message.term,
                              last_applied=message.last_applied, by_peer=True)
    raise FrameDamaged(expected=kind.__name__, found=type(message).__name__)


def _refusing(error: CompactlibError, *, term: int, last_applied: int) -> Talk[None]:
    """Send the peer the reason of an error that ends the transfer on this side, if the stream still takes it."""
    if isinstance(error, TransferBroken) or (isinstance(error, TransferRefused) and error.by_peer):
        return
    if isinstance(error, TransferRefused):
        reason, detail = error.reason, error.detail
    else:
        reason = RefusalReason.UNSUPPORTED if isinstance(error, Unsupported) else RefusalReason.FAILED
        detail = str(error)
    with contextlib.suppress(TransferBroken):
        yield encode(Refuse(reason, term, last_applied, detail[:MAX_TEXT]))
