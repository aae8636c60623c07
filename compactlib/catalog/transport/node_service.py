# SPDX-License-Identifier: Apache-2.0
"""The thin edge of a node: joins its state machine, a transport, a clock and the host, in one asyncio event loop.

The state machine decides everything; this module sends, sets timers, calls the host in worker threads, and hands back
its results. `docs/catalog.md` shows one at work.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeAlias

from compactlib.catalog.arguments import printed, whole
from compactlib.catalog.errors import HostFailed
from compactlib.catalog.model.timestamp import Timestamp
from compactlib.catalog.model.values import NodeId, Topology
from compactlib.catalog.round.effects import (
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
from compactlib.catalog.round.messages import Message
from compactlib.catalog.round.node import CatalogNode
from compactlib.catalog.round.outbox import NodeOptions
from compactlib.catalog.round.report import RoundReport, Trigger
from compactlib.catalog.transport.host import CatalogHost
from compactlib.catalog.transport.interface import Transport
from compactlib.clock import Clock, SystemClock
from compactlib.errors import Closed, CompactlibError
from compactlib.outcome import Done, Failed, Outcome, Skipped
from compactlib.runtime.observe import Observer
from compactlib.runtime.services.async_service import AsyncServiceFace, AsyncWork, KeptTask


class CompactionService(AsyncServiceFace):
    """An `AsyncService` that runs one node.

    `elected`, `topology_is` and `watermark_moved` may be called from any thread; they return at once. A node lives
    once: after `stop` a new service, with a new incarnation, takes its place.

    Args:
        me: this node, in this life.
        host: the database around it; called from worker threads, whose end `stop` waits for.
        transport: to the other nodes.
        options: the waits.
        clock: only its `monotonic()` is asked.
        observer: notified of rounds, of what is refused, and of unexpected exceptions (`catalog_node_failed`).
        host_threads: how many calls of the host may run at once; calls that hang take one each.

    Raises:
        InvalidInput: there are no threads, or an argument is of another type.
    """

    def __init__(self, me: NodeId, host: CatalogHost, transport: Transport, *, options: NodeOptions | None = None,
                 clock: Clock | None = None, observer: Observer | None = None, host_threads: int = 8) -> None:
        whole("host_threads", host_threads, lowest=1)
        self._work = AsyncWork(f"node {me}", event="catalog_node_failed", threads=host_threads, observer=observer)
        self._node = CatalogNode(me, options)
        self._host = host
        self._transport = transport
        self._clock = clock or SystemClock()
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._calls: dict[int, KeptTask] = {}
        self._waiting: list[tuple[int, asyncio.Future[RoundOutcome]]] = []
        self._last: RoundReport | None = None
        self._has_lived = False

    @property
    def node(self) -> CatalogNode:
        """The state machine, to look at: its term, its coordinator, whether it runs a round."""
        return self._node

    @property
    def last_round(self) -> RoundReport | None:
        """The report of the last round that this node coordinated."""
        return self._last

    async def run_pending(self) -> Sequence[Outcome[RoundReport]]:
        """A round, if this node coordinates, and how it ended.

        Raises:
            Closed: it was stopped.
        """
        self._require_alive()
        return await super().run_pending()

    def _require_alive(self) -> None:
        if self._has_lived:
            raise Closed(f"{self._node.me} was stopped; make a new service")

    async def _begin(self) -> None:
        self._require_alive()
        await self._transport.start(self._arrived)

    async def _end(self) -> None:
        self._has_lived = True
        self._handle(Stop())
        for timer in self._timers.values():
            timer.cancel()
        await self._transport.close()

    async def _pending(self) -> Sequence[Outcome[RoundReport]]:
        """A round, if this node coordinates; it takes part from now on, if it was not started."""
        await self._work.start(self._begin)
        return (await self.compact_now(),)

    # ---- what the host reports

    def elected(self, term: int, coordinator: str) -> None:
        """`coordinator` was elected in `term`; the host calls this on each node when an election has ended.

        Returns at once; may be called again, late, and from any thread.

        Raises:
            InvalidInput: the term is below 1, or there is no name.
            Closed: the service is not running.
        """
        whole("the term", term, lowest=1)
        printed("the coordinator's name", coordinator)
        self._hand_in(Elected(term, coordinator))

    def topology_is(self, topology: Topology) -> None:
        """The membership has changed, or is set for the first time.

        Raises:
            Closed: the service is not running.
        """
        self._hand_in(TopologyIs(topology))

    def watermark_moved(self, time: Timestamp | None = None) -> None:
        """The local low watermark has moved: starts a round, if this node coordinates. A `LowWatermark` can be given
        this method as a listener.

        Args:
            time: where it has moved to, for listeners' sake: a round asks for it anew.

        Raises:
            Closed: the service is not running.
        """
        self._hand_in(Triggered(Trigger.WATERMARK_MOVED))

    async def compact_now(self) -> RoundOutcome:
        """Start a round, or wait for the one after that which runs. In the event loop's thread.

        `Done` has the report of a round that came to its end: its `compaction` says whether history was cut, and if not
        what holds it. `Skipped`: this node does not coordinate, or stopped to before the round ended. `Failed`: one of
        the round's processes did, whose report is `last_round`, or an unexpected exception was raised.

        Raises:
            Closed: the service is not running.
        """
        self._require_running()
        if not self._node.coordinating:
            return Skipped(f"{self._node.me.name} is not the coordinator; {self._node.coordinator or 'no node'} is")
        waiting: asyncio.Future[RoundOutcome] = asyncio.get_running_loop().create_future()
        running = self._node.running
        self._waiting.append((0 if running is None else running.number + 1, waiting))
        self._handle(Triggered(Trigger.MANUAL))
        return await waiting

    # ---- the loop

    def _require_running(self) -> None:
        if not self._work.is_running:
            raise Closed(f"{self._node.me} is not running: "
                         f"{'it was stopped' if self._work.is_stopping else 'start it first'}")

    def _hand_in(self, event: Event) -> None:
        self._require_running()
        self._work.hand_in(partial(self._handle, event), type(event).__name__)

    def _arrived(self, sender: str, message: Message) -> None:
        if self._work.is_running:
            self._handle(Received(sender, message))

    def _handle(self, event: Event) -> None:
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

    def _failed(self, error: Exception, what: str) -> None:
        """Keep and report an unexpected exception, and go on; callers that wait for a round are released."""
        self._work.note(error, what)
        if self._waiting:
            broke = HostFailed(call=what, kind=type(error).__name__, detail=str(error))
            self._resolve(Failed(broke, changed="unknown"), self._waiting[-1][0])

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
                self._work.observer.event(effect.name, effect.fields)
            case _:
                self._calls[effect.ticket] = self._work.spawn(self._call(effect), type(effect).__name__)

    def _send(self, effect: Send) -> None:
        if effect.to != self._node.me.name:
            self._transport.send(effect.to, effect.message)
        elif self._work.is_running:
            self._work.later(0.0, partial(self._arrived, effect.to, effect.message), "Send")

    def _set_timer(self, effect: SetTimer) -> None:
        old = self._timers.pop(effect.name, None)
        if old is not None:
            old.cancel()
        self._timers[effect.name] = self._work.later(
            effect.at - self._clock.monotonic(), partial(self._handle, TimerFired(effect.name)), effect.name)

    def _told(self, report: RoundReport) -> None:
        self._last = report
        self._work.observer.event("catalog_round", {"report": report})
        if Trigger.MANUAL in report.triggers:
            self._resolve(_outcome_of(report), report.round.number)

    def _resolve(self, answer: RoundOutcome, number: int) -> None:
        """Answer the callers that wait for this round or an earlier one."""
        waiting, self._waiting = self._waiting, []
        for first, future in waiting:
            if first > number:
                self._waiting.append((first, future))
            elif not future.done():
                future.set_result(answer)

    # ---- calls of the host

    async def _call(self, effect: HostCall) -> None:
        try:
            event = await self._work.call(self._calling(effect))
        except CompactlibError as error:
            event = Broke(effect.ticket, error)
        except Exception as error:  # whatever a host may raise must not end the node
            self._work.note(error, type(effect).__name__)
            event = self._broke(effect, error)
        except asyncio.CancelledError:
            raise
        except BaseException as error:  # SystemExit, for example: the round ends, and then the loop
            self._ended(effect, self._broke(effect, error))
            raise
        self._ended(effect, event)

    def _broke(self, effect: HostCall, error: BaseException) -> Broke:
        return Broke(effect.ticket, HostFailed(call=type(effect).__name__, kind=type(error).__name__,
                                               detail=str(error)))

    def _ended(self, effect: HostCall, event: Event) -> None:
        self._calls.pop(effect.ticket, None)
        if self._work.is_running:
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

    def __repr__(self) -> str:
        return f"CompactionService({self._node!r})"


RoundOutcome: TypeAlias = Done[RoundReport] | Skipped | Failed
"""What a round came to."""


def _outcome_of(report: RoundReport) -> RoundOutcome:
    if not report.errors:
        return Done(report)
    processes = (report.compaction, report.publication)
    changed = {each.changed for each in processes if isinstance(each, Failed)}
    if "unknown" in changed:
        return Failed(report.errors[0], "unknown")
    some = "partly" in changed or any(isinstance(each, Done) for each in processes)
    return Failed(report.errors[0], "partly" if some else "no")
