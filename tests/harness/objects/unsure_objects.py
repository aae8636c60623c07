# SPDX-License-Identifier: Apache-2.0
"""Objects in memory that lose the answer to one request, carried out or not."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from compactlib.clock import Clock
from compactlib.objects import MemoryObjects, ObjectInfo, ObjectRef, ObjectStoreFailed


class UnsureObjects(MemoryObjects):
    """Counts requests; one request, or each from it on, fails without an answer.

    Attributes:
        requests: the number of requests so far.
        fail_at: the number, from 1, of the failing request; 0: no request fails.
        carried_out: whether the failing request is carried out.
        stays_away: whether later requests fail, too, without being carried out.
        meanwhile: called before each request, with its number.
    """

    def __init__(self, *, clock: Clock | None = None) -> None:
        super().__init__(clock=clock)
        self.requests = 0
        self.fail_at = 0
        self.carried_out = False
        self.stays_away = False
        self.meanwhile: Callable[[int], object] = lambda number: None

    def arm(self, fail_at: int, *, carried_out: bool = False, stays_away: bool = False) -> None:
        """Restart the count, with this fault."""
        self.requests, self.fail_at, self.carried_out, self.stays_away = 0, fail_at, carried_out, stays_away

    def _fails(self) -> bool:
        self.requests += 1
        self.meanwhile(self.requests)
        return self.fail_at == self.requests or (self.stays_away and 0 < self.fail_at < self.requests)

    def _raise(self, key: str) -> None:
        raise ObjectStoreFailed(operation="create", key=key, detail="no answer")

    def create(self, key: str, data: bytes | memoryview) -> ObjectRef:
        if not self._fails():
            return super().create(key, data)
        if self.carried_out and self.requests == self.fail_at:
            super().create(key, data)
        raise ObjectStoreFailed(operation="create", key=key, detail="no answer")

    def get(self, key: str) -> bytes:
        if self._fails():
            self._raise(key)
        return super().get(key)

    def get_range(self, key: str, start: int, length: int) -> bytes:
        if self._fails():
            self._raise(key)
        return super().get_range(key, start, length)

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        if self._fails():
            self._raise(prefix)
        return super().list(prefix)

    def delete(self, keys: Iterable[str]) -> None:
        doomed = list(keys)
        if self._fails():
            self._raise(doomed[0])
        super().delete(doomed)

    def close(self) -> None:
        """Do nothing: the test uses the objects again."""
