# SPDX-License-Identifier: Apache-2.0
"""`ObjectRegister`: a value over any object store that is replaced by compare-and-set; each version is an object.

Version n is created on the condition that its name does not exist (`If-None-Match: *`), so one of all writers that
replace version n - 1 succeeds. Names count down, so that a listing begins with the newest. Each version has the id of
its predecessor: a writer that was so slow that its name had been deleted finds newer versions that do not follow it.
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
from compactlib.kv.cell import resolve_unknown
from compactlib.objects.errors import AccessDenied, ObjectExists, ObjectNotFound, ObjectStoreFailed
from compactlib.objects.store import ObjectStore, check_key

_FRAME = RecordFrame("version of a register", b"CLREGSTR", 1, "<HQ16s16s")
_ID_BYTES = 16
NO_ID = bytes(_ID_BYTES)
"""The predecessor of the first version."""
_LAST = 10 ** 20 - 1
_LOOKS = 20

SeenT = TypeVar("SeenT")


@attrs.frozen
class Version:
    """A version of a register: its number, from 1 on, the id of its write, the id of the version before, its bytes."""

    number: int
    id: bytes
    follows: bytes
    value: bytes


class ObjectRegister:
    """A value over an object store, which any number of processes read and replace.

    Args:
        store: the store of the versions.
        prefix: the prefix of the keys of its versions, for them alone.
        clock: the clock for the waits between reads after a write without an answer.
        rng: varies the waits.
    """

    def __init__(self, store: ObjectStore, prefix: str, *, clock: Clock | None = None,
                 rng: random.Random | None = None) -> None:
        check_key(f"{prefix}/{0:020}")
        self._store = store
        self._prefix = prefix
        self._clock = clock
        self._rng = rng

    def read(self) -> Version | None:
        """Return the newest version, `None` if nothing was written. Two requests.

        Raises:
            CorruptData, Unsupported: the version is damaged, or a later release wrote it.
            ObjectStoreFailed: the store cannot be reached.
            Busy: versions are replaced and deleted faster than they can be read.
        """
        for _ in range(_LOOKS):
            newest = self._newest()
            if newest is None:
                return None
            with contextlib.suppress(ObjectNotFound):
                return self._at(newest)
        raise Busy(f"the versions of {self._prefix!r} went {_LOOKS} times before they could be read; ask again")

    def replace(self, value: bytes, seen: Version | None) -> Version:
        """Replace the version `seen`. Four requests without errors.

        A write without an answer is repeated until its outcome is known.

        Raises:
            Stale: there is a newer version; this write has no effect, and never will.
            AccessDenied: the credentials have no right to write; nothing was changed.
            StorageError: the store's disk refused; nothing was changed.
            ObjectStoreFailed: the store cannot be reached. If its operation is `create`, the outcome is unknown.
        """
        number, follows = (1, NO_ID) if seen is None else (seen.number + 1, seen.id)
        if (self._newest() or 0) >= number:
            raise self._lost(number)
        version = Version(number, os.urandom(_ID_BYTES), follows, value)
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
            # If the disk refuses only the last sync, the name exists and is visible.
            self._seen(lambda: self._create(number, data), unknown)
        if not self._seen(lambda: self._counts(version), unknown):
            raise self._lost(number)
        return version

    def _create(self, number: int, data: bytes) -> None:
        # The object is another writer's, or of an earlier request of this call: the next read shows which.
        with contextlib.suppress(ObjectExists):
            self._store.create(self._key(number), data)

    def _counts(self, version: Version) -> bool:
        """Return whether an existing version is in the chain of versions."""
        newest = self._newest()
        if newest is None or newest <= version.number:
            return self._at(version.number).id == version.id
        # A deleted name can be created again; the next version shows which version it follows.
        return self._at(version.number + 1).follows == version.id

    def _seen(self, look: Callable[[], SeenT], unknown: ObjectStoreFailed) -> SeenT:
        return resolve_unknown(look, unknown, clock=self._clock, rng=self._rng)

    def _lost(self, number: int) -> Stale:
        return Stale(f"{self._prefix!r} has another version {number} than the one to be written; read it, and begin "
                     f"anew")

    def forget(self, *, now: float, older_than_seconds: float) -> int:
        """Delete versions that were replaced long ago, but not the last two; return their number.

        Args:
            now: seconds since the epoch by the store's clock.
            older_than_seconds: since the replacement; longer than any reader or writer takes.

        Raises:
            InvalidInput: `now` is not a number, or `older_than_seconds` is negative.
            ObjectStoreFailed: the store refused; call again.
        """
        require_age(now, older_than_seconds)
        listed = list(self._store.list(f"{self._prefix}/"))
        old = [info.key for newer, info in pairwise(listed[1:]) if newer.modified_at < now - older_than_seconds]
        if old:
            self._store.delete(old)
        return len(old)

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
