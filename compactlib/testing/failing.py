# SPDX-License-Identifier: Apache-2.0
"""Steps at which requests fail: `Failing` refuses them or loses their answers, `Killing` ends the process.

The outcome of each request is a pick, so that `choices.explore` tries every failure at every request.
"""

from __future__ import annotations

import contextlib
import errno
import os
import threading
from collections.abc import Callable, Sequence
from typing import Any

from compactlib.errors import CompactlibError, StorageError
from compactlib.kv import OutcomeUnknown, PredicateFailed, SlowDown, StoreFailed
from compactlib.objects import ObjectStoreFailed
from compactlib.testing.choices import Choices
from compactlib.testing.in_front import Killed, Request

_DONE, _REFUSED, _HALF, _FULL = "done", "refused", "half done, then refused", "no room"
_SLOW, _CONFLICT = "slow down", "another writer came first"
_UNKNOWN_DONE, _UNKNOWN_LOST = "done, without an answer", "lost, without an answer"
_CONDITIONAL = frozenset({"set_if", "delete_if", "transact"})
_UNKNOWN_LATE = {"done two requests later, without an answer": 2,
                 "done in the end, without an answer": 1 << 30}


class Failing:
    """A step at which each request may fail, in each way of its edge. Threads may share it.

    Disks refuse a change with the error of EIO (nothing done, half of a write done, all done) or of ENOSPC. Key-value
    stores raise `SlowDown`, `PredicateFailed` for a request with a condition, `StoreFailed`, or `OutcomeUnknown` for a
    write that is done, lost, or done a little later. Object stores raise `ObjectStoreFailed`, nothing or all done.

    Args:
        choices: picks; the ordinary option is success.
    """

    def __init__(self, choices: Choices) -> None:
        self._choices = choices
        self._late: list[tuple[int, Callable[[], Any]]] = []
        self._requests = 0
        self._lock = threading.Lock()

    def __call__(self, request: Request, act: Callable[[], Any]) -> Any:
        """See `Step`."""
        with self._lock:
            self._requests += 1
            due = self._take_late(self._requests)
            picked = self._choices.pick(str(request), _DONE, *_failures_of(request))
            if picked in _UNKNOWN_LATE:
                self._late.append((self._requests + _UNKNOWN_LATE[picked], act))
        _carry_out(due)
        if picked == _DONE:
            return act()
        if picked == _UNKNOWN_DONE:
            act()
        elif picked == _HALF and request.half is not None:
            request.half()
        raise _error(request, picked)

    def settle(self) -> None:
        """Carry out the late writes."""
        with self._lock:
            due = self._take_late(None)
        _carry_out(due)

    def _take_late(self, number: int | None) -> list[Callable[[], Any]]:
        due = [act for at, act in self._late if number is None or at <= number]
        self._late = [(at, act) for at, act in self._late if number is not None and at > number]
        return due


class Killing:
    """A step at which the process may end, before or after a change; from then on every request raises `Killed`.

    Args:
        choices: picks; in the ordinary option the process runs on.
    """

    def __init__(self, choices: Choices) -> None:
        self._choices = choices
        self._dead = False

    def __call__(self, request: Request, act: Callable[[], Any]) -> Any:
        """See `Step`."""
        if self._dead:
            raise Killed(f"{request}, after the process has ended")
        if not request.changes:
            return act()
        picked = self._choices.pick(str(request), "runs on", "killed before it", "killed after it")
        self._dead = picked != "runs on"
        if picked == "killed before it":
            raise Killed(str(request))
        answer = act()
        if self._dead:
            raise Killed(str(request))
        return answer


def _failures_of(request: Request) -> Sequence[str]:
    """Return the ways in which a request may fail, as text."""
    if not request.changes:
        return [_REFUSED]
    if request.edge == "disk":
        return [_REFUSED, *([_FULL] if request.needs_room else []), *([_HALF] if request.half else []),
                *([_UNKNOWN_DONE] if request.kind != "create" else [])]
    if request.edge == "kv":
        return [_REFUSED, _SLOW, *([_CONFLICT] if request.kind in _CONDITIONAL else []), _UNKNOWN_LOST, _UNKNOWN_DONE,
                *_UNKNOWN_LATE]
    return [_REFUSED, _UNKNOWN_DONE]


def disk_error(number: int, request: Request) -> StorageError:
    """Return the library's error for an error number of the system."""
    return StorageError.from_os(OSError(number, os.strerror(number)), request.kind, request.path)


def _error(request: Request, picked: str) -> CompactlibError:
    if request.edge == "disk":
        return disk_error(errno.ENOSPC if picked == _FULL else errno.EIO, request)
    if request.edge == "objects":
        return ObjectStoreFailed(operation=request.kind, key=request.path, detail=f"a test: {picked}")
    if picked == _SLOW:
        return SlowDown(operation=request.kind, detail="a test")
    if picked == _CONFLICT:
        return PredicateFailed(partition=request.partition, key=request.key)
    kind = StoreFailed if picked == _REFUSED else OutcomeUnknown
    return kind(operation=request.kind, path="a store under test", detail=picked)


def _carry_out(late: Sequence[Callable[[], Any]]) -> None:
    for act in late:
        # Its caller already has an error.
        with contextlib.suppress(CompactlibError):
            act()
