"""A network in memory: deterministic, with faults drawn from a random generator. For tests and simulations.

>>> import random
>>> from compactlib.catalog.round.messages import ReportRequest, RoundId
>>> from compactlib.catalog.model.values import NodeId
>>> network = MemoryNetwork(random.Random(1), LinkFaults(min_delay_seconds=0.1, max_delay_seconds=0.1))
>>> network.send("a", "b", ReportRequest(RoundId(1, NodeId("a"), 1)), now=0.0)
>>> network.next_at(), network.deliver(0.05), len(network.deliver(0.1))
(0.1, [], 1)
"""

from __future__ import annotations

import asyncio
import heapq
from math import isfinite
from random import Random

import attrs

from compactlib.catalog.round.messages import Hello, Message
from compactlib.catalog.transport import wire
from compactlib.catalog.transport.interface import Receive
from compactlib.errors import InvalidInput


@attrs.frozen(kw_only=True)
class LinkFaults:
    """How bad the network is. Messages overtake each other when delays differ.

    Attributes:
        lost: the share of messages that never arrive, 0 to 1.
        repeated: the share that arrives twice, 0 to 1.
        min_delay_seconds: the shortest way.
        max_delay_seconds: the longest way.

    Raises:
        InvalidInput: a share is not within 0 and 1, or delays are negative or out of order.
    """

    lost: float = 0.0
    repeated: float = 0.0
    min_delay_seconds: float = 0.001
    max_delay_seconds: float = 0.001

    def __attrs_post_init__(self) -> None:
        if not (0 <= self.lost <= 1 and 0 <= self.repeated <= 1):
            raise InvalidInput(f"lost is {self.lost}, repeated is {self.repeated}; give shares from 0 to 1")
        if not (0 <= self.min_delay_seconds <= self.max_delay_seconds and isfinite(self.max_delay_seconds)):
            raise InvalidInput(f"delays from {self.min_delay_seconds} to {self.max_delay_seconds} s; give "
                               f"0 <= min <= max")


@attrs.frozen
class Delivery:
    """A message that arrives now."""

    sender: str
    to: str
    message: Message


class MemoryNetwork:
    """Holds messages until their time has come. Equal seeds and equal calls give equal deliveries.

    Args:
        random: decides what is lost, repeated and delayed.
        faults: how bad the network is.
        through_wire: whether each message goes through its bytes, as on a real network.
    """

    def __init__(self, random: Random, faults: LinkFaults | None = None, *, through_wire: bool = True) -> None:
        self.faults: LinkFaults = faults or LinkFaults()
        """How bad the network is; may be replaced at any time."""
        self._random = random
        self._through_wire = through_wire
        self._queue: list[tuple[float, int, Delivery]] = []
        self._count = 0
        self._cut: set[frozenset[str]] = set()
        self.lost: int = 0
        """Messages that were lost so far."""

    def send(self, sender: str, to: str, message: Message, now: float) -> None:
        """Put a message on its way. O(log messages).

        Raises:
            MessageTooLarge: it exceeds what a transport carries.
        """
        if self._through_wire:
            decoded = wire.decode(wire.encode(message)[wire.LENGTH_BYTES:], sender=sender)
            assert not isinstance(decoded, Hello)
            message = decoded
        faults, random = self.faults, self._random
        if frozenset((sender, to)) in self._cut or (faults.lost and random.random() < faults.lost):
            self.lost += 1
            return
        copies = 2 if faults.repeated and random.random() < faults.repeated else 1
        for _ in range(copies):
            delay = random.uniform(faults.min_delay_seconds, faults.max_delay_seconds)
            self._count += 1
            heapq.heappush(self._queue, (now + delay, self._count, Delivery(sender, to, message)))

    def next_at(self) -> float | None:
        """When the next message arrives; `None` if nothing is on its way."""
        return self._queue[0][0] if self._queue else None

    def deliver(self, now: float) -> list[Delivery]:
        """What has arrived by now, in order; each message once."""
        arrived = []
        while self._queue and self._queue[0][0] <= now:
            arrived.append(heapq.heappop(self._queue)[2])
        return arrived

    def cut(self, one: str, other: str) -> None:
        """Nothing sent from now on gets from one to the other, nor back."""
        self._cut.add(frozenset((one, other)))

    def heal(self) -> None:
        """Every link works again."""
        self._cut.clear()

    def __len__(self) -> int:
        return len(self._queue)


class MemoryHub:
    """Joins `MemoryTransport`s of one event loop: everything arrives, at once, in order, through its bytes."""

    def __init__(self) -> None:
        self._receivers: dict[str, Receive] = {}

    def transport(self, name: str) -> MemoryTransport:
        """A transport for the node of this name."""
        return MemoryTransport(self, name)

    def deliver(self, sender: str, to: str, message: Message) -> None:
        """Hand over a message in the next turn of the loop; a node that is not there loses it."""
        frame = wire.encode(message)

        def arrive() -> None:
            receive = self._receivers.get(to)
            if receive is not None:
                decoded = wire.decode(frame[wire.LENGTH_BYTES:], sender=sender)
                assert not isinstance(decoded, Hello)
                receive(sender, decoded)

        asyncio.get_running_loop().call_soon(arrive)


class MemoryTransport:
    """See `MemoryHub`.

    Args:
        hub: joins it with others.
        me: the node's name.
    """

    def __init__(self, hub: MemoryHub, me: str) -> None:
        self._hub = hub
        self._me = me

    async def start(self, receive: Receive) -> None:
        """See `Transport.start`."""
        self._hub._receivers[self._me] = receive

    def send(self, to: str, message: Message) -> None:
        """See `Transport.send`."""
        self._hub.deliver(self._me, to, message)

    async def close(self) -> None:
        """See `Transport.close`."""
        self._hub._receivers.pop(self._me, None)
