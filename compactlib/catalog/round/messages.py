# SPDX-License-Identifier: Apache-2.0
"""What nodes say to each other in a compaction round: frozen values, each with the round it belongs to.

One round: the coordinator sends `ReportRequest` to every node of the topology and gets a `ReportAnswer` or a
`ReportFailed` from each; then it sends `PublishTime` to all and gets a `PublishAnswer`. A node that cannot accept a
message answers with a `Refusal`. `Hello` opens a connection and is seen by the transport only. `transport/wire.py` has
the bytes.

A `RoundId` names the coordinator's life, so an answer can never be taken for that of another round, be it late,
repeated, or meant for a coordinator that has restarted since.
"""

from __future__ import annotations

from enum import IntEnum
from typing import TypeAlias

import attrs

from compactlib.catalog.model.timestamp import Timestamp, checked_timestamp
from compactlib.catalog.model.values import NodeId, NodeReport
from compactlib.errors import InvalidInput

MAX_NAME_BYTES = 255
"""The longest name of a node or a cluster, in UTF-8."""
MAX_TEXT_BYTES = 2000
"""The longest reason in a message, in UTF-8; what is longer is cut."""
MAX_ZONES = 100_000
"""Zones of one `PublishAnswer`."""


def checked_name(name: str, *, what: str = "node") -> str:
    """`name`, which must be 1 to `MAX_NAME_BYTES` bytes of UTF-8 that can be printed.

    Raises:
        InvalidInput: it is not.
    """
    if not name or not name.isprintable():
        raise InvalidInput(f"{name!r} is no {what} name; give printable text")
    if len(name.encode()) > MAX_NAME_BYTES:
        raise InvalidInput(f"a {what} name of {len(name.encode())} bytes; the limit is {MAX_NAME_BYTES}")
    return name


@attrs.frozen(order=True)
class RoundId:
    """One round of one coordinator in one term.

    Attributes:
        term: the election term in which `coordinator` was elected, >= 1.
        coordinator: the node that asks, and its incarnation.
        number: counts the rounds of that life, >= 1.
    """

    term: int
    coordinator: NodeId
    number: int

    def __str__(self) -> str:
        return f"round {self.number} of {self.coordinator} in term {self.term}"


@attrs.frozen
class Hello:
    """The first message of each side of a connection.

    Attributes:
        cluster: name of the cluster; a node of another one is turned away.
        node: the node that speaks.
    """

    cluster: str
    node: NodeId


@attrs.frozen
class ReportRequest:
    """Asks a node what it still needs. May be repeated; each answer counts at most once."""

    round: RoundId


@attrs.frozen
class ReportAnswer:
    """A node's report. Everything in it was true at one moment after the request was sent.

    Attributes:
        round: the round that was asked for.
        report: what the node needs and hosts.
    """

    round: RoundId
    report: NodeReport


@attrs.frozen
class ReportFailed:
    """A node that was asked could not report; what it needs is unknown.

    Attributes:
        round: the round that was asked for.
        node: the node that failed.
        reason: the error, as text.
    """

    round: RoundId
    node: NodeId
    reason: str


@attrs.frozen
class PublishTime:
    """Sends a node the lowest time that an active read-write transaction of the whole cluster may need.

    Attributes:
        round: the round whose reports gave `time`.
        time: to be replicated to the partitions whose primary the node is.
    """

    round: RoundId
    time: Timestamp = attrs.field(converter=checked_timestamp)


@attrs.frozen
class ZoneResult:
    """What publishing came to in one zone; zones fail apart.

    Attributes:
        zone: the zone's id.
        published: partitions that took the time.
        skipped: partitions whose primary is elsewhere, or that had the time already.
        error: why the rest did not, `""` if nothing went wrong.
    """

    zone: int
    published: int = 0
    skipped: int = 0
    error: str = ""


@attrs.frozen
class PublishAnswer:
    """What a node did with a `PublishTime`.

    Attributes:
        round: the round it belongs to.
        node: the node that answers.
        zones: one result a zone, by id.
        error: why no zone was tried at all, `""` if they were.
    """

    round: RoundId
    node: NodeId
    zones: tuple[ZoneResult, ...] = ()
    error: str = ""


class RefusalReason(IntEnum):
    """Why a message was not accepted; the numbers are those on the wire."""

    STALE_TERM = 1
    TWO_COORDINATORS = 2
    UNKNOWN_TYPE = 3
    UNKNOWN_VERSION = 4
    STOPPING = 5


@attrs.frozen
class Refusal:
    """A message was not accepted, and changed nothing.

    Attributes:
        node: the node that refuses.
        reason: why.
        term: the highest term that `node` knows; 0 for none. For `UNKNOWN_TYPE` and `UNKNOWN_VERSION` 0.
        round: the round of the refused message, if it could be read.
        detail: the error, as text.
    """

    node: NodeId
    reason: RefusalReason
    term: int
    round: RoundId | None
    detail: str


Message: TypeAlias = ReportRequest | ReportAnswer | ReportFailed | PublishTime | PublishAnswer | Refusal
"""What a transport carries between nodes."""


def short_text(text: str) -> str:
    """`text` cut to `MAX_TEXT_BYTES` bytes of UTF-8."""
    raw = text.encode("utf-8", "replace")
    return text if len(raw) <= MAX_TEXT_BYTES else raw[:MAX_TEXT_BYTES - 3].decode("utf-8", "ignore") + "..."
