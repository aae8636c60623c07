# SPDX-License-Identifier: Apache-2.0
"""Where the parts of a node's state machine put their effects, and what they may set: `Outbox`, `NodeOptions`."""

from __future__ import annotations

from math import isfinite

import attrs

from compactlib.catalog.round.effects import CancelCall, CancelTimer, Effect, Note, Send, SetTimer
from compactlib.catalog.round.messages import Message
from compactlib.errors import InvalidInput


@attrs.frozen(kw_only=True)
class NodeOptions:
    """How long a node waits for what; seconds on the monotonic clock. Every wait has an end.

    Attributes:
        collect_seconds: the coordinator, for the reports of all nodes.
        retry_seconds: the coordinator, before it repeats a message that was not answered.
        decide_seconds: the coordinator, for the assignments and the decision.
        write_seconds: the coordinator, for the snapshot.
        publish_seconds: the coordinator, for all nodes to publish.
        report_seconds: every node, for its own sources.
        zones_seconds: every node, for the partitions of all its zones to take a time; those that did not fail.
        interval_seconds: between the end of a round and the next periodic one; `None` for never.
        min_interval_seconds: between the starts of two rounds; triggers in between become one.

    Raises:
        InvalidInput: a wait is not above 0 or not finite, or a minimum interval is negative.
    """

    collect_seconds: float = 10.0
    retry_seconds: float = 2.0
    decide_seconds: float = 30.0
    write_seconds: float = 30.0
    publish_seconds: float = 30.0
    report_seconds: float = 8.0
    zones_seconds: float = 25.0
    interval_seconds: float | None = 300.0
    min_interval_seconds: float = 0.0

    def __attrs_post_init__(self) -> None:
        for name, value in attrs.asdict(self).items():
            if value is None or (name == "min_interval_seconds" and value == 0):
                continue
            if not (isfinite(value) and value > 0):
                raise InvalidInput(f"{name} is {value}; give seconds above 0")


class Outbox:
    """Collects effects, in order, numbers the calls of the host, and knows which timers are set. One per node."""

    __slots__ = ("_effects", "_tickets", "_timers")

    def __init__(self) -> None:
        self._effects: list[Effect] = []
        self._tickets = 0
        self._timers: dict[str, float] = {}

    def ticket(self) -> int:
        """A number for a call of the host that no other call has."""
        self._tickets += 1
        return self._tickets

    def put(self, effect: Effect) -> None:
        """Any effect."""
        self._effects.append(effect)

    def send(self, to: str, message: Message) -> None:
        """`Send`."""
        self._effects.append(Send(to, message))

    def set_timer(self, name: str, at: float) -> None:
        """`SetTimer`."""
        self._timers[name] = at
        self._effects.append(SetTimer(name, at))

    def cancel_timer(self, name: str) -> None:
        """`CancelTimer`, if it is set."""
        if self._timers.pop(name, None) is not None:
            self._effects.append(CancelTimer(name))

    def is_due(self, name: str, now: float) -> bool:
        """Whether a timer that fired counts: not if it was cancelled meanwhile. One that fired early is set again."""
        at = self._timers.get(name)
        if at is None:
            return False
        if now < at:
            self._effects.append(SetTimer(name, at))
            return False
        del self._timers[name]
        return True

    def cancel_call(self, ticket: int) -> None:
        """`CancelCall`."""
        self._effects.append(CancelCall(ticket))

    def note(self, name: str, **fields: object) -> None:
        """`Note`."""
        self._effects.append(Note(name, fields))

    def take(self) -> list[Effect]:
        """All effects since the last call."""
        taken, self._effects = self._effects, []
        return taken
