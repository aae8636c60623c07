"""Reading the update log: its marks, its records, and the proof that none is missing."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from compactlib.arguments import refuses_misfits
from compactlib.catalog.errors import RecordDamaged, RecordMissing
from compactlib.catalog.log import keys
from compactlib.catalog.log.log_model import LogState
from compactlib.catalog.log.records import (
    RecordType,
    Update,
    decode_catalog,
    decode_update,
    fields_of,
    unseal,
    unseal_fields,
)
from compactlib.catalog.schema.catalog import Catalog
from compactlib.files.checksum import crc32
from compactlib.kv import KeyNotFound, KVStore, Predicate

_FEW = 4
"""Records in the first page of those who expect to need no more; pages grow from there."""


class LogReader:
    """Reads the log in one partition of a store. Holds no state of its own; any thread may call it.

    Args:
        store: where it lies.
        partition: the store's partition; one catalog each.
    """

    def __init__(self, store: KVStore, partition: bytes = b"catalog") -> None:
        self.store = store
        self.partition = partition

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
            stray = next(iter(self._updates_from(0, few=True)), None)
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
        expected = first
        for version, key, record in islice(self._updates_from(first), last - first + 1):
            if version != expected:
                break
            yield self._decode(version, key, record)
            expected += 1
        if expected <= last:
            raise RecordMissing(key=keys.update_key(expected).decode(), version=expected,
                                expected=f"versions {first} to {last} without a gap")

    @refuses_misfits
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

    def _decode(self, version: int, key: bytes, record: bytes) -> Update | Catalog:
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
        pieces = []
        for number in range(count):
            chunk = keys.chunk_key(version, writer, number)
            found = self._get(chunk)
            if found is None:
                raise RecordMissing(key=chunk.decode(), version=version, expected=f"piece {number} of {count}")
            pieces.append(unseal(chunk, found[0], RecordType.CHUNK)[1])
        joined = b"".join(pieces)
        if len(joined) != size or crc32(joined) != checksum:
            raise RecordDamaged(key=key.decode(), offset=0, expected=f"{size} bytes with CRC {checksum:#010x}",
                                found=f"{len(joined)} bytes with CRC {crc32(joined):#010x}")
        return joined

    @refuses_misfits
    def updates_above(self, version: int) -> int | None:
        """The lowest version above this one that has a record; `None` if there is none. For recovery and audits."""
        found = next(iter(self._updates_from(version + 1, few=True)), None)
        return None if found is None else found[0]

    def _updates_from(self, version: int, *, few: bool = False) -> Iterator[tuple[int, bytes, bytes]]:
        """The records from this version on, with version and key; `few`: the caller expects to stop soon."""
        with self.store.scan(self.partition, keys.update_key(max(version, 0)), prefix=keys.UPDATES,
                             page_size=_FEW if few else None) as entries:
            for entry in entries:
                found = keys.version_of(entry.key)
                if found is None:
                    raise RecordDamaged(key=entry.key.decode("ascii", "backslashreplace"), offset=0,
                                        expected="an update's key", found="another name")
                yield found, entry.key, entry.value

    def _get(self, key: bytes) -> tuple[bytes, Predicate] | None:
        try:
            found = self.store.get(self.partition, key)
        except KeyNotFound:
            return None
        return found.value, found.predicate

    def term(self) -> tuple[int, Predicate | None]:
        """The term of the last coordinator that cut the log, 0 for none; and the state of its mark."""
        found = self._get(keys.TERM)
        if found is None:
            return 0, None
        (current,) = unseal_fields(keys.TERM, found[0], RecordType.TERM, "term")
        return current, found[1]

    def _latest(self) -> tuple[int | None, Predicate | None]:
        found = self._get(keys.LATEST)
        if found is None:
            return None, None
        (version,) = unseal_fields(keys.LATEST, found[0], RecordType.LATEST, "version")
        return version, found[1]

    def _earliest(self) -> tuple[tuple[int, bool] | None, Predicate | None]:
        found = self._get(keys.EARLIEST)
        if found is None:
            return None, None
        version, compacted = unseal_fields(keys.EARLIEST, found[0], RecordType.EARLIEST, "version", "compacted")
        return (version, compacted), found[1]
