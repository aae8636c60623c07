# SPDX-License-Identifier: Apache-2.0
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
