# SPDX-License-Identifier: Apache-2.0
"""`CatalogReplica`: one node's copy of the retained versions, kept in step with the log."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Any

from compactlib.catalog.check import read_versions, recover_history
from compactlib.catalog.errors import RecordMissing
from compactlib.catalog.history import RetainedVersions
from compactlib.catalog.schema import Catalog
from compactlib.catalog.update_log import LogState, UpdateLog
from compactlib.clock import Clock
from compactlib.errors import Busy, CorruptData

_LOGGER = logging.getLogger("compactlib.catalog")
_MAX_READS = 100

Listener = Callable[[Catalog], object]
"""Called with each version once and in order, before it counts as ready. What it raises is kept and logged."""


class CatalogReplica:
    """Takes in what the log holds, calls the listeners with each version, and wakes callers that wait for one. For any
    thread.

    Args:
        log: is recovered, and followed.

    Attributes:
        history: the retained versions, immutable; the next value takes its place in one step.
        failures: how often a listener raised.
        last_error: what it raised last.

    Raises:
        RecordMissing, CorruptData, Unsupported: the log cannot be recovered.
    """

    def __init__(self, log: UpdateLog) -> None:
        self.history: RetainedVersions = recover_history(log)
        self.failures: int = 0
        self.last_error: Exception | None = None
        self._log = log
        self._listeners: tuple[Listener, ...] = ()
        self._following = threading.RLock()
        self._calling: int | None = None  # the thread in which listeners are called at the moment
        self._news: deque[tuple[str, dict[str, Any]]] = deque()
        self._bells: set[SimpleQueue[None]] = set()

    @property
    def is_calling(self) -> bool:
        """Whether the calling thread is one in which a listener is being called."""
        return self._calling == threading.get_ident()

    def listen(self, listener: Listener) -> None:
        """Call `listener` with each version from the next one on."""
        with self._following:
            self._listeners += (listener,)

    def take_in(self, state: LogState | None = None) -> int:
        """Take in what the log holds and is not known yet; returns how many versions. One request if none.

        While a listener is called it does nothing: the version at hand comes first.

        Args:
            state: what the log's marks say, if that was just read.

        Raises:
            RecordMissing, CorruptData, Unsupported: the log is broken; the versions stay as they were.
            Busy: the log was cut again and again meanwhile.
        """
        with self._following:
            if self._calling is not None:
                return 0
            before = self.history.latest
            for _ in range(_MAX_READS):
                state = self._log.state() if state is None else state
                if state.latest < self.history.latest:
                    if (state := self._log.state()).latest >= self.history.latest:
                        continue  # what was given was read before
                    raise RecordMissing(key="latest", version=self.history.latest,
                                        expected=f"version {self.history.latest}, which was there before; the log ends "
                                                 f"at {state.latest}")
                if state.latest == self.history.latest and state.earliest <= self.history.earliest:
                    return self.history.latest - before
                try:
                    self._catch_up(state)
                except (CorruptData, RecordMissing):
                    if self._log.state().earliest == state.earliest:
                        raise
                state = None
            raise Busy(f"the catalog's log was cut {_MAX_READS} times while it was followed; call again")

    def _catch_up(self, state: LogState) -> None:
        if state.latest > self.history.latest:
            for read in read_versions(self._log, state, self.history.catalog(self.history.latest)):
                if read.problem is not None or read.catalog is None:
                    raise read.problem or AssertionError(f"version {read.version} has no catalog")
                made = read.catalog.copy()
                if read.payload is None:
                    self._register(made, self.history.beginning_with(made))
                else:
                    self.add(made, read.payload)
                if read.version == state.latest:
                    break  # what lies above was appended since
        if self.history.earliest < state.earliest <= self.history.latest:
            first_one = self.history.catalog(state.earliest)
            self._register(first_one, self.history.beginning_with(first_one))

    def add(self, catalog: Catalog, payload: bytes) -> None:
        """Take in the next version, unless it is known by now.

        Args:
            catalog: the version.
            payload: the update that led to it, as it is stored.
        """
        with self._following:
            if self.history.latest < catalog.version:
                self._register(catalog, self.history.followed_by(catalog, payload))

    def _register(self, catalog: Catalog, after: RetainedVersions) -> None:
        before = self.history
        # Listeners first: a version counts as ready only after all of them were called with it.
        if catalog.version > before.latest:
            self._calling = threading.get_ident()
            try:
                for listener in self._listeners:
                    try:
                        listener(catalog)
                    except Exception as error:
                        self.last_error, self.failures = error, self.failures + 1
                        _LOGGER.warning("the listener %r of the catalog raised %r; the others are called", listener,
                                        error, exc_info=error)
            finally:
                self._calling = None
            self._news.append(("catalog_version", {"version": catalog.version, "activation": catalog.activation}))
        if after.earliest != before.earliest:
            self._news.append(("catalog_compacted", {"earliest": after.earliest, "before": before.earliest}))
        self.history = after
        self.wake()

    def news(self) -> list[tuple[str, dict[str, Any]]]:
        """Return what has happened since the last call, for observers; each event once."""
        found = []
        while self._news:
            try:
                found.append(self._news.popleft())
            except IndexError:  # another thread was faster
                break
        return found

    def wait(self, version: int, seconds: float, clock: Clock, is_over: Callable[[], bool]) -> None:
        """Wait until a version is registered, or `is_over` after a `wake`, or so many seconds have passed."""
        end = clock.monotonic() + seconds
        bell: SimpleQueue[None] = SimpleQueue()
        self._bells.add(bell)
        try:
            while self.history.latest < version and not is_over() and (left := end - clock.monotonic()) > 0:
                try:
                    bell.get(timeout=left)
                except Empty:
                    break
        finally:
            self._bells.discard(bell)

    def wake(self) -> None:
        """Wake the threads that wait."""
        for bell in list(self._bells):
            bell.put(None)
