# SPDX-License-Identifier: Apache-2.0
"""`LeaseElection`: elects the coordinator by a lease in a store that all nodes share.

1. The node that holds the lease writes it anew at each look, with a higher beat.
2. A node that sees the lease unchanged for a whole lease, by its own monotonic clock, takes it over. No wall clock is
   asked, and none is compared with another.
3. A takeover raises the term, which has a cell of its own, in the same step. Renewals do not touch that cell, and it is
   a condition of each cut: so a cut of a former coordinator is refused where the data lies.

Two nodes may take each other for the coordinator for a while, when one of them was paused. Safety does not rest on the
election.
"""

from __future__ import annotations

import random

import attrs

from compactlib.catalog import keys
from compactlib.catalog.records import LEASES, TERMS, Lease
from compactlib.catalog.timestamp import milliseconds
from compactlib.clock import Clock, SystemClock
from compactlib.errors import InvalidInput
from compactlib.kv import Condition, KVStore, PredicateFailed, Put
from compactlib.kv.batches import get_many


@attrs.frozen
class Elected:
    """Who coordinates.

    Attributes:
        term: grows with each takeover.
        node: the name of the coordinator.
    """

    term: int
    node: str


class LeaseElection:
    """Takes part in the election on one node. One thread at a time calls it.

    Args:
        store: shared by all nodes.
        node: this node's name, which no other node has.
        lease_seconds: after so long without a sign of it the coordinator is replaced, > 0; the same on every node. Look
            at least three times a lease.
        partition: the store's partition: that of the catalog's log.
        clock: its `monotonic()` decides when a lease has run out.
        rng: makes the word by which this life of the node knows its own lease.

    Raises:
        InvalidInput: the lease is not above 0.
    """

    def __init__(self, store: KVStore, node: str, *, lease_seconds: float = 15.0, partition: bytes = b"catalog",
                 clock: Clock | None = None, rng: random.Random | None = None) -> None:
        if not milliseconds(lease_seconds, name="lease_seconds"):
            raise InvalidInput(f"lease_seconds is {lease_seconds}; give more than 0")
        self._store = store
        self._node = node
        self._lease_seconds = lease_seconds
        self._clock: Clock = SystemClock() if clock is None else clock
        self._life = f"{(random.SystemRandom() if rng is None else rng).getrandbits(64):016x}"
        self._lease, self._term = (partition, keys.COORDINATOR), (partition, keys.TERM)
        self._seen: Lease | None = None
        self._since = 0.0
        self._last_term = 0

    def look(self) -> Elected | None:
        """See who holds the lease, and write it if it is this node's, or has run out. Two requests, or one.

        Returns:
            Who coordinates; `None` if another node took the lease in this moment: look again.

        Raises:
            CorruptData, Unsupported: the lease cannot be read.
            CompactlibError: what the store raises; the next look goes on.
        """
        now = self._clock.monotonic()
        found = get_many(self._store, [self._lease, self._term])
        lease = None
        if self._lease in found:
            lease = LEASES.unseal(keys.COORDINATOR, found[self._lease].value)
        if lease != self._seen:
            # As late as the answer came: the store may have read the lease at any time until then.
            self._seen, self._since = lease, self._clock.monotonic()
        term = TERMS.unseal(keys.TERM, found[self._term].value) if self._term in found else 0
        self._last_term = max(self._last_term, term, 0 if lease is None else lease.term)
        if lease is not None and lease.life == self._life and lease.term == self._last_term:
            held = attrs.evolve(lease, beat=lease.beat + 1)
        elif lease is not None and lease.node != self._node and now - self._since < self._lease_seconds:
            return Elected(lease.term, lease.node)
        else:
            held = Lease(self._last_term + 1, self._node, self._life, 1)
        conditions = [Condition(*address, found[address].predicate if address in found else None)
                      for address in (self._lease, self._term)]
        puts = [Put(*self._lease, LEASES.seal(keys.COORDINATOR, held))]
        if held.term > term:
            puts.append(Put(*self._term, TERMS.seal(keys.TERM, held.term)))
        try:
            self._store.transact(conditions, puts)
        except PredicateFailed:
            return None
        self._seen, self._last_term = held, held.term
        return Elected(held.term, held.node)

    def __repr__(self) -> str:
        return f"LeaseElection({self._node!r})"
