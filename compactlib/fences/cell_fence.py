# SPDX-License-Identifier: Apache-2.0
"""Fences in a store: for workers on any machine, and without locks (`fence.py` says what they promise).

The highest token and the committed value of a resource are one cell, so that one compare-and-set both checks the token
and commits. A token admitted in between has changed the cell, and the compare-and-set fails.

The floor is a cell of its own: raised before records below it are removed, and read after the record in each change. A
change of a record that was removed meanwhile fails. A record may be absent because the floor has risen, so whoever
makes one reads the floor once more, and is refused if it lies above.
"""

from __future__ import annotations

import hashlib
import random
from abc import abstractmethod
from collections.abc import Callable
from contextlib import suppress
from itertools import groupby
from typing import Any, TypeVar

from compactlib.clock import Clock, SystemClock
from compactlib.codec import JsonCodec
from compactlib.errors import Busy, CorruptData, Stale, Unsupported
from compactlib.fences.fence import FLOORS, RECORDS, Admission, Floor, Rule, RuledFence, check_admission, check_log
from compactlib.kv import KVStore, PredicateFailed
from compactlib.kv.cell import Cell
from compactlib.objects import ObjectStore
from compactlib.objects.register import ObjectRegister, Version

ValueT = TypeVar("ValueT", Admission, Floor)

_MAX_ATTEMPTS = 100
_FORGOTTEN = b""
"""In an object store, the value of a record that was removed."""


class _CellFence(RuledFence):
    """What both have in common, over cells of any kind, each with a place of its own."""

    _log: str
    _floor_place: Any

    @abstractmethod
    def _read(self, place: Any, kind: type[ValueT]) -> ValueT | None:
        """Return what is at a place."""

    @abstractmethod
    def _update(self, place: Any, kind: type[ValueT], change: Callable[[ValueT | None], ValueT]) -> ValueT:
        """Replace what is at a place by what `change` makes of it, unless that is the same; again if it has moved."""

    @abstractmethod
    def _place(self, resource: str) -> Any:
        """Return the place of a resource's record."""

    def _change(self, resource: str, token: int, rule: Rule) -> Admission:
        is_new: list[bool] = []

        def changed(record: Admission | None) -> Admission:
            after = rule(record, self._floor())
            is_new.append(record is None)
            return after

        done = self._update(self._place(resource), Admission, changed)
        if is_new[-1]:
            check_admission(resource, token, done, self._floor())
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
    """A `Fence` whose records are cells of a `KVStore`; as durable and as shared as the store.

    An admission or commit costs three requests, the first one of a resource four, and three more for each time that
    another writer was faster. Besides what `Fence` names, every method raises what the store raises, which then has
    changed nothing; except for `OutcomeUnknown`, after which it is not known whether this call has admitted or
    committed, and may be repeated.

    Args:
        store: where.
        log: the id of the log whose tokens it admits, which it stores; those of another one are `OtherLog`.
        partition: of the store, for this fence alone.
        clock: for the waits between tries.
        rng: varies them, and makes the ids of writes; give each process its own seed.
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

    def _forget_below(self, floor: int) -> int:
        wrong: list[Exception] = []
        forgotten = 0
        with self._store.scan(self._partition, prefix=b"resource/") as entries:
            for entry in entries:
                try:
                    if self._cell(entry.key, Admission).value_of(entry.value).token >= floor:
                        continue
                except (CorruptData, Unsupported) as error:
                    wrong.append(error)
                    continue
                with suppress(PredicateFailed):  # a newer token came: that record is wanted again
                    self._store.delete_if(self._partition, entry.key, entry.predicate)
                    forgotten += 1
        if wrong:
            raise wrong[0]
        return forgotten

    def _place(self, resource: str) -> bytes:
        return b"resource/" + resource.encode()

    def _cell(self, place: bytes, kind: type[ValueT]) -> Cell[ValueT]:
        return Cell(self._store, self._partition, place, JsonCodec(kind), clock=self._clock, rng=self._rng)

    def __repr__(self) -> str:
        return f"KVFence(partition {self._partition!r})"


class ObjectFence(_CellFence):
    """A `Fence` whose records are objects; as durable and as shared as the store.

    An admission or commit costs eight requests, and as many again for each time that another writer was faster.
    Besides what `Fence` names, every method raises what the store raises; a call may be repeated.

    Args:
        objects: where.
        log: the id of the log whose tokens it admits, which it stores; those of another one are `OtherLog`.
        prefix: what the keys of its objects begin with, for this fence alone.
        keep_seconds: how long `raise_floor` keeps what was replaced: more than any worker is ever paused.
        clock: for the pauses between reads, and compared with the ages of objects.
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

    def _forget_below(self, floor: int) -> int:
        keys = (info.key for info in self._objects.list(f"{self._prefix}/resource/"))
        places = [place for place, _ in groupby(key.rpartition("/")[0] for key in keys)]
        return sum(self._forget(place, floor) for place in places)

    def _forget(self, place: str, floor: int) -> int:
        """Replace a record below the floor by an empty object, and remove what has long been replaced; 1 if it was such
        a record."""
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
            with suppress(Stale):  # a newer token came: that record is wanted again
                register.replace(_FORGOTTEN, seen)
                return 1
        return 0

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
