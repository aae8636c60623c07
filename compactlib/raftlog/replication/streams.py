# SPDX-License-Identifier: Apache-2.0
"""`send_snapshot` and `receive_snapshot`: a transfer over a stream of asyncio that the host has opened.

Each step of a side, with its disk work, runs in a thread, so that it does not block the event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from functools import partial
from typing import Generic, Protocol, TypeAlias, TypeVar

import attrs

from compactlib.errors import CompactlibError
from compactlib.raftlog.errors import FrameDamaged, TransferBroken
from compactlib.raftlog.messages import CRC_BYTES, HEAD_BYTES, OVERHEAD_BYTES, body_bytes
from compactlib.raftlog.raft_log import RaftLog
from compactlib.raftlog.replication.transfer import Talk, TransferReport, receiving, sending

_T = TypeVar("_T")
_MAX_CHUNK_BYTES = 8 << 20
_MAX_MACHINE_VERSION = (1 << 32) - 1


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
        TransferBroken: the stream ended; send again over another stream.
        FrameDamaged, Unsupported: the peer's answer is damaged, or of another release.
        NotFound: there is no snapshot yet.
        CorruptData, LiveIndexMissing, StorageError: the snapshot or an entry cannot be read.
    """
    chunk_bytes = min(chunk_bytes, _MAX_CHUNK_BYTES)
    talk = sending(log, term=term, chunk_bytes=chunk_bytes)
    return await _run(talk, stream, max_bytes=OVERHEAD_BYTES, reads_early=True)


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
    talk = receiving(log, last_applied=last_applied, machine_versions=machine_versions,
                     max_entry_bytes=max_entry_bytes, max_live_bytes=max_live_bytes)
    most = max(max_entry_bytes, _MAX_CHUNK_BYTES) + OVERHEAD_BYTES
    return await _run(talk, stream, max_bytes=most, reads_early=False)


@attrs.frozen
class _Ended(Generic[_T]):
    result: _T


async def _run(talk: Talk[_T], stream: Stream, *, max_bytes: int, reads_early: bool) -> _T:
    """Run a side to its end; with `reads_early`, an answer may arrive while the side still writes."""
    reader, writer = stream
    coming: asyncio.Task[bytes] | None = None
    given: bytes | CompactlibError | None = None
    try:
        while not isinstance(step := await _in_thread(partial(_step, talk, given)), _Ended):
            given = None
            if coming is None and (reads_early or not step):
                coming = asyncio.create_task(_read_frame(reader, max_bytes))
            try:
                if step:
                    writer.write(step)
                    await _drained(writer, coming)
                if coming is not None and (not step or coming.done()):
                    given, coming = await coming, None
            except (OSError, EOFError) as error:
                given = TransferBroken(f"the stream ended before the transfer did ({type(error).__name__}: {error}); "
                                       f"send the snapshot again over another stream")
            except FrameDamaged as error:
                given = error
        return step.result
    finally:
        if coming is not None:
            _abandon(coming)
        talk.close()


def _step(talk: Talk[_T], given: bytes | CompactlibError | None) -> bytes | _Ended[_T]:
    try:
        return talk.throw(given) if isinstance(given, CompactlibError) else talk.send(given)
    except StopIteration as end:
        return _Ended(end.value)


async def _read_frame(reader: ByteReader, max_bytes: int) -> bytes:
    head = await reader.readexactly(HEAD_BYTES)
    return head + await reader.readexactly(body_bytes(head, limit=max_bytes) + CRC_BYTES)


async def _drained(writer: ByteWriter, coming: asyncio.Task[bytes] | None) -> None:
    """Return when more may be written, or when an answer has arrived: a peer that refuses does not read the rest."""
    if coming is None:
        await writer.drain()
        return
    drained = asyncio.ensure_future(writer.drain())
    try:
        await asyncio.wait({drained, coming}, return_when=asyncio.FIRST_COMPLETED)
        if not coming.done():
            drained.result()
    finally:
        _abandon(drained)


def _abandon(task: asyncio.Future[_T]) -> None:
    if not task.cancel() and not task.cancelled():
        # Retrieved, so that the event loop does not log it.
        task.exception()


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
