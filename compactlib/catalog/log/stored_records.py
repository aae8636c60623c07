# SPDX-License-Identifier: Apache-2.0
"""`StoredRecords`: the records of the update log as its store holds them, by key and by version."""

from __future__ import annotations

from collections.abc import Iterator

from compactlib.catalog.errors import RecordDamaged, RecordMissing
from compactlib.catalog.log import keys
from compactlib.catalog.log.records import RecordType, Update, decode_catalog, decode_update, fields_of, unseal
from compactlib.catalog.schema.catalog import Catalog
from compactlib.files.checksum import crc32
from compactlib.kv import KeyNotFound, KVStore
from compactlib.kv.batches import get_pieces
from compactlib.kv.store import Predicate

_FEW = 4
"""Records in the first page of those who expect to need no more; pages grow from there."""


class StoredRecords:
    """What lies in one partition of a store. Keeps nothing in memory; any thread may call it.

    Args:
        store: where it lies.
        partition: the store's partition; one catalog each.
    """

    def __init__(self, store: KVStore, partition: bytes) -> None:
        self._store = store
        self._partition = partition

    def get(self, key: bytes) -> tuple[bytes, Predicate] | None:
        """The record under a key, and the state of the key; `None` if there is none."""
        try:
            found = self._store.get(self._partition, key)
        except KeyNotFound:
            return None
        return found.value, found.predicate

    def from_version(self, version: int, *, few: bool = False) -> Iterator[tuple[int, bytes, bytes]]:
        """The records of updates and snapshots from this version on, with version and key.

        Args:
            version: the first one that is wanted.
            few: the caller expects to stop soon.

        Raises:
            RecordDamaged: a key among them is no update's.
        """
        with self._store.scan(self._partition, keys.update_key(max(version, 0)), prefix=keys.UPDATES,
                              page_size=_FEW if few else None) as entries:
            for entry in entries:
                found = keys.version_of(entry.key)
                if found is None:
                    raise RecordDamaged(key=entry.key.decode("ascii", "backslashreplace"), offset=0,
                                        expected="an update's key", found="another name")
                yield found, entry.key, entry.value

    def decode(self, version: int, key: bytes, record: bytes) -> Update | Catalog:
        """What a version's record says; reads the pieces of a snapshot that was split.

        Raises:
            RecordMissing: a piece is not there.
            RecordDamaged, RecordTooNew: the record or a piece cannot be read.
        """
        kind, payload = unseal(key, record, RecordType.UPDATE, RecordType.SNAPSHOT, RecordType.CHUNKED_SNAPSHOT)
        if kind is RecordType.UPDATE:
            found: Update | Catalog = decode_update(key, payload)
        else:
            found = decode_catalog(key, payload if kind is RecordType.SNAPSHOT else self._joined(key, payload))[0]
        if found.version != version:
            raise RecordDamaged(key=key.decode(), offset=0, expected=f"version {version}", found=str(found.version))
        return found

    def _joined(self, key: bytes, payload: bytes) -> bytes:
        version, writer, count, size, checksum = fields_of(key, payload, "version", "writer", "chunks", "bytes", "crc")
        chunks = [keys.chunk_key(version, writer, number) for number in range(count)]
        pieces = []
        for number, (chunk, record) in enumerate(zip(chunks, get_pieces(self._store, self._partition, chunks),
                                                     strict=True)):
            if record is None:
                raise RecordMissing(key=chunk.decode(), version=version, expected=f"piece {number} of {count}")
            pieces.append(unseal(chunk, record, RecordType.CHUNK)[1])
        joined = b"".join(pieces)
        if len(joined) != size or crc32(joined) != checksum:
            raise RecordDamaged(key=key.decode(), offset=0, expected=f"{size} bytes with CRC {checksum:#010x}",
                                found=f"{len(joined)} bytes with CRC {crc32(joined):#010x}")
        return joined
