# SPDX-License-Identifier: Apache-2.0
"""A node's needs: its active transactions, and `local_report`, the report of all sources.

A report reads floors and partitions in the same call, so it lists exactly the partitions that its floors cover.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Protocol

import attrs

from compactlib.catalog.history import RetainedVersions
from compactlib.catalog.published import PublishedTimes
from compactlib.catalog.service import CatalogService
from compactlib.catalog.timestamp import Timestamp
from compactlib.catalog.values import Culprit, Factor, Floor, NodeId, NodeReport
from compactlib.catalog.watermark import LowWatermark


@attrs.frozen(eq=False)
class Transaction:
    """An active transaction; pass it to `ActiveTransactions.end`.

    Attributes:
        began: begin time.
        version: the catalog version in force at `began`, which the transaction may use until it ends.
    """

    began: Timestamp
    version: int


class ActiveTransactions:
    """The active read-write transactions of a node. Any thread may call it.

    Args:
        service: the node's catalog; its clock draws begin times.
    """

    def __init__(self, service: CatalogService) -> None:
        self._service = service
        self._lock = threading.Lock()
        self._active: set[Transaction] = set()

    def begin(self) -> Transaction:
        """Begin a transaction now. O(log versions).

        Raises:
            TimeBeforeHistory: the clock is behind the activation of the earliest retained version.
        """
        with self._lock:
            began = self._service.clock.now()
            made = Transaction(began, self._service.history.version_at(began))
            self._active.add(made)
        return made

    def end(self, transaction: Transaction) -> None:
        """End a transaction. Idempotent; O(1)."""
        with self._lock:
            self._active.discard(transaction)

    def need(self, view: RetainedVersions) -> Floor:
        """Return the activation of the oldest version in use; without transactions, the time now.

        Every later transaction begins above the result. O(active transactions).
        """
        with self._lock:
            if not self._active:
                return Floor(Factor.ACTIVE_TRANSACTIONS, self._service.clock.now())
            versions = [each.version for each in self._active]
        oldest = min(versions)
        owner = f"{versions.count(oldest)} transactions at catalog version {oldest}"
        return Floor(Factor.ACTIVE_TRANSACTIONS, self._service.history.activation(oldest), Culprit(owner=owner))


class NeedSource(Protocol):
    """A reason to keep old versions."""

    def need(self, view: RetainedVersions) -> Floor | None:
        """Return the lowest time needed, `Floor.unknown` if it is not known yet, or `None` without a need.

        Called once a round, in the thread of the report; must be quick and must not block. No lower need may arise
        after the call.
        """


def local_report(node: NodeId, view: RetainedVersions, *, transactions: ActiveTransactions,
                 partitions: PublishedTimes | None = None, sources: Sequence[NeedSource] = ()) -> NodeReport:
    """Return a node's answer to a round. The need of a source that raises is unknown.

    Args:
        node: the node that reports.
        view: the node's retained history; `CatalogNode.report` repeats the report if versions arrived meanwhile.
        transactions: active read-write transactions.
        partitions: published times; `None` for a node without partitions.
        sources: all other sources: low watermark, rebalance, the host's own. A `LowWatermark` is called first, since
            other needs may begin at the low watermark; then the others in this order.
    """
    published, hosted = (None, {}) if partitions is None else partitions.needs_and_hosted()
    needs = [published, *(_need_of(source, view) for source in sorted(
        sources, key=lambda source: not isinstance(source, LowWatermark)))]
    # Transactions last: a transaction that begins later begins above this time.
    active = transactions.need(view)
    return NodeReport(node=node, floors=tuple(need for need in (*needs, active) if need is not None), hosted=hosted,
                      transactions_from=active.time)


def _need_of(source: NeedSource, view: RetainedVersions) -> Floor | None:
    try:
        return source.need(view)
    except Exception as error:  # also those of the host's code
        return Floor.unknown(f"{type(source).__name__} failed: {type(error).__name__}: {error}")
