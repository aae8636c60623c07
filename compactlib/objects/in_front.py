# SPDX-License-Identifier: Apache-2.0
"""`ObjectsInFront`: an object store in front of another one, for what looks at each request, or interferes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeVar

from compactlib._closing import Closing
from compactlib.objects.store import ObjectInfo, ObjectRef, ObjectStore

AnswerT = TypeVar("AnswerT")


class ObjectsInFront(Closing):
    """An `ObjectStore` whose requests all go through `_request`. Closing it does not close the store behind it.

    Args:
        store: carries everything out.
    """

    def __init__(self, store: ObjectStore) -> None:
        self._store = store

    def _request(self, name: str, key: str, act: Callable[[], AnswerT]) -> AnswerT:
        """One request; `act` has the store behind carry it out. Of a listing `key` is the prefix."""
        return act()

    def create(self, key: str, data: bytes | memoryview) -> ObjectRef:
        return self._request("create", key, lambda: self._store.create(key, data))

    def get(self, key: str) -> bytes:
        return self._request("get", key, lambda: self._store.get(key))

    def get_range(self, key: str, start: int, length: int) -> bytes:
        return self._request("get_range", key, lambda: self._store.get_range(key, start, length))

    def info(self, key: str) -> ObjectInfo:
        return self._request("info", key, lambda: self._store.info(key))

    def list(self, prefix: str = "", *, after: str = "") -> Iterator[ObjectInfo]:
        """See `ObjectStore.list`. A listing is one request."""
        return self._request("list", prefix, lambda: self._store.list(prefix, after=after))

    def delete(self, key: str) -> None:
        self._request("delete", key, lambda: self._store.delete(key))

    def available_bytes(self) -> int | None:
        """See `ObjectStore.available_bytes`; no request."""
        return self._store.available_bytes()

    def close(self) -> None:
        """The store behind stays open."""
