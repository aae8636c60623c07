"""A Raft log in segments, compacted by live indexes (RabbitMQ Ra).

A snapshot leaves a list of live indexes in the log; everything else below it is dead. Compaction drops segments that
are wholly dead and merges those that are mostly dead, while appends and reads go on.

>>> import tempfile
>>> from compactlib.raftlog import LogOptions, SeedPolicy, SegmentLimits, SegmentLog
>>> folder = tempfile.mkdtemp()
>>> with SegmentLog(folder, LogOptions(limits=SegmentLimits(max_entries=4))) as log:
...     log.extend((index, 1, b"command %d" % index) for index in range(1, 14))
...     log.record_snapshot(12, live=[2, 3, 11])
...     outcome = log.compact(policy=SeedPolicy())
...     [log.read(2).payload, log.read(4), log.read(99), len(log.refs)]
[b'command 2', DeadEntry(index=4, snapshot_index=12), MissingEntry(index=99), 2]

`SegmentLog` is the log in segments alone. `RaftLogStore` puts a write-ahead log for many logs and a memtable for each
before it, and its `RaftLog` is what the host of a replicated state machine uses (`docs/raftlog-log.md`).
"""

from typing import TYPE_CHECKING

from compactlib._lazy import load_lazily

if TYPE_CHECKING:
    from compactlib.raftlog.compaction.commit import commit_group
    from compactlib.raftlog.compaction.holes import HoleReport
    from compactlib.raftlog.compaction.plan.clump import ClumpPlan, plan_clump
    from compactlib.raftlog.compaction.plan.plan import LogPlan, GroupFailed, PlannedGroup, plan_for
    from compactlib.raftlog.compaction.plan.policies import CostPolicy, DropDead, RaPolicy, SeedPolicy
    from compactlib.raftlog.compaction.plan.policy import LogChoice, LogPolicy, LeftOut
    from compactlib.raftlog.compaction.plan.view import LogView, DamagedSegment
    from compactlib.raftlog.compaction.recover import LogRecoveryReport, leftovers, recover_folder
    from compactlib.raftlog.compaction.report import (
        CompactionFailed,
        LogCompactionReport,
        GroupStats,
        LogReclaimReport,
        report_of,
    )
    from compactlib.raftlog.compaction.rewrite import CompactSegments, SegmentSource
    from compactlib.raftlog.compaction.sense.trigger import (
        AllOf,
        AnyOf,
        CompactionState,
        DeadBytes,
        DeadRatio,
        Elapsed,
        EveryNMinors,
        Manual,
        Trigger,
    )
    from compactlib.raftlog.errors import GapDetected, LiveSetLost, LogStopped, MemtableFull, Overwriting, PlanOutdated
    from compactlib.raftlog.log.log_reader import LogReader
    from compactlib.raftlog.log.read_plan import ReadPlan
    from compactlib.raftlog.log.segment_log import SegmentLog
    from compactlib.raftlog.log.worker import LogCompactionWorker, SegmentChanges
    from compactlib.raftlog.memtable.flush import FlushPlan, plan_flush
    from compactlib.raftlog.memtable.table import Memtable
    from compactlib.raftlog.model.refs import MergedRefs, find_ref, merge_refs
    from compactlib.raftlog.model.row import LogRow, LogRows
    from compactlib.raftlog.model.snapshot_state import SnapshotState, read_snapshot_state, write_snapshot_state
    from compactlib.raftlog.model.status import LogStatus, RaftLogStoreStatus
    from compactlib.raftlog.model.values import (
        Answer,
        DamagedEntry,
        DeadEntry,
        Entry,
        MissingEntry,
        SegmentLimits,
        SegmentRef,
        SegmentStats,
    )
    from compactlib.raftlog.options import LogOptions
    from compactlib.raftlog.segment.reader import SegmentReader
    from compactlib.raftlog.segment.segment_set import Lease, SegmentSet
    from compactlib.raftlog.segment.writer import SegmentWriter
    from compactlib.raftlog.snapshots import LiveTracker, SnapshotFolder, SnapshotManifest, StateMachine
    from compactlib.raftlog.snapshots.model import SnapshotMeta
    from compactlib.raftlog.store.log_segments import LogSegments
    from compactlib.raftlog.store.pins import Pin
    from compactlib.raftlog.store.protocols import (
        LogWorker,
        PinnedEntries,
        ReplicatedLog,
        SnapshotStore,
        WorkerFactory,
    )
    from compactlib.raftlog.store.raft_log import RaftLog
    from compactlib.raftlog.store.store import RaftLogStore, StoreOptions, open_log
    from compactlib.raftlog.wal import Confirmed, Wal, WalOptions

__all__ = [
    "AllOf",
    "Answer",
    "AnyOf",
    "LogChoice",
    "ClumpPlan",
    "CompactSegments",
    "CompactionFailed",
    "LogPlan",
    "LogPolicy",
    "LogCompactionReport",
    "CompactionState",
    "LogView",
    "LogCompactionWorker",
    "Confirmed",
    "CostPolicy",
    "DamagedEntry",
    "DamagedSegment",
    "DeadEntry",
    "DeadBytes",
    "DeadRatio",
    "DropDead",
    "Elapsed",
    "Entry",
    "EveryNMinors",
    "FlushPlan",
    "GapDetected",
    "GroupFailed",
    "GroupStats",
    "HoleReport",
    "Lease",
    "LeftOut",
    "LiveSetLost",
    "LiveTracker",
    "LogOptions",
    "LogReader",
    "LogSegments",
    "LogRow",
    "LogRows",
    "LogStatus",
    "LogStopped",
    "LogWorker",
    "Manual",
    "Memtable",
    "MemtableFull",
    "MergedRefs",
    "MissingEntry",
    "Overwriting",
    "Pin",
    "PinnedEntries",
    "PlanOutdated",
    "PlannedGroup",
    "RaPolicy",
    "RaftLog",
    "RaftLogStore",
    "ReadPlan",
    "LogRecoveryReport",
    "LogReclaimReport",
    "ReplicatedLog",
    "SeedPolicy",
    "SegmentChanges",
    "SegmentLimits",
    "SegmentLog",
    "SegmentReader",
    "SegmentRef",
    "SegmentSet",
    "SegmentSource",
    "SegmentStats",
    "SegmentWriter",
    "SnapshotFolder",
    "SnapshotManifest",
    "SnapshotMeta",
    "SnapshotState",
    "SnapshotStore",
    "StateMachine",
    "StoreOptions",
    "RaftLogStoreStatus",
    "Trigger",
    "Wal",
    "WalOptions",
    "WorkerFactory",
    "commit_group",
    "find_ref",
    "leftovers",
    "merge_refs",
    "open_log",
    "plan_clump",
    "plan_flush",
    "plan_for",
    "read_snapshot_state",
    "recover_folder",
    "report_of",
    "write_snapshot_state",
]

load_lazily(__name__, {
    ".compaction.plan.clump": ("ClumpPlan", "plan_clump"),
    ".compaction.commit": ("commit_group",),
    ".errors": ("GapDetected", "LiveSetLost", "LogStopped", "MemtableFull", "Overwriting", "PlanOutdated"),
    ".memtable.flush": ("FlushPlan", "plan_flush"),
    ".compaction.holes": ("HoleReport",),
    ".log.segment_log": ("SegmentLog",),
    ".log.log_reader": ("LogReader",),
    ".store.log_segments": ("LogSegments",),
    ".model.row": ("LogRow", "LogRows"),
    ".memtable.table": ("Memtable",),
    ".model.values": ("Answer", "DamagedEntry", "DeadEntry", "Entry", "MissingEntry", "SegmentLimits", "SegmentRef", "SegmentStats"),
    ".options": ("LogOptions",),
    ".store.pins": ("Pin",),
    ".compaction.plan.plan": ("LogPlan", "GroupFailed", "PlannedGroup", "plan_for"),
    ".compaction.plan.policies": ("CostPolicy", "DropDead", "RaPolicy", "SeedPolicy"),
    ".compaction.plan.policy": ("LogChoice", "LogPolicy", "LeftOut"),
    ".store.protocols": ("LogWorker", "PinnedEntries", "ReplicatedLog", "SnapshotStore", "WorkerFactory"),
    ".store.raft_log": ("RaftLog",),
    ".log.read_plan": ("ReadPlan",),
    ".compaction.recover": ("LogRecoveryReport", "leftovers", "recover_folder"),
    ".model.refs": ("MergedRefs", "find_ref", "merge_refs"),
    ".compaction.report": ("CompactionFailed", "LogCompactionReport", "GroupStats", "LogReclaimReport", "report_of"),
    ".compaction.rewrite": ("CompactSegments", "SegmentSource"),
    ".segment.reader": ("SegmentReader",),
    ".segment.segment_set": ("Lease", "SegmentSet"),
    ".model.snapshot_state": ("SnapshotState", "read_snapshot_state", "write_snapshot_state"),
    ".snapshots": ("LiveTracker", "SnapshotFolder", "SnapshotManifest", "StateMachine"),
    ".snapshots.model": ("SnapshotMeta",),
    ".model.status": ("LogStatus", "RaftLogStoreStatus"),
    ".store.store": ("RaftLogStore", "StoreOptions", "open_log"),
    ".compaction.sense.trigger": ("AllOf", "AnyOf", "CompactionState", "DeadBytes", "DeadRatio", "Elapsed",
                                  "EveryNMinors", "Manual",
                 "Trigger"),
    ".compaction.plan.view": ("LogView", "DamagedSegment"),
    ".wal": ("Confirmed", "Wal", "WalOptions"),
    ".log.worker": ("LogCompactionWorker", "SegmentChanges"),
    ".segment.writer": ("SegmentWriter",),
})
