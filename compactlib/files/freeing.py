# SPDX-License-Identifier: Apache-2.0
"""Removed files whose pages and blocks other threads give back."""

from __future__ import annotations

import contextlib
import os
import threading
from collections import deque
from collections.abc import Iterable, Iterator
from itertools import islice

from compactlib.files.disk import StrPath

_MOST_FILES, _MOST_THREADS = 64, 4
"""Held open at once is about so much, so that other threads find descriptors left."""


class Freeing:
    """Keeps who removes large files from waiting while the system frees them. For one thread at a time.

    That takes 0.1 ms a MiB, and thrice as long on a disk that is mounted with `discard`, which is told of each.
    A file is freed with its last descriptor. So each is opened before its name goes, and closed by a thread.
    """

    def __init__(self) -> None:
        self._held: deque[int] = deque()
        self._threads: list[threading.Thread] = []

    @contextlib.contextmanager
    def later(self, paths: Iterable[StrPath]) -> Iterator[None]:
        """What the body removes of `paths` is freed beside whatever comes next, until `wait` at the latest.

        A file that cannot be opened is freed by whoever removes it, as those behind the 64th are.
        """
        held: list[int] = []
        try:
            for path in islice(paths, max(_MOST_FILES - len(self._held), 0)):
                with contextlib.suppress(OSError):
                    held.append(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK))
            yield
        finally:
            self._held += held
            self._threads = [thread for thread in self._threads if thread.is_alive()]
            if held and len(self._threads) < _MOST_THREADS:
                thread = threading.Thread(target=_close_all, args=(self._held,), name="compactlib-freeing", daemon=True)
                with contextlib.suppress(RuntimeError):  # there are too many: `wait` closes them
                    thread.start()
                    self._threads.append(thread)

    def wait(self) -> None:
        """Return when all of it is freed, which the caller helps with: a disk frees two files sooner together."""
        _close_all(self._held)
        while self._threads:
            self._threads.pop().join()


def _close_all(descriptors: deque[int]) -> None:
    while True:
        try:
            descriptor = descriptors.popleft()
        except IndexError:
            return
        with contextlib.suppress(OSError):  # it is closed all the same
            os.close(descriptor)
