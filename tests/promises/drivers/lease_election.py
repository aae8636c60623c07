# SPDX-License-Identifier: Apache-2.0
"""The driver of elections of three nodes over a shared key-value store."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import attrs

from compactlib.catalog import LeaseElection
from compactlib.kv import MemoryStore
from compactlib.testing import Driver, Journal, World, WorldClock

LEASE = 9.0


@attrs.frozen
class Polled:
    """A poll of a node."""

    node: str


@attrs.frozen
class Seen:
    """The coordinator of a term, as node `node` of opening `opening` read it."""

    term: int
    coordinator: str
    opening: int
    node: str
    at: float


class Opened:
    """The elections on three nodes in one process, and their results."""

    def __init__(self, world: World) -> None:
        self.number = world.kept["openings"] = world.kept.get("openings", 0) + 1
        self.clock: WorldClock = world.clock
        self.seen: list[Seen] = []
        store = world.keyed("election", lambda: MemoryStore(predicates="value"))
        # Half of the openings use the node names of the opening before.
        names = [f"{letter}{self.number // 2 % 2}" for letter in "abc"]
        self.nodes = {name: LeaseElection(store, name, lease_seconds=LEASE, clock=world.clock,
                                          rng=Random(f"{name} {self.number}")) for name in names}

    def poll(self, node: str) -> None:
        """Poll on a node."""
        elected = self.nodes[node].poll()
        if elected is not None:
            self.seen.append(Seen(elected.term, elected.node, self.number, node, self.clock.monotonic()))

    def close(self) -> None:
        """Do nothing: an election has nothing to close."""


class LeaseElectionDriver(Driver[Opened]):
    """Nodes that poll at different times, and that pause for a while."""

    has_peers = True

    def open(self, world: World, settings: None) -> Opened:
        return Opened(world)

    def act(self, store: Opened, rng: Random, journal: Journal) -> None:
        for _ in range(4):
            store.clock.advance(rng.choice([0.0, LEASE / 3, LEASE / 3, LEASE]))
            node, known = rng.choice(sorted(store.nodes)), len(store.seen)
            try:
                with journal.trying(Polled(node)):
                    store.poll(node)
            finally:
                for seen in store.seen[known:]:
                    with journal.trying(seen):
                        pass

    def check(self, store: Opened, journal: Journal, *, damage: str) -> None:
        seen = [change.what for change in journal.changes if isinstance(change.what, Seen)]
        _require_one_coordinator(seen)
        _require_whole_leases(seen)
        self._require_successor(store, seen)

    def _require_successor(self, store: Opened, seen: Sequence[Seen]) -> None:
        """Require that a node that keeps polling is elected, in a later term, despite an earlier lease."""
        node = min(store.nodes)
        for _ in range(5):
            store.poll(node)
            store.clock.advance(LEASE / 3)
        last = store.seen[-1]
        assert last.coordinator == node, f"{node} has polled for more than a lease, and {last.coordinator} is elected"
        # Earlier results may be results of this opening.
        highest = max((one.term for one in seen if one.opening != store.number), default=0)
        assert last.term > highest, f"{node} is elected in term {last.term}, and term {highest} was read before"


def _require_one_coordinator(seen: Sequence[Seen]) -> None:
    coordinators, holders = dict[int, str](), dict[int, tuple[int, str]]()
    for one in seen:
        known = coordinators.setdefault(one.term, one.coordinator)
        assert known == one.coordinator, f"term {one.term} has two coordinators, {known} and {one.coordinator}"
        if one.coordinator == one.node:
            holder = holders.setdefault(one.term, (one.opening, one.node))
            assert holder == (one.opening, one.node), f"two lives of {one.node} hold term {one.term}"


def _require_whole_leases(seen: Sequence[Seen]) -> None:
    """Require that a coordinator keeps a renewed lease for its whole time."""
    holding = sorted((one for one in seen if one.coordinator == one.node), key=lambda one: (one.term, one.at))
    renewed = dict[int, Seen]()
    for one in holding:
        before = renewed.get(max((term for term in renewed if term < one.term), default=0))
        is_new = one.term not in renewed
        if is_new and before is not None and before.coordinator != one.coordinator:
            assert one.at >= before.at + LEASE, f"{one} took over from {before} within its lease"
        renewed[one.term] = one

