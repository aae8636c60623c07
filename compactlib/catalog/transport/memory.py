# SPDX-License-Identifier: Apache-2.0
"""Transports in memory for nodes of one event loop: everything arrives, at once, in order. For tests."""

from __future__ import annotations

import asyncio

from compactlib.catalog.round.messages import Hello, Message
from compactlib.catalog.transport import wire
from compactlib.catalog.transport.interface import Receive


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
