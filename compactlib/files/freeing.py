# SPDX-License-Identifier: Apache-2.0
"""Removed files whose pages and blocks other threads give back."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterable, Iterator
from itertools import islice

from compactlib.files.disk import StrPath

_MOST_FILES, _MOST_THREADS = 16, 4
"""Held open at once is no more than their product, so that other threads find descriptors left."""


class Freeing:
    """Keeps who removes large files from waiting while the system frees them. For one thread at a time.

    That takes 0.1 ms a MiB, and thrice as long on a disk that is mounted with `discard`, which is told of each.
    A file is freed with its last descriptor. So each is opened before its name goes, and closed by a thread.
    """

    def __init__(self) -> None:
        self._threads: list[threading.Thread] = []

    @contextlib.contextmanager
    def later(self, paths: Iterable[StrPath]) -> Iterator[None]:
        """What the body removes of `paths` is freed beside whatever comes next, until `wait` at the latest.

        A file that cannot be opened is freed by whoever removes it, as those behind the 16th are.
        """
        while len(self._threads) >= _MOST_THREADS:
            self._threads.pop(0).join()
        held: list[int] = []
        for path in islice(paths, _MOST_FILES):
            with contextlib.suppress(OSError):
                held.append(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK))
        try:
            yield
        finally:
            if held:
                self._close_beside(held)

    def _close_beside(self, held: list[int]) -> None:
        thread = threading.Thread(target=_close_all, args=(held,), name="compactlib-freeing", daemon=True)
        try:
            thread.start()
        except RuntimeError:  # there are too many
            _close_all(held)
        else:
            self._threads.append(thread)

    def wait(self) -> None:
        """Return when all of it is freed."""
        while self._threads:
            self._threads.pop().join()


def _close_all(descriptors: list[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)
