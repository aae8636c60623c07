# SPDX-License-Identifier: Apache-2.0
"""`Cell`: a value in a key-value store that is changed by compare-and-set; and `swap`, the same for several keys.

A change reads, decides, and writes if the key has not changed; if another writer was first, it retries. The hard case
is a write without an answer: it may have happened, may still happen, or never will. A read then shows its fate:

1. *Happened*: the key has the value of the write, or a later value that lists the write among its earlier writes.
2. *Pending*: the key exists and is unchanged. The write may still arrive, so the next write has the same condition:
   only one of the two can succeed.
3. *Lost*: the key was changed by other writes since, so the condition of this write never holds again.
4. *Unknown*: the key was changed, and its value does not show whether the write was among the changes; or it is absent
   as before, and may have been created and deleted since. The call raises `OutcomeUnknown`, unless the change is
   idempotent, or the caller knows more of its keys (`judge`).

A `Cell` stores the ids of its last 16 writes with its value, so that case 4 is rare. Any error after a write without an
answer, before its outcome is known, becomes `OutcomeUnknown`: only a successful read proves that nothing was changed.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Generic, TypeAlias, TypeVar

import attrs

from compactlib._arguments import is_seconds, is_whole
from compactlib.clock import Clock, SystemClock
from compactlib.codec import JsonCodec
from compactlib.errors import BudgetSpent, Busy, CompactlibError, CorruptData, InvalidInput
from compactlib.files.checksum import crc32
from compactlib.files.record_frame import RecordFrame
from compactlib.kv.errors import OutcomeUnknown, PredicateFailed, SlowDown
from compactlib.kv.scan import KVEntry
from compactlib.kv.store import NOTHING, Address, Changes, Conditions, KVStore, Predicate

T = TypeVar("T")
ResultT = TypeVar("ResultT")
SeenT = TypeVar("SeenT")

_FRAME = RecordFrame("cell", b"CLCELL\0\0", 1, "<HH")
_ID_BYTES = 8
_KEPT_IDS = 16


@attrs.frozen
class Retries:
    """Number and back-off of the tries of a change while other writers are first.

    Attributes:
        tries: the most writes of one call.
        first_seconds: the first wait, less a random part of up to a half; doubles with each further try.
        longest_seconds: the longest wait.
    """

    tries: int = attrs.field(default=100, validator=is_whole(1))
    first_seconds: float = attrs.field(default=0.002, validator=is_seconds())
    longest_seconds: float = attrs.field(default=0.1, validator=is_seconds())

    def paced(self, clock: Clock, rng: random.Random) -> Iterator[int]:
        """Yield the number of each try, from 1 on; wait before all but the first."""
        wait = self.first_seconds
        for number in range(1, self.tries + 1):
            if number > 1 and wait:
                clock.sleep(wait * (0.5 + rng.random() / 2))
                wait = min(2 * wait, self.longest_seconds)
            yield number


_SEEING = Retries(tries=8, first_seconds=0.02, longest_seconds=1.0)


def resolve_unknown(read: Callable[[], SeenT], unknown: Exception, *, clock: Clock | None = None,
                    rng: random.Random | None = None) -> SeenT:
    """Read the outcome of a write without an answer; retry the read for about two seconds.

    Raises:
        Exception: `unknown`, the error of the write, with the last error of `read` as its cause: no read succeeded.
    """
    failed: Exception | None = None
    for _ in _SEEING.paced(clock or SystemClock(), rng or random.Random()):
        try:
            return read()
        except Exception as error:
            failed = error
    raise unknown from failed


# ------------------------------------------------------------------------------------------------------ several keys


Found: TypeAlias = Mapping[Address, KVEntry]
"""The keys of a swap as one request read them, without absent keys."""


@attrs.frozen
class Swap(Generic[ResultT]):
    """A decision of `swap`.

    Attributes:
        result: the return value of the call.
        changes: the new value of each key, `None` to delete it. Without changes nothing is sent. At least one of the
            keys was read, so that a late write of an earlier try fails.
        conditions: conditions on further keys, in addition to "no key that was read has changed".
    """

    result: ResultT
    changes: Changes = NOTHING
    conditions: Conditions = NOTHING


Judge: TypeAlias = Callable[[Found, Swap[ResultT], Found], bool | None]
"""Returns whether a write without an answer has happened, from the values that it was decided on, the write, and the
present values; `None` if the values do not show it. One of the values has changed, so that the write can no longer
happen; or none has, and the write creates keys that are absent still, or again."""


def swap(store: KVStore, cells: Iterable[Address], decide: Callable[[Found], Swap[ResultT]], *, operation: str = "swap",
         may_repeat: bool = False, judge: Judge[ResultT] | None = None, retries: Retries | None = None,
         clock: Clock | None = None, rng: random.Random | None = None) -> ResultT:
    """Read keys, decide, and write if none of them has changed; retry until that succeeds. Two requests a try.

    Args:
        store: the keys' store.
        cells: the keys to read; at least one.
        decide: returns the swap for the values found. It may be called several times. An exception ends the call,
            except `Busy` other than `BudgetSpent`, an unknown outcome, and `PredicateFailed` of a key that was read,
            which are retried.
        operation: name of the change, for errors.
        may_repeat: whether the change is idempotent, so that it is decided again if the outcome of a write stays
            unknown.
        judge: returns whether a write without an answer has happened. By default it has if the keys that were read have
            its values, so write bytes that no other write has, or set `may_repeat`.
        retries: number and back-off of the tries.
        clock: the clock for the waits.
        rng: varies the waits.

    Raises:
        OutcomeUnknown: a write got no answer, and no read showed its outcome.
        PredicateFailed: one of the swap's own conditions does not hold.
        Busy: other writers were first in all tries.
        SlowDown: all tries were used up, and the store throttled some of them.
        CompactlibError: of `decide` or the store; nothing was changed.
    """
    call = _Swapping(store, tuple(cells), operation, may_repeat, judge, retries or Retries(),
                     SystemClock() if clock is None else clock, random.Random() if rng is None else rng)
    try:
        return call.run(decide)
    except Exception as error:
        if call.unknown is None or error is call.unknown:
            raise
        raise call.unknown from error


@attrs.define
class _Swapping(Generic[ResultT]):
    """One call of `swap`.

    Attributes:
        unanswered: the writes without an answer that may have happened, or may still happen; each with the values that
            it was decided on.
        unknown: the error of the last of them; `None` if there is none.
    """

    store: KVStore
    cells: Sequence[Address]
    operation: str
    may_repeat: bool
    judge: Judge[ResultT] | None
    retries: Retries
    clock: Clock
    rng: random.Random
    unknown: OutcomeUnknown | None = None
    unanswered: list[tuple[Found, Swap[ResultT]]] = attrs.field(factory=list)

    def run(self, decide: Callable[[Found], Swap[ResultT]]) -> ResultT:
        last: CompactlibError | None = None
        for _ in self.retries.paced(self.clock, self.rng):
            found = self._read()
            happened, may_arrive = self._settle(found)
            if happened is not None:
                return happened.result
            try:
                wanted = decide(found)
            except PredicateFailed as error:
                if (error.partition, error.key) not in self.cells:
                    raise
                continue
            except BudgetSpent:
                raise  # a further try would not change that
            except (Busy, OutcomeUnknown) as error:
                last = error
                continue
            if not wanted.changes:
                if may_arrive and self.unknown is not None:
                    raise self.unknown  # and no other write prevents it
                return wanted.result
            if wanted.changes.keys().isdisjoint(self.cells):
                raise InvalidInput(f"{self.operation} writes none of the keys that it read; name one that it changes "
                                   f"among them, so that a late try fails")
            if not wanted.conditions.keys().isdisjoint(self.cells):
                raise InvalidInput(f"{self.operation} has conditions on keys that it read, which must be unchanged "
                                   f"anyway; leave them out")
            try:
                self.store.transact({**unchanged(self.cells, found), **wanted.conditions}, wanted.changes)
            except PredicateFailed as error:
                if (error.partition, error.key) not in self.cells:
                    raise
            except SlowDown as error:
                last = error
            except OutcomeUnknown as error:
                self.unknown = OutcomeUnknown(operation=self.operation, path=error.path,
                                              detail=f"{error.operation}: {error.detail}")
                self.unknown.__cause__ = error
                self.unanswered.append((found, wanted))
            else:
                return wanted.result
        if self.unknown is not None:
            happened, _ = self._settle(self._read())
            if happened is not None:
                return happened.result
        raise self.unknown or last or Busy(f"{self.operation}: other writers were first {self.retries.tries} times in "
                                           f"a row; wait and call again")

    def _read(self) -> Found:
        if self.unknown is None:
            return self.store.get_many(self.cells)
        return resolve_unknown(lambda: self.store.get_many(self.cells), self.unknown, clock=self.clock, rng=self.rng)

    def _settle(self, found: Found) -> tuple[Swap[ResultT] | None, bool]:
        """Return the swap that happened, if any, and whether another may still happen."""
        kept, may_arrive, is_unknown = [], False, False
        for before, sent in self.unanswered:
            is_as_before = unchanged(self.cells, found) == unchanged(self.cells, before)
            if not is_as_before:
                verdict = (self.judge or self._by_values)(before, sent, found)
            elif sent.changes.keys().isdisjoint(found):
                # It writes absent keys alone, which may have been created and deleted since.
                verdict = None if self.judge is None else self.judge(before, sent, found)
            else:
                verdict = False
            if verdict:
                return sent, False
            is_unknown |= verdict is None
            may_arrive |= is_as_before
            if is_as_before or verdict is None:
                kept.append((before, sent))
        if is_unknown and not self.may_repeat and self.unknown is not None:
            raise self.unknown
        self.unanswered = kept
        if not kept:
            self.unknown = None
        return None, may_arrive

    def _by_values(self, _: Found, sent: Swap[ResultT], found: Found) -> bool | None:
        present = {cell: found[cell].value if cell in found else None for cell in self.cells}
        return True if all(present[cell] == sent.changes[cell] for cell in present if cell in sent.changes) else None


def unchanged(cells: Iterable[Address], found: Found) -> dict[Address, Predicate | None]:
    """Return the conditions that these keys have not changed since they were found."""
    return {cell: found[cell].predicate if cell in found else None for cell in cells}


# ---------------------------------------------------------------------------------------------------------- one value


@attrs.frozen
class CellState(Generic[T]):
    """The value of a cell, `None` if the key was absent, and the conditions of a `transact` that it has not changed."""

    value: T | None
    conditions: Conditions


@attrs.frozen
class Updated(Generic[T]):
    """The values before and after a change that happened, or was not needed; `None` for an absent key."""

    before: T | None
    after: T | None


@attrs.frozen
class _Record(Generic[T]):
    """A stored value, with the ids of the last 16 writes, the newest first; fewer if there were fewer since the create.
    """

    ids: tuple[bytes, ...]
    value: T


class Cell(Generic[T]):
    """A value in a key-value store that any number of threads and processes change; no change is lost.

    The stored form is a frame with the ids of the last writes, the value as JSON, and a checksum that also covers the
    cell's name.

    Args:
        store: the key's store.
        partition: the key's partition.
        key: the key.
        kind: the value's type, for `JsonCodec`: an attrs class, `int`, `str`.
        retries: number and back-off of the tries of a change.
        clock: the clock for the waits.
        rng: makes the ids of writes, and varies the waits; give each process another seed.
    """

    def __init__(self, store: KVStore, partition: bytes, key: bytes, kind: type[T], *, retries: Retries | None = None,
                 clock: Clock | None = None, rng: random.Random | None = None) -> None:
        self._store = store
        self._address = partition, key
        self._codec: JsonCodec[T] = JsonCodec(kind)
        self._retries = retries
        self._clock = clock
        self._rng: random.Random = random.SystemRandom() if rng is None else rng
        self._salt = crc32(key, crc32(partition))

    def read(self) -> T | None:
        """Return the value; `None` if the key is absent. One request.

        Raises:
            CorruptData: the stored value is damaged.
            Unsupported: another release wrote it.
            CompactlibError: of the store.
        """
        return self.state().value

    def state(self) -> CellState[T]:
        """Return the value, and the condition "it has not changed". One request; see `read`."""
        found = self._store.get_many([self._address])
        record = self._record(found)
        return CellState(None if record is None else record.value, unchanged([self._address], found))

    def value_of(self, stored: bytes) -> T:
        """Return the value in the bytes that a scan found under this key; see `read`."""
        return self._decode(stored).value

    def update(self, change: Callable[[T | None], T | None], *, also: Changes = NOTHING,
               conditions: Conditions = NOTHING, operation: str = "", may_repeat: bool = False) -> Updated[T]:
        """Replace the value by the result of `change`. Two requests if no other writer is first.

        Args:
            change: gets the value, or `None` for an absent key, and returns the new value, or `None` to delete the key.
                An equal value is not written. It may be called several times; an exception ends the call.
            also: changes of other keys in the same step.
            conditions: states of other keys that the step demands.
            operation: name of the change, for errors.
            may_repeat: whether the change is idempotent; see `swap`.

        Raises:
            OutcomeUnknown: a write got no answer, and no read showed its outcome.
            PredicateFailed: one of `conditions` does not hold.
            Busy, SlowDown: in all tries other writers were first, or the store throttled.
            CorruptData, Unsupported: the stored value cannot be read.
            CompactlibError: of `change` or the store; nothing was changed.
        """
        sent: dict[bytes, Updated[T]] = {}

        def decide(found: Found) -> Swap[Updated[T]]:
            record = self._record(found)
            # Also after a refusal: a client library may have repeated a write that had succeeded.
            for write_id in () if record is None else record.ids:
                if write_id in sent:
                    return Swap(sent[write_id])
            before = None if record is None else record.value
            after = change(before)
            if after == before:
                return Swap(Updated(before, before))
            updated, write_id = Updated(before, after), self._rng.randbytes(_ID_BYTES)
            sent[write_id] = updated
            stored = None if after is None else self._encode(
                _Record((write_id, *(() if record is None else record.ids))[:_KEPT_IDS], after))
            return Swap(updated, {self._address: stored, **also}, conditions)

        return swap(self._store, [self._address], decide, operation=operation or f"update of {self!r}",
                    may_repeat=may_repeat, judge=self._judge, retries=self._retries, clock=self._clock, rng=self._rng)

    def _judge(self, decided_on: Found, sent: Swap[Updated[T]], found: Found) -> bool | None:
        written, before, now = sent.changes[self._address], self._record(decided_on), self._record(found)
        if now is None:
            # A delete has succeeded, or a later delete has removed the ids.
            return True if written is None else None
        if written is not None and self._decode(written).ids[0] in now.ids:
            return True
        # The ids list all writes from the old value to this value, and the attempt is not among them.
        return False if before is not None and before.ids[0] in now.ids else None

    def _record(self, found: Found) -> _Record[T] | None:
        return self._decode(found[self._address].value) if self._address in found else None

    def _encode(self, record: _Record[T]) -> bytes:
        body = self._codec.encode(record.value)
        return _FRAME.encode(len(record.ids), body=b"".join((*record.ids, body)), salt=self._salt)

    def _decode(self, data: bytes) -> _Record[T]:
        place = f"key {self._address[1]!r} of partition {self._address[0]!r}"
        count, body = _FRAME.decode(data, place, salt=self._salt)
        end = count * _ID_BYTES
        if not 1 <= count <= _KEPT_IDS or len(body) < end:
            raise CorruptData(path=place, offset=_FRAME.header_bytes, expected=f"1 to {_KEPT_IDS} ids of writes",
                              found=f"{count} in {len(body)} bytes")
        ids = tuple(body[at:at + _ID_BYTES] for at in range(0, end, _ID_BYTES))
        return _Record(ids, self._codec.decode(body[end:], place))

    def __repr__(self) -> str:
        partition, key = self._address
        return f"Cell({partition!r}, {key!r})"
