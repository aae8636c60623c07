# SPDX-License-Identifier: Apache-2.0
"""A network in memory: deterministic, with faults drawn from a random generator."""

from __future__ import annotations

import heapq
from random import Random

import attrs

from compactlib.catalog.round.messages import Hello, Message
from compactlib.catalog.transport import wire


@attrs.frozen(kw_only=True)
class LinkFaults:
    """How bad the network is. Messages overtake each other when delays differ.

    Attributes:
        lost: the share of messages that never arrive, 0 to 1.
        repeated: the share that arrives twice, 0 to 1.
        min_delay_seconds: the shortest way.
        max_delay_seconds: the longest way.
    """

    lost: float = 0.0
    repeated: float = 0.0
    min_delay_seconds: float = 0.001
    max_delay_seconds: float = 0.001


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
