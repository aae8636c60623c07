# SPDX-License-Identifier: Apache-2.0
"""`Cell`: one value in a key-value store, changed by compare-and-set; and `swap`, the same for several keys.

A change is read, decide, write if nothing moved; again, if another writer was first. What makes that hard is a write
that got no answer: it may have happened, may still happen, or never will. One of four things is seen then:

1. *It happened*: the key holds it, or a later value that names it among those it followed.
2. *It is pending*: the key is as it was before. The write may still come, so the next one carries the same condition:
   only one of the two can succeed.
3. *It is lost*: the key has moved on from the state before without it, so its condition never holds again.
4. *It is unknown*: the key has moved on, and what is there says neither. The caller gets `OutcomeUnknown`, unless the
   change may be made twice.

A `Cell` keeps the ids of its last 16 writes beside its value, so that case 4 is rare. Whatever fails after an
unanswered write, before its outcome is known, is `OutcomeUnknown`: only a read that came back may say that nothing was
changed.
"""

from __future__ import annotations

import enum
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Generic, Protocol, TypeAlias, TypeVar

import attrs

from compactlib._arguments import is_seconds, is_whole
from compactlib.clock import Clock, SystemClock
from compactlib.errors import Busy, CompactlibError, CorruptData, InvalidInput
from compactlib.files.checksum import crc32
from compactlib.files.record_frame import RecordFrame
from compactlib.kv.batches import get_many
from compactlib.kv.errors import OutcomeUnknown, PredicateFailed, SlowDown
from compactlib.kv.store import Address, Condition, Delete, KVStore, Put, Versioned

T = TypeVar("T")
ResultT = TypeVar("ResultT")
SeenT = TypeVar("SeenT")

_FRAME = RecordFrame("cell", b"CLCELL\0\0", 1, "<HH")
_ID_BYTES = 8
_KEPT_IDS = 16


@attrs.frozen
class Retries:
    """How often a change is tried while other writers are first, and how long it waits in between.

    Attributes:
        tries: writes of one call, at most.
        first_seconds: the first wait, varied between half and the whole; each is twice the one before.
        longest_seconds: the longest.

    Raises:
        InvalidInput: a number is out of its range.
    """

    tries: int = attrs.field(default=100, validator=is_whole(1))
    first_seconds: float = attrs.field(default=0.002, validator=is_seconds())
    longest_seconds: float = attrs.field(default=0.1, validator=is_seconds())

    def paced(self, clock: Clock, rng: random.Random) -> Iterator[int]:
        """Yield the number of each try, from 1 on; waits before all but the first."""
        wait = self.first_seconds
        for number in range(1, self.tries + 1):
            if number > 1 and wait:
                clock.sleep(wait * (0.5 + rng.random() / 2))
                wait = min(2 * wait, self.longest_seconds)
            yield number


_SEEING = Retries(tries=8, first_seconds=0.02, longest_seconds=1.0)


def look_until_seen(read: Callable[[], SeenT], unknown: Exception, *, clock: Clock | None = None,
                    rng: random.Random | None = None) -> SeenT:
    """Return what a read shows after a write that got no answer; while it raises, read again, for about two seconds.

    Whatever fails meanwhile (no answer, damage, a host's own error) leaves the outcome unknown.

    Args:
        read: returns the outcome of the write, or raises.
        unknown: what the write raised.
        clock: for the pauses, of 20 ms at first, doubling to 1 s.
        rng: varies the pauses, so that many who lost one answer do not read all at once.

    Raises:
        Exception: `unknown`, with the last failure as its cause: no read came back.
    """
    failed: Exception | None = None
    for _ in _SEEING.paced(clock or SystemClock(), rng or random.Random()):
        try:
            return read()
        except Exception as error:
            failed = error
    raise unknown from failed


# ------------------------------------------------------------------------------------------------------ several keys


Found: TypeAlias = Mapping[Address, Versioned]
"""The keys of a swap as they were read, each at some moment of one request; those that are absent are left out."""


@attrs.frozen
class Swap(Generic[ResultT]):
    """What a swap is to do.

    Attributes:
        result: what the call returns once it is done.
        writes: the new value of each key, `None` to delete it; none at all: nothing is written. At least one of them is
            among the keys that were read, so that a late write of an earlier try fails.
        conditions: what must hold besides that no key that was read has changed.
    """

    result: ResultT
    writes: Mapping[Address, bytes | None] = attrs.field(factory=dict)
    conditions: Sequence[Condition] = ()


class Fate(enum.Enum):
    """What became of a write that got no answer."""

    HAPPENED = enum.auto()
    PENDING = enum.auto()
    LOST = enum.auto()
    UNKNOWN = enum.auto()


@attrs.frozen
class Attempt(Generic[ResultT]):
    """A write that got no answer.

    Attributes:
        cells: what was read, and whose state the write was held against.
        found: what was there.
        swap: what was sent.
    """

    cells: Sequence[Address]
    found: Found
    swap: Swap[ResultT]


Judge: TypeAlias = Callable[[Attempt[ResultT], Found], Fate]
"""Says what became of an unanswered write, from what is there now."""


def swap(store: KVStore, cells: Iterable[Address], decide: Callable[[Found], Swap[ResultT]], *, operation: str = "swap",
         may_repeat: bool = False, judge: Judge[ResultT] | None = None, retries: Retries | None = None,
         clock: Clock | None = None, rng: random.Random | None = None) -> ResultT:
    """Read keys, decide, and write if none of them has changed since; again until that succeeds. Two requests a try.

    Args:
        store: where.
        cells: what is read; at least one.
        decide: makes the swap of what was found. It may be called several times. What it raises ends the call, but for
            `Busy`, an outcome that is unknown, and `PredicateFailed` of a key that was read: then it is asked again.
        operation: what is done, for errors.
        may_repeat: whether the change may be made twice, so that it is decided anew where the outcome of an unanswered
            write cannot be known.
        judge: says what became of an unanswered write. By default a write happened if all that it wrote is there, so
            give each write bytes of its own, or let it repeat.
        retries: how often, and how long to wait in between.
        clock: waits.
        rng: varies the waits.

    Raises:
        OutcomeUnknown: a write got no answer, and its outcome could not be seen, or something failed before it was.
        PredicateFailed: one of the swap's own conditions does not hold.
        Busy: other writers were first too many times.
        SlowDown: the store refused some of so many tries.
        CompactlibError: what `decide` or the store raises; nothing was changed.
    """
    return _Swapping(store, tuple(cells), operation, may_repeat, judge or _by_values, retries or Retries(),
                     SystemClock() if clock is None else clock, random.Random() if rng is None else rng).run(decide)


@attrs.define
class _Swapping(Generic[ResultT]):
    """One call of `swap`."""

    store: KVStore
    cells: Sequence[Address]
    operation: str
    may_repeat: bool
    judge: Judge[ResultT]
    retries: Retries
    clock: Clock
    rng: random.Random
    unknown: OutcomeUnknown | None = None
    unanswered: list[Attempt[ResultT]] = attrs.field(factory=list)

    def run(self, decide: Callable[[Found], Swap[ResultT]]) -> ResultT:
        try:
            return self._run(decide)
        except Exception as error:
            if self.unknown is None or error is self.unknown:
                raise
            raise self.unknown from error

    def _run(self, decide: Callable[[Found], Swap[ResultT]]) -> ResultT:
        last: CompactlibError | None = None
        for _ in self.retries.paced(self.clock, self.rng):
            found = self._read()
            happened, is_pending = self._settle(found)
            if happened is not None:
                return happened.result
            try:
                wanted = decide(found)
            except PredicateFailed as error:
                if (error.partition, error.key) not in self.cells:
                    raise
                continue
            except (Busy, OutcomeUnknown) as error:
                last = error
                continue
            if not wanted.writes:
                if is_pending and self.unknown is not None:
                    raise self.unknown  # it may still come, and nothing is written that would keep it from that
                return wanted.result
            try:
                self._write(found, wanted)
            except PredicateFailed as error:
                if (error.partition, error.key) not in self.cells:
                    raise
            except SlowDown as error:
                last = error
            except OutcomeUnknown as error:
                self.unknown = OutcomeUnknown(operation=self.operation, path=error.path,
                                              detail=f"{error.operation}: {error.detail}")
                self.unknown.__cause__ = error
                self.unanswered.append(Attempt(self.cells, found, wanted))
            else:
                return wanted.result
        if self.unknown is not None:
            happened, _ = self._settle(self._read())
            if happened is not None:
                return happened.result
        raise self.unknown or last or Busy(f"{self.operation}: other writers were first {self.retries.tries} times in "
                                           f"a row; wait and call again")

    def _read(self) -> Found:
        # What an unanswered write wrote besides says whether it happened.
        addresses = dict.fromkeys(self.cells)
        for attempt in self.unanswered:
            addresses |= dict.fromkeys(attempt.swap.writes)
        if self.unknown is None:
            return get_many(self.store, addresses)
        return look_until_seen(lambda: get_many(self.store, addresses), self.unknown, clock=self.clock, rng=self.rng)

    def _settle(self, found: Found) -> tuple[Swap[ResultT] | None, bool]:
        """Return the swap that happened, if one did, and whether one may still happen."""
        fates = [(attempt, self.judge(attempt, found)) for attempt in self.unanswered]
        for attempt, fate in fates:
            if fate is Fate.HAPPENED:
                return attempt.swap, False
        if not self.may_repeat and self.unknown is not None and any(fate is Fate.UNKNOWN for _, fate in fates):
            raise self.unknown
        self.unanswered = [attempt for attempt, fate in fates if fate is not Fate.LOST]
        if not self.unanswered:
            self.unknown = None
        return None, any(fate is Fate.PENDING for _, fate in fates)

    def _write(self, found: Found, wanted: Swap[ResultT]) -> None:
        if not wanted.writes.keys() & set(self.cells):
            raise InvalidInput(f"{self.operation} writes none of the keys that it read; name one that it changes among "
                               f"them, so that a late try fails")
        conditions = [*(_as_found(found, address) for address in self.cells), *wanted.conditions]
        (address, value), *more = wanted.writes.items()
        if more or len(conditions) > 1:
            self.store.transact(
                conditions, [Put(*each, data) for each, data in wanted.writes.items() if data is not None],
                [Delete(*each) for each, data in wanted.writes.items() if data is None])
        elif value is None:
            self.store.delete_if(*address, conditions[0].predicate)
        else:
            self.store.set_if(*address, value, conditions[0].predicate)


def _as_found(found: Found, address: Address) -> Condition:
    return Condition(*address, found[address].predicate if address in found else None)


def _value(found: Found, address: Address) -> bytes | None:
    return found[address].value if address in found else None


def _by_values(attempt: Attempt[ResultT], found: Found) -> Fate:
    if all(_value(found, address) == value for address, value in attempt.swap.writes.items()):
        return Fate.HAPPENED
    is_as_before = all(_as_found(found, each) == _as_found(attempt.found, each) for each in attempt.cells)
    return Fate.PENDING if is_as_before else Fate.UNKNOWN


# ---------------------------------------------------------------------------------------------------------- one value


class Codec(Protocol[T]):
    """Turns a value into bytes, and back."""

    def encode(self, value: T) -> bytes:
        """Return the stored form."""

    def decode(self, data: bytes, place: str) -> T:
        """Return the value; `place` is for errors.

        Raises:
            CorruptData: the bytes are no such value.
            Unsupported: another release wrote them.
        """


@attrs.frozen
class CellState(Generic[T]):
    """A cell as it was read.

    Attributes:
        value: what it held; `None` if there was none.
        condition: for a `transact`: that it has not changed since.
    """

    value: T | None
    condition: Condition


@attrs.frozen
class Updated(Generic[T]):
    """A change that happened, or was not needed.

    Attributes:
        before: the value that was changed; `None` if there was none.
        after: what it was changed to; `None` if it was deleted.
    """

    before: T | None
    after: T | None


@attrs.frozen
class _Record(Generic[T]):
    """What is stored in a cell.

    Attributes:
        ids: of the last writes, this one's first; all since the cell was made, if fewer than 16.
        value: the value.
    """

    ids: tuple[bytes, ...]
    value: T


class Cell(Generic[T]):
    """One value in a key-value store. Any number of threads and processes may change it; no change is lost.

    The stored form is one frame with the ids of the last writes, the codec's bytes, and a checksum that covers the
    cell's own name as well.

    Args:
        store: where.
        partition: the key's partition.
        key: the key.
        codec: of the value.
        retries: how often a change is tried, and how long it waits in between.
        clock: waits.
        rng: makes the ids of writes, and varies the waits; give each process its own seed.
    """

    def __init__(self, store: KVStore, partition: bytes, key: bytes, codec: Codec[T], *, retries: Retries | None = None,
                 clock: Clock | None = None, rng: random.Random | None = None) -> None:
        self._store = store
        self._address = partition, key
        self._codec = codec
        self._retries = retries
        self._clock = clock
        self._rng: random.Random = random.SystemRandom() if rng is None else rng
        self._salt = crc32(key, crc32(partition))

    def read(self) -> T | None:
        """Return the value; `None` if there is none. One request.

        Raises:
            CorruptData: what is stored is damaged.
            Unsupported: another release wrote it.
            CompactlibError: what the store raises.
        """
        return self.state().value

    def state(self) -> CellState[T]:
        """Return the value, and the condition that it has not changed. One request; see `read`."""
        found = get_many(self._store, [self._address])
        record = self._record(found)
        return CellState(None if record is None else record.value, _as_found(found, self._address))

    def value_of(self, stored: bytes) -> T:
        """Return the value in what a scan found under this key; see `read`."""
        return self._decode(stored).value

    def update(self, change: Callable[[T | None], T | None], *,
               also: Callable[[T | None, T | None], Iterable[Condition | Put | Delete]] | None = None,
               operation: str = "", may_repeat: bool = False) -> Updated[T]:
        """Replace the value by what `change` makes of it. Two requests if no other writer comes first.

        Args:
            change: given the value, `None` if there is none, returns the next one, `None` for none; an equal one is not
                written. It may be called several times, and what it raises ends the call.
            also: given the value before and after, returns what is done in the same step: writes of other keys, and
                conditions.
            operation: what is done, for errors.
            may_repeat: whether the change may be made twice; see `swap`.

        Raises:
            OutcomeUnknown: a write got no answer, and its outcome could not be seen.
            PredicateFailed: a condition of `also` does not hold.
            Busy, SlowDown: other writers were first, or the store refused, too many times.
            CorruptData, Unsupported: what is stored cannot be read.
            CompactlibError: what `change` or the store raises; nothing was changed.
        """
        sent: dict[bytes, Updated[T]] = {}

        def decide(found: Found) -> Swap[Updated[T]]:
            record = self._record(found)
            # Also after an answer that said no: a service may have repeated a write of its own accord.
            for write_id in () if record is None else record.ids:
                if write_id in sent:
                    return Swap(sent[write_id])
            before = None if record is None else record.value
            after = change(before)
            if after == before:
                return Swap(Updated(before, before))
            updated, write_id = Updated(before, after), self._rng.randbytes(_ID_BYTES)
            sent[write_id] = updated
            writes: dict[Address, bytes | None] = {self._address: None if after is None else self._encode(
                _Record((write_id, *(() if record is None else record.ids))[:_KEPT_IDS], after))}
            conditions = []
            for part in () if also is None else also(before, after):
                if isinstance(part, Condition):
                    conditions.append(part)
                else:
                    writes[part.partition, part.key] = part.value if isinstance(part, Put) else None
            return Swap(updated, writes, conditions)

        def judge(attempt: Attempt[Updated[T]], found: Found) -> Fate:
            return self._fate(attempt, found, may_repeat=may_repeat)

        return swap(self._store, [self._address], decide, operation=operation or f"update of {self!r}",
                    may_repeat=may_repeat, judge=judge, retries=self._retries, clock=self._clock, rng=self._rng)

    def _fate(self, attempt: Attempt[Updated[T]], found: Found, *, may_repeat: bool) -> Fate:
        if _as_found(found, self._address) == _as_found(attempt.found, self._address):
            # An absent cell may have been made and deleted in between, and then the change would be made twice.
            return Fate.PENDING if may_repeat or self._address in found else Fate.UNKNOWN
        written, before, now = attempt.swap.writes[self._address], self._record(attempt.found), self._record(found)
        if now is None:
            # Gone: as a delete wanted it; or a later one has removed what would say.
            return Fate.HAPPENED if written is None else Fate.UNKNOWN
        if written is not None and self._decode(written).ids[0] in now.ids:
            return Fate.HAPPENED
        # One line of writes leads from the value before to this one, and the attempt's is not in it.
        return Fate.LOST if before is not None and before.ids[0] in now.ids else Fate.UNKNOWN

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
