# SPDX-License-Identifier: Apache-2.0
"""`observe`: every adapter shows what it is told, from any thread, and none is in the way of the work."""

from __future__ import annotations

import io
import logging
import math
import pickle
import sys
import threading
import time
from collections.abc import Mapping
from typing import Any

import prometheus_client
import pytest

from compactlib.errors import InvalidInput, MissingDependency
from compactlib.runtime import LoggingObserver, Observer, Progress, PrometheusObserver, RecordingObserver, TqdmObserver
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


# ------------------------------------------------------------------------------------------------------------- logging


def test_events_are_logged_with_their_numbers(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "compactlib"):
        LoggingObserver().event("segment_compacted", {"segment": 7, "bytes_freed": 1024})
        LoggingObserver().count("bytes", 3)
    (record,) = caplog.records
    assert record.getMessage() == "segment_compacted: segment=7, bytes_freed=1024"
    assert record.levelno == logging.INFO
    assert vars(record)["event"] == "segment_compacted"
    assert vars(record)["fields"] == {"segment": 7, "bytes_freed": 1024}


def test_counters_are_logged_at_debug_with_their_labels(caplog: pytest.LogCaptureFixture) -> None:
    logger = logging.getLogger("host.of.compactlib")
    with caplog.at_level(logging.DEBUG, logger.name):
        LoggingObserver(logger).count("bytes_freed", 3, {"log": "a"})
        LoggingObserver(logger).count("runs")
    labelled, plain = caplog.records
    assert labelled.getMessage() == "bytes_freed{log=a} += 3"
    told = {name: vars(labelled)[name] for name in ("counter", "value", "labels")}
    assert told == {"counter": "bytes_freed", "value": 3, "labels": {"log": "a"}}
    assert plain.getMessage() == "runs += 1"


def test_long_values_are_shortened_in_the_message_only(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "compactlib"):
        LoggingObserver().event("happened", {"payload": "x" * 10_000})
    (record,) = caplog.records
    assert len(record.getMessage()) < 300
    assert vars(record)["fields"] == {"payload": "x" * 10_000}


def test_any_field_name_can_be_logged(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "compactlib"):
        LoggingObserver().event("happened", {"name": "a", "msg": "b", "args": "c", "%s": "%d"})
    assert caplog.records[0].getMessage() == "happened: name=a, msg=b, args=c, %s=%d"


# ---------------------------------------------------------------------------------------------------------------- tqdm


@pytest.fixture
def screen() -> io.StringIO:
    return io.StringIO()


def bars(screen: io.StringIO) -> TqdmObserver:
    return TqdmObserver(file=screen, mininterval=0, ascii=True, ncols=80)


def test_a_bar_shows_the_work_until_it_is_complete(screen: io.StringIO) -> None:
    observer = bars(screen)
    for done in (0, 500, 1000):
        observer.progress(Progress("compact 7", done, 1000))
    shown = screen.getvalue()
    assert "compact 7" in shown
    assert "1.00k/1.00k" in shown
    assert shown.endswith("\n")


def test_other_units_are_named(screen: io.StringIO) -> None:
    bars(screen).progress(Progress("rewrite", 3, 3, "groups"))
    assert "3/3" in screen.getvalue()
    assert "groups" in screen.getvalue()


def test_empty_work_shows_a_bar_that_is_over_at_once(screen: io.StringIO) -> None:
    observer = bars(screen)
    observer.progress(Progress("nothing to do", 0, 0))
    observer.progress(Progress("nothing to do", 0, 0))
    assert screen.getvalue().count("\n") == 2


def test_leaving_the_with_closes_the_bars_of_failed_work(screen: io.StringIO) -> None:
    def doomed(observer: Observer) -> None:
        observer.progress(Progress("doomed", 10, 1000))
        observer.progress(Progress("doomed too", 20, 1000))
        raise RuntimeError

    observer = bars(screen)
    with pytest.raises(RuntimeError), observer:
        doomed(observer)
    assert screen.getvalue().count("\n") >= 2
    before = screen.getvalue()
    observer.close()
    assert screen.getvalue() == before


def test_work_that_starts_over_moves_its_bar_back(screen: io.StringIO) -> None:
    observer = bars(screen)
    for done in (0, 900, 0, 400, 1000):
        observer.progress(Progress("retried", done, 1000))
    assert "1.00k/1.00k" in screen.getvalue().splitlines()[-1]


def test_bars_left_open_are_bounded(screen: io.StringIO) -> None:
    observer = TqdmObserver(file=screen, mininterval=0, ascii=True, ncols=80, position=0)
    for number in range(100):
        observer.progress(Progress(f"failing {number}", 1, 2))
    # A bar ends its line when it is closed.
    assert screen.getvalue().count("\n") == 80


def test_options_of_the_caller_win(screen: io.StringIO) -> None:
    TqdmObserver(file=screen, desc="mine", unit="X", disable=False).progress(Progress("ours", 1, 1))
    assert "mine" in screen.getvalue()
    assert "ours" not in screen.getvalue()
    silent = TqdmObserver(file=screen, disable=True)
    before = screen.getvalue()
    silent.progress(Progress("quiet", 1, 2))
    silent.progress(Progress("quiet", 2, 2))
    assert screen.getvalue() == before


# ---------------------------------------------------------------------------------------------------------- prometheus


@pytest.fixture
def registry() -> prometheus_client.CollectorRegistry:
    return prometheus_client.CollectorRegistry()


def test_counters_and_events_are_exported(registry: prometheus_client.CollectorRegistry) -> None:
    observer = PrometheusObserver(registry)
    observer.count("raftlog_freed_bytes", 5, {"log": "a"})
    observer.count("raftlog_freed_bytes", 6, {"log": "a"})
    observer.count("raftlog_runs")
    observer.event("segment_compacted", {"segment": 1})
    assert registry.get_sample_value("compactlib_raftlog_freed_bytes_total", {"log": "a"}) == 11
    assert registry.get_sample_value("compactlib_raftlog_runs_total") == 1
    assert registry.get_sample_value("compactlib_events_total", {"event": "segment_compacted"}) == 1


def test_an_event_with_a_value_is_a_level_until_it_is_cleared(registry: prometheus_client.CollectorRegistry) -> None:
    observer = PrometheusObserver(registry, max_series=2)
    name = "compactlib_sealed"

    def level(branch: str) -> float | None:
        return registry.get_sample_value(name, {"branch": branch})

    for branch, value in (("a", 3), ("b", 1), ("a", 4.5), ("c", 9)):
        observer.event("sealed", {"branch": branch, "value": value, "pages": 7})
    assert (level("a"), level("b"), level("c")) == (4.5, 1, None)  # a level of others together would say nothing
    observer.event("sealed", {"branch": "a", "value": None})
    observer.event("sealed", {"branch": "never there", "value": None})
    observer.event("sealed", {"branch": "c", "value": 9})
    assert (level("a"), level("b"), level("c")) == (None, 1, 9)
    assert registry.get_sample_value("compactlib_events_total", {"event": "sealed"}) == 7
    observer.count("bytes", 5, {"log": "a"})
    for fields in ({"log": "a", "value": 1}, {"log": "a", "value": None}):
        observer.event("bytes", fields)  # a counter has the name
    observer.event("answered", {"value": "a text", "on": "x"})
    observer.event("temperature", {"value": 2})
    observer.event("temperature", {"value": None})
    assert registry.get_sample_value("compactlib_bytes_total", {"log": "a"}) == 5
    assert math.isnan(registry.get_sample_value("compactlib_temperature") or 0.0)
    assert {family.name for family in registry.collect()} >= {name}
    assert not any(family.name == "compactlib_answered" for family in registry.collect())


def test_measurements_have_buckets_up_to_hours(registry: prometheus_client.CollectorRegistry) -> None:
    observer = PrometheusObserver(registry)
    observer.measure("compaction_seconds", 1_700.0)
    name = "compactlib_compaction_seconds_bucket"
    assert [registry.get_sample_value(name, {"le": bound}) for bound in ("10.0", "900.0", "3600.0", "14400.0")] == [
        0, 0, 1, 1]
    own = PrometheusObserver(registry, prefix="own", buckets=(1, 2_000))
    own.measure("compaction_seconds", 1_700.0)
    assert registry.get_sample_value("own_compaction_seconds_bucket", {"le": "2000.0"}) == 1
    for number, wrong in enumerate([(), (2, 1), (1, 1), ("a",)]):
        with pytest.raises(InvalidInput, match="buckets"):
            PrometheusObserver(registry, prefix=f"p{number}", buckets=wrong)  # type: ignore[arg-type]


def test_labels_are_those_of_the_first_use(registry: prometheus_client.CollectorRegistry) -> None:
    observer = PrometheusObserver(registry)
    observer.count("bytes", 1, {"log": "a", "disk": "x"})
    observer.count("bytes", 2, {"log": "a"})
    observer.count("bytes", 4)
    observer.count("bytes", 8, {"log": "a", "disk": "x", "new": "y"})
    samples = {tuple(sorted(sample.labels.items())): sample.value for family in registry.collect()
               for sample in family.samples if sample.name == "compactlib_bytes_total"}
    assert samples == {
        (("disk", "x"), ("log", "a")): 9, (("disk", ""), ("log", "a")): 2, (("disk", ""), ("log", "")): 4,
    }


def test_names_and_labels_are_made_what_prometheus_allows(registry: prometheus_client.CollectorRegistry) -> None:
    observer = PrometheusObserver(registry, prefix="my.host")
    observer.count("bytes-freed", 1, {"log.name": "a"})
    observer.count("bytes.freed", 2, {"log-name": "a"})
    assert registry.get_sample_value("my_host_bytes_freed_total", {"log_name": "a"}) == 3


def test_a_second_observer_on_a_registry_is_refused_at_once(registry: prometheus_client.CollectorRegistry) -> None:
    PrometheusObserver(registry)
    with pytest.raises(InvalidInput, match="share one observer"):
        PrometheusObserver(registry)
    PrometheusObserver(registry, prefix="other")


def test_threads_share_a_prometheus_observer(registry: prometheus_client.CollectorRegistry) -> None:
    observer = PrometheusObserver(registry)
    in_threads(observer)
    assert registry.get_sample_value("compactlib_bytes_total", {"log": "a"}) == 4000


# ----------------------------------------------------------------------------------------------------- what is missing


@pytest.mark.parametrize(("make", "hidden", "extra"), [
    (TqdmObserver, "tqdm.auto", "progress"), (PrometheusObserver, "prometheus_client", "prometheus"),
])
def test_a_missing_package_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch, make: Any, hidden: str,
                                                   extra: str) -> None:
    monkeypatch.setitem(sys.modules, hidden, None)
    with pytest.raises(MissingDependency, match=rf"compactlib\[{extra}\]"):
        make()


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

    def test_they_become_a_histogram(self, registry: prometheus_client.CollectorRegistry) -> None:
        observer = PrometheusObserver(registry)
        for value in (0.004, 0.2, 99.0):
            observer.measure("kv_request_seconds", value, {"store": "a"})
        name = "compactlib_kv_request_seconds"
        assert registry.get_sample_value(f"{name}_count", {"store": "a"}) == 3
        assert registry.get_sample_value(f"{name}_sum", {"store": "a"}) == pytest.approx(99.204)
        assert registry.get_sample_value(f"{name}_bucket", {"store": "a", "le": "0.005"}) == 1

    def test_they_are_logged_at_debug_with_their_values(self, caplog: pytest.LogCaptureFixture) -> None:
        with caplog.at_level(logging.DEBUG, logger="compactlib"):
            LoggingObserver().measure("kv_request_seconds", 0.25, {"store": "a"})
        [record] = caplog.records
        assert record.getMessage() == "kv_request_seconds{store=a} = 0.25"
        assert (record.measurement, record.value) == ("kv_request_seconds", 0.25)  # type: ignore[attr-defined]


def test_labels_are_bounded_and_sums_stay_right(registry: prometheus_client.CollectorRegistry) -> None:
    observer = PrometheusObserver(registry, max_series=3)
    for number in range(10):
        observer.count("bytes", 1, {"store": f"store {number}", "disk": "x"})
    observer.count("bytes", 1, {"store": "store 0", "disk": "x"})
    samples = {sample.labels["store"]: sample.value for family in registry.collect()
               for sample in family.samples if sample.name == "compactlib_bytes_total"}
    assert samples == {"store 0": 2, "store 1": 1, "store 2": 1, "(other)": 7}
    with pytest.raises(InvalidInput, match="max_series is 0"):
        PrometheusObserver(registry, prefix="other", max_series=0)


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
