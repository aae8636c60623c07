# SPDX-License-Identifier: Apache-2.0
"""`Transport`: what carries messages between nodes. It may lose, repeat, delay and reorder them, not change them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeAlias

from compactlib.catalog.round.messages import Message

Receive: TypeAlias = Callable[[str, Message], None]
"""Called with the sender's name and a message, in the event loop's thread; returns at once."""


class Transport(Protocol):
    """Sends messages to nodes by name. All methods are called in the event loop's thread."""

    async def start(self, receive: Receive) -> None:
        """Begin to hand incoming messages to `receive`.

        Raises:
            StorageError: the address cannot be listened on.
        """

    def send(self, to: str, message: Message) -> None:
        """Send if possible. Returns at once, and never fails: what cannot be sent is lost, counted, and observed."""

    async def close(self) -> None:
        """Stop, and drop what was not sent. Closing again does nothing."""
