# SPDX-License-Identifier: Apache-2.0
"""A disk that refuses one change by its number, or at which the process ends."""

from __future__ import annotations

import errno as _errno
import os
import threading
from collections.abc import Callable
from typing import Any

from compactlib.errors import StorageError
from compactlib.files import Files
from compactlib.testing import FilesInFront, Killed, Request

_FULL = frozenset({_errno.ENOSPC, _errno.EDQUOT, _errno.EFBIG})


class FailingFiles(FilesInFront):
    """A disk whose n-th change is refused or ends the process. Threads may share it; changes are counted from 1.

    Args:
        files: carries the requests out; the local disk if not given.
        fail_at: the number of the refused change; `None`: no change is refused.
        errno: the system's error number of the refusal.
        short_write: half of a refused write or copy is written.
        sticky: later changes are refused, too; on a full disk only those that need room.
        killed_at: the number of the change at which the process ends; from then on each request raises `Killed`.

    Attributes:
        count: the changes so far.
        fail_at: as given; may be set later.
    """

    def __init__(self, files: Files | None = None, *, fail_at: int | None = None, errno: int = _errno.ENOSPC,
                 short_write: bool = False, sticky: bool = False, killed_at: int | None = None) -> None:
        super().__init__(self._meet, files)
        self.count = 0
        self.fail_at: int | None = fail_at
        self._errno, self._killed_at = errno, killed_at
        self._short_write, self._sticky = short_write, sticky
        self._lock = threading.Lock()

    def _meet(self, request: Request, act: Callable[[], Any]) -> Any:
        with self._lock:
            self.count += request.changes
            number = self.count
        if self._killed_at is not None and number >= self._killed_at:
            raise Killed(f"change {number}: {request}")
        if not self._refuses(request, number):
            return act()
        if request.half is not None and self._short_write and number == self.fail_at:
            request.half()
        error = OSError(self._errno, os.strerror(self._errno))
        raise StorageError.from_os(error, request.kind, request.path)

    def _refuses(self, request: Request, number: int) -> bool:
        if self.fail_at is None or number < self.fail_at:
            return False
        if number == self.fail_at and request.changes:
            return True
        return self._sticky and (self._errno not in _FULL or request.needs_room)
