# SPDX-License-Identifier: Apache-2.0
"""An object store that fails, crashes or leaves the outcome unknown at chosen requests."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, TypeAlias

import attrs

from compactlib.objects.errors import ObjectStoreFailed
from compactlib.objects.store import ObjectStore
from compactlib.testing import ObjectsInFront, Request
from tests.tools.faults.plan import Crash, Fault


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


class FaultyObjects(ObjectsInFront):
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
        super().__init__(store, self._failing)
        self.requests: list[ObjectRequest] = []
        self._faults = faults
        self._crashed = False
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return f"FaultyObjects({self._store!r}, {len(self.requests)} requests, crashed={self._crashed})"

    def _failing(self, asked: Request, act: Callable[[], Any]) -> Any:
        name, key = asked.kind, asked.path
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
