# SPDX-License-Identifier: Apache-2.0
"""`SnapshotStore`: the last snapshot of a state machine in a key-value store, replaced as a whole.

Saving a snapshot writes its chunks under new keys, reads them back, moves the head to it by compare-and-set, and
deletes the chunks of lower heads. The head has the term of the log's owner and the index of the last command, and only
ascends: a late former owner is refused. The keys of chunks begin with the same two numbers, so that an owner deletes
only chunks to which no later head can refer. A crash leaves the old snapshot in force, and chunks that the next
snapshot deletes. Keys and records: `docs/formats/command-log.md`.
"""

from __future__ import annotations

import random
from itertools import takewhile

import attrs

from compactlib.clock import Clock
from compactlib.errors import CorruptData, Stale
from compactlib.files.checksum import crc32
from compactlib.kv.batches import change_many
from compactlib.kv.cell import Cell
from compactlib.kv.store import KVStore

_HEAD = b"head"
_CHUNKS = b"chunk/"
_CHUNK_BYTES = 256 << 10


@attrs.frozen
class Snapshot:
    """A snapshot.

    Attributes:
        index: the last command that it covers.
        data: the state machine's bytes.
    """

    index: int
    data: bytes


@attrs.frozen
class SnapshotHead:
    """The record of the snapshot in force.

    Attributes:
        term: the term of the log's owner that wrote it.
        index: the last command that it covers.
        id: a part of its chunks' keys, by which two snapshots of the same term and index have different chunks.
        size_bytes: the bytes of all chunks.
        chunks: their number.
        checksum: CRC-32 of all chunks together.
    """

    term: int
    index: int
    id: str
    size_bytes: int
    chunks: int
    checksum: int

    @property
    def order(self) -> bytes:
        """The prefix of the chunk keys of every snapshot of its term and index; prefixes ascend by these."""
        return b"%s%016x/%016x/" % (_CHUNKS, self.term, self.index)

    def chunk_keys(self) -> list[bytes]:
        """Return the keys of its chunks."""
        return [b"%s%s/%08x" % (self.order, self.id.encode(), number) for number in range(self.chunks)]


class SnapshotStore:
    """Stores the last snapshot in a partition of a store. Threads may share it.

    Args:
        store: the snapshot's store; stays open.
        partition: a partition for this object alone.
        clock: the clock for the waits between reads after a write without an answer.
        rng: draws the ids of snapshots and writes; give each process its own seed.
    """

    def __init__(self, store: KVStore, partition: bytes = b"snapshots", *, clock: Clock | None = None,
                 rng: random.Random | None = None) -> None:
        self._store = store
        self._partition = partition
        self._rng: random.Random = random.SystemRandom() if rng is None else rng
        self._cell: Cell[SnapshotHead] = Cell(store, partition, _HEAD, SnapshotHead, clock=clock, rng=rng)

    def load(self) -> Snapshot | None:
        """Return the snapshot in force. O(size).

        Raises:
            CorruptData: the head or a chunk is missing or damaged.
            Unsupported: another release wrote it.
        """
        head = self._cell.read()
        while head is not None:
            try:
                return Snapshot(head.index, self._read(head))
            except CorruptData:
                # A later snapshot may have replaced it, and its chunks may be deleted.
                before, head = head, self._cell.read()
                if head == before:
                    raise
        return None

    def save(self, term: int, index: int, data: bytes) -> None:
        """Replace the snapshot in force, after the new one was read back. O(size).

        Args:
            term: the term of the log's owner, which calls this.
            index: the last command that the snapshot covers.
            data: the state machine's bytes.

        Raises:
            Stale: the snapshot in force is of a later term, or covers more commands; nothing was changed.
            CorruptData: the bytes read back differ; nothing was changed, call again.
            OutcomeUnknown: the snapshot may be in force, now or later; call again.
            CompactlibError: of the store; nothing was changed.
        """
        step = min(_CHUNK_BYTES, self._store.limits.max_value_bytes)
        starts = range(0, len(data), step)
        head = SnapshotHead(term, index, f"{self._rng.getrandbits(64):016x}", len(data), len(starts), crc32(data))
        self._require_higher(self._cell.read(), head)
        change_many(self._store, self._partition, {
            key: data[start:start + step] for key, start in zip(head.chunk_keys(), starts, strict=True)})
        try:
            self._read(head)
        except CorruptData:
            self._require_higher(self._cell.read(), head)  # deleted by the owner of a later snapshot
            raise

        def raised(before: SnapshotHead | None) -> SnapshotHead:
            self._require_higher(before, head)
            return head

        self._cell.update(raised, operation=f"a snapshot up to command {index}")

    @staticmethod
    def _require_higher(before: SnapshotHead | None, head: SnapshotHead) -> None:
        if before is not None and (before.term, before.index) > (head.term, head.index):
            raise Stale(f"a snapshot of term {head.term} up to command {head.index} was given, the one in force is of "
                        f"term {before.term} up to command {before.index}; another owner has written it, open the "
                        f"log again")

    def delete_leftovers(self) -> None:
        """Delete the chunks of earlier snapshots, also of those that never came into force.

        Chunks of other snapshots of the same command stay: one of these may come into force now.

        Raises:
            CompactlibError: of the store; call again, or after the next snapshot.
        """
        head = self._cell.read()
        if head is not None:
            with self._store.scan(self._partition, prefix=_CHUNKS, page_size=1, keys_only=True) as entries:
                old = takewhile(lambda key: key < head.order, (entry.key for entry in entries))
                change_many(self._store, self._partition, dict.fromkeys(old))

    def _read(self, head: SnapshotHead) -> bytes:
        cells = [(self._partition, key) for key in head.chunk_keys()]
        found = self._store.get_many(cells)
        data = b"".join(found[cell].value for cell in cells if cell in found)
        if len(data) != head.size_bytes or crc32(data) != head.checksum:
            raise CorruptData(path=f"snapshot in partition {self._partition!r}", offset=0,
                              expected=f"{head.size_bytes} bytes with CRC {head.checksum:#010x}",
                              found=f"{len(data)} bytes with CRC {crc32(data):#010x}")
        return data

    def __repr__(self) -> str:
        return f"SnapshotStore({self._partition!r})"
