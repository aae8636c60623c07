# SPDX-License-Identifier: Apache-2.0
"""Hooks through which a host watches work: progress, counters, measurements and events; every method is optional.

The library notifies an `Observer` of what it does and never asks it anything. What an observer or a listener raises is
kept and logged, and breaks nothing. Callables whose answer is used (a policy, a fence, the change of an update) are not
notified but asked: what they raise is the caller's to see. There are no notifications inside a lock or in a replay;
the caller has to ensure that.

`compactlib.observer` takes the place of this module. An observer of one method may be given wherever one of four is
asked for: `telling` adapts it.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Mapping
from typing import Any

import attrs

from compactlib._arguments import require_whole
from compactlib.observer import Observer as EventObserver

_LOGGER = logging.getLogger("compactlib.observers")


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


def telling(observer: Observer | EventObserver | None) -> Observer:
    """`observer` as the library notifies it, whatever it raises; `None` is one that does nothing."""
    if observer is None:
        return Observer()
    if not isinstance(observer, Observer):
        # One of no method at all fails, and is kept quiet, as one that raises.
        observer = FourMethods(observer)
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

    def replay(self, observer: Observer | EventObserver) -> None:
        """Notify `observer` of the progresses, then the events, then the counters' sums, then the measurements."""
        kept = self.__getstate__()
        observer = telling(observer)
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


class FourMethods(Observer):
    """An adapter: what an engine reports by four methods becomes events. It ends when the engines are re-drawn.

    Args:
        observer: of one method (`compactlib.observer`).
    """

    def __init__(self, observer: EventObserver) -> None:
        self._observer = observer

    def progress(self, progress: Progress) -> None:
        """The event `progress`."""
        self._observer.event("progress", **attrs.asdict(progress))

    def count(self, name: str, value: int = 1, labels: Mapping[str, str] | None = None) -> None:
        """The field `add`."""
        self._observer.event(name, add=value, **(labels or {}))

    def measure(self, name: str, value: float, labels: Mapping[str, str] | None = None) -> None:
        """The field `sample`."""
        self._observer.event(name, sample=value, **(labels or {}))

    def event(self, name: str, fields: Mapping[str, Any]) -> None:
        """Passed on."""
        self._observer.event(name, **fields)

    def __repr__(self) -> str:
        return f"FourMethods({self._observer!r})"
