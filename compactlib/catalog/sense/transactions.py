# SPDX-License-Identifier: Apache-2.0
"""Active read-write transactions, counted by the catalog version they use (restriction 1).

Beginning and ending one touches a single counter, however many are active.

>>> from compactlib.catalog.schema.versions import RetainedVersions
>>> from compactlib.catalog.model.timestamp import HybridClock, timestamp
>>> from compactlib.clock import ManualClock
>>> active = ActiveTransactions(RetainedVersions, HybridClock(ManualClock(5.0)))
>>> transaction = active.begin()
>>> active.minimum(), active.end(transaction), active.minimum() > timestamp(5000)
(1, None, True)
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from compactlib.catalog.errors import CatalogVersionNotFound
from compactlib.catalog.model.timestamp import HybridClock, Timestamp
from compactlib.catalog.model.values import Culprit, Factor, Floor, Need
from compactlib.catalog.schema.versions import RetainedVersions
from compactlib.errors import AuditFailed, InvalidInput


class Transaction:
    """One active transaction; give it back with `ActiveTransactions.end`.

    Attributes:
        began: its begin time.
        version: the catalog version in force then, which it may use until it ends.
    """

    __slots__ = ("_counter", "began", "version")

    def __init__(self, began: Timestamp, version: int, counter: list[int]) -> None:
        self.began: Timestamp = began
        self.version: int = version
        self._counter: list[int] | None = counter

    def __repr__(self) -> str:
        return f"Transaction(began={self.began}, version={self.version}{'' if self._counter else ', ended'})"


class ActiveTransactions:
    """Counts active transactions by catalog version. Any thread may call it.

    Args:
        view: gives the node's retained history.
        clock: gives begin times.
    """

    def __init__(self, view: Callable[[], RetainedVersions], clock: HybridClock) -> None:
        self._view = view
        self._clock = clock
        self._lock = threading.Lock()
        # By version: how many are active, and when the version became active.
        self._active: dict[int, list[int]] = {}

    def begin(self) -> Transaction:
        """Begin a transaction now. O(log versions), whatever is active.

        Raises:
            TimeBeforeHistory: the clock stands before the earliest retained version.
            ClockJumped: the clock is off, and nothing has confirmed it.
        """
        with self._lock:
            began = self._clock.now()
            catalog = self._view().at(began)
            counter = self._active.get(catalog.version)
            if counter is None:
                counter = self._active[catalog.version] = [0, catalog.activation]
            counter[0] += 1
        return Transaction(began, catalog.version, counter)

    def end(self, transaction: Transaction) -> None:
        """End it; ending it again does nothing. O(1).

        Raises:
            InvalidInput: it is no `Transaction`.
        """
        with self._lock:
            try:
                counter = transaction._counter
            except AttributeError:
                raise InvalidInput(f"{transaction!r:.100} is no transaction; give what begin() returned") from None
            if counter is None:
                return
            transaction._counter = None
            counter[0] -= 1
            if not counter[0] and self._active.get(transaction.version) is counter:
                del self._active[transaction.version]

    def minimum(self) -> Timestamp:
        """Activation of the oldest version in use; without any, now: every later one begins after it. O(versions)."""
        with self._lock:
            return self._active[min(self._active)][1] if self._active else self._clock.expiry()

    def need(self, view: RetainedVersions) -> Need | None:
        """See `NeedSource.need`."""
        with self._lock:
            if not self._active:
                return Floor(Factor.ACTIVE_TRANSACTIONS, self._clock.expiry())
            version = min(self._active)
            count, activation = self._active[version]
        owner = f"{count} transactions at catalog version {version}"
        return Floor(Factor.ACTIVE_TRANSACTIONS, activation, Culprit(owner=owner))

    def __len__(self) -> int:
        with self._lock:
            return sum(count for count, _ in self._active.values())

    def audit(self) -> None:
        """Check the counters against the history.

        Raises:
            AuditFailed: a counter is not positive, or a version in use is not retained.
        """
        view = self._view()
        with self._lock:
            for version, (count, activation) in self._active.items():
                if count <= 0:
                    raise AuditFailed(f"{count} transactions at version {version}")
                try:
                    if view.activation(version) != activation:
                        raise AuditFailed(f"version {version} became active twice")
                except CatalogVersionNotFound as error:
                    raise AuditFailed(f"{count} transactions use version {version}: {error}") from error

    def __repr__(self) -> str:
        return f"ActiveTransactions({len(self)} at {len(self._active)} versions)"
