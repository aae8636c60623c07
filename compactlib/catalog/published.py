# SPDX-License-Identifier: Apache-2.0
"""Published times of partitions: the time up to which the data of a replica is on disk.

A time reaches a partition as a replicated command. It is published after a successful flush that began after the
command was applied. So a later recovery replays nothing older. A new partition's time is the activation of the version
that created it. A published time survives a restart, as long as the partition's data does.

Each stored time names the `incarnation` of the partition's data. It is written under the condition that the stored
value has not changed since it was read, and never replaces the time of a later incarnation or a higher time: a delayed
writer changes nothing.

**A copy lowers a need.** A copy has the source's published time at the moment of the copy, which may be lower than the
time this node reported before. A round that has this old report, and a report that the source made after its time had
risen, would cut too far. So `register(inherited=)` first includes the copy in this node's reports, then changes the
pins, and then checks that the version is still retained. A cut decided before the change of the pins is refused; a cut
before that is detected by the check; every later round gets a report that includes the copy.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from typing import TypeAlias

import attrs

from compactlib.catalog import keys
from compactlib.catalog.errors import StaleIncarnation
from compactlib.catalog.records import TIMES, Kept
from compactlib.catalog.service import CatalogService
from compactlib.catalog.timestamp import Timestamp, checked_timestamp
from compactlib.catalog.values import Culprit, Factor, Floor, mask_of
from compactlib.errors import InvalidInput
from compactlib.kv.cell import Found, Swap, swap
from compactlib.kv.store import Address

_BATCH = 100
_Place: TypeAlias = tuple[int, int]
"""A table's id and a partition's number."""


@attrs.define
class _Replica:
    incarnation: int
    published: Timestamp
    flushed_index: int
    applied: tuple[int, Timestamp] = (0, 0)  # raft index and time of the last command applied


@attrs.frozen
class FlushTicket:
    """The commands of a partition that a flush covers; pass the ticket to `flushed` after the flush has succeeded."""

    table: int
    partition: int
    incarnation: int
    index: int
    time: Timestamp


def _kept(address: Address, found: Found) -> Kept | None:
    return TIMES.unseal(address[1], found[address].value) if address in found else None


class PublishedTimes:
    """The published times of a node's partitions. Any thread may call it.

    Args:
        service: the node's catalog; the times are stored with its log.
        node: the node's name, part of the keys.
    """

    def __init__(self, service: CatalogService, node: str) -> None:
        self._service = service
        self._node = node
        self._store, self._partition = service.log.store, service.log.partition
        self._batch = max(1, min(_BATCH, self._store.limits.max_transact // 2))
        self._lock = threading.Lock()
        self._writing = threading.Lock()
        self._replicas: dict[_Place, _Replica] = {}

    # -- which partitions

    def register(self, table: int, partition: int, *, incarnation: int, created_at: Timestamp, flushed_index: int = 0,
                 inherited: Timestamp | None = None) -> Timestamp:
        """Add a partition to this node; return its published time.

        Registering the same incarnation again changes nothing. A new incarnation does not inherit the published time of
        the earlier data. A copy of another replica starts at the published time of the source (`inherited`). Pin that
        time at the source during the copy, so that no cut passes it.

        Args:
            table: the table's id.
            partition: the partition's number.
            incarnation: number of the partition's data, > 0 and higher than all before; the same after a restart with
                its data.
            created_at: activation of the catalog version that created the partition.
            flushed_index: raft index up to which the data is on disk; commands up to it are replays.
            inherited: the source's published time (`published`) at the moment of the copy; it is stored.

        Raises:
            InvalidInput: a number is out of range.
            StaleIncarnation: a later incarnation of the partition is registered or stored.
            TimeBeforeHistory, CatalogVersionNotFound: the partition needs a version that was cut; it was not
                registered.
            CorruptData, Unsupported: the stored time cannot be read.
            Busy, OutcomeUnknown: as `Pins.pin`; nothing was registered.
        """
        checked_timestamp(created_at)
        mask_of((partition,))
        if table < 0 or incarnation < 1:
            raise InvalidInput(f"table {table}, incarnation {incarnation}; give an id >= 0 and an incarnation >= 1")
        place = table, partition
        with self._writing:
            address = self._address(place)
            kept = _kept(address, self._store.get_many([address]))
            with self._lock:
                known = self._replicas.get(place)
                latest = max(known.incarnation if known else 0, kept.incarnation if kept else 0)
                if latest > incarnation:
                    raise self._stale(place, incarnation, latest)
                if known is not None and known.incarnation == incarnation:
                    return known.published
            began = max(created_at, inherited or 0, kept.time if kept and kept.incarnation == incarnation else 0)
            history = self._service.history
            version = history.version_at(began)
            with self._lock:
                self._replicas[place] = _Replica(incarnation, began, flushed_index)
            try:
                if inherited is not None:
                    self._service.pins.pin(f"a copy on {self._node}", version, history, ttl_seconds=0)
                    self._store_times({place: Kept(incarnation, began)})
            except BaseException:
                with self._lock:
                    if known is None:
                        del self._replicas[place]
                    else:
                        self._replicas[place] = known
                raise
            return began

    def remove(self, table: int, partition: int, incarnation: int) -> None:
        """Remove a partition from this node, if it is registered in this incarnation.

        Raises:
            OutcomeUnknown: the store did not acknowledge, and reading did not show whether the time was deleted.
        """
        place = table, partition
        with self._writing:
            with self._lock:
                known = self._replicas.get(place)
                if known is None or known.incarnation != incarnation:
                    return
                del self._replicas[place]
            self._store_times({place: Kept(incarnation, known.published)}, delete=True)

    # -- times

    def applied(self, table: int, partition: int, incarnation: int, *, index: int, time: Timestamp) -> None:
        """Note that a replicated command with this time was applied at this raft index. Ignores replays.

        Raises:
            StaleIncarnation: the partition is not registered, or has another incarnation.
            InvalidInput: `time` is no timestamp.
        """
        checked_timestamp(time)
        with self._lock:
            known = self._known((table, partition), incarnation)
            if index > max(known.flushed_index, known.applied[0]):
                known.applied = index, max(known.applied[1], time)

    def begin_flush(self, table: int, partition: int, incarnation: int) -> FlushTicket:
        """Return a ticket for the commands applied so far. Call before the flush begins.

        Raises:
            StaleIncarnation: as `applied`.
        """
        with self._lock:
            return FlushTicket(table, partition, incarnation, *self._known((table, partition), incarnation).applied)

    def flushed(self, tickets: Iterable[FlushTicket]) -> int:
        """Publish the times of the tickets; return how many published times rose.

        Call after the flush has succeeded, never after a failed flush. The times are stored before they are published.
        Ignores the tickets of another incarnation, of a removed partition, and of a time that is not above the
        published time. Two requests per 100 partitions.

        Raises:
            StaleIncarnation: the store has a later incarnation; nothing was published.
            OutcomeUnknown: the store did not acknowledge, and reading did not show the outcome; nothing was published,
                and some of the times may be stored.
        """
        rising: dict[_Place, Kept] = {}
        with self._writing:
            with self._lock:
                for ticket in tickets:
                    place = ticket.table, ticket.partition
                    known = self._replicas.get(place)
                    if known is not None and known.incarnation == ticket.incarnation:
                        known.flushed_index = max(known.flushed_index, ticket.index)
                        time = max(ticket.time, rising[place].time if place in rising else 0)
                        if time > known.published:
                            rising[place] = Kept(ticket.incarnation, time)
            self._store_times(rising)
            with self._lock:
                for place, kept in rising.items():
                    self._replicas[place].published = kept.time
        return len(rising)

    def publish(self, table: int, partition: int, incarnation: int, time: Timestamp) -> None:
        """Publish a time at once, for storage without flushes. Ignores a time that is not above the published time.

        Raises:
            StaleIncarnation, InvalidInput, OutcomeUnknown: as `applied` and `flushed`.
        """
        checked_timestamp(time)
        with self._lock:
            self._known((table, partition), incarnation)
        self.flushed([FlushTicket(table, partition, incarnation, 0, time)])

    def _known(self, place: _Place, incarnation: int) -> _Replica:
        known = self._replicas.get(place)
        if known is None or known.incarnation != incarnation:
            raise self._stale(place, incarnation, 0 if known is None else known.incarnation)
        return known

    def _stale(self, place: _Place, incarnation: int, current: int) -> StaleIncarnation:
        return StaleIncarnation(f"partition {place[1]} of table {place[0]} on node {self._node!r} was called with "
                                f"incarnation {incarnation}; {current or 'none'} is in force")

    # -- the stored times

    def _store_times(self, times: Mapping[_Place, Kept], *, delete: bool = False) -> None:
        """Raise the stored times to these, or delete the stored times of these incarnations.

        Raises:
            StaleIncarnation: the store has a later incarnation, and the times were to rise.
        """
        addresses = [(self._address(place), place) for place in times]
        for at in range(0, len(addresses), self._batch):
            part = dict(addresses[at:at + self._batch])

            def decide(found: Found, part: Mapping[Address, _Place] = part) -> Swap[None]:
                writes: dict[Address, bytes | None] = {}
                for address, place in part.items():
                    time = times[place]
                    kept = _kept(address, found)
                    if delete:
                        if kept is not None and kept.incarnation == time.incarnation:
                            writes[address] = None
                    elif kept is not None and kept.incarnation > time.incarnation:
                        raise self._stale(place, time.incarnation, kept.incarnation)
                    elif kept is None or kept < time:
                        writes[address] = TIMES.seal(address[1], time)
                return Swap(None, writes)

            swap(self._store, part, decide, operation=f"storing published times of {self._node!r}", may_repeat=True,
                 clock=self._service.clock.clock)

    def _address(self, place: _Place) -> Address:
        return self._partition, keys.published_key(self._node, *place)

    # -- reading

    def published(self, table: int, partition: int) -> Timestamp | None:
        """Return the partition's published time; `None` if it is not registered."""
        with self._lock:
            known = self._replicas.get((table, partition))
            return None if known is None else known.published

    def needs_and_hosted(self) -> tuple[Floor | None, Mapping[int, int]]:
        """Return the lowest published time, and the partitions that it covers, as a bitmap by table id.

        O(partitions), under the lock, so that both are from the same moment.
        """
        masks: dict[int, int] = {}
        with self._lock:
            for table, partition in self._replicas:
                masks[table] = masks.get(table, 0) | 1 << partition
            if not masks:
                return None, masks
            time, place = min((replica.published, place) for place, replica in self._replicas.items())
        return Floor(Factor.RAFT_RECOVERY, time, Culprit(table=place[0], partitions=(place[1],))), masks

    # -- removed partitions

    def unreadable(self, since: Timestamp) -> list[tuple[int, int, int]]:
        """Return the registered partitions of dropped tables that have no readers: table, partition, incarnation, in
        order.

        Their published times rise no more, so each keeps the history from the drop on until it is removed.

        Args:
            since: the low watermark: a table that was dropped before it has no readers.
        """
        with self._lock:
            hosted = sorted((*place, known.incarnation) for place, known in self._replicas.items())
        history = self._service.history
        then = history.at(max(since, history.activation(history.earliest)))
        # Ids ascend and are not reused.
        return [each for each in hosted if each[0] < then.next_id and each[0] not in then.tables]
