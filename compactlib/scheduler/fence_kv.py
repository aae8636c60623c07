"""A fence in a key-value store: for workers on any machine, and without locks (`fence.py` says what it promises).

The highest token and the committed value of a resource are one cell, so that one compare-and-set both checks the token
and commits. A token admitted in between has changed the cell, and the compare-and-set fails.

The floor is a cell of its own, raised before records below it are removed, and read before a record is. If it rises in
between, the record is removed, and the compare-and-set fails. Whoever finds no record makes one, and reads the floor
once more: the record may be missing because it was removed, and then the floor has risen.
"""

from __future__ import annotations

from compactlib.errors import Busy, CompactlibError
from compactlib.kv import KeyNotFound, KVStore, OutcomeUnknown, Predicate, PredicateFailed
from compactlib.scheduler.fence import (
    Admission,
    Commitment,
    audit_record,
    check_admission,
    check_commit,
    check_names,
    check_token,
    decode_record,
    encode_record,
)

_FLOOR = b"floor"
_RESOURCE = b"resource/"
_MAX_ATTEMPTS = 100


class KVFence:
    """A `Fence` whose records are cells of a `KVStore`; as durable and as shared as the store.

    An admission or commit costs three requests, the first of a resource four, and three more for each time that
    somebody else was faster. Beside what `Fence` names, every method raises what the store raises; after
    `OutcomeUnknown` a call may simply be repeated.

    Args:
        store: where.
        partition: of the store, for this fence alone.
    """

    def __init__(self, store: KVStore, *, partition: bytes = b"fences") -> None:
        self._store = store
        self._partition = partition

    def admit(self, resource: str, token: int) -> Admission:
        """See `Fence.admit`."""
        check_names(resource, token)
        return self._change(resource, token, None)

    def commit(self, resource: str, token: int, value: bytes) -> Admission:
        """See `Fence.commit`."""
        check_names(resource, token)
        return self._change(resource, token, bytes(value))

    def committed(self, resource: str) -> Commitment | None:
        """See `Fence.committed`. One request."""
        check_names(resource, 0)
        record, _ = self._read(_RESOURCE + resource.encode())
        return None if record is None else record.committed

    def raise_floor(self, token: int) -> int:
        """See `Fence.raise_floor`. Reads every record, deletes one at a time; may be interrupted and called again."""
        check_token(token)
        floor = self._raise_floor(token)
        forgotten = 0
        with self._store.scan(self._partition, prefix=_RESOURCE) as entries:
            for entry in entries:
                if decode_record(entry.value, self._place(entry.key)).token < floor:
                    try:
                        self._store.delete_if(self._partition, entry.key, entry.predicate)
                        forgotten += 1
                    except PredicateFailed:
                        pass  # A newer token came: the record is wanted again.
        return forgotten

    def audit(self) -> None:
        """See `Fence.audit`. Reads every record.

        Raises:
            CompactlibError: a record contradicts itself, or lies under another resource's key.
            CorruptData: a record is damaged.
        """
        with self._store.scan(self._partition, prefix=_RESOURCE) as entries:
            for entry in entries:
                record = decode_record(entry.value, self._place(entry.key))
                # A record below the floor is one that the removal has not come to yet.
                audit_record(record, 0)
                if _RESOURCE + record.resource.encode() != entry.key:
                    raise CompactlibError(f"{self._place(entry.key)} holds the record of {record.resource!r}")

    def _change(self, resource: str, token: int, value: bytes | None) -> Admission:
        """Admit (without a value) or commit, against others who do the same."""
        key = _RESOURCE + resource.encode()
        for attempt in range(_MAX_ATTEMPTS):
            floor = self._floor()
            record, predicate = self._read(key)
            changed = (check_admission(resource, token, record, floor) if value is None
                       else check_commit(resource, token, value, record, floor))
            if changed != record and not self._write(key, changed, predicate, last=attempt == _MAX_ATTEMPTS - 1):
                continue
            if record is None:
                check_admission(resource, token, changed, self._floor())
            return changed
        raise Busy(f"{resource!r} was changed by others {_MAX_ATTEMPTS} times in a row; wait and call again")

    def _write(self, key: bytes, record: Admission, predicate: Predicate | None, *, last: bool) -> bool:
        """Whether it is certain that the record was written."""
        try:
            self._store.set_if(self._partition, key, encode_record(record), predicate)
        except PredicateFailed:
            return False
        except OutcomeUnknown:
            # Reading again tells, and until it does, a write that is still under way fails against the next one.
            if last:
                raise
            return False
        return True

    def _read(self, key: bytes) -> tuple[Admission | None, Predicate | None]:
        try:
            found = self._store.get(self._partition, key)
        except KeyNotFound:
            return None, None
        return decode_record(found.value, self._place(key)), found.predicate

    def _floor(self) -> int:
        record, _ = self._read(_FLOOR)
        return 0 if record is None else record.token

    def _raise_floor(self, token: int) -> int:
        for attempt in range(_MAX_ATTEMPTS):
            record, predicate = self._read(_FLOOR)
            if record is not None and record.token >= token:
                return record.token
            if self._write(_FLOOR, Admission("", token, None), predicate, last=attempt == _MAX_ATTEMPTS - 1):
                return token
        raise Busy(f"the floor was changed by others {_MAX_ATTEMPTS} times in a row; wait and call again")

    def _place(self, key: bytes) -> str:
        return f"key {key!r} of partition {self._partition!r}"

    def __repr__(self) -> str:
        return f"KVFence(partition {self._partition!r})"
