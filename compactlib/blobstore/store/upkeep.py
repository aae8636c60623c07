# SPDX-License-Identifier: Apache-2.0
"""What an open store does by itself: a manager compacts it, and requests of other processes are answered."""

from __future__ import annotations

from collections.abc import Iterable

from compactlib.blobstore.store.requests import KeptStore, RequestDoor
from compactlib.clock import Clock
from compactlib.errors import Busy
from compactlib.runtime.services.manager import CompactionManager, OnRequest, Periodic, Trigger
from compactlib.runtime.services.work_report import WorkReport

TRIGGERS: tuple[Trigger, ...] = (Periodic(every_seconds=86_400.0), OnRequest())
"""What brings a store its turn unless its configuration says otherwise."""


class Upkeep:
    """Belongs to an open store.

    Args:
        store: the store.
        triggers: what brings it its turn. With `OnRequest`, its owner listens for requests, and it asks by itself when
            its log is nearly full.
        clock: the host's.

    Raises:
        InvalidInput: a trigger is none, or is given twice.
    """

    def __init__(self, store: KeptStore, triggers: Iterable[Trigger], clock: Clock) -> None:
        self._store = store
        self._triggers = tuple(triggers)
        self._manager = CompactionManager(self._triggers, clock=clock, observer=store.observer)
        self._manager.add(store.name, store)
        self._door = RequestDoor(store) if any(isinstance(each, OnRequest) for each in self._triggers) else None

    @property
    def triggers(self) -> tuple[Trigger, ...]:
        """What brings the store its turn."""
        return self._triggers

    def start(self) -> None:
        """Begin; the first turn is due at once."""
        if self._door is not None:
            self._door.open()
        self._manager.start()

    def ask(self) -> None:
        """The store has hardly any room: its next turn is due, if it takes requests."""
        self._manager.request(self._store.name)

    def report(self) -> WorkReport:
        """How the store's turns went, and when the next one comes."""
        return self._manager.report()

    def require_other(self) -> None:
        """Return if the caller is no part of it.

        Raises:
            Busy: it is: an observer of the manager, say.
        """
        if self._manager.is_mine:
            raise Busy(f"the blob store {self._store.name} cannot be closed from within its own work; close it in "
                       f"another thread")

    def stop(self) -> None:
        """End it. Of the store's compactions none is running any more, and none begins."""
        if self._door is not None:
            self._door.close()
        self._manager.stop()

    def leave(self) -> None:
        """In a fork of the process that has the store open: only this copy of the socket is closed."""
        if self._door is not None:
            self._door.close()
