# SPDX-License-Identifier: Apache-2.0
"""Hooks through which a host watches work: progress, counters, measurements and events; every method is optional.

The library notifies an `Observer` of what it does and never asks it anything. What an observer or a listener raises is
kept and logged, and breaks nothing. Callables whose answer is used (a policy, a fence, the change of an update) are not
notified but asked: what they raise is the caller's to see. There are no notifications inside a lock or in a replay;
the caller has to ensure that. Adapters for tqdm, Prometheus and `logging` are here; each imports its package only
when it is made.
"""

from __future__ import annotations

import contextlib
import logging
import math
import re
import threading
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

import attrs

from compactlib._arguments import require_whole
from compactlib._closing import Closing
from compactlib.errors import InvalidInput, MissingDependency

_LOGGER = logging.getLogger("compactlib.observers")
_MAX_SHOWN_CHARS = 200
_MAX_OPEN_BARS = 20


@attrs.frozen
class Progress:
    """How far one piece of work has come.

    Attributes:
        work: what is being done, for example `"compact 0000000000000001"`; distinguishes pieces of work.
        done: units finished so far; falls back when an attempt starts over.
        total: units in all; 0 for work that turned out to be empty.
        unit: `"bytes"`, `"groups"`, ...
    """

    work: str
    done: int
    total: int
    unit: str = "bytes"


class Observer:
    """Watches work. Override what you need; what is not overridden does nothing.

    Methods may be called from several threads. What one raises is kept and logged (logger `compactlib.observers`), and
    breaks nothing.
    """

    @property
    def is_deaf(self) -> bool:
        """Whether nobody listens, so that what is costly to tell need not be made."""
        return type(self) is Observer

    def progress(self, progress: Progress) -> None:
        """Called as work advances; a piece of work ends with `done == total` unless it fails."""

    def count(self, name: str, value: int = 1, labels: Mapping[str, str] | None = None) -> None:
        """Called to add `value` (>= 0) to a counter, such as `raftlog_freed_bytes`; a name has one set of labels."""

    def measure(self, name: str, value: float, labels: Mapping[str, str] | None = None) -> None:
        """Called with one measurement, such as `kv_request_seconds`, for a distribution; labels as in `count`."""

    def event(self, name: str, fields: Mapping[str, Any]) -> None:
        """Called when something happened that an operator may want to know, with its (picklable) numbers.

        A level is an event with a `value`, each time it changes; `None` when there is no such level any more.
        """


class TellingObserver(Observer):
    """Passes everything on to an observer, and keeps what that raises; `KeyboardInterrupt` and the like pass through.

    Logged are the first failure, the second, the fourth, and so on, so that one that always fails fills no log.

    Args:
        observer: what is notified.
        inside: entered around each notification; marks it as done by a run (`Run.observer`).

    Attributes:
        failures: how often the observer raised.
        last_error: what it raised last.
    """

    def __init__(self, observer: Observer,
                 inside: Callable[[], contextlib.AbstractContextManager[None]] = contextlib.nullcontext) -> None:
        self._observer = observer
        self._inside = inside
        self.failures: int = 0
        self.last_error: Exception | None = None

    def progress(self, progress: Progress) -> None:
        """Passed on."""
        self._tell("progress", progress)

    def count(self, name: str, value: int = 1, labels: Mapping[str, str] | None = None) -> None:
        """Passed on."""
        self._tell("count", name, value, labels)

    def measure(self, name: str, value: float, labels: Mapping[str, str] | None = None) -> None:
        """Passed on."""
        self._tell("measure", name, value, labels)

    def event(self, name: str, fields: Mapping[str, Any]) -> None:
        """Passed on."""
        self._tell("event", name, fields)

    def inside(self) -> contextlib.AbstractContextManager[None]:
        """Inside the `with` this thread works for the run that made the observer: `Run.observer` says for which run."""
        return self._inside()

    def _tell(self, method: str, *arguments: object) -> None:
        try:
            with self._inside():
                getattr(self._observer, method)(*arguments)
        except Exception as error:
            self.failures += 1
            self.last_error = error
            if self.failures & (self.failures - 1) == 0:
                _LOGGER.warning("the observer %r raised %r (failure %d); the work goes on", self._observer, error,
                                self.failures, exc_info=error)

    def __repr__(self) -> str:
        return f"TellingObserver({self._observer!r}, failures={self.failures})"


def telling(observer: Observer | None) -> Observer:
    """`observer` as the library notifies it, whatever it raises; `None` is one that does nothing."""
    if observer is None:
        return Observer()
    if type(observer) is Observer or isinstance(observer, TellingObserver):
        return observer
    return TellingObserver(observer)


def tell(listener: Callable[..., object], *arguments: object,
         expected: tuple[type[Exception], ...] = ()) -> Exception | None:
    """Call a listener whose answer is not used; returns what it raised, or `None`. It is logged, unless `expected`."""
    try:
        listener(*arguments)
    except expected as error:
        return error
    except Exception as error:
        _LOGGER.warning("the listener %r raised %r; the work goes on", listener, error, exc_info=error)
        return error
    return None


class Observers(Observer):
    """Notifies several observers, in order; what one raises does not keep it from the others."""

    def __init__(self, *observers: Observer) -> None:
        self._observers = tuple(map(telling, observers))

    def progress(self, progress: Progress) -> None:
        """Passed on to each."""
        for observer in self._observers:
            observer.progress(progress)

    def count(self, name: str, value: int = 1, labels: Mapping[str, str] | None = None) -> None:
        """Passed on to each."""
        for observer in self._observers:
            observer.count(name, value, labels)

    def measure(self, name: str, value: float, labels: Mapping[str, str] | None = None) -> None:
        """Passed on to each."""
        for observer in self._observers:
            observer.measure(name, value, labels)

    def event(self, name: str, fields: Mapping[str, Any]) -> None:
        """Passed on to each."""
        for observer in self._observers:
            observer.event(name, fields)


class RecordingObserver(Observer):
    """Keeps what it is notified of: for tests and notebooks, and to carry it home from another process.

    Args:
        limit: how many progresses, counters, measurements and events it keeps of each; what comes later is only
            counted.
        dumps: for authors of executors: how what it keeps will be pickled on its way home from another process;
            itself picklable. Progress is then left out, as it would come after the fact, and an event that cannot
            travel is an error of the task that reports it, there and then.

    Attributes:
        progresses: every progress, in order.
        counters: (name, sorted labels) to sum.
        measured: (name, sorted labels) to all values, in order.
        events: (name, fields), in order.
        dropped: how many calls found their list full.

    Raises:
        InvalidInput: `limit` is no number from 0 on.
    """

    def __init__(self, *, limit: int = 100_000, dumps: Callable[[object], bytes] | None = None) -> None:
        self.progresses: list[Progress] = []
        self.counters: dict[tuple[str, tuple[tuple[str, str], ...]], int] = {}
        self.measured: dict[tuple[str, tuple[tuple[str, str], ...]], list[float]] = {}
        self.events: list[tuple[str, dict[str, Any]]] = []
        self.dropped: int = 0
        require_whole("limit", limit)
        self._limit = limit
        self._dumps = dumps
        self._measurements = 0
        self._lock = threading.Lock()

    def progress(self, progress: Progress) -> None:
        """Keep it, unless it is to be carried."""
        with self._lock:
            if self._dumps is None and self._has_room(len(self.progresses)):
                self.progresses.append(progress)

    def count(self, name: str, value: int = 1, labels: Mapping[str, str] | None = None) -> None:
        """Add it up."""
        key = name, tuple(sorted((labels or {}).items()))
        with self._lock:
            if key in self.counters or self._has_room(len(self.counters)):
                self.counters[key] = self.counters.get(key, 0) + value

    def measure(self, name: str, value: float, labels: Mapping[str, str] | None = None) -> None:
        """Keep it."""
        key = name, tuple(sorted((labels or {}).items()))
        with self._lock:
            if self._has_room(self._measurements):
                self._measurements += 1
                self.measured.setdefault(key, []).append(value)

    def event(self, name: str, fields: Mapping[str, Any]) -> None:
        """Keep it, with a copy of its fields. Raises whatever pickling them raises, if it is to be carried."""
        copied = dict(fields)
        if self._dumps is not None:
            self._dumps(copied)
        with self._lock:
            if self._has_room(len(self.events)):
                self.events.append((name, copied))

    def replay(self, observer: Observer) -> None:
        """Notify `observer` of the progresses, then the events, then the counters' sums, then the measurements."""
        kept = self.__getstate__()
        for progress in kept["progresses"]:
            observer.progress(progress)
        for event, fields in kept["events"]:
            observer.event(event, fields)
        for (name, labels), value in kept["counters"].items():
            observer.count(name, value, dict(labels))
        for (name, labels), values in kept["measured"].items():
            for each in values:
                observer.measure(name, each, dict(labels))

    def _has_room(self, kept: int) -> bool:
        if kept < self._limit:
            return True
        self.dropped += 1
        return False

    def __getstate__(self) -> dict[str, Any]:
        # Copies: work that goes on may tell it more while this is pickled or told.
        with self._lock:
            state = {name: value for name, value in self.__dict__.items() if name != "_lock"}
            return {**state, "progresses": [*self.progresses], "events": [*self.events], "counters": {**self.counters},
                    "measured": {key: [*values] for key, values in self.measured.items()}}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._lock = threading.Lock()


class LoggingObserver(Observer):
    """Writes events to a logger at INFO, counters and measurements at DEBUG.

    The message shows each value in at most 200 characters; the log record carries the values themselves, as
    `record.event` and `record.fields`, or `record.counter` (or `record.measurement`), `record.value` and
    `record.labels`.

    Args:
        logger: default the logger `compactlib`.
    """

    def __init__(self, logger: logging.Logger | None = None) -> None:
        self._logger = logging.getLogger("compactlib") if logger is None else logger

    def count(self, name: str, value: int = 1, labels: Mapping[str, str] | None = None) -> None:
        """Logged at DEBUG."""
        self._debug("%s%s += %d", "counter", name, value, labels)

    def measure(self, name: str, value: float, labels: Mapping[str, str] | None = None) -> None:
        """Logged at DEBUG."""
        self._debug("%s%s = %g", "measurement", name, value, labels)

    def _debug(self, form: str, kind: str, name: str, value: float, labels: Mapping[str, str] | None) -> None:
        if self._logger.isEnabledFor(logging.DEBUG):
            told = dict(labels or {})
            shown = f"{{{_listed(told)}}}" if told else ""
            self._logger.debug(form, name, shown, value, extra={kind: name, "value": value, "labels": told})

    def event(self, name: str, fields: Mapping[str, Any]) -> None:
        """Logged at INFO."""
        if self._logger.isEnabledFor(logging.INFO):
            self._logger.info("%s: %s", name, _listed(fields), extra={"event": name, "fields": dict(fields)})


def _listed(fields: Mapping[str, Any]) -> str:
    return ", ".join(f"{key}={_shortened(str(value))}" for key, value in fields.items())


def _shortened(text: str) -> str:
    return text if len(text) <= _MAX_SHOWN_CHARS else text[:_MAX_SHOWN_CHARS - 1] + "…"


class TqdmObserver(Closing, Observer):
    """Shows each piece of work as a tqdm progress bar; use it in a `with`, so that no bar outlives failed work.

    A bar closes when its work is complete. Work that fails leaves its bar where it stood until `close()`, or until
    more than 20 bars are open.

    Args:
        options: passed on to `tqdm.tqdm`, for example `disable=True`; they win over what the observer would choose.

    Raises:
        MissingDependency: tqdm is not installed.
    """

    def __init__(self, **options: Any) -> None:
        try:
            with warnings.catch_warnings():
                # In a notebook without ipywidgets the bars are lines of text; tqdm would warn of it there, in red.
                warnings.simplefilter("ignore")
                from tqdm.auto import tqdm
        except ImportError:
            raise MissingDependency(package="tqdm", extra="progress", purpose="a progress bar") from None
        self._tqdm = tqdm
        self._options = options
        self._bars: dict[str, Any] = {}
        self._lock = threading.Lock()

    def progress(self, progress: Progress) -> None:
        """Move the work's bar, made at the first call."""
        with self._lock:
            bar = self._bars.get(progress.work)
            if bar is None:
                bar = self._opened(progress)
            _set_total(bar, progress.total)
            bar.update(progress.done - bar.n)
            if progress.done >= progress.total:
                self._bars.pop(progress.work).close()

    def _opened(self, progress: Progress) -> Any:
        if len(self._bars) >= _MAX_OPEN_BARS:
            self._bars.pop(next(iter(self._bars))).close()
        in_bytes = progress.unit == "bytes"
        chosen = {"total": progress.total, "desc": progress.work, "unit": "B" if in_bytes else f" {progress.unit}",
                  "unit_scale": in_bytes}
        bar = self._bars[progress.work] = self._tqdm(**{**chosen, **self._options})
        return bar

    def close(self) -> None:
        """Close every bar that is still open; the observer can be used again afterwards."""
        with self._lock:
            while self._bars:
                self._bars.popitem()[1].close()


def _set_total(bar: Any, total: int) -> None:
    if bar.total != total:
        bar.total = total
        container = getattr(bar, "container", None)
        if container is not None:
            # A notebook's bar keeps the total that it was made with in a widget of its own.
            container.children[1].max = total


SECONDS_BUCKETS = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0,
                   3_600.0, 14_400.0)
"""Upper bounds for what takes from milliseconds (a request) to hours (a compaction)."""


class PrometheusObserver(Observer):
    """Turns counters into Prometheus counters, measurements into histograms, events into `<prefix>_events_total`.

    An event with a number as its `value` is a level as well: a gauge of its name, whose labels are the fields that are
    texts. A `value` of `None` clears it.

    One observer serves a whole process: share it between logs and threads. Characters that Prometheus does not
    allow in names become underscores. The labels of a name are those of its first use: later, a label that is
    missing is exported as `""`, and one that is new is left out, so that sums stay right.

    Args:
        registry: a `prometheus_client.CollectorRegistry`; default the package's own global one.
        prefix: put before every name.
        max_series: how many sets of label values each name has at most; what comes under more of them is added to the
            set in which every label is `OTHER_LABELS`, so that no name (of a store, a branch) can fill the memory. A
            level under more of them is not exported until another one was cleared.
        buckets: upper bounds of the histograms' buckets, ascending.

    Raises:
        MissingDependency: prometheus_client is not installed.
        InvalidInput: the registry already has an observer with this prefix, `max_series` is less than 1, or the
            buckets do not ascend.
    """

    def __init__(self, registry: Any = None, *, prefix: str = "compactlib", max_series: int = 1_000,
                 buckets: Sequence[float] = SECONDS_BUCKETS) -> None:
        prometheus_client = _prometheus_client()
        require_whole("max_series", max_series, 1)
        bounds = tuple(buckets)
        if not bounds or not all(isinstance(bound, int | float) for bound in bounds) or any(
                first >= second for first, second in pairwise(bounds)):
            raise InvalidInput(f"buckets is {buckets!r}; give at least one number, each above the one before it")
        self._kinds: dict[str, Callable[..., Any]] = {
            "count": prometheus_client.Counter, "level": prometheus_client.Gauge,
            "measure": partial(prometheus_client.Histogram, buckets=bounds)}
        self._registry = prometheus_client.REGISTRY if registry is None else registry
        self._exported: Callable[[], bytes] = partial(prometheus_client.generate_latest, self._registry)
        self._prefix = prefix
        self._max_series = max_series
        self._metrics: dict[str, _Metric] = {}
        self._lock = threading.Lock()
        try:
            self._open("count", _metric_name(f"{prefix}_events"), ("event",))
        except ValueError as error:
            raise InvalidInput(f"the registry refuses counters named {prefix}_… ({error}); share one observer, or "
                               f"give this one another prefix") from error

    def count(self, name: str, value: int = 1, labels: Mapping[str, str] | None = None) -> None:
        """Add to the counter, made at the first call."""
        self._child("count", name, labels).inc(value)

    def measure(self, name: str, value: float, labels: Mapping[str, str] | None = None) -> None:
        """Add to the histogram, made at the first call."""
        self._child("measure", name, labels).observe(value)

    def event(self, name: str, fields: Mapping[str, Any]) -> None:
        """Count the event; of its fields a level is exported, if it is one."""
        self.count("events", 1, {"event": name})
        value = fields.get("value", "")
        if value is None or (isinstance(value, int | float) and not isinstance(value, bool)):
            self._level(name, value, {label: text for label, text in fields.items() if isinstance(text, str)})

    def text(self) -> bytes:
        """All that the registry exports now, in Prometheus' text form."""
        return self._exported()

    def _level(self, name: str, value: float | None, labels: Mapping[str, str]) -> None:
        with self._lock:
            if value is None and _metric_name(f"{self._prefix}_{name}") not in self._metrics:
                return
            metric, values = self._metric("level", name, labels)
            if metric.kind != "level":
                return
            if value is None:
                if values in metric.seen:
                    metric.seen.remove(values)
                    metric.made.remove(*values) if values else metric.made.set(math.nan)
            elif values in metric.seen or len(metric.seen) < self._max_series:
                metric.seen.add(values)
                (metric.made.labels(*values) if values else metric.made).set(value)

    def _child(self, kind: str, name: str, labels: Mapping[str, str] | None) -> Any:
        with self._lock:
            metric, values = self._metric(kind, name, labels)
            if not values:
                return metric.made
            if values not in metric.seen:
                if len(metric.seen) >= self._max_series:
                    values = (OTHER_LABELS,) * len(values)
                else:
                    metric.seen.add(values)
        return metric.made.labels(*values)

    def _metric(self, kind: str, name: str, labels: Mapping[str, str] | None) -> tuple[_Metric, tuple[str, ...]]:
        """The metric of a name, and the values of its own labels."""
        told = {_metric_name(label): text for label, text in (labels or {}).items()}
        allowed = _metric_name(f"{self._prefix}_{name}")
        metric = self._metrics.get(allowed) or self._open(kind, allowed, tuple(sorted(told)))
        return metric, tuple(told.get(label, "") for label in metric.labels)

    def _open(self, kind: str, name: str, labels: tuple[str, ...]) -> _Metric:
        made = self._kinds[kind](name, f"reported by {self._prefix}", labels, registry=self._registry)
        self._metrics[name] = _Metric(made, labels, kind)
        return self._metrics[name]


OTHER_LABELS = "(other)"
"""What labels say of whatever came after a name had all the sets of label values that it may have."""


@attrs.frozen
class _Metric:
    made: Any
    labels: tuple[str, ...]
    kind: str
    seen: set[tuple[str, ...]] = attrs.field(factory=set)


def _prometheus_client() -> Any:
    try:
        import prometheus_client
    except ImportError:
        raise MissingDependency(package="prometheus_client", extra="prometheus", purpose="metrics") from None
    return prometheus_client


def _metric_name(name: str) -> str:
    return re.sub(r"[^a-zA-Z0-9_]", "_", name)
