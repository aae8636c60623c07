# SPDX-License-Identifier: Apache-2.0
"""What goes into a node's state machine and what comes out: events and effects, as plain values.

The machine (`node.py`) does nothing by itself. Its caller hands it one event at a time with the time, and carries
out the effects that it answers: sends messages, sets timers, and calls the host. A call of the host has a ticket; its
end comes back as an event with that ticket, and may come back never, since every wait has a timer.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

import attrs

from compactlib.catalog.model.timestamp import Timestamp
from compactlib.catalog.model.values import NodeReport, Topology
from compactlib.catalog.plan.plan import CatalogPlan, CutReport
from compactlib.catalog.round.messages import Message, ZoneResult
from compactlib.catalog.round.report import RoundReport, Trigger
from compactlib.errors import CompactlibError
from compactlib.outcome import Outcome

# ------------------------------------------------------------------------------------------------------------ events


@attrs.frozen
class Received:
    """A message arrived.

    Attributes:
        sender: the name of the node whose connection it came from; what a message says of its sender must agree.
        message: it.
    """

    sender: str
    message: Message


@attrs.frozen
class Elected:
    """The host's election has chosen this node or another; see `CompactionService.elected`."""

    term: int
    coordinator: str


@attrs.frozen
class TopologyIs:
    """The membership as it is now."""

    topology: Topology


@attrs.frozen
class Triggered:
    """A round is wanted; nothing happens on a node that is not the coordinator."""

    trigger: Trigger


@attrs.frozen
class TimerFired:
    """The time of a `SetTimer` has come."""

    name: str


@attrs.frozen
class Reported:
    """`Collect` ended."""

    ticket: int
    report: NodeReport


@attrs.frozen
class ZonesListed:
    """`ListZones` ended: how many partitions each zone has, by zone id."""

    ticket: int
    zones: Mapping[int, int]


@attrs.frozen
class ZonePublished:
    """`PublishZone` ended; errors inside the zone are in the result."""

    ticket: int
    result: ZoneResult


@attrs.frozen
class Decided:
    """`Decide` ended."""

    ticket: int
    plan: CatalogPlan


@attrs.frozen
class SnapshotWritten:
    """`WriteSnapshot` ended, and in what."""

    ticket: int
    outcome: Outcome[CutReport]


@attrs.frozen
class TopologyConfirmed:
    """`ConfirmTopology` ended: whether the membership is still the one that was asked about."""

    ticket: int
    unchanged: bool


@attrs.frozen
class Broke:
    """A call of the host ended in an error, whichever call the ticket stands for."""

    ticket: int
    error: CompactlibError


@attrs.frozen
class Stop:
    """The node goes down: what runs is given up, and nothing is accepted from now on."""


Event: TypeAlias = (Received | Elected | TopologyIs | Triggered | TimerFired | Reported | ZonesListed | ZonePublished
                    | Decided | SnapshotWritten | TopologyConfirmed | Broke | Stop)
"""What a node's state machine takes."""


# ----------------------------------------------------------------------------------------------------------- effects


@attrs.frozen
class Send:
    """Send a message; it may get lost. A message to the node's own name is handed back to it as `Received`."""

    to: str
    message: Message


@attrs.frozen
class SetTimer:
    """Fire `TimerFired(name)` when the monotonic clock reaches `at`; a timer of this name is replaced."""

    name: str
    at: float


@attrs.frozen
class CancelTimer:
    """Forget the timer of this name, if there is one."""

    name: str


@attrs.frozen
class Collect:
    """Ask the host's sources what this node needs: `Reported` or `Broke`."""

    ticket: int


@attrs.frozen
class ListZones:
    """List the zones of all versions from the one active at `time` to the one active now: `ZonesListed` or `Broke`."""

    ticket: int
    time: Timestamp


@attrs.frozen
class PublishZone:
    """Replicate `time` to the zone's partitions whose primary is here: `ZonePublished` or `Broke`."""

    ticket: int
    zone: int
    partitions: int
    time: Timestamp


@attrs.frozen
class ConfirmTopology:
    """Ask whether the membership is still this one, by a read that no older state can answer: `TopologyConfirmed`.

    A node that joined after the reports were asked for may have a transaction that none of them knows.
    """

    ticket: int
    topology: Topology


@attrs.frozen
class Decide:
    """Look up assignments and decide: `Decided` or `Broke`. Reports may be missing; then nothing may be cut."""

    ticket: int
    reports: tuple[NodeReport, ...]
    topology: Topology
    term: int


@attrs.frozen
class WriteSnapshot:
    """Check that the plan still holds and carry it out: `SnapshotWritten` or `Broke`."""

    ticket: int
    plan: CatalogPlan


@attrs.frozen
class CancelCall:
    """No caller waits for this ticket any more; the call may be stopped."""

    ticket: int


@attrs.frozen
class Tell:
    """A round ended."""

    report: RoundReport


@attrs.frozen
class Note:
    """Something that an operator may want to know, for `Observer.event` and `Observer.count`.

    Attributes:
        name: what happened, as one word.
        fields: its numbers.
    """

    name: str
    fields: Mapping[str, Any]


Effect: TypeAlias = (Send | SetTimer | CancelTimer | Collect | ListZones | PublishZone | ConfirmTopology | Decide
                     | WriteSnapshot | CancelCall | Tell | Note)
"""What a node's state machine wants done."""

HostCall: TypeAlias = Collect | ListZones | PublishZone | ConfirmTopology | Decide | WriteSnapshot
"""The effects that are calls of the host."""
