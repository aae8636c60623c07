# SPDX-License-Identifier: Apache-2.0
"""A versioned schema catalog with a durable update log, whose history is cut once no node needs it (Apache Ignite 3).

Schema changes make versions, kept in an update log in a key-value store. A `CatalogService` offers the contract:
`view` is what is retained and what every node still needs of it, `plan` the highest version below which no node needs
anything, `compact` puts a snapshot in the place of what lies below, `reclaim` deletes what a cut has left behind.

>>> from compactlib.catalog import (ActiveTransactions, CatalogService, CreateSchema, CreateZone, HybridClock,
...                                 LocalNeeds, NodeId, Topology, UpdateLog)
>>> from compactlib.clock import ManualClock
>>> from compactlib.kv import MemoryStore
>>> service = CatalogService(UpdateLog(MemoryStore()), HybridClock(ManualClock(1000.0)))
>>> service.execute([CreateSchema("PUBLIC"), CreateZone("Z", partitions=4)]).version
1
>>> [service.execute([CreateSchema(f"S{number}")]).version for number in (2, 3)]
[2, 3]
>>> print(service.compact().reason)
0 nodes are known, so what is needed is unknown; give view() the topology and the reports, or connect() a source
>>> transactions = ActiveTransactions(lambda: service.history, service.clock)
>>> needs = LocalNeeds(NodeId("A"), lambda: service.history, transactions=transactions)
>>> plan = service.plan(view=service.view(reports=[needs.report()], topology=Topology.of("A"),
...                                       low_watermark=service.catalog(2).activation))
>>> print(plan.explain())
history is cut to version 2 (of 0 to 3): no node needs what lies below
  low watermark at 1001500 allows up to version 2 (of the coordinator)
>>> service.compact(plan).stats.before, service.history
(0, RetainedVersions(2 to 3))
"""

from typing import TYPE_CHECKING

from compactlib._lazy import offer

if TYPE_CHECKING:
    from compactlib.catalog.log.replicated import lowest_time_in as lowest_time_in
    from compactlib.catalog.log.update_log import UpdateLog as UpdateLog
    from compactlib.catalog.model.timestamp import HybridClock as HybridClock, Timestamp as Timestamp
    from compactlib.catalog.model.values import (
        Assignments as Assignments,
        Factor as Factor,
        Floor as Floor,
        NodeId as NodeId,
        NodeReport as NodeReport,
        Topology as Topology,
        Watermark as Watermark,
        ZoneAssignments as ZoneAssignments,
    )
    from compactlib.catalog.plan.decision import CatalogView as CatalogView
    from compactlib.catalog.plan.plan import CatalogPlan as CatalogPlan, CutReport as CutReport
    from compactlib.catalog.plan.policy import (
        Cut as Cut,
        CutToBound as CutToBound,
        KeepSeconds as KeepSeconds,
        KeepVersions as KeepVersions,
    )
    from compactlib.catalog.round.messages import ZoneResult as ZoneResult
    from compactlib.catalog.round.outbox import NodeOptions as NodeOptions
    from compactlib.catalog.round.report import RoundReport as RoundReport
    from compactlib.catalog.schema.commands import (
        CreateSchema as CreateSchema,
        CreateZone as CreateZone,
        DropSchema as DropSchema,
    )
    from compactlib.catalog.schema.descriptors import Column as Column, ColumnType as ColumnType
    from compactlib.catalog.schema.table_commands import (
        CreateIndex as CreateIndex,
        CreateTable as CreateTable,
        DropTable as DropTable,
        MakeIndexAvailable as MakeIndexAvailable,
        RenameTable as RenameTable,
        StartBuildingIndex as StartBuildingIndex,
    )
    from compactlib.catalog.sense.needs import LocalNeeds as LocalNeeds
    from compactlib.catalog.sense.published import PublishedTimes as PublishedTimes
    from compactlib.catalog.sense.transactions import ActiveTransactions as ActiveTransactions
    from compactlib.catalog.sense.watermark import LowWatermark as LowWatermark
    from compactlib.catalog.service.follower import LogFollower as LogFollower
    from compactlib.catalog.service.lease_election import LeaseElection as LeaseElection
    from compactlib.catalog.service.service import CatalogService as CatalogService
    from compactlib.catalog.service.upkeep import CatalogUpkeep as CatalogUpkeep
    from compactlib.catalog.transport.host import CatalogHost as CatalogHost
    from compactlib.catalog.transport.local_host import LocalHost as LocalHost
    from compactlib.catalog.transport.node_service import CompactionService as CompactionService
    from compactlib.catalog.transport.tcp import TcpTransport as TcpTransport
    from compactlib.catalog.transport.time_publisher import TimePublisher as TimePublisher
else:
    offer(__name__, {
        "compactlib.catalog.log.replicated": "lowest_time_in",
        "compactlib.catalog.log.update_log": "UpdateLog",
        "compactlib.catalog.model.timestamp": "HybridClock Timestamp",
        "compactlib.catalog.model.values":
            "Assignments Factor Floor NodeId NodeReport Topology Watermark ZoneAssignments",
        "compactlib.catalog.plan.decision": "CatalogView",
        "compactlib.catalog.plan.plan": "CatalogPlan CutReport",
        "compactlib.catalog.plan.policy": "Cut CutToBound KeepSeconds KeepVersions",
        "compactlib.catalog.round.messages": "ZoneResult",
        "compactlib.catalog.round.outbox": "NodeOptions",
        "compactlib.catalog.round.report": "RoundReport",
        "compactlib.catalog.schema.commands": "CreateSchema CreateZone DropSchema",
        "compactlib.catalog.schema.descriptors": "Column ColumnType",
        "compactlib.catalog.schema.table_commands":
            "CreateIndex CreateTable DropTable MakeIndexAvailable RenameTable StartBuildingIndex",
        "compactlib.catalog.sense.needs": "LocalNeeds",
        "compactlib.catalog.sense.published": "PublishedTimes",
        "compactlib.catalog.sense.transactions": "ActiveTransactions",
        "compactlib.catalog.sense.watermark": "LowWatermark",
        "compactlib.catalog.service.follower": "LogFollower",
        "compactlib.catalog.service.lease_election": "LeaseElection",
        "compactlib.catalog.service.service": "CatalogService",
        "compactlib.catalog.service.upkeep": "CatalogUpkeep",
        "compactlib.catalog.transport.host": "CatalogHost",
        "compactlib.catalog.transport.local_host": "LocalHost",
        "compactlib.catalog.transport.node_service": "CompactionService",
        "compactlib.catalog.transport.tcp": "TcpTransport",
        "compactlib.catalog.transport.time_publisher": "TimePublisher",
    })
