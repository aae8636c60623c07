# SPDX-License-Identifier: Apache-2.0
"""The frozen values of a compaction round: the topology, what each node needs and hosts, and who must host what.

Everything here is plain data that compares, pickles and prints; `REPORTS` makes JSON of a report. `decision.py` turns
these values into a target version.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from typing import TypeAlias

import attrs

from compactlib.catalog.timestamp import Timestamp, checked_timestamp
from compactlib.codec import JsonCodec
from compactlib.errors import InvalidInput

MAX_PARTITIONS = 10_000
"""Partitions that a zone may have."""


class Factor(StrEnum):
    """What can keep an old catalog version needed. The first four are the restrictions of the design, in its order."""

    ACTIVE_TRANSACTIONS = "active transactions"
    RAFT_RECOVERY = "raft log recovery"
    INDEX_BUILD = "index build"
    REBALANCE = "rebalance"
    LOW_WATERMARK = "low watermark"
    PIN = "pin"
    MISSING_NODE = "missing node"
    MISSING_PARTITION = "missing partition"
    DROPPED_TABLE = "dropped table still readable"
    NO_ASSIGNMENTS = "assignments not known"
    NO_ANSWER = "no answer"
    UNAVAILABLE = "not available yet"


@attrs.frozen(order=True)
class NodeId:
    """One life of one node.

    Attributes:
        name: stays the same over restarts; assignments name nodes by it.
        incarnation: ascends from life to life, > 0; only reports of the present one count.
    """

    name: str = attrs.field(validator=attrs.validators.min_len(1))
    incarnation: int = attrs.field(default=1, validator=attrs.validators.ge(1))

    def __str__(self) -> str:
        return f"{self.name}#{self.incarnation}"


@attrs.frozen
class Topology:
    """The nodes of the cluster, as captured when a round began.

    Attributes:
        nodes: each name once.

    Raises:
        InvalidInput: two nodes have one name.
    """

    nodes: frozenset[NodeId]

    def __attrs_post_init__(self) -> None:
        if len({node.name for node in self.nodes}) < len(self.nodes):
            raise InvalidInput(f"a node is in the topology in two incarnations: {sorted(self.nodes)}; keep the one "
                               f"that is alive")

    @classmethod
    def of(cls, *names: str) -> Topology:
        """Return a topology of first incarnations."""
        return cls(frozenset(NodeId(name) for name in names))


@attrs.frozen(kw_only=True)
class Culprit:
    """Who or what holds a version: whatever is known of it, the rest `None` or `""`.

    Attributes:
        node: name of the node.
        table: a table's id.
        partitions: partition numbers, ascending.
        index: an index's id.
        zone: a zone's id.
        owner: a transaction, a pin's owner, ...
    """

    node: str = ""
    table: int | None = None
    partitions: tuple[int, ...] = ()
    index: int | None = None
    zone: int | None = None
    owner: str = ""

    def __str__(self) -> str:
        shown = [f"node {self.node}" if self.node else ""]
        ids = {"zone": self.zone, "table": self.table, "index": self.index}
        shown += [f"{name} {value}" for name, value in ids.items() if value is not None]
        shown += [f"partitions {_listed(self.partitions)}" if self.partitions else "", self.owner]
        return ", ".join(part for part in shown if part)


def _listed(numbers: Sequence[int], most: int = 8) -> str:
    shown = ", ".join(map(str, numbers[:most]))
    return shown if len(numbers) <= most else f"{shown} and {len(numbers) - most} more"


def _checked_floor(time: Timestamp) -> Timestamp:
    return checked_timestamp(time) if time else 0


@attrs.frozen
class Floor:
    """Everything from this time on may still be needed: the version active then must stay readable.

    Attributes:
        factor: why.
        time: the lowest time needed; 0 for "from the very beginning", which allows nothing.
        culprit: what needs it; a node's report need not name its own node.
    """

    factor: Factor
    time: Timestamp = attrs.field(converter=_checked_floor)
    culprit: Culprit = attrs.field(factory=Culprit)


@attrs.frozen
class Unavailable:
    """A source cannot yet say what it needs, so nothing may be cut.

    Attributes:
        factor: the source.
        reason: why it cannot, in one sentence.
    """

    factor: Factor
    reason: str
    culprit: Culprit = attrs.field(factory=Culprit)


Need: TypeAlias = Floor | Unavailable
"""What a source answers; `None` in its place means that it needs nothing."""


@attrs.frozen(kw_only=True)
class NodeReport:
    """One node's answer to a round: what it needs and what it hosts, taken from one moment.

    Attributes:
        node: the node that answers, in its present life.
        floors: at most one per factor, the lowest.
        unavailable: sources that cannot answer yet.
        hosted: the partitions that `floors` speaks for, all of them: a bitmap by table id, bit p for partition p.
        transactions_from: restriction 1's time, which a round has the nodes publish: activation of the oldest version
            that an active read-write transaction uses, or the node's time if there is none.
    """

    node: NodeId
    floors: tuple[Floor, ...] = ()
    unavailable: tuple[Unavailable, ...] = ()
    hosted: Mapping[int, int] = attrs.field(factory=dict)
    transactions_from: Timestamp = attrs.field(converter=checked_timestamp)

    def floor(self, factor: Factor) -> Floor | None:
        """Return the floor of this factor, if there is one."""
        return next((floor for floor in self.floors if floor.factor == factor), None)


REPORTS = JsonCodec[NodeReport](NodeReport)
"""A report as JSON, and back, for the messages of a host."""


@attrs.frozen
class ZoneResult:
    """What became of a time in one zone, on one node.

    Attributes:
        zone: the zone's id.
        published: in the logs of how many partitions the time was proposed: those that this node leads.
        error: why it failed; empty if it did not.
    """

    zone: int
    published: int = 0
    error: str = ""


@attrs.frozen
class Published:
    """One node's answer to a time that it was to publish.

    Attributes:
        zones: one a zone, by id; zones fail apart.
    """

    zones: tuple[ZoneResult, ...] = ()


PUBLISHED = JsonCodec[Published](Published)
"""The same as JSON, and back."""


@attrs.frozen
class ZoneAssignments:
    """Which nodes host which partitions of one zone, a bitmap a node.

    Attributes:
        partitions: how many partitions the lookup covered.
        masks: bitmap by node name.
    """

    partitions: int
    masks: Mapping[str, int]

    @classmethod
    def of(cls, replicas: Sequence[Sequence[str] | None]) -> ZoneAssignments:
        """Return those of a list of node names per partition; `None` or an empty list: not known."""
        masks: dict[str, int] = {}
        for partition, names in enumerate(replicas):
            for name in names or ():
                masks[name] = masks.get(name, 0) | 1 << partition
        return cls(len(replicas), masks)

    @classmethod
    def everywhere(cls, names: Sequence[str], partitions: int) -> ZoneAssignments:
        """Return every partition on every node."""
        return cls(partitions, dict.fromkeys(names, mask_of(range(partitions))))

    def assigned(self) -> int:
        """Return the bitmap of partitions that at least one node hosts. O(nodes)."""
        found = 0
        for mask in self.masks.values():
            found |= mask
        return found


@attrs.frozen
class Assignments:
    """The stable assignments of all zones, read at one moment.

    Attributes:
        zones: by zone id; a zone that is absent is not known.
    """

    zones: Mapping[int, ZoneAssignments] = attrs.field(factory=dict)


def mask_of(partitions: Iterable[int]) -> int:
    """Return a bitmap with bit p set for each partition p.

    Raises:
        InvalidInput: a partition is negative, or `MAX_PARTITIONS` or above.
    """
    mask = 0
    for partition in partitions:
        if not 0 <= partition < MAX_PARTITIONS:
            raise InvalidInput(f"partition {partition} is out of range; a zone has 1 to {MAX_PARTITIONS} partitions")
        mask |= 1 << partition
    return mask


def partitions_of(mask: int) -> Iterator[int]:
    """Return the partitions whose bits are set, ascending. O(set bits)."""
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low
