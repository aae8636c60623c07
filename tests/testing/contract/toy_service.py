# SPDX-License-Identifier: Apache-2.0
"""Small services that keep the contract: each turn decides, takes a lease, and works. One step a method."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path

from compactlib.contract import AsyncService, Service
from compactlib.errors import BudgetSpent
from compactlib.outcome import Done, Failed, Outcome
from compactlib.runtime import Budget, Observer
from compactlib.runtime.services.async_service import AsyncServiceFace, AsyncWork
from compactlib.runtime.services.service_face import ServiceFace
from compactlib.runtime.services.work_service import Job, WorkService
from compactlib.testing import ServiceFactory, ServiceHooks


class ToyService(ServiceFace):
    """Right in everything."""

    def __init__(self, decide: Callable[[], object], work: Callable[[Budget], object], observer: Observer) -> None:
        self._decide = decide
        self._work = work
        self.leases: list[str] = []
        self._service = WorkService("the toy", event="toy_failed", observer=observer)
        self._service.add("play", self.play, every_seconds=60.0)

    def play(self, job: Job) -> Outcome[None]:
        with self.leased():
            self._decide()
            try:
                self._work(job.budget)
            except BudgetSpent as error:
                return Failed(error)
            return Done(None)

    @contextlib.contextmanager
    def leased(self) -> Iterator[None]:
        self.leases.append("lease")
        try:
            yield
        finally:
            self.leases.clear()

    def wake(self) -> None:
        self._service.request("play")


class ToyServices(ServiceFactory):
    """Makes them."""

    def __init__(self, kind: type[ToyService] = ToyService) -> None:
        self.kind = kind

    def make(self, folder: Path, hooks: ServiceHooks, *, observer: Observer) -> Service:
        return self.kind(hooks.decides, hooks.works, observer)

    def wake(self, service: ToyService) -> None:
        service.wake()

    def held(self, service: ToyService) -> Sequence[object]:
        return tuple(service.leases)


class ToyAsyncService(AsyncServiceFace):
    """Right in everything, in an event loop."""

    def __init__(self, decide: Callable[[], object], work: Callable[[], Awaitable[object]], observer: Observer) -> None:
        self._decide = decide
        self._await = work
        self.leases: list[str] = []
        self._woken = asyncio.Event()
        self._work = AsyncWork("the async toy", event="toy_failed", observer=observer)

    async def _begin(self) -> None:
        self._woken.set()
        self._work.keep_on(self.turn, "playing", first_pause_seconds=0.0)

    async def turn(self) -> None:
        await self._woken.wait()
        self._woken.clear()
        await self.play()

    async def play(self) -> Done[None]:
        self.leases.append("lease")
        try:
            self._decide()
            await self._await()
        finally:
            self.leases.clear()
        return Done(None)

    async def _pending(self) -> Sequence[Outcome[None]]:
        return [await self.play()]

    def wake(self) -> None:
        self._woken.set()


class ToyAsyncServices(ServiceFactory):
    """Makes them."""

    is_async = True

    def __init__(self, kind: type[ToyAsyncService] = ToyAsyncService) -> None:
        self.kind = kind

    def make(self, folder: Path, hooks: ServiceHooks, *, observer: Observer) -> AsyncService:
        return self.kind(hooks.decides, hooks.awaits, observer)

    def wake(self, service: ToyAsyncService) -> None:
        service.wake()

    def held(self, service: ToyAsyncService) -> Sequence[object]:
        return tuple(service.leases)
