# SPDX-License-Identifier: Apache-2.0
"""A small service that keeps the contract: each turn decides, takes a lease, and works. One step a method."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from compactlib.budget import Budget
from compactlib.errors import BudgetSpent
from compactlib.observer import Observer
from compactlib.service import PeriodicService
from compactlib.testing import ServiceFactory, ServiceHooks


class ToyService(PeriodicService):
    """Right in everything."""

    def __init__(self, decide: Callable[[], object], work: Callable[[Budget], object]) -> None:
        self.decide, self.work = decide, work
        self.leases: list[str] = []
        super().__init__(self.play, name="the toy", every_seconds=60.0, retry_seconds=0.001)

    def play(self, budget: Budget) -> None:
        with self.leased(), contextlib.suppress(BudgetSpent):
            self.decide()
            self.work(budget)

    @contextlib.contextmanager
    def leased(self) -> Iterator[None]:
        self.leases.append("lease")
        try:
            yield
        finally:
            self.leases.clear()


class ToyServices(ServiceFactory):
    """Makes them."""

    def __init__(self, kind: type[ToyService] = ToyService) -> None:
        self.kind = kind

    def make(self, folder: Path, hooks: ServiceHooks, *, observer: Observer) -> Any:
        return self.kind(hooks.decides, hooks.works)

    def wake(self, service: ToyService) -> None:
        service.wake()

    def held(self, service: ToyService) -> Sequence[object]:
        return tuple(service.leases)
