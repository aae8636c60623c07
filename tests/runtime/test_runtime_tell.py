# SPDX-License-Identifier: Apache-2.0
"""Watching breaks nothing."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import pytest

from compactlib.runtime import Observer, Progress, RecordingObserver
from compactlib.runtime.observe import TellingObserver, tell, telling


class Raising(Observer):
    """Raises whatever it is told."""

    def __init__(self, error: BaseException) -> None:
        self.error = error

    def progress(self, progress: Progress) -> None:
        raise self.error

    def count(self, name: str, value: int = 1, labels: Mapping[str, str] | None = None) -> None:
        raise self.error

    def measure(self, name: str, value: float, labels: Mapping[str, str] | None = None) -> None:
        raise self.error

    def event(self, name: str, fields: Mapping[str, Any]) -> None:
        raise self.error


def tell_all(observer: Observer) -> None:
    observer.progress(Progress("work", 1, 2))
    observer.count("counter", 3, {"a": "b"})
    observer.measure("measured", 0.5)
    observer.event("happened", {"x": 1})


def test_all_is_passed_on() -> None:
    recording = RecordingObserver()
    tell_all(telling(recording))
    assert recording.progresses == [Progress("work", 1, 2)]
    assert recording.counters == {("counter", (("a", "b"),)): 3}
    assert recording.measured == {("measured", ()): [0.5]}
    assert recording.events == [("happened", {"x": 1})]


def test_what_an_observer_raises_is_kept_and_logged_now_and_then(caplog: pytest.LogCaptureFixture) -> None:
    told = telling(Raising(RuntimeError("broken")))
    assert isinstance(told, TellingObserver)
    with caplog.at_level(logging.WARNING, "compactlib.observers"):
        for _ in range(4):
            tell_all(told)
    assert told.failures == 16
    assert isinstance(told.last_error, RuntimeError)
    assert [record.args[2] for record in caplog.records if isinstance(record.args, tuple)] == [1, 2, 4, 8, 16]


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit])
def test_what_ends_a_process_passes_through(kind: type[BaseException]) -> None:
    with pytest.raises(kind):
        telling(Raising(kind())).event("happened", {})


def test_nothing_is_wrapped_twice() -> None:
    told = telling(RecordingObserver())
    assert telling(told) is told
    plain = Observer()
    assert telling(plain) is plain
    assert type(telling(None)) is Observer


def test_a_listener_that_raises_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    heard: list[int] = []
    assert tell(heard.append, 3) is None
    assert heard == [3]
    error = tell(int, "x")
    assert isinstance(error, ValueError)
    assert "the work goes on" in caplog.text
