# SPDX-License-Identifier: Apache-2.0
"""`metered`: a key-value store or an object store that reports its requests to an observer, as metrics.

>>> from compactlib.kv import MemoryStore
>>> from compactlib.observer import EventRecorder
>>> seen = EventRecorder()
>>> store = metered(MemoryStore(), seen, name="accounts")
>>> store.set(b"p", b"k", b"1234")
>>> seen.named("kv_written_bytes")
[{'add': 4, 'store': 'accounts', 'operation': 'set'}]

| event, after `kv_` or `objects_` | counts | labels |
|---|---|---|
| `requests` | each call; also each page of a scan, and each listing | `store`, `operation`, `outcome` |
| `request_seconds` | the same; for a listing the time in the store | `store`, `operation` |
| `read_bytes` | values and objects read; for a scan page by page | `store`, `operation` |
| `written_bytes` | values and objects written; failed writes count 0 | `store`, `operation` |

The values of labels are few: the host names the store, operations are methods, and an outcome is `ok` or the name of an
error class of this library (`error` for any other exception).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, TypeVar, cast

from compactlib._closing import Closing
from compactlib.clock import Clock, SystemClock
from compactlib.errors import CompactlibError
from compactlib.kv import Entries, KVEntry, KVStore
from compactlib.objects import ObjectInfo, ObjectRef, ObjectStore
from compactlib.observer import Observer, notify

StoreT = TypeVar("StoreT", KVStore, ObjectStore)

_REQUESTS: Final = frozenset({
    "get", "get_many", "set", "set_if", "delete", "delete_if", "transact", "create", "get_range", "info",
})


def metered(store: StoreT, observer: Observer, *, name: str, clock: Clock | None = None) -> StoreT:
    """Return a store that passes all requests on to another store, and reports them; closing it closes the other.

    A request costs a few microseconds more, an entry of a scan less than a microsecond.

    Args:
        store: a key-value store or an object store.
        observer: receives the events.
        name: the label `store`, unique in the process.
        clock: times the requests.
    """
    return cast("StoreT", _Metered(store, observer, name, SystemClock() if clock is None else clock))


class _Request:
    """Times the calls that make up one request, and keeps the outcome of the last call."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.seconds = 0.0
        self.outcome = "ok"

    def call(self, act: Callable[[], Any]) -> Any:
        began, self.outcome = self._clock.monotonic(), "error"
        try:
            answer = act()
            self.outcome = "ok"
        except CompactlibError as error:
            self.outcome = type(error).__name__
            raise
        finally:
            self.seconds += self._clock.monotonic() - began
        return answer


class _Metered(Closing):
    """Passes all calls on to a store, and reports the requests among them."""

    def __init__(self, store: KVStore | ObjectStore, observer: Observer, name: str, clock: Clock) -> None:
        self._store = store
        self._observer = observer
        self._name = name
        self._family: str = (store._family if isinstance(store, _Metered) else
                             "kv" if isinstance(store, KVStore) else "objects")
        self._clock = clock

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._store, name)
        return functools.partial(self._request, name, found) if name in _REQUESTS else found

    def _request(self, operation: str, act: Callable[..., Any], *args: Any, **named: Any) -> Any:
        answer = self.timed(operation, functools.partial(act, *args, **named))
        if operation in ("set", "set_if"):
            self.count_bytes("written", operation, memoryview(named["value"] if "value" in named else args[2]).nbytes)
        elif operation == "transact":
            changes = named.get("changes", args[1] if len(args) > 1 else {})
            self.count_bytes("written", operation, sum(
                memoryview(value).nbytes for value in changes.values() if value is not None))
        elif isinstance(answer, ObjectRef):
            self.count_bytes("written", operation, answer.size_bytes)
        else:
            self.count_bytes("read", operation, _size_of(answer))
        return answer

    def scan(self, *args: Any, **named: Any) -> Entries:
        entries = cast("KVStore", self._store).scan(*args, **named)
        load = entries.load

        def reported(start: bytes, limit: int) -> tuple[Sequence[KVEntry], bool]:
            page, is_last = self.timed("scan", functools.partial(load, start, limit))
            self.count_bytes("read", "scan", sum(len(entry.value) for entry in page) or None)
            return page, is_last

        entries.load = reported
        return entries

    def list(self, *args: Any, **named: Any) -> Iterator[ObjectInfo]:
        request = _Request(self._clock)
        try:
            listing = request.call(lambda: iter(cast("ObjectStore", self._store).list(*args, **named)))
        finally:
            if request.outcome != "ok":
                self.report("list", request)
        return self._listed(listing, request)

    def _listed(self, listing: Iterator[ObjectInfo], request: _Request) -> Iterator[ObjectInfo]:
        try:
            while (info := request.call(functools.partial(next, listing, None))) is not None:
                yield info
        finally:
            self.report("list", request)

    def close(self) -> None:
        self._store.close()

    def __repr__(self) -> str:
        return f"metered({self._store!r})"

    # ---- reports

    def timed(self, operation: str, act: Callable[[], Any]) -> Any:
        """Carry out a request and report it."""
        request = _Request(self._clock)
        try:
            return request.call(act)
        finally:
            self.report(operation, request)

    def report(self, operation: str, request: _Request) -> None:
        labels = {"store": self._name, "operation": operation}
        notify(self._observer, f"{self._family}_request_seconds", sample=request.seconds, **labels)
        notify(self._observer, f"{self._family}_requests", add=1, **labels, outcome=request.outcome)

    def count_bytes(self, direction: str, operation: str, size: int | None) -> None:
        if size is not None:
            notify(self._observer, f"{self._family}_{direction}_bytes", add=size, store=self._name,
                   operation=operation)


def _size_of(content: object) -> int | None:
    """Return the bytes of values in an answer; `None` for a type without values."""
    if isinstance(content, bytes):
        return len(content)
    if isinstance(content, KVEntry):
        return len(content.value)
    if isinstance(content, dict):
        return sum(len(entry.value) for entry in content.values())
    return None
