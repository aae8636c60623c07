# SPDX-License-Identifier: Apache-2.0
from compactlib.raftlog.compaction.plan.plan import LogPlan as LogPlan
from compactlib.raftlog.compaction.plan.policies.cost import CostPolicy as CostPolicy
from compactlib.raftlog.compaction.plan.policies.drop import DropDead as DropDead
from compactlib.raftlog.compaction.plan.policies.ra import RaPolicy as RaPolicy
from compactlib.raftlog.compaction.plan.policies.seed import SeedPolicy as SeedPolicy
from compactlib.raftlog.compaction.plan.policy import LogChoice as LogChoice, LogPolicy as LogPolicy
from compactlib.raftlog.compaction.plan.view import LogView as LogView
from compactlib.raftlog.compaction.report import LogCompactionReport as LogCompactionReport, report_of as report_of
from compactlib.raftlog.compaction.sense.trigger import DeadRatio as DeadRatio, EveryNMinors as EveryNMinors
from compactlib.raftlog.errors import MemtableFull as MemtableFull
from compactlib.raftlog.log.folder import is_log as is_log
from compactlib.raftlog.log.log_reader import LogReader as LogReader, verify_log as verify_log
from compactlib.raftlog.log.other_names import OtherName as OtherName
from compactlib.raftlog.log.segment_log import SegmentLog as SegmentLog
from compactlib.raftlog.log.snapshot_writer import (
    Applied as Applied,
    MachineCopy as MachineCopy,
    SnapshotWriter as SnapshotWriter,
    SnapshotWritten as SnapshotWritten,
)
from compactlib.raftlog.log.stored_segment import StoredEntry as StoredEntry, StoredSegment as StoredSegment
from compactlib.raftlog.log.unflushed import logs_of_store as logs_of_store
from compactlib.raftlog.log.worker import LogCompactionWorker as LogCompactionWorker, SegmentChanges as SegmentChanges
from compactlib.raftlog.model.snapshot_meta import SnapshotMeta as SnapshotMeta
from compactlib.raftlog.model.values import (
    AppendAnswer as AppendAnswer,
    AppendEntries as AppendEntries,
    DamagedEntry as DamagedEntry,
    DeadEntry as DeadEntry,
    Entry as Entry,
    MissingEntry as MissingEntry,
    SegmentLimits as SegmentLimits,
)
from compactlib.raftlog.options import LogOptions as LogOptions
from compactlib.raftlog.snapshots.folder import SnapshotFolder as SnapshotFolder
from compactlib.raftlog.snapshots.machine import LiveTracker as LiveTracker, StateMachine as StateMachine
from compactlib.raftlog.snapshots.model import SnapshotManifest as SnapshotManifest
from compactlib.raftlog.snapshots.state_reader import StateReader as StateReader
from compactlib.raftlog.store.raft_log import RaftLog as RaftLog
from compactlib.raftlog.store.store import (
    RaftLogStore as RaftLogStore,
    StoreOptions as StoreOptions,
    open_log as open_log,
)
