# SPDX-License-Identifier: Apache-2.0
"""Published minimum times per partition: up to when a replica's data is on disk.

A time reaches a partition as a replicated command. It is published only after a flush that began after the command was
applied has succeeded: a recovery from then on replays nothing older. A partition starts at the activation of the
version that created it, never at "unknown"; what it published survives a restart, as long as its data does.

The object that has registered a partition last owns a node's kept times: it moves an epoch in the store, and every
write and delete demands that epoch, so that an earlier life of the node that wakes up changes nothing.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence

import attrs

from compactlib.catalog.arguments import printed, whole
from compactlib.catalog.errors import StaleIncarnation
from compactlib.catalog.log import keys
from compactlib.catalog.log.records import RecordType, seal_fields, unseal_fields
from compactlib.catalog.model.partitions import HostedPartitions, mask_of
from compactlib.catalog.model.timestamp import Timestamp, checked_timestamp
from compactlib.catalog.model.values import Assignments, Culprit, Factor, Floor, Need
from compactlib.catalog.schema.catalog import Catalog
from compactlib.catalog.schema.versions import RetainedVersions
from compactlib.clock import Clock
from compactlib.errors import AuditFailed, Busy, InvalidInput
from compactlib.kv import Condition, KeyNotFound, KVStore, OutcomeUnknown, PredicateFailed, Put
from compactlib.kv.cell import Fate, Found, Retries, Swap, swap
from compactlib.kv.store import Address, Predicate
from compactlib.runtime.look import look_until_seen

_NOTHING = (0, 0)
_ATTEMPTS = 10
_CELLS = 3
"""Of one `transact`: whose the times are, the state of one time, and its change."""


@attrs.define
class _Replica:
    incarnation: int
    began: Timestamp  # what it published when it was registered
    published: Timestamp
    flushed_index: int
    applied: tuple[int, Timestamp] = _NOTHING  # raft index and time of the last command, not yet known to be flushed


@attrs.frozen
class FlushTicket:
    """What a flush that began now will cover, for one partition; give it to `flushed` when it has succeeded."""

    table: int
    partition: int
    incarnation: int
    index: int
    time: Timestamp


class PublishedTimes:
    """The published times of one node's partitions. Any thread may call it.

    Args:
        store: where they are kept.
        node: the node's name, part of the keys.
        partition: the store's partition.
        clock: waits between two looks for a write that got no answer.

    Raises:
        InvalidInput: the node has no name, or the store cannot change several keys at once.
    """

    def __init__(self, store: KVStore, node: str, partition: bytes = b"catalog", *,
                 clock: Clock | None = None) -> None:
        printed("the node's name, under which the published times are kept,", node)
        if store.limits.max_transact < _CELLS:
            raise InvalidInput(f"the store changes {store.limits.max_transact} keys in one step; published times need "
                               f"{_CELLS}")
        self._store = store
        self._node = node
        self._partition = partition
        self._clock = clock
        self._lock = threading.Lock()
        self._writing = threading.Lock()
        self._publisher = keys.publisher_key(node)
        self._epoch: tuple[int, Predicate] | None = None
        self._replicas: dict[tuple[int, int], _Replica] = {}

    # --- which partitions ---------------------------------------------------------------------------------------

    def register(self, table: int, partition: int, *, incarnation: int, created_at: Timestamp,
                 flushed_index: int = 0, inherited: Timestamp | None = None,
                 history: RetainedVersions | None = None) -> Timestamp:
        """Host a partition from now on; returns its published time, at once a valid one.

        Registering the same life again changes nothing. Another life begins anew: what its data has not seen cannot
        be published for it. Data that was copied from another replica, because the partition was moved or its disk was
        lost, has seen what that one had published: it begins there, and not at versions that were cut since.

        Args:
            table: the table's id.
            partition: the partition's number.
            incarnation: identifies this life of the partition's data, > 0; the same after a restart with its data.
            created_at: activation of the catalog version that created the partition.
            flushed_index: raft index up to which the data is on disk; commands up to it are replays.
            inherited: what the source of a copy had published (`published`) when the copy was taken; it is kept.
            history: the node's retained history; with it, a partition whose versions were cut is refused.

        Raises:
            InvalidInput: a number is out of range.
            TimeBeforeHistory: the partition needs a version that was cut, since it is a copy and the time of its source
                is missing, or its table is gone everywhere else; nothing was registered.
            RecordDamaged, RecordTooNew: the kept time cannot be read.
            Busy: others own the node's times at the same time, again and again.
            OutcomeUnknown: the store did not say whether this object owns them now.
        """
        checked_timestamp(created_at)
        if inherited is not None:
            checked_timestamp(inherited)
        whole("table", table, lowest=0)
        mask_of((whole("partition", partition),))
        whole("incarnation, which only this life of the partition has,", incarnation, lowest=1)
        whole("flushed_index", flushed_index, lowest=0)
        with self._writing:
            # Before anything is answered that an earlier life of this node could still change.
            self._own()
            kept = self._kept(table, partition, incarnation)
            with self._lock:
                known = self._replicas.get((table, partition))
            if known is None or known.incarnation != incarnation:
                began = max(created_at, kept, inherited or 0)
                if history is not None:
                    history.at(began)
                if began > max(created_at, kept):
                    self._keep([FlushTicket(table, partition, incarnation, 0, began)])
                known = _Replica(incarnation, began, began, flushed_index)
                with self._lock:
                    self._replicas[table, partition] = known
            with self._lock:
                return known.published

    def _own(self) -> Condition:
        """Move the epoch, once; the condition that it is still where this object has moved it."""
        for _ in range(_ATTEMPTS):
            if self._epoch is not None:
                return Condition(self._partition, self._publisher, self._epoch[1])
            epoch = self._moved_epoch()
            seen = OutcomeUnknown(operation=f"taking over the published times of {self._node!r}", path="the catalog",
                                  detail="the epoch was moved, and whether another moved it since could not be seen")
            moved, predicate = look_until_seen(self._present_epoch, seen, clock=self._clock)
            if moved == epoch:
                self._epoch = moved, predicate
        raise Busy(f"{_ATTEMPTS} attempts to own the published times of {self._node!r} lost to others; is this node "
                   f"running twice?")

    def _moved_epoch(self) -> int:
        cell = self._partition, self._publisher

        def decide(found: Found) -> Swap[int]:
            epoch = 1 + (self._epoch_in(found[cell].value) if cell in found else 0)
            return Swap(epoch, {cell: seal_fields(self._publisher, RecordType.PUBLISHED, {"epoch": epoch})})

        # A move whose answer was lost may be another's as well as this one's, so it is made once more: the last owns.
        return swap(self._store, [cell], decide, operation=f"taking over the published times of {self._node!r}",
                    may_repeat=True, judge=lambda *_: Fate.UNKNOWN, retries=Retries(_ATTEMPTS), clock=self._clock)

    def _present_epoch(self) -> tuple[int, Predicate | None]:
        try:
            found = self._store.get(self._partition, self._publisher)
        except KeyNotFound:
            return 0, None
        return self._epoch_in(found.value), found.predicate

    def _epoch_in(self, record: bytes) -> int:
        (epoch,) = unseal_fields(self._publisher, record, RecordType.PUBLISHED, "epoch")
        return int(epoch)

    def _superseded(self) -> StaleIncarnation:
        return StaleIncarnation(what=f"the published times of node {self._node!r}",
                                incarnation=0 if self._epoch is None else self._epoch[0],
                                current=self._present_epoch()[0])

    def _kept(self, table: int, partition: int, incarnation: int) -> Timestamp:
        key = keys.published_key(self._node, table, partition)
        try:
            found = self._store.get(self._partition, key)
        except KeyNotFound:
            return 0
        life, time = unseal_fields(key, found.value, RecordType.PUBLISHED, "incarnation", "time")
        return checked_timestamp(time) if life == incarnation else 0

    def remove(self, table: int, partition: int, incarnation: int) -> None:
        """The partition is gone from this node; one that is not registered in this life is no error.

        Raises:
            StaleIncarnation: a later life of this node owns its kept times; nothing was deleted.
            OutcomeUnknown: the store did not say whether it deleted the kept time, and it could not be seen.
        """
        with self._writing:
            with self._lock:
                known = self._replicas.get((table, partition))
                if known is None or known.incarnation != incarnation:
                    return
                del self._replicas[table, partition]
            self._change([], [keys.published_key(self._node, table, partition)])

    # --- times --------------------------------------------------------------------------------------------------

    def applied(self, table: int, partition: int, incarnation: int, *, index: int, time: Timestamp) -> None:
        """A replicated command with this time was applied at this raft index; a replay of a flushed one is ignored.

        Raises:
            StaleIncarnation: the partition is not registered, or lives another life.
            InvalidInput: `time` is no timestamp.
        """
        checked_timestamp(time)
        with self._lock:
            known = self._known(table, partition, incarnation)
            if index > max(known.flushed_index, known.applied[0]):
                known.applied = index, max(known.applied[1], time)

    def begin_flush(self, table: int, partition: int, incarnation: int) -> FlushTicket:
        """Call before a flush begins: the ticket holds what was applied until now, and the flush will cover.

        Raises:
            StaleIncarnation: as `applied`.
        """
        with self._lock:
            index, time = self._known(table, partition, incarnation).applied
        return FlushTicket(table, partition, incarnation, index, time)

    def flushed(self, tickets: Iterable[FlushTicket]) -> int:
        """Call after a flush has succeeded, and never after one that failed; returns how many times rose.

        The times are kept first, then published. A ticket of another life, or of a partition that is gone, does
        nothing; neither does one whose time is not above what is published. One write per 500 partitions.

        Raises:
            StaleIncarnation: a later life of this node owns its kept times; nothing was published.
            OutcomeUnknown: the store did not say whether it kept the times, and it could not be seen; none of them is
                published, and some may be kept.
        """
        given, rising = list(tickets), []
        with self._writing:
            with self._lock:
                for ticket in given:
                    known = self._replicas.get((ticket.table, ticket.partition))
                    if known is not None and known.incarnation == ticket.incarnation:
                        known.flushed_index = max(known.flushed_index, ticket.index)
                        if ticket.time > known.published:
                            rising.append(ticket)
            self._keep(rising)
            with self._lock:
                for ticket in rising:
                    known = self._replicas.get((ticket.table, ticket.partition))
                    if known is not None and known.incarnation == ticket.incarnation:
                        known.published = max(known.published, ticket.time)
        return len(rising)

    def publish(self, table: int, partition: int, incarnation: int, time: Timestamp) -> None:
        """For storage that has nothing to flush: publish a time at once; a lower one than before is ignored.

        Raises:
            StaleIncarnation, InvalidInput: as `applied`.
        """
        checked_timestamp(time)
        with self._lock:
            self._known(table, partition, incarnation)
        self.flushed([FlushTicket(table, partition, incarnation, 0, time)])

    def _keep(self, tickets: list[FlushTicket]) -> None:
        latest = {keys.published_key(self._node, one.table, one.partition): one
                  for one in sorted(tickets, key=lambda one: one.time)}
        puts = [Put(self._partition, key, seal_fields(key, RecordType.PUBLISHED, {
            "incarnation": one.incarnation, "time": one.time})) for key, one in latest.items()]
        batch = min(500, (self._store.limits.max_transact - 1) // 2)
        for at in range(0, len(puts), batch):
            self._change(puts[at:at + batch], [])

    def _change(self, puts: Sequence[Put], deletes: Sequence[bytes]) -> None:
        """Put and delete kept times in one step, if this object still owns them; `_writing` is held."""
        own = self._own()
        writes: dict[Address, bytes | None] = {(put.partition, put.key): put.value for put in puts}
        writes |= {(self._partition, key): None for key in deletes}

        def decide(found: Found) -> Swap[None]:
            there = {cell: found[cell].value if cell in found else None for cell in writes}
            # The times are conditions as well, so that an earlier write that comes late cannot undo this one.
            return Swap(None, {} if there == writes else writes, [own])

        try:
            swap(self._store, list(writes), decide, operation=f"keeping published times of {self._node!r}",
                 may_repeat=True, retries=Retries(_ATTEMPTS), clock=self._clock)
        except PredicateFailed as error:
            raise self._superseded() from error

    def _known(self, table: int, partition: int, incarnation: int) -> _Replica:
        known = self._replicas.get((table, partition))
        if known is None or known.incarnation != incarnation:
            raise StaleIncarnation(what=f"partition {partition} of table {table}", incarnation=incarnation,
                                   current=0 if known is None else known.incarnation)
        return known

    # --- looking ------------------------------------------------------------------------------------------------

    def published(self, table: int, partition: int) -> Timestamp | None:
        """The partition's published time; `None` if it is not registered."""
        with self._lock:
            known = self._replicas.get((table, partition))
            return None if known is None else known.published

    def needs_and_hosted(self) -> tuple[Need | None, HostedPartitions]:
        """See `PartitionSource.needs_and_hosted`. O(partitions), under one lock."""
        masks: dict[int, int] = {}
        lowest: tuple[Timestamp, tuple[int, int]] | None = None
        with self._lock:
            for place, replica in self._replicas.items():
                masks[place[0]] = masks.get(place[0], 0) | 1 << place[1]
                if lowest is None or replica.published < lowest[0]:
                    lowest = replica.published, place
        need = None if lowest is None else Floor(Factor.RAFT_RECOVERY, lowest[0], Culprit(
            table=lowest[1][0], partitions=(lowest[1][1],)))
        return need, HostedPartitions.from_masks(masks)

    def unreadable(self, history: RetainedVersions, since: Timestamp) -> list[tuple[int, int, int]]:
        """The partitions registered here whose table was dropped and cannot be read any more: table, partition,
        incarnation, in order.

        Nothing is published for them any more, so each holds the history from the drop on until it is removed.

        Args:
            history: the node's retained history.
            since: the low watermark: a table that no version has from then on cannot be read.
        """
        with self._lock:
            hosted = sorted((*place, known.incarnation) for place, known in self._replicas.items())
        then = history.at(max(since, history.activation(history.earliest)))
        return [one for one in hosted if _had_gone(one[0], then)]

    def forget_removed(self, history: RetainedVersions | None = None, assignments: Assignments | None = None) -> int:
        """Delete kept times of partitions that are not registered here; returns how many. Call once all are.

        Args:
            history: delete only those of tables that none of these versions has: at any time, whatever is registered;
                nothing before the first partition is, since this object owns no times until then.
            assignments: with a history: delete those of its latest tables, too, whose partitions are assigned to other
                nodes alone; they must have the moves that are planned or under way.

        Raises:
            StaleIncarnation: a later life of this node owns its kept times; nothing was deleted.
            OutcomeUnknown: the store did not say whether it deleted some, and it could not be seen.
        """
        with self._writing:
            if history is not None and self._epoch is None:
                return 0
            with self._store.scan(self._partition, prefix=keys.published_prefix(self._node)) as kept:
                with self._lock:
                    alive = {keys.published_key(self._node, *place) for place in self._replicas}
                doomed = [entry.key for entry in kept if entry.key not in alive
                          and (history is None or self._is_gone(entry.key, history, assignments))]
            batch = min(100, (self._store.limits.max_transact - 1) // 2)
            for at in range(0, len(doomed), batch):
                self._change([], doomed[at:at + batch])
        return len(doomed)

    def _is_gone(self, key: bytes, history: RetainedVersions, assignments: Assignments | None) -> bool:
        """Whether the key's table was in versions before this history, or its partition is other nodes'."""
        table_id, partition = keys.published_place(key)
        table = history.catalog(history.latest).tables.get(table_id)
        if table is None:
            return _had_gone(table_id, history.catalog(history.earliest))
        zone = None if assignments is None else assignments.zones.get(table.zone_id)
        return zone is not None and bool((zone.assigned() & ~zone.masks.get(self._node, 0)) >> partition & 1)

    def __len__(self) -> int:
        return len(self._replicas)

    def audit(self) -> None:
        """Check that nothing is published that was not kept, except where a partition began.

        Raises:
            AuditFailed: a published time exceeds the kept one.
        """
        with self._lock:
            replicas = {place: attrs.evolve(replica) for place, replica in self._replicas.items()}
        for (table, partition), replica in replicas.items():
            kept = self._kept(table, partition, replica.incarnation)
            if replica.published > max(kept, replica.began):
                raise AuditFailed(f"table {table}, partition {partition}: {kept} is kept, {replica.published} is "
                                  f"published")

    def __repr__(self) -> str:
        return f"PublishedTimes({len(self)} partitions on {self._node})"


def _had_gone(table_id: int, catalog: Catalog) -> bool:
    """Whether a table was dropped before this version: ids ascend, and none comes back."""
    return table_id < catalog.next_id and table_id not in catalog.tables
