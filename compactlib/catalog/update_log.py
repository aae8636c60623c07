# SPDX-License-Identifier: Apache-2.0
"""The update log: a record per catalog version in a key-value store, cut by snapshots.

**Append** of version v: a compare-and-set of the mark `latest` from v - 1 to v, which puts the update in the same step.

**Cut** to version v:

1. `write_snapshot` puts the snapshot's pieces under keys with a random writer's id, which no other attempt uses.
2. `write_snapshot` reads the pieces back, checks them and compares the catalog.
3. `cut` raises the mark `earliest` to v by a compare-and-set. The same step replaces v's update by the snapshot's
   record, which names the pieces, and raises the term. Its conditions are that the term is not above the
   coordinator's, and those of the caller: pins and membership have not changed. The pieces still exist, since no
   process deletes pieces above `earliest`.
4. `check.reclaim` deletes the updates and pieces below `earliest`. No key below the earliest version is written again.

A crash before step 3 leaves the log unchanged, with unused pieces; a crash after it leaves leftovers below `earliest`.

`earliest` is absent before the first cut: the log begins with version 1. Both marks are cells, which find out the
outcome of an unanswered write. An append and a cut write different marks, so both succeed at the same time; of two cuts
the higher wins.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import TypeVar

import attrs

from compactlib.budget import Budget
from compactlib.catalog import keys
from compactlib.catalog.errors import CatalogMoved, RecordMissing, StaleTerm
from compactlib.catalog.records import PIECE, SNAPSHOTS, TERMS, UPDATES, Pieces, seal, unseal
from compactlib.catalog.schema import Catalog, Update
from compactlib.clock import Clock, SystemClock
from compactlib.errors import CompactlibError, CorruptData, InvalidInput
from compactlib.kv import Address, Conditions, KVStore, PredicateFailed
from compactlib.kv.batches import change_many, sound_entries
from compactlib.kv.cell import Cell, Retries, unchanged
from compactlib.kv.store import NOTHING

T = TypeVar("T")

_RETRIES = Retries(10)
_PRODUCT = "compactlib.catalog"


@attrs.frozen
class LogState:
    """The marks of a log.

    Attributes:
        latest: version of the last record; 0 for an empty log.
        earliest: version of the snapshot with which the log begins; 0 if the log was never cut and begins with 1.
        term: term of the last coordinator; 0 before the first.
        earliest_condition: the condition that `earliest` has not changed since.
        term_condition: the condition that the term has not changed since.
    """

    latest: int
    earliest: int
    term: int
    earliest_condition: Conditions
    term_condition: Conditions


@attrs.frozen
class WrittenSnapshot:
    """A snapshot whose pieces were put and read back, for `UpdateLog.cut`.

    Attributes:
        version: version of the catalog.
        record: the record that replaces the version's update.
        size: bytes of the record, the pieces, and their keys.
    """

    version: int
    record: bytes
    size: int


class UpdateLog:
    """The log of a catalog, in a partition of a store. Stateless; any thread may call it.

    Args:
        store: must support `transact` of 8 keys.
        partition: the store's partition, for this catalog alone.
        chunk_bytes: limit of a piece of a snapshot, >= 1024; the default is below the value limit of every known store.
        rng: draws the keys of pieces and the ids of writes.
        clock: waits before a write is retried.

    Raises:
        InvalidInput: `chunk_bytes` is below 1024, or the store cannot change 8 keys at once.
    """

    def __init__(self, store: KVStore, partition: bytes = b"catalog", *, chunk_bytes: int = 256 * 1024,
                 rng: random.Random | None = None, clock: Clock | None = None) -> None:
        if chunk_bytes < 1024:
            raise InvalidInput(f"chunk_bytes is {chunk_bytes}; give at least 1024")
        if store.limits.max_transact < 8:
            raise InvalidInput(f"the store changes {store.limits.max_transact} keys in one step; the log needs 8")
        self.store: KVStore = store
        self.partition: bytes = partition
        self.rng: random.Random = random.SystemRandom() if rng is None else rng
        self._clock: Clock = SystemClock() if clock is None else clock
        self._chunk_bytes = min(chunk_bytes, store.limits.max_value_bytes - 64)
        self._latest, self._earliest = (self._cell(key, int) for key in (keys.LATEST, keys.EARLIEST))

    def _cell(self, key: bytes, of: type[T]) -> Cell[T]:
        return Cell(self.store, self.partition, key, of, retries=_RETRIES, clock=self._clock, rng=self.rng)

    def prepare(self) -> None:
        """Write the product's name into the partition, unless it is there.

        Raises:
            CorruptData, Unsupported: the name cannot be read.
            InvalidInput: the partition has another product's name.
            OutcomeUnknown: the store did not acknowledge the name.
        """
        found = self._cell(keys.FORMAT, str).update(lambda found: found or _PRODUCT, operation="marking the partition",
                                                    may_repeat=True).after
        if found != _PRODUCT:
            raise InvalidInput(f"partition {self.partition!r} belongs to {found!r}; give the catalog another partition")

    # -- reading

    def state(self) -> LogState:
        """Return the marks. One request; two for an empty log.

        Raises:
            RecordMissing: `latest` is missing or too low, although the log has records.
            CorruptData, Unsupported: a mark cannot be read.
        """
        addresses = [(self.partition, key) for key in (keys.EARLIEST, keys.LATEST, keys.TERM)]
        for is_last in (False, False, True):
            found = self.store.get_many(addresses)
            earliest, latest = (cell.value_of(found[address].value) if address in found else 0
                                for cell, address in zip((self._earliest, self._latest), addresses, strict=False))
            term = TERMS.unseal(keys.TERM, found[addresses[2]].value) if addresses[2] in found else 0
            # The store may read the keys at different moments: contradictory marks are read again.
            if latest >= max(earliest, 1):
                break
            stray = next(iter(self.entries(0, page_size=1)), None)
            if stray is None and not earliest:
                break
            if is_last:
                raise RecordMissing(key=keys.LATEST.decode(), version=max(earliest, stray[0] if stray else 0),
                                    expected="a mark that is not below the records")
        return LogState(latest, earliest, term, unchanged(addresses[:1], found), unchanged(addresses[2:], found))

    def entries(self, first: int, *, page_size: int | None = None, damage: dict[bytes, CompactlibError] | None = None,
                ) -> Iterator[tuple[int, bytes, bytes]]:
        """Yield version, key and record of updates and snapshots, from version `first` on; see `sound_entries`.

        Raises:
            CorruptData: a key under the prefix of updates has no version.
        """
        for entry in sound_entries(self.store, self.partition, damage, start=keys.update_key(max(first, 0)),
                                   prefix=keys.UPDATES, page_size=page_size):
            found = keys.version_of(entry.key)
            if found is None:
                raise CorruptData(path=entry.key.decode("ascii", "backslashreplace"), offset=0,
                                  expected="an update's key", found="another name")
            yield found, entry.key, entry.value

    def decode(self, version: int, key: bytes, record: bytes, *, is_snapshot: bool) -> Update:
        """Return the update in a record; for a snapshot's record the whole catalog, after reading its pieces.

        Raises:
            RecordMissing: a piece is missing.
            CorruptData, Unsupported: the record or a piece cannot be read, or the record is of the other type.
        """
        found = self._joined(version, SNAPSHOTS.unseal(key, record)) if is_snapshot else UPDATES.unseal(key, record)
        if found.version != version:
            raise CorruptData(path=key.decode(), offset=0, expected=f"version {version}", found=str(found.version))
        return found

    def _joined(self, version: int, pieces: Pieces) -> Update:
        names, parts = pieces.keys(version), []
        found = self.store.get_many((self.partition, name) for name in names)
        for name in names:
            if (self.partition, name) not in found:
                raise RecordMissing(key=name.decode(), version=version, expected=f"one of {pieces.count} pieces")
            parts.append(unseal(name, found[self.partition, name].value, PIECE))
        return UPDATES.codec.decode(b"".join(parts), keys.update_key(version).decode())

    # -- appending

    def append(self, update: Update) -> bool:
        """Append an update if the log ends with the version before it. Two requests.

        Returns:
            Whether the update was appended; if not, another writer was first, and nothing was written.

        Raises:
            InvalidInput: the record exceeds the store's limit; nothing was written.
            Busy: other writers were first at each attempt; nothing was written.
            OutcomeUnknown: the store did not acknowledge, and reading did not show the outcome. The update may be in
                the log, or reach it later.
            CorruptData, Unsupported: the log's mark cannot be read.
        """
        version, key = update.version, keys.update_key(update.version)
        updated = self._latest.update(lambda latest: version if (latest or 0) == version - 1 else latest,
                                      also={(self.partition, key): UPDATES.seal(key, update)},
                                      operation=f"append of catalog version {version}")
        return updated.before != updated.after

    # -- cutting

    def write_snapshot(self, catalog: Catalog, budget: Budget | None = None) -> WrittenSnapshot:
        """Put a snapshot of a version, and read it back. Two requests, more for a catalog of several MiB.

        Args:
            catalog: a version of the log.
            budget: limits the bytes.

        Raises:
            CorruptData, RecordMissing: a piece read back differs, or is missing.
            BudgetSpent: nothing was written.
        """
        version, key, whole = catalog.version, keys.update_key(catalog.version), catalog.as_update()
        payload = UPDATES.codec.encode(whole)
        starts = range(0, len(payload), self._chunk_bytes)
        pieces = Pieces(f"{self.rng.getrandbits(64):016x}", len(starts))
        parts = [(name, seal(name, PIECE, payload[at:at + self._chunk_bytes]))
                 for name, at in zip(pieces.keys(version), starts, strict=True)]
        size = sum(len(name) + len(part) for name, part in parts)
        (budget or Budget()).spend(size)
        change_many(self.store, self.partition, dict(parts))
        if self._joined(version, pieces) != whole:
            raise CorruptData(path=key.decode(), offset=0, expected=repr(catalog), found="another catalog, read back")
        record = SNAPSHOTS.seal(key, pieces)
        return WrittenSnapshot(version, record, size + len(key) + len(record))

    def cut(self, snapshot: WrittenSnapshot, *, term: int | None = None, conditions: Conditions = NOTHING) -> None:
        """Cut the log to a snapshot from `write_snapshot`. Three requests.

        Args:
            snapshot: a snapshot of a version of the log.
            term: the coordinator's term, which becomes the log's.
            conditions: further conditions of the cut.

        Raises:
            CatalogMoved: the log already begins at this version or above, or a condition does not hold.
            StaleTerm: a coordinator of a later term is known.
            OutcomeUnknown: the store did not acknowledge, and reading did not show whether the log was cut.
        """
        version = snapshot.version
        changes: dict[Address, bytes | None] = {(self.partition, keys.update_key(version)): snapshot.record}
        if term is not None:
            state = self.state()
            if term < state.term:
                raise StaleTerm(term=term, current=state.term)
            conditions = {**state.term_condition, **conditions}  # the earlier state of a key in both
            if term > state.term:
                changes[self.partition, keys.TERM] = TERMS.seal(keys.TERM, term)

        def raised(before: int | None) -> int:
            if (before or 0) >= version:
                raise CatalogMoved(f"history cannot be cut to version {version}: it already begins at {before}")
            return version

        try:
            self._earliest.update(raised, also=changes, conditions=conditions,
                                  operation=f"cut of the catalog to version {version}")
        except PredicateFailed as error:
            if error.key == keys.TERM and (again := self.state()).term > (term or 0):
                raise StaleTerm(term=term or 0, current=again.term) from error
            raise CatalogMoved(f"the plan to cut history to version {version} is outdated: the key {error.key!r} has "
                               f"changed since; make a new plan") from error
