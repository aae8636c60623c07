# SPDX-License-Identifier: Apache-2.0
"""The leader's side of a transfer: one snapshot to one follower, over as many connections as it takes."""

from __future__ import annotations

import asyncio
import contextlib
import random
import ssl
from collections.abc import Iterable

import attrs

from compactlib._arguments import require_method, require_type
from compactlib.clock import Clock, SystemClock
from compactlib.errors import CompactlibError, CorruptData, InvalidInput, NotFound
from compactlib.hosting.transfer.lines import Hello, read_message, require_address
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
from compactlib.raftlog.replication.messages import (
    Installed,
    Progress,
    Refusal,
    TransferMessage,
    Unknown,
)
from compactlib.raftlog.replication.sender import SnapshotSender
from compactlib.raftlog.replication.wire import encode
from compactlib.raftlog.snapshots.folder import SnapshotFolder
from compactlib.raftlog.snapshots.model import SnapshotManifest
from compactlib.raftlog.snapshots.state_reader import StateReader
from compactlib.raftlog.store.protocols import PinnedEntries, ReplicatedLog
from compactlib.runtime.doors import Address, TurnedAway, require_guarded, require_mutual, require_name

_LOOKS = 10
_MIN_PAUSE_SECONDS = 0.05
_MAX_PAUSE_SECONDS = 2.0


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


class _SendingSide:
    """One transfer, over as many connections as it takes."""

    def __init__(self, sender: SnapshotSender, source: _Source, address: Address, clock: Clock,
                 hello: Hello, follower: str | None, tls: ssl.SSLContext | None) -> None:
        self._sender = sender
        self._source = source
        self._address = address
        self._clock = clock
        self._hello = hello.encode()
        self._follower = follower
        self._tls = tls
        self._writer: asyncio.StreamWriter | None = None
        self._outcome: TransferOutcome | None = None
        self._changed = asyncio.Event()

    async def run(self) -> TransferOutcome:
        connecting = asyncio.create_task(self._stay_connected())
        # It ends only with an unexpected exception; the caller that waits here must get it.
        connecting.add_done_callback(lambda _: self._changed.set())
        try:
            await self._carry_out(self._sender.start(self._clock.monotonic()))
            while self._outcome is None:
                deadline = self._sender.deadline
                assert deadline is not None, "a transfer that goes on waits for something"
                self._changed.clear()
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._changed.wait(), max(deadline - self._clock.monotonic(), 0.0))
                if connecting.done():
                    connecting.result()
                await self._carry_out(self._sender.tick(self._clock.monotonic()))
            return self._outcome
        finally:
            connecting.cancel()
            await asyncio.wait([connecting])
            writer = self._writer
            self._hang_up()
            if writer is not None:
                with contextlib.suppress(OSError):
                    await writer.wait_closed()

    async def _stay_connected(self) -> None:
        pause = _MIN_PAUSE_SECONDS
        while True:
            with contextlib.suppress(OSError, CompactlibError):
                checks_name = self._tls is not None and self._tls.check_hostname
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
                await self._carry_out(self._sender.reconnected(self._clock.monotonic()))
                while (message := await read_message(reader)) is not None:
                    if isinstance(message, Progress | Unknown | Installed | Refusal):
                        await self._carry_out(self._sender.receive(message, self._clock.monotonic()))
            self._hang_up()
            await asyncio.sleep(pause)
            pause = min(2 * pause, _MAX_PAUSE_SECONDS)

    async def _carry_out(self, effects: Iterable[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Send):
                await self._send(effect.message)
            elif isinstance(effect, ReadEntries | ReadState):
                await self._read(effect)
            elif isinstance(effect, Finished):
                self._outcome = effect.outcome
        self._changed.set()

    async def _read(self, asked: ReadEntries | ReadState) -> None:
        more: list[Effect]
        try:
            if isinstance(asked, ReadEntries):
                entries = await asyncio.to_thread(self._source.read_entries, asked)
                more = self._sender.entries_read(asked, entries, self._clock.monotonic())
            else:
                data = await asyncio.to_thread(self._source.state.read, asked.offset, asked.length)
                more = self._sender.state_read(asked, data, self._clock.monotonic())
        except CompactlibError as error:
            more = self._sender.read_failed(error, self._clock.monotonic())
        await self._carry_out(more)

    async def _send(self, message: TransferMessage) -> None:
        writer = self._writer
        if writer is None:
            return
        try:
            writer.write(encode(message))
            await writer.drain()
        except OSError:
            # The message is lost, which the protocol expects.
            if self._writer is writer:
                self._hang_up()

    def _hang_up(self) -> None:
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.close()


async def send_snapshot(log: ReplicatedLog, snapshots: SnapshotFolder, address: Address, *, term: int,
                        limits: TransferLimits | None = None, clock: Clock | None = None,
                        rng: random.Random | None = None, cluster: str = "", me: str = "",
                        follower: str | None = None, tls: ssl.SSLContext | None = None,
                        insecure: bool = False) -> TransferOutcome:
    """Send the newest snapshot and the live entries it needs to the `SnapshotServer` at `address`.

    The entries are pinned and the state is held open until this returns, whatever compactions and newer snapshots do.

    Args:
        log: the leader's log.
        snapshots: where its snapshots lie.
        address: of the follower.
        term: the leader's term.
        limits: sizes and times.
        clock: for the times.
        rng: names the transfer.
        cluster: the group's name, as the server was given it.
        me: the name of this member; with `tls`, that of its certificate.
        follower: the name that the follower's certificate must carry; `None`: it must be what `tls` asks for, which is
            the host of `address` by default.
        tls: for the connection; plain TCP if `None`, which is for loopback addresses.
        insecure: plain TCP to other addresses too: the host that listens there gets the state.

    Returns:
        `Done` if the snapshot is in force there; `Skipped` if the follower was further already; `Failed` with a
        `TransferAborted` otherwise, `HIGHER_TERM` in it if the leader must step down.

    Raises:
        NotFound: there is no snapshot yet.
        CorruptData: the snapshot is damaged.
        LiveIndexMissing: the log does not hold what the snapshot names.
        StorageError: the disk refused.
        InvalidInput: an argument is of another type than it should be, or plain TCP would leave this machine.
    """
    require_method("log", log, "pin")
    require_type("snapshots", snapshots, SnapshotFolder, "a SnapshotFolder")
    require_address("address", address)
    require_guarded("a snapshot", address[0], guard="tls=", is_guarded=tls is not None, insecure=insecure)
    require_mutual("tls", tls)
    require_type("term", term, int, "a whole number")
    hello = Hello(cluster, me)
    if tls is not None and not me:
        raise InvalidInput("me is ''; give this member's name, as its certificate says it")
    chosen_clock: Clock = SystemClock() if clock is None else clock
    transfer = (random.SystemRandom() if rng is None else rng).getrandbits(64)
    source = await asyncio.to_thread(_Source.held, log, snapshots)
    try:
        sender = SnapshotSender(source.manifest, source.live, term=term, transfer=transfer, limits=limits)
        return await _SendingSide(sender, source, address, chosen_clock, hello, follower, tls).run()
    finally:
        await asyncio.to_thread(source.release)
