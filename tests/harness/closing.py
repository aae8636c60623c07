# SPDX-License-Identifier: Apache-2.0
"""A close in another thread, before a chosen line of a call."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path
from threading import get_ident
from types import FrameType
from typing import Any, TypeVar

import compactlib
from compactlib.errors import Closed
from compactlib.testing import FilesInFront, Request

OwnerT = TypeVar("OwnerT")

LIBRARY = str(Path(compactlib.__file__).parent)


class Closing:
    """Counts the lines of the library in a call, and closes before a chosen one, in another thread.

    The close ends there, and the next owner works; or it waits for the call. Then the call goes on. Notes the steps
    that the call makes after the close.

    Args:
        is_free: whether a path may change after a close, because no other owner uses it.

    Attributes:
        files: the disk of the owner that is closed.
        lines: how many lines the call has run.
        late: the steps after the close.
        closed: the close and the work of the next owner, with its value; `None` before it.
    """

    def __init__(self, is_free: Callable[[str], bool]) -> None:
        self.files = FilesInFront(self._step)
        self._is_free = is_free
        self.lines = 0
        self.late: list[Request] = []
        self.closed: Future[Any] | None = None
        self._is_closed = self._interrupts = False
        self._own = 0

    @contextlib.contextmanager
    def before(self, line: int, close: Callable[[], OwnerT], then: Callable[[OwnerT], object]) -> Iterator[None]:
        """Close before the line of this number in the block, counted from 1; 0 only counts them.

        Args:
            line: the number.
            close: closes the owner, and opens the next.
            then: the work of the next owner, which returns a value.
        """

        def close_and_open() -> object:
            later = close()
            self._is_closed = True
            return then(later)

        def trace(frame: FrameType, event: str, _: object) -> Any:
            if not frame.f_code.co_filename.startswith(LIBRARY) or get_ident() == self._own:
                return None
            if event == "line":
                self.lines += 1
                if self.lines == line:
                    self.closed = other.submit(close_and_open)
                    wait([self.closed], 0.02)
                    if self._is_closed:
                        wait([self.closed], 0.2)
            return trace

        with ThreadPoolExecutor(1) as other:
            self._own = other.submit(get_ident).result()
            _trace_all(trace)
            try:
                yield
            finally:
                _trace_all(None)

    def interrupt(self, write: Callable[[], object]) -> None:
        """In `close`: interrupt a write in the middle of its change, so that the owner closes itself.

        The owner keeps its files until the next owner makes it let go. Another thread may carry out the first writes.
        """
        self._interrupts = True
        with contextlib.suppress(Closed):
            for _ in range(10):
                with contextlib.suppress(KeyboardInterrupt):
                    write()
            raise AssertionError("an interrupt closes the owner")

    def _step(self, request: Request, act: Callable[[], Any]) -> Any:
        if self._interrupts and request.kind == "write" and get_ident() == self._own:
            raise KeyboardInterrupt
        try:
            return act()
        finally:
            if self._is_closed and not self._is_free(request.path):
                self.late.append(request)


def close_everywhere(closed_before: Callable[[int], Closing], most: int) -> None:
    """Close before lines that are spread over a call; before each, if it has at most `most`."""
    lines = closed_before(0).lines
    places = min(lines, most)
    for place in range(places):
        closed_before(1 + (2 * place + 1) * lines // (2 * places))


def _trace_all(trace: Any) -> None:
    threading.settrace(trace)
    sys.settrace(trace)
