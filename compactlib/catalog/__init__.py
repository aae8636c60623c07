"""A versioned catalog whose history is cut once no node needs it any more, as in Apache Ignite 3.

Schema changes make versions, kept in an update log in a key-value store. A `CatalogService` offers the contract:
`view` is what is retained and what every node still needs of it, `plan` the highest version below which nobody needs
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
0 nodes are known, so nobody knows what is needed; give view() the topology and the reports, or connect() a source
>>> transactions = ActiveTransactions(lambda: service.history, service.clock)
>>> needs = LocalNeeds(NodeId("A"), lambda: service.history, transactions=transactions)
>>> plan = service.plan(view=service.view(reports=[needs.report()], topology=Topology.of("A"),
...                                       low_watermark=service.catalog(2).activation))
>>> print(plan.explain())
history is cut to version 2 (of 0 to 3): nobody needs what lies below
  low watermark at 1001500 allows up to version 2 (of the coordinator)
>>> service.compact(plan).stats.before, service.history
(0, RetainedVersions(2 to 3))
"""

from typing import TYPE_CHECKING

from compactlib._lazy import load_lazily

if TYPE_CHECKING:
    from compactlib.catalog.log.log_model import (
        AlreadyCompacted,
        Appended,
        LogState,
        LostRace,
        SnapshotSaved,
    )
    from compactlib.catalog.log.reclaim import CatalogReclaim
    from compactlib.catalog.log.records import Update
    from compactlib.catalog.log.recover import recover_history
    from compactlib.catalog.log.update_log import UpdateLog
    from compactlib.catalog.model.partitions import HostedPartitions
    from compactlib.catalog.model.timestamp import HybridClock, Timestamp
    from compactlib.catalog.model.values import (
        RESTRICTIONS,
        Assignments,
        Culprit,
        Factor,
        Floor,
        Need,
        NodeId,
        NodeReport,
        Topology,
        Unavailable,
        Watermark,
        ZoneAssignments,
    )
    from compactlib.catalog.plan.decision import CatalogView, decide
    from compactlib.catalog.plan.plan import CatalogPlan, CutReport
    from compactlib.catalog.plan.policy import Cut, CutToBound, KeepSeconds, KeepVersions
    from compactlib.catalog.plan.safety import check_target
    from compactlib.catalog.plan.verdict import Compact, Decision, Explanation, Hold, Limit
    from compactlib.catalog.round.messages import ZoneResult
    from compactlib.catalog.schema.catalog import Catalog, Change, DropObject, PutObject, SetDefaultZone
    from compactlib.catalog.schema.commands import (
        AlterZone,
        ChooseDefaultZone,
        Command,
        CreateSchema,
        CreateZone,
        DropSchema,
        DropZone,
        PlannedUpdate,
        plan_update,
    )
    from compactlib.catalog.schema.descriptors import (
        Column,
        ColumnType,
        Descriptor,
        Index,
        IndexStatus,
        Schema,
        Table,
        Zone,
    )
    from compactlib.catalog.schema.table_commands import (
        AddColumns,
        AlterColumn,
        CreateIndex,
        CreateTable,
        DropColumns,
        DropIndex,
        DropTable,
        MakeIndexAvailable,
        RemoveIndex,
        RenameTable,
        StartBuildingIndex,
    )
    from compactlib.catalog.schema.versions import CatalogVersions, RetainedVersions
    from compactlib.catalog.sense.index_builds import IndexBuilds
    from compactlib.catalog.sense.needs import LocalNeeds, NeedSource, PartitionSource, TransactionSource
    from compactlib.catalog.sense.pins import Pin, Pins
    from compactlib.catalog.sense.published import FlushTicket, PublishedTimes
    from compactlib.catalog.sense.rebalance import (
        Placement,
        PlacementSource,
        PlacementTracker,
        RebalanceNeed,
        ZoneProgress,
        rebalance_minimum,
    )
    from compactlib.catalog.sense.transactions import ActiveTransactions, Transaction
    from compactlib.catalog.sense.watermark import LowWatermark
    from compactlib.catalog.service.follower import LogFollower
    from compactlib.catalog.service.service import CatalogService, CatalogStatus, Executed
    from compactlib.catalog.service.source import ClusterSource
    from compactlib.catalog.transport.host import CatalogHost
    from compactlib.catalog.transport.local_host import LocalHost

__all__ = [
    "RESTRICTIONS",
    "ActiveTransactions",
    "AddColumns",
    "AlreadyCompacted",
    "AlterColumn",
    "AlterZone",
    "Appended",
    "Assignments",
    "Catalog",
    "CatalogHost",
    "CatalogPlan",
    "CatalogReclaim",
    "CatalogService",
    "CatalogStatus",
    "CatalogVersions",
    "CatalogView",
    "Change",
    "ChooseDefaultZone",
    "ClusterSource",
    "Column",
    "ColumnType",
    "Command",
    "Compact",
    "CreateIndex",
    "CreateSchema",
    "CreateTable",
    "CreateZone",
    "Culprit",
    "Cut",
    "CutReport",
    "CutToBound",
    "Decision",
    "Descriptor",
    "DropColumns",
    "DropIndex",
    "DropObject",
    "DropSchema",
    "DropTable",
    "DropZone",
    "Executed",
    "Explanation",
    "Factor",
    "Floor",
    "FlushTicket",
    "Hold",
    "HostedPartitions",
    "HybridClock",
    "Index",
    "IndexBuilds",
    "IndexStatus",
    "KeepSeconds",
    "KeepVersions",
    "Limit",
    "LocalHost",
    "LocalNeeds",
    "LogFollower",
    "LogState",
    "LostRace",
    "LowWatermark",
    "MakeIndexAvailable",
    "Need",
    "NeedSource",
    "NodeId",
    "NodeReport",
    "PartitionSource",
    "Pin",
    "Pins",
    "Placement",
    "PlacementSource",
    "PlacementTracker",
    "PlannedUpdate",
    "PublishedTimes",
    "PutObject",
    "RebalanceNeed",
    "RemoveIndex",
    "RenameTable",
    "RetainedVersions",
    "Schema",
    "SetDefaultZone",
    "SnapshotSaved",
    "StartBuildingIndex",
    "Table",
    "Timestamp",
    "Topology",
    "Transaction",
    "TransactionSource",
    "Unavailable",
    "Update",
    "UpdateLog",
    "Watermark",
    "Zone",
    "ZoneAssignments",
    "ZoneProgress",
    "ZoneResult",
    "check_target",
    "decide",
    "plan_update",
    "rebalance_minimum",
    "recover_history",
]

load_lazily(__name__, {
    ".schema.catalog": ("Catalog", "Change", "DropObject", "PutObject", "SetDefaultZone"),
    ".schema.commands": ("AlterZone", "ChooseDefaultZone", "Command", "CreateSchema", "CreateZone", "DropSchema",
                  "DropZone", "PlannedUpdate", "plan_update"),
    ".plan.decision": ("CatalogView", "decide"),
    ".schema.descriptors": ("Column", "ColumnType", "Descriptor", "Index", "IndexStatus", "Schema", "Table", "Zone"),
    ".service.follower": ("LogFollower",),
    ".schema.versions": ("CatalogVersions", "RetainedVersions"),
    ".transport.host": ("CatalogHost",),
    ".sense.index_builds": ("IndexBuilds",),
    ".transport.local_host": ("LocalHost",),
    ".log.log_model": ("AlreadyCompacted", "Appended", "LogState", "LostRace", "SnapshotSaved"),
    ".round.messages": ("ZoneResult",),
    ".model.values": ("RESTRICTIONS", "Assignments", "Culprit", "Factor", "Floor", "Need", "NodeId", "NodeReport",
               "Topology", "Unavailable", "Watermark", "ZoneAssignments"),
    ".sense.needs": ("LocalNeeds", "NeedSource", "PartitionSource", "TransactionSource"),
    ".model.partitions": ("HostedPartitions",),
    ".sense.pins": ("Pin", "Pins"),
    ".plan.plan": ("CatalogPlan", "CutReport"),
    ".plan.policy": ("Cut", "CutToBound", "KeepSeconds", "KeepVersions"),
    ".sense.published": ("FlushTicket", "PublishedTimes"),
    ".sense.rebalance": ("Placement", "PlacementSource", "PlacementTracker", "RebalanceNeed", "ZoneProgress",
                   "rebalance_minimum"),
    ".log.reclaim": ("CatalogReclaim",),
    ".log.records": ("Update",),
    ".log.recover": ("recover_history",),
    ".plan.safety": ("check_target",),
    ".service.service": ("CatalogService", "CatalogStatus", "Executed"),
    ".service.source": ("ClusterSource",),
    ".schema.table_commands": ("AddColumns", "AlterColumn", "CreateIndex", "CreateTable", "DropColumns", "DropIndex",
                        "DropTable", "MakeIndexAvailable", "RemoveIndex", "RenameTable", "StartBuildingIndex"),
    ".model.timestamp": ("HybridClock", "Timestamp"),
    ".sense.transactions": ("ActiveTransactions", "Transaction"),
    ".log.update_log": ("UpdateLog",),
    ".plan.verdict": ("Compact", "Decision", "Explanation", "Hold", "Limit"),
    ".sense.watermark": ("LowWatermark",),
})
