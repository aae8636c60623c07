# SPDX-License-Identifier: Apache-2.0
"""What the conformance kits of `contract.Service` and `AsyncService` have to know about a service."""

from __future__ import annotations

import abc
import threading
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

from compactlib.contract import AsyncService, Service
from compactlib.runtime.budget import Budget
from compactlib.runtime.observe import Observer


def _nothing(*_: object) -> None:
    """Do nothing."""


async def _nothing_awaited(*_: object) -> None:
    """Do nothing."""


class ServiceHooks:
    """Where a kit gets into the work of a service: the factory has it call these, and the kit decides what they do.

    Attributes:
        on_decide: what `decides` does; the kit sets it.
        on_work: what `works` does.
        on_await: what `awaits` does.
        decided: how often `decides` was called.
        worked: how often `works` was called, or `awaits`.
    """

    def __init__(self) -> None:
        self.on_decide: Callable[[], object] = _nothing
        self.on_work: Callable[[Budget], object] = _nothing
        self.on_await: Callable[[], Awaitable[object]] = _nothing_awaited
        self.decided: int = 0
        self.worked: int = 0
        self.changed: threading.Condition = threading.Condition()

    def decides(self) -> None:
        """To be called once in each turn, where no error is expected: by a policy, say, or a source of jobs."""
        with self.changed:
            self.decided += 1
            self.changed.notify_all()
        self.on_decide()

    def works(self, budget: Budget) -> None:
        """To be called within the long part of the work: by an executor, say, with the budget that it was given."""
        self._count_work()
        self.on_work(budget)

    async def awaits(self) -> None:
        """To be awaited within the long part of the work of a service in an event loop."""
        self._count_work()
        await self.on_await()

    def _count_work(self) -> None:
        with self.changed:
            self.worked += 1
            self.changed.notify_all()


class ServiceFactory(abc.ABC):
    """Makes services of one kind.

    Attributes:
        has_budget: whether there is a long part of the work, with a budget, in which `ServiceHooks.works` is called.
    """

    has_budget: bool = True

    @abc.abstractmethod
    def make(self, folder: Path, hooks: ServiceHooks, *, observer: Observer) -> Service:
        """A service that was not started, with something to do at once.

        Args:
            folder: an empty one, which it may use.
            hooks: have it call `hooks.decides()` in each turn, and `hooks.works(budget)` in its long work.
            observer: to be notified, besides others.
        """

    def wake(self, service: Any) -> None:  # noqa: B027
        """Make it due now: something to do, and after an error its delay over; called again and again, if it must be.

        Default: nothing, for a service that comes back to its work within a second by itself.
        """

    def held(self, service: Any) -> Sequence[object]:
        """The leases, locks and runs that its work holds now; default none."""
        return ()

    def release(self, service: Any) -> None:  # noqa: B027
        """Release what was opened beside the service, after its `stop`. May be called twice. Default nothing."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"


class AsyncServiceFactory(abc.ABC):
    """Makes services of one kind that live in an event loop.

    Attributes:
        has_wait: whether there is a long part of the work in which `ServiceHooks.awaits` is awaited.
    """

    has_wait: bool = True

    @abc.abstractmethod
    async def make(self, folder: Path, hooks: ServiceHooks, *, observer: Observer) -> AsyncService:
        """A service that was not started, with something to do at once; see `ServiceFactory.make`.

        Have it call `hooks.decides()` in each turn, and await `hooks.awaits()` in its long work.
        """

    async def wake(self, service: Any) -> None:  # noqa: B027
        """See `ServiceFactory.wake`."""

    async def held(self, service: Any) -> Sequence[object]:
        """See `ServiceFactory.held`."""
        return ()

    async def release(self, service: Any) -> None:  # noqa: B027
        """See `ServiceFactory.release`."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"
