# SPDX-License-Identifier: Apache-2.0
"""`Interrupted` finds the places of a function, raises at each, and the function's own handlers see it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest

from compactlib.testing import Interrupted

LOCK = threading.Lock()


def inner(number: int) -> int:
    return number + 1


def plain() -> None:
    with LOCK:
        for number in range(3):
            inner(number)
    with LOCK:
        len([1])


def one_by_one() -> Iterator[int]:
    with LOCK:
        for _ in range(2):
            pass
        for number in range(2):
            yield inner(number)


def generator() -> None:
    list(one_by_one())


@pytest.mark.parametrize("function", [plain, generator])
def test_each_place_is_reached_once_and_releases_locks(function: Callable[[], None]) -> None:
    with Interrupted(files=(__file__,)) as whole:
        function()
    assert whole.places > 6
    where = list[str]()
    for place in range(1, whole.places + 1):
        interrupted = Interrupted(place, files=(__file__,))
        with pytest.raises(KeyboardInterrupt), interrupted:
            function()
        where.append(interrupted.where)
        assert not LOCK.locked(), interrupted.where
    assert len(set(where)) > 4


def test_pause_resumes_at_its_place() -> None:
    paused = list[str]()
    with Interrupted(3, lambda: paused.append("here"), files=(__file__,)) as interrupted:
        plain()
        plain()
    assert paused == ["here"]
    assert interrupted.places > 12


def test_nothing_is_raised_in_another_thread() -> None:
    begun = threading.Event()

    def work() -> None:
        begun.wait()
        for _ in range(50):
            plain()

    thread = threading.Thread(target=work)
    thread.start()
    with Interrupted(files=(__file__,)) as interrupted:
        begun.set()
        thread.join()
    assert interrupted.places < 50
