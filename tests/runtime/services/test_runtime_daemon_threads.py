# SPDX-License-Identifier: Apache-2.0
"""Calls in daemon threads: run side by side, survive what they raise, and keep no process from ending."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading

import pytest

from compactlib.errors import Closed
from compactlib.runtime.services.daemon_threads import DaemonThreads

PATIENCE = 60.0


def test_calls_run_side_by_side_up_to_the_count_and_the_rest_waits() -> None:
    threads, together, may_end = DaemonThreads(2, "test"), threading.Barrier(3), threading.Event()
    done = threading.Semaphore(0)

    def call() -> None:
        together.wait(PATIENCE)
        assert may_end.wait(PATIENCE)
        done.release()

    def last() -> None:
        names.append(threading.current_thread().name)
        done.release()

    names: list[str] = []
    for each in (call, call, last):
        threads.submit(each)
    together.wait(PATIENCE)
    assert names == []
    may_end.set()
    assert all(done.acquire(timeout=PATIENCE) for _ in range(3))
    assert names[0].startswith("test-")
    assert repr(threads) == "<DaemonThreads test: 2 of 2>"


@pytest.mark.parametrize("error", [ZeroDivisionError("no"), SystemExit("no"), KeyboardInterrupt()])
def test_a_thread_survives_what_a_call_raises(error: BaseException) -> None:
    threads, done = DaemonThreads(1, "test"), threading.Event()

    def fail() -> None:
        raise error

    threads.submit(fail)
    threads.submit(done.set)
    assert done.wait(PATIENCE)


def test_what_has_not_begun_when_it_is_closed_never_does_and_the_threads_end() -> None:
    threads, began, may_end, late = DaemonThreads(1, "closing"), threading.Event(), threading.Event(), list[int]()

    def call() -> None:
        began.set()
        assert may_end.wait(PATIENCE)

    threads.submit(call)
    threads.submit(lambda: late.append(1))
    assert began.wait(PATIENCE)
    threads.close()
    with pytest.raises(Closed):
        threads.submit(call)
    may_end.set()
    for thread in threading.enumerate():
        if thread.name.startswith("closing"):
            thread.join(PATIENCE)
    assert late == []
    assert "closed" in repr(threads)


def test_threads_end_when_nobody_can_give_them_anything_any_more() -> None:
    threads, done = DaemonThreads(2, "dropped"), threading.Event()
    threads.submit(done.set)
    assert done.wait(PATIENCE)
    del threads
    gc.collect()
    for thread in threading.enumerate():
        if thread.name.startswith("dropped"):
            thread.join(PATIENCE)
            assert not thread.is_alive()


def test_a_call_that_hangs_keeps_no_process_from_ending() -> None:
    program = ("import threading; from compactlib.runtime.services.daemon_threads import DaemonThreads\n"
               "began = threading.Event()\n"
               "def hang():\n    began.set(); threading.Event().wait()\n"
               "threads = DaemonThreads(1, 'x'); threads.submit(hang); began.wait(); threads.close(); print('over')")
    ended = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True,
                           timeout=PATIENCE)
    assert ended.stdout == "over\n"


def test_a_future_has_what_the_call_returns_or_raises() -> None:
    threads = DaemonThreads(1, "futures")
    assert threads.future(lambda: 3).result(PATIENCE) == 3
    for kind in (ZeroDivisionError, SystemExit):
        def fail(kind: type[BaseException] = kind) -> None:
            raise kind("no")

        assert isinstance(threads.future(fail).exception(PATIENCE), kind)
    threads.close()
    with pytest.raises(Closed):
        threads.future(lambda: 3)
