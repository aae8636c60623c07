# SPDX-License-Identifier: Apache-2.0
"""`Observer`: receives events of the library; `notify` emits one; adapters for logging, tqdm and prometheus_client.

An observer has one method, `event(name, **fields)`. It is called on the thread that called the library, outside of
locks. Events under a lock are collected in a list and emitted after it; events in a task of an executor come with the
task's result. An exception of an observer is logged and stops nothing.

Some fields have one meaning in every event:

| field | meaning | in Prometheus |
|---|---|---|
| `add` | the increment of a counter | counter `<prefix>_<name>_total` |
| `sample` | one value of a distribution | histogram `<prefix>_<name>` |
| `value` | the present value of a gauge; `None` removes the gauge | gauge `<prefix>_<name>` |
| other texts | labels of an event with one of these three; their values are few | the metric's labels |

The event `progress` has the fields `work`, `done`, `total` and `unit`. All other events are for operators; their fields
can be pickled.
"""

from __future__ import annotations

import logging
import math
import re
import threading
import warnings
import weakref
from collections.abc import Mapping
from typing import Any, Protocol

from compactlib._closing import Closing
from compactlib.errors import InvalidInput, MissingDependency

_LOGGER = logging.getLogger("compactlib.observers")
_MAX_SHOWN_CHARS = 200
_failed: weakref.WeakSet[Any] = weakref.WeakSet()

_SECONDS_BUCKETS = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0,
                    3_600.0, 14_400.0)
"""Upper bounds of buckets for durations from milliseconds (a request) to hours (a compaction)."""


class Observer(Protocol):
    """Receives events. Any object with this method is an observer."""

    def event(self, name: str, /, **fields: Any) -> None:
        """Receive one event.

        Args:
            name: begins with the package, `"raftlog_segment_merged"`, or with `"store"` if all stores emit it.
            fields: numbers and names; see the head of this module.
        """


def notify(observer: Observer | None, name: str, /, **fields: Any) -> None:
    """Emit an event; log an exception of the observer, the first as a warning, later ones at DEBUG."""
    if observer is None:
        return
    try:
        observer.event(name, **fields)
    except Exception as error:
        try:
            level = logging.DEBUG if observer in _failed else logging.WARNING
            _failed.add(observer)
        except TypeError:  # the observer allows no weak reference, or has no hash
            level = logging.WARNING
        _LOGGER.log(level, "the observer %r raised %r; the work continues", observer, error, exc_info=error)


class Observers:
    """Passes each event to several observers, in order; an exception of one is logged, and the next are called.

    Args:
        observers: `None` among them is skipped.

    Attributes:
        is_deaf: whether there are no observers, so that costly fields need not be computed.
    """

    def __init__(self, *observers: Observer | None) -> None:
        self._observers = tuple(observer for observer in observers if observer is not None
                                and not (isinstance(observer, Observers) and observer.is_deaf))
        self.is_deaf: bool = not self._observers

    def event(self, name: str, /, **fields: Any) -> None:
        for observer in self._observers:
            notify(observer, name, **fields)


class EventRecorder:
    """Keeps all events, for tests and notebooks.

    Attributes:
        events: name and fields of each, in order.
    """

    def __init__(self) -> None:
        self.events: list[tuple[str, dict[str, Any]]] = []

    def event(self, name: str, /, **fields: Any) -> None:
        self.events.append((name, fields))

    def named(self, name: str) -> list[dict[str, Any]]:
        """Return the fields of all events of this name, in order."""
        return [fields for each, fields in self.events if each == name]


class LoggingObserver:
    """Writes events to a logger: progress, counters and samples at DEBUG, all others at INFO.

    The message shows each value in at most 200 characters; the log record has the values themselves, as
    `record.event` and `record.fields`.

    Args:
        logger: default the logger `compactlib`.
    """

    def __init__(self, logger: logging.Logger | None = None) -> None:
        self._logger = logging.getLogger("compactlib") if logger is None else logger

    def event(self, name: str, /, **fields: Any) -> None:
        level = logging.DEBUG if name == "progress" or "add" in fields or "sample" in fields else logging.INFO
        if self._logger.isEnabledFor(level):
            shown = ", ".join(f"{key}={_shortened(str(value))}" for key, value in fields.items())
            self._logger.log(level, "%s: %s", name, shown, extra={"event": name, "fields": fields})


class TqdmObserver(Closing):
    """Shows a tqdm progress bar for each `work`; use it in a `with`, which closes the bars of failed work.

    A bar closes when its work is complete. The bar of failed work stays until `close()`.

    Args:
        options: the options for `tqdm.auto.tqdm`, for example `disable=True`; they override those of the observer.

    Raises:
        MissingDependency: tqdm is not installed.
    """

    def __init__(self, **options: Any) -> None:
        try:
            with warnings.catch_warnings():
                # In a notebook without ipywidgets tqdm shows text, and would warn in red.
                warnings.simplefilter("ignore")
                from tqdm.auto import tqdm
        except ImportError:
            raise MissingDependency(package="tqdm", extra="observe", purpose="a progress bar") from None
        self._tqdm = tqdm
        self._options = options
        self._bars: dict[str, Any] = {}
        self._lock = threading.Lock()

    def event(self, name: str, /, **fields: Any) -> None:
        if name != "progress":
            return
        work, done, total, unit = fields["work"], fields["done"], fields["total"], fields.get("unit", "bytes")
        with self._lock:
            bar = self._bars.get(work)
            if bar is None:
                is_bytes = unit == "bytes"
                chosen = {"total": total, "desc": work, "unit": "B" if is_bytes else f" {unit}",
                          "unit_scale": is_bytes}
                bar = self._bars[work] = self._tqdm(**{**chosen, **self._options})
            elif bar.total != total:
                bar.reset(total)
            bar.update(done - bar.n)
            if done >= total:
                self._bars.pop(work).close()

    def close(self) -> None:
        """Close all open bars; the observer can be used again."""
        with self._lock:
            while self._bars:
                self._bars.popitem()[1].close()


class PrometheusObserver:
    """Exports events as metrics, by the table at the head of this module.

    Gauges and all other events are also counted, in `<prefix>_events_total{event="<name>"}`. Share one observer between
    all stores and threads of a process. Characters that Prometheus does not allow in names become underscores. The
    first event of a metric fixes its labels: a missing label is exported as `""` later, and a new label is left out, so
    that sums stay right.

    Args:
        registry: a `prometheus_client.CollectorRegistry`; default the package's global registry.
        prefix: the beginning of every name.

    Raises:
        MissingDependency: prometheus_client is not installed.
        InvalidInput: the registry already has an observer with this prefix.
    """

    def __init__(self, registry: Any = None, *, prefix: str = "compactlib") -> None:
        try:
            import prometheus_client
        except ImportError:
            raise MissingDependency(package="prometheus_client", extra="observe", purpose="metrics") from None
        self._client = prometheus_client
        self._registry = prometheus_client.REGISTRY if registry is None else registry
        self._prefix = prefix
        self._metrics: dict[str, tuple[Any, tuple[str, ...]]] = {}
        self._lock = threading.Lock()
        try:
            self._child(self._client.Counter, "events", {"event": "progress"})
        except ValueError as error:
            raise InvalidInput(f"the registry refuses counters named {prefix}_… ({error}); share one observer, or "
                               f"give this one another prefix") from error

    def event(self, name: str, /, **fields: Any) -> None:
        if name == "progress":
            return
        labels = {_allowed(key): value for key, value in fields.items() if isinstance(value, str)}
        if "add" in fields:
            self._child(self._client.Counter, name, labels).inc(fields["add"])
        elif "sample" in fields:
            self._child(self._client.Histogram, name, labels, buckets=_SECONDS_BUCKETS).observe(fields["sample"])
        else:
            self._child(self._client.Counter, "events", {"event": name}).inc()
            value = fields.get("value", "")
            if value is None or (isinstance(value, int | float) and not isinstance(value, bool)):
                self._level(name, value, labels)

    def _level(self, name: str, value: float | None, labels: Mapping[str, str]) -> None:
        if value is None and _allowed(name) not in self._metrics:
            return
        gauge = self._child(self._client.Gauge, name, labels)
        gauge.set(math.nan if value is None else value)
        metric, names = self._metrics[_allowed(name)]
        if value is None and names:
            metric.remove(*(labels.get(label, "") for label in names))

    def _child(self, kind: Any, name: str, labels: Mapping[str, str], **options: Any) -> Any:
        name = _allowed(name)
        with self._lock:
            found = self._metrics.get(name)
            if found is None:
                names = tuple(sorted(labels))
                made = kind(f"{_allowed(self._prefix)}_{name}", f"reported by {self._prefix}", names,
                            registry=self._registry, **options)
                found = self._metrics[name] = made, names
        metric, names = found
        return metric.labels(*(labels.get(label, "") for label in names)) if names else metric


def _shortened(text: str) -> str:
    return text if len(text) <= _MAX_SHOWN_CHARS else text[:_MAX_SHOWN_CHARS - 1] + "…"


def _allowed(name: str) -> str:
    return re.sub(r"[^a-zA-Z0-9_]", "_", name)
