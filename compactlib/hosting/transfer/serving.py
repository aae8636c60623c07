# SPDX-License-Identifier: Apache-2.0
"""The follower's side of transfers: it listens for all its logs, and puts what it is sent in force."""

from __future__ import annotations

import asyncio
import contextlib
import random
import ssl
from collections.abc import Callable, Collection, Sequence
from functools import partial

from compactlib.clock import Clock, SystemClock
from compactlib.errors import Busy, CorruptData, InvalidInput, NotFound, Unsupported
from compactlib.hosting.transfer.lines import Hello, hello_length
from compactlib.hosting.transfer.receiving import ReceivingLog, reply
from compactlib.outcome import Skipped
from compactlib.raftlog.replication.effects import TransferLimits, TransferOutcome
from compactlib.raftlog.replication.errors import AbortReason
from compactlib.raftlog.replication.messages import FromReceiver, FromSender, Offer, Refusal, Unknown, Withdrawal
from compactlib.raftlog.replication.receiver import SnapshotReceiver
from compactlib.raftlog.replication.wire import decode, frame_length
from compactlib.raftlog.snapshots.folder import SnapshotFolder
from compactlib.raftlog.snapshots.model import SnapshotManifest
from compactlib.raftlog.snapshots.state_reader import StateReader
from compactlib.raftlog.store.protocols import ReplicatedLog
from compactlib.runtime.doors import (
    Address,
    Arrival,
    Door,
    DoorLimits,
    Line,
    TurnedAway,
    require_address,
    require_guarded,
    require_mutual,
)
from compactlib.runtime.observe import Observer
from compactlib.runtime.services.async_service import AsyncServiceFace, AsyncWork

SERVER_FAILED = "snapshot_server_failed"
"""An unexpected exception, of one of the host's callables, for example: `what`, `error`, `message`."""
_LONGEST_WAIT_SECONDS = 1.0
"""How long the clock is not looked at, at most: it may move without waking any thread."""
_FIRST_OF_ALL_SECONDS = 60.0
"""How long the offer that waits for memory is first, though it is not made again."""
_INSTALLS_AT_ONCE = 4


class SnapshotServer(AsyncServiceFace):
    """Listens for snapshots of any number of logs, and puts them in force: a `contract.AsyncService`, also as an async
    context manager. `add` says for which logs.

    A node that sends has one connection for all logs. Transfers of several logs go side by side; all together are held
    to the bounds of `door`, and their live sets to `max_live_bytes` of `limits`: what exceeds it waits for its turn.

    Args:
        listen: where.
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

    def __init__(self, *, listen: Address, limits: TransferLimits | None = None, clock: Clock | None = None,
                 rng: random.Random | None = None, cluster: str = "", senders: Collection[str] = (),
                 door: DoorLimits | None = None, tls: ssl.SSLContext | None = None, insecure: bool = False,
                 observer: Observer | None = None) -> None:
        require_address("listen", listen)
        require_guarded("the snapshot server", listen[0], guard="tls=", is_guarded=tls is not None, insecure=insecure)
        require_mutual("tls", tls)
        self._work = AsyncWork(f"the snapshot server on {listen[0]}", event=SERVER_FAILED, observer=observer)
        self._listen = listen
        self._limits = TransferLimits() if limits is None else limits
        self._clock: Clock = SystemClock() if clock is None else clock
        self._cluster = cluster
        self._senders = frozenset(senders)
        self._door = Door("the snapshot server", door or DoorLimits(), self._work, tls=tls)
        self._life = (random.SystemRandom() if rng is None else rng).getrandbits(64)
        self._logs: dict[str, ReceivingLog] = {}
        # Those that are received for no more, until what was being put in force has ended.
        self._leaving: dict[str, ReceivingLog] = {}
        # Which log a transfer is of, as its offer has said; and the logs of which one may be under way.
        self._routes: dict[int, ReceivingLog] = {}
        self._active: set[ReceivingLog] = set()
        # The offer that has waited longest for memory, and when it was made last.
        self._first: tuple[int, float] | None = None
        self._ticked: asyncio.Event = asyncio.Event()
        self._installing: asyncio.Semaphore = asyncio.Semaphore(_INSTALLS_AT_ONCE)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._is_closing = False

    def add(self, log: ReplicatedLog, snapshots: SnapshotFolder, *, term: int, applied: Callable[[], int],
            installed: Callable[[SnapshotManifest, StateReader], object],
            term_seen: Callable[[int], object] | None = None,
            machine_versions: tuple[int, int] = (0, (1 << 32) - 1)) -> ReceivingLog:
        """Receive snapshots for a log, from now on.

        While a transfer is on, nothing else may be applied or appended to the log; `ReceivingLog.stage` says whether
        one is. Reads what an earlier transfer has left of a state.

        Args:
            log: the follower's log; senders name it by its `log_id`.
            snapshots: where its snapshots lie; the log's own store.
            term: the highest term that the follower knows of the log's group.
            applied: asked for the last index that the machine has applied, -1 if none.
            installed: called with a new snapshot and its state once it is in force, to restore the machine; from then
                on `applied` must say its index. In a thread; called again, after a growing delay, while it raises, and
                when the server is started again.
            term_seen: called with each higher term, to be kept; in a thread.
            machine_versions: the lowest and the highest machine version that can be restored.

        Raises:
            InvalidInput: an argument is of another type than it should be, or a log of this id was added before.
            Busy: it is being removed, and what was being put in force has not ended.
            StorageError: what an earlier transfer has left cannot be read.
        """
        if log.log_id in self._logs:
            raise InvalidInput(f"the log {log.log_id!r} was added before; remove it first")
        if log.log_id in self._leaving:
            raise Busy(f"the log {log.log_id!r} is being removed; await remove() before you add it again")
        receiver = SnapshotReceiver(term=term, life=self._life, machine_versions=machine_versions,
                                    limits=self._limits, staged=snapshots.staged())
        made = ReceivingLog(log, snapshots, receiver, self._work, self._clock, self._installing, applied, installed,
                            term_seen)
        self._logs[log.log_id] = made
        return made

    async def remove(self, log_id: str) -> None:
        """Receive no more for a log. A transfer is given up; what is being put in force is seen through, to the host's
        restoring. If `installed` raises then, the transfer ends as `Failed(TransferAborted)` on both sides, with the
        log ahead of the host's machine: restore that by the log's snapshot, or add the log again and have it sent
        again. A call that is cancelled may be made again.

        Raises:
            NotFound: it was not added.
        """
        removed = self._logs.pop(log_id, None) or self._leaving.get(log_id)
        if removed is None:
            raise NotFound(f"no log {log_id!r} was added; these were: {', '.join(sorted(self._logs)) or 'none'}")
        self._leaving[log_id] = removed
        await removed.give_up("the follower receives no more for this log")
        await removed.settle()
        await removed.leave()
        self._leaving.pop(log_id, None)
        self._active.discard(removed)
        self._route(removed)

    @property
    def address(self) -> Address:
        """Where it listens, with the port that the system chose.

        Raises:
            Closed: it was not started, or is closed.
        """
        return self._door.listener.address

    async def _begin(self) -> None:
        """Listen.

        Raises:
            StorageError: the address cannot be listened on.
        """
        self._is_closing = False
        before, self._loop = self._loop, asyncio.get_running_loop()
        if before is not None and before is not self._loop:
            self._ticked, self._installing = asyncio.Event(), asyncio.Semaphore(_INSTALLS_AT_ONCE)
            for log in self._all():
                await log.move(self._installing)
        for log in self._logs.values():
            log.open()
        await self._door.listen(self._listen, self._answer)
        self._work.keep_on(self._await_tick, "watching the clock of transfers")

    async def _end(self) -> None:
        """Listen no more, give transfers up; what is being put in force is seen through, to the host's restoring."""
        logs = self._all()
        for log in logs:
            await log.give_up("the follower is shutting down")
        # Not before each sender was told.
        self._is_closing = True
        self._door.close()
        for log in logs:
            await log.settle()

    async def _pending(self) -> Sequence[TransferOutcome]:
        """Look at the clock; what has ended by it, or where the transfers stand."""
        before = {log: log.outcomes for log in self._logs.values()}
        await self._tick()
        ended = [log.take_outcome() for log, count in before.items() for _ in range(count, log.outcomes)]
        if ended:
            return ended
        busy = [f"{log.log_id}: {log.stage}" for log in self._logs.values() if log.stage != "idle"]
        if not busy:
            return [Skipped("no transfer is on; one begins when a leader connects and offers a snapshot")]
        return [Skipped(f"a transfer goes on: {', '.join(busy)}", is_busy=True)]

    # -- inside

    def _all(self) -> list[ReceivingLog]:
        return [*self._logs.values(), *self._leaving.values()]

    async def _answer(self, arrival: Arrival) -> None:
        where = arrival.where
        try:
            async with self._door.line(arrival, partial(self._welcome, where)) as (line, sender):
                while not self._is_closing and await self._take_in(line, sender):
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
            if isinstance(message, FromReceiver):
                return True
            log = self._logs.get(message.log_id) if isinstance(message, Offer) else \
                self._routes.get(message.envelope.transfer)
            if log is None:
                await self._tell_stranger(line.writer, message)
                return True
            await self._hand_to(log, message, sender, line.writer)
            self._ticked.set()
        return True

    async def _hand_to(self, log: ReceivingLog, message: FromSender, sender: str, line: asyncio.StreamWriter) -> None:
        self._active.add(log)
        if not isinstance(message, Offer):
            await log.take_in(message, sender, line, has_room=True)
            return
        transfer, size, now = message.envelope.transfer, message.meta.live_bytes, self._clock.monotonic()
        if self._first is not None and now - self._first[1] > _FIRST_OF_ALL_SECONDS:
            self._first = None
        is_first = self._first is None or self._first[0] == transfer
        has_room = is_first and self._has_room(log, size)
        # Others come while this one is taken in.
        reserved = size if has_room else 0
        log.reserved_bytes += reserved
        try:
            waits = await log.take_in(message, sender, line, has_room=has_room)
        finally:
            log.reserved_bytes -= reserved
        if self._first is None or self._first[0] == transfer:
            self._first = (transfer, now) if waits else None
        self._route(log)

    def _has_room(self, log: ReceivingLog, size: int) -> bool:
        others = sum(each.live_bytes for each in self._active if each is not log)
        return not others or others + size <= self._limits.max_live_bytes

    def _route(self, log: ReceivingLog) -> None:
        """Have the transfers that a log knows lead to it, and no others."""
        known = log.transfers if self._logs.get(log.log_id) is log else frozenset()
        for transfer in log.routed - known:
            self._routes.pop(transfer, None)
        for transfer in known - log.routed:
            self._routes[transfer] = log
        log.routed = known

    async def _tell_stranger(self, line: asyncio.StreamWriter, message: FromSender) -> None:
        """An answer to what concerns no log that is received for."""
        if isinstance(message, Offer):
            await reply(line, Refusal(message.envelope, AbortReason.UNKNOWN_LOG, -1,
                                      f"this node receives no snapshots for a log {message.log_id!r}; add it there, or "
                                      f"correct the id"))
        elif not isinstance(message, Withdrawal):
            # Of an earlier life, for example: the sender offers it again, and says of which log it is.
            await reply(line, Unknown(message.envelope))

    async def _await_tick(self) -> None:
        deadlines = [log.deadline for log in self._active]
        deadline = min((each for each in deadlines if each is not None), default=None)
        self._ticked.clear()
        rest = _LONGEST_WAIT_SECONDS if deadline is None else deadline - self._clock.monotonic()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(min(max(rest, 0.0), _LONGEST_WAIT_SECONDS)):
                await self._ticked.wait()
        await self._tick()

    async def _tick(self) -> None:
        now = self._clock.monotonic()
        for log in list(self._active):
            if log.deadline is not None and now >= log.deadline:
                await log.tick()
            if log.stage == "idle" and not log.reserved_bytes:
                self._active.discard(log)
