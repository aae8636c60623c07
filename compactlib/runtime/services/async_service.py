# SPDX-License-Identifier: Apache-2.0
"""The base of services in an event loop: tasks that are kept, threads for calls that block, and an end in time.

>>> import asyncio
>>> class Greeter(AsyncServiceFace):
...     def __init__(self):
...         self._work = AsyncWork("the greeter", event="greeter_failed")
...     async def _begin(self):
...         self._work.spawn(self._greet(), "greeting")
...     async def _greet(self):
...         print(await self._work.call("HELLO".lower))
...         raise OSError("no answer")
>>> async def main():
...     async with Greeter() as greeter:
...         await asyncio.sleep(0.1)
...     return greeter.last_error
>>> asyncio.run(main())
hello
OSError('no answer')

What a task raises ends that task at most: it is kept in `last_error`, counted, logged and reported. `KeyboardInterrupt`
and `SystemExit` are kept as well, and end the loop, as asyncio has it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextvars import copy_context
from functools import partial
from typing import TYPE_CHECKING, Any, ParamSpec, Self, TypeVar

from compactlib.errors import Busy, Closed, InvalidInput
from compactlib.outcome import Done, Failed, Outcome
from compactlib.runtime.budget import Budget
from compactlib.runtime.observe import Observer, telling
from compactlib.runtime.ownership import Run
from compactlib.runtime.services.daemon_threads import DaemonThreads
from compactlib.runtime.services.work_service import Stopped, ended_in, waiting_time

if TYPE_CHECKING:
    from concurrent.futures import Future

_LOGGER = logging.getLogger("compactlib.services")
_FIRST_PAUSE_SECONDS = 0.05
_LONGEST_PAUSE_SECONDS = 60.0
AnswerT = TypeVar("AnswerT")
ParamsP = ParamSpec("ParamsP")


class KeptTask:
    """A task of a service, whose errors the service keeps: it needs not be awaited."""

    def __init__(self, task: asyncio.Task[None]) -> None:
        self._task = task

    @property
    def has_ended(self) -> bool:
        """Whether it has come to its end."""
        return self._task.done()

    def cancel(self) -> None:
        """Have it end soon."""
        self._task.cancel()

    async def wait(self) -> None:
        """Return when it has ended, however it did."""
        await asyncio.wait([self._task])

    def __repr__(self) -> str:
        return f"<KeptTask: {'ended' if self.has_ended else 'running'}>"


class AsyncWork:
    """The work of one service. To be used in the event loop that `start` was awaited in, but for `hand_in` and `note`.

    Args:
        what: the service, as messages and threads name it, for example `"the node n1"`.
        event: its name when an unexpected exception is reported: `what`, `error`, `message`, `failures` in all.
        threads: calls at most that block at once, >= 1; what hangs takes one each.
        observer: is notified.

    Raises:
        InvalidInput: there are no threads.
    """

    def __init__(self, what: str, *, event: str, threads: int = 8, observer: Observer | None = None) -> None:
        given: object = threads
        if not isinstance(given, int) or given < 1:
            raise InvalidInput(f"{what} is given {given!r} threads; give at least 1")
        self._what = what
        self._event = event
        self._thread_count = threads
        # What its tasks, its threads and its observer do is its own doing.
        self._mark = Run(Budget())
        self._observer = self._mark.observer(telling(observer))
        self._loop: asyncio.AbstractEventLoop | None = None
        self._beginning: asyncio.Lock | None = None
        self._tasks: dict[asyncio.Task[Any], str] = {}
        self._steady: dict[KeptTask, str] = {}
        self._threads: DaemonThreads | None = None
        self._calls: dict[Future[Any], str] = {}
        self._call_ended = asyncio.Event()
        self._stopping: asyncio.Task[None] | None = None
        self._has_stopped = False
        self.last_error: BaseException | None = None
        """See `AsyncService.last_error`."""
        self.failures: int = 0
        """See `AsyncService.failures`."""
        self._spawned = 0

    @property
    def observer(self) -> Observer:
        """The observer as the service notifies it: in its own name, and what it raises breaks nothing."""
        return self._observer

    @property
    def is_mine(self) -> bool:
        """Whether the caller is a part of what the service does, in whichever task or thread."""
        return self._mark.is_mine

    @property
    def is_running(self) -> bool:
        """Whether it was started, and is not stopping."""
        return self._loop is not None and self._stopping is None

    @property
    def is_stopping(self) -> bool:
        """Whether `stop` was called, and `start` not since."""
        return self._stopping is not None or self._has_stopped

    # ---------------------------------------------------------------------------------------------- start and stop

    async def start(self, begin: Callable[[], Awaitable[object]]) -> None:
        """Begin; starting again does nothing, and after `stop` it begins anew.

        Args:
            begin: opens what the service needs, and spawns what it does; nothing is begun if it raises.

        Raises:
            Busy: it is being stopped.
            InvalidInput: it was started in another event loop.
        """
        self._require_loop()
        self._require_not_stopping()
        if self._beginning is None or not self._beginning.locked():
            self._beginning = asyncio.Lock()
        async with self._beginning:
            self._require_not_stopping()
            if self._loop is not None:
                return
            self._loop = asyncio.get_running_loop()
            self._has_stopped = False
            self._threads = DaemonThreads(self._thread_count, self._what)
            try:
                with self._mark.inside():
                    await begin()
            except BaseException:
                try:
                    await self._end_tasks()
                finally:
                    # Also where who waits for that end is cancelled again: what has not begun does not run.
                    if self._stopping is None:
                        self._let_go()
                raise

    async def stop(self, end: Callable[[], Awaitable[object]], *, wait_seconds: float = 30.0) -> Done[Stopped] | Failed:
        """See `AsyncService.stop`: cancels the tasks, and waits for their end and for that of the calls in threads.

        Args:
            end: closes what `begin` has opened, before the tasks are cancelled; what it raises is noted.
            wait_seconds: what has not ended then goes on, followed by nothing.

        Raises:
            Busy: called from within its own work; it ends all the same.
            InvalidInput: the time is negative or no number, or it was started in another event loop.
        """
        left = waiting_time(wait_seconds)
        self._require_loop()
        # One that is done and still there was cancelled, by a host that cancels every task of its loop, say.
        if self._loop is not None and (self._stopping is None or self._stopping.done()):
            with self._mark.inside():
                self._stopping = self._loop.create_task(self._stop(end))
        if self._mark.is_mine:
            raise Busy(f"{self._what} cannot wait for its own end: it was stopped from within its own work; it begins "
                       f"nothing more, await `stop` elsewhere to wait")
        self._has_stopped = True
        if self._stopping is not None:
            await asyncio.wait({self._stopping}, timeout=left())
        if self._stopping is not None:
            runs = ", ".join(dict.fromkeys([*self._tasks.values(), *self._calls.values()])) or "closing"
            return Failed(Busy(f"{self._what} has not ended in {wait_seconds:g} seconds: {runs} still runs; it was "
                               f"cancelled, and nothing begins after it; stop again to wait longer"))
        return Done(Stopped(self._spawned, self.failures))

    async def _stop(self, end: Callable[[], Awaitable[object]]) -> None:
        # What is being opened is to be closed again.
        async with self._beginning or asyncio.Lock():
            await self._attempt(end, "stopping")
            await self._end_tasks()
            while self._calls:
                self._call_ended = asyncio.Event()
                await self._call_ended.wait()
            self._let_go()

    async def _end_tasks(self) -> None:
        while tasks := [task for task in self._tasks if not task.done() and task is not asyncio.current_task()]:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)

    def _let_go(self) -> None:
        if self._threads is not None:
            self._threads.close()
        self._threads = self._loop = self._stopping = None
        self._steady.clear()
        self._has_stopped = True

    def _require_not_stopping(self) -> None:
        if self._stopping is not None:
            raise Busy(f"{self._what} is being stopped; start it when `stop` has answered")

    def _require_loop(self) -> None:
        if self._loop is None or self._loop is asyncio.get_running_loop():
            return
        if not self._loop.is_closed():
            raise InvalidInput(f"{self._what} was started in another event loop; use it there")
        # That one has ended without a word: so have the tasks.
        self._tasks.clear()
        self._calls.clear()
        self._let_go()

    # --------------------------------------------------------------------------------------------------- what it does

    def spawn(self, coroutine: Coroutine[Any, Any, object], what: str) -> KeptTask:
        """Do something beside everything else, until it ends or the service stops; what it raises is noted.

        Raises:
            Closed: the service does not run, or stops.
        """
        if not self.is_running or self._loop is None:
            coroutine.close()
            raise Closed(f"{self._what} does not run: start it first")
        with self._mark.inside():
            task = self._loop.create_task(self._kept(coroutine, what))
        self._spawned += 1
        self._tasks[task] = what

        def ended(done: asyncio.Task[Any]) -> None:
            self._tasks.pop(done, None)
            # A task that is cancelled before its first step never comes to it.
            coroutine.close()

        task.add_done_callback(ended)
        return KeptTask(task)

    def keep_on(self, turn: Callable[[], Awaitable[object]], what: str, *,
                first_pause_seconds: float = _FIRST_PAUSE_SECONDS,
                longest_pause_seconds: float = _LONGEST_PAUSE_SECONDS) -> KeptTask:
        """Take one turn after the other until the service stops; after one that raises, a pause that doubles.

        Raises:
            Closed: the service does not run, or stops.
        """
        async def turns() -> None:
            # A turn may take its cancelling for another task's, and go on: no other follows it.
            while self.is_running:
                await self.retry(turn, what, first_pause_seconds=first_pause_seconds,
                                 longest_pause_seconds=longest_pause_seconds)
                await asyncio.sleep(0)  # so that a turn that waits for nothing lets others go on

        task = self.spawn(turns(), what)
        self._steady[task] = what
        return task

    async def retry(self, call: Callable[[], Awaitable[AnswerT]], what: str, *,
                    first_pause_seconds: float = _FIRST_PAUSE_SECONDS,
                    longest_pause_seconds: float = _LONGEST_PAUSE_SECONDS) -> AnswerT:
        """What `call` answers, tried again with growing pauses while it raises, which is noted each time."""
        pause = first_pause_seconds
        while True:
            try:
                return await call()
            except Exception as error:
                self.note(error, what)
            await asyncio.sleep(pause)
            pause = min(2 * pause, longest_pause_seconds)

    async def call(self, function: Callable[ParamsP, AnswerT], *args: ParamsP.args,
                   **kwargs: ParamsP.kwargs) -> AnswerT:
        """What a function answers that may block: run in a daemon thread, whose end `stop` waits for.

        Raises:
            Closed: the service does not run.
            Exception: what the function raises; `StopIteration` and the like as `TaskFailed`.
        """
        loop, threads = self._loop, self._threads
        if loop is None or threads is None:
            raise Closed(f"{self._what} does not run: start it first")
        with self._mark.inside():
            context = copy_context()
        future = threads.future(partial(context.run, partial(_called, function, *args, **kwargs)))
        self._calls[future] = getattr(function, "__name__", repr(function))

        def ended(done: Future[AnswerT]) -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: no task waits any more
                loop.call_soon_threadsafe(self._forget, done)

        future.add_done_callback(ended)
        try:
            return await asyncio.wrap_future(future)
        except asyncio.CancelledError:
            # No task hears how the call ends.
            future.add_done_callback(partial(self._note_unheard, what=self._calls.get(future, "a call")))
            raise

    def later(self, seconds: float, function: Callable[[], object], what: str) -> asyncio.TimerHandle:
        """Call a function after a time, unless the handle is cancelled or the service stops; errors are noted.

        Raises:
            Closed: the service does not run, or stops.
        """
        if not self.is_running or self._loop is None:
            raise Closed(f"{self._what} does not run: start it first")
        with self._mark.inside():
            return self._loop.call_later(max(seconds, 0.0), self._guarded, self._threads, function, what)

    def hand_in(self, function: Callable[[], object], what: str) -> None:
        """Call a function in the service's loop, from whichever thread: at once if this is it. Errors are noted.

        Raises:
            Closed: the service does not run, or stops.
        """
        loop, threads = self._loop, self._threads
        if not self.is_running or loop is None:
            raise Closed(f"{self._what} does not run: start it first")
        try:
            is_here = asyncio.get_running_loop() is loop
        except RuntimeError:
            is_here = False
        if is_here:
            self._guarded(threads, function, what)
            return
        try:
            loop.call_soon_threadsafe(self._guarded, threads, function, what)
        except RuntimeError as error:
            raise Closed(f"the event loop of {self._what} was closed; start it in another one") from error

    async def run_pending(self, pending: Callable[[], Awaitable[Sequence[Outcome[Any]]]]) -> Sequence[Outcome[Any]]:
        """See `AsyncService.run_pending`; what is raised is noted, and is an outcome."""
        with self._mark.inside():
            answer = await self._attempt(pending, "run_pending")
        return [answer] if isinstance(answer, Failed) else answer

    def note(self, error: BaseException, what: str) -> None:
        """Keep, log and report an unexpected exception that did not end the service."""
        self.last_error = error
        self.failures += 1
        if self.failures & (self.failures - 1) == 0:
            _LOGGER.warning("%s: %s raised %r (%d in all); it goes on", self._what, what, error, self.failures,
                            exc_info=error)
        self._observer.event(self._event, {"what": what, "error": type(error).__name__, "message": str(error),
                                           "failures": self.failures})

    def _note_unheard(self, future: Future[Any], what: str) -> None:
        error = None if future.cancelled() else future.exception()
        if error is not None:
            self.note(error, what)

    async def _attempt(self, call: Callable[[], Awaitable[AnswerT]], what: str) -> AnswerT | Failed:
        try:
            return await call()
        except Exception as error:
            self.note(error, what)
            return Failed(ended_in(what, error))
        except asyncio.CancelledError:
            raise
        except BaseException as error:
            self.note(error, what)
            raise

    async def _kept(self, coroutine: Coroutine[Any, Any, object], what: str) -> None:
        await self._attempt(lambda: coroutine, what)

    def _guarded(self, threads: DaemonThreads | None, function: Callable[[], object], what: str) -> None:
        # Those of another start: what was to come in that one is over.
        if not self.is_running or threads is not self._threads:
            return
        with self._mark.inside():
            try:
                function()
            except Exception as error:
                self.note(error, what)
            except BaseException as error:
                self.note(error, what)
                raise

    def _forget(self, future: Future[Any]) -> None:
        self._calls.pop(future, None)
        self._call_ended.set()

    def __repr__(self) -> str:
        state = "running" if self.is_running else "stopping" if self._stopping else "stopped" if self._has_stopped \
            else "not started"
        failed = f", {self.failures} errors, the last {self.last_error!r}" if self.failures else ""
        return f"<AsyncWork of {self._what}: {state}, {len(self._tasks)} tasks{failed}>"


class AsyncServiceFace:
    """An `AsyncService`. The class that stands on it sets `_work` before anything else, and overrides what it needs."""

    _work: AsyncWork

    async def start(self) -> None:
        """Begin; starting again does nothing.

        Raises:
            Busy: it is being stopped.
            InvalidInput: it was started in another event loop.
        """
        await self._work.start(self._begin)

    async def run_pending(self) -> Sequence[Outcome[Any]]:
        """Do what is due now, and answer what came of each."""
        return await self._work.run_pending(self._pending)

    async def stop(self, *, wait_seconds: float = 30.0) -> Done[Any] | Failed:
        """Begin nothing more, cancel what runs, and wait for its end; `Failed(Busy)` if it did not end in time.

        Stopping again waits again.

        Raises:
            Busy: called from within its own work, in whichever task or thread; it ends all the same.
            InvalidInput: the time is negative or no number, or it was started in another event loop.
        """
        return await self._work.stop(self._end, wait_seconds=wait_seconds)

    @property
    def last_error(self) -> BaseException | None:
        """The last unexpected exception; `None` if there never was one."""
        return self._work.last_error

    @property
    def failures(self) -> int:
        """How often that was."""
        return self._work.failures

    @property
    def is_mine(self) -> bool:
        """Whether the caller is a part of what the service does: a task, a host's call or an observer, say."""
        return self._work.is_mine

    async def _begin(self) -> None:
        """Open what it needs, and spawn what it does."""

    async def _end(self) -> None:
        """Close what it has opened; the tasks are cancelled afterwards."""

    async def _pending(self) -> Sequence[Outcome[Any]]:
        """Do what is due now."""
        return ()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()


def _called(function: Callable[ParamsP, AnswerT], *args: ParamsP.args, **kwargs: ParamsP.kwargs) -> AnswerT:
    try:
        return function(*args, **kwargs)
    except (StopIteration, asyncio.CancelledError) as error:
        # Neither can be distinguished from what a loop means by it: a waiting task would wait for ever, or believe it
        # is to end.
        raise ended_in(getattr(function, "__name__", "a call"), error) from error
