# SPDX-License-Identifier: Apache-2.0
"""An object store that calls a test before each request, and lets it interfere."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

from compactlib.objects import MemoryObjects
from compactlib.testing import ObjectsInFront, Request


class HookedObjects(ObjectsInFront):
    """Memory objects behind a hook, which may raise, or do something else first."""

    def __init__(self, inner: MemoryObjects, hook: Callable[[str, str], None] = lambda operation, key: None) -> None:
        super().__init__(inner, self._hooked)
        self.inner = inner
        self.hook = hook
        self.counts: Counter[str] = Counter()

    def _hooked(self, request: Request, act: Callable[[], Any]) -> Any:
        self.counts[f"{request.kind} {request.path.split('/')[0]}"] += 1
        self.hook(request.kind, request.path)
        return act()

    def close(self) -> None:
        self.inner.close()
