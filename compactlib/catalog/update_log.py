"""The update log: one record per catalog version in a key-value store, cut by snapshots.

Appending is a compare-and-set on the latest version. A snapshot is one conditional multi-operation: it moves the
earliest version, puts the snapshot in the place of that version's update, and deletes the updates below; a crash before
it changes nothing, a crash after it leaves at most garbage that `reclaim` removes (notes/catalog.md 1.4, 1.5).
"""

from __future__ import annotations

import random
from collections.abc import Sequence

import attrs

from compactlib.catalog import keys
from compactlib.catalog.catalog import Catalog
from compactlib.catalog.errors import (
    RecordMissing,
    RecordTooLarge,
    RetriesExhausted,
    SnapshotAboveLatest,
    StaleTerm,
    UnsafeCompaction,
)
from compactlib.catalog.log_model import AlreadyCompacted, Appended, Fence, LostRace, SnapshotSaved
from compactlib.catalog.log_reader import LogReader
from compactlib.catalog.records import (
    RecordType,
    Update,
    encode_catalog,
    encode_update,
    seal,
    seal_fields,
    to_json,
    unseal_fields,
)
from compactlib.checksum import crc32
from compactlib.errors import InvalidInput
from compactlib.kv import EXISTS, Condition, Delete, KVStore, OutcomeUnknown, PredicateFailed, Put

MAX_ATTEMPTS = 10
"""How often a write that lost a race, or whose outcome is not known, is tried before giving up."""
DEFAULT_CHUNK_BYTES = 256 * 1024
"""How long a snapshot may be before it is split; below the value limit of every known store."""
DEFAULT_MAX_RECORD_BYTES = 64 * 1024 * 1024
"""The largest update or snapshot that is accepted."""


class UpdateLog(LogReader):
    """The log in one partition of a store. Holds no state of its own; any thread may call it.

    Args:
        store: where it lies; must be able to `transact`.
        partition: the store's partition; one catalog each.
        chunk_bytes: snapshots longer than this are split.
        max_record_bytes: updates and snapshots longer than this are refused.
        randomness: makes the tokens by which a writer knows its own records.

    Raises:
        InvalidInput: a limit is less than 1 kB, or the store cannot change several keys at once.
    """

    def __init__(self, store: KVStore, partition: bytes = b"catalog", *, chunk_bytes: int = DEFAULT_CHUNK_BYTES,
                 max_record_bytes: int = DEFAULT_MAX_RECORD_BYTES, randomness: random.Random | None = None) -> None:
        if min(chunk_bytes, max_record_bytes) < 1024:
            raise InvalidInput(f"chunk_bytes is {chunk_bytes}, max_record_bytes {max_record_bytes}; give at least 1024")
        if store.limits.max_transact < 8:
            raise InvalidInput(f"the store changes {store.limits.max_transact} keys in one step; the log needs 8")
        super().__init__(store, partition)
        self._chunk_bytes = min(chunk_bytes, store.limits.max_value_bytes - 64)
        self._max_record_bytes = max_record_bytes
        self._randomness = random.Random() if randomness is None else randomness

    def prepare(self) -> None:
        """Mark the partition as a catalog's, once; a mark that is there is checked and never overwritten.

        Raises:
            RecordDamaged, RecordTooNew: the mark is not ours.
        """
        found = self._get(keys.FORMAT)
        if found is None:
            mark = seal_fields(keys.FORMAT, RecordType.FORMAT, {"product": "compactlib.catalog"})
            try:
                self.store.set_if(self.partition, keys.FORMAT, mark, None)
            except (PredicateFailed, OutcomeUnknown):
                return self.prepare()
            return None
        unseal_fields(keys.FORMAT, found[0], RecordType.FORMAT, "product")
        return None

    # --- appending ----------------------------------------------------------------------------------------------

    def append(self, update: Update) -> Appended | LostRace:
        """Append a version if the log ends with the one before it; the first may have any number. One read, one write.

        Raises:
            RecordTooLarge: the record exceeds the limit.
            RetriesExhausted: the store did not say for `MAX_ATTEMPTS` times whether it wrote.
            RecordDamaged, RecordTooNew: the log's mark cannot be read.
        """
        update = attrs.evolve(update, writer=self._token())
        key = keys.update_key(update.version)
        record = encode_update(key, update)
        self._check_size(key, record)
        puts = [self._put(key, record), self._put(keys.LATEST, seal_fields(
            keys.LATEST, RecordType.LATEST, {"version": update.version}))]
        for _ in range(MAX_ATTEMPTS):
            latest, predicate = self._latest()
            if latest is not None and latest >= update.version and self._is_ours(key, record):
                return Appended(update.version)
            if latest is not None and latest != update.version - 1:
                return LostRace(latest)
            conditions = [Condition(self.partition, keys.LATEST, predicate)]
            first: list[Put] = []
            if latest is None:
                conditions.append(Condition(self.partition, keys.EARLIEST, None))
                first = [self._put(keys.EARLIEST, seal_fields(
                    keys.EARLIEST, RecordType.EARLIEST, {"version": update.version, "compacted": False}))]
            try:
                self.store.transact(conditions, [*puts, *first])
            except (PredicateFailed, OutcomeUnknown):
                continue  # somebody else was first, or perhaps we were: look again
            return Appended(update.version)
        raise RetriesExhausted(attempts=MAX_ATTEMPTS, version=update.version)

    def _is_ours(self, key: bytes, record: bytes) -> bool:
        found = self._get(key)
        return found is not None and found[0] == record

    def _put(self, key: bytes, record: bytes) -> Put:
        return Put(self.partition, key, record)

    def _token(self) -> str:
        return f"{self._randomness.getrandbits(64):016x}"

    def _check_size(self, key: bytes, record: bytes) -> None:
        if len(record) > self._max_record_bytes:
            raise RecordTooLarge(key=key.decode(), size=len(record), limit=self._max_record_bytes)

    # --- snapshots ----------------------------------------------------------------------------------------------

    def save_snapshot(self, catalog: Catalog, fence: Fence | None = None) -> SnapshotSaved | AlreadyCompacted:
        """Cut the log: `catalog` becomes its first record, everything below goes. One conditional multi-operation.

        A snapshot of more than `chunk_bytes` is first written in pieces, in a private place, which the same
        multi-operation then requires to be there.

        Raises:
            SnapshotAboveLatest: the log does not reach this version, or is empty.
            StaleTerm: a coordinator of a later term has written.
            UnsafeCompaction: one of the fence's conditions does not hold any more.
            RecordMissing: somebody deleted a piece of the snapshot that was just written.
            RecordTooLarge: the snapshot exceeds the limit, or has more pieces than the store changes in one step.
            RetriesExhausted: every attempt lost, or its outcome was not known.
        """
        fence = Fence() if fence is None else fence
        state = self.state()
        if state is None or catalog.version > state.latest:
            raise SnapshotAboveLatest(version=catalog.version, latest=0 if state is None else state.latest)
        if catalog.version <= state.earliest:
            return AlreadyCompacted(state.earliest)
        writer = self._token()
        key = keys.update_key(catalog.version)
        payload = encode_catalog(catalog, writer)
        self._check_size(key, payload)
        record, chunks = self._staged(key, catalog.version, writer, payload)
        for _ in range(MAX_ATTEMPTS):
            earliest, predicate = self._earliest()
            if earliest is None:
                raise RecordMissing(key="earliest", version=state.earliest, expected="the mark that was just there")
            if earliest[0] >= catalog.version:
                if self._is_ours(key, record):
                    return SnapshotSaved(version=catalog.version, previous=state.earliest,
                                         snapshot_bytes=len(payload), deleted=0)
                return AlreadyCompacted(earliest[0])
            conditions, puts = self._fenced(fence)
            conditions += [Condition(self.partition, chunk, EXISTS) for chunk in chunks]
            conditions.append(Condition(self.partition, keys.EARLIEST, predicate))
            puts += [self._put(key, record), self._put(keys.EARLIEST, seal_fields(
                keys.EARLIEST, RecordType.EARLIEST, {"version": catalog.version, "compacted": True}))]
            room = self.store.limits.max_transact - len(conditions) - len(puts)
            doomed = range(earliest[0], min(catalog.version, earliest[0] + room))
            try:
                self.store.transact(conditions, puts, [Delete(self.partition, keys.update_key(one)) for one in doomed])
            except PredicateFailed as error:
                self._explain_loss(error, fence, catalog.version)
                continue
            except OutcomeUnknown:
                continue
            return SnapshotSaved(version=catalog.version, previous=earliest[0], snapshot_bytes=len(payload),
                                 deleted=len(doomed))
        raise RetriesExhausted(attempts=MAX_ATTEMPTS, version=catalog.version)

    def _staged(self, key: bytes, version: int, writer: str, payload: bytes) -> tuple[bytes, Sequence[bytes]]:
        """The snapshot's record and the keys of its pieces, which are written."""
        if len(payload) <= self._chunk_bytes:
            return seal(key, RecordType.SNAPSHOT, payload), ()
        pieces = [payload[at:at + self._chunk_bytes] for at in range(0, len(payload), self._chunk_bytes)]
        limit = self.store.limits.max_transact - 8
        if len(pieces) > limit:
            raise RecordTooLarge(key=key.decode(), size=len(payload), limit=limit * self._chunk_bytes)
        chunks = [keys.chunk_key(version, writer, number) for number in range(len(pieces))]
        for chunk, piece in zip(chunks, pieces, strict=True):
            self.store.set(self.partition, chunk, seal(chunk, RecordType.CHUNK, piece))
        fields = {"version": version, "writer": writer, "chunks": len(pieces), "bytes": len(payload),
                  "crc": crc32(payload)}
        return seal(key, RecordType.CHUNKED_SNAPSHOT, to_json(fields)), chunks

    def _fenced(self, fence: Fence) -> tuple[list[Condition], list[Put]]:
        conditions = list(fence.conditions)
        if fence.term is None:
            return conditions, []
        found = self._get(keys.TERM)
        current = 0
        if found is not None:
            (current,) = unseal_fields(keys.TERM, found[0], RecordType.TERM, "term")
        if fence.term < current:
            raise StaleTerm(term=fence.term, current=current)
        conditions.append(Condition(self.partition, keys.TERM, None if found is None else found[1]))
        if fence.term == current:
            return conditions, []
        return conditions, [self._put(keys.TERM, seal_fields(keys.TERM, RecordType.TERM, {"term": fence.term}))]

    def _explain_loss(self, error: PredicateFailed, fence: Fence, target: int) -> None:
        for condition in fence.conditions:
            if (condition.partition, condition.key) == (error.partition, error.key):
                raise UnsafeCompaction(rule="what the decision was based on must still hold", target=target,
                                       detail=f"{error.key!r} has changed since") from error
        if error.partition == self.partition and error.key.startswith(keys.CHUNKS):
            raise RecordMissing(key=error.key.decode(), version=target,
                                expected="a piece of the snapshot, just written") from error
