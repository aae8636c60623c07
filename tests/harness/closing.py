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
from typing import Any

import compactlib
from compactlib.testing import FilesInFront, Request

LIBRARY = str(Path(compactlib.__file__).parent)


class Closing:
    """Counts the lines of the library in a call, and closes before a chosen one, in another thread.

    The close ends there, or waits for the call; then the call goes on. Notes the steps that the call makes after it.

    Args:
        is_free: whether a path may change after a close, because no other owner uses it.

    Attributes:
        files: the disk of the owner that is closed.
        lines: how many lines the call has run.
        late: the steps after the close.
        closed: the close, with its value; `None` before it.
    """

    def __init__(self, is_free: Callable[[str], bool]) -> None:
        self.files = FilesInFront(self._step)
        self._is_free = is_free
        self.lines = 0
        self.late: list[Request] = []
        self.closed: Future[int] | None = None

    @contextlib.contextmanager
    def before(self, line: int, close: Callable[[], int]) -> Iterator[None]:
        """Close before the line of this number in the block, counted from 1; 0 only counts them."""

        def trace(frame: FrameType, event: str, _: object) -> Any:
            if not frame.f_code.co_filename.startswith(LIBRARY) or get_ident() in own:
                return None
            if event == "line":
                self.lines += 1
                if self.lines == line:
                    self.closed = other.submit(close)
                    wait([self.closed], 0.02)
            return trace

        with ThreadPoolExecutor(1) as other:
            own = {other.submit(get_ident).result()}
            _trace_all(trace)
            try:
                yield
            finally:
                _trace_all(None)

    def _step(self, request: Request, act: Callable[[], Any]) -> Any:
        if self.closed is not None and self.closed.done() and not self._is_free(request.path):
            self.late.append(request)
        return act()


def _trace_all(trace: Any) -> None:
    threading.settrace(trace)
    sys.settrace(trace)
