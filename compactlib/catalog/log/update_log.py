# SPDX-License-Identifier: Apache-2.0
"""The update log: one record per catalog version in a key-value store, cut by snapshots.

Appending is a compare-and-set on the latest version. A snapshot is one conditional multi-operation: it moves the
earliest version, puts the snapshot in the place of that version's update, and deletes the updates below; a crash before
it changes nothing, a crash after it leaves at most garbage that `reclaim` removes.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from itertools import islice
from typing import TypeVar

import attrs

from compactlib.catalog.arguments import whole
from compactlib.catalog.errors import (
    CatalogMoved,
    RecordDamaged,
    RecordMissing,
    RecordTooLarge,
    RetriesExhausted,
    SnapshotAboveLatest,
    StaleTerm,
)
from compactlib.catalog.log import keys
from compactlib.catalog.log.log_model import AlreadyCompacted, Appended, LogState, LostRace, SnapshotSaved
from compactlib.catalog.log.records import (
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
from compactlib.catalog.log.stored_records import StoredRecords
from compactlib.catalog.schema.catalog import Catalog
from compactlib.clock import Clock, SystemClock
from compactlib.contract import CommitFence
from compactlib.errors import Busy, CompactlibError, InvalidInput
from compactlib.files.checksum import crc32
from compactlib.kv import EXISTS, Condition, Delete, KVStore, OutcomeUnknown, PredicateFailed, Put, SlowDown
from compactlib.kv.batches import put_pieces
from compactlib.kv.cell import Attempt, Fate, Found, Judge, Retries, Swap, swap
from compactlib.kv.store import Predicate, Versioned
from compactlib.runtime.look import look_until_seen

SeenT = TypeVar("SeenT")
SwappedT = TypeVar("SwappedT")

MAX_ATTEMPTS = 10
"""How often a write that lost a race, or whose outcome is not known, is tried before giving up."""
DEFAULT_CHUNK_BYTES = 256 * 1024
"""How long a snapshot may be before it is split; below the value limit of every known store."""
DEFAULT_MAX_RECORD_BYTES = 64 * 1024 * 1024
"""The largest update or snapshot that is accepted."""
_TOKEN_CHARS = 16
_ENTRIES = (RecordType.UPDATE, RecordType.SNAPSHOT, RecordType.CHUNKED_SNAPSHOT)


@attrs.frozen
class _Snapshot:
    """A snapshot that is to be written, and what must hold then."""

    version: int
    term: int | None
    conditions: tuple[Condition, ...]
    fence: CommitFence | None
    pace: Callable[[int], object]


class UpdateLog:
    """The log in one partition of a store. Holds no state of its own; any thread may call it.

    Args:
        store: where it lies; must be able to `transact`.
        partition: the store's partition; one catalog each.
        chunk_bytes: snapshots longer than this are split.
        max_record_bytes: updates and snapshots longer than this are refused.
        rng: makes the tokens by which a writer knows its own records, and varies the pauses between looks.
        clock: waits between two looks for a write that got no answer.

    Raises:
        InvalidInput: a limit is less than 1 kB, or the store cannot change several keys at once.
    """

    def __init__(self, store: KVStore, partition: bytes = b"catalog", *, chunk_bytes: int = DEFAULT_CHUNK_BYTES,
                 max_record_bytes: int = DEFAULT_MAX_RECORD_BYTES, rng: random.Random | None = None,
                 clock: Clock | None = None) -> None:
        whole("chunk_bytes", chunk_bytes, lowest=1024)
        whole("max_record_bytes", max_record_bytes, lowest=1024)
        if store.limits.max_transact < 8:
            raise InvalidInput(f"the store changes {store.limits.max_transact} keys in one step; the log needs 8")
        self.store: KVStore = store
        self.partition: bytes = partition
        self.records: StoredRecords = StoredRecords(store, partition)
        self._chunk_bytes = min(chunk_bytes, store.limits.max_value_bytes - 64)
        self._max_record_bytes = max_record_bytes
        self._rng = random.Random() if rng is None else rng
        self._clock: Clock = SystemClock() if clock is None else clock

    def prepare(self) -> None:
        """Mark the partition as a catalog's, once; a mark that is there is checked and never overwritten.

        Raises:
            RecordDamaged, RecordTooNew: the mark is not ours.
            OutcomeUnknown: the store did not say for `MAX_ATTEMPTS` times whether it wrote the mark.
        """
        cell = self.partition, keys.FORMAT
        mark = seal_fields(keys.FORMAT, RecordType.FORMAT, {"product": "compactlib.catalog"})

        def decide(found: Found) -> Swap[None]:
            if cell in found:
                unseal_fields(keys.FORMAT, found[cell].value, RecordType.FORMAT, "product")
            return Swap(None, {} if cell in found else {cell: mark})

        self._swap(keys.FORMAT, decide, "marking the catalog's partition", version=0, may_repeat=True)

    def _swap(self, key: bytes, decide: Callable[[Found], Swap[SwappedT]], operation: str, *, version: int,
              may_repeat: bool = False, judge: Judge[SwappedT] | None = None) -> SwappedT:
        """Change one of the log's marks, and what goes with it in the same step."""
        try:
            return swap(self.store, [(self.partition, key)], decide, operation=operation, may_repeat=may_repeat,
                        judge=judge, retries=Retries(MAX_ATTEMPTS), clock=self._clock, rng=self._rng)
        except SlowDown:
            raise
        except Busy as error:
            raise RetriesExhausted(attempts=MAX_ATTEMPTS, version=version) from error

    def _seen(self, look: Callable[[], SeenT], unknown: OutcomeUnknown | None) -> SeenT:
        """What `look` sees; after a write without an answer it looks again if it fails, and leaves that unknown."""
        if unknown is None:
            return look()
        return look_until_seen(look, unknown, clock=self._clock, rng=self._rng)

    # --- reading ------------------------------------------------------------------------------------------------

    def state(self) -> LogState | None:
        """Which versions the log holds; `None` for an empty log. Two reads.

        Raises:
            RecordMissing: one of its two marks is gone, or both are and there are updates.
            RecordDamaged, RecordTooNew: a mark cannot be read.
        """
        # The earliest version first: a snapshot in between then shows as a latest version that is too new, never as
        # one that is too old.
        earliest, _ = self._earliest()
        latest, _ = self._latest()
        if earliest is None and latest is None:
            stray = next(iter(self.records.from_version(0, few=True)), None)
            if stray is not None and self._latest()[0] is None:
                raise RecordMissing(key="latest", version=stray[0], expected=f"a mark, since there is {stray[1]!r}")
            return None if stray is None else self.state()
        if earliest is None:
            return self._restate(RecordMissing(key="earliest", version=0, expected="a mark, since there is 'latest'"))
        if latest is None:
            raise RecordMissing(key="latest", version=earliest[0], expected="a mark, since there is 'earliest'")
        if earliest[0] > latest:
            raise RecordDamaged(key="latest", offset=0, expected=f"at least {earliest[0]}, the earliest version",
                                found=str(latest))
        return LogState(earliest[0], latest, earliest[1])

    def _restate(self, error: RecordMissing) -> LogState | None:
        # The first append may have come between the two reads.
        if self._earliest()[0] is None:
            raise error
        return self.state()

    def read(self, first: int, last: int) -> Iterator[Update | Catalog]:
        """The records of these versions in order: updates, and the snapshot if the log was cut to one of them.

        Raises:
            RecordMissing: a version is not there. After a compaction in the meantime, that is no damage: see `state`.
            RecordDamaged, RecordTooNew: a record cannot be read.
        """
        return (self.records.decode(*stored) for stored in self.stored(first, last))

    def stored(self, first: int, last: int) -> Iterator[tuple[int, bytes, bytes]]:
        """The records of these versions in order, undecoded: version, key and record.

        Raises:
            RecordMissing: as `read`.
        """
        expected = first
        for version, key, record in islice(self.records.from_version(first), last - first + 1):
            if version != expected:
                break
            yield version, key, record
            expected += 1
        if expected <= last:
            raise RecordMissing(key=keys.update_key(expected).decode(), version=expected,
                                expected=f"versions {first} to {last} without a gap")

    def snapshot(self, version: int) -> Catalog:
        """The snapshot with which the log begins.

        Raises:
            RecordMissing: there is no record of this version.
            RecordDamaged: it is no snapshot, or cannot be read.
        """
        found = next(iter(self.read(version, version)))
        if isinstance(found, Update):
            raise RecordDamaged(key=keys.update_key(version).decode(), offset=6, expected="a snapshot",
                                found="an update")
        return found

    def updates_above(self, version: int) -> int | None:
        """The lowest version above this one that has a record; `None` if there is none. For recovery and audits."""
        found = next(iter(self.records.from_version(version + 1, few=True)), None)
        return None if found is None else found[0]

    def term(self) -> tuple[int, Predicate | None]:
        """The term of the last coordinator that cut the log, 0 for none; and the state of its mark."""
        found = self.records.get(keys.TERM)
        if found is None:
            return 0, None
        (current,) = unseal_fields(keys.TERM, found[0], RecordType.TERM, "term")
        return current, found[1]

    def _latest(self) -> tuple[int | None, Predicate | None]:
        found = self.records.get(keys.LATEST)
        return (None, None) if found is None else (_latest_in(Versioned(*found)), found[1])

    def _earliest(self) -> tuple[tuple[int, bool] | None, Predicate | None]:
        found = self.records.get(keys.EARLIEST)
        if found is None:
            return None, None
        version, compacted = unseal_fields(keys.EARLIEST, found[0], RecordType.EARLIEST, "version", "compacted")
        return (version, compacted), found[1]

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
        self._check_size(key, record, "split the batch, or raise max_record_bytes of the log")
        cell, latest_cell = (self.partition, key), (self.partition, keys.LATEST)
        writes = {cell: record, latest_cell: seal_fields(
            keys.LATEST, RecordType.LATEST, {"version": update.version})}
        first = {(self.partition, keys.EARLIEST): seal_fields(
            keys.EARLIEST, RecordType.EARLIEST, {"version": update.version, "compacted": False})}

        def decide(found: Found) -> Swap[Appended | LostRace]:
            latest = _latest_in(found.get(latest_cell))
            if latest is None:
                return Swap(Appended(update.version), writes | first, [Condition(self.partition, keys.EARLIEST, None)])
            if latest == update.version - 1:
                return Swap(Appended(update.version), writes)
            return Swap(LostRace(latest))

        def judge(attempt: Attempt[Appended | LostRace], found: Found) -> Fate:
            there = found.get(cell)
            if there is not None and there.value == record:
                return Fate.HAPPENED
            if found.get(latest_cell) == attempt.found.get(latest_cell):
                return Fate.PENDING
            # Another update of this version: it was lost. None, or a snapshot: the log was cut since.
            is_update = there is not None and unseal(key, there.value, *_ENTRIES)[0] is RecordType.UPDATE
            return Fate.LOST if is_update else Fate.UNKNOWN

        return self._swap(keys.LATEST, decide, f"append of catalog version {update.version}", version=update.version,
                          judge=judge)

    def _is_ours(self, key: bytes, record: bytes) -> bool:
        found = self.records.get(key)
        return found is not None and found[0] == record

    def _put(self, key: bytes, record: bytes) -> Put:
        return Put(self.partition, key, record)

    def _token(self) -> str:
        return f"{self._rng.getrandbits(4 * _TOKEN_CHARS):0{_TOKEN_CHARS}x}"

    def _check_size(self, key: bytes, record: bytes, advice: str) -> None:
        if len(record) > self._max_record_bytes:
            raise RecordTooLarge(key=key.decode(), size=len(record), limit=self._max_record_bytes, advice=advice)

    # --- snapshots ----------------------------------------------------------------------------------------------

    def save_snapshot(self, catalog: Catalog, *, term: int | None = None, conditions: Sequence[Condition] = (),
                      fence: CommitFence | None = None,
                      pace: Callable[[int], object] | None = None) -> SnapshotSaved | AlreadyCompacted:
        """Cut the log: `catalog` becomes its first record, everything below goes. One conditional multi-operation.

        A snapshot of more than `chunk_bytes` is first written in pieces, in a private place, and read back; the same
        multi-operation then requires them to be there.

        Args:
            catalog: the version to cut to.
            term: the coordinator's term; recorded, and refused if a later one is. `None`: no term is looked at.
            conditions: states of keys on which the decision was based: epochs of pins, topology, assignments, ...
            fence: entered around each attempt of the multi-operation.
            pace: called with a number of bytes before they are written; what it raises ends the attempt.

        Raises:
            SnapshotAboveLatest: the log does not reach this version, or is empty.
            StaleTerm: a coordinator of a later term has written.
            CatalogMoved: one of the conditions does not hold any more.
            RecordMissing: a piece of the snapshot that was just written was deleted.
            RecordDamaged: it reads otherwise than it was written; nothing was cut.
            RecordTooLarge: the snapshot exceeds the limit, or has more pieces than the store changes in one step.
            RetriesExhausted: every attempt lost; nothing was cut.
            OutcomeUnknown: the store did not say whether it wrote, and it could not be seen, or the log was cut further
                meanwhile.
        """
        state = self.state()
        if state is None or catalog.version > state.latest:
            raise SnapshotAboveLatest(version=catalog.version, latest=0 if state is None else state.latest)
        if catalog.version <= state.earliest:
            return AlreadyCompacted(state.earliest)
        cut = _Snapshot(catalog.version, term, tuple(conditions), fence, pace or (lambda _: None))
        writer = self._token()
        key = keys.update_key(catalog.version)
        payload = encode_catalog(catalog, writer)
        record, chunks, staged = self._staged(key, cut, writer, payload)
        if chunks:
            # Before the updates below go: the store has what it was given.
            self.records.decode(catalog.version, key, record)
        cut.pace(len(key) + len(record))
        unknown: OutcomeUnknown | None = None
        for _ in range(MAX_ATTEMPTS):
            earliest, predicate = self._seen(self._earliest, unknown)
            if earliest is None:
                raise RecordMissing(key="earliest", version=state.earliest, expected="the mark that was just there")
            if earliest[0] >= catalog.version:
                if self._seen(lambda: self._is_ours(key, record), unknown):
                    return SnapshotSaved(version=catalog.version, previous=state.earliest,
                                         bytes_written=staged + len(key) + len(record), deleted=0)
                if unknown is not None and earliest[0] > catalog.version:
                    raise unknown  # another cut has replaced what says whether this one was there
                return AlreadyCompacted(earliest[0])
            try:
                saved = self._try_to_cut(cut, record, chunks, (earliest[0], predicate))
            except OutcomeUnknown as error:
                unknown = _unknown(error, f"snapshot of catalog version {catalog.version}")
                continue
            except CompactlibError as error:
                # It failed for certain, but an earlier one may still have happened.
                raise unknown or error from error
            if saved is not None:
                return attrs.evolve(saved, bytes_written=saved.bytes_written + staged)
        raise unknown or RetriesExhausted(attempts=MAX_ATTEMPTS, version=catalog.version)

    def _try_to_cut(self, cut: _Snapshot, record: bytes, chunks: Sequence[bytes],
                    earliest: tuple[int, Predicate | None]) -> SnapshotSaved | None:
        """One attempt; `None` if another writer was first."""
        conditions, puts = self._of_term(cut)
        conditions += [Condition(self.partition, chunk, EXISTS) for chunk in chunks]
        conditions.append(Condition(self.partition, keys.EARLIEST, earliest[1]))
        puts += [self._put(keys.update_key(cut.version), record), self._put(keys.EARLIEST, earliest_mark(cut.version))]
        room = self.store.limits.max_transact - len(conditions) - len(puts)
        doomed = range(earliest[0], min(cut.version, earliest[0] + room))
        with nullcontext() if cut.fence is None else cut.fence.guard():
            try:
                self.store.transact(conditions, puts, [Delete(self.partition, keys.update_key(one)) for one in doomed])
            except PredicateFailed as error:
                self._explain_loss(error, cut)
                return None
        return SnapshotSaved(version=cut.version, previous=earliest[0], deleted=len(doomed),
                             bytes_written=sum(len(put.key) + len(put.value) for put in puts))

    def _staged(self, key: bytes, cut: _Snapshot, writer: str, payload: bytes) -> tuple[bytes, Sequence[bytes], int]:
        """The snapshot's record, the keys of its pieces, which are written, and how many bytes those took."""
        record, pieces = self._framed(key, cut.version, writer, payload)

        def paced() -> Iterator[tuple[bytes, bytes]]:
            for chunk, piece in pieces.items():
                cut.pace(len(chunk) + len(piece))
                yield chunk, piece

        put_pieces(self.store, self.partition, paced())
        return record, tuple(pieces), sum(len(chunk) + len(piece) for chunk, piece in pieces.items())

    def snapshot_bytes(self, catalog: Catalog) -> tuple[int, bool]:
        """How many bytes a snapshot of this version takes in the store, with its keys; and whether that is exact.

        That of a split one is not: its record holds a checksum in decimal, of a token that is drawn when it is written.

        Raises:
            RecordTooLarge: as `save_snapshot`.
        """
        key, writer = keys.update_key(catalog.version), "0" * _TOKEN_CHARS
        record, pieces = self._framed(key, catalog.version, writer, encode_catalog(catalog, writer))
        size = len(key) + len(record) + sum(len(chunk) + len(piece) for chunk, piece in pieces.items())
        return size, not pieces

    def _framed(self, key: bytes, version: int, writer: str, payload: bytes) -> tuple[bytes, Mapping[bytes, bytes]]:
        """A snapshot as it is stored: its record, and its pieces by key if it has to be split.

        Raises:
            RecordTooLarge: it exceeds the limit, or has more pieces than the store changes in one step.
        """
        self._check_size(key, payload, "a snapshot holds the whole catalog: raise max_record_bytes of the log")
        if len(payload) <= self._chunk_bytes:
            return seal(key, RecordType.SNAPSHOT, payload), {}
        parts = [payload[at:at + self._chunk_bytes] for at in range(0, len(payload), self._chunk_bytes)]
        limit = self.store.limits.max_transact - 8
        if len(parts) > limit:
            raise RecordTooLarge(key=key.decode(), size=len(payload), limit=limit * self._chunk_bytes,
                                 advice=f"the store takes {limit} pieces in one step: raise chunk_bytes of the log")
        chunks = [keys.chunk_key(version, writer, number) for number in range(len(parts))]
        fields = {"version": version, "writer": writer, "chunks": len(parts), "bytes": len(payload),
                  "crc": crc32(payload)}
        return seal(key, RecordType.CHUNKED_SNAPSHOT, to_json(fields)), {
            chunk: seal(chunk, RecordType.CHUNK, part) for chunk, part in zip(chunks, parts, strict=True)}

    def _of_term(self, cut: _Snapshot) -> tuple[list[Condition], list[Put]]:
        conditions = list(cut.conditions)
        if cut.term is None:
            return conditions, []
        current, predicate = self.term()
        if cut.term < current:
            raise StaleTerm(term=cut.term, current=current)
        conditions.append(Condition(self.partition, keys.TERM, predicate))
        return conditions, [] if cut.term == current else [self._put(keys.TERM, term_mark(cut.term))]

    def _explain_loss(self, error: PredicateFailed, cut: _Snapshot) -> None:
        for condition in cut.conditions:
            if (condition.partition, condition.key) == (error.partition, error.key):
                raise CatalogMoved(what=f"{error.key!r} has changed since", target=cut.version) from error
        if error.partition == self.partition and error.key.startswith(keys.CHUNKS):
            state = self.state()
            if state is not None and state.earliest >= cut.version:
                return  # another cut was first, and has removed them
            raise RecordMissing(key=error.key.decode(), version=cut.version,
                                expected="a piece of the snapshot, just written") from error


def _latest_in(found: Versioned | None) -> int | None:
    if found is None:
        return None
    (version,) = unseal_fields(keys.LATEST, found.value, RecordType.LATEST, "version")
    return int(version)


def earliest_mark(version: int) -> bytes:
    """The record that says that the log was cut to a version."""
    return seal_fields(keys.EARLIEST, RecordType.EARLIEST, {"version": version, "compacted": True})


def term_mark(term: int) -> bytes:
    """The record of the term of the last coordinator that cut the log."""
    return seal_fields(keys.TERM, RecordType.TERM, {"term": term})


def _unknown(error: OutcomeUnknown, what: str) -> OutcomeUnknown:
    """The store's answer, translated to what it means here."""
    named = OutcomeUnknown(operation=what, path=error.path, detail=f"{error.operation}: {error.detail}")
    named.__cause__ = error
    return named
