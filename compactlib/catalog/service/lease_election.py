# SPDX-License-Identifier: Apache-2.0
"""`LeaseElection`: a ready election of the coordinator, by a record in a store that all nodes share.

The node that holds the record writes it anew before its lease runs out. A node that sees the record unchanged for a
whole lease, by its own monotonic clock, takes it over in the next term; no wall clock is asked, and none is compared
with another. Two nodes may take each other for the coordinator for a while, when one of them was paused: safety does
not rest on the election, and the lower term is refused (`docs/catalog.md`).
"""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import suppress
from typing import TypeAlias

import attrs

from compactlib.catalog.arguments import printed
from compactlib.catalog.log import keys
from compactlib.catalog.log.records import RecordType, seal_fields, unseal_fields
from compactlib.catalog.model.timestamp import milliseconds
from compactlib.clock import Clock, SystemClock
from compactlib.errors import Closed, CompactlibError, InvalidInput
from compactlib.kv import KeyNotFound, KVStore, PredicateFailed
from compactlib.kv.store import Predicate
from compactlib.outcome import Done, Failed, Outcome, Skipped
from compactlib.runtime.observe import Observer
from compactlib.runtime.services.service_face import ServiceFace
from compactlib.runtime.services.work_service import Job, WorkService

ElectionListener: TypeAlias = Callable[[int, str], None]
"""Called with a term and the name of its coordinator, again and again. What it raises is logged and counted, and breaks
nothing; `Closed`, as a service raises that does not run, is not even logged.
"""

_LOOK = "look"
_LOOKS_PER_LEASE = 3


@attrs.frozen
class Elected:
    """Who holds the record.

    Attributes:
        term: grows with each node that takes it over.
        node: the name of the coordinator.
        life: a word of its own for each life of a node.
        beat: how often that life has written it.
    """

    term: int
    node: str
    life: str
    beat: int


class LeaseElection(ServiceFace):
    """A `Service` that takes part in the election on one node, and notifies its listener of each election.

    Args:
        store: shared by all nodes.
        node: this node's name, which no other node has.
        listener: told after each look: `CompactionService.elected`, whether it was started yet or is stopped by then.
        lease_seconds: after so long without a sign of it the coordinator is replaced, > 0; the same on every node. Each
            node looks three times a lease, with one read, and the coordinator with one write more.
        partition: the store's partition: that of the catalog's log, whose last term is then a lower bound.
        observer: notified of looks that fail (`catalog_election_failed`); they are tried again.
        clock: its `monotonic()` decides when a lease has run out.
        rng: makes the word by which this life of the node knows its own record.

    Raises:
        InvalidInput: the lease is not above 0, or the name is empty.
    """

    def __init__(self, store: KVStore, node: str, listener: ElectionListener, *, lease_seconds: float = 15.0,
                 partition: bytes = b"catalog", observer: Observer | None = None, clock: Clock | None = None,
                 rng: random.Random | None = None) -> None:
        printed("the node's name", node)
        if not milliseconds(lease_seconds, name="lease_seconds"):
            raise InvalidInput(f"lease_seconds is {lease_seconds}; give more than 0")
        self._store = store
        self._node = node
        self._listener = listener
        self._lease_seconds = lease_seconds
        self._partition = partition
        self._clock: Clock = SystemClock() if clock is None else clock
        self._life = f"{(random.Random() if rng is None else rng).getrandbits(64):016x}"
        self._seen: Elected | None = None
        self._since = 0.0
        self._last_term = 0
        every = lease_seconds / _LOOKS_PER_LEASE
        self._service = WorkService(f"the election on {node}", event="catalog_election_failed", clock=clock,
                                    observer=observer, retry_seconds=every, max_retry_seconds=every)
        self._service.add(_LOOK, self._look, every_seconds=every)

    @property
    def elected(self) -> Elected | None:
        """Who held the record at the last look; `None` before the first."""
        return self._seen

    def nudge(self) -> None:
        """Look now."""
        self._service.request(_LOOK)

    def _look(self, job: Job) -> Outcome[Elected]:
        """See who holds the record, and write it if it is this node's, or if its lease is over."""
        now = self._clock.monotonic()
        try:
            found, predicate = self._kept()
            if found != self._seen:
                # As late as the answer came: the store may have read the record at any time until then.
                self._seen, self._since = found, self._clock.monotonic()
            self._last_term = max(self._last_term, 0 if found is None else found.term)
            held = self._next(found, now)
            if held is not found:
                record = seal_fields(keys.COORDINATOR, RecordType.TERM, attrs.asdict(held))
                self._store.set_if(self._partition, keys.COORDINATOR, record, predicate)
                self._seen, self._last_term = held, held.term
        except PredicateFailed:
            return Skipped("another node has written the record meanwhile; the next look sees which")
        except CompactlibError as error:
            return Failed(error)
        try:
            with suppress(Closed):
                self._listener(held.term, held.node)
        except Exception as error:
            job.note(error)
        return Done(held)

    def _next(self, found: Elected | None, now: float) -> Elected:
        """What the record is to be: as it was found, or this node's."""
        if found is not None and found.life == self._life and found.term == self._last_term:
            return attrs.evolve(found, beat=found.beat + 1)
        if found is not None and found.node != self._node and now - self._since < self._lease_seconds:
            return found
        # A store may lose the record, or be restored to an older one: a term that was told of is another's for good.
        return Elected(max(self._last_term_of_the_log(), self._last_term) + 1, self._node, self._life, 1)

    def _kept(self) -> tuple[Elected | None, Predicate | None]:
        try:
            found = self._store.get(self._partition, keys.COORDINATOR)
        except KeyNotFound:
            return None, None
        return Elected(*unseal_fields(keys.COORDINATOR, found.value, RecordType.TERM, "term", "node", "life",
                                      "beat")), found.predicate

    def _last_term_of_the_log(self) -> int:
        try:
            found = self._store.get(self._partition, keys.TERM)
        except KeyNotFound:
            return 0
        (term,) = unseal_fields(keys.TERM, found.value, RecordType.TERM, "term")
        return int(term)

    def __repr__(self) -> str:
        return f"LeaseElection({self._node!r}, {self._seen}, {self._service!r})"
