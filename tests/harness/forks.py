# SPDX-License-Identifier: Apache-2.0
"""Call a function in a fork of this process, and return its result."""

from __future__ import annotations

import faulthandler
import os
import pickle
import warnings
from collections.abc import Callable

_MAX_BYTES = 1 << 20


def in_a_fork(work: Callable[[], object], *, hangs_after_seconds: float = 30.0) -> object:
    """Return the pickled result of `work` in a fork of this process, its error, or `Hung`."""
    with Fork(work, hangs_after_seconds) as fork:
        return fork.answer()


class Hung:
    """A fork did not end its work in time.

    Attributes:
        stack: the stacks of its threads.
    """

    def __init__(self, stack: str) -> None:
        self.stack: str = stack


class Fork:
    """A fork that calls `work`, sends its result or error, and lives until the `with` ends.

    Args:
        work: called in the fork; its result can be pickled.
        hangs_after_seconds: the time limit, after which the fork is killed.
    """

    def __init__(self, work: Callable[[], object], hangs_after_seconds: float) -> None:
        self._work = work
        self._hangs_after_seconds = hangs_after_seconds

    def __enter__(self) -> Fork:
        self._reading, writing = os.pipe()
        go, self._going = os.pipe()
        with warnings.catch_warnings():
            # Python warns that a fork of a process with threads may deadlock, which the test finds out.
            warnings.simplefilter("ignore", DeprecationWarning)
            self._child = os.fork()
            if self._child == 0:
                try:
                    # The fork ends with its parent, however that ends.
                    os.close(self._going)
                    # This thread ends the process without a lock of Python.
                    faulthandler.dump_traceback_later(self._hangs_after_seconds, exit=True, file=writing)
                    _answer(writing, self._done())
                    faulthandler.cancel_dump_traceback_later()
                    os.read(go, 1)
                finally:
                    os._exit(0)
        os.close(writing)
        os.close(go)
        return self

    def _done(self) -> object:
        try:
            return self._work()
        except Exception as error:
            return error

    def __exit__(self, *_: object) -> None:
        os.close(self._going)
        os.waitpid(self._child, 0)
        os.close(self._reading)

    def answer(self) -> object:
        """Return the result of the work, its error, or `Hung`."""
        head = os.read(self._reading, len(_ANSWERED))
        if head != _ANSWERED:
            return Hung((head + _to_the_end(self._reading)).decode(errors="replace"))
        size = int.from_bytes(os.read(self._reading, 4), "big")
        data = b""
        while len(data) < size:
            data += os.read(self._reading, size - len(data))
        return pickle.loads(data)


_ANSWERED = b"answered"


def _answer(descriptor: int, refused: object) -> None:
    try:
        data = pickle.dumps(refused)
    except Exception:  # a foreign error may not pickle; its text will do
        data = pickle.dumps(repr(refused))
    os.write(descriptor, _ANSWERED + len(data).to_bytes(4, "big") + data[:_MAX_BYTES])


def _to_the_end(descriptor: int) -> bytes:
    data = b""
    while part := os.read(descriptor, 1 << 16):
        data += part
    return data
