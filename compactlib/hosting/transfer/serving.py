# SPDX-License-Identifier: Apache-2.0
"""The follower's side of transfers: it listens, and puts what it is sent in force."""

from __future__ import annotations

import asyncio
import contextlib
import random
import ssl
from collections.abc import Callable, Collection, Sequence
from functools import partial

from compactlib._arguments import require_method, require_type
from compactlib.clock import Clock, SystemClock
from compactlib.errors import Closed, CompactlibError, CorruptData, TaskFailed, Unsupported
from compactlib.hosting.transfer.lines import Hello, hello_length, require_address
from compactlib.outcome import Skipped
from compactlib.raftlog.replication.effects import (
    AwaitEntries,
    BeginInstall,
    DiscardInstall,
    Effect,
    Finished,
    InstallSnapshot,
    Send,
    TermSeen,
    TransferLimits,
    TransferOutcome,
    WriteEntries,
    WriteState,
)
from compactlib.raftlog.replication.install import put_aside, put_in_force
from compactlib.raftlog.replication.messages import (
    Installed,
    Progress,
    Refusal,
    TransferMessage,
    Unknown,
)
from compactlib.raftlog.replication.receiver import SnapshotReceiver
from compactlib.raftlog.replication.wire import decode, encode, frame_length
from compactlib.raftlog.snapshots.folder import SnapshotFolder
from compactlib.raftlog.snapshots.model import SnapshotManifest
from compactlib.raftlog.snapshots.staging import IncomingState
from compactlib.raftlog.snapshots.state_reader import StateReader
from compactlib.raftlog.store.protocols import ReplicatedLog
from compactlib.runtime.doors import (
    Address,
    Arrival,
    Door,
    DoorLimits,
    Line,
    TurnedAway,
    require_guarded,
    require_mutual,
)
from compactlib.runtime.observe import Observer
from compactlib.runtime.services.async_service import AsyncServiceFace, AsyncWork

SERVER_FAILED = "snapshot_server_failed"
"""An unexpected exception, of one of the host's callables, for example: `what`, `error`, `message`."""
_LOOK_AGAIN_SECONDS = 0.05
_LONGEST_WAIT_SECONDS = 1.0
"""How long the clock is not looked at, at most: it may move without waking any thread."""
_MAX_PAUSE_SECONDS = 60.0


class SnapshotServer(AsyncServiceFace):
    """Listens for snapshots and puts them in force: a `contract.AsyncService`, also as an async context manager.

    While a transfer is on, nothing else may be applied or appended to the log; `stage` says whether one is.

    Args:
        log: the follower's log.
        snapshots: where its snapshots lie; the log's own store.
        listen: where.
        term: the highest term that the follower knows.
        applied: asked for the last index that the machine has applied, -1 if none.
        installed: called with a new snapshot and its state once it is in force, to restore the machine; from then on
            `applied` must say its index. In a thread; called again, after a growing delay, while it raises.
        term_seen: called with each higher term, to be kept; in a thread.
        machine_versions: the lowest and the highest machine version that can be restored.
        limits: sizes and times.
        clock: for the times.
        rng: names this life.
        cluster: the group's name; a sender of another group is turned away.
        senders: the members that may send, by name; empty: all that have a certificate. A node that may not changes
            nothing.
        door: bounds of what listens.
        tls: for connections, whose certificates it must ask for: a sender is who its certificate says. Plain TCP if
            `None`, which is for loopback addresses.
        insecure: plain TCP on other addresses too: each host that reaches them can put snapshots in force.
        observer: notified as `snapshot_server_failed`, and as `snapshot_line_ended`.

    Raises:
        InvalidInput: an argument is of another type than it should be, plain TCP would listen beyond this machine, or
            TLS asks for no certificate.
    """

    def __init__(self, log: ReplicatedLog, snapshots: SnapshotFolder, *, listen: Address, term: int,
                 applied: Callable[[], int], installed: Callable[[SnapshotManifest, StateReader], object],
                 term_seen: Callable[[int], object] | None = None,
                 machine_versions: tuple[int, int] = (0, (1 << 32) - 1), limits: TransferLimits | None = None,
                 clock: Clock | None = None, rng: random.Random | None = None, cluster: str = "",
                 senders: Collection[str] = (), door: DoorLimits | None = None,
                 tls: ssl.SSLContext | None = None, insecure: bool = False,
                 observer: Observer | None = None) -> None:
        require_method("log", log, "append_sparse", "install", "pin", "reset", "sync")
        require_type("snapshots", snapshots, SnapshotFolder, "a SnapshotFolder")
        require_address("listen", listen)
        require_guarded("the snapshot server", listen[0], guard="tls=", is_guarded=tls is not None, insecure=insecure)
        require_mutual("tls", tls)
        require_type("term", term, int, "a whole number")
        require_type("cluster", cluster, str, "text")
        require_type("door", door, DoorLimits, "DoorLimits", or_none=True)
        for name, call in (("applied", applied), ("installed", installed), ("term_seen", term_seen or installed)):
            require_method(name, call, "__call__")
        self._work = AsyncWork(f"the snapshot server on {listen[0]}", event=SERVER_FAILED, observer=observer)
        self._log = log
        self._snapshots = snapshots
        self._listen = listen
        self._applied = applied
        self._installed = installed
        self._term_seen = term_seen
        self._clock: Clock = SystemClock() if clock is None else clock
        self._cluster = cluster
        self._senders = frozenset(senders)
        self._door = Door("the snapshot server", door or DoorLimits(), self._work, tls=tls)
        life = (random.SystemRandom() if rng is None else rng).getrandbits(64)
        self._receiver: SnapshotReceiver = SnapshotReceiver(
            term=term, life=life, machine_versions=machine_versions, limits=limits, staged=snapshots.staged())
        self._incoming: IncomingState | None = None
        self._turn: asyncio.Lock = asyncio.Lock()
        self._reply_to: asyncio.StreamWriter | None = None
        self._outcomes: asyncio.Queue[TransferOutcome] = asyncio.Queue(maxsize=1000)
        self._ticked: asyncio.Event = asyncio.Event()
        self._closing: asyncio.Event = asyncio.Event()

    @property
    def address(self) -> Address:
        """Where it listens, with the port that the system chose.

        Raises:
            Closed: it was not started, or is closed.
        """
        return self._door.listener.address

    @property
    def stage(self) -> str:
        """`"idle"`, or what a transfer is at: `"receiving"`, `"syncing"`, `"installing"`."""
        return self._receiver.stage

    async def _begin(self) -> None:
        """Listen.

        Raises:
            StorageError: the address cannot be listened on.
        """
        self._closing.clear()
        await self._door.listen(self._listen, self._answer)
        self._work.keep_on(self._await_tick, "watching the clock of transfers")

    async def next_outcome(self) -> TransferOutcome:
        """How the next transfer ends that has not been asked for; the last 1000 are kept."""
        return await self._outcomes.get()

    async def observe_term(self, term: int) -> None:
        """The follower has seen a term; a higher one ends a transfer of a lower one."""
        async with self._turn:
            await self._carry_out(self._receiver.observe_term(term))

    async def _end(self) -> None:
        """Listen no more, give a transfer up; what is being put in force is seen through, to the host's restoring."""
        async with self._turn:
            self._closing.set()
            await self._carry_out(self._receiver.cancel("the follower is shutting down"))
        self._door.close()
        while self._receiver.stage == "installing":
            # It would be half done otherwise.
            await asyncio.sleep(_LOOK_AGAIN_SECONDS)
        if self._incoming is not None:
            self._incoming.close()
            self._incoming = None

    async def _pending(self) -> Sequence[TransferOutcome]:
        """Look at the clock; what has ended by it, or where the transfer stands."""
        before = self._outcomes.qsize()
        await self._tick()
        if self._outcomes.qsize() > before:
            return [self._outcomes.get_nowait() for _ in range(self._outcomes.qsize() - before)]
        if self.stage == "idle":
            return [Skipped("no transfer is on; one begins when a leader connects and offers a snapshot")]
        return [Skipped(f"a transfer goes on: {self.stage}", is_busy=True)]

    def audit(self) -> None:
        """Check the receiving machine's invariants, and that the clock is watched.

        Raises:
            AuditFailed: one is broken.
        """
        self._receiver.audit()
        super().audit()

    # -- inside

    def _named(self, what: str, error: Exception) -> CompactlibError:
        """The error as the library's own; noted, if it is none."""
        if isinstance(error, CompactlibError):
            return error
        self._work.note(error, what)
        return TaskFailed(f"{what} raised {error!r}", task=what, kind=type(error).__name__, detail=repr(error))

    async def _answer(self, arrival: Arrival) -> None:
        where = arrival.where
        try:
            async with self._door.line(arrival, partial(self._welcome, where)) as (line, sender):
                while not self._closing.is_set() and await self._take_in(line, sender):
                    pass
        except (OSError, Unsupported, CorruptData, TurnedAway, asyncio.IncompleteReadError) as error:
            # A stranger, damage on the way, or a line that was cut: the sender opens another and goes on.
            self._work.observer.event("snapshot_line_ended", {"address": where,
                                                              "error": f"{type(error).__name__}: {error}"})

    async def _welcome(self, where: str, line: Line) -> str:
        """The name of the member that has connected, which may send."""
        async with line.frame(partial(hello_length, source=where)) as frame:
            if frame is None:
                raise TurnedAway("it left without a Hello")
            hello = Hello.decode(frame, source=where)
        if hello.cluster != self._cluster:
            raise TurnedAway(f"a member of {hello.cluster!r}, this is one of {self._cluster!r}; correct cluster=")
        if self._senders and hello.sender not in self._senders:
            raise TurnedAway(f"{hello.sender!r} is none of those that may send: {', '.join(sorted(self._senders))}")
        await line.introduce(hello.sender)
        return hello.sender

    async def _take_in(self, line: Line, sender: str) -> bool:
        """Take in one message; whether there was one."""
        async with line.frame(partial(frame_length, source=sender or "<peer>")) as frame:
            if frame is None:
                return False
            message = await self._work.call(decode, frame, source=sender or "<peer>")
            if isinstance(message, Progress | Unknown | Installed | Refusal):
                return True
            async with self._turn:
                # Closed while this task waited for its turn?
                if self._closing.is_set():
                    return False
                self._reply_to = line.writer
                applied = await self._work.call(self._applied)
                await self._carry_out(self._receiver.receive(message, self._clock.monotonic(), last_applied=applied,
                                                             sender=sender))
                self._ticked.set()
        return True

    async def _await_tick(self) -> None:
        deadline = self._receiver.deadline
        self._ticked.clear()
        rest = _LONGEST_WAIT_SECONDS if deadline is None else deadline - self._clock.monotonic()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._ticked.wait(), min(max(rest, 0.0), _LONGEST_WAIT_SECONDS))
        await self._tick()

    async def _tick(self) -> None:
        async with self._turn:
            await self._carry_out(self._receiver.tick(self._clock.monotonic()))

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
                await self._carry_out(self._receiver.failed(named))
                return

    async def _carry_one(self, effect: Effect) -> None:
        if isinstance(effect, Send):
            await self._send(effect.message)
        elif isinstance(effect, AwaitEntries | InstallSnapshot):
            # Both may take long, and a probe must be answered meanwhile.
            self._work.spawn(self._aside(effect), type(effect).__name__)
        elif isinstance(effect, Finished):
            if self._outcomes.full():
                self._outcomes.get_nowait()
            self._outcomes.put_nowait(effect.outcome)
        else:
            await self._work.call(self._on_disk, effect)

    async def _aside(self, effect: AwaitEntries | InstallSnapshot) -> None:
        try:
            await self._work.call(self._on_disk, effect)
        except Exception as error:
            named = self._named(type(effect).__name__, error)
            async with self._turn:
                await self._carry_out(self._receiver.failed(named))
            return
        if isinstance(effect, InstallSnapshot):
            await self._restore(effect.meta)
        async with self._turn:
            now = self._clock.monotonic()
            if isinstance(effect, InstallSnapshot):
                await self._carry_out(self._receiver.installed(now))
            else:
                await self._carry_out(self._receiver.entries_durable(effect.last, now))

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
        elif isinstance(effect, TermSeen) and self._term_seen is not None:
            self._term_seen(effect.term)

    async def _restore(self, meta: SnapshotManifest) -> None:
        """Have the host restore its machine; the snapshot is in force, and stays so whatever that raises."""
        def restore() -> None:
            with self._snapshots.open_state(meta) as state:
                self._installed(meta, state)

        pause = _LOOK_AGAIN_SECONDS
        while True:
            try:
                await self._work.call(restore)
                return
            except Exception as error:
                self._work.note(error, "the host's `installed`")
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._closing.wait(), pause)
            if self._closing.is_set():
                return  # it is restored when the store is opened again
            pause = min(2 * pause, _MAX_PAUSE_SECONDS)

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
        if writer is None or writer.is_closing():
            return
        with contextlib.suppress(OSError):
            writer.write(encode(message))
            await writer.drain()
