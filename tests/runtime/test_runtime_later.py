# SPDX-License-Identifier: Apache-2.0
"""What happens under a lock is told after it."""

from __future__ import annotations

import threading
from collections.abc import Callable

from compactlib.runtime import Observer, Progress, RecordingObserver
from compactlib.runtime.later import LaterCalls, LaterObserver
from compactlib.runtime.observe import Observers
from compactlib.testing.interrupts import interruptions
from tests.harness.effort import Effort


def test_nothing_is_told_before_delivery_and_all_in_order_then() -> None:
    told = RecordingObserver()
    later = LaterObserver(told)
    later.event("first", {"n": 1})
    later.count("counter", 3)
    later.measure("measured", 0.5)
    later.progress(Progress("work", 1, 2))
    later.event("second", {})
    assert (told.events, dict(told.counters)) == ([], {})
    later.deliver()
    later.deliver()
    assert [name for name, _ in told.events] == ["first", "second"]
    assert sum(told.counters.values()) == 3


def test_who_is_told_may_cause_more_and_may_raise() -> None:
    names: list[str] = []

    class Asking(Observer):
        def event(self, name: str, fields: object) -> None:
            names.append(name)
            if name == "first":
                later.event("caused", {})
            raise KeyError(name)

    later = LaterObserver(Asking())
    later.event("first", {})
    later.event("second", {})
    later.deliver()
    assert names == ["first", "second", "caused"]
    assert "0 kept" in repr(later)


def test_nobody_listens_where_there_is_no_observer() -> None:
    assert [LaterObserver(each).is_deaf for each in (None, Observer(), RecordingObserver())] == [True, True, False]
    assert not Observers(Observer(), RecordingObserver()).is_deaf


def test_an_interrupt_anywhere_keeps_no_call_from_being_made_by_whoever_comes_next(effort: Effort) -> None:
    def work(calls: LaterCalls) -> None:
        with calls, calls.held():
            calls.put(told.append, "first")
            with calls, calls.held():
                calls.put(told.append, "second")
        calls.put(told.append, "third")
        calls.deliver()

    told: list[str] = []
    for interrupt in interruptions(lambda: work(LaterCalls()), effort(300, 300)):
        for follow in (_here, _in_another_thread):
            calls, kept = LaterCalls(), []
            told.clear()
            try:
                with interrupt.again() as again:
                    work(calls)
            except KeyboardInterrupt as error:
                kept.append(error)  # as a shell keeps the last one, and all that it refers to
            calls.put(told.append, "last")
            follow(calls.deliver)
            assert (told[-1], len(calls)) == ("last", 0), again.where


def _here(call: Callable[[], object]) -> None:
    call()


def _in_another_thread(call: Callable[[], object]) -> None:
    thread = threading.Thread(target=call)
    thread.start()
    thread.join()
