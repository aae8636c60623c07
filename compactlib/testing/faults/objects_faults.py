# SPDX-License-Identifier: Apache-2.0
"""An object store that fails, crashes or leaves the outcome unknown at chosen requests."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Self, TypeAlias, TypeVar

import attrs

from compactlib.objects.errors import ObjectStoreFailed
from compactlib.objects.store import ObjectInfo, ObjectRef, ObjectStore
from compactlib.testing.faults.plan import Crash, Fault

T = TypeVar("T")


@attrs.frozen
class ObjectRequest:
    """One request that reached the store.

    Attributes:
        number: counted from 1 for one `FaultyObjects`.
        name: `"create"`, `"get"`, `"get_range"`, `"info"`, `"list"` or `"delete"`.
        key: the key, or the prefix of a listing.
    """

    number: int
    name: str
    key: str

    def __str__(self) -> str:
        return f"request {self.number}: {self.name} {self.key!r}"


ObjectFaultChoice: TypeAlias = Callable[[ObjectRequest], Fault | None]
"""Says for each request, before it is carried out, what happens to it; `None`: nothing."""


class FaultyObjects:
    """An `ObjectStore` in front of another one. Threads may share it.

    `REFUSED` and `UNKNOWN_LOST` are not carried out, `UNKNOWN_DONE` is; all three end in `ObjectStoreFailed`. After a
    crash every request raises `Crash`. Other faults do not happen here. Closing it does not close the store behind it.

    Args:
        store: carries out what does not fail.
        faults: chooses.

    Attributes:
        requests: every request so far, those that failed included.
    """

    def __init__(self, store: ObjectStore, faults: ObjectFaultChoice | None = None) -> None:
        self.requests: list[ObjectRequest] = []
        self._store = store
        self._faults = faults
        self._crashed = False
        self._lock = threading.Lock()

    def create(self, key: str, data: bytes | memoryview) -> ObjectRef:
        """See `ObjectStore.create`."""
        return self._request("create", key, lambda: self._store.create(key, data))

    def get(self, key: str) -> bytes:
        """See `ObjectStore.get`."""
        return self._request("get", key, lambda: self._store.get(key))

    def get_range(self, key: str, start: int, length: int) -> bytes:
        """See `ObjectStore.get_range`."""
        return self._request("get_range", key, lambda: self._store.get_range(key, start, length))

    def info(self, key: str) -> ObjectInfo:
        """See `ObjectStore.info`."""
        return self._request("info", key, lambda: self._store.info(key))

    def list(self, prefix: str = "", *, after: str = "") -> Iterator[ObjectInfo]:
        """See `ObjectStore.list`. A listing is one request."""
        return self._request("list", prefix, lambda: self._store.list(prefix, after=after))

    def delete(self, key: str) -> None:
        """See `ObjectStore.delete`."""
        self._request("delete", key, lambda: self._store.delete(key))

    def available_bytes(self) -> int | None:
        """See `ObjectStore.available_bytes`; no request that could fail."""
        return self._store.available_bytes()

    def audit(self) -> None:
        """See `ObjectStore.audit`; no request that could fail."""
        self._store.audit()

    def close(self) -> None:
        """The store behind stays open."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"FaultyObjects({self._store!r}, {len(self.requests)} requests, crashed={self._crashed})"

    def _request(self, name: str, key: str, act: Callable[[], T]) -> T:
        if self._crashed:
            raise Crash("a request after the crash")
        with self._lock:
            request = ObjectRequest(len(self.requests) + 1, name, key)
            self.requests.append(request)
        fault = None if self._faults is None else self._faults(request)
        if fault is Fault.CRASH_BEFORE:
            raise self._crash(request)
        if fault in (Fault.REFUSED, Fault.UNKNOWN_LOST):
            raise ObjectStoreFailed(operation=name, key=key, detail=f"an injected fault at {request}")
        answer = act()
        if fault is Fault.CRASH_AFTER:
            raise self._crash(request)
        if fault is Fault.UNKNOWN_DONE:
            raise ObjectStoreFailed(operation=name, key=key, detail=f"an injected time-out at {request}")
        return answer

    def _crash(self, request: ObjectRequest) -> Crash:
        self._crashed = True
        return Crash(str(request))
