# SPDX-License-Identifier: Apache-2.0
"""Active read-write transactions, counted by the catalog version that was in force when they began (restriction 1)."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable

import attrs

from compactlib.catalog.history import RetainedVersions
from compactlib.catalog.timestamp import HybridClock, Timestamp
from compactlib.catalog.values import Culprit, Factor, Floor
from compactlib.errors import AuditFailed


@attrs.frozen(eq=False)
class Transaction:
    """One active transaction; give it to `ActiveTransactions.end` once.

    Attributes:
        began: its begin time.
        version: the catalog version in force then, which it may use until it ends.
    """

    began: Timestamp
    version: int


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
        self._active: set[Transaction] = set()
        self._counts: Counter[int] = Counter()  # Invariant: of each version, the active transactions; none are 0

    def begin(self) -> Transaction:
        """Begin a transaction now. O(log versions), whatever is active.

        Raises:
            TimeBeforeHistory: the clock stands before the earliest retained version.
        """
        with self._lock:
            began = self._clock.now()
            made = Transaction(began, self._view().at(began).version)
            self._active.add(made)
            self._counts[made.version] += 1
        return made

    def end(self, transaction: Transaction) -> None:
        """End it; ending it again does nothing. O(1)."""
        with self._lock:
            if transaction not in self._active:
                return
            self._active.remove(transaction)
            self._counts[transaction.version] -= 1
            if not self._counts[transaction.version]:
                del self._counts[transaction.version]

    def need(self, view: RetainedVersions) -> Floor:
        """Return the activation of the oldest version in use; without any, now: every later one begins after it."""
        with self._lock:
            if not self._counts:
                return Floor(Factor.ACTIVE_TRANSACTIONS, self._clock.now())
            version = min(self._counts)
            count = self._counts[version]
        owner = f"{count} transactions at catalog version {version}"
        return Floor(Factor.ACTIVE_TRANSACTIONS, self._view().activation(version), Culprit(owner=owner))

    def __len__(self) -> int:
        return len(self._active)

    def audit(self) -> None:
        """Check the counters against the transactions, and both against the history.

        Raises:
            AuditFailed: they differ, or a version in use is not retained.
        """
        view = self._view()
        with self._lock:
            if self._counts != Counter(each.version for each in self._active):
                raise AuditFailed(f"{len(self._active)} transactions are counted as {dict(self._counts)}")
            for version in self._counts:
                if not view.has(version):
                    raise AuditFailed(f"{self._counts[version]} transactions use version {version}, which is cut")

    def __repr__(self) -> str:
        return f"ActiveTransactions({len(self)} at {len(self._counts)} versions)"
