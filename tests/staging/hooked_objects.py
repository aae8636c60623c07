# SPDX-License-Identifier: Apache-2.0
"""An object store that tells a test of each call before it is made, and lets it interfere."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Self

from compactlib.objects import MemoryObjects, ObjectInfo, ObjectRef


class HookedObjects:
    """Memory objects behind a hook, which may raise, or do something else first."""

    def __init__(self, inner: MemoryObjects, hook: Callable[[str, str], None] = lambda operation, key: None) -> None:
        self.inner = inner
        self.hook = hook
        self.counts: Counter[str] = Counter()

    def _call(self, operation: str, key: str) -> None:
        self.counts[f"{operation} {key.split('/')[0]}"] += 1
        self.hook(operation, key)

    def create(self, key: str, data: bytes | memoryview) -> ObjectRef:
        self._call("create", key)
        return self.inner.create(key, data)

    def get(self, key: str) -> bytes:
        self._call("get", key)
        return self.inner.get(key)

    def get_range(self, key: str, start: int, length: int) -> bytes:
        self._call("get_range", key)
        return self.inner.get_range(key, start, length)

    def info(self, key: str) -> ObjectInfo:
        self._call("info", key)
        return self.inner.info(key)

    def list(self, prefix: str = "", *, after: str = "") -> Iterator[ObjectInfo]:
        self._call("list", prefix)
        return self.inner.list(prefix, after=after)

    def delete(self, key: str) -> None:
        self._call("delete", key)
        self.inner.delete(key)

    def available_bytes(self) -> int | None:
        return self.inner.available_bytes()

    def audit(self) -> None:
        self.inner.audit()

    def close(self) -> None:
        self.inner.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        self.close()
