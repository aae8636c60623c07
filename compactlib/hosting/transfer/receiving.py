# SPDX-License-Identifier: Apache-2.0
"""One log of a `SnapshotServer`: its disk work, the host's machine, and the outcomes of its transfers."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from functools import partial

from compactlib.clock import Clock
from compactlib.errors import Closed, CompactlibError, StorageError, TaskFailed
from compactlib.raftlog.replication.effects import (
    AwaitEntries,
    BeginInstall,
    DiscardInstall,
    Effect,
    Finished,
    InstallSnapshot,
    Send,
    TermSeen,
    TransferOutcome,
    WriteEntries,
    WriteState,
)
from compactlib.raftlog.replication.install import put_aside, put_in_force
from compactlib.raftlog.replication.messages import FromSender, TransferMessage, Wait
from compactlib.raftlog.replication.receiver import SnapshotReceiver
from compactlib.raftlog.replication.wire import encode
from compactlib.raftlog.snapshots.folder import SnapshotFolder
from compactlib.raftlog.snapshots.model import SnapshotManifest
from compactlib.raftlog.snapshots.staging import IncomingState
from compactlib.raftlog.snapshots.state_reader import StateReader
from compactlib.raftlog.store.protocols import ReplicatedLog
from compactlib.runtime.doors import drained
from compactlib.runtime.services.async_service import AsyncWork, KeptTask

_ANSWER_SECONDS = 10.0
_LOOK_AGAIN_SECONDS = 0.05
_MAX_PAUSE_SECONDS = 60.0


class ReceivingLog:
    """A log that takes snapshots; `SnapshotServer.add` makes it. Used in the server's event loop."""

    def __init__(self, log: ReplicatedLog, snapshots: SnapshotFolder, receiver: SnapshotReceiver, work: AsyncWork,
                 clock: Clock, installing: asyncio.Semaphore, applied: Callable[[], int],
                 installed: Callable[[SnapshotManifest, StateReader], object],
                 term_seen: Callable[[int], object] | None) -> None:
        self._log = log
        self._snapshots = snapshots
        self._receiver = receiver
        self._work = work
        self._clock = clock
        # Those of all logs together leave threads for what arrives meanwhile.
        self._installing_now = installing
        self._applied = applied
        self._installed = installed
        self._term_seen = term_seen
        self._incoming: IncomingState | None = None
        # Held by what is on the disk, or restores: a thread of an event loop that has ended may still be at it.
        self._disk: threading.Lock = threading.Lock()
        self._step: _Step | None = None
        self._stepping: KeptTask | None = None
        # What the host's `installed` raised last.
        self._met: Exception | None = None
        self._turn: asyncio.Lock = asyncio.Lock()
        self._reply_to: asyncio.StreamWriter | None = None
        self._outcomes: asyncio.Queue[TransferOutcome] = asyncio.Queue(maxsize=1000)
        self._closing: asyncio.Event = asyncio.Event()
        self.routed: frozenset[int] = frozenset()
        """The server's: the transfers that lead to this log."""
        self.reserved_bytes: int = 0
        """The server's: memory for the live sets of offers that are being taken in."""

    @property
    def log_id(self) -> str:
        """The log's id, which senders say."""
        return self._log.log_id

    @property
    def stage(self) -> str:
        """`"idle"`, or what a transfer is at: `"receiving"`, `"syncing"`, `"installing"`, also where the server was
        stopped before the host had restored its machine. While it is not idle, nothing else may be applied or appended
        to the log."""
        return self._receiver.stage

    async def next_outcome(self) -> TransferOutcome:
        """How the next transfer ends that has not been asked for; the last 1000 are kept."""
        return await self._outcomes.get()

    async def observe_term(self, term: int) -> None:
        """The follower has seen a term of this log's group; a higher one ends a transfer of a lower one."""
        async with self._turn:
            await self._carry_out(self._receiver.observe_term(term))

    def __repr__(self) -> str:
        return f"<ReceivingLog {self.log_id!r}: {self.stage}>"

    # -- the server's

    @property
    def transfers(self) -> frozenset[int]:
        """See `SnapshotReceiver.transfers`."""
        return self._receiver.transfers

    @property
    def live_bytes(self) -> int:
        """How large the live set is that it holds, or will hold, in memory."""
        meta = self._receiver.meta
        return max(self.reserved_bytes, 0 if meta is None else meta.live_bytes)

    @property
    def deadline(self) -> float | None:
        """See `SnapshotReceiver.deadline`."""
        return self._receiver.deadline

    async def take_in(self, message: FromSender, sender: str, line: asyncio.StreamWriter, *, has_room: bool) -> bool:
        """Take in a message; whether it was an offer that has to wait."""
        async with self._turn:
            # Closed while this task waited for its turn?
            if self._closing.is_set():
                return False
            self._reply_to = line
            applied = await self._work.call(self._applied)
            effects = self._receiver.receive(message, self._clock.monotonic(), last_applied=applied, sender=sender,
                                             has_room=has_room)
            await self._carry_out(effects)
        return any(isinstance(effect, Send) and isinstance(effect.message, Wait) for effect in effects)

    async def tick(self) -> None:
        """Let time pass."""
        async with self._turn:
            await self._carry_out(self._receiver.tick(self._clock.monotonic()))

    async def move(self, installing: asyncio.Semaphore) -> None:
        """Go on in another event loop: what was waited on belongs to the one before, and may have ended with it."""
        self._installing_now = installing
        self._turn, self._closing, self._reply_to = asyncio.Lock(), asyncio.Event(), None
        ended, self._outcomes = self._outcomes, asyncio.Queue(maxsize=self._outcomes.maxsize)
        while not ended.empty():
            self._outcomes.put_nowait(ended.get_nowait())
        if self._receiver.stage == "installing" and self._step is not None:
            self._take_aside(self._step)
        await self._carry_out(self._receiver.cancel("the follower began anew"))

    def open(self) -> None:
        """Take messages from now on, again after `give_up`, and go on with what was not restored then."""
        self._closing.clear()
        if self._is_unrestored and self._step is not None:
            self._take_aside(self._step)

    async def give_up(self, reason: str) -> None:
        """Take no more messages, and end a transfer; what is being put in force goes on."""
        async with self._turn:
            self._closing.set()
            await self._carry_out(self._receiver.cancel(reason))

    @property
    def _is_unrestored(self) -> bool:
        """Whether a snapshot is in force that the host could not restore its machine by before it was given up."""
        return self._receiver.stage == "installing" and (self._stepping is None or self._stepping.has_ended)

    async def leave(self) -> None:
        """After `settle`: say so if the host has not restored what is in force; nobody will have it do so again."""
        async with self._turn:
            if self._is_unrestored and self._step is not None:
                error = self._met
                await self._carry_out(self._receiver.failed(TaskFailed(
                    "it is in force in the follower's log, and the host has not restored its machine by it: "
                    f"`installed` raised {error!r}; send it again", task="installed", kind=type(error).__name__,
                    detail=repr(error)), self._step.effect))

    async def settle(self) -> None:
        """Return when nothing is being put in force, and let the files go."""
        while self._receiver.stage == "installing" and not self._is_unrestored:
            # It would be half done otherwise.
            await asyncio.sleep(_LOOK_AGAIN_SECONDS)
        if self._incoming is not None:
            self._incoming.close()
            self._incoming = None

    @property
    def outcomes(self) -> int:
        """How many outcomes wait to be asked for."""
        return self._outcomes.qsize()

    def take_outcome(self) -> TransferOutcome:
        """The one that has waited longest; there must be one."""
        return self._outcomes.get_nowait()

    # -- inside

    def _named(self, what: str, error: Exception) -> CompactlibError:
        """The error as the library's own; noted, if it is none."""
        if isinstance(error, CompactlibError):
            return error
        self._work.note(error, what)
        return TaskFailed(f"{what} raised {error!r}", task=what, kind=type(error).__name__, detail=repr(error))

    async def _carry_out(self, effects: list[Effect]) -> None:
        for effect in effects:
            try:
                await self._carry_one(effect)
            except Exception as error:
                named = self._named(type(effect).__name__, error)
                if isinstance(effect, DiscardInstall):
                    # The next transfer, or opening the folder, does it again; this one is over all the same.
                    continue
                # The rest may say that this was done.
                await self._carry_out(self._receiver.failed(named, effect))
                return

    async def _carry_one(self, effect: Effect) -> None:
        if isinstance(effect, Send):
            await self._send(effect.message)
        elif isinstance(effect, AwaitEntries | InstallSnapshot):
            # Both may take long, and a probe must be answered meanwhile.
            self._take_aside(_Step(effect, partial(self._on_disk, effect)))
        elif isinstance(effect, Finished):
            if self._outcomes.full():
                self._outcomes.get_nowait()
            self._outcomes.put_nowait(effect.outcome)
        elif isinstance(effect, TermSeen):
            if self._term_seen is not None:
                await self._work.call(self._term_seen, effect.term)
        else:
            await self._work.call(self._in_turn, partial(self._on_disk, effect))

    def _take_aside(self, step: _Step) -> None:
        self._step = step
        self._stepping = self._work.spawn(self._aside(step), type(step.effect).__name__)

    async def _aside(self, step: _Step) -> None:
        effect, pause = step.effect, _LOOK_AGAIN_SECONDS
        while True:
            try:
                async with self._installing_now:
                    await self._work.call(self._in_turn, step)
                break
            except Exception as error:
                named = self._named(type(effect).__name__, error)
                goes_on = isinstance(error, StorageError) and await self._work.call(self._is_in_force, effect)
                if not goes_on or await self._closes_within(pause):
                    async with self._turn:
                        await self._carry_out(self._receiver.failed(named, effect))
                    return
                # The snapshot is in force, and only the disk keeps the log's row from it.
                self._work.note(error, type(effect).__name__)
            self._step = step = _Step(effect, partial(self._on_disk, effect))
            pause = min(2 * pause, _MAX_PAUSE_SECONDS)
        if isinstance(effect, InstallSnapshot) and not await self._restore(effect.meta):
            return
        async with self._turn:
            now = self._clock.monotonic()
            if isinstance(effect, InstallSnapshot):
                await self._carry_out(self._receiver.installed(now))
            else:
                await self._carry_out(self._receiver.entries_durable(effect.last, now))

    def _in_turn(self, call: Callable[[], object]) -> None:
        with self._disk:
            call()

    def _on_disk(self, effect: Effect) -> None:
        if isinstance(effect, BeginInstall):
            self._incoming = self._snapshots.receive(effect.meta, keep_bytes=effect.keep_bytes)
        elif isinstance(effect, WriteEntries):
            put_aside(self._require_incoming(), effect.previous, effect.entries)
        elif isinstance(effect, WriteState):
            self._require_incoming().write(effect.offset, effect.data)
        elif isinstance(effect, AwaitEntries):
            self._require_incoming().sync()
        elif isinstance(effect, InstallSnapshot):
            put_in_force(self._log, self._snapshots, self._require_incoming(), effect.meta, effect.live)
            self._incoming = None
        elif isinstance(effect, DiscardInstall):
            self._discard(effect)

    async def _restore(self, meta: SnapshotManifest) -> bool:
        """Have the host restore its machine; the snapshot is in force, and stays so whatever that raises. Whether it
        did, before it was given up: else `open` tries again, or whoever opens the store."""
        def restore() -> None:
            with self._snapshots.open_state(meta) as state:
                self._installed(meta, state)

        pause = _LOOK_AGAIN_SECONDS
        while True:
            try:
                async with self._installing_now:
                    await self._work.call(self._in_turn, restore)
                return True
            except Exception as error:
                self._met = error
                self._work.note(error, "the host's `installed`")
            if await self._closes_within(pause):
                return False
            pause = min(2 * pause, _MAX_PAUSE_SECONDS)

    async def _closes_within(self, seconds: float) -> bool:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._closing.wait()
        return self._closing.is_set()

    def _is_in_force(self, effect: Effect) -> bool:
        with contextlib.suppress(CompactlibError):
            return isinstance(effect, InstallSnapshot) and self._snapshots.manifest == effect.meta
        return False

    def _discard(self, effect: DiscardInstall) -> None:
        incoming, self._incoming = self._incoming, None
        if incoming is not None:
            if effect.keep_state:
                incoming.close()
            else:
                incoming.discard()

    def _require_incoming(self) -> IncomingState:
        if self._incoming is None:
            raise Closed("no snapshot is being received; offer it again")
        return self._incoming

    async def _send(self, message: TransferMessage) -> None:
        writer = self._reply_to
        if writer is not None:
            await reply(writer, message)


class _Step:
    """What is done on the disk once, whoever waits for it: each call ends as the first did."""

    def __init__(self, effect: AwaitEntries | InstallSnapshot, call: Callable[[], object]) -> None:
        self.effect = effect
        self._call: Callable[[], object] | None = call
        self._error: Exception | None = None

    def __call__(self) -> None:
        if self._call is not None:
            call, self._call = self._call, None
            try:
                call()
            except Exception as error:
                self._error = error
        if self._error is not None:
            raise self._error


async def reply(line: asyncio.StreamWriter, message: TransferMessage) -> None:
    """Send a message, which a line that is cut loses."""
    if not line.is_closing():
        with contextlib.suppress(OSError):
            line.write(encode(message))
            await drained(line, _ANSWER_SECONDS)
