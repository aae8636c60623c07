# SPDX-License-Identifier: Apache-2.0
"""Published minimum times per partition (restriction 2): up to when a replica's data is on disk.

A time reaches a partition as a replicated command. It is published only after a flush that began after the command was
applied has succeeded: a recovery from then on replays nothing older. A partition starts at the activation of the
version that created it, never at "unknown"; what it published survives a restart, as long as its data does.

Each kept time names the life (`incarnation`) of the partition's data that it is of. It is written under the condition
of what was read, never in the place of a later life's and never in the place of a higher time: whoever wakes up late
changes nothing.

**A copy lowers a need.** Data that is copied from another replica has seen what that one had published when the copy
was taken, which may be less than what this node reported before. A round that read the old report and hears from the
source only when that has moved on would cut too far. So `register(inherited=)` first counts in this node's reports,
then changes the pins, and then asks whether the version is still there: a cut that was decided before the change is
refused, because the pins changed, a cut before that is seen, and every later round asks this node after it counts.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeAlias

import attrs

from compactlib.catalog import keys
from compactlib.catalog.errors import StaleIncarnation
from compactlib.catalog.history import RetainedVersions
from compactlib.catalog.pins import Pins
from compactlib.catalog.records import TIMES, Kept
from compactlib.catalog.schema import Catalog
from compactlib.catalog.timestamp import Timestamp, checked_timestamp
from compactlib.catalog.values import Assignments, Culprit, Factor, Floor, mask_of
from compactlib.clock import Clock
from compactlib.errors import InvalidInput
from compactlib.kv import KVStore
from compactlib.kv.batches import get_many
from compactlib.kv.cell import Found, Retries, Swap, swap
from compactlib.kv.store import Address

_RETRIES = Retries(10)
_BATCH = 100
_Place: TypeAlias = tuple[int, int]
"""A table's id and a partition's number."""


@attrs.define
class _Replica:
    incarnation: int
    published: Timestamp
    flushed_index: int
    applied: tuple[int, Timestamp] = (0, 0)  # raft index and time of the last command, not yet known to be flushed


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
        clock: waits between two tries of a write.
    """

    def __init__(self, store: KVStore, node: str, partition: bytes = b"catalog", *,
                 clock: Clock | None = None) -> None:
        self._store = store
        self._node = node
        self._partition = partition
        self._clock = clock
        self._batch = max(1, min(_BATCH, store.limits.max_transact // 2))
        self._lock = threading.Lock()
        self._writing = threading.Lock()
        self._replicas: dict[_Place, _Replica] = {}

    # -- which partitions

    def register(self, table: int, partition: int, *, incarnation: int, created_at: Timestamp, flushed_index: int = 0,
                 inherited: Timestamp | None = None, pins: Pins | None = None,
                 history: RetainedVersions | None = None) -> Timestamp:
        """Host a partition from now on; returns its published time, at once a valid one.

        Registering the same life again changes nothing. Another life begins anew: what its data has not seen cannot
        be published for it. Data that was copied from another replica begins at what that one had published. Pin that
        time at the source while the copy is taken, so that no cut overtakes it.

        Args:
            table: the table's id.
            partition: the partition's number.
            incarnation: this life of the partition's data, > 0 and higher than all before; the same after a restart
                with its data.
            created_at: activation of the catalog version that created the partition.
            flushed_index: raft index up to which the data is on disk; commands up to it are replays.
            inherited: what the source of a copy had published (`published`) when the copy was taken; it is kept.
            pins: of the catalog; needed with `inherited`.
            history: the node's retained history; with it, a partition whose versions were cut is refused. Needed with
                `inherited`.

        Raises:
            InvalidInput: a number is out of range, or an argument is missing.
            StaleIncarnation: a later life of the partition is registered, or kept.
            TimeBeforeHistory, CatalogVersionNotFound: the partition needs a version that was cut; nothing was
                registered.
            CorruptData, Unsupported: the kept time cannot be read.
            Busy, OutcomeUnknown: as `Pins.pin`; nothing was registered.
        """
        checked_timestamp(created_at)
        mask_of((partition,))
        if table < 0 or incarnation < 1:
            raise InvalidInput(f"table {table}, incarnation {incarnation}; give an id from 0 on, and a life from 1 on")
        if inherited is not None and (pins is None or history is None):
            raise InvalidInput("inherited needs pins and history: a copy may need a version that is being cut")
        place = table, partition
        with self._writing:
            kept = self._read([place]).get(place)
            with self._lock:
                known = self._replicas.get(place)
                latest = max(known.incarnation if known else 0, kept.incarnation if kept else 0)
                if latest > incarnation:
                    raise self._stale(place, incarnation, latest)
                if known is not None and known.incarnation == incarnation:
                    return known.published
            began = max(created_at, inherited or 0, kept.time if kept and kept.incarnation == incarnation else 0)
            if history is not None:
                history.at(began)
            with self._lock:
                self._replicas[place] = _Replica(incarnation, began, flushed_index)
            try:
                if inherited is not None and pins is not None and history is not None:
                    pins.pin(f"a copy on {self._node}", history.version_at(began), history, ttl_seconds=0)
                    self._keep({place: Kept(incarnation, began)})
            except BaseException:
                with self._lock:
                    self._replicas.pop(place, None)
                raise
            return began

    def remove(self, table: int, partition: int, incarnation: int) -> None:
        """The partition is gone from this node; one that is not registered in this life is no error.

        Raises:
            OutcomeUnknown: the store did not say whether it deleted the kept time, and it could not be seen.
        """
        place = table, partition
        with self._writing:
            with self._lock:
                known = self._replicas.get(place)
                if known is None or known.incarnation != incarnation:
                    return
                del self._replicas[place]
            self._delete({place: incarnation})

    # -- times

    def applied(self, table: int, partition: int, incarnation: int, *, index: int, time: Timestamp) -> None:
        """A replicated command with this time was applied at this raft index; a replay of a flushed one is ignored.

        Raises:
            StaleIncarnation: the partition is not registered, or lives another life.
            InvalidInput: `time` is no timestamp.
        """
        checked_timestamp(time)
        with self._lock:
            known = self._known((table, partition), incarnation)
            if index > max(known.flushed_index, known.applied[0]):
                known.applied = index, max(known.applied[1], time)

    def begin_flush(self, table: int, partition: int, incarnation: int) -> FlushTicket:
        """Call before a flush begins: the ticket holds what was applied until now, and the flush will cover.

        Raises:
            StaleIncarnation: as `applied`.
        """
        with self._lock:
            return FlushTicket(table, partition, incarnation, *self._known((table, partition), incarnation).applied)

    def flushed(self, tickets: Iterable[FlushTicket]) -> int:
        """Call after a flush has succeeded, and never after one that failed; returns how many times rose.

        The times are kept first, then published. A ticket of another life, or of a partition that is gone, does
        nothing; neither does one whose time is not above what is published. Two requests per 100 partitions.

        Raises:
            StaleIncarnation: a later life is kept; nothing was published.
            OutcomeUnknown: the store did not say whether it kept the times, and it could not be seen; none of them is
                published, and some may be kept.
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
            self._keep(rising)
            with self._lock:
                for place, kept in rising.items():
                    self._replicas[place].published = kept.time
        return len(rising)

    def publish(self, table: int, partition: int, incarnation: int, time: Timestamp) -> None:
        """For storage that has nothing to flush: publish a time at once; a lower one than before is ignored.

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

    # -- what is kept

    def _read(self, places: Sequence[_Place]) -> Mapping[_Place, Kept]:
        addresses = {self._address(place): place for place in places}
        return {addresses[address]: TIMES.unseal(address[1], one.value)
                for address, one in get_many(self._store, addresses).items()}

    def _keep(self, times: Mapping[_Place, Kept]) -> None:
        """Raise what is kept to these times; a later life that is kept is `StaleIncarnation`."""
        def raised(place: _Place, kept: Kept | None) -> Kept:
            time = times[place]
            if kept is not None and kept.incarnation > time.incarnation:
                raise self._stale(place, time.incarnation, kept.incarnation)
            return time if kept is None else max(kept, time)

        self._swap(times, raised)

    def _delete(self, lives: Mapping[_Place, int]) -> None:
        """Delete the kept times of these lives; one of another life stays."""
        self._swap(lives, lambda place, kept: None if kept and kept.incarnation == lives[place] else kept)

    def _swap(self, places: Iterable[_Place], change: Callable[[_Place, Kept | None], Kept | None]) -> None:
        """Replace what is kept of each place by what `change` makes of it."""
        addresses = [(self._address(place), place) for place in places]
        for at in range(0, len(addresses), self._batch):
            part = dict(addresses[at:at + self._batch])

            def decide(found: Found, part: Mapping[Address, _Place] = part) -> Swap[None]:
                writes: dict[Address, bytes | None] = {}
                for address, place in part.items():
                    kept = TIMES.unseal(address[1], found[address].value) if address in found else None
                    after = change(place, kept)
                    if after != kept:
                        writes[address] = None if after is None else TIMES.seal(address[1], after)
                return Swap(None, writes)

            swap(self._store, part, decide, operation=f"keeping published times of {self._node!r}", may_repeat=True,
                 retries=_RETRIES, clock=self._clock)

    def _address(self, place: _Place) -> Address:
        return self._partition, keys.published_key(self._node, *place)

    # -- reading them

    def published(self, table: int, partition: int) -> Timestamp | None:
        """Return the partition's published time; `None` if it is not registered."""
        with self._lock:
            known = self._replicas.get((table, partition))
            return None if known is None else known.published

    def needs_and_hosted(self) -> tuple[Floor | None, Mapping[int, int]]:
        """Return the lowest published time, and a bitmap by table id of exactly the partitions that it speaks for.

        O(partitions), in one lock.
        """
        masks: dict[int, int] = {}
        with self._lock:
            for table, partition in self._replicas:
                masks[table] = masks.get(table, 0) | 1 << partition
            if not masks:
                return None, masks
            time, place = min((replica.published, place) for place, replica in self._replicas.items())
        return Floor(Factor.RAFT_RECOVERY, time, Culprit(table=place[0], partitions=(place[1],))), masks

    # -- what is gone

    def unreadable(self, history: RetainedVersions, since: Timestamp) -> list[tuple[int, int, int]]:
        """Return the partitions registered here whose table was dropped and cannot be read any more: table, partition,
        incarnation, in order.

        Nothing is published for them any more, so each holds the history from the drop on until it is removed.

        Args:
            history: the node's retained history.
            since: the low watermark: a table that no version has from then on cannot be read.
        """
        with self._lock:
            hosted = sorted((*place, known.incarnation) for place, known in self._replicas.items())
        then = history.at(max(since, history.activation(history.earliest)))
        return [each for each in hosted if _had_gone(each[0], then)]

    def forget_removed(self, history: RetainedVersions, assignments: Assignments | None = None) -> int:
        """Delete kept times of partitions that are not registered here and never will be; returns how many.

        Call once the node has registered all that it hosts.

        Args:
            history: times of tables that none of these versions has are deleted.
            assignments: times of tables whose partitions are assigned to other nodes alone are deleted, too; they must
                have the moves that are planned or under way.

        Raises:
            OutcomeUnknown: the store did not say whether it deleted some, and it could not be seen.
        """
        with self._writing:
            with self._lock:
                hosted = set(self._replicas)
            prefix = keys.published_prefix(self._node)
            with self._store.scan(self._partition, prefix=prefix, keys_only=True) as entries:
                gone = [place for entry in entries if (place := keys.published_place(entry.key)) not in hosted
                        and self._is_gone(place, history, assignments)]
            kept = self._read(gone)
            self._delete({place: each.incarnation for place, each in kept.items()})
        return len(kept)

    def _is_gone(self, place: _Place, history: RetainedVersions, assignments: Assignments | None) -> bool:
        table_id, partition = place
        table = history.catalog(history.latest).tables.get(table_id)
        if table is None:
            return _had_gone(table_id, history.catalog(history.earliest))
        zone = None if assignments is None else assignments.zones.get(table.zone_id)
        return zone is not None and bool((zone.assigned() & ~zone.masks.get(self._node, 0)) >> partition & 1)

    def __len__(self) -> int:
        return len(self._replicas)

    def __repr__(self) -> str:
        return f"PublishedTimes({len(self)} partitions on {self._node})"


def _had_gone(table_id: int, catalog: Catalog) -> bool:
    """Return whether a table was dropped before this version: ids ascend, and none comes back."""
    return table_id < catalog.next_id and table_id not in catalog.tables
