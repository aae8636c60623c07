# SPDX-License-Identifier: Apache-2.0
"""A fence in a key-value store: for workers on any machine, and without locks (`fence.py` says what it promises).

The highest token and the committed value of a resource are one cell, so that one compare-and-set both checks the token
and commits. A token admitted in between has changed the cell, and the compare-and-set fails.

The floor is a cell of its own, raised before records below it are removed, and read after a record is: who finds none
knows why. If it rises later, the record is removed, and the compare-and-set fails. A commit that finds no record makes
one, and reads the floor once more: the record may be missing because it was removed, and then the floor has risen.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import TypeVar

from compactlib.clock import Clock
from compactlib.errors import Busy, CompactlibError, CorruptData, Unsupported
from compactlib.kv import Condition, Delete, KeyNotFound, KVEntry, KVStore, OutcomeUnknown, PredicateFailed
from compactlib.kv.store import Predicate
from compactlib.runtime.look import look_until_seen
from compactlib.scheduler.errors import FencedOff
from compactlib.scheduler.fences.fence import (
    Admission,
    Commitment,
    check_admission,
    check_commit,
    check_names,
    check_token,
    checked_value,
    decode_record,
    encode_record,
)

_FLOOR = b"floor"
_RESOURCE = b"resource/"
_MAX_ATTEMPTS = 100

SeenT = TypeVar("SeenT")


class KVFence:
    """A `Fence` whose records are cells of a `KVStore`; as durable and as shared as the store.

    An admission or commit costs three requests, the first of a resource four, and three more for each time that
    another writer was faster. A write that got no answer is looked up, with pauses where the store is away. Beside what
    `Fence` names, every method raises what the store raises, which then has changed nothing; except for
    `OutcomeUnknown`, after which it is not known whether this call has admitted or committed, and may be repeated.

    Args:
        store: where.
        partition: of the store, for this fence alone.
        clock: for the pauses between looks.
        rng: varies them.
    """

    def __init__(self, store: KVStore, *, partition: bytes = b"fences", clock: Clock | None = None,
                 rng: random.Random | None = None) -> None:
        self._store = store
        self._partition = partition
        self._clock = clock
        self._rng = rng

    def admit(self, resource: str, token: int) -> Admission:
        """See `Fence.admit`."""
        check_names(resource, token)
        return self._change(resource, token, None)

    def commit(self, resource: str, token: int, value: bytes) -> Admission:
        """See `Fence.commit`."""
        check_names(resource, token)
        return self._change(resource, token, checked_value(value))

    def committed(self, resource: str) -> Commitment | None:
        """See `Fence.committed`. One request."""
        check_names(resource, 0)
        record, _ = self._read(_RESOURCE + resource.encode())
        return None if record is None else record.committed

    def raise_floor(self, token: int) -> int:
        """See `Fence.raise_floor`. Reads every record; deletes as many as the store takes in one step, and by halves
        where a newer token came meanwhile. May be interrupted and called again.

        Raises:
            CorruptData, Unsupported: a record cannot be read; the others are done with.
        """
        check_token(token)
        floor = self._raise_floor(token)
        outdated: list[KVEntry] = []
        wrong: list[Exception] = []
        with self._store.scan(self._partition, prefix=_RESOURCE) as entries:
            for entry in entries:
                try:
                    record = decode_record(entry.value, self._place(entry.key))
                except (CorruptData, Unsupported) as error:
                    wrong.append(error)
                    continue
                if record.token < floor:
                    outdated.append(entry)
        at_once = max(1, self._store.limits.max_transact // 2)
        forgotten = sum(self._forget(outdated[at:at + at_once]) for at in range(0, len(outdated), at_once))
        if wrong:
            raise wrong[0]
        return forgotten

    def _forget(self, entries: Sequence[KVEntry]) -> int:
        """Delete records that are as they were found; gives how many."""
        try:
            if len(entries) == 1:
                self._store.delete_if(self._partition, entries[0].key, entries[0].predicate)
            else:
                self._store.transact([Condition(self._partition, entry.key, entry.predicate) for entry in entries],
                                     deletes=[Delete(self._partition, entry.key) for entry in entries])
        except PredicateFailed:
            # A newer token came: that record is wanted again, the others are not.
            half = len(entries) // 2
            return self._forget(entries[:half]) + self._forget(entries[half:]) if half else 0
        return len(entries)

    def _change(self, resource: str, token: int, value: bytes | None) -> Admission:
        """Admit (without a value) or commit, against others who do the same."""
        key = _RESOURCE + resource.encode()
        unknown: OutcomeUnknown | None = None
        for _ in range(_MAX_ATTEMPTS):
            record, predicate, floor = self._seen(lambda: (*self._read(key), self._floor()), unknown)
            try:
                changed = (check_admission(resource, token, record, floor) if value is None
                           else check_commit(resource, token, value, record, floor))
            except FencedOff:
                if unknown is None or value is None:
                    raise
                return self._fenced_off_after(unknown, resource, Commitment(token, value), record)
            if changed == record:
                return changed
            try:
                if not self._write(key, changed, predicate):
                    continue
            except OutcomeUnknown as failed:
                # Reading again shows it; a write that is still under way fails against the next one, or the other way.
                unknown = failed
                continue
            except CompactlibError as error:
                # It failed for certain, but an earlier one may still have happened.
                raise unknown or error from error
            if record is None:
                # It was there, perhaps, and removed because the floor rose.
                written = OutcomeUnknown(operation="set_if", path=self._place(key),
                                         detail="the record was written, and the floor cannot be read")
                check_admission(resource, token, changed, self._seen(self._floor, written))
            return changed
        raise unknown or Busy(f"{resource!r} was changed by others {_MAX_ATTEMPTS} times in a row; wait and call again")

    @staticmethod
    def _fenced_off_after(unknown: OutcomeUnknown, resource: str, wanted: Commitment,
                          record: Admission | None) -> Admission:
        """The outcome of a commit without an answer, now that a higher token is there."""
        done = None if record is None else record.committed
        if done == wanted:
            return Admission(resource, wanted.token, done)
        if record is not None and record.token > wanted.token and (done is None or done.token < wanted.token):
            # The cell has changed without it: it was not carried out, and never will be.
            raise FencedOff(resource=resource, token=wanted.token, highest=record.token)
        raise unknown

    def _seen(self, look: Callable[[], SeenT], unknown: OutcomeUnknown | None) -> SeenT:
        """What `look` sees; as long as a write is unknown, whatever fails while looking leaves it so."""
        return look() if unknown is None else look_until_seen(look, unknown, clock=self._clock, rng=self._rng)

    def _write(self, key: bytes, record: Admission, predicate: Predicate | None) -> bool:
        """Whether this record was written, and not another writer's."""
        try:
            self._store.set_if(self._partition, key, encode_record(record), predicate)
        except PredicateFailed:
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
        unknown: OutcomeUnknown | None = None
        for _ in range(_MAX_ATTEMPTS):
            record, predicate = self._seen(lambda: self._read(_FLOOR), unknown)
            if record is not None and record.token >= token:
                return record.token
            try:
                if self._write(_FLOOR, Admission("", token, None), predicate):
                    return token
            except OutcomeUnknown as failed:
                unknown = failed
            except CompactlibError as error:
                raise unknown or error from error
        raise unknown or Busy(f"the floor was changed by others {_MAX_ATTEMPTS} times in a row; wait and call again")

    def _place(self, key: bytes) -> str:
        return f"key {key!r} of partition {self._partition!r}"

    def __repr__(self) -> str:
        return f"KVFence(partition {self._partition!r})"
