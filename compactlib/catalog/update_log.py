# SPDX-License-Identifier: Apache-2.0
"""The update log: one record per catalog version in a key-value store, cut by snapshots.

**Append** of version v: one compare-and-set of the mark `latest` from v - 1 to v, which puts the update in the same
step.

**Cut** to version v, in five steps, of which `write_snapshot` takes the first two and `cut` the third:

1. The snapshot's pieces are put under names that no other attempt has.
2. The pieces are read back, checked and compared.
3. One compare-and-set raises the mark `earliest` to v. In the same step it puts the snapshot's record, which names the
   pieces, in the place of v's update, raises the term, and deletes as many updates below as fit. It demands that the
   term is not above the coordinator's, and what the caller adds: that pins and membership have not changed. The pieces
   are there still: nobody deletes one above `earliest`.
4. A crash before that step changes nothing that is read; a crash after it leaves garbage below `earliest`.
5. `check.reclaim` deletes the garbage: nothing below the earliest version is ever written again.

`earliest` is absent until the first cut: then the log begins with version 1. Both marks are cells, which know what
became of a write that got no answer. An append and a cut touch different marks, so both succeed side by side; of two
cuts the higher one stays.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence

import attrs

from compactlib.catalog import keys
from compactlib.catalog.errors import CatalogMoved, RecordMissing, RecordTooLarge, StaleTerm
from compactlib.catalog.records import (
    PIECE,
    SNAPSHOT,
    SNAPSHOTS,
    TERMS,
    UPDATE,
    Pieces,
    decode_catalog,
    encode_catalog,
    seal,
    unseal,
)
from compactlib.catalog.schema import UPDATES, Catalog, Update
from compactlib.clock import Clock, SystemClock
from compactlib.codec import JsonCodec
from compactlib.errors import CorruptData, InvalidInput
from compactlib.files.checksum import crc32
from compactlib.kv import Condition, Delete, KVStore, PredicateFailed, Put
from compactlib.kv.batches import get_many, get_pieces, put_pieces
from compactlib.kv.cell import Cell, Retries

DEFAULT_CHUNK_BYTES = 256 * 1024
"""How long a piece of a snapshot may be; below the value limit of every known store."""
DEFAULT_MAX_RECORD_BYTES = 64 * 1024 * 1024
"""The largest update or snapshot that is accepted."""
_RETRIES = Retries(10)
_FEW = 4
"""Records in the first page of a caller who expects to need no more; pages grow from there."""
_PRODUCT = "compactlib.catalog"


@attrs.frozen
class LogState:
    """What the log's marks say.

    Attributes:
        latest: the last record's version; 0 for an empty log.
        earliest: the version of the snapshot with which the log begins; 0 if it was never cut, and begins with 1.
        term: of the last coordinator, 0 for none.
        term_condition: that the term has not changed since.
    """

    latest: int
    earliest: int
    term: int
    term_condition: Condition


@attrs.frozen
class WrittenSnapshot:
    """A snapshot that was put and read back, and that no log begins with yet.

    Attributes:
        version: of the catalog.
        record: what takes the place of the version's update.
        size: bytes of the record, the pieces, and their keys.
    """

    version: int
    record: bytes
    size: int


class UpdateLog:
    """The log in one partition of a store. Holds no state of its own; any thread may call it.

    Args:
        store: where it lies; must be able to `transact`.
        partition: the store's partition; one catalog each.
        chunk_bytes: how long a piece of a snapshot may be, >= 1024.
        max_record_bytes: updates and snapshots longer than this are refused, >= 1024.
        rng: makes the names of pieces and the ids of writes.
        clock: waits between two tries of a write.

    Raises:
        InvalidInput: a limit is less than 1 kB, or the store cannot change several keys at once.
    """

    def __init__(self, store: KVStore, partition: bytes = b"catalog", *, chunk_bytes: int = DEFAULT_CHUNK_BYTES,
                 max_record_bytes: int = DEFAULT_MAX_RECORD_BYTES, rng: random.Random | None = None,
                 clock: Clock | None = None) -> None:
        if min(chunk_bytes, max_record_bytes) < 1024:
            raise InvalidInput(f"chunk_bytes is {chunk_bytes}, max_record_bytes {max_record_bytes}; give at least 1024")
        if store.limits.max_transact < 8:
            raise InvalidInput(f"the store changes {store.limits.max_transact} keys in one step; the log needs 8")
        self.store: KVStore = store
        self.partition: bytes = partition
        self.rng: random.Random = random.SystemRandom() if rng is None else rng
        self._clock: Clock = SystemClock() if clock is None else clock
        self._chunk_bytes = min(chunk_bytes, store.limits.max_value_bytes - 64)
        self._max_record_bytes = max_record_bytes
        self._latest = self._mark(keys.LATEST)
        self._earliest = self._mark(keys.EARLIEST)

    def _mark(self, key: bytes) -> Cell[int]:
        return Cell(self.store, self.partition, key, JsonCodec[int](int), retries=_RETRIES, clock=self._clock,
                    rng=self.rng)

    def prepare(self) -> None:
        """Mark the partition as a catalog's, once.

        Raises:
            CorruptData, Unsupported: the mark cannot be read.
            InvalidInput: it is another product's.
            OutcomeUnknown: the store did not say whether it wrote the mark.
        """
        cell = Cell[str](self.store, self.partition, keys.FORMAT, JsonCodec(str), retries=_RETRIES, clock=self._clock,
                         rng=self.rng)
        found = cell.update(lambda found: found or _PRODUCT, operation="marking the partition", may_repeat=True).after
        if found != _PRODUCT:
            raise InvalidInput(f"partition {self.partition!r} belongs to {found!r}; give the catalog one of its own")

    # -- reading

    def state(self) -> LogState:
        """Return what the marks say. One request, and one more for an empty log.

        Raises:
            RecordMissing: `latest` is gone, and there are updates.
            CorruptData, Unsupported: a mark cannot be read.
        """
        addresses = [(self.partition, key) for key in (keys.EARLIEST, keys.LATEST, keys.TERM)]
        for is_last in (False, False, True):
            found = get_many(self.store, addresses)
            earliest, latest = (cell.value_of(found[address].value) if address in found else 0
                                for cell, address in zip((self._earliest, self._latest), addresses, strict=False))
            term = TERMS.unseal(keys.TERM, found[addresses[2]].value) if addresses[2] in found else 0
            # The keys may be of several moments: what contradicts itself is read again.
            if latest < max(earliest, 1):
                stray = next(iter(self.entries(0, few=True)), None)
                if stray is None and not earliest:
                    break
                if is_last:
                    raise RecordMissing(key=keys.LATEST.decode(), version=max(earliest, stray[0] if stray else 0),
                                        expected="a mark that is not below the records")
                continue
            break
        predicate = found[addresses[2]].predicate if addresses[2] in found else None
        return LogState(latest, earliest, term, Condition(*addresses[2], predicate))

    def earliest(self) -> tuple[int, Condition]:
        """Return the version of the snapshot with which the log begins, 0 if there is none; and the condition that this
        has not changed. One request.
        """
        state = self._earliest.state()
        return state.value or 0, state.condition

    def entries(self, first: int, *, few: bool = False) -> Iterator[tuple[int, bytes, bytes]]:
        """Return the records of updates and snapshots from this version on: version, key and record.

        Args:
            first: the first version that is wanted.
            few: the caller expects to stop soon.

        Raises:
            CorruptData: a key among them is no update's.
        """
        with self.store.scan(self.partition, keys.update_key(max(first, 0)), prefix=keys.UPDATES,
                             page_size=_FEW if few else None) as entries:
            for entry in entries:
                found = keys.version_of(entry.key)
                if found is None:
                    raise CorruptData(path=entry.key.decode("ascii", "backslashreplace"), offset=0,
                                      expected="an update's key", found="another name")
                yield found, entry.key, entry.value

    def decode(self, version: int, key: bytes, record: bytes) -> Catalog | tuple[Update, bytes]:
        """Return what a version's record says: a snapshot, whose pieces are read; or an update, and its payload.

        Raises:
            RecordMissing: a piece is not there.
            CorruptData, Unsupported: the record or a piece cannot be read.
        """
        kind, payload = unseal(key, record, UPDATE, SNAPSHOT)
        name = key.decode()
        if kind == UPDATE:
            update = UPDATES.decode(payload, name)
            found: Catalog | tuple[Update, bytes] = update, payload
            says = update.version
        else:
            found = decode_catalog(self._joined(version, SNAPSHOTS.unseal(key, record)), name)
            says = found.version
        if says != version:
            raise CorruptData(path=name, offset=0, expected=f"version {version}", found=str(says))
        return found

    def piece_keys(self, version: int, record: bytes) -> Sequence[bytes]:
        """Return the keys of the pieces of a snapshot."""
        pieces = SNAPSHOTS.unseal(keys.update_key(version), record)
        return [keys.piece_key(version, pieces.writer, number) for number in range(pieces.count)]

    def _joined(self, version: int, pieces: Pieces) -> bytes:
        names = [keys.piece_key(version, pieces.writer, number) for number in range(pieces.count)]
        parts = []
        for name, record in zip(names, get_pieces(self.store, self.partition, names), strict=True):
            if record is None:
                raise RecordMissing(key=name.decode(), version=version, expected=f"one of {pieces.count} pieces")
            parts.append(unseal(name, record, PIECE)[1])
        joined = b"".join(parts)
        if len(joined) != pieces.size or crc32(joined) != pieces.crc:
            raise CorruptData(path=keys.update_key(version).decode(), offset=0,
                              expected=f"pieces of {pieces.size} bytes with CRC {pieces.crc:#010x}",
                              found=f"{len(joined)} bytes with CRC {crc32(joined):#010x}")
        return joined

    # -- appending

    def append(self, version: int, payload: bytes) -> bool:
        """Append an update if the log ends with the version before it. Two requests.

        Returns:
            Whether it is in the log; else another writer was first, and nothing was written.

        Raises:
            RecordTooLarge: the record exceeds the limit.
            Busy: other writers were first again and again; nothing was written.
            OutcomeUnknown: the store did not say whether it wrote, and it could not be seen. The update may be in the
                log, or come into it later.
            CorruptData, Unsupported: the log's mark cannot be read.
        """
        key = keys.update_key(version)
        self._check_size(key, len(payload), "split the batch, or raise max_record_bytes of the log")
        put = Put(self.partition, key, seal(key, UPDATE, payload))
        updated = self._latest.update(lambda latest: version if (latest or 0) == version - 1 else latest,
                                      also=lambda *_: [put], operation=f"append of catalog version {version}")
        return updated.before != updated.after

    # -- cutting

    def write_snapshot(self, catalog: Catalog, spend: Callable[[int], object] = lambda size: None) -> WrittenSnapshot:
        """Put a snapshot of a version, and read it back. Two requests, and one for each 16 pieces.

        Args:
            catalog: a version of the log.
            spend: asked before bytes are written.

        Raises:
            RecordTooLarge: the snapshot exceeds a limit.
            CorruptData, RecordMissing: a piece is not what was written.
            BaseException: what `spend` raises.
        """
        version, key, payload = catalog.version, keys.update_key(catalog.version), encode_catalog(catalog)
        self._check_size(key, len(payload), "a snapshot holds the whole catalog: raise max_record_bytes of the log")
        writer = f"{self.rng.getrandbits(64):016x}"
        parts = []
        for number, at in enumerate(range(0, len(payload), self._chunk_bytes)):
            name = keys.piece_key(version, writer, number)
            parts.append((name, seal(name, PIECE, payload[at:at + self._chunk_bytes])))
        size = sum(len(name) + len(part) for name, part in parts)
        spend(size)
        put_pieces(self.store, self.partition, parts)
        pieces = Pieces(writer, len(parts), len(payload), crc32(payload))
        if decode_catalog(self._joined(version, pieces), key.decode()) != catalog:
            raise CorruptData(path=key.decode(), offset=0, expected=repr(catalog), found="another one, read back")
        record = SNAPSHOTS.seal(key, pieces)
        return WrittenSnapshot(version, record, size + len(key) + len(record))

    def cut(self, snapshot: WrittenSnapshot, *, term: int | None = None, conditions: Sequence[Condition] = ()) -> int:
        """Let the log begin with a snapshot that `write_snapshot` has put. Three requests.

        Args:
            snapshot: of a version of the log.
            term: the coordinator's; becomes the log's.
            conditions: what must hold besides.

        Returns:
            How many updates below it were deleted.

        Raises:
            CatalogMoved: the log begins at this version or above already, or one of the conditions does not hold.
            StaleTerm: a coordinator of a later term is known.
            OutcomeUnknown: the store did not say whether it cut, and it could not be seen.
        """
        version, state = snapshot.version, self.state()
        held = list(conditions)
        puts = [Put(self.partition, keys.update_key(version), snapshot.record)]
        if term is not None:
            if term < state.term:
                raise StaleTerm(term=term, current=state.term)
            held.append(state.term_condition)
            puts += [] if term == state.term else [Put(self.partition, keys.TERM, TERMS.seal(keys.TERM, term))]
        room = self.store.limits.max_transact - len(held) - len(puts) - 2
        deletes = [Delete(self.partition, keys.update_key(each))
                   for each in range(max(state.earliest, 1), version)][:max(room, 0)]

        def raised(before: int | None) -> int:
            if (before or 0) >= version:
                raise CatalogMoved(what=f"history begins at version {before} by now", target=version)
            return version

        try:
            self._earliest.update(raised, also=lambda *_: [*held, *puts, *deletes],
                                  operation=f"cut of the catalog to version {version}")
        except PredicateFailed as error:
            if error.key == keys.TERM and (again := self.state()).term > (term or 0):
                raise StaleTerm(term=term or 0, current=again.term) from error
            raise CatalogMoved(what=f"{error.key!r} has changed since", target=version) from error
        return len(deletes)

    def _check_size(self, key: bytes, size: int, advice: str) -> None:
        if size > self._max_record_bytes:
            raise RecordTooLarge(f"the record for {key.decode()} would take {size} bytes; the limit is "
                                 f"{self._max_record_bytes}: {advice}")
