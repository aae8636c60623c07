# SPDX-License-Identifier: Apache-2.0
"""`SnapshotStore`: the last snapshot of a state machine in a key-value store, whole or not at all.

A snapshot is written in chunks under names of its own; then one compare-and-set moves the head from the one before to
it. A crash leaves the old snapshot in force, and chunks without a reference, which the next snapshot removes. Nothing
here needs more than compare-and-set of one key.

Each snapshot is a generation, one above that of the head it replaces, and its writer removes only what lies below:
a former owner that wakes up late can neither overwrite nor delete anything of a later one. Keys and records:
`docs/formats/command-log.md`.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator

import attrs

from compactlib._arguments import require_type
from compactlib.clock import Clock
from compactlib.errors import Busy, CompactlibError, CorruptData, InvalidInput
from compactlib.files.checksum import crc32
from compactlib.files.record_frame import RecordFrame
from compactlib.kv.batches import get_pieces, put_pieces
from compactlib.kv.errors import KeyNotFound, OutcomeUnknown, PredicateFailed
from compactlib.kv.store import Condition, Delete, KVStore, Predicate
from compactlib.runtime.look import look_until_seen
from compactlib.runtime.owned_lock import OwnedLock

HEAD_KEY = b"head"
_FRAME = RecordFrame("snapshot format", b"CLSNAP\0", 2, ">BQQQQQI")
_CHUNK_BYTES = 256 << 10
_MAX_LOADS = 10
_BYTES_A_COMMAND = 1024
"""Of a snapshot, so many bytes are written for each command that it covers anew, in some 50 us."""
_MAX_DELETES = 1000


@attrs.frozen
class Snapshot:
    """A snapshot that was read.

    Attributes:
        index: the last command that it covers.
        data: the state machine's own bytes.
    """

    index: int
    data: bytes


@attrs.frozen
class _Head:
    """Which snapshot is in force, and what its chunks must add up to.

    The nonce distinguishes what two processes wrote that replaced the same snapshot at once.
    """

    index: int
    generation: int
    nonce: int
    size_bytes: int
    chunks: int
    checksum: int

    def encode(self) -> bytes:
        return _FRAME.encode(*attrs.astuple(self))


class SnapshotStore:
    """Keeps one snapshot in one partition of a store. Any thread may call any method; one process at a time writes.

    Args:
        kv: the store; stays open when this object is dropped.
        partition: of it, the key `head` and all that begin with `chunk/`.
        clock: for the pauses between looks after a write that got no answer.
        rng: distinguishes two processes that write at once; give each its own seed.

    Attributes:
        cleanup_error: what kept older chunks from being removed after the last `save`; the next one tries again.

    Raises:
        CorruptData: what is stored there is no snapshot, or a damaged one.
        Unsupported: it was written by another release.
    """

    def __init__(self, kv: KVStore, partition: bytes, *, clock: Clock | None = None,
                 rng: random.Random | None = None) -> None:
        self._kv = kv
        self._partition = partition
        self._clock = clock
        self._rng = random.Random() if rng is None else rng
        self._lock = OwnedLock(f"the snapshots in partition {partition!r}")
        # Heads of which it is not known yet whether they are in force, or will be.
        self._unsure: set[_Head] = set()
        self.cleanup_error: CompactlibError | None = None
        self._head, self._predicate = self._read_head()
        self._knows_predicate = True
        self._refused_index = 0

    @property
    def index(self) -> int:
        """The last command that the snapshot covers; 0 if there is none."""
        head = self._head
        return 0 if head is None else head.index

    def is_due(self, index: int, every: int) -> bool:
        """Whether command `index` is so far above the snapshot that it is time for the next one.

        That is after `every` commands, but of a large state after one for each KiB of it, so that what a snapshot costs
        is little for each command, however large the state is. Where the store refused the last one, it is tried again
        after an eighth of that.
        """
        head = self._head
        commands = max(every, 0 if head is None else head.size_bytes // _BYTES_A_COMMAND)
        return index - self.index >= commands and index - self._refused_index >= commands // 8

    def load(self) -> Snapshot | None:
        """The snapshot in force. O(size).

        Raises:
            CorruptData: a chunk is missing or damaged.
            Busy: another process writes snapshots faster than they can be read.
        """
        with self._lock:
            for _ in range(_MAX_LOADS):
                head = self._head
                try:
                    return self._read(head)
                except CorruptData:
                    # Or did another process write another one, and remove this one?
                    found, predicate = self._read_head()
                    if found == head:
                        raise
                    self._head, self._predicate, self._knows_predicate = found, predicate, True
            raise Busy(f"{_MAX_LOADS} snapshots in partition {self._partition!r} went while they were read; stop "
                       f"the one that writes them, or try again")

    def _read(self, head: _Head | None) -> Snapshot | None:
        if head is None:
            return None
        pieces = []
        for number, piece in enumerate(get_pieces(self._kv, self._partition, _chunk_keys(head))):
            if piece is None:
                raise self._corrupt(f"{head.chunks} chunks", f"no chunk {number}")
            pieces.append(piece)
        data = b"".join(pieces)
        if len(data) != head.size_bytes or crc32(data) != head.checksum:
            raise self._corrupt(f"{head.size_bytes} bytes with CRC {head.checksum:#010x}",
                                f"{len(data)} bytes with CRC {crc32(data):#010x}")
        return Snapshot(head.index, data)

    def save(self, index: int, data: bytes, *, replaces: Iterable[bytes] = ()) -> None:
        """Put a snapshot in the place of the last one, once it has been read back. O(size).

        Args:
            index: the last command that it covers.
            data: the state machine's own bytes.
            replaces: keys of the partition that are needed no more once it is in force; gone through then, and removed
                together with what lies below it.

        Raises:
            InvalidInput: the snapshot in force covers more.
            CorruptData: what was written reads otherwise; nothing was changed, and the next call writes it anew.
            PredicateFailed: another process wrote a snapshot here; nothing was changed.
            OutcomeUnknown: it may be in force, now or later; the next call finds out.
            Closed: this process is a fork of the one that made this object.
            CompactlibError: what the store raises; nothing was changed.
        """
        require_type("index", index, int, "a whole number")
        if not 0 <= index < 1 << 64:
            raise InvalidInput(f"index is {index}; give a command's, 0 to {(1 << 64) - 1}")
        require_type("data", data, bytes, "bytes")
        with self._lock:
            self._refused_index = index
            self._settle()
            try:
                head = self._replace(index, data)
            except PredicateFailed:
                before = self._head
                if not self._unsure:
                    raise
                self._settle()
                if self._head == before:
                    raise
                # It was one of this owner's own that came only now, whose answer was lost.
                head = self._replace(index, data)
            self._refused_index = 0
            try:
                self.cleanup_error = None
                self._clean_up(head, replaces)
            except CompactlibError as error:
                self.cleanup_error = error

    def _settle(self) -> None:
        """Know which of this owner's heads is in force, and by what it is replaced."""
        if self._knows_predicate and not self._unsure:
            return
        found, predicate = self._read_head()
        is_other = found != self._head
        if is_other and found not in self._unsure:
            raise PredicateFailed(partition=self._partition, key=HEAD_KEY)
        self._head, self._predicate, self._knows_predicate = found, predicate, True
        if is_other:
            self._unsure.clear()  # The others were to replace what this one has replaced.

    def _replace(self, index: int, data: bytes) -> _Head:
        if index < self.index:
            raise InvalidInput(f"a snapshot up to command {index} was given, the one in force covers {self.index}; "
                               f"snapshots only move forward")
        head = self._write_chunks(index, data)
        # Before what it covers goes: the store has what it was given.
        try:
            self._read(head)
        except CorruptData:
            if self._read_head()[0] != self._head:  # another owner has removed what it found below its own
                self._knows_predicate = False
                raise PredicateFailed(partition=self._partition, key=HEAD_KEY) from None
            raise
        self._switch(head)
        return head

    def _write_chunks(self, index: int, data: bytes) -> _Head:
        step = min(_CHUNK_BYTES, self._kv.limits.max_value_bytes)
        starts = range(0, len(data), step)
        generation = 1 if self._head is None else self._head.generation + 1
        head = _Head(index, generation, self._rng.getrandbits(63), len(data), len(starts), crc32(data))
        put_pieces(self._kv, self._partition, ((key, data[start:start + step]) for key, start
                                               in zip(_chunk_keys(head), starts, strict=True)))
        return head

    def _switch(self, head: _Head) -> None:
        self._unsure.add(head)
        try:
            self._kv.set_if(self._partition, HEAD_KEY, head.encode(), self._predicate)
        except OutcomeUnknown as unknown:
            found, _ = look_until_seen(self._read_head, unknown, clock=self._clock, rng=self._rng)
            if found != head:
                raise
        except CompactlibError as error:
            self._unsure.discard(head)
            if isinstance(error, PredicateFailed):
                self._knows_predicate = False
            raise
        self._knows_predicate = False
        self._head = head
        # Whatever else was sent was to replace the same head as this one, and can never be in force any more. Last: an
        # interrupt that comes before finds this one among what may be in force.
        self._unsure.clear()

    def audit(self) -> None:
        """Read the snapshot, and check that the store's head is the one that was written last.

        Raises:
            CorruptData: it is not, or the snapshot is damaged.
        """
        with self._lock:
            if self._unsure:
                self._settle()
            self._read(self._head)
            head, _ = self._read_head()
            if head != self._head:
                raise self._corrupt(repr(self._head), repr(head))

    def _clean_up(self, head: _Head, replaces: Iterable[bytes]) -> None:
        """Remove what lies below the head in force: older snapshots, those that lost against it, what it replaces."""
        found, predicate = self._read_head()
        if found != head or predicate is None:
            return  # another process's by now; the next snapshot finds out
        self._predicate, self._knows_predicate = predicate, True
        keys = [*self._leftovers(head), *replaces]
        most = min(self._kv.limits.max_transact - 1, _MAX_DELETES)
        if most < 1:
            for key in keys:
                self._kv.delete(self._partition, key)
            return
        condition = Condition(self._partition, HEAD_KEY, predicate)
        for start in range(0, len(keys), most):
            self._kv.transact([condition], (), [Delete(self._partition, key) for key in keys[start:start + most]])

    def _leftovers(self, head: _Head) -> Iterator[bytes]:
        below, own = b"chunk/%016x/" % head.generation, _chunks_of(head)
        with self._kv.scan(self._partition, prefix=b"chunk/", keys_only=True) as entries:
            for entry in entries:
                if entry.key.startswith(own):
                    entries.seek(own + b"\xff")
                elif entry.key < below or entry.key.startswith(below):
                    yield entry.key
                else:
                    break

    def _read_head(self) -> tuple[_Head | None, Predicate | None]:
        try:
            found = self._kv.get(self._partition, HEAD_KEY)
        except KeyNotFound:
            return None, None
        *fields, behind = _FRAME.decode(found.value, self._place)
        if behind:
            raise self._corrupt(f"a head of {_FRAME.size} bytes", f"{len(found.value)} bytes")
        return _Head(*fields), found.predicate

    @property
    def _place(self) -> str:
        return f"snapshot in partition {self._partition!r}"

    def _corrupt(self, expected: str, found: str) -> CorruptData:
        return CorruptData(path=self._place, offset=0, expected=expected, found=found)

    def __repr__(self) -> str:
        return f"SnapshotStore({self._partition!r}, up to command {self.index})"


def _chunks_of(head: _Head) -> bytes:
    return b"chunk/%016x/%016x/" % (head.generation, head.nonce)


def _chunk_keys(head: _Head) -> list[bytes]:
    return [_chunks_of(head) + b"%08x" % number for number in range(head.chunks)]
