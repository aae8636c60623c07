# SPDX-License-Identifier: Apache-2.0
"""What a fork may do with the stores of the process that it was forked from: nothing; each call is refused by name."""

from __future__ import annotations

import os
import pickle
import warnings
from collections.abc import Callable
from typing import TypeVar

from compactlib.errors import CompactlibError
from compactlib.testing.kit.conformance import PromiseBroken

StoreT = TypeVar("StoreT")

_MAX_BYTES = 1 << 20


def check_fork(open_store: Callable[[], StoreT], write: Callable[[StoreT], object],
               close: Callable[[StoreT], object], *,
               audit: Callable[[StoreT], object] = lambda store: None) -> CompactlibError:
    """Fork while a store is open: the fork is refused, its parent goes on, and the folder is free when that closes.

    The fork tries to write and to close, and lives on while the parent writes, closes, and opens the store again.

    Args:
        open_store: opens the store in its folder, made at the first call.
        write: changes something and acknowledges it; called in the fork, and three times in the parent.
        close: gives the store up.
        audit: looks at the store at the end, opened anew: what the parent wrote is there, and nothing else.

    Returns:
        The error by which the fork was refused.

    Raises:
        PromiseBroken: the fork was let in, or was refused with another error than the library's; or closing in the fork
            gave the parent's lock up; or the parent's closing did not.
    """
    store = open_store()
    write(store)
    reading, writing = os.pipe()
    go, going = os.pipe()
    with warnings.catch_warnings():
        # Python warns that a fork of a process with threads may deadlock; this one does next to nothing.
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        try:
            # So that the end of the parent, however it ends, is the end of this one.
            os.close(going)
            _answer(writing, _attempt(store, write, close))
            os.read(go, 1)
        finally:
            os._exit(0)
    try:
        refused = pickle.loads(_received(reading))
        if not isinstance(refused, CompactlibError):
            raise _broken("a fork may not write to what its parent has open",
                          "it wrote" if refused is None else repr(refused), "Closed, or another error of the library",
                          "ask FolderLock.require_mine() before you write")
        write(store)
        try:
            open_store()
        except CompactlibError:
            pass
        else:
            raise _broken("a fork's closing does not give up its parent's lock",
                          "a second owner was let in while the first one is open", "Busy",
                          "release nothing that another process has taken")
        close(store)
        again = open_store()
        write(again)
        audit(again)
        close(again)
    finally:
        os.close(going)
        os.waitpid(child, 0)
        for descriptor in (reading, writing, go):
            os.close(descriptor)
    return refused


def _broken(promise: str, found: str, expected: str, advice: str) -> PromiseBroken:
    return PromiseBroken(test="check_fork", promise=promise, at="", found=found, expected=expected, advice=advice)


def _attempt(store: StoreT, write: Callable[[StoreT], object], close: Callable[[StoreT], object]) -> object:
    refused: object = None
    try:
        write(store)
    except Exception as error:  # whatever it is, the parent judges it
        refused = error
    try:
        close(store)
    except CompactlibError:
        pass
    except Exception as error:
        return error
    return refused


def _answer(descriptor: int, refused: object) -> None:
    try:
        data = pickle.dumps(refused)
    except Exception:  # a foreign error may not pickle; its text will do
        data = pickle.dumps(repr(refused))
    os.write(descriptor, len(data).to_bytes(4, "big") + data[:_MAX_BYTES])


def _received(descriptor: int) -> bytes:
    size = int.from_bytes(os.read(descriptor, 4), "big")
    data = b""
    while len(data) < size:
        data += os.read(descriptor, size - len(data))
    return data
