# SPDX-License-Identifier: Apache-2.0
"""`observer`: each adapter shows the events that it gets, and an observer that raises stops nothing."""

from __future__ import annotations

import io
import logging
import math
import sys
import threading
from typing import Any

import prometheus_client
import pytest

from compactlib.errors import InvalidInput, MissingDependency
from compactlib.observer import (
    EventRecorder,
    LoggingObserver,
    Observers,
    PrometheusObserver,
    TqdmObserver,
    notify,
)


class Raising:
    def event(self, name: str, /, **fields: Any) -> None:
        raise RuntimeError("its own bug")


def test_an_observer_that_raises_is_logged_once_and_stops_nothing(caplog: pytest.LogCaptureFixture) -> None:
    recorder, raising = EventRecorder(), Raising()
    with caplog.at_level(logging.DEBUG, "compactlib.observers"):
        for number in range(3):
            notify(Observers(raising, None, recorder), "happened", number=number)
    assert recorder.named("happened") == [{"number": 0}, {"number": 1}, {"number": 2}]
    assert [record.levelno for record in caplog.records] == [logging.WARNING, logging.DEBUG, logging.DEBUG]
    notify(None, "happened")


def test_an_interrupt_in_an_observer_passes_through() -> None:
    class Interrupted:
        def event(self, name: str, /, **fields: Any) -> None:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        notify(Interrupted(), "happened")


def test_an_object_that_is_no_observer_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    notify(object(), "happened")  # type: ignore[arg-type]  # as a host without a type checker may pass
    assert "AttributeError" in caplog.text


def test_fields_of_any_name_are_events() -> None:
    recorder = EventRecorder()
    notify(Observers(recorder), "happened", name="a", self="b")
    assert recorder.events == [("happened", {"name": "a", "self": "b"})]


# ------------------------------------------------------------------------------------------------------------- logging


def test_events_are_logged_with_their_fields(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "compactlib"):
        LoggingObserver().event("segment_compacted", segment=7, name="a", msg="%d", payload="x" * 10_000)
        LoggingObserver().event("bytes", add=3)
        LoggingObserver().event("seconds", sample=3.0)
        LoggingObserver().event("progress", work="compact", done=1, total=2, unit="groups")
    (record,) = caplog.records
    assert record.getMessage().startswith("segment_compacted: segment=7, name=a, msg=%d, payload=xxx")
    assert len(record.getMessage()) < 300
    assert record.levelno == logging.INFO
    assert vars(record)["event"] == "segment_compacted"
    assert vars(record)["fields"] == {"segment": 7, "name": "a", "msg": "%d", "payload": "x" * 10_000}


def test_numbers_are_logged_for_debugging(caplog: pytest.LogCaptureFixture) -> None:
    logger = logging.getLogger("host.of.compactlib")
    with caplog.at_level(logging.DEBUG, logger.name):
        LoggingObserver(logger).event("bytes_freed", add=3, log="a")
    (record,) = caplog.records
    assert (record.getMessage(), record.levelno) == ("bytes_freed: add=3, log=a", logging.DEBUG)


# ---------------------------------------------------------------------------------------------------------------- tqdm


@pytest.fixture
def screen() -> io.StringIO:
    return io.StringIO()


def bars(screen: io.StringIO) -> TqdmObserver:
    return TqdmObserver(file=screen, mininterval=0, ascii=True, ncols=80)


def progress(observer: TqdmObserver, work: str, done: int, total: int, unit: str = "bytes") -> None:
    observer.event("progress", work=work, done=done, total=total, unit=unit)


def test_a_bar_shows_the_work_until_it_is_complete(screen: io.StringIO) -> None:
    observer = bars(screen)
    for done in (0, 500, 1000):
        progress(observer, "compact 7", done, 1000)
        observer.event("happened", number=1)
    shown = screen.getvalue()
    assert "compact 7" in shown
    assert "1.00k/1.00k" in shown
    assert shown.count("\n") == 1


def test_other_units_are_named(screen: io.StringIO) -> None:
    progress(bars(screen), "rewrite", 3, 3, "groups")
    assert "3/3" in screen.getvalue()
    assert "groups" in screen.getvalue()


def test_empty_work_shows_a_bar_that_is_over_at_once(screen: io.StringIO) -> None:
    progress(bars(screen), "nothing to do", 0, 0)
    assert screen.getvalue().count("\n") == 1


def test_leaving_the_with_closes_the_bars_of_failed_work(screen: io.StringIO) -> None:
    def doomed(observer: TqdmObserver) -> None:
        progress(observer, "doomed", 10, 1000)
        progress(observer, "doomed too", 20, 1000)
        raise RuntimeError

    observer = bars(screen)
    with pytest.raises(RuntimeError), observer:
        doomed(observer)
    before = screen.getvalue()
    assert before.count("\n") >= 2
    observer.close()
    assert screen.getvalue() == before


def test_work_that_starts_over_moves_its_bar_back(screen: io.StringIO) -> None:
    observer = bars(screen)
    for done, total in ((0, 900), (800, 900), (0, 1000), (400, 1000), (1000, 1000)):
        progress(observer, "retried", done, total)
    assert "1.00k/1.00k" in screen.getvalue().splitlines()[-1]


def test_options_of_the_caller_win(screen: io.StringIO) -> None:
    progress(TqdmObserver(file=screen, desc="mine", unit="X", disable=False), "ours", 1, 1)
    assert "mine" in screen.getvalue()
    assert "ours" not in screen.getvalue()
    before = screen.getvalue()
    progress(TqdmObserver(file=screen, disable=True), "quiet", 1, 2)
    assert screen.getvalue() == before


# ---------------------------------------------------------------------------------------------------------- prometheus


@pytest.fixture
def registry() -> prometheus_client.CollectorRegistry:
    return prometheus_client.CollectorRegistry()


def test_counters_and_events_are_exported(registry: prometheus_client.CollectorRegistry) -> None:
    observer = PrometheusObserver(registry)
    observer.event("raftlog_freed_bytes", add=5, log="a")
    observer.event("raftlog_freed_bytes", add=6, log="a")
    observer.event("raftlog_runs", add=1)
    observer.event("segment_compacted", segment=1)
    observer.event("progress", work="w", done=1, total=1, unit="bytes")
    assert registry.get_sample_value("compactlib_raftlog_freed_bytes_total", {"log": "a"}) == 11
    assert registry.get_sample_value("compactlib_raftlog_runs_total") == 1
    assert registry.get_sample_value("compactlib_events_total", {"event": "segment_compacted"}) == 1


def test_an_event_with_a_value_is_a_level_until_it_is_cleared(registry: prometheus_client.CollectorRegistry) -> None:
    observer = PrometheusObserver(registry)

    def level(branch: str) -> float | None:
        return registry.get_sample_value("compactlib_sealed", {"branch": branch})

    for branch, value in (("a", 3), ("b", 1), ("a", 4.5)):
        observer.event("sealed", branch=branch, value=value, pages=7)
    assert (level("a"), level("b")) == (4.5, 1)
    observer.event("sealed", branch="a", value=None)
    observer.event("sealed", branch="never there", value=None)
    assert (level("a"), level("b"), level("never there")) == (None, 1, None)
    assert registry.get_sample_value("compactlib_events_total", {"event": "sealed"}) == 5
    observer.event("answered", value="a text")
    observer.event("temperature", value=2)
    observer.event("temperature", value=None)
    assert math.isnan(registry.get_sample_value("compactlib_temperature") or 0.0)
    assert not any(family.name == "compactlib_answered" for family in registry.collect())


def test_samples_become_a_histogram_up_to_hours(registry: prometheus_client.CollectorRegistry) -> None:
    observer = PrometheusObserver(registry)
    for value in (0.004, 0.2, 1_700.0):
        observer.event("seconds", sample=value, store="a")
    counts = [registry.get_sample_value("compactlib_seconds_bucket", {"le": bound, "store": "a"})
              for bound in ("0.005", "900.0", "3600.0", "14400.0")]
    assert counts == [1, 2, 3, 3]


def test_labels_are_those_of_the_first_use(registry: prometheus_client.CollectorRegistry) -> None:
    observer = PrometheusObserver(registry)
    observer.event("bytes", add=1, log="a", disk="x")
    observer.event("bytes", add=2, log="a")
    observer.event("bytes", add=4)
    observer.event("bytes", add=8, log="a", disk="x", new="y")
    samples = {tuple(sorted(sample.labels.items())): sample.value for family in registry.collect()
               for sample in family.samples if sample.name == "compactlib_bytes_total"}
    assert samples == {
        (("disk", "x"), ("log", "a")): 9, (("disk", ""), ("log", "a")): 2, (("disk", ""), ("log", "")): 4,
    }


def test_names_and_labels_are_made_valid_for_prometheus(registry: prometheus_client.CollectorRegistry) -> None:
    observer = PrometheusObserver(registry, prefix="my.host")
    observer.event("bytes-freed", add=1, **{"log.name": "a"})
    observer.event("bytes.freed", add=2, **{"log-name": "a"})
    assert registry.get_sample_value("my_host_bytes_freed_total", {"log_name": "a"}) == 3


def test_a_second_observer_on_a_registry_is_refused_at_once(registry: prometheus_client.CollectorRegistry) -> None:
    PrometheusObserver(registry)
    with pytest.raises(InvalidInput, match="share one observer"):
        PrometheusObserver(registry)
    PrometheusObserver(registry, prefix="other")


def test_threads_share_a_prometheus_observer(registry: prometheus_client.CollectorRegistry) -> None:
    observer = PrometheusObserver(registry)

    def work() -> None:
        for number in range(100):
            observer.event(f"bytes{number}", add=2, log="a")

    running = [threading.Thread(target=work) for _ in range(4)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    assert all(registry.get_sample_value(f"compactlib_bytes{number}_total", {"log": "a"}) == 8 for number in range(100))


@pytest.mark.parametrize(("make", "hidden", "extra"), [
    (TqdmObserver, "tqdm.auto", "observe"), (PrometheusObserver, "prometheus_client", "observe"),
])
def test_a_missing_package_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch, make: Any, hidden: str,
                                                   extra: str) -> None:
    monkeypatch.setitem(sys.modules, hidden, None)
    with pytest.raises(MissingDependency, match=rf"compactlib\[{extra}\]"):
        make()
