# SPDX-License-Identifier: Apache-2.0
"""`CatalogReplica`: one node's copy of the retained versions, kept in step with the log."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Any

from compactlib.catalog.errors import RecordMissing
from compactlib.catalog.log.log_model import LogState
from compactlib.catalog.log.records import Update
from compactlib.catalog.log.recover import applied, recover_history
from compactlib.catalog.log.update_log import UpdateLog
from compactlib.catalog.schema.catalog import Catalog
from compactlib.catalog.schema.versions import CatalogVersions, RetainedVersions
from compactlib.runtime.observe import Observer, tell
from compactlib.runtime.owned_lock import Changes

_MAX_LOOKS = 100

Listener = Callable[[Catalog], None]
"""Called with each version once and in order, before it counts as ready. What it raises is kept and logged."""


class CatalogReplica:
    """Takes in what the log holds, calls the listeners with each version, and wakes callers that wait for one. For any
    thread.

    Args:
        log: is recovered, and followed.

    Attributes:
        failures: how often a listener raised.
        last_error: what it raised last.

    Raises:
        RecordMissing, RecordDamaged, RecordTooNew: the log cannot be recovered.
    """

    def __init__(self, log: UpdateLog) -> None:
        self._log = log
        self._versions = CatalogVersions(recover_history(log))
        self._listeners: tuple[Listener, ...] = ()
        self._following = threading.RLock()
        self._told_in: int | None = None  # the thread in which listeners are called at the moment
        self._news: deque[tuple[str, dict[str, Any]]] = deque()
        self._ready = Changes()
        self.failures: int = 0
        self.last_error: Exception | None = None

    @property
    def history(self) -> RetainedVersions:
        """The retained versions, immutable."""
        return self._versions.retained

    @property
    def is_telling(self) -> bool:
        """Whether the calling thread is one in which a listener is being called."""
        return self._told_in == threading.get_ident()

    def listen(self, listener: Listener) -> None:
        """Call `listener` with each version from the next one on."""
        with self._ready:
            self._listeners += (listener,)

    def take_in(self) -> int:
        """Take in what the log holds and is not known yet; returns how many versions. Two reads if none.

        While a listener is called it does nothing: the version at hand comes first.

        Raises:
            RecordMissing, RecordDamaged, RecordTooNew: the log is broken; the versions stay as they were.
        """
        with self._following:
            if self._told_in is not None:
                return 0
            before = self.history.latest
            for _ in range(_MAX_LOOKS):
                state = self._log.state()
                known = 0 if state is None else state.latest
                if known < self.history.latest:
                    raise RecordMissing(key="latest", version=self.history.latest,
                                        expected=f"version {self.history.latest}, which was there before; the log ends "
                                                 f"at {known}")
                if state is None or self._caught_up(state):
                    break
                try:
                    self._catch_up(state)
                except RecordMissing:
                    again = self._log.state()
                    if again is None or again.earliest == state.earliest:
                        raise
            return self.history.latest - before

    def _caught_up(self, state: LogState) -> bool:
        return state.latest <= self.history.latest and (state.earliest <= self.history.earliest or not state.compacted)

    def _catch_up(self, state: LogState) -> None:
        if state.compacted and state.earliest > self.history.latest:
            self._register(self._log.snapshot(state.earliest), cut=True)
        for record in self._log.read(self.history.latest + 1, state.latest):
            if isinstance(record, Update):
                self._register(applied(record, self.history.catalog(self.history.latest)), cut=False)
            else:
                self._register(record, cut=True)
        if state.compacted and state.earliest > self.history.earliest:
            self._register(self.history.catalog(state.earliest), cut=True)

    def add(self, catalog: Catalog) -> None:
        """Take in a version that this node has appended itself, unless it is known by now."""
        with self._following:
            if self.history.latest < catalog.version:
                self._register(catalog, cut=False)

    def _register(self, catalog: Catalog, *, cut: bool) -> None:
        is_new = catalog.version > self.history.latest
        before = self.history.earliest
        # Listeners first: a version counts as ready only after all of them were called with it.
        if is_new:
            self._told_in = threading.get_ident()
            try:
                for listener in self._listeners:
                    failed = tell(listener, catalog)
                    if failed is not None:
                        self.last_error, self.failures = failed, self.failures + 1
            finally:
                self._told_in = None
        with self._ready:
            if cut:
                self._versions.restart_from(catalog)
            else:
                self._versions.register(catalog)
            self._ready.notify_all()
        if is_new:
            self._news.append(("catalog_version", {"version": catalog.version, "activation": catalog.activation}))
        if cut:
            self._news.append(("catalog_compacted", {"earliest": catalog.version, "before": before}))

    def tell_news(self, observer: Observer) -> None:
        """Notify the observer of what has happened, in no lock."""
        while self._news:
            try:
                news = self._news.popleft()
            except IndexError:  # another thread was faster
                return
            observer.event(*news)

    def wait(self, version: int, wait_seconds: float, is_over: Callable[[], bool]) -> bool:
        """Wait until a version is registered and every listener was called with it; whether that came in time.

        Args:
            version: the version.
            wait_seconds: how long at most.
            is_over: is asked on each `wake`; once it is true, the wait ends as well.
        """
        with self._ready:
            return self._ready.wait_for(lambda: self.history.latest >= version or is_over(), wait_seconds)

    def wake(self) -> None:
        """Wake the threads that wait."""
        with self._ready:
            self._ready.notify_all()

    def audit(self) -> None:
        """Check the versions in memory against their own rules.

        Raises:
            AuditFailed: one is broken.
        """
        self._versions.audit()
        for catalog in self.history:
            if catalog.version:
                catalog.audit()
