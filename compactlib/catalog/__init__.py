"""A versioned catalog whose history is cut once no node needs it any more (Apache Ignite 3; `seeds/catalog.md`).

Schema changes make versions, kept in an update log in a key-value store. A coordinator asks every node what it still
needs, finds the highest version below which nobody needs anything, and puts a snapshot in the place of what lies below.

>>> from compactlib.catalog import (ActiveTransactions, Assignments, CatalogService, CreateSchema, CreateZone,
...                                 DecisionInput, HybridClock, LocalNeeds, NodeId, Topology, UpdateLog, decide)
>>> from compactlib.clock import ManualClock
>>> from compactlib.kv import MemoryStore
>>> service = CatalogService(UpdateLog(MemoryStore()), HybridClock(ManualClock(1000.0)))
>>> service.execute([CreateSchema("PUBLIC"), CreateZone("Z", partitions=4)]).version
1
>>> [service.execute([CreateSchema(f"S{number}")]).version for number in (2, 3)]
[2, 3]
>>> transactions = ActiveTransactions(lambda: service.view, service.clock)
>>> needs = LocalNeeds(NodeId("A"), lambda: service.view, transactions=transactions)
>>> decision = decide(DecisionInput(reports=(needs.report(),), history=service.view, topology=Topology.of("A"),
...                                 low_watermark=service.catalog(2).activation, assignments=Assignments(),
...                                 now=service.clock.now()))
>>> print(decision.explain())
compact up to version 2 (of 0 to 3)
  low watermark at 1001500 allows up to version 2 (of the coordinator)
>>> service.compact(decision.target).stats.previous, service.view
(1, HistoryView(versions 2 to 3))
"""

from typing import TYPE_CHECKING

from compactlib._lazy import load_lazily

if TYPE_CHECKING:
    from compactlib.catalog.catalog import Catalog, Change, DropObject, PutObject, SetDefaultZone
    from compactlib.catalog.commands import (
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
    from compactlib.catalog.decision import decide
    from compactlib.catalog.descriptors import (
        Column,
        ColumnType,
        Descriptor,
        Index,
        IndexStatus,
        Schema,
        Table,
        Zone,
    )
    from compactlib.catalog.follower import LogFollower
    from compactlib.catalog.history import CatalogHistory, HistoryView
    from compactlib.catalog.host import CatalogHost
    from compactlib.catalog.index_builds import IndexBuilds
    from compactlib.catalog.local_host import LocalHost
    from compactlib.catalog.log_model import (
        AlreadyCompacted,
        Appended,
        Fence,
        LogState,
        LostRace,
        SnapshotSaved,
    )
    from compactlib.catalog.log_reader import LogReader
    from compactlib.catalog.messages import ZoneResult
    from compactlib.catalog.model import (
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
    from compactlib.catalog.needs import LocalNeeds, NeedSource, PartitionSource, TransactionSource
    from compactlib.catalog.partitions import HostedPartitions
    from compactlib.catalog.pins import Pin, Pins
    from compactlib.catalog.published import FlushTicket, PublishedTimes
    from compactlib.catalog.rebalance import (
        Placement,
        PlacementSource,
        PlacementTracker,
        RebalanceNeed,
        ZoneProgress,
        rebalance_minimum,
    )
    from compactlib.catalog.reclaim import reclaim
    from compactlib.catalog.records import Update
    from compactlib.catalog.recover import recover_history
    from compactlib.catalog.safety import check_target
    from compactlib.catalog.service import CatalogService, Executed
    from compactlib.catalog.table_commands import (
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
    from compactlib.catalog.timestamp import HybridClock, Timestamp
    from compactlib.catalog.transactions import ActiveTransactions, Transaction
    from compactlib.catalog.update_log import UpdateLog
    from compactlib.catalog.verdict import Compact, Decision, DecisionInput, Explanation, Hold, Limit
    from compactlib.catalog.watermark import LowWatermark

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
    "CatalogHistory",
    "CatalogHost",
    "CatalogService",
    "Change",
    "ChooseDefaultZone",
    "Column",
    "ColumnType",
    "Command",
    "Compact",
    "CreateIndex",
    "CreateSchema",
    "CreateTable",
    "CreateZone",
    "Culprit",
    "Decision",
    "DecisionInput",
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
    "Fence",
    "Floor",
    "FlushTicket",
    "HistoryView",
    "Hold",
    "HostedPartitions",
    "HybridClock",
    "Index",
    "IndexBuilds",
    "IndexStatus",
    "Limit",
    "LocalHost",
    "LocalNeeds",
    "LogFollower",
    "LogReader",
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
    "reclaim",
    "recover_history",
]

load_lazily(__name__, {
    ".catalog": ("Catalog", "Change", "DropObject", "PutObject", "SetDefaultZone"),
    ".commands": ("AlterZone", "ChooseDefaultZone", "Command", "CreateSchema", "CreateZone", "DropSchema",
                  "DropZone", "PlannedUpdate", "plan_update"),
    ".decision": ("decide",),
    ".descriptors": ("Column", "ColumnType", "Descriptor", "Index", "IndexStatus", "Schema", "Table", "Zone"),
    ".follower": ("LogFollower",),
    ".history": ("CatalogHistory", "HistoryView"),
    ".host": ("CatalogHost",),
    ".index_builds": ("IndexBuilds",),
    ".local_host": ("LocalHost",),
    ".log_model": ("AlreadyCompacted", "Appended", "Fence", "LogState", "LostRace", "SnapshotSaved"),
    ".log_reader": ("LogReader",),
    ".messages": ("ZoneResult",),
    ".model": ("RESTRICTIONS", "Assignments", "Culprit", "Factor", "Floor", "Need", "NodeId", "NodeReport",
               "Topology", "Unavailable", "Watermark", "ZoneAssignments"),
    ".needs": ("LocalNeeds", "NeedSource", "PartitionSource", "TransactionSource"),
    ".partitions": ("HostedPartitions",),
    ".pins": ("Pin", "Pins"),
    ".published": ("FlushTicket", "PublishedTimes"),
    ".rebalance": ("Placement", "PlacementSource", "PlacementTracker", "RebalanceNeed", "ZoneProgress",
                   "rebalance_minimum"),
    ".reclaim": ("reclaim",),
    ".records": ("Update",),
    ".recover": ("recover_history",),
    ".safety": ("check_target",),
    ".service": ("CatalogService", "Executed"),
    ".table_commands": ("AddColumns", "AlterColumn", "CreateIndex", "CreateTable", "DropColumns", "DropIndex",
                        "DropTable", "MakeIndexAvailable", "RemoveIndex", "RenameTable", "StartBuildingIndex"),
    ".timestamp": ("HybridClock", "Timestamp"),
    ".transactions": ("ActiveTransactions", "Transaction"),
    ".update_log": ("UpdateLog",),
    ".verdict": ("Compact", "Decision", "DecisionInput", "Explanation", "Hold", "Limit"),
    ".watermark": ("LowWatermark",),
})
