# SPDX-License-Identifier: Apache-2.0
"""`LocalNeeds`: asks a node's sources, and puts their answers together into one report.

Everything a report says is taken in one call, so the partitions it lists are those that its floors speak for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from compactlib.catalog.history import RetainedVersions
from compactlib.catalog.needs.watermark import LowWatermark
from compactlib.catalog.values import Factor, Floor, Need, NodeId, NodeReport, Unavailable
from compactlib.errors import CompactlibError


class NeedSource(Protocol):
    """Anything that can need an old version."""

    def need(self, view: RetainedVersions) -> Need | None:
        """Return the lowest time needed, or that this is not known yet; `None` if nothing is needed.

        Called once a round, from the thread that answers it; must be quick and must not block. What it says stays
        true: no lower need may arise later.
        """


class TransactionSource(Protocol):
    """The source of restriction 1."""

    def need(self, view: RetainedVersions) -> Floor:
        """Return the activation of the oldest version that an active read-write transaction uses; without any, a time
        that no later one begins before.
        """


class PartitionSource(Protocol):
    """The source of restriction 2, which also knows what is hosted."""

    def needs_and_hosted(self) -> tuple[Need | None, Mapping[int, int]]:
        """Return the lowest published time, and a bitmap by table id of exactly the partitions that it speaks for."""


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

    def __init__(self, node: NodeId, view: Callable[[], RetainedVersions], *, transactions: TransactionSource,
                 partitions: PartitionSource | None = None, sources: Sequence[NeedSource] = ()) -> None:
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
