# SPDX-License-Identifier: Apache-2.0
"""`KVFence` and `ObjectFence`: fences in a store, for workers on any machine, without locks (promises: `fence.py`).

The highest token and the committed value of a resource are one cell, so that one compare-and-set both checks the token
and commits. If another token was admitted in between, the cell has changed, and the compare-and-set fails.

The floor is another cell: it is raised before records below it are removed, and each change reads it after the record.
A change of a record that was removed since fails. A record may be absent because the floor has risen, so a change that
creates a record reads the floor again, and is refused below it.
"""

from __future__ import annotations

import hashlib
import random
from abc import abstractmethod
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import groupby
from typing import Any, TypeVar

from compactlib.clock import Clock, SystemClock
from compactlib.codec import JsonCodec
from compactlib.errors import Busy, CompactlibError, Stale
from compactlib.fences.fence import FLOORS, RECORDS, Admission, Fence, Floor, Rule, check_admission, check_log
from compactlib.kv import KVEntry, KVStore, OutcomeUnknown, PredicateFailed
from compactlib.kv.batches import sound_entries
from compactlib.kv.cell import Cell
from compactlib.objects import ObjectStore
from compactlib.objects.register import ObjectRegister, Version

ValueT = TypeVar("ValueT", Admission, Floor)

_MAX_ATTEMPTS = 100
_FORGOTTEN = b""
"""The value of a removed record in an object store."""


class _CellFence(Fence):
    """The common part of both fences, over cells of a store."""

    _log: str
    _floor_place: Any

    @abstractmethod
    def _read(self, place: Any, kind: type[ValueT]) -> ValueT | None:
        """Return the value of a cell."""

    @abstractmethod
    def _update(self, place: Any, kind: type[ValueT], change: Callable[[ValueT | None], ValueT]) -> ValueT:
        """Replace the value of a cell by the result of `change`, unless it is equal; retry if it has changed."""

    @abstractmethod
    def _place(self, resource: str) -> Any:
        """Return the key of a resource's record."""

    def _change(self, resource: str, token: int, rule: Rule) -> Admission:
        is_new: list[bool] = []

        def changed(record: Admission | None) -> Admission:
            after = rule(record, self._floor())
            is_new.append(record is None)
            return after

        done = self._update(self._place(resource), Admission, changed)
        if is_new[-1]:
            try:
                floor = self._floor()
            except CompactlibError as error:
                raise OutcomeUnknown(operation=f"token {token} of {resource!r}", path=repr(self),
                                     detail=f"the floor cannot be read after the write: {error}") from error
            check_admission(resource, token, done, floor)
        return done

    def _record(self, resource: str) -> Admission | None:
        return self._read(self._place(resource), Admission)

    def _floor(self) -> int:
        floor = self._read(self._floor_place, Floor)
        if floor is None and self._log:
            return self._raise_floor(0)
        return check_log(floor, self._log, repr(self)).token

    def _raise_floor(self, token: int) -> int:
        def raised(floor: Floor | None) -> Floor:
            before = check_log(floor, self._log, repr(self))
            return Floor(before.log, max(before.token, token))

        return self._update(self._floor_place, Floor, raised).token


class KVFence(_CellFence):
    """A `Fence` with its records in a `KVStore`; as durable and as shared as the store.

    An admission or commit costs three requests, the first of a resource four, and each retry after another writer three
    more. Every method also raises the store's errors. After `OutcomeUnknown` the call may have admitted or committed;
    it can be repeated. After other errors nothing was changed.

    Args:
        store: the records' store.
        log: id of the log of the tokens; stored, and another log is refused with `OtherLog`.
        partition: a partition of the store for this fence alone.
        clock: the clock for the waits between tries.
        rng: varies the waits, and makes the ids of writes; give each process another seed.
    """

    def __init__(self, store: KVStore, *, log: str = "", partition: bytes = b"fences", clock: Clock | None = None,
                 rng: random.Random | None = None) -> None:
        self._store = store
        self._log = log
        self._partition = partition
        self._clock = clock
        self._rng = rng
        self._floor_place = b"floor"

    def _read(self, place: bytes, kind: type[ValueT]) -> ValueT | None:
        return self._cell(place, kind).read()

    def _update(self, place: bytes, kind: type[ValueT], change: Callable[[ValueT | None], ValueT]) -> ValueT:
        after = self._cell(place, kind).update(change, operation=f"a change of {place!r} in {self!r}",
                                               may_repeat=True).after
        assert after is not None, "nothing is removed here"
        return after

    def _places(self) -> Iterator[KVEntry | CompactlibError]:
        damage: dict[bytes, CompactlibError] = {}
        yield from sound_entries(self._store, self._partition, damage, prefix=b"resource/")
        yield from damage.values()

    def _forget(self, place: KVEntry | CompactlibError, floor: int) -> bool:
        if isinstance(place, CompactlibError):
            raise place
        if self._cell(place.key, Admission).value_of(place.value).token < floor:
            with suppress(PredicateFailed):  # a newer token was admitted: the record stays
                self._store.delete_if(self._partition, place.key, place.predicate)
                return True
        return False

    def _place(self, resource: str) -> bytes:
        return b"resource/" + resource.encode()

    def _cell(self, place: bytes, kind: type[ValueT]) -> Cell[ValueT]:
        return Cell(self._store, self._partition, place, JsonCodec(kind), clock=self._clock, rng=self._rng)

    def __repr__(self) -> str:
        return f"KVFence(partition {self._partition!r})"


class ObjectFence(_CellFence):
    """A `Fence` with its records in an object store; as durable and as shared as the store.

    An admission or commit costs eight requests, and each retry after another writer eight more. Every method also
    raises the store's errors and `OutcomeUnknown`. After these the call may have admitted or committed; it can be
    repeated.

    Args:
        objects: the store of the records.
        log: id of the log of the tokens; stored, and another log is refused with `OtherLog`.
        prefix: the prefix of its objects' keys, for this fence alone.
        keep_seconds: how long `raise_floor` keeps replaced objects: longer than any pause of a worker.
        clock: the clock for the waits, and for the ages of objects.
    """

    def __init__(self, objects: ObjectStore, *, log: str = "", prefix: str = "fences",
                 keep_seconds: float = 7 * 86_400.0, clock: Clock | None = None) -> None:
        self._objects = objects
        self._log = log
        self._prefix = prefix
        self._keep_seconds = keep_seconds
        self._clock: Clock = SystemClock() if clock is None else clock
        self._floor_place = f"{prefix}/floor"

    def _read(self, place: str, kind: type[ValueT]) -> ValueT | None:
        return self._seen(place, kind)[0]

    def _update(self, place: str, kind: type[ValueT], change: Callable[[ValueT | None], ValueT]) -> ValueT:
        for _ in range(_MAX_ATTEMPTS):
            value, seen = self._seen(place, kind)
            wanted = change(value)
            if wanted == value:
                return wanted
            with suppress(Stale):
                self._register(place).replace(_FORMS[kind].encode(wanted), seen)
                return wanted
        raise Busy(f"{place!r} was changed by others {_MAX_ATTEMPTS} times in a row; wait and call again")

    def _raise_floor(self, token: int) -> int:
        floor = super()._raise_floor(token)
        self._register(self._floor_place).forget(now=self._clock.now(), older_than_seconds=self._keep_seconds)
        return floor

    def _places(self) -> list[str]:
        keys = (info.key for info in self._objects.list(f"{self._prefix}/resource/"))
        return [place for place, _ in groupby(key.rpartition("/")[0] for key in keys)]

    def _forget(self, place: str, floor: int) -> bool:
        # A record below the floor is replaced by an empty object; objects that were replaced long ago are deleted.
        record, seen = self._seen(place, Admission)
        register, now = self._register(place), self._clock.now()
        if record is None:
            listed = list(self._objects.list(f"{place}/"))
            if listed and listed[0].modified_at < now - self._keep_seconds:
                # Keep the newest version: a writer that has read it must still conflict with a fresh start.
                self._objects.delete([info.key for info in listed[1:]])
        elif record.token >= floor:
            register.forget(now=now, older_than_seconds=self._keep_seconds)
        else:
            with suppress(Stale):  # a newer token was admitted: the record stays
                register.replace(_FORGOTTEN, seen)
                return True
        return False

    def _seen(self, place: str, kind: type[ValueT]) -> tuple[ValueT | None, Version | None]:
        seen = self._register(place).read()
        if seen is None or seen.value == _FORGOTTEN:
            return None, seen
        return _FORMS[kind].decode(seen.value, place), seen

    def _place(self, resource: str) -> str:
        return f"{self._prefix}/resource/{hashlib.sha256(resource.encode()).hexdigest()[:32]}"

    def _register(self, place: str) -> ObjectRegister:
        return ObjectRegister(self._objects, place, clock=self._clock)

    def __repr__(self) -> str:
        return f"ObjectFence({self._prefix!r})"


_FORMS: dict[Any, Any] = {Admission: RECORDS, Floor: FLOORS}
