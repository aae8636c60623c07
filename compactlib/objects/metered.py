# SPDX-License-Identifier: Apache-2.0
"""`MeteredObjects`: an object store that notifies an observer of its requests (metrics).

>>> from compactlib.objects import MemoryObjects
>>> from compactlib.observer import EventRecorder
>>> seen = EventRecorder()
>>> with MeteredObjects(MemoryObjects(), seen, name="ranges") as store:
...     ref = store.create("a", b"1234")
>>> seen.named("objects_written_bytes")
[{'add': 4, 'store': 'ranges', 'operation': 'create'}]
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from compactlib.clock import Clock, SystemClock
from compactlib.meter import Meter
from compactlib.objects.in_front import AnswerT, ObjectsInFront
from compactlib.objects.keys import checked_deletes
from compactlib.objects.store import MultiDelete, ObjectInfo, ObjectRef, ObjectStore
from compactlib.observer import Observer


class MeteredObjects(ObjectsInFront):
    """An `ObjectStore` in front of another one; put it where the other one was. Raises what the other one raises.

    Reported with each request: `objects_requests` with its outcome, `objects_request_seconds`, and the bytes read or
    written (`objects_read_bytes`, `objects_written_bytes`). A listing is one request, reported when it ends or is left;
    its time is what the store took, not what was done between its entries.

    Args:
        store: carries everything out; closed with this one.
        observer: is notified.
        name: the label `store`; give each store of a process its own.
        clock: times the requests.
    """

    def __init__(self, store: ObjectStore, observer: Observer, *, name: str, clock: Clock | None = None) -> None:
        super().__init__(store)
        self._clock: Clock = SystemClock() if clock is None else clock
        self._meter = Meter(observer, "objects", name, self._clock)

    def _request(self, name: str, key: str, act: Callable[[], AnswerT]) -> AnswerT:
        with self._meter.request(name):
            answer = act()
        if isinstance(answer, bytes):
            self._meter.read(name, len(answer))
        elif isinstance(answer, ObjectRef):
            self._meter.written(name, answer.size_bytes)
        return answer

    def list(self, prefix: str = "", *, after: str = "") -> Iterator[ObjectInfo]:
        began = self._meter.began()
        try:
            listing = iter(self._store.list(prefix, after=after))
        except BaseException as error:
            self._meter.ended("list", began, error)
            raise
        return self._listed(listing, self._clock.monotonic() - began)

    def _listed(self, listing: Iterator[ObjectInfo], waited: float) -> Iterator[ObjectInfo]:
        failed: BaseException | None = None
        try:
            while True:
                began = self._clock.monotonic()
                try:
                    info = next(listing)
                except StopIteration:
                    return
                except BaseException as error:
                    failed = error
                    raise
                finally:
                    waited += self._clock.monotonic() - began
                yield info
        finally:
            self._meter.ended("list", self._clock.monotonic() - waited, failed)

    def delete_many(self, keys: Sequence[str]) -> None:
        """See `MultiDelete.delete_many`; one request for each key if the store behind does not offer it."""
        if isinstance(self._store, MultiDelete):
            with self._meter.request("delete_many"):
                self._store.delete_many(keys)
        else:
            for key in checked_deletes(keys):
                self.delete(key)

    def close(self) -> None:
        self._store.close()

    def __repr__(self) -> str:
        return f"MeteredObjects({self._store!r})"
