# SPDX-License-Identifier: Apache-2.0
"""`LeaseElection`: elects the coordinator by a lease in a store that all nodes share.

1. The holder renews the lease at each poll: it writes the lease with a higher beat.
2. A node that reads the same lease for `lease_seconds`, by its own monotonic clock, takes the lease over. No wall clock
   is read.
3. A takeover raises the term, which has its own key, in the same step. Renewals do not write that key, and it is a
   condition of each cut: so the store refuses the cut of a former coordinator.

After a pause, two nodes may both believe to coordinate for a while. Safety does not depend on the election.
"""

from __future__ import annotations

import random

import attrs

from compactlib.catalog import keys
from compactlib.catalog.records import LEASES, TERMS, Lease
from compactlib.catalog.timestamp import milliseconds
from compactlib.clock import Clock, SystemClock
from compactlib.errors import InvalidInput
from compactlib.kv import KVStore
from compactlib.kv.cell import Found, Swap, swap
from compactlib.kv.store import Address


@attrs.frozen
class Elected:
    """The coordinator, and its term, which grows with each takeover."""

    term: int
    node: str


class LeaseElection:
    """A node's part in the election. Call it from one thread at a time.

    Args:
        store: shared by all nodes.
        node: this node's name, unique in the cluster.
        lease_seconds: a coordinator that has not renewed for this long is replaced, > 0; the same on every node. Poll
            at least three times per lease.
        partition: the partition of the catalog's log in the store.
        clock: its `monotonic()` decides when a lease has expired.
        rng: draws the id by which this object recognises its own lease.

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

    def poll(self) -> Elected:
        """Read the lease; renew it if this node holds it, take it over if it has expired. One or two requests.

        Returns:
            The coordinator.

        Raises:
            CorruptData, Unsupported: the lease cannot be read.
            CompactlibError: from the store; poll again.
        """
        now = self._clock.monotonic()
        return swap(self._store, [self._lease, self._term], lambda found: self._decide(found, now), may_repeat=True,
                    operation=f"the election of {self._node!r}", clock=self._clock)

    def _decide(self, found: Found, now: float) -> Swap[Elected]:
        lease = LEASES.unseal(keys.COORDINATOR, found[self._lease].value) if self._lease in found else None
        if lease != self._seen:
            # The time of the answer, not of the call: the store may have read the lease at any time until then.
            self._seen, self._since = lease, self._clock.monotonic()
        term = TERMS.unseal(keys.TERM, found[self._term].value) if self._term in found else 0
        self._last_term = max(self._last_term, term, 0 if lease is None else lease.term)
        if lease is not None and lease.life == self._life and lease.term == self._last_term:
            held = attrs.evolve(lease, beat=lease.beat + 1)
        elif lease is not None and lease.node != self._node and now - self._since < self._lease_seconds:
            return Swap(Elected(lease.term, lease.node))
        else:
            held = Lease(self._last_term + 1, self._node, self._life, 1)
        writes: dict[Address, bytes | None] = {self._lease: LEASES.seal(keys.COORDINATOR, held)}
        if held.term > term:
            writes[self._term] = TERMS.seal(keys.TERM, held.term)
        return Swap(Elected(held.term, held.node), writes)
