# SPDX-License-Identifier: Apache-2.0
"""The worker's side of `ProcessExecutor`: what runs in each process, and what the two sides say to each other.

Internal to the executor. The parent sends an `Order`, then possibly `"pause"`, `"resume"` or `"cancel"` for it; the
worker says `READY` once and then one `Report` for each order.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import queue
import signal
import threading
from multiprocessing import connection
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import attrs

from compactlib.executors.tasks import attempt_task, foreign_error, portable
from compactlib.rewrite import Attempt, RewriteFailure, RewriteOutcome, RewriteTask
from compactlib.runtime.budget import Budget, BudgetLimits
from compactlib.runtime.observe import Observer, RecordingObserver

if TYPE_CHECKING:
    Pipe: TypeAlias = connection.Connection[Any, Any]

READY = "ready"
"""A worker's first word: its interpreter is up and its main module could be imported."""

Steering: TypeAlias = Literal["pause", "resume", "cancel"]
"""What the host wants of the task that runs."""


@attrs.frozen
class Order:
    """Asks a worker for one attempt.

    Attributes:
        name: the task's name.
        task: the task as bytes, so that a worker that cannot revive it can still say whose it was.
        attempt: the attempt's id.
        limits: this attempt's part of the budget.
    """

    name: str
    task: bytes
    attempt: str
    limits: BudgetLimits


@attrs.frozen
class Report:
    """What came of an order.

    Attributes:
        content: the outcome and what was reported to the observer, as bytes, so that a parent that cannot revive it
            stays whole.
        spent_bytes: what the attempt spent of its limits.
    """

    content: bytes
    spent_bytes: int

    def revive(self) -> tuple[RewriteOutcome, RecordingObserver]:
        """The outcome, and what the task reported to its observer. Raises what unpickling raises."""
        outcome, told = pickle.loads(self.content)
        return outcome, told


def serve(pipe: Pipe) -> None:
    """A worker's whole life: do one order after the other until the parent hangs up."""
    # Ctrl-C reaches every process of the terminal; the parent decides what it means.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _let_others_go_first()
    orders: queue.SimpleQueue[tuple[Order, Budget] | None] = queue.SimpleQueue()
    threading.Thread(target=_receive, args=(pipe, orders), name="compactlib-orders", daemon=True).start()
    # The parent may be gone already, or go at any time: then there is no parent left to work for.
    with contextlib.suppress(OSError):
        pipe.send(READY)
        while (given := orders.get()) is not None:
            order, budget = given
            told = RecordingObserver(dumps=pickle.dumps)
            outcome = _attempt(order, budget, told)
            pipe.send(Report(pickle.dumps((outcome, told)), budget.spent_bytes))


def _let_others_go_first() -> None:
    """Have this process, when it wakes, interrupt nobody who answers a request; it keeps its share of the processors.

    What the host has chosen for its processes stays.
    """
    with contextlib.suppress(AttributeError, OSError):
        # Linux has this.
        if os.sched_getscheduler(0) == os.SCHED_OTHER:
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))


def _attempt(order: Order, budget: Budget, told: Observer) -> RewriteOutcome:
    try:
        task: RewriteTask = pickle.loads(order.task)
    except Exception as error:  # unpickling runs foreign code, which may raise anything
        return RewriteFailure(order.name, foreign_error(order.name, error))
    return portable(attempt_task(task, Attempt(order.attempt, budget, told)))


def _receive(pipe: Pipe, orders: queue.SimpleQueue[tuple[Order, Budget] | None]) -> None:
    """Read what the parent says while a task runs; a hung-up pipe cancels the task, so that no orphan works on."""
    budget = Budget()
    try:
        while True:
            message = pipe.recv()
            if isinstance(message, Order):
                budget = Budget.from_limits(message.limits)
                orders.put((message, budget))
            else:
                {"pause": budget.pause, "resume": budget.resume, "cancel": budget.cancel}[message]()
    except (EOFError, OSError):
        budget.cancel()
        orders.put(None)
