"""The update log: one record per catalog version in a key-value store, cut by snapshots.

Appending is a compare-and-set on the latest version. A snapshot is one conditional multi-operation: it moves the
earliest version, puts the snapshot in the place of that version's update, and deletes the updates below; a crash before
it changes nothing, a crash after it leaves at most garbage that `reclaim` removes (notes/catalog.md 1.4, 1.5).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import TypeVar

import attrs

from compactlib.catalog import keys
from compactlib.catalog.arguments import whole
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
    unseal,
    unseal_fields,
)
from compactlib.checksum import crc32
from compactlib.clock import Clock, SystemClock
from compactlib.errors import CompactlibError, InvalidInput
from compactlib.kv import EXISTS, Condition, Delete, KVStore, OutcomeUnknown, Predicate, PredicateFailed, Put
from compactlib.runtime import look_until_seen

SeenT = TypeVar("SeenT")

MAX_ATTEMPTS = 10
"""How often a write that lost a race, or whose outcome is not known, is tried before giving up."""
DEFAULT_CHUNK_BYTES = 256 * 1024
"""How long a snapshot may be before it is split; below the value limit of every known store."""
DEFAULT_MAX_RECORD_BYTES = 64 * 1024 * 1024
"""The largest update or snapshot that is accepted."""
_ENTRIES = (RecordType.UPDATE, RecordType.SNAPSHOT, RecordType.CHUNKED_SNAPSHOT)


@attrs.frozen
class _Place:
    """Where an update goes: the state of the latest version's mark, and whether the log is empty."""

    predicate: Predicate | None
    is_first: bool


@attrs.frozen
class _Cut:
    """The log was cut at the version or above it, so that nobody can say any more whose update it was."""

    latest: int


class UpdateLog(LogReader):
    """The log in one partition of a store. Holds no state of its own; any thread may call it.

    Args:
        store: where it lies; must be able to `transact`.
        partition: the store's partition; one catalog each.
        chunk_bytes: snapshots longer than this are split.
        max_record_bytes: updates and snapshots longer than this are refused.
        randomness: makes the tokens by which a writer knows its own records, and varies the pauses between looks.
        clock: waits between two looks for a write that got no answer.

    Raises:
        InvalidInput: a limit is less than 1 kB, or the store cannot change several keys at once.
    """

    def __init__(self, store: KVStore, partition: bytes = b"catalog", *, chunk_bytes: int = DEFAULT_CHUNK_BYTES,
                 max_record_bytes: int = DEFAULT_MAX_RECORD_BYTES, randomness: random.Random | None = None,
                 clock: Clock | None = None) -> None:
        whole("chunk_bytes", chunk_bytes, lowest=1024)
        whole("max_record_bytes", max_record_bytes, lowest=1024)
        if store.limits.max_transact < 8:
            raise InvalidInput(f"the store changes {store.limits.max_transact} keys in one step; the log needs 8")
        super().__init__(store, partition)
        self._chunk_bytes = min(chunk_bytes, store.limits.max_value_bytes - 64)
        self._max_record_bytes = max_record_bytes
        self._randomness = random.Random() if randomness is None else randomness
        self._clock: Clock = SystemClock() if clock is None else clock

    def prepare(self) -> None:
        """Mark the partition as a catalog's, once; a mark that is there is checked and never overwritten.

        Raises:
            RecordDamaged, RecordTooNew: the mark is not ours.
            OutcomeUnknown: the store did not say for `MAX_ATTEMPTS` times whether it wrote the mark.
        """
        mark = seal_fields(keys.FORMAT, RecordType.FORMAT, {"product": "compactlib.catalog"})
        unknown: OutcomeUnknown | None = None
        for _ in range(MAX_ATTEMPTS):
            found = self._seen(lambda: self._get(keys.FORMAT), unknown)
            if found is not None:
                unseal_fields(keys.FORMAT, found[0], RecordType.FORMAT, "product")
                return
            try:
                self.store.set_if(self.partition, keys.FORMAT, mark, None)
            except PredicateFailed:
                continue
            except OutcomeUnknown as error:
                unknown = error
                continue
            return
        raise unknown or RetriesExhausted(attempts=MAX_ATTEMPTS, version=0)

    def _seen(self, look: Callable[[], SeenT], unknown: OutcomeUnknown | None) -> SeenT:
        """What `look` sees; after a write without an answer it looks again if it fails, and leaves that unknown."""
        if unknown is None:
            return look()
        return look_until_seen(look, unknown, clock=self._clock, rng=self._randomness)

    # --- appending ----------------------------------------------------------------------------------------------

    def append(self, update: Update) -> Appended | LostRace:
        """Append a version if the log ends with the one before it; the first may have any number. One read, one write.

        Raises:
            RecordTooLarge: the record exceeds the limit.
            RetriesExhausted: every attempt lost; nothing was written.
            OutcomeUnknown: the store did not say whether it wrote, and it could not be seen: the store was away, or the
                log was cut meanwhile. The update may be in the log, or come into it later.
            RecordDamaged, RecordTooNew: the log's mark cannot be read.
        """
        update = attrs.evolve(update, writer=self._token())
        key = keys.update_key(update.version)
        record = encode_update(key, update)
        self._check_size(key, record)
        puts = [self._put(key, record), self._put(keys.LATEST, seal_fields(
            keys.LATEST, RecordType.LATEST, {"version": update.version}))]
        unknown: OutcomeUnknown | None = None
        for _ in range(MAX_ATTEMPTS):
            found = self._seen(lambda: self._place_of(update.version, key, record), unknown)
            if isinstance(found, _Cut):
                if unknown is not None:
                    raise unknown
                return LostRace(found.latest)
            if not isinstance(found, _Place):
                return found
            conditions = [Condition(self.partition, keys.LATEST, found.predicate)]
            first: list[Put] = []
            if found.is_first:
                conditions.append(Condition(self.partition, keys.EARLIEST, None))
                first = [self._put(keys.EARLIEST, seal_fields(
                    keys.EARLIEST, RecordType.EARLIEST, {"version": update.version, "compacted": False}))]
            try:
                self.store.transact(conditions, [*puts, *first])
            except PredicateFailed:
                continue  # somebody else was first, or a write of ours that came late: look again
            except OutcomeUnknown as error:
                unknown = _unknown(error, f"append of catalog version {update.version}")
            except CompactlibError as error:
                # It failed for certain, but an earlier one may still have happened.
                raise unknown or error from error
            else:
                return Appended(update.version)
        raise unknown or RetriesExhausted(attempts=MAX_ATTEMPTS, version=update.version)

    def _place_of(self, version: int, key: bytes, record: bytes) -> Appended | LostRace | _Cut | _Place:
        """What became of an append, or where it goes."""
        latest, predicate = self._latest()
        if latest is None or latest == version - 1:
            return _Place(predicate, latest is None)
        if latest < version:
            return LostRace(latest)
        there = self._get(key)
        if there is None or unseal(key, there[0], *_ENTRIES)[0] is not RecordType.UPDATE:
            earliest, _ = self._earliest()
            is_cut = earliest is not None and earliest[1] and earliest[0] >= version
            return _Cut(latest) if is_cut else LostRace(latest)
        return Appended(version) if there[0] == record else LostRace(latest)

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
            RetriesExhausted: every attempt lost; nothing was cut.
            OutcomeUnknown: the store did not say whether it wrote, and it could not be seen.
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
        unknown: OutcomeUnknown | None = None
        for _ in range(MAX_ATTEMPTS):
            earliest, predicate = self._seen(self._earliest, unknown)
            if earliest is None:
                raise RecordMissing(key="earliest", version=state.earliest, expected="the mark that was just there")
            if earliest[0] >= catalog.version:
                if self._seen(lambda: self._is_ours(key, record), unknown):
                    return SnapshotSaved(version=catalog.version, previous=state.earliest,
                                         snapshot_bytes=len(payload), deleted=0)
                return AlreadyCompacted(earliest[0])
            try:
                saved = self._try_to_cut(catalog.version, fence, record, chunks, (earliest[0], predicate))
            except OutcomeUnknown as error:
                unknown = _unknown(error, f"snapshot of catalog version {catalog.version}")
                continue
            except CompactlibError as error:
                # It failed for certain, but an earlier one may still have happened.
                raise unknown or error from error
            if saved is not None:
                return attrs.evolve(saved, snapshot_bytes=len(payload))
        raise unknown or RetriesExhausted(attempts=MAX_ATTEMPTS, version=catalog.version)

    def _try_to_cut(self, version: int, fence: Fence, record: bytes, chunks: Sequence[bytes],
                    earliest: tuple[int, Predicate | None]) -> SnapshotSaved | None:
        """One attempt; `None` if somebody else was first."""
        conditions, puts = self._fenced(fence)
        conditions += [Condition(self.partition, chunk, EXISTS) for chunk in chunks]
        conditions.append(Condition(self.partition, keys.EARLIEST, earliest[1]))
        puts += [self._put(keys.update_key(version), record), self._put(keys.EARLIEST, seal_fields(
            keys.EARLIEST, RecordType.EARLIEST, {"version": version, "compacted": True}))]
        room = self.store.limits.max_transact - len(conditions) - len(puts)
        doomed = range(earliest[0], min(version, earliest[0] + room))
        try:
            self.store.transact(conditions, puts, [Delete(self.partition, keys.update_key(one)) for one in doomed])
        except PredicateFailed as error:
            self._explain_loss(error, fence, version)
            return None
        return SnapshotSaved(version=version, previous=earliest[0], snapshot_bytes=0, deleted=len(doomed))

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


def _unknown(error: OutcomeUnknown, what: str) -> OutcomeUnknown:
    """The store's answer, told as what it means here."""
    named = OutcomeUnknown(operation=what, path=error.path, detail=f"{error.operation}: {error.detail}")
    named.__cause__ = error
    return named
