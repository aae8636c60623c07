# SPDX-License-Identifier: Apache-2.0
"""The parent's side of the worker processes of a `ProcessExecutor`: one worker, and those kept for the next run."""

from __future__ import annotations

import contextlib
import signal
import threading
from typing import TYPE_CHECKING, Any

import attrs

from compactlib._forks import OfOneProcess
from compactlib.executors.process_worker import Order, Steering, serve
from compactlib.rewrite import RewriteTask

if TYPE_CHECKING:
    from multiprocessing.connection import Connection
    from multiprocessing.context import SpawnContext, SpawnProcess

_EXIT_SECONDS = 5.0
"""How long a worker that has hung up may take to exit."""


@attrs.define
class Job:
    """A task and the attempts that it has cost so far.

    Attributes:
        task: the task.
        deaths: what each attempt whose worker died has ended in.
        least_bytes: what its part of the total has to be, as far as that is known.
    """

    task: RewriteTask
    deaths: list[str] = attrs.field(factory=list)
    least_bytes: int = 0


class Worker:
    """The parent's side of one worker process."""

    def __init__(self, context: SpawnContext) -> None:
        pipe, theirs = context.Pipe()
        self.pipe: Connection[Any, Any] = pipe
        self.process: SpawnProcess = context.Process(target=serve, args=(theirs,), name="compactlib-rewrite",
                                                     daemon=True)
        try:
            self.process.start()
        except BaseException:
            self.pipe.close()
            raise
        finally:
            theirs.close()
        self.is_ready = False
        self.task: tuple[Job, Order] | None = None
        self.steering: Steering = "resume"

    def give(self, job: Job, order: Order) -> None:
        """Hand over a task. A worker that is already dead is found out when it is next listened to."""
        self.task, self.steering = (job, order), "resume"
        with contextlib.suppress(OSError):
            self.pipe.send(order)

    def take_back(self) -> tuple[Job, Order]:
        """What it was given, which it has no longer."""
        assert self.task is not None, "only a worker with a task is listened to"
        given, self.task = self.task, None
        return given

    def steer(self, steering: Steering) -> None:
        """Pass on the host's wish, if the worker does not know it yet."""
        if steering != self.steering:
            self.steering = steering
            with contextlib.suppress(OSError):
                self.pipe.send(steering)

    def message(self) -> object:
        """What the worker says, or `None`: nothing yet if it is alive, and never again if it is dead."""
        try:
            return self.pipe.recv() if self.pipe.poll() else None
        except (EOFError, OSError):
            # Its end of the pipe is gone; the process follows at once, or is as good as dead.
            self.process.join(_EXIT_SECONDS)
            self.process.kill()
            self.process.join()
            return None

    def end(self, patience_seconds: float) -> bool:
        """Let the process end by itself (hanging up cancels its task) or kill it; whether it was in time."""
        self.pipe.close()
        self.process.join(patience_seconds)
        in_time = not self.process.is_alive()
        if not in_time:
            self.process.kill()
            self.process.join()
        return in_time


class KeptWorkers(OfOneProcess):
    """Idle workers that wait for the next run, while the executor is held open."""

    def __init__(self) -> None:
        super().__init__()
        self._lock = threading.Lock()
        self._limit = 0
        self._idle: list[Worker] = []

    def _inherit(self) -> None:
        # The workers are children of the parent; a fork starts with none.
        self._lock, self._limit, self._idle = threading.Lock(), 0, []

    def keep(self, limit: int) -> None:
        """From now on keep up to `limit` workers."""
        with self._lock:
            self._limit = limit

    def take(self) -> Worker | None:
        """One that is alive, or `None`."""
        with self._lock:
            while self._idle:
                worker = self._idle.pop()
                if worker.process.is_alive():
                    return worker
                worker.end(0)
        return None

    def put(self, worker: Worker) -> bool:
        """Keep a worker that has nothing to do; whether there was room."""
        with self._lock:
            has_room = len(self._idle) < self._limit
            if has_room:
                self._idle.append(worker)
            return has_room

    def end(self, patience_seconds: float) -> None:
        """End them all, and keep none from now on."""
        with self._lock:
            self._limit = 0
            idle, self._idle = self._idle, []
        for worker in idle:
            worker.end(patience_seconds)


def exit_text(code: int | None) -> str:
    """How a process with this exit code ended, in words."""
    if code is not None and code < 0:
        with contextlib.suppress(ValueError):
            return f"signal {signal.Signals(-code).name}"
    return f"exit code {code}"
