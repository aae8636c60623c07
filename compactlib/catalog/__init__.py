# SPDX-License-Identifier: Apache-2.0
"""A versioned schema catalog with a durable update log, whose history is cut when no node needs it (Apache Ignite 3).

Each batch of schema changes makes a version, stored in an update log in a key-value store. A `CatalogService` has the
contract's methods: `view` returns the retained versions and the needs of all nodes, `plan` finds the highest version
below which no node needs anything, `compact` replaces the history below that version with a snapshot, `reclaim` deletes
the leftovers of a cut. In a cluster, `run_round` collects a report of needs from every node; `CatalogNode` is the part
that runs on each node.

>>> from compactlib.catalog import (ActiveTransactions, CatalogService, HybridClock, NodeId, PutObject, Schema,
...                                 Topology, UpdateLog, Zone, local_report)
>>> from compactlib.clock import ManualClock
>>> from compactlib.kv import MemoryStore
>>> service = CatalogService(UpdateLog(MemoryStore()), HybridClock(ManualClock(1000.0)))
>>> service.execute([PutObject(Schema("PUBLIC")), PutObject(Zone("Z", partitions=4))]).version
1
>>> [service.execute([PutObject(Schema(f"S{number}"))]).version for number in (2, 3)]
[2, 3]
>>> service.compact().is_empty, service.plan().explanation.limits[0].culprits[0].owner
(True, '0 nodes are known; give view() the topology and the reports')
>>> transactions = ActiveTransactions(service)
>>> report = local_report(NodeId("A"), service.history, transactions=transactions)
>>> plan = service.plan(view=service.view(reports=[report], topology=Topology.of("A"),
...                                       low_watermark=service.catalog(2).activation))
>>> print(plan.explain())
history is cut to version 2 (of 0 to 3): no node needs an older version
  cut at most to version 2: low watermark at 1001500 (of the coordinator)
>>> service.compact(plan).before, service.history
(0, RetainedVersions(2 to 3))
"""

from typing import TYPE_CHECKING

from compactlib._lazy import offer

if TYPE_CHECKING:
    from compactlib.catalog.commands import (
        DropObject as DropObject,
        PutObject as PutObject,
        RenameObject as RenameObject,
        SetIndexStatus as SetIndexStatus,
    )
    from compactlib.catalog.lease import LeaseElection as LeaseElection
    from compactlib.catalog.members import Members as Members
    from compactlib.catalog.needs import ActiveTransactions as ActiveTransactions, local_report as local_report
    from compactlib.catalog.node import CatalogNode as CatalogNode, Database as Database
    from compactlib.catalog.plan import (
        CatalogPlan as CatalogPlan,
        Cut as Cut,
        CutReport as CutReport,
        CutToBound as CutToBound,
        KeepSeconds as KeepSeconds,
        KeepVersions as KeepVersions,
    )
    from compactlib.catalog.published import PublishedTimes as PublishedTimes
    from compactlib.catalog.rebalance import (
        Placement as Placement,
        RebalanceNeed as RebalanceNeed,
        ZoneProgress as ZoneProgress,
    )
    from compactlib.catalog.round import Peers as Peers, RoundReport as RoundReport, run_round as run_round
    from compactlib.catalog.schema import (
        Catalog as Catalog,
        CatalogTable as CatalogTable,
        Index as Index,
        IndexStatus as IndexStatus,
        Schema as Schema,
        Zone as Zone,
    )
    from compactlib.catalog.service import CatalogService as CatalogService
    from compactlib.catalog.timestamp import HybridClock as HybridClock, Timestamp as Timestamp
    from compactlib.catalog.update_log import UpdateLog as UpdateLog
    from compactlib.catalog.values import (
        REPORTS as REPORTS,
        Assignments as Assignments,
        Factor as Factor,
        Floor as Floor,
        NodeId as NodeId,
        NodeReport as NodeReport,
        Topology as Topology,
        ZoneAssignments as ZoneAssignments,
    )
    from compactlib.catalog.watermark import LowWatermark as LowWatermark
else:
    offer(__name__, {
        "compactlib.catalog.commands": "DropObject PutObject RenameObject SetIndexStatus",
        "compactlib.catalog.lease": "LeaseElection",
        "compactlib.catalog.members": "Members",
        "compactlib.catalog.published": "PublishedTimes",
        "compactlib.catalog.rebalance": "Placement RebalanceNeed ZoneProgress",
        "compactlib.catalog.needs": "ActiveTransactions local_report",
        "compactlib.catalog.watermark": "LowWatermark",
        "compactlib.catalog.node": "CatalogNode Database",
        "compactlib.catalog.plan": "CatalogPlan Cut CutReport CutToBound KeepSeconds KeepVersions",
        "compactlib.catalog.round": "Peers RoundReport run_round",
        "compactlib.catalog.schema": "Catalog CatalogTable Index IndexStatus Schema Zone",
        "compactlib.catalog.service": "CatalogService",
        "compactlib.catalog.timestamp": "HybridClock Timestamp",
        "compactlib.catalog.update_log": "UpdateLog",
        "compactlib.catalog.values":
            "Assignments Factor Floor NodeId NodeReport REPORTS "
            "Topology ZoneAssignments",
    })
