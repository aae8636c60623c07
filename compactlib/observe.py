"""Hooks through which a host watches work: progress, counters and events; every method is optional.

The library tells an `Observer` what it does and never asks it anything. Adapters for tqdm, Prometheus and
`logging` are here; each imports its package only when it is made.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import attrs

from compactlib.errors import MissingDependency


@attrs.frozen
class Progress:
    """How far one piece of work has come.

    Attributes:
        work: what is being done, for example `"compact 0000000000000001"`.
        done: units finished so far.
        total: units in all.
        unit: `"bytes"`, `"groups"`, ...
    """

    work: str
    done: int
    total: int
    unit: str = "bytes"


class Observer:
    """Watches work. Override what you need; what is not overridden does nothing.

    Methods may be called from several threads. An exception raised by one stops the work.
    """

    def progress(self, progress: Progress) -> None:
        """Called as work advances; a piece of work ends with `done == total` unless it fails."""

    def count(self, name: str, value: int = 1, labels: Mapping[str, str] | None = None) -> None:
        """Called to add `value` (>= 0) to a counter, for example `raftlog_bytes_freed`."""

    def event(self, name: str, fields: Mapping[str, Any]) -> None:
        """Called when something happened that an operator may want to know, with its numbers."""


class Observers(Observer):
    """Tells several observers, in order."""

    def __init__(self, *observers: Observer) -> None:
        self._observers = observers

    def progress(self, progress: Progress) -> None:
        for observer in self._observers:
            observer.progress(progress)

    def count(self, name: str, value: int = 1, labels: Mapping[str, str] | None = None) -> None:
        for observer in self._observers:
            observer.count(name, value, labels)

    def event(self, name: str, fields: Mapping[str, Any]) -> None:
        for observer in self._observers:
            observer.event(name, fields)


class RecordingObserver(Observer):
    """Keeps everything it is told, for tests and notebooks.

    Attributes:
        progresses: every progress, in order.
        counters: (name, sorted labels) to sum.
        events: (name, fields), in order.
    """

    def __init__(self) -> None:
        self.progresses: list[Progress] = []
        self.counters: dict[tuple[str, tuple[tuple[str, str], ...]], int] = {}
        self.events: list[tuple[str, dict[str, Any]]] = []

    def progress(self, progress: Progress) -> None:
        self.progresses.append(progress)

    def count(self, name: str, value: int = 1, labels: Mapping[str, str] | None = None) -> None:
        key = name, tuple(sorted((labels or {}).items()))
        self.counters[key] = self.counters.get(key, 0) + value

    def event(self, name: str, fields: Mapping[str, Any]) -> None:
        self.events.append((name, dict(fields)))


class LoggingObserver(Observer):
    """Writes events to a logger at INFO and counters at DEBUG, with the numbers in `extra`."""

    def __init__(self, logger: logging.Logger | None = None) -> None:
        self._logger = logging.getLogger("compactlib") if logger is None else logger

    def count(self, name: str, value: int = 1, labels: Mapping[str, str] | None = None) -> None:
        self._logger.debug("%s += %d", name, value, extra={"counter": name, "labels": dict(labels or {})})

    def event(self, name: str, fields: Mapping[str, Any]) -> None:
        told = ", ".join(f"{key}={value}" for key, value in fields.items())
        self._logger.info("%s: %s", name, told, extra={"event": name, "fields": dict(fields)})


class TqdmObserver(Observer):
    """Shows each piece of work as a tqdm progress bar.

    Args:
        options: passed on to `tqdm.tqdm`, for example `disable=True`.

    Raises:
        MissingDependency: tqdm is not installed.
    """

    def __init__(self, **options: Any) -> None:
        try:
            from tqdm.auto import tqdm
        except ImportError:
            raise MissingDependency(package="tqdm", extra="progress", purpose="a progress bar") from None
        self._tqdm = tqdm
        self._options = options
        self._bars: dict[str, Any] = {}

    def progress(self, progress: Progress) -> None:
        bar = self._bars.get(progress.work)
        if bar is None:
            bytes_shown = progress.unit == "bytes"
            bar = self._tqdm(total=progress.total, desc=progress.work, unit="B" if bytes_shown else progress.unit,
                             unit_scale=bytes_shown, **self._options)
            self._bars[progress.work] = bar
        bar.update(progress.done - bar.n)
        if progress.done >= progress.total:
            bar.close()
            del self._bars[progress.work]


class PrometheusObserver(Observer):
    """Turns counters into Prometheus counters and events into `<prefix>_events_total{event=...}`.

    Args:
        registry: a `prometheus_client.CollectorRegistry`; default the package's own global one.
        prefix: put before every name.

    Raises:
        MissingDependency: prometheus_client is not installed.
    """

    def __init__(self, registry: Any = None, *, prefix: str = "compactlib") -> None:
        try:
            import prometheus_client
        except ImportError:
            raise MissingDependency(package="prometheus_client", extra="prometheus", purpose="metrics") from None
        self._counter = prometheus_client.Counter
        self._registry = prometheus_client.REGISTRY if registry is None else registry
        self._prefix = prefix
        self._counters: dict[str, Any] = {}

    def count(self, name: str, value: int = 1, labels: Mapping[str, str] | None = None) -> None:
        told = dict(labels or {})
        counter = self._counters.get(name)
        if counter is None:
            counter = self._counter(f"{self._prefix}_{name}", f"compactlib counter {name}", sorted(told),
                                    registry=self._registry)
            self._counters[name] = counter
        (counter.labels(**told) if told else counter).inc(value)

    def event(self, name: str, fields: Mapping[str, Any]) -> None:
        self.count("events", 1, {"event": name})
