# SPDX-License-Identifier: Apache-2.0
"""What one node needs: its active transactions (restriction 1), and `LocalNeeds`, which makes a report of all sources.

Everything a report says is taken in one call, so the partitions it lists are those that its floors speak for.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import attrs

from compactlib.catalog.history import RetainedVersions
from compactlib.catalog.published import PublishedTimes
from compactlib.catalog.timestamp import HybridClock, Timestamp
from compactlib.catalog.values import Culprit, Factor, Floor, Need, NodeId, NodeReport, Unavailable
from compactlib.catalog.watermark import LowWatermark
from compactlib.errors import CompactlibError


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
    """The active read-write transactions of one node. Any thread may call it.

    Args:
        view: gives the node's retained history.
        clock: gives begin times.
    """

    def __init__(self, view: Callable[[], RetainedVersions], clock: HybridClock) -> None:
        self._view = view
        self._clock = clock
        self._lock = threading.Lock()
        self._active: set[Transaction] = set()

    def begin(self) -> Transaction:
        """Begin a transaction now. O(log versions), whatever is active.

        Raises:
            TimeBeforeHistory: the clock stands before the earliest retained version.
        """
        with self._lock:
            began = self._clock.now()
            made = Transaction(began, self._view().version_at(began))
            self._active.add(made)
        return made

    def end(self, transaction: Transaction) -> None:
        """End it; ending it again does nothing. O(1)."""
        with self._lock:
            self._active.discard(transaction)

    def need(self, view: RetainedVersions) -> Floor:
        """Return the activation of the oldest version in use; without any, now: every later one begins after it.

        O(active transactions).
        """
        with self._lock:
            if not self._active:
                return Floor(Factor.ACTIVE_TRANSACTIONS, self._clock.now())
            versions = [each.version for each in self._active]
        oldest = min(versions)
        owner = f"{versions.count(oldest)} transactions at catalog version {oldest}"
        return Floor(Factor.ACTIVE_TRANSACTIONS, self._view().activation(oldest), Culprit(owner=owner))

    def __len__(self) -> int:
        return len(self._active)

    def __repr__(self) -> str:
        return f"ActiveTransactions({len(self)})"


class NeedSource(Protocol):
    """Anything that can need an old version."""

    def need(self, view: RetainedVersions) -> Need | None:
        """Return the lowest time needed, or that this is not known yet; `None` if nothing is needed.

        Called once a round, from the thread that answers it; must be quick and must not block. What it says stays
        true: no lower need may arise later.
        """


class LocalNeeds:
    """Puts a node's sources together. Holds nothing of its own; any thread may call it.

    Args:
        node: the node that reports.
        view: gives the node's retained history.
        transactions: active read-write transactions.
        partitions: published times; `None` for a node that hosts none.
        sources: everything else: low watermark, rebalance, the host's own. A `LowWatermark` among them is asked first,
            the others in this order: what may begin at the low watermark is asked after it.
    """

    def __init__(self, node: NodeId, view: Callable[[], RetainedVersions], *, transactions: ActiveTransactions,
                 partitions: PublishedTimes | None = None, sources: Sequence[NeedSource] = ()) -> None:
        self.node: NodeId = node
        self._view = view
        self._transactions = transactions
        self._partitions = partitions
        self._sources = tuple(sorted(sources, key=lambda source: not isinstance(source, LowWatermark)))

    def report(self) -> NodeReport:
        """Return the node's answer to a round. A source that fails counts as not available and is named.

        It speaks for the versions that the view had when it began; `CatalogNode.report` asks again if others came.
        """
        view = self._view()
        published: Need | None = None
        hosted: Mapping[int, int] = {}
        if self._partitions is not None:
            published, hosted = self._partitions.needs_and_hosted()
        needs = [published, *(_asked(source, view) for source in self._sources)]
        # Transactions last: one that begins later begins above this time.
        transactions = self._transactions.need(view)
        lowest: dict[Factor, Floor] = {}
        for need in (*needs, transactions):
            if isinstance(need, Floor) and (need.factor not in lowest or need.time < lowest[need.factor].time):
                lowest[need.factor] = need
        return NodeReport(node=self.node, floors=tuple(lowest.values()), hosted=hosted,
                          unavailable=tuple(need for need in needs if isinstance(need, Unavailable)),
                          transactions_from=transactions.time)


def _asked(source: NeedSource, view: RetainedVersions) -> Need | None:
    try:
        return source.need(view)
    except CompactlibError as error:
        return Unavailable(Factor.UNAVAILABLE, f"{type(source).__name__} failed: {error}")
