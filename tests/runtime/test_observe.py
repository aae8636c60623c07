# SPDX-License-Identifier: Apache-2.0
"""`observe`: every adapter shows what it is told, from any thread, and none is in the way of the work."""

from __future__ import annotations

import pickle
import threading
import time
from collections.abc import Mapping

import pytest

from compactlib.observer import EventRecorder
from compactlib.runtime import Observer, Progress, RecordingObserver
from compactlib.runtime.observe import Observers, TellingObserver, telling


class Polite(str):
    """A name that lets another thread go first whenever a dictionary looks it up: unguarded updates get lost."""

    __slots__ = ()

    def __hash__(self) -> int:
        time.sleep(0)
        return super().__hash__()


def in_threads(observer: Observer, threads: int = 4, times: int = 500) -> None:
    def work() -> None:
        for _ in range(times):
            observer.count(Polite("bytes"), 2, {"log": "a"})

    running = [threading.Thread(target=work) for _ in range(threads)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()


def test_an_observer_that_overrides_nothing_accepts_everything() -> None:
    observer = Observer()
    observer.progress(Progress("work", 1, 2))
    observer.count("bytes")
    observer.event("happened", {"number": 1})


# -------------------------------------------------------------------------------------------------- several, recorded


def test_several_observers_are_told_in_order() -> None:
    first, second = RecordingObserver(), RecordingObserver()
    both = Observers(first, second)
    both.progress(Progress("work", 1, 2))
    both.count("bytes", 3, {"log": "a"})
    both.event("happened", {"number": 1})
    for observer in (first, second):
        assert observer.progresses == [Progress("work", 1, 2, "bytes")]
        assert observer.counters == {("bytes", (("log", "a"),)): 3}
        assert observer.events == [("happened", {"number": 1})]


def test_counters_add_up_whatever_the_order_of_labels() -> None:
    observer = RecordingObserver()
    observer.count("bytes", 1, {"a": "1", "b": "2"})
    observer.count("bytes", 2, {"b": "2", "a": "1"})
    observer.count("bytes")
    assert observer.counters == {("bytes", (("a", "1"), ("b", "2"))): 3, ("bytes", ()): 1}


def test_recorded_events_do_not_change_with_their_source() -> None:
    observer = RecordingObserver()
    fields = {"number": 1}
    observer.event("happened", fields)
    fields["number"] = 2
    assert observer.events == [("happened", {"number": 1})]


def test_recording_stops_at_its_limit_and_says_how_much_it_missed() -> None:
    observer = RecordingObserver(limit=2)
    for number in range(5):
        observer.progress(Progress("work", number, 5))
        observer.event("happened", {"number": number})
        observer.count(f"counter {number}")
        observer.count("counter 0")
    assert (len(observer.progresses), len(observer.events), len(observer.counters)) == (2, 2, 2)
    assert observer.counters[("counter 0", ())] == 6
    assert observer.dropped == 9


def test_a_recording_that_goes_on_can_be_told_to_another() -> None:
    observer = RecordingObserver()

    class Adds(Observer):
        def count(self, name: str, value: int = 1, labels: Mapping[str, str] | None = None) -> None:
            observer.count(f"{name} again")

        def measure(self, name: str, value: float, labels: Mapping[str, str] | None = None) -> None:
            observer.measure(name, value + 1)

    observer.count("a")
    observer.count("b")
    observer.measure("c", 1.0)
    observer.replay(Adds())
    assert [name for name, _ in observer.counters] == ["a", "b", "a again", "b again"]
    assert observer.measured == {("c", ()): [1.0, 2.0]}


def test_a_recording_travels_and_can_be_told_to_another() -> None:
    observer = RecordingObserver()
    observer.progress(Progress("work", 1, 2))
    observer.count("bytes", 3, {"log": "a"})
    observer.event("happened", {"number": 1})
    copy: RecordingObserver = pickle.loads(pickle.dumps(observer))
    told = RecordingObserver()
    copy.replay(told)
    copy.replay(told)
    assert told.progresses == observer.progresses * 2
    assert told.events == observer.events * 2
    assert told.counters == {("bytes", (("log", "a"),)): 6}


def test_no_count_is_lost_between_threads() -> None:
    observer = RecordingObserver()
    in_threads(observer)
    assert observer.counters == {("bytes", (("log", "a"),)): 4000}


class TestRecordingObserverThatTravels:
    def test_it_keeps_what_is_worth_carrying(self) -> None:
        carried = RecordingObserver(limit=2, dumps=pickle.dumps)
        carried.progress(Progress("work", 1, 2))
        carried.count("bytes", 3)
        carried.event("seen", {"number": 7})
        home = pickle.loads(pickle.dumps(carried))
        assert (home.progresses, home.events, home.counters) == ([], [("seen", {"number": 7})], {("bytes", ()): 3})

    def test_an_event_that_cannot_travel_is_an_error_there_and_then(self) -> None:
        carried = RecordingObserver(dumps=pickle.dumps)
        with pytest.raises(TypeError, match="pickle"):
            carried.event("seen", {"lock": threading.Lock()})
        assert carried.events == []


# -------------------------------------------------------------------------------------------------------- measurements


class TestMeasurements:
    def test_they_are_kept_passed_on_and_carried(self) -> None:
        carried = RecordingObserver(limit=3, dumps=pickle.dumps)
        for value in (0.5, 0.25, 2.0, 9.0):
            carried.measure("kv_request_seconds", value, {"store": "a"})
        assert carried.dropped == 1
        told = RecordingObserver()
        pickle.loads(pickle.dumps(carried)).replay(Observers(told, Observer()))
        assert told.measured == {("kv_request_seconds", (("store", "a"),)): [0.5, 0.25, 2.0]}


def test_observers_of_one_method_and_of_four_understand_each_other() -> None:
    events, calls = EventRecorder(), RecordingObserver()
    for given in (telling(events), telling(calls)):
        given.progress(Progress("work", 1, 2, "groups"))
        given.count("bytes", 3, {"log": "a"})
        given.measure("seconds", 0.5, {"log": "a"})
        given.event("happened", {"number": 1})
    assert events.events == [("progress", {"work": "work", "done": 1, "total": 2, "unit": "groups"}),
                             ("bytes", {"add": 3, "log": "a"}), ("seconds", {"sample": 0.5, "log": "a"}),
                             ("happened", {"number": 1})]
    assert calls.progresses == [Progress("work", 1, 2, "groups")]
    assert (calls.counters, calls.measured) == ({("bytes", (("log", "a"),)): 3}, {("seconds", (("log", "a"),)): [0.5]})
    assert calls.events == [("happened", {"number": 1})]


def test_one_of_several_that_raises_does_not_keep_it_from_the_others() -> None:
    class Raising(Observer):
        def event(self, name: str, fields: object) -> None:
            raise RuntimeError("its own bug")

    recording = RecordingObserver()
    Observers(Raising(), recording).event("happened", {"x": 1})
    assert recording.events == [("happened", {"x": 1})]


def test_one_without_the_methods_is_kept_quiet_as_well() -> None:
    told = telling(object())  # type: ignore[arg-type]  # what a host without a type checker may give
    told.count("counter")
    assert isinstance(told, TellingObserver)
    assert isinstance(told.last_error, AttributeError)
