# SPDX-License-Identifier: Apache-2.0
"""`RangeTier`: files of ranges and metaranges that were read, kept near by: a restart does not fetch them again.

They lie in an object store of the process's own, a folder say, under `near-ranges/<id>` and `near-metaranges/<id>`:
under any prefix, no committed layer's own files are called so. Nothing depends on it: what cannot be kept or read there
is fetched, and what is damaged is deleted and fetched.
"""

from __future__ import annotations

import logging
import re
import threading
from collections import OrderedDict
from collections.abc import Callable

from compactlib.errors import AuditFailed, CompactlibError, InvalidInput
from compactlib.objects import ObjectExists, ObjectNotFound, ObjectStore

_LOGGER = logging.getLogger("compactlib.staging")
_NEAR = "near-"
_NAME = re.compile(_NEAR + r"((?:meta)?ranges/[0-9a-f]{40})")


class RangeTier:
    """The files that were read last, as many as fit. Threads may share it; what else lies in the store is left alone.

    Args:
        objects: where to keep them; listed once. Not closed.
        max_bytes: how much they may take together. A file that is larger alone is not kept.

    Attributes:
        failures: how often the store refused something, or had a damaged file.
        last_error: the last of these.

    Raises:
        InvalidInput: `max_bytes` is below 0.
        StorageError, ObjectStoreFailed: the store cannot be listed.
    """

    def __init__(self, objects: ObjectStore, max_bytes: int) -> None:
        if max_bytes < 0:
            raise InvalidInput(f"near_bytes is {max_bytes}; give 0 or more")
        self.failures: int = 0
        self.last_error: CompactlibError | None = None
        self._objects = objects
        self._max_bytes = max_bytes
        self._lock = threading.Lock()
        self._sizes: OrderedDict[str, int] = OrderedDict()
        for info in sorted(objects.list(_NEAR), key=lambda info: info.modified_at):
            if (found := _NAME.fullmatch(info.key)) is not None:
                self._sizes[found[1]] = info.size_bytes
        self._total = sum(self._sizes.values())
        self._evict()

    def get(self, name: str) -> bytes | None:
        """The file of this name; `None` if it is not kept."""
        with self._lock:
            if name not in self._sizes:
                return None
            self._sizes.move_to_end(name)
        try:
            return self._objects.get(_NEAR + name)
        except ObjectNotFound:  # Another process has made room.
            self._forget(name)
        except CompactlibError as error:
            self._note(error)
        return None

    def put(self, name: str, data: bytes) -> None:
        """Keep a file, and delete those that were not used for longest until all fit."""
        if len(data) > self._max_bytes:
            return
        if not self._tried(lambda: self._objects.create(_NEAR + name, data)):
            return
        with self._lock:
            self._total += len(data) - self._sizes.pop(name, 0)
            self._sizes[name] = len(data)
        self._evict()

    def drop(self, name: str, error: CompactlibError | None = None) -> None:
        """Keep a file no longer, because of `error` if there is one; nothing happens if it is not kept."""
        if error is not None:
            self._note(error)
        if self._forget(name):
            self._tried(lambda: self._objects.delete(_NEAR + name))

    def audit(self) -> None:
        """Check that it counts what it knows of, and knows of no more than it may.

        Raises:
            AuditFailed: it does not; the message has the numbers.
        """
        with self._lock:
            total = sum(self._sizes.values())
            if total != self._total or total > self._max_bytes:
                raise AuditFailed(f"{len(self._sizes)} files of {total} bytes are kept, counted as {self._total}; "
                                  f"they may take {self._max_bytes}")

    def _forget(self, name: str) -> bool:
        with self._lock:
            size_bytes = self._sizes.pop(name, None)
            self._total -= size_bytes or 0
            return size_bytes is not None

    def _evict(self) -> None:
        while True:
            with self._lock:
                if self._total <= self._max_bytes:
                    return
                name, size_bytes = self._sizes.popitem(last=False)
                self._total -= size_bytes
            self._tried(lambda name=name: self._objects.delete(_NEAR + name))  # type: ignore[misc]

    def _tried(self, change: Callable[[], object]) -> bool:
        try:
            change()
        except ObjectExists:
            pass
        except CompactlibError as error:
            self._note(error)
            return False
        return True

    def _note(self, error: CompactlibError) -> None:
        with self._lock:
            self.failures += 1
            self.last_error = error
            count = self.failures
        if count & (count - 1) == 0:
            _LOGGER.warning("ranges kept near by in %r: %r (failure %d); they are fetched", self._objects, error,
                            count)

    def __repr__(self) -> str:
        return f"RangeTier({len(self._sizes)} files, {self._total:,} of {self._max_bytes:,} bytes in {self._objects!r})"
