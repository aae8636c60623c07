# SPDX-License-Identifier: Apache-2.0
"""The common methods of services that are built on a `WorkService`; what differs is in the work they give it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

from compactlib.outcome import Done, Failed, Outcome
from compactlib.runtime.services.work_service import WorkService


class ServiceFace:
    """A `Service`. The class that stands on it sets `_service` before anything else."""

    _service: WorkService

    def start(self) -> None:
        """Begin, in threads of its own; starting again does nothing, and after `stop` it begins anew."""
        self._service.start()

    def run_pending(self) -> Sequence[Outcome[Any]]:
        """Do what is due now in the caller's thread, and answer what came of each; for hosts without threads.

        Raises:
            Closed: it was stopped.
        """
        return self._service.run_pending()

    def stop(self, *, wait_seconds: float = 30.0) -> Done[Any] | Failed:
        """Begin nothing more, cancel what runs, and wait for its end; `Failed(Busy)` if it did not end in time.

        Stopping again waits again.

        Raises:
            Busy: called from within its own work, on whichever thread; it ends all the same.
            InvalidInput: the time is negative, or no number.
        """
        return self._service.stop(wait_seconds=wait_seconds)

    @property
    def last_error(self) -> BaseException | None:
        """The last unexpected exception; `None` if there never was one."""
        return self._service.last_error

    @property
    def failures(self) -> int:
        """How often that was."""
        return self._service.failures

    @property
    def is_mine(self) -> bool:
        """Whether the caller is a part of what the service does: by its work, an observer or a task, say."""
        return self._service.is_mine

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
