# SPDX-License-Identifier: Apache-2.0
from compactlib.raftlog.compaction.plan.plan import LogPlan as LogPlan
from compactlib.raftlog.compaction.plan.policies.cost import CostPolicy as CostPolicy
from compactlib.raftlog.compaction.plan.policies.drop import DropDead as DropDead
from compactlib.raftlog.compaction.plan.policies.ra import RaPolicy as RaPolicy
from compactlib.raftlog.compaction.plan.policies.seed import SeedPolicy as SeedPolicy
from compactlib.raftlog.compaction.plan.policy import LogChoice as LogChoice, LogPolicy as LogPolicy
from compactlib.raftlog.compaction.plan.view import LogView as LogView
from compactlib.raftlog.compaction.sense.trigger import DeadRatio as DeadRatio, EveryNMinors as EveryNMinors
from compactlib.raftlog.errors import MemtableFull as MemtableFull
from compactlib.raftlog.log.log_reader import LogReader as LogReader
from compactlib.raftlog.log.segment_log import SegmentLog as SegmentLog
from compactlib.raftlog.log.worker import LogCompactionWorker as LogCompactionWorker
from compactlib.raftlog.model.snapshot_meta import SnapshotMeta as SnapshotMeta
from compactlib.raftlog.model.values import (
    DamagedEntry as DamagedEntry,
    DeadEntry as DeadEntry,
    Entry as Entry,
    MissingEntry as MissingEntry,
    SegmentLimits as SegmentLimits,
)
from compactlib.raftlog.options import LogOptions as LogOptions
from compactlib.raftlog.snapshots.folder import SnapshotFolder as SnapshotFolder
from compactlib.raftlog.snapshots.machine import LiveTracker as LiveTracker, StateMachine as StateMachine
from compactlib.raftlog.store.raft_log import RaftLog as RaftLog
from compactlib.raftlog.store.store import (
    RaftLogStore as RaftLogStore,
    StoreOptions as StoreOptions,
    open_log as open_log,
)
