"""The follower's side of transfers: it listens, and puts what it is sent in force."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import ssl
from collections.abc import Callable

from compactlib.clock import Clock, SystemClock
from compactlib.errors import (
    AuditFailed,
    Closed,
    CompactlibError,
    CorruptData,
    StorageError,
    Unsupported,
)
from compactlib.hosting.snapshot_lines import Address, read_message
from compactlib.raftlog.protocols import ReplicatedLog, SnapshotMeta
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
from compactlib.raftlog.replication.messages import (
    Installed,
    Progress,
    Refusal,
    TransferMessage,
    Unknown,
)
from compactlib.raftlog.replication.receiver import SnapshotReceiver
from compactlib.raftlog.replication.wire import encode
from compactlib.raftlog.snapshots import IncomingState, SnapshotFolder, SnapshotManifest, StateReader

_LOGGER = logging.getLogger("compactlib.hosting.snapshots")
_LOOK_AGAIN_SECONDS = 0.05
_MAX_PAUSE_SECONDS = 60.0


class SnapshotServer:
    """Listens for snapshots and puts them in force. An async context manager.

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
        tls: for connections; plain TCP if `None`.
    """

    def __init__(self, log: ReplicatedLog, snapshots: SnapshotFolder, *, listen: Address, term: int,
                 applied: Callable[[], int], installed: Callable[[SnapshotManifest, StateReader], object],
                 term_seen: Callable[[int], object] | None = None,
                 machine_versions: tuple[int, int] = (0, (1 << 32) - 1), limits: TransferLimits | None = None,
                 clock: Clock | None = None, rng: random.Random | None = None,
                 tls: ssl.SSLContext | None = None) -> None:
        self._log = log
        self._snapshots = snapshots
        self._listen = listen
        self._applied = applied
        self._installed = installed
        self._term_seen = term_seen
        self._clock: Clock = SystemClock() if clock is None else clock
        self._tls = tls
        life = (random.SystemRandom() if rng is None else rng).getrandbits(64)
        self._receiver: SnapshotReceiver = SnapshotReceiver(
            term=term, life=life, machine_versions=machine_versions, limits=limits, staged=snapshots.staged())
        self._incoming: IncomingState | None = None
        self._server: asyncio.Server | None = None
        self._turn: asyncio.Lock = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()
        self._lines: set[asyncio.StreamWriter] = set()
        self._reply_to: asyncio.StreamWriter | None = None
        self._outcomes: asyncio.Queue[TransferOutcome] = asyncio.Queue(maxsize=1000)
        self._ticked: asyncio.Event = asyncio.Event()
        self._closing: asyncio.Event = asyncio.Event()
        self._watching: asyncio.Task[None] | None = None
        self._last_error: Exception | None = None
        self._failures = 0

    @property
    def address(self) -> Address:
        """Where it listens, with the port that the system chose.

        Raises:
            Closed: it was not started, or is closed.
        """
        if self._server is None or not self._server.sockets:
            raise Closed("the snapshot server does not listen: start it first")
        host, port = self._server.sockets[0].getsockname()[:2]
        return str(host), int(port)

    @property
    def stage(self) -> str:
        """`"idle"`, or what a transfer is at: `"receiving"`, `"syncing"`, `"installing"`."""
        return self._receiver.stage

    async def start(self) -> None:
        """Listen.

        Raises:
            StorageError: the address cannot be listened on.
        """
        try:
            self._server = await asyncio.start_server(self._accept, *self._listen, ssl=self._tls)
        except OSError as error:
            raise StorageError.from_os(error, "listen on", "{}:{}".format(*self._listen)) from None
        self._watching = asyncio.create_task(self._watch_the_clock())
        self._keep(self._watching)

    async def next_outcome(self) -> TransferOutcome:
        """How the next transfer ends that has not been asked for; the last 1000 are kept."""
        return await self._outcomes.get()

    async def observe_term(self, term: int) -> None:
        """The follower has seen a term; a higher one ends a transfer of a lower one."""
        async with self._turn:
            await self._carry_out(self._receiver.observe_term(term))

    async def close(self) -> None:
        """Stop listening, give a transfer up, and wait until nothing is done to the disk any more."""
        if self._server is not None:
            self._server.close()
        async with self._turn:
            self._closing.set()
            await self._carry_out(self._receiver.cancel("the follower is shutting down"))
        for line in list(self._lines):
            line.close()
        while self._receiver.stage == "installing":
            # What is being put in force is seen through: it would be half done otherwise.
            await asyncio.sleep(_LOOK_AGAIN_SECONDS)
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._incoming is not None:
            self._incoming.close()

    async def __aenter__(self) -> SnapshotServer:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @property
    def last_error(self) -> Exception | None:
        """What was raised last that nobody expected, by one of the host's callables, say. The server goes on."""
        return self._last_error

    @property
    def failures(self) -> int:
        """How often something was raised that nobody expected."""
        return self._failures

    def audit(self) -> None:
        """Check the receiving machine's invariants, and that somebody watches the clock.

        Raises:
            CompactlibError: one is broken.
        """
        self._receiver.audit()
        if self._watching is not None and self._watching.done() and not self._closing.is_set():
            raise AuditFailed(f"nobody watches the clock of transfers any more: {self._last_error!r}")

    # -- inside

    def _keep(self, task: asyncio.Task[None]) -> None:
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _is_closing(self) -> bool:
        return self._closing.is_set()

    def _note(self, what: str, error: Exception) -> None:
        """Keep and log what was not expected."""
        self._last_error = error
        self._failures += 1
        if self._failures & (self._failures - 1) == 0:
            _LOGGER.warning("%s raised %r (failure %d); the server goes on", what, error, self._failures,
                            exc_info=error)

    def _named(self, what: str, error: Exception) -> CompactlibError:
        """The error as the library's own; noted, if it is none."""
        if isinstance(error, CompactlibError):
            return error
        self._note(what, error)
        return CompactlibError(f"{what} raised {error!r}")

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._lines.add(writer)
        handler = asyncio.current_task()
        assert handler is not None, "asyncio runs this in a task"
        self._tasks.add(handler)
        try:
            while not self._is_closing() and (message := await read_message(reader)) is not None:
                if isinstance(message, Progress | Unknown | Installed | Refusal):
                    continue
                async with self._turn:
                    # Closed while this task waited for its turn?
                    if self._is_closing():
                        break
                    self._reply_to = writer
                    applied = await asyncio.to_thread(self._applied)
                    await self._carry_out(self._receiver.receive(message, self._clock.monotonic(),
                                                                 last_applied=applied))
                    self._ticked.set()
        except (OSError, Unsupported, CorruptData):
            # Damage on the way, or a line that was cut: the sender opens another and goes on.
            pass
        except Exception as error:
            self._note("a line", error)
        finally:
            self._lines.discard(writer)
            self._tasks.discard(handler)
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    async def _watch_the_clock(self) -> None:
        while True:
            try:
                await self._await_tick()
            except Exception as error:
                self._note("watching the clock", error)
                await asyncio.sleep(_LOOK_AGAIN_SECONDS)

    async def _await_tick(self) -> None:
        deadline = self._receiver.deadline
        self._ticked.clear()
        with contextlib.suppress(TimeoutError):
            rest = None if deadline is None else max(deadline - self._clock.monotonic(), 0.0)
            await asyncio.wait_for(self._ticked.wait(), rest)
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
            self._keep(asyncio.create_task(self._aside(effect)))
        elif isinstance(effect, Finished):
            if self._outcomes.full():
                self._outcomes.get_nowait()
            self._outcomes.put_nowait(effect.outcome)
        else:
            await asyncio.to_thread(self._on_disk, effect)

    async def _aside(self, effect: AwaitEntries | InstallSnapshot) -> None:
        try:
            await asyncio.to_thread(self._on_disk, effect)
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
            self._take_back(effect.last_applied)
            self._incoming = self._snapshots.receive(effect.meta, keep_bytes=effect.keep_bytes)
        elif isinstance(effect, WriteEntries):
            self._log.append_sparse(effect.entries, previous_index=effect.previous)
        elif isinstance(effect, WriteState):
            self._require_incoming().write(effect.offset, effect.data)
        elif isinstance(effect, AwaitEntries):
            self._log.sync()
        elif isinstance(effect, InstallSnapshot):
            self._install(effect)
        elif isinstance(effect, DiscardInstall):
            self._discard(effect)
        elif isinstance(effect, TermSeen) and self._term_seen is not None:
            self._term_seen(effect.term)

    def _install(self, effect: InstallSnapshot) -> None:
        incoming, meta = self._require_incoming(), effect.meta
        # Before the store says that it is in force, every entry that it needs must be known to be here.
        with self._log.pin(effect.live):
            self._snapshots.adopt(incoming, effect.live)
            self._log.install(SnapshotMeta(meta.index, meta.term, effect.live))
        self._incoming = None

    async def _restore(self, meta: SnapshotManifest) -> None:
        """Have the host restore its machine; the snapshot is in force, and stays so whatever that raises."""
        def restore() -> None:
            with self._snapshots.open_state(meta) as state:
                self._installed(meta, state)

        pause = _LOOK_AGAIN_SECONDS
        while True:
            try:
                await asyncio.to_thread(restore)
                return
            except Exception as error:
                self._note("the host's `installed`", error)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._closing.wait(), pause)
            if self._is_closing():
                return  # it is restored when the store is opened again
            pause = min(2 * pause, _MAX_PAUSE_SECONDS)

    def _discard(self, effect: DiscardInstall) -> None:
        incoming, self._incoming = self._incoming, None
        if incoming is not None:
            if effect.keep_state:
                incoming.close()
            else:
                incoming.discard()
        self._take_back(effect.last_applied)

    def _take_back(self, last_applied: int) -> None:
        if self._log.last_index > last_applied:
            self._log.reset(last_applied)
            self._log.sync()

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
