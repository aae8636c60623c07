# SPDX-License-Identifier: Apache-2.0
"""An object store that tells a test of each call before it is made, and lets it interfere."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from compactlib.objects import MemoryObjects
from compactlib.objects.in_front import AnswerT, ObjectsInFront


class HookedObjects(ObjectsInFront):
    """Memory objects behind a hook, which may raise, or do something else first."""

    def __init__(self, inner: MemoryObjects, hook: Callable[[str, str], None] = lambda operation, key: None) -> None:
        super().__init__(inner)
        self.inner = inner
        self.hook = hook
        self.counts: Counter[str] = Counter()

    def _request(self, name: str, key: str, act: Callable[[], AnswerT]) -> AnswerT:
        self.counts[f"{name} {key.split('/')[0]}"] += 1
        self.hook(name, key)
        return act()

    def close(self) -> None:
        self.inner.close()
