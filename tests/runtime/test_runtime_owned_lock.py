# SPDX-License-Identifier: Apache-2.0
"""A lock that a fork is refused, and that threads share as any other."""

from __future__ import annotations

import os
import threading
import warnings

import pytest

from compactlib.errors import Closed
from compactlib.runtime.owned_lock import OwnedLock


def test_a_thread_may_take_it_again_and_others_wait() -> None:
    lock, order = OwnedLock("the store"), []

    def other() -> None:
        with lock:
            order.append("other")

    thread = threading.Thread(target=other)
    with lock, lock:
        thread.start()
        order.append("first")
    thread.join()
    assert order == ["first", "other"]


@pytest.mark.parametrize("is_held", [False, True])
def test_a_fork_is_refused_by_name_whether_it_is_held_or_not(is_held: bool) -> None:
    lock, opener = OwnedLock("the store in /data"), os.getpid()
    if is_held:
        thread = threading.Thread(target=lock.acquire)
        thread.start()
        thread.join()

    with warnings.catch_warnings():
        # Python warns that a fork of a process with threads may deadlock.
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        answer = 1
        try:
            with lock:
                answer = 2
        except Closed as error:
            answer = 0 if f"the store in /data was opened by process {opener}" in str(error) else 3
        finally:
            os._exit(answer)
    assert os.waitpid(child, 0)[1] == 0
