# SPDX-License-Identifier: Apache-2.0
"""The runtime's own service, for any work."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from compactlib.outcome import Done, Outcome, Skipped
from compactlib.runtime import Observer
from compactlib.runtime.services.work_service import Job, WorkService
from compactlib.testing import ServiceFactory, ServiceHooks


class AnyWork(ServiceFactory):
    """Two pieces of work on two lanes: one that is periodic, and one that is asked for."""

    def make(self, folder: Path, hooks: ServiceHooks, *, observer: Observer) -> WorkService:
        self.locks: list[threading.Lock] = []

        def work(job: Job) -> Outcome[Any]:
            lock = threading.Lock()
            self.locks.append(lock)
            with lock:
                hooks.decides()
                hooks.works(job.budget)
            return Done("well")

        service = WorkService("the shop", event="shop_failed", retry_seconds=0.001, max_retry_seconds=0.01,
                              observer=observer)
        service.add("due", work, lane="one", every_seconds=3600.0)
        service.add("asked", lambda _: Skipped("nothing"), lane="two")
        return service

    def wake(self, service: Any) -> None:
        service.request("due")
        service.request("asked")

    def held(self, service: Any) -> Sequence[object]:
        return [lock for lock in self.locks if lock.locked()]


SERVICES = (AnyWork(),)
