# SPDX-License-Identifier: Apache-2.0
"""Fences in a store: for workers on any machine, and without locks (`fence.py` says what they promise).

The highest token and the committed value of a resource are one cell, so that one compare-and-set both checks the token
and commits. A token admitted in between has changed the cell, and the compare-and-set fails.

The floor is a cell of its own, read before each change and raised before records below it are removed. In a key-value
store it is a condition of the change. In an object store, which changes one value at a time, a change of a record
fails because the record was removed; only one that makes a record reads the floor once more, since the record may be
absent because the floor rose.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Sequence
from itertools import groupby
from typing import TypeVar

from compactlib.clock import Clock, SystemClock
from compactlib.codec import JsonCodec
from compactlib.errors import Busy, CorruptData, Stale, Unsupported
from compactlib.fences.fence import (
    FLOORS,
    RECORDS,
    Admission,
    Floor,
    Rule,
    RuledFence,
    check_admission,
    check_log,
)
from compactlib.files.json_record import JsonRecord
from compactlib.kv import Condition, Delete, KVEntry, KVStore, PredicateFailed
from compactlib.kv.cell import Cell, CellState
from compactlib.objects import ObjectStore
from compactlib.objects.register import ObjectRegister, Version

ValueT = TypeVar("ValueT", Admission, Floor)

_MAX_ATTEMPTS = 100
_RESOURCE = b"resource/"
_ADMISSIONS: JsonCodec[Admission] = JsonCodec(Admission)
_FORGOTTEN = b""
"""In an object store, the value of a record that was removed."""


class KVFence(RuledFence):
    """A `Fence` whose records are cells of a `KVStore`; as durable and as shared as the store.

    An admission or commit costs three requests, and three more for each time that another writer was faster. Besides
    what `Fence` names, every method raises what the store raises, which then has changed nothing; except for
    `OutcomeUnknown`, after which it is not known whether this call has admitted or committed, and may be repeated.

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
        self._floors: Cell[Floor] = Cell(store, partition, b"floor", JsonCodec(Floor), clock=clock, rng=rng)

    def _change(self, resource: str, token: int, rule: Rule) -> Admission:
        floors: list[CellState[Floor]] = []

        def changed(record: Admission | None) -> Admission:
            # After the record: it may be absent because the floor has risen.
            floors.append(self._floor())
            floor = floors[-1].value
            return rule(record, 0 if floor is None else floor.token)

        for _ in range(_MAX_ATTEMPTS):
            try:
                done = self._cell(_RESOURCE + resource.encode()).update(
                    changed, also=lambda *_: [floors[-1].condition], operation=f"a token for {resource!r}",
                    may_repeat=True).after
            except PredicateFailed:
                continue  # the floor has risen
            assert done is not None, "a rule makes a record"
            return done
        raise Busy(f"the floor of {self!r} was changed by others {_MAX_ATTEMPTS} times in a row; wait and call again")

    def _floor(self) -> CellState[Floor]:
        state = self._floors.state()
        if state.value is None and self._log:
            self._raise_floor(0)
            state = self._floors.state()
        check_log(state.value, self._log, repr(self))
        return state

    def _record(self, resource: str) -> Admission | None:
        return self._cell(_RESOURCE + resource.encode()).read()

    def _raise_floor(self, token: int) -> int:
        def raised(floor: Floor | None) -> Floor:
            before = check_log(floor, self._log, repr(self))
            return Floor(before.log, max(before.token, token))

        done = self._floors.update(raised, operation="the rise of a fence's floor", may_repeat=True).after
        return 0 if done is None else done.token

    def _forget_below(self, floor: int) -> int:
        outdated: list[KVEntry] = []
        wrong: list[Exception] = []
        with self._store.scan(self._partition, prefix=_RESOURCE) as entries:
            for entry in entries:
                try:
                    if self._cell(entry.key).value_of(entry.value).token < floor:
                        outdated.append(entry)
                except (CorruptData, Unsupported) as error:
                    wrong.append(error)
        at_once = max(1, self._store.limits.max_transact // 2)
        forgotten = sum(self._forget(outdated[at:at + at_once]) for at in range(0, len(outdated), at_once))
        if wrong:
            raise wrong[0]
        return forgotten

    def _forget(self, entries: Sequence[KVEntry]) -> int:
        """Delete records that are as they were found; returns how many."""
        try:
            self._store.transact([Condition(self._partition, entry.key, entry.predicate) for entry in entries],
                                 deletes=[Delete(self._partition, entry.key) for entry in entries])
        except PredicateFailed:
            # A newer token came: that record is wanted again, the others are not.
            half = len(entries) // 2
            return self._forget(entries[:half]) + self._forget(entries[half:]) if half else 0
        return len(entries)

    def _cell(self, key: bytes) -> Cell[Admission]:
        return Cell(self._store, self._partition, key, _ADMISSIONS, clock=self._clock, rng=self._rng)

    def __repr__(self) -> str:
        return f"KVFence(partition {self._partition!r})"


class ObjectFence(RuledFence):
    """A `Fence` whose records are objects; as durable and as shared as the store.

    An admission or commit costs eight requests, and as many again for each time that another writer was faster.
    Besides what `Fence` names, every method raises what the store raises; a call may be repeated.

    Args:
        objects: where.
        log: the id of the log whose tokens it admits, which it stores; those of another one are `OtherLog`.
        prefix: what the keys of its objects begin with, for this fence alone.
        keep_seconds: how long `raise_floor` keeps what was replaced: more than any worker is ever paused.
        clock: for the pauses between looks, and compared with the ages of objects.
    """

    def __init__(self, objects: ObjectStore, *, log: str = "", prefix: str = "fences",
                 keep_seconds: float = 7 * 86_400.0, clock: Clock | None = None) -> None:
        self._objects = objects
        self._log = log
        self._prefix = prefix
        self._keep_seconds = keep_seconds
        self._clock: Clock = SystemClock() if clock is None else clock

    def _change(self, resource: str, token: int, rule: Rule) -> Admission:
        def changed(record: Admission | None) -> Admission:
            after = rule(record, self._floor().token)
            is_new.append(record is None)
            return after

        is_new: list[bool] = []
        done = self._update(self._place(resource), RECORDS, changed)
        if is_new[-1]:
            # It was there, perhaps, and removed because the floor rose.
            check_admission(resource, done.token, done, self._floor().token)
        return done

    def _update(self, place: str, form: JsonRecord[ValueT], change: Callable[[ValueT | None], ValueT]) -> ValueT:
        for _ in range(_MAX_ATTEMPTS):
            value, seen = self._read(place, form)
            wanted = change(value)
            if wanted == value:
                return wanted
            try:
                self._register(place).replace(form.encode(wanted), seen)
            except Stale:
                continue
            return wanted
        raise Busy(f"{place!r} was changed by others {_MAX_ATTEMPTS} times in a row; wait and call again")

    def _record(self, resource: str) -> Admission | None:
        return self._read(self._place(resource), RECORDS)[0]

    def _floor(self) -> Floor:
        found, _ = self._read(self._floor_place, FLOORS)
        if found is None and self._log:
            self._raise_floor(0)
        return check_log(found, self._log, repr(self))

    def _raise_floor(self, token: int) -> int:
        def raised(floor: Floor | None) -> Floor:
            before = check_log(floor, self._log, repr(self))
            return Floor(before.log, max(before.token, token))

        floor = self._update(self._floor_place, FLOORS, raised)
        self._register(self._floor_place).forget(now=self._clock.now(), older_than_seconds=self._keep_seconds)
        return floor.token

    def _forget_below(self, floor: int) -> int:
        keys = (info.key for info in self._objects.list(f"{self._prefix}/resource/"))
        places = [place for place, _ in groupby(key.rpartition("/")[0] for key in keys)]
        return sum(self._forget(place, floor) for place in places)

    def _forget(self, place: str, floor: int) -> int:
        """Replace a record below the floor by an empty object, and remove what has long been replaced; 1 if it was such
        a record."""
        record, seen = self._read(place, RECORDS)
        register, now = self._register(place), self._clock.now()
        if record is None:
            listed = list(self._objects.list(f"{place}/"))
            if listed and listed[0].modified_at < now - self._keep_seconds:
                # Keep the newest version: a writer that has read it must still conflict with a fresh start.
                self._objects.delete([info.key for info in listed[1:]])
            return 0
        if record.token >= floor:
            register.forget(now=now, older_than_seconds=self._keep_seconds)
            return 0
        try:
            register.replace(_FORGOTTEN, seen)
        except Stale:
            # A newer token came: that record is wanted again.
            return 0
        return 1

    def _read(self, place: str, form: JsonRecord[ValueT]) -> tuple[ValueT | None, Version | None]:
        seen = self._register(place).read()
        if seen is None or seen.value == _FORGOTTEN:
            return None, seen
        return form.decode(seen.value, place), seen

    def _place(self, resource: str) -> str:
        return f"{self._prefix}/resource/{hashlib.sha256(resource.encode()).hexdigest()[:32]}"

    @property
    def _floor_place(self) -> str:
        return f"{self._prefix}/floor"

    def _register(self, place: str) -> ObjectRegister:
        return ObjectRegister(self._objects, place, clock=self._clock)

    def __repr__(self) -> str:
        return f"ObjectFence({self._prefix!r})"

