"""`SnapshotStore`: the last snapshot of a state machine in a key-value store, whole or not at all.

A snapshot is written in chunks under its own index; then one compare-and-set moves the head from the one before to it.
A crash leaves the old snapshot in force, and chunks that nobody names, which the next snapshot removes. Nothing here
needs more than compare-and-set of one key. Keys and records: `docs/formats/command-log.md`.
"""

from __future__ import annotations

import struct

import attrs

from compactlib.checksum import crc32
from compactlib.errors import CorruptData, InvalidInput, Unsupported
from compactlib.kv import KeyNotFound, KVStore, OutcomeUnknown, Predicate

_HEAD_KEY = b"head"
_MAGIC = b"CLSNAP\0\1"
_HEAD = struct.Struct(">8sQQQI")
_CHUNK_BYTES = 256 << 10


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
    """Which snapshot is in force, and what its chunks must add up to."""

    index: int
    size_bytes: int
    chunks: int
    checksum: int

    def encode(self) -> bytes:
        return _HEAD.pack(_MAGIC, self.index, self.size_bytes, self.chunks, self.checksum)


class SnapshotStore:
    """Keeps one snapshot in one partition of a store. One process at a time writes it.

    Args:
        kv: the store; stays open when this object is dropped.
        partition: of its own.

    Raises:
        CorruptData: what is stored there is no snapshot, or a damaged one.
        Unsupported: it was written by a later release.
    """

    def __init__(self, kv: KVStore, partition: bytes) -> None:
        self._kv = kv
        self._partition = partition
        self._head, self._predicate = self._read_head()

    @property
    def index(self) -> int:
        """The last command that the snapshot covers; 0 if there is none."""
        return 0 if self._head is None else self._head.index

    def load(self) -> Snapshot | None:
        """The snapshot in force. O(size).

        Raises:
            CorruptData: a chunk is missing or damaged.
        """
        if self._head is None:
            return None
        head, pieces = self._head, []
        for number in range(head.chunks):
            try:
                pieces.append(self._kv.get(self._partition, _chunk_key(head.index, number)).value)
            except KeyNotFound:
                raise self._corrupt(f"{head.chunks} chunks", f"no chunk {number}") from None
        data = b"".join(pieces)
        if len(data) != head.size_bytes or crc32(data) != head.checksum:
            raise self._corrupt(f"{head.size_bytes} bytes with CRC {head.checksum:#010x}",
                                f"{len(data)} bytes with CRC {crc32(data):#010x}")
        return Snapshot(head.index, data)

    def save(self, index: int, data: bytes) -> None:
        """Put a snapshot in the place of the last one. O(size).

        Raises:
            InvalidInput: the snapshot in force covers more.
            PredicateFailed: somebody else wrote a snapshot here; nothing was changed.
        """
        if index <= self.index:
            raise InvalidInput(f"a snapshot up to command {index} was given, the one in force covers {self.index}; "
                               f"snapshots only move forward")
        step = min(_CHUNK_BYTES, self._kv.limits.max_value_bytes)
        chunks = [data[start:start + step] for start in range(0, len(data), step)]
        for number, chunk in enumerate(chunks):
            self._kv.set(self._partition, _chunk_key(index, number), chunk)
        head = _Head(index, len(data), len(chunks), crc32(data))
        try:
            self._kv.set_if(self._partition, _HEAD_KEY, head.encode(), self._predicate)
        except OutcomeUnknown:
            if self._read_head()[0] != head:
                raise
        self._head, self._predicate = self._read_head()
        self._remove_others(index)

    def audit(self) -> None:
        """Read the snapshot, and check that the store's head is the one that was written last.

        Raises:
            CorruptData: it is not, or the snapshot is damaged.
        """
        self.load()
        head, _ = self._read_head()
        if head != self._head:
            raise self._corrupt(repr(self._head), repr(head))

    def _remove_others(self, index: int) -> None:
        with self._kv.scan(self._partition, prefix=b"chunk/") as entries:
            gone = [entry.key for entry in entries if not entry.key.startswith(_chunks_of(index))]
        for key in gone:
            self._kv.delete(self._partition, key)

    def _read_head(self) -> tuple[_Head | None, Predicate | None]:
        try:
            found = self._kv.get(self._partition, _HEAD_KEY)
        except KeyNotFound:
            return None, None
        value = found.value
        if len(value) != _HEAD.size or value[:7] != _MAGIC[:7]:
            raise self._corrupt(f"a head of {_HEAD.size} bytes", repr(value[:40]))
        if value[7] != _MAGIC[7]:
            raise Unsupported(f"the snapshot in partition {self._partition!r} has format {value[7]}, this release "
                              f"knows {_MAGIC[7]}; use the release that wrote it, or a later one")
        return _Head(*_HEAD.unpack(value)[1:]), found.predicate

    def _corrupt(self, expected: str, found: str) -> CorruptData:
        return CorruptData(path=f"snapshot in partition {self._partition!r}", offset=0, expected=expected, found=found)

    def __repr__(self) -> str:
        return f"SnapshotStore({self._partition!r}, up to command {self.index})"


def _chunks_of(index: int) -> bytes:
    return b"chunk/%016x/" % index


def _chunk_key(index: int, number: int) -> bytes:
    return _chunks_of(index) + b"%08x" % number
