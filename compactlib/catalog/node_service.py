"""The thin edge of a node: joins its state machine, a transport, a clock and the host, in one asyncio event loop.

The state machine decides everything; this module sends, sets timers, calls the host in worker threads, and hands back
what comes of it. `docs/catalog-protocol.md` shows one at work.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Self

from compactlib.catalog.effects import (
    Broke,
    CancelCall,
    CancelTimer,
    Collect,
    ConfirmTopology,
    Decide,
    Decided,
    Effect,
    Elected,
    Event,
    HostCall,
    ListZones,
    Note,
    PublishZone,
    Received,
    Reported,
    Send,
    SetTimer,
    SnapshotWritten,
    Stop,
    Tell,
    TimerFired,
    TopologyConfirmed,
    TopologyIs,
    Triggered,
    WriteSnapshot,
    ZonePublished,
    ZonesListed,
)
from compactlib.catalog.errors import HostFailed
from compactlib.catalog.host import CatalogHost
from compactlib.catalog.messages import Message
from compactlib.catalog.model import NodeId, Topology
from compactlib.catalog.node import CatalogNode
from compactlib.catalog.outbox import NodeOptions
from compactlib.catalog.round_report import RoundReport, Trigger
from compactlib.catalog.transport import Transport
from compactlib.clock import Clock, SystemClock
from compactlib.errors import AuditFailed, Closed, CompactlibError, InvalidInput
from compactlib.observe import Observer
from compactlib.outcome import Skipped
from compactlib.runtime import DaemonThreads, telling

_LOGGER = logging.getLogger("compactlib.catalog")


class CompactionService:
    """Runs one node. An `ElectionListener`; use it with `async with`, or call `start` and `stop`.

    `elected`, `topology_is` and `watermark_moved` may be called from any thread; they return at once.

    Args:
        me: this node, in this life.
        host: the database around it; called from worker threads.
        transport: to the other nodes.
        options: the waits.
        clock: only its `monotonic()` is asked.
        observer: told of rounds, of what is refused, and of what nobody expected (`catalog_node_failed`).
        host_threads: how many calls of the host may run at once; calls that hang take one each.

    Raises:
        InvalidInput: there are no threads.
    """

    def __init__(self, me: NodeId, host: CatalogHost, transport: Transport, *, options: NodeOptions | None = None,
                 clock: Clock | None = None, observer: Observer | None = None, host_threads: int = 8) -> None:
        if host_threads < 1:
            raise InvalidInput(f"host_threads is {host_threads}; give at least 1")
        self._node = CatalogNode(me, options)
        self._host = host
        self._transport = transport
        self._clock = clock or SystemClock()
        self._observer = telling(observer)
        self._workers = DaemonThreads(host_threads, f"catalog-{me.name}")
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._calls: dict[int, asyncio.Task[None]] = {}
        self._waiting: list[tuple[int, asyncio.Future[RoundReport | Skipped]]] = []
        self._last: RoundReport | None = None
        self._last_error: BaseException | None = None
        self._failures = 0
        self._stopping: asyncio.Task[None] | None = None
        self._stopped = False

    @property
    def node(self) -> CatalogNode:
        """The state machine, to look at: its term, its coordinator, whether it runs a round."""
        return self._node

    @property
    def last_round(self) -> RoundReport | None:
        """The report of the last round that this node coordinated."""
        return self._last

    @property
    def last_error(self) -> BaseException | None:
        """What was raised last that nobody expected, by the node, the transport or the host; the service went on."""
        return self._last_error

    @property
    def failures(self) -> int:
        """How often that happened."""
        return self._failures

    async def start(self) -> None:
        """Begin to take part; starting again does nothing.

        Raises:
            Closed: it was stopped.
            StorageError: the transport cannot listen; start it again when it can.
        """
        if self._stopped:
            raise Closed(f"{self._node.me} was stopped; make a new service")
        if self._loop is not None:
            return
        self._loop = asyncio.get_running_loop()
        try:
            await self._transport.start(self._arrived)
        except BaseException:
            self._loop = None
            raise

    async def stop(self) -> None:
        """Give up what runs, tell who waits for it, and stop. Stopping again waits until it has stopped.

        Calls of the host that hang are not waited for; they run in daemon threads, which keep no process from ending.
        """
        if self._stopping is None:
            self._stopping = asyncio.get_running_loop().create_task(self._stop())
        await asyncio.shield(self._stopping)

    async def _stop(self) -> None:
        self._handle(Stop())
        self._stopped = True
        for timer in self._timers.values():
            timer.cancel()
        calls = list(self._calls.values())
        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)
        try:
            await self._transport.close()
        finally:
            self._workers.close()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    # ---- what the host tells

    def elected(self, term: int, coordinator: str) -> None:
        """See `ElectionListener.elected`.

        Raises:
            InvalidInput: the term is below 1, or there is no name.
            Closed: the service is not running.
        """
        if term < 1 or not coordinator:
            raise InvalidInput(f"term {term}, coordinator {coordinator!r}: terms count from 1 and have a coordinator")
        self._hand_in(Elected(term, coordinator))

    def topology_is(self, topology: Topology) -> None:
        """The membership has changed, or is told for the first time.

        Raises:
            Closed: the service is not running.
        """
        self._hand_in(TopologyIs(topology))

    def watermark_moved(self) -> None:
        """The local low watermark has moved.

        Raises:
            Closed: the service is not running.
        """
        self._hand_in(Triggered(Trigger.WATERMARK_MOVED))

    async def compact_now(self) -> RoundReport | Skipped:
        """Start a round, or wait for the one after that which runs; its report. In the event loop's thread.

        `Skipped` says that this node does not coordinate, or stopped to before the round ended.

        Raises:
            Closed: the service is not running.
            HostFailed: something was raised that nobody expected, see `last_error`; the node goes on.
        """
        self._running_loop()
        if not self._node.coordinating:
            return Skipped(f"{self._node.me.name} is not the coordinator; {self._node.coordinator or 'nobody'} is")
        waiting: asyncio.Future[RoundReport | Skipped] = asyncio.get_running_loop().create_future()
        running = self._node.running
        self._waiting.append((0 if running is None else running.number + 1, waiting))
        self._handle(Triggered(Trigger.MANUAL))
        return await waiting

    # ---- the loop

    def _running_loop(self) -> asyncio.AbstractEventLoop:
        if self._loop is None or self._stopped:
            raise Closed(f"{self._node.me} is not running: {'it was stopped' if self._stopped else 'start it first'}")
        return self._loop

    def _hand_in(self, event: Event) -> None:
        loop = self._running_loop()
        try:
            here = asyncio.get_running_loop() is loop
        except RuntimeError:
            here = False
        if here:
            self._handle(event)
        else:
            loop.call_soon_threadsafe(self._handle, event)

    def _arrived(self, sender: str, message: Message) -> None:
        self._handle(Received(sender, message))

    def _handle(self, event: Event) -> None:
        if self._stopped:
            return
        if isinstance(event, TimerFired):
            self._timers.pop(event.name, None)
        try:
            effects = self._node.handle(event, self._clock.monotonic())
        except Exception as error:
            self._failed(error, type(event).__name__)
            effects = []
        for effect in effects:
            try:
                self._carry_out(effect)
            except Exception as error:
                # The others are carried out all the same: a message that is lost is sent again.
                self._failed(error, type(effect).__name__)
        if self._waiting and not self._node.coordinating:
            self._resolve(Skipped(f"{self._node.me.name} stopped being the coordinator before the round ended"),
                          self._waiting[-1][0])

    def _failed(self, error: BaseException, what: str) -> None:
        """Keep and tell what nobody expected, and go on; whoever waits for a round is not left waiting."""
        self._last_error = error
        self._failures += 1
        _LOGGER.warning("%s: %s raised %r; the node goes on", self._node.me, what, error, exc_info=error)
        self._observer.event("catalog_node_failed", {"what": what, "error": type(error).__name__,
                                                     "message": str(error)})
        waiting, self._waiting = self._waiting, []
        for _, future in waiting:
            if not future.done():
                future.set_exception(HostFailed(call=what, kind=type(error).__name__, detail=str(error)))

    def _carry_out(self, effect: Effect) -> None:
        match effect:
            case Send():
                self._send(effect)
            case SetTimer():
                self._set_timer(effect)
            case CancelTimer():
                timer = self._timers.pop(effect.name, None)
                if timer is not None:
                    timer.cancel()
            case CancelCall():
                call = self._calls.pop(effect.ticket, None)
                if call is not None:
                    call.cancel()
            case Tell():
                self._told(effect.report)
            case Note():
                self._observer.event(effect.name, effect.fields)
            case _:
                self._start_call(effect)

    def _send(self, effect: Send) -> None:
        if effect.to == self._node.me.name:
            self._running_loop().call_soon(self._arrived, effect.to, effect.message)
        else:
            self._transport.send(effect.to, effect.message)

    def _set_timer(self, effect: SetTimer) -> None:
        old = self._timers.pop(effect.name, None)
        if old is not None:
            old.cancel()
        wait = max(0.0, effect.at - self._clock.monotonic())
        self._timers[effect.name] = self._running_loop().call_later(wait, self._handle, TimerFired(effect.name))

    def _told(self, report: RoundReport) -> None:
        self._last = report
        self._observer.event("catalog_round", {"report": report})
        if Trigger.MANUAL in report.triggers:
            self._resolve(report, report.round.number)

    def _resolve(self, answer: RoundReport | Skipped, number: int) -> None:
        """Answer those who wait for this round or an earlier one."""
        waiting, self._waiting = self._waiting, []
        for first, future in waiting:
            if first > number:
                self._waiting.append((first, future))
            elif not future.done():
                future.set_result(answer)

    # ---- calls of the host

    def _start_call(self, effect: HostCall) -> None:
        self._calls[effect.ticket] = self._running_loop().create_task(self._call(effect))

    async def _call(self, effect: HostCall) -> None:
        try:
            event = await asyncio.wrap_future(self._workers.future(self._calling(effect)))
        except CompactlibError as error:
            event = Broke(effect.ticket, error)
        except Exception as error:  # whatever a host may raise must not end the node
            event = self._broke(effect, error)
        except asyncio.CancelledError:
            raise
        except BaseException as error:  # SystemExit, for example: the round ends, and then the loop
            self._last_error = error
            self._ended(effect, self._broke(effect, error))
            raise
        self._ended(effect, event)

    def _broke(self, effect: HostCall, error: BaseException) -> Broke:
        return Broke(effect.ticket, HostFailed(call=type(effect).__name__, kind=type(error).__name__,
                                               detail=str(error)))

    def _ended(self, effect: HostCall, event: Event) -> None:
        self._calls.pop(effect.ticket, None)
        self._handle(event)

    def _calling(self, effect: HostCall) -> Callable[[], Event]:
        host, ticket = self._host, effect.ticket
        match effect:
            case Collect():
                return lambda: Reported(ticket, host.report())
            case ListZones():
                return lambda: ZonesListed(ticket, host.zones(effect.time))
            case PublishZone():
                return lambda: ZonePublished(ticket, host.publish(effect.zone, effect.partitions, effect.time))
            case ConfirmTopology():
                return lambda: TopologyConfirmed(ticket, host.confirm(effect.topology))
            case Decide():
                return lambda: Decided(ticket, host.plan(effect.reports, effect.topology, effect.term))
            case WriteSnapshot():
                return lambda: SnapshotWritten(ticket, host.compact(effect.plan))

    def audit(self) -> None:
        """Check the node's state, and that nobody waits for a round that cannot come.

        Raises:
            AuditFailed: something does not hold that must; this is a bug.
        """
        self._node.audit()
        if self._waiting and not self._node.coordinating:
            raise AuditFailed(f"{len(self._waiting)} callers wait for a round of {self._node!r}")

    def __repr__(self) -> str:
        return f"CompactionService({self._node!r})"
