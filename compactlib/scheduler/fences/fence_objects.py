# SPDX-License-Identifier: Apache-2.0
"""A fence in an object store: for workers on any machine, without locks (`fence.py` says what it promises).

The highest token and the committed value of a resource are one value, replaced by compare-and-set over conditional puts
(`compactlib.objects.register`), so that one step both checks the token and commits. The floor is another, raised before
records below it are taken away, and read after a record is; whoever finds none makes one, and reads the floor again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from itertools import groupby

from compactlib.clock import Clock, SystemClock
from compactlib.errors import Busy, Stale
from compactlib.objects import ObjectStore
from compactlib.objects.register import ObjectRegister, Version
from compactlib.objects.store import delete_many
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

_MAX_ATTEMPTS = 100
_FORGOTTEN = b""


class ObjectFence:
    """A `Fence` whose records are objects; as durable and as shared as the store.

    An admission or commit costs eight requests, and as many again for each time that another writer was faster.
    Beside what `Fence` names, every method raises what the store raises; a call may be repeated.

    Args:
        objects: where.
        prefix: what the keys of its objects begin with, for this fence alone.
        keep_seconds: how long `raise_floor` keeps what was replaced: more than any worker is ever paused.
        clock: for the pauses between looks, and compared with the ages of objects.
    """

    def __init__(self, objects: ObjectStore, *, prefix: str = "fences", keep_seconds: float = 7 * 86_400.0,
                 clock: Clock | None = None) -> None:
        self._objects = objects
        self._prefix = prefix
        self._keep_seconds = keep_seconds
        self._clock: Clock = SystemClock() if clock is None else clock

    def admit(self, resource: str, token: int) -> Admission:
        """See `Fence.admit`."""
        check_names(resource, token)
        return self._change(resource, lambda record, floor: check_admission(resource, token, record, floor))

    def commit(self, resource: str, token: int, value: bytes) -> Admission:
        """See `Fence.commit`."""
        check_names(resource, token)
        wanted = checked_value(value)
        return self._change(resource, lambda record, floor: check_commit(resource, token, wanted, record, floor))

    def committed(self, resource: str) -> Commitment | None:
        """See `Fence.committed`. Two requests."""
        check_names(resource, 0)
        record, _ = self._read(self._place(resource))
        return None if record is None else record.committed

    def raise_floor(self, token: int) -> int:
        """See `Fence.raise_floor`. Reads every record, and one object of each that was ever removed; may be interrupted
        and called again."""
        check_token(token)
        floor = self._raise_floor(token)
        return sum(self._forget(place, floor) for place in self._places())

    def _change(self, resource: str, changed_by: Callable[[Admission | None, int], Admission]) -> Admission:
        place = self._place(resource)
        for _ in range(_MAX_ATTEMPTS):
            record, seen = self._read(place)
            changed = changed_by(record, self._floor())
            if changed == record:
                return changed
            try:
                self._register(place).replace(encode_record(changed), seen)
            except Stale:
                continue
            if record is None:
                # It was there, perhaps, and taken away because the floor rose.
                check_admission(resource, changed.token, changed, self._floor())
            return changed
        raise Busy(f"{resource!r} was changed by others {_MAX_ATTEMPTS} times in a row; wait and call again")

    def _raise_floor(self, token: int) -> int:
        place = f"{self._prefix}/floor"
        for _ in range(_MAX_ATTEMPTS):
            record, seen = self._read(place)
            if record is not None and record.token >= token:
                return record.token
            try:
                self._register(place).replace(encode_record(Admission("", token, None)), seen)
            except Stale:
                continue
            self._register(place).forget(now=self._clock.now(), older_than_seconds=self._keep_seconds)
            return token
        raise Busy(f"the floor was changed by others {_MAX_ATTEMPTS} times in a row; wait and call again")

    def _forget(self, place: str, floor: int) -> int:
        """Take a record below the floor away, but for one empty object, and what has long been replaced; 1 if it was
        such a record."""
        record, seen = self._read(place)
        register, now = self._register(place), self._clock.now()
        if record is None:
            listed = list(self._objects.list(f"{place}/"))
            if listed and listed[0].modified_at < now - self._keep_seconds:
                # The newest stays: were it gone, who has just seen it would write beyond what another begins anew.
                delete_many(self._objects, [info.key for info in listed[1:]])
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

    def _read(self, place: str) -> tuple[Admission | None, Version | None]:
        seen = self._register(place).read()
        if seen is None or seen.value == _FORGOTTEN:
            return None, seen
        return decode_record(seen.value, place), seen

    def _floor(self) -> int:
        record, _ = self._read(f"{self._prefix}/floor")
        return 0 if record is None else record.token

    def _places(self) -> list[str]:
        keys = (info.key for info in self._objects.list(f"{self._prefix}/resource/"))
        return [place for place, _ in groupby(key.rpartition("/")[0] for key in keys)]

    def _place(self, resource: str) -> str:
        return f"{self._prefix}/resource/{hashlib.sha256(resource.encode()).hexdigest()[:32]}"

    def _register(self, place: str) -> ObjectRegister:
        return ObjectRegister(self._objects, place, clock=self._clock)

    def __repr__(self) -> str:
        return f"ObjectFence({self._prefix!r})"
