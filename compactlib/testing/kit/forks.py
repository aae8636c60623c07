# SPDX-License-Identifier: Apache-2.0
"""What a fork may do with the stores of the process that it was forked from: nothing; each call is refused by name."""

from __future__ import annotations

import faulthandler
import functools
import gc
import os
import pickle
import threading
import types
import warnings
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, TypeVar

from compactlib.errors import CompactlibError
from compactlib.testing.promises import PromiseBroken

StoreT = TypeVar("StoreT")

_MAX_BYTES = 1 << 20
_LOCKS = (type(threading.Lock()), type(threading.RLock()))
_LOOKED_INTO = (dict, list, tuple, set, frozenset, deque, functools.partial, types.FunctionType, types.MethodType,
                types.CellType, threading.Condition, threading.Event)


def check_fork(open_store: Callable[[], StoreT], write: Callable[[StoreT], object],
               close: Callable[[StoreT], object], *,
               audit: Callable[[StoreT], object] = lambda store: None,
               hangs_after_seconds: float = 30.0) -> CompactlibError:
    """Fork while a store is open: the fork is refused, its parent goes on, and the folder is free when that closes.

    The fork tries to write and to close, and lives on while the parent writes, closes, and opens the store again.
    Before that it is forked once for each lock of the store (found by following its attributes through the library's
    objects) while another thread holds that lock, which in the fork is never released: it must be refused as well,
    and not wait.

    Args:
        open_store: opens the store in its folder, made at the first call.
        write: changes something and acknowledges it; called in the fork, and three times in the parent.
        close: gives the store up.
        audit: looks at the store at the end, opened anew: what the parent wrote is there, and nothing else.
        hangs_after_seconds: a fork that has not answered by then waits for what never comes; it is ended.

    Returns:
        The error by which the fork was refused.

    Raises:
        PromiseBroken: the fork was let in, or was refused with another error than the library's, or hung; or closing in
            the fork gave the parent's lock up; or the parent's closing did not.
    """
    store = open_store()
    write(store)
    attempted = functools.partial(_attempt, store, write, close)
    for where, lock in _locks_of(store):
        with Fork(attempted, hangs_after_seconds, meanwhile=_held_elsewhere(lock)) as fork:
            _require_refused(fork.answer(), f"while another thread held the lock at {where}")
    with Fork(attempted, hangs_after_seconds) as fork:
        refused = _require_refused(fork.answer(), "")
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
    return refused


def in_a_fork(work: Callable[[], object], *, hangs_after_seconds: float = 30.0) -> object:
    """What `work` returns in a fork of this process, the error it raises there, or `Hung`; all of them pickled."""
    with Fork(work, hangs_after_seconds) as fork:
        return fork.answer()


def _require_refused(answer: object, at: str) -> CompactlibError:
    if isinstance(answer, CompactlibError):
        return answer
    if isinstance(answer, Hung):
        raise _broken("a fork is refused whatever other threads did when it was made", f"it hung:\n{answer.stack}",
                      "Closed, or another error of the library, at once",
                      "ask whose process this is before the first lock, in closing too", at=at)
    raise _broken("a fork may not write to what its parent has open", "it wrote" if answer is None else repr(answer),
                  "Closed, or another error of the library", "ask FolderLock.require_mine() before you write", at=at)


class Hung:
    """A fork did not answer in time.

    Attributes:
        stack: what each of its threads was at.
    """

    def __init__(self, stack: str) -> None:
        self.stack: str = stack


class Fork:
    """A fork that does `work`, answers what that returned or raised, and lives on until the `with` ends.

    Args:
        work: done in the fork; what it returns can be pickled.
        hangs_after_seconds: the fork is ended if it has not answered by then.
        meanwhile: entered before it is made, and left when it is there.
    """

    def __init__(self, work: Callable[[], object], hangs_after_seconds: float,
                 meanwhile: AbstractContextManager[object] | None = None) -> None:
        self._work = work
        self._hangs_after_seconds = hangs_after_seconds
        self._meanwhile = nullcontext() if meanwhile is None else meanwhile

    def __enter__(self) -> Fork:
        self._reading, writing = os.pipe()
        go, self._going = os.pipe()
        with self._meanwhile, warnings.catch_warnings():
            # Python warns that a fork of a process with threads may deadlock: whether it does is the question.
            warnings.simplefilter("ignore", DeprecationWarning)
            self._child = os.fork()
            if self._child == 0:
                try:
                    # So that the end of the parent, however it ends, is the end of this one.
                    os.close(self._going)
                    # Ends the process by a thread that needs no lock of Python's.
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
        """What the work returned, the error it raised, or `Hung`."""
        head = os.read(self._reading, len(_ANSWERED))
        if head != _ANSWERED:
            return Hung((head + _to_the_end(self._reading)).decode(errors="replace"))
        size = int.from_bytes(os.read(self._reading, 4), "big")
        data = b""
        while len(data) < size:
            data += os.read(self._reading, size - len(data))
        return pickle.loads(data)


def _broken(promise: str, found: str, expected: str, advice: str, at: str = "") -> PromiseBroken:
    return PromiseBroken(test="check_fork", promise=promise, at=at, found=found, expected=expected, advice=advice)


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


def _locks_of(store: object) -> Iterator[tuple[str, Any]]:
    """The locks that can be reached from `store` without leaving the library's and its own, each with the way to it."""
    packages = {"compactlib", type(store).__module__.split(".")[0]}
    seen = {id(store)}
    waiting: deque[tuple[str, object]] = deque([(type(store).__name__, store)])
    while waiting:
        where, found = waiting.popleft()
        for name, each in _attributes(found):
            if id(each) in seen:
                continue
            seen.add(id(each))
            if isinstance(each, _LOCKS):
                yield f"{where}{name}", each
            elif isinstance(each, _LOOKED_INTO) or type(each).__module__.split(".")[0] in packages:
                waiting.append((f"{where}{name}", each))


@contextmanager
def _held_elsewhere(lock: Any) -> Iterator[None]:
    held, done = threading.Event(), threading.Event()

    def hold() -> None:
        # One that a thread of the store never lets go of is held elsewhere already.
        mine = lock.acquire(timeout=1.0)
        held.set()
        done.wait()
        if mine:
            lock.release()

    thread = threading.Thread(target=hold, daemon=True)
    thread.start()
    held.wait()
    try:
        yield
    finally:
        done.set()
        thread.join()


def _is_filled(cell: types.CellType) -> bool:
    try:
        return cell.cell_contents is not cell
    except ValueError:  # it is empty
        return False


def _attributes(found: object) -> list[tuple[str, object]]:
    if isinstance(found, dict):
        return [(f"[{key!r}]", value) for key, value in list(found.items())]
    if isinstance(found, types.FunctionType):
        # Not its globals: they are the whole module.
        return [("()", cell.cell_contents) for cell in found.__closure__ or () if _is_filled(cell)]
    named = list(getattr(found, "__dict__", {}).items())
    if named:
        return [(f".{name}", value) for name, value in named]
    return [("[...]", value) for value in gc.get_referents(found)]
