# SPDX-License-Identifier: Apache-2.0
"""What happens under a lock is told after it."""

from __future__ import annotations

from compactlib.runtime.later import LaterObserver
from compactlib.runtime.observe import Observer, Observers, Progress, RecordingObserver


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
