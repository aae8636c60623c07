# SPDX-License-Identifier: Apache-2.0
"""What a node still needs of the catalog's history: sources that a host fills, put together into one report.

A source is asked for the lowest time it needs. Everything a report says is taken in one call, so the partitions it
lists are those that its floors speak for.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from compactlib.catalog.model.partitions import HostedPartitions
from compactlib.catalog.model.timestamp import Timestamp
from compactlib.catalog.model.values import Factor, Floor, Need, NodeId, NodeReport, Unavailable
from compactlib.catalog.schema.versions import RetainedVersions
from compactlib.catalog.sense.watermark import LowWatermark
from compactlib.errors import CompactlibError


class NeedSource(Protocol):
    """Anything that can need an old version."""

    def need(self, view: RetainedVersions) -> Need | None:
        """The lowest time needed, or that this is not known yet; `None` if nothing is needed.

        Called once a round, from the thread that answers it; must be quick and must not block.
        """


class TransactionSource(NeedSource, Protocol):
    """The source of restriction 1."""

    def minimum(self) -> Timestamp:
        """Activation of the oldest version an active transaction uses; without any, a time that no later one begins
        before.
        """


class PartitionSource(Protocol):
    """The source of restriction 2, which also knows what is hosted."""

    def needs_and_hosted(self) -> tuple[Need | None, HostedPartitions]:
        """The lowest published time, and exactly the partitions that it speaks for, both from one moment."""


class LocalNeeds:
    """Puts a node's sources together. Holds nothing of its own; any thread may call it.

    Args:
        node: the node that reports.
        view: gives the node's retained history.
        transactions: active read-write transactions.
        partitions: published times; `None` for a node that hosts none.
        sources: everything else: low watermark, rebalance, index builds, pins, the host's own. A `LowWatermark` among
            them is asked first, the others in this order: what may begin at the low watermark is asked after it.
    """

    def __init__(self, node: NodeId, view: Callable[[], RetainedVersions], *, transactions: TransactionSource,
                 partitions: PartitionSource | None = None, sources: Sequence[NeedSource] = ()) -> None:
        self.node = node
        self._view = view
        self._transactions = transactions
        self._partitions = partitions
        self._sources = tuple(sorted(sources, key=lambda source: not isinstance(source, LowWatermark)))

    def report(self) -> NodeReport:
        """The node's answer to a round. A source that fails counts as not available and is named.

        It speaks for the versions that the view had when it began; `LocalHost.report` asks again if others came.
        """
        view = self._view()
        published, hosted = (None, HostedPartitions()) if self._partitions is None \
            else self._partitions.needs_and_hosted()
        # Transactions last: one that begins later begins above this time.
        needs = [published, *(_asked(source, view) for source in self._sources), _asked(self._transactions, view)]
        lowest: dict[Factor, Floor] = {}
        for need in needs:
            if isinstance(need, Floor) and (need.factor not in lowest or need.time < lowest[need.factor].time):
                lowest[need.factor] = need
        return NodeReport(node=self.node, floors=tuple(lowest.values()), hosted=hosted,
                          unavailable=tuple(need for need in needs if isinstance(need, Unavailable)),
                          transactions_from=self._transactions.minimum())


def _asked(source: NeedSource, view: RetainedVersions) -> Need | None:
    try:
        return source.need(view)
    except CompactlibError as error:
        return Unavailable(Factor.UNAVAILABLE, f"{type(source).__name__} failed: {error}")
