# SPDX-License-Identifier: Apache-2.0
"""`KVFence` and `ObjectFence`: fences in a store, for workers on any machine, without locks (promises: `fence.py`).

A record is changed by compare-and-set: if another token was admitted in between, or the record was removed, it fails.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import groupby

from compactlib.clock import Clock, SystemClock
from compactlib.errors import Busy, InvalidInput, Stale
from compactlib.fences.fence import FORMATS, Admission, Fence, ValueT
from compactlib.kv import KVStore
from compactlib.kv.cell import Cell
from compactlib.objects import ObjectStore
from compactlib.objects.register import ObjectRegister, Version

_MAX_ATTEMPTS = 100
_FORGOTTEN = b""
"""The value of a removed record in an object store."""


class KVFence(Fence):
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

    _floor_place = b"floor"

    def __init__(self, store: KVStore, *, log: str = "", partition: bytes = b"fences", clock: Clock | None = None,
                 rng: random.Random | None = None) -> None:
        self._store = store
        self._log = log
        self._partition = partition
        self._clock = clock
        self._rng = rng

    def _read(self, place: bytes, kind: type[ValueT]) -> ValueT | None:
        return self._cell(place, kind).read()

    def _update(self, place: bytes, kind: type[ValueT], change: Callable[[ValueT | None], ValueT]) -> ValueT:
        after = self._cell(place, kind).update(change, operation=f"a change of {place!r} in {self!r}",
                                               may_repeat=True).after
        assert after is not None, "nothing is removed here"
        return after

    def _place(self, resource: str) -> bytes:
        return b"resource/" + resource.encode()

    def _places(self) -> Iterator[bytes]:
        with self._store.scan(self._partition, prefix=b"resource/", keys_only=True) as entries:
            yield from (entry.key for entry in entries)

    def _forget(self, place: bytes, floor: int) -> bool:
        done = self._cell(place, Admission).update(
            lambda record: record if record is None or record.token >= floor else None, may_repeat=True)
        return done.before is not None and done.after is None

    def _cell(self, place: bytes, kind: type[ValueT]) -> Cell[ValueT]:
        return Cell(self._store, self._partition, place, kind, clock=self._clock, rng=self._rng)

    def __repr__(self) -> str:
        return f"KVFence(partition {self._partition!r})"


class ObjectFence(Fence):
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
        if not keep_seconds >= 0:
            raise InvalidInput(f"keep_seconds is {keep_seconds!r}; give seconds, 0 or more")
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
                self._register(place).replace(FORMATS[kind].encode(wanted), seen)
                return wanted
        raise Busy(f"{place!r} was changed by others {_MAX_ATTEMPTS} times in a row; wait and call again")

    def _place(self, resource: str) -> str:
        return f"{self._prefix}/resource/{hashlib.sha256(resource.encode()).hexdigest()[:32]}"

    def _places(self) -> list[str]:
        self._tidy(self._floor_place)
        keys = (info.key for info in self._objects.list(f"{self._prefix}/resource/"))
        return [place for place, _ in groupby(key.rpartition("/")[0] for key in keys)]

    def _forget(self, place: str, floor: int) -> bool:
        record, seen = self._seen(place, Admission)
        if record is None:
            listed = list(self._objects.list(f"{place}/"))
            if listed and listed[0].modified_at < self._clock.now() - self._keep_seconds:
                # Keep the newest version: a writer that has read it must still conflict with a fresh start.
                self._objects.delete([info.key for info in listed[1:]])
        elif record.token >= floor:
            self._tidy(place)
        else:
            with suppress(Stale):  # a newer token was admitted: the record stays
                self._register(place).replace(_FORGOTTEN, seen)
                return True
        return False

    def _tidy(self, place: str) -> None:
        """Delete values that were replaced long ago, but not the last two."""
        self._register(place).forget(now=self._clock.now(), older_than_seconds=self._keep_seconds)

    def _seen(self, place: str, kind: type[ValueT]) -> tuple[ValueT | None, Version | None]:
        seen = self._register(place).read()
        if seen is None or seen.value == _FORGOTTEN:
            return None, seen
        return FORMATS[kind].decode(seen.value, place), seen

    def _register(self, place: str) -> ObjectRegister:
        return ObjectRegister(self._objects, place, clock=self._clock)

    def __repr__(self) -> str:
        return f"ObjectFence({self._prefix!r})"
