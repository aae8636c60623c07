# SPDX-License-Identifier: Apache-2.0
"""The leader's side of transfers: snapshots of any logs to one follower, over one connection at a time."""

from __future__ import annotations

import asyncio
import contextlib
import random
import ssl
from collections import deque
from collections.abc import Iterable
from contextvars import copy_context

import attrs

from compactlib.clock import Clock, SystemClock
from compactlib.errors import CompactlibError, CorruptData, InvalidInput, NotFound
from compactlib.hosting.transfer.lines import Hello, read_message
from compactlib.indexset.index_set import IndexSet
from compactlib.raftlog.errors import LiveIndexMissing
from compactlib.raftlog.model.values import Entry
from compactlib.raftlog.replication.effects import (
    Effect,
    Finished,
    ReadEntries,
    ReadState,
    Send,
    TransferLimits,
    TransferOutcome,
)
from compactlib.raftlog.replication.messages import FromReceiver, TransferMessage
from compactlib.raftlog.replication.sender import SnapshotSender
from compactlib.raftlog.replication.wire import encode
from compactlib.raftlog.snapshots.folder import SnapshotFolder
from compactlib.raftlog.snapshots.model import SnapshotManifest
from compactlib.raftlog.snapshots.state_reader import StateReader
from compactlib.raftlog.store.protocols import PinnedEntries, ReplicatedLog
from compactlib.runtime.doors import (
    Address,
    TurnedAway,
    drained,
    hang_up,
    require_address,
    require_guarded,
    require_mutual,
    require_name,
)

_LOOKS = 10
_MIN_PAUSE_SECONDS = 0.05
_MAX_PAUSE_SECONDS = 2.0
_MAX_HEARD = 1000
_SILENT = 1.5
"""So many times the patience with a follower that says nothing."""


@attrs.frozen
class _Source:
    """What is sent, held in place."""

    manifest: SnapshotManifest
    live: IndexSet
    pin: PinnedEntries
    state: StateReader

    @classmethod
    def held(cls, log: ReplicatedLog, snapshots: SnapshotFolder) -> _Source:
        """The newest snapshot, its live entries pinned and its state open.

        Raises:
            NotFound: there is no snapshot yet.
            LiveIndexMissing: snapshots come faster than they can be looked at, or entries are missing.
        """
        for look in range(_LOOKS):
            manifest = snapshots.manifest
            if manifest is None:
                raise NotFound("there is no snapshot to send yet; take one first")
            try:
                # Another snapshot may take its place at any of these steps.
                live = snapshots.live_set(manifest)
                state = snapshots.open_state(manifest)
                try:
                    return cls(manifest, live, log.pin(live), state)
                except LiveIndexMissing:
                    state.close()
                    raise
            except (CorruptData, LiveIndexMissing):
                if look == _LOOKS - 1 or snapshots.manifest == manifest:
                    raise
        raise AssertionError("the last look raises")

    def read_entries(self, asked: ReadEntries) -> list[Entry]:
        entries: list[Entry] = []
        size = 0
        for index in asked.indexes:
            entry = self.pin.read(index)
            size += len(entry.payload)
            if entries and size > asked.max_bytes:
                break
            entries.append(entry)
        return entries

    def release(self) -> None:
        self.pin.release()
        self.state.close()


def _released(opening: asyncio.Future[_Source]) -> None:
    if not opening.cancelled() and opening.exception() is None:
        opening.result().release()


class _Line:
    """The connection to one follower, opened again when it breaks, while transfers go over it."""

    def __init__(self, address: Address, hello: bytes, follower: str | None, tls: ssl.SSLContext | None,
                 patience: float) -> None:
        self._address = address
        self._hello = hello
        self._follower = follower
        self._tls = tls
        self._patience = patience
        self._writer: asyncio.StreamWriter | None = None
        # One message at a time, so that each transfer has its turn.
        self._saying: asyncio.Lock = asyncio.Lock()
        self.transfers: dict[int, _Transfer] = {}
        self._connecting = asyncio.create_task(self._stay_connected())
        # It ends only with an unexpected exception; the callers that wait must get it.
        self._connecting.add_done_callback(lambda _: self._wake_all())

    def _wake_all(self) -> None:
        for transfer in self.transfers.values():
            transfer.changed.set()

    def require_alive(self) -> None:
        """Return if it goes on trying; raises what has ended it otherwise."""
        if self._connecting.done():
            self._connecting.result()

    async def close(self) -> None:
        """Hang up, and try no more."""
        self._connecting.cancel()
        # Before anything is waited for, which may be cancelled.
        writer = self._writer
        self._hang_up()
        await asyncio.wait([self._connecting])
        if writer is not None:
            await hang_up(writer)

    async def _stay_connected(self) -> None:
        pause = _MIN_PAUSE_SECONDS
        while True:
            with contextlib.suppress(OSError, CompactlibError):
                checks_name = self._tls is not None and self._tls.check_hostname
                async with asyncio.timeout(self._patience):
                    reader, writer = await asyncio.open_connection(
                        *self._address, ssl=self._tls, server_hostname=self._follower if checks_name else None)
                if self._follower is not None:
                    try:
                        require_name(writer, self._follower)
                    except TurnedAway:
                        writer.close()
                        raise
                writer.write(self._hello)
                self._writer, pause = writer, _MIN_PAUSE_SECONDS
                # What was said while there was no line is lost: say it again now rather than after a while.
                for transfer in self.transfers.values():
                    transfer.hear(None)
                while (message := await self._next(reader)) is not None:
                    if isinstance(message, FromReceiver):
                        found = self.transfers.get(message.envelope.transfer)
                        if found is not None:
                            found.hear(message)
            self._hang_up()
            await asyncio.sleep(pause)
            pause = min(2 * pause, _MAX_PAUSE_SECONDS)

    async def _next(self, reader: asyncio.StreamReader) -> TransferMessage | None:
        """As `read_message`. A line is dead that is silent for longer than it takes to give up a transfer over it:
        those that have begun since go on over another one."""
        async with asyncio.timeout(_SILENT * self._patience):
            return await read_message(reader)

    async def say(self, message: TransferMessage) -> None:
        """Send a message; without a connection it is lost, which the protocol expects."""
        async with self._saying:
            writer = self._writer
            if writer is None:
                return
            try:
                writer.write(encode(message))
                await drained(writer, self._patience)
            except OSError:
                if self._writer is writer:
                    self._hang_up()

    def _hang_up(self) -> None:
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.close()


class _Transfer:
    """One transfer, over as many connections as it takes."""

    def __init__(self, sender: SnapshotSender, source: _Source, clock: Clock, line: _Line) -> None:
        self._sender = sender
        self._source = source
        self._clock = clock
        self._line = line
        # What the follower said; `None` for a new connection. A follower that says more than it was asked is not heard.
        self._heard: deque[FromReceiver | None] = deque(maxlen=_MAX_HEARD)
        self._outcome: TransferOutcome | None = None
        self.changed: asyncio.Event = asyncio.Event()

    def hear(self, message: FromReceiver | None) -> None:
        """Take a message, or that there is a new connection."""
        self._heard.append(message)
        self.changed.set()

    async def run(self) -> TransferOutcome:
        """How it ended."""
        await self._carry_out(self._sender.start(self._clock.monotonic()))
        while self._outcome is None:
            deadline = self._sender.deadline
            assert deadline is not None, "a transfer that goes on waits for something"
            # Not by `wait_for`, which may lose a cancelling that comes together with a message.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(max(deadline - self._clock.monotonic(), 0.0)):
                    await self.changed.wait()
            self.changed.clear()
            self._line.require_alive()
            while self._heard:
                message, now = self._heard.popleft(), self._clock.monotonic()
                await self._carry_out(self._sender.reconnected(now) if message is None else
                                      self._sender.receive(message, now))
            await self._carry_out(self._sender.tick(self._clock.monotonic()))
        return self._outcome

    async def _carry_out(self, effects: Iterable[Effect]) -> None:
        # Not by calling itself: a window holds any number of chunks, each of which asks for the next to be read.
        waiting = deque(effects)
        while waiting:
            effect = waiting.popleft()
            if isinstance(effect, Send):
                await self._line.say(effect.message)
            elif isinstance(effect, ReadEntries | ReadState):
                waiting.extend(await self._read(effect))
            elif isinstance(effect, Finished):
                self._outcome = effect.outcome

    async def _read(self, asked: ReadEntries | ReadState) -> list[Effect]:
        """What follows from what was read; nothing is asked for behind a read."""
        try:
            if isinstance(asked, ReadEntries):
                entries = await asyncio.to_thread(self._source.read_entries, asked)
                return self._sender.entries_read(asked, entries, self._clock.monotonic())
            data = await asyncio.to_thread(self._source.state.read, asked.offset, asked.length)
            return self._sender.state_read(asked, data, self._clock.monotonic())
        except CompactlibError as error:
            return self._sender.read_failed(error, self._clock.monotonic())


class SnapshotClient:
    """Sends snapshots of any number of logs to one follower, whose `SnapshotServer` listens at `address`.

    A node has one for each follower: all its transfers go over one connection, side by side, which is open while a
    call of `send` is under way. Used in one event loop at a time; nothing has to be closed.

    Args:
        address: of the follower.
        cluster: the group's name, as the server was given it.
        me: the name of this member; with `tls`, that of its certificate.
        follower: the name that the follower's certificate must carry; `None`: it must be what `tls` asks for, which is
            the host of `address` by default.
        tls: for the connection; plain TCP if `None`, which is for loopback addresses.
        insecure: plain TCP to other addresses too: the host that listens there gets the state.
        limits: sizes and times.
        max_transfers: so many go side by side; others wait for their turn in the order of their calls.
        clock: for the times.
        rng: names the transfers.

    Raises:
        InvalidInput: an argument is of another type than it should be, or plain TCP would leave this machine.
    """

    def __init__(self, address: Address, *, cluster: str = "", me: str = "", follower: str | None = None,
                 tls: ssl.SSLContext | None = None, insecure: bool = False, limits: TransferLimits | None = None,
                 max_transfers: int = 4, clock: Clock | None = None, rng: random.Random | None = None) -> None:
        require_address("address", address)
        require_guarded("a snapshot", address[0], guard="tls=", is_guarded=tls is not None, insecure=insecure)
        require_mutual("tls", tls)
        if max_transfers < 1:
            raise InvalidInput(f"max_transfers is {max_transfers}; give at least 1")
        if tls is not None and not me:
            raise InvalidInput("me is ''; give this member's name, as its certificate says it")
        self._address = address
        self._hello = Hello(cluster, me).encode()
        self._follower = follower
        self._tls = tls
        self._limits = TransferLimits() if limits is None else limits
        self._clock: Clock = SystemClock() if clock is None else clock
        self._rng: random.Random = random.SystemRandom() if rng is None else rng
        self._max_transfers = max_transfers
        self._turns: asyncio.Semaphore
        self._line: _Line | None = None
        self._calls = 0

    async def send(self, log: ReplicatedLog, snapshots: SnapshotFolder, *, term: int) -> TransferOutcome:
        """Send a log's newest snapshot and the live entries it needs.

        The entries are pinned and the state is held open until this returns, whatever compactions and newer snapshots
        do. Cancelling the call ends the transfer.

        Args:
            log: the leader's log; the follower's has the same `log_id`.
            snapshots: where its snapshots lie.
            term: the leader's term.

        Returns:
            `Done` if the snapshot is in force there; `Skipped` if the follower was further already, or is so little
            behind that this log holds what it lacks (`StoreOptions.keep_trailing`): send entries; `Failed` with a
            `TransferAborted` otherwise, `HIGHER_TERM` in it if the leader must step down, `UNKNOWN_LOG` if the
            follower receives none for this log.

        Raises:
            NotFound: there is no snapshot yet.
            CorruptData: the snapshot is damaged.
            LiveIndexMissing: the log does not hold what the snapshot names.
            StorageError: the disk refused.
            InvalidInput: an argument is of another type than it should be.
        """
        if not self._calls:
            # Of this event loop, which may be another one than before.
            self._turns = asyncio.Semaphore(self._max_transfers)
        self._calls += 1
        try:
            async with self._turns:
                transfer = self._rng.getrandbits(64)
                opening = asyncio.get_running_loop().run_in_executor(
                    None, copy_context().run, _Source.held, log, snapshots)
                try:
                    source = await asyncio.shield(opening)
                except asyncio.CancelledError:
                    # The thread goes on: what it will have pinned is let go then.
                    opening.add_done_callback(_released)
                    raise
                try:
                    row = log.state
                    # What is live for the machine alone is no reason to leave a snapshot out that the host has asked
                    # for.
                    sender = SnapshotSender(source.manifest, source.live, term=term, transfer=transfer,
                                            log_id=log.log_id, limits=self._limits,
                                            kept_from=None if row.live == source.live else row.kept_from)
                    return await self._carried_out(sender, source, transfer)
                finally:
                    await asyncio.to_thread(source.release)
        finally:
            self._calls -= 1
            if not self._calls and self._line is not None:
                line, self._line = self._line, None
                await line.close()

    async def _carried_out(self, sender: SnapshotSender, source: _Source, transfer: int) -> TransferOutcome:
        if self._line is None:
            self._line = _Line(self._address, self._hello, self._follower, self._tls, self._limits.sender_seconds)
        line = self._line
        line.transfers[transfer] = made = _Transfer(sender, source, self._clock, line)
        try:
            return await made.run()
        finally:
            del line.transfers[transfer]
