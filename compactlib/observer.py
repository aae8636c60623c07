# SPDX-License-Identifier: Apache-2.0
"""`Observer`: how a host watches work; `notify`, which calls one; and adapters for logging, tqdm and prometheus_client.

An observer has one method, `event(name, **fields)`. It is called on the thread that called the library, outside of
locks; what happened under a lock is collected in a list and sent after it, and what happened in a task of an executor
comes with the task's result. What an observer raises is logged and stops nothing.

Some fields mean the same in every event:

| field | meaning | in Prometheus |
|---|---|---|
| `add` | a counter of this name grows by so much | counter `<prefix>_<name>_total` |
| `sample` | one value of a distribution | histogram `<prefix>_<name>` |
| `value` | a level as it is now; `None`: there is no such level any more | gauge `<prefix>_<name>` |
| others that are texts | in an event with one of these three: labels, which are bounded | the metric's labels |

The event `progress` has the fields `work`, `done`, `total` and `unit`: how far one piece of work has come. All others
tell what an operator may want to know; their fields can be pickled.
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

SECONDS_BUCKETS = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0,
                   3_600.0, 14_400.0)
"""Upper bounds for what takes from milliseconds (a request) to hours (a compaction)."""


class Observer(Protocol):
    """Watches work. Any object with this method is one."""

    def event(self, name: str, /, **fields: Any) -> None:
        """Called when something happened.

        Args:
            name: what; begins with the package, `"raftlog_segment_merged"`, or `"store"` where all have it.
            fields: its numbers and names; see the head of this module.
        """


def notify(observer: Observer | None, name: str, /, **fields: Any) -> None:
    """Call an observer; what it raises is logged, the first time as a warning, and then for debugging."""
    if observer is None:
        return
    try:
        observer.event(name, **fields)
    except Exception as error:
        try:
            level = logging.DEBUG if observer in _failed else logging.WARNING
            _failed.add(observer)
        except TypeError:  # it can have no weak reference, or no hash
            level = logging.WARNING
        _LOGGER.log(level, "the observer %r raised %r; the work goes on", observer, error, exc_info=error)


class Observers:
    """Notifies any number of observers, in order; what one raises is logged, and keeps the event from no other one.

    Args:
        observers: `None` among them are left out.

    Attributes:
        is_deaf: whether there is none, so that what costs much to report need not be computed.
    """

    def __init__(self, *observers: Observer | None) -> None:
        self._observers = tuple(observer for observer in observers if observer is not None
                                and not (isinstance(observer, Observers) and observer.is_deaf))
        self.is_deaf: bool = not self._observers

    def event(self, name: str, /, **fields: Any) -> None:
        for observer in self._observers:
            notify(observer, name, **fields)


class EventRecorder:
    """Keeps all events: for tests and notebooks.

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
    """Shows each piece of work as a tqdm progress bar; use it in a `with`, so that no bar outlives failed work.

    A bar closes when its work is complete. Work that fails leaves its bar where it stood until `close()`.

    Args:
        options: passed on to `tqdm.auto.tqdm`, for example `disable=True`; they win over what the observer chooses.

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
        """Close every bar that is still open; the observer can be used again afterwards."""
        with self._lock:
            while self._bars:
                self._bars.popitem()[1].close()


class PrometheusObserver:
    """Exports events as metrics; the table at the head of this module says how.

    All other events are counted in `<prefix>_events_total{event="<name>"}`, and so are levels. One observer serves a
    whole process: share it between stores and threads. Characters that Prometheus does not allow in names become
    underscores. The labels of a metric are those of its first event: later, one that is missing is exported as `""`,
    and one that is new is left out, so that sums stay right.

    Args:
        registry: a `prometheus_client.CollectorRegistry`; default the package's own global one.
        prefix: put before every name.
        buckets: upper bounds of the histograms' buckets, ascending.

    Raises:
        MissingDependency: prometheus_client is not installed.
        InvalidInput: the registry already has an observer with this prefix.
    """

    def __init__(self, registry: Any = None, *, prefix: str = "compactlib",
                 buckets: tuple[float, ...] = SECONDS_BUCKETS) -> None:
        try:
            import prometheus_client
        except ImportError:
            raise MissingDependency(package="prometheus_client", extra="observe", purpose="metrics") from None
        self._client = prometheus_client
        self._registry = prometheus_client.REGISTRY if registry is None else registry
        self._prefix = prefix
        self._buckets = tuple(buckets)
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
            self._child(self._client.Histogram, name, labels, buckets=self._buckets).observe(fields["sample"])
        else:
            self._child(self._client.Counter, "events", {"event": name}).inc()
            value = fields.get("value", "")
            if value is None or (isinstance(value, int | float) and not isinstance(value, bool)):
                self._level(name, value, labels)

    def text(self) -> bytes:
        """Return all that the registry exports now, in Prometheus' text form."""
        exported: bytes = self._client.generate_latest(self._registry)
        return exported

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
