# SPDX-License-Identifier: Apache-2.0
"""Hypothesis strategies for the catalog: histories of versions, and what nodes report that they still need."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import strategies as st

from compactlib.catalog.model.partitions import HostedPartitions
from compactlib.catalog.model.timestamp import HIGHEST, LOWEST, Timestamp
from compactlib.catalog.model.values import RESTRICTIONS, Culprit, Factor, Floor, NodeId, NodeReport, Unavailable

REPORTED: tuple[Factor, ...] = (*RESTRICTIONS, Factor.LOW_WATERMARK, Factor.PIN)
"""What a node's sources report; the other factors are found by the coordinator."""
_NAMES = st.text(st.characters(exclude_categories=["C", "Z"]), min_size=1, max_size=20)
_TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=50)
_IDS = st.none() | st.integers(0, 1 << 40)


def node_ids() -> st.SearchStrategy[NodeId]:
    """Any name and incarnation."""
    return st.builds(NodeId, _NAMES, st.integers(1, (1 << 64) - 1))


def floors(times: st.SearchStrategy[Timestamp] | None = None, factors: Sequence[Factor] = REPORTED,
           ) -> st.SearchStrategy[Floor]:
    """What a source needs, and who it is.

    Args:
        times: the times to choose from; any if not given.
        factors: the reasons to choose from.
    """
    culprits = st.builds(Culprit, node=_TEXTS, table=_IDS, index=_IDS, zone=_IDS, owner=_TEXTS,
                         partitions=st.lists(st.integers(0, 70_000), max_size=4).map(tuple))
    return st.builds(Floor, st.sampled_from(list(factors)), st.integers(LOWEST, HIGHEST) if times is None else times,
                     st.just(Culprit()) | culprits)


def hosted_partitions(tables: Sequence[int] | None = None, *, partitions: int = 99,
                      ) -> st.SearchStrategy[HostedPartitions]:
    """Which partitions of which tables a node hosts.

    Args:
        tables: ids to choose from; any few if not given.
        partitions: how many partitions a table has.
    """
    ids = st.integers(0, 1 << 40) if tables is None else st.sampled_from(list(tables))
    return st.dictionaries(ids, st.sets(st.integers(0, partitions - 1), max_size=9), max_size=5) \
        .map(HostedPartitions.of)


def node_reports(nodes: st.SearchStrategy[NodeId] | None = None, *,
                 times: st.SearchStrategy[Timestamp] | None = None, tables: Sequence[int] | None = None,
                 partitions: int = 99, factors: Sequence[Factor] = REPORTED, available: bool = False,
                 ) -> st.SearchStrategy[NodeReport]:
    """What nodes answer in a round: needs, at most one for each factor, sources that do not know, and partitions.

    Shrinks to a node that needs nothing and hosts nothing.

    Args:
        nodes: who answers; any node if not given.
        times: the times that they need; any if not given.
        tables: ids of the tables that they may host; any if not given.
        partitions: how many partitions a table has.
        factors: the reasons that they may have.
        available: whether all sources know what they need.
    """
    drawn_times = st.integers(LOWEST, HIGHEST) if times is None else times
    unknown = st.builds(Unavailable, st.sampled_from(list(factors)), _TEXTS)
    return st.builds(
        NodeReport, node=node_ids() if nodes is None else nodes, transactions_from=drawn_times,
        floors=st.lists(floors(drawn_times, factors), max_size=3, unique_by=lambda floor: floor.factor).map(tuple),
        unavailable=st.just(()) if available else st.lists(unknown, max_size=2).map(tuple),
        hosted=hosted_partitions(tables, partitions=partitions))
