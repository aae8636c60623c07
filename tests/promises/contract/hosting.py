# SPDX-License-Identifier: Apache-2.0
"""The election of the catalog's coordinator by a log."""

from __future__ import annotations

from pathlib import Path

from compactlib.hosting import LogElection
from compactlib.runtime import Observer
from compactlib.testing import ServiceFactory, ServiceHooks


class _Followed:
    """A log that another node leads."""

    def __init__(self, hooks: ServiceHooks) -> None:
        self._hooks = hooks

    @property
    def is_leader(self) -> bool:
        self._hooks.decides()
        return False

    def propose(self, payload: bytes) -> None:
        raise AssertionError("nothing is claimed in it")


class LogElections(ServiceFactory):
    has_long_work = False

    def make(self, folder: Path, hooks: ServiceHooks, *, observer: Observer) -> LogElection:
        return LogElection(_Followed(hooks), "a", lambda term, node: None, every_seconds=0.05, observer=observer)

    def wake(self, service: LogElection) -> None:
        service.nudge()


SERVICES = (LogElections(),)
