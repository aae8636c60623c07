# SPDX-License-Identifier: Apache-2.0
"""The frozen values of a compaction round: the topology, the needs of each node, and which nodes must have answered.

Everything here is plain data that compares, pickles and prints; `plan/decision.py` turns it into a target version.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from itertools import pairwise
from typing import Any, TypeAlias

import attrs

from compactlib.catalog.model.partitions import HostedPartitions, mask_of, partitions_of
from compactlib.catalog.model.timestamp import Timestamp, checked_timestamp
from compactlib.errors import InvalidInput


class Factor(StrEnum):
    """What can keep an old catalog version needed. The first four are Ignite's restrictions, in its order."""

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


RESTRICTIONS: tuple[Factor, ...] = (
    Factor.ACTIVE_TRANSACTIONS, Factor.RAFT_RECOVERY, Factor.INDEX_BUILD, Factor.REBALANCE,
)
"""The four restrictions that the design names."""


@attrs.frozen(order=True)
class NodeId:
    """One life of one node.

    Attributes:
        name: stays the same over restarts; assignments name nodes by it.
        incarnation: differs in each life, > 0; only reports of that life count.
    """

    name: str
    incarnation: int = 1

    def __str__(self) -> str:
        return f"{self.name}#{self.incarnation}"


@attrs.frozen
class Topology:
    """The nodes of the cluster, as captured when a round began.

    Attributes:
        nodes: each name once.
        epoch: grows with every change of the membership; re-checked when the snapshot is written.

    Raises:
        InvalidInput: two nodes have one name, or one is no `NodeId`.
    """

    nodes: frozenset[NodeId]
    epoch: int = 0

    def __attrs_post_init__(self) -> None:
        names = sorted(node.name for node in self.nodes)
        twice = [name for name, after in pairwise(names) if name == after]
        if twice:
            raise InvalidInput(f"node {twice[0]!r} is in the topology in two incarnations; keep the one that is alive")

    @classmethod
    def of(cls, *names: str, epoch: int = 0) -> Topology:
        """A topology of first incarnations."""
        return cls(frozenset(NodeId(name) for name in names), epoch)

    def incarnations(self) -> dict[str, int]:
        """Incarnation by name."""
        return {node.name: node.incarnation for node in self.nodes}


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
        told = [f"node {self.node}" if self.node else ""]
        ids = {"zone": self.zone, "table": self.table, "index": self.index}
        told += [f"{name} {value}" for name, value in ids.items() if value is not None]
        told += [f"partitions {_listed(self.partitions)}" if self.partitions else "", self.owner]
        return ", ".join(part for part in told if part)

    def to_dict(self) -> dict[str, Any]:
        """What is known, by name."""
        return {name: value for name, value in attrs.asdict(self).items() if value not in (None, "", ())}


def _listed(numbers: Sequence[int], most: int = 8) -> str:
    shown = ", ".join(map(str, numbers[:most]))
    return shown if len(numbers) <= most else f"{shown} and {len(numbers) - most} more"


def _checked_floor(time: Timestamp) -> Timestamp:
    return 0 if type(time) is int and not time else checked_timestamp(time)


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
        node: the node that answers, and its incarnation.
        floors: at most one per factor, the lowest.
        unavailable: sources that cannot answer yet.
        hosted: the partitions that `floors` speaks for, all of them.
        transactions_from: restriction 1's time, which the coordinator spreads to the partitions: activation of the
            oldest version that an active read-write transaction uses, or the node's time if there is none.
    """

    node: NodeId
    floors: tuple[Floor, ...] = ()
    unavailable: tuple[Unavailable, ...] = ()
    hosted: HostedPartitions = attrs.field(factory=HostedPartitions)
    transactions_from: Timestamp = attrs.field(converter=checked_timestamp)

    def floor(self, factor: Factor) -> Floor | None:
        """The floor of this factor, if there is one."""
        return next((floor for floor in self.floors if floor.factor == factor), None)

    def minimum(self) -> Timestamp | None:
        """The lowest floor; `None` if there is none."""
        return min((floor.time for floor in self.floors), default=None)


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
        """From a list of node names per partition; `None` or an empty list: not known."""
        masks: dict[str, int] = {}
        for partition, names in enumerate(replicas):
            for name in names or ():
                masks[name] = masks.get(name, 0) | 1 << partition
        return cls(len(replicas), masks)

    @classmethod
    def everywhere(cls, names: Sequence[str], partitions: int) -> ZoneAssignments:
        """Every partition on every node."""
        return cls(partitions, dict.fromkeys(names, mask_of(range(partitions))))

    def assigned(self) -> int:
        """The bitmap of partitions that at least one node hosts. O(nodes)."""
        found = 0
        for mask in self.masks.values():
            found |= mask
        return found

    def replicas(self) -> list[list[str]]:
        """Node names per partition, sorted."""
        names: list[list[str]] = [[] for _ in range(self.partitions)]
        for name in sorted(self.masks):
            for partition in partitions_of(self.masks[name]):
                if partition < self.partitions:
                    names[partition].append(name)
        return names


@attrs.frozen
class Assignments:
    """The stable assignments of all zones, read at one moment.

    Attributes:
        zones: by zone id; a zone that is absent is not known.
        epoch: grows with every change of an assignment; re-checked when the snapshot is written.
    """

    zones: Mapping[int, ZoneAssignments] = attrs.field(factory=dict)
    epoch: int = 0


@attrs.frozen
class Watermark:
    """A node's low watermark: data below `time` may be gone.

    Attributes:
        time: the value in force; `None` before the first one.
        pending: persisted and waiting for readers below it; `None` if nothing waits.
    """

    time: Timestamp | None = None
    pending: Timestamp | None = None
