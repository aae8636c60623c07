# SPDX-License-Identifier: Apache-2.0
"""The frozen values of a compaction round: topology, reports and assignments.

All values are plain data, which can be compared, pickled and printed; `REPORTS` encodes a report as JSON. `decision.py`
computes the target version from these values.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from typing import TypeAlias

import attrs

from compactlib._arguments import is_whole
from compactlib.catalog.timestamp import Timestamp, checked_timestamp
from compactlib.codec import JsonCodec
from compactlib.errors import InvalidInput

MAX_PARTITIONS = 10_000
"""Limit of partitions in a zone."""


class Factor(StrEnum):
    """A reason that an old catalog version is needed. The first four are the restrictions of the design, in order."""

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
    """An incarnation of a node.

    Attributes:
        name: the same over restarts; assignments name nodes by it.
        incarnation: rises with each `join`, > 0; only reports of the present incarnation count.
    """

    name: str
    incarnation: int = attrs.field(default=1, validator=is_whole(1))

    def __attrs_post_init__(self) -> None:
        if len(self.name) < 1:
            raise InvalidInput("the name of a node is empty; give at least one character")

    def __str__(self) -> str:
        return f"{self.name}#{self.incarnation}"


@attrs.frozen
class Topology:
    """The nodes of the cluster at the start of a round.

    Attributes:
        nodes: each name once.

    Raises:
        InvalidInput: two nodes have one name.
    """

    nodes: frozenset[NodeId]

    def __attrs_post_init__(self) -> None:
        if len({node.name for node in self.nodes}) < len(self.nodes):
            raise InvalidInput(f"a node is in the topology in two incarnations: {sorted(self.nodes)}; keep the "
                               f"present one")

    @classmethod
    def of(cls, *names: str) -> Topology:
        """Return a topology of first incarnations."""
        return cls(frozenset(NodeId(name) for name in names))


@attrs.frozen(kw_only=True)
class Culprit:
    """The cause of a need; an unknown field is `None` or empty.

    Attributes:
        node: name of the node.
        table, index, zone: ids.
        partitions: partition numbers, ascending.
        owner: free text: transactions, a pin's owner, ...
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
    """A need of the versions in force at and after a time.

    Attributes:
        factor: the reason.
        time: the lowest time needed; 0 for "from the very beginning", which allows no cut.
        culprit: the cause; a node's report need not name its own node.
    """

    factor: Factor
    time: Timestamp = attrs.field(converter=_checked_floor)
    culprit: Culprit = attrs.field(factory=Culprit)

    @classmethod
    def unknown(cls, why: str) -> Floor:
        """Return a need that is not known yet, so nothing may be cut; `why` is one sentence."""
        return cls(Factor.UNAVAILABLE, 0, Culprit(owner=why))


@attrs.frozen(kw_only=True)
class NodeReport:
    """A node's report for a round: its needs and its partitions at the same moment.

    Attributes:
        floors: the needs of all sources.
        hosted: the partitions of the node, all covered by `floors`: a bitmap by table id, bit p for partition p.
        transactions_from: a round publishes the minimum of this time: activation of the oldest version
            that an active read-write transaction uses; the node's time without transactions.
    """

    node: NodeId
    floors: tuple[Floor, ...] = ()
    hosted: Mapping[int, int] = attrs.field(factory=dict)
    transactions_from: Timestamp = attrs.field(converter=checked_timestamp)


REPORTS = JsonCodec[NodeReport](NodeReport)
"""The JSON codec of a report, for the host's messages."""


@attrs.frozen
class ZoneAssignments:
    """The partitions of a zone that each node must host.

    Attributes:
        partitions: number of partitions.
        masks: bitmap of partitions by node name, bit p for partition p.
    """

    partitions: int
    masks: Mapping[str, int]

    @classmethod
    def of(cls, replicas: Sequence[Sequence[str] | None]) -> ZoneAssignments:
        """Make assignments from a list of node names per partition; `None` or an empty list: not known."""
        masks: dict[str, int] = {}
        for partition, names in enumerate(replicas):
            for name in names or ():
                masks[name] = masks.get(name, 0) | 1 << partition
        return cls(len(replicas), masks)

    @classmethod
    def everywhere(cls, names: Sequence[str], partitions: int) -> ZoneAssignments:
        """Assign every partition to every node."""
        return cls(partitions, dict.fromkeys(names, mask_of(range(partitions))))

    def assigned(self) -> int:
        """Return the bitmap of partitions that at least one node hosts. O(nodes)."""
        found = 0
        for mask in self.masks.values():
            found |= mask
        return found


Assignments: TypeAlias = Mapping[int, ZoneAssignments]
"""The stable assignments of all zones by id, read at the same moment; those of an absent zone are not known."""


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
