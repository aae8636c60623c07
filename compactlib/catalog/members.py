# SPDX-License-Identifier: Apache-2.0
"""`Members`: the nodes of the cluster, in a cell of the store. Each join gives the node a new incarnation.

The cell is a condition of each cut: a node that joins after the reports were collected makes the cut fail. A node that
has crashed stays a member until the host removes it. Until then nothing is cut, since its transactions may still run.
"""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from compactlib.catalog import keys
from compactlib.catalog.values import NodeId, Topology
from compactlib.clock import Clock
from compactlib.kv import Conditions, KVStore
from compactlib.kv.cell import Cell


@attrs.frozen
class Nodes:
    """The value of the cell.

    Attributes:
        epoch: number of changes. Invariant: no node ever had a higher incarnation.
        nodes: incarnation by name.
    """

    epoch: int = 0
    nodes: Mapping[str, int] = attrs.field(factory=dict)


class Members:
    """The nodes of a catalog. Any thread and process may call it.

    Args:
        store: the store of the catalog's log.
        partition: the partition of the log.
        clock: waits before a change is retried.
    """

    def __init__(self, store: KVStore, partition: bytes = b"catalog", *, clock: Clock | None = None) -> None:
        self._cell = Cell[Nodes](store, partition, keys.MEMBERS, Nodes, clock=clock)

    def read(self) -> tuple[Topology, Conditions]:
        """Return the nodes, and the condition that they have not changed since. One request.

        Raises:
            CorruptData, Unsupported: the cell cannot be read.
        """
        state = self._cell.state()
        found = state.value or Nodes()
        return Topology(frozenset(NodeId(*each) for each in found.nodes.items())), state.conditions

    def join(self, name: str) -> NodeId:
        """Add a node, or restart a member; return it with an incarnation higher than all before.

        Raises:
            InvalidInput: the name is empty.
            Busy, OutcomeUnknown: as `Cell.update`.
        """
        # Before the write: no node could read members of which one has an empty name.
        NodeId(name)

        def joined(before: Nodes | None) -> Nodes:
            found = before or Nodes()
            return Nodes(found.epoch + 1, {**found.nodes, name: found.epoch + 1})

        after = self._cell.update(joined, operation=f"joining of node {name!r}").after or Nodes()
        return NodeId(name, after.nodes[name])

    def leave(self, name: str) -> None:
        """Remove a node, if it is a member. The host guarantees that the node has ended.

        An incarnation that joins after this call began stays.

        Raises:
            Busy, OutcomeUnknown: as `Cell.update`.
        """
        lives: list[int | None] = []

        def left(before: Nodes | None) -> Nodes | None:
            life = None if before is None else before.nodes.get(name)
            lives.append(life)
            if before is None or life is None or life != lives[0]:
                return before
            return Nodes(before.epoch + 1, {each: other for each, other in before.nodes.items() if each != name})

        self._cell.update(left, operation=f"leaving of node {name!r}", may_repeat=True)
