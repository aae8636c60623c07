# SPDX-License-Identifier: Apache-2.0
"""A key-value store that records each request, and calls a test's function before it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from compactlib.kv import KVStore
from compactlib.testing import Request, StoreInFront


class FaultyStore(StoreInFront):
    """A proxy of a key-value store, which stays open.

    Args:
        store: carries the requests out.
        before: called before each request; an error of it is raised instead of the request.

    Attributes:
        operations: every request so far.
    """

    def __init__(self, store: KVStore, before: Callable[[Request], object] = bool) -> None:
        super().__init__(store, self._meet)
        self.operations: list[Request] = []
        self._before = before

    def _meet(self, request: Request, act: Callable[[], Any]) -> Any:
        self.operations.append(request)
        self._before(request)
        return act()
