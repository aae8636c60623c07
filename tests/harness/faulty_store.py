# SPDX-License-Identifier: Apache-2.0
"""A key-value store that notes each request, and before which a test may do something, or raise."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from compactlib.kv import KVStore
from compactlib.testing import Request, StoreInFront


class FaultyStore(StoreInFront):
    """A key-value store in front of another one, which stays open.

    Args:
        store: carries the requests out.
        before: called before each request; what it raises is the request's answer.

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
