# SPDX-License-Identifier: Apache-2.0
"""A value that is replaced by compare-and-set, over any object store: each version is an object of its own.

Version n is created on the condition that there is no object of its name (`If-None-Match: *`), so of all who replace
version n - 1 one succeeds. Names count down, so that a listing begins with the newest. Each version names the one it
follows: whoever was so slow that its name had been forgotten meanwhile finds newer ones that do not follow it.
"""

from __future__ import annotations

import contextlib
import os
import random
from collections.abc import Callable
from itertools import pairwise
from typing import TypeVar

import attrs

from compactlib._arguments import require_age
from compactlib.clock import Clock
from compactlib.errors import Busy, CorruptData, Stale, StorageError
from compactlib.files.record_frame import RecordFrame
from compactlib.kv.cell import look_until_seen
from compactlib.objects.errors import AccessDenied, ObjectExists, ObjectNotFound, ObjectStoreFailed
from compactlib.objects.store import ObjectStore, check_key

_FRAME = RecordFrame("version of a register", b"CLREGSTR", 1, "<HQ16s16s")
_ID_BYTES = 16
NO_ID = bytes(_ID_BYTES)
"""What the first version follows."""
_LAST = 10 ** 20 - 1
_LOOKS = 20

SeenT = TypeVar("SeenT")


@attrs.frozen
class Version:
    """What a register held at one moment.

    Attributes:
        number: 1 for the first, and one more for each that follows.
        id: of whoever wrote it, unique.
        follows: the id of the version before.
        value: the bytes.
    """

    number: int
    id: bytes
    follows: bytes
    value: bytes


class ObjectRegister:
    """A value over an object store. Any number of processes may read and replace it.

    Args:
        store: where.
        prefix: what the keys of its versions begin with; for them alone.
        new_id: gives each version its id: 16 bytes, never the same.
        clock: for the pauses between looks for a write without an answer.
        rng: varies them.
    """

    def __init__(self, store: ObjectStore, prefix: str, *, new_id: Callable[[], bytes] = lambda: os.urandom(_ID_BYTES),
                 clock: Clock | None = None, rng: random.Random | None = None) -> None:
        check_key(f"{prefix}/{0:020}")
        self._store = store
        self._prefix = prefix
        self._new_id = new_id
        self._clock = clock
        self._rng = rng

    def read(self) -> Version | None:
        """The newest version, `None` if nothing was ever written. Two requests.

        Raises:
            CorruptData, Unsupported: it is damaged, or a later release wrote it.
            ObjectStoreFailed: the store cannot be asked.
            Busy: newer versions come, and older ones go, faster than they can be read.
        """
        for _ in range(_LOOKS):
            newest = self._newest()
            if newest is None:
                return None
            with contextlib.suppress(ObjectNotFound):
                return self._at(newest)
        raise Busy(f"the versions of {self._prefix!r} went {_LOOKS} times before they could be read; ask again")

    def replace(self, value: bytes, seen: Version | None) -> Version:
        """Put a value in the place of the version that was seen. Four requests where all goes well.

        A write without an answer is tried again until its outcome is seen.

        Raises:
            Stale: there is another version by now; this one does not count, and never will.
            AccessDenied: the store does not let these credentials write; nothing was changed.
            StorageError: a disk that the store is on refused; nothing was changed.
            ObjectStoreFailed: the store is away. If that is said of the operation `create`, the outcome is unknown.
        """
        number, follows = (1, NO_ID) if seen is None else (seen.number + 1, seen.id)
        if (self._newest() or 0) >= number:
            raise self._lost(number)
        version = Version(number, self._new_id(), follows, value)
        data = _FRAME.encode(number, version.id, follows, body=value)
        unknown = ObjectStoreFailed(operation="create", key=self._key(number),
                                    detail="it was written, and whether it counts cannot be seen")
        try:
            self._create(number, data)
        except AccessDenied:
            raise
        except (ObjectStoreFailed, StorageError) as error:
            if isinstance(error, ObjectStoreFailed):
                unknown = error
            elif (self._seen(self._newest, unknown) or 0) < number:
                raise
            # A disk that refuses the last sync alone has the name, for all to see.
            self._seen(lambda: self._create(number, data), unknown)
        if not self._seen(lambda: self._counts(version), unknown):
            raise self._lost(number)
        return version

    def _create(self, number: int, data: bytes) -> None:
        # What exists is another's, or what an earlier request of this call has left: that is seen next.
        with contextlib.suppress(ObjectExists):
            self._store.create(self._key(number), data)

    def _counts(self, version: Version) -> bool:
        """Whether this version, whose name is there, is the one of its number."""
        newest = self._newest()
        if newest is None or newest <= version.number:
            return self._at(version.number).id == version.id
        # A name that was forgotten can be had again; what follows says whom it follows.
        return self._at(version.number + 1).follows == version.id

    def _seen(self, look: Callable[[], SeenT], unknown: ObjectStoreFailed) -> SeenT:
        return look_until_seen(look, unknown, clock=self._clock, rng=self._rng)

    def _lost(self, number: int) -> Stale:
        return Stale(f"{self._prefix!r} has another version {number} than the one to be written; read it, and begin "
                     f"anew")

    def forget(self, *, now: float, older_than_seconds: float) -> int:
        """Delete versions that were followed so long ago; returns how many. The newest stays, and the one before it.

        Args:
            now: seconds since the epoch by the store's clock.
            older_than_seconds: more than any reader or writer of an old version takes.

        Raises:
            InvalidInput: `now` is no number, or `older_than_seconds` none from 0 on.
            ObjectStoreFailed: the store refused; call again.
        """
        require_age(now, older_than_seconds)
        listed = list(self._store.list(f"{self._prefix}/"))
        old = [info.key for newer, info in pairwise(listed[1:]) if newer.modified_at < now - older_than_seconds]
        if old:
            self._store.delete(old)
        return len(old)

    def versions(self) -> list[Version]:
        """All that are kept, the newest first.

        Raises:
            CorruptData, Unsupported: as for `read`.
            ObjectStoreFailed: the store cannot be asked.
        """
        found: list[Version] = []
        for info in self._store.list(f"{self._prefix}/"):
            with contextlib.suppress(ObjectNotFound):
                found.append(self._at(self._number(info.key)))
        return found

    def _newest(self) -> int | None:
        info = next(iter(self._store.list(f"{self._prefix}/")), None)
        return None if info is None else self._number(info.key)

    def _at(self, number: int) -> Version:
        key = self._key(number)
        held, own, follows, value = _FRAME.decode(self._store.get(key), key)
        if held != number:
            raise CorruptData(path=key, offset=10, expected=f"version {number}", found=f"version {held}")
        return Version(number, own, follows, value)

    def _key(self, number: int) -> str:
        return f"{self._prefix}/{_LAST - number:020}"

    def _number(self, key: str) -> int:
        name = key.removeprefix(f"{self._prefix}/")
        if not (len(name) == 20 and name.isascii() and name.isdigit()):
            raise CorruptData(path=key, offset=0, expected="a name of 20 digits", found="a foreign object")
        return _LAST - int(name)

    def __repr__(self) -> str:
        return f"ObjectRegister({self._prefix!r})"
