# SPDX-License-Identifier: Apache-2.0
"""A lock that a fork is refused, and that threads share as any other."""

from __future__ import annotations

import os
import threading

import pytest

from compactlib.errors import Closed
from compactlib.runtime.owned_lock import OwnedLock
from tests.harness.forks import in_a_fork


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
        thread = threading.Thread(target=lock.__enter__)
        thread.start()
        thread.join()

    def refused() -> bool:
        with pytest.raises(Closed, match=f"the store in /data was opened by process {opener}"), lock:
            pass
        return lock.is_inherited

    assert in_a_fork(refused) is True
