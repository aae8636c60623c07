"""A Raft log in segments, compacted by live indexes (RabbitMQ Ra; `seeds/raftlog.md`).

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
[b'command 2', Dead(index=4, snapshot_index=12), Missing(index=99), 2]

`SegmentLog` is the log in segments alone. `RaftLogStore` puts a write-ahead log for many logs and a memtable for each
before it, and its `RaftLog` is what the host of a replicated state machine uses (`docs/raftlog-log.md`).
"""

from typing import TYPE_CHECKING

from compactlib._lazy import load_lazily

if TYPE_CHECKING:
    from compactlib.raftlog.clump import ClumpPlan, plan_clump
    from compactlib.raftlog.commit import commit_group
    from compactlib.raftlog.errors import GapDetected, LogStopped, MemtableFull, Overwriting, PlanOutdated
    from compactlib.raftlog.flush import FlushPlan, plan_flush
    from compactlib.raftlog.holes import HoleReport
    from compactlib.raftlog.log import SegmentLog
    from compactlib.raftlog.log_reader import LogReader
    from compactlib.raftlog.log_segments import LogSegments
    from compactlib.raftlog.log_state import LogState, LogStates
    from compactlib.raftlog.memtable import Memtable
    from compactlib.raftlog.model import (
        Answer,
        Damaged,
        Dead,
        Entry,
        Missing,
        SegmentLimits,
        SegmentRef,
        SegmentStats,
    )
    from compactlib.raftlog.options import LogOptions
    from compactlib.raftlog.pins import Pin
    from compactlib.raftlog.plan import CompactionPlan, GroupFailed, PlannedGroup, plan_for
    from compactlib.raftlog.policies import CostPolicy, DropDead, RaPolicy, SeedPolicy
    from compactlib.raftlog.policy import Choice, CompactionPolicy, LeftOut
    from compactlib.raftlog.protocols import (
        LogWorker,
        PinnedEntries,
        ReplicatedLog,
        SnapshotMeta,
        SnapshotStore,
        WorkerFactory,
    )
    from compactlib.raftlog.raft_log import RaftLog
    from compactlib.raftlog.read_plan import ReadPlan
    from compactlib.raftlog.recover import RecoveryReport, leftovers, recover_folder
    from compactlib.raftlog.refs import MergedRefs, find_ref, merge_refs
    from compactlib.raftlog.result import CompactionFailed, CompactionReport, GroupStats, ReclaimReport, report_of
    from compactlib.raftlog.rewrite import CompactSegments, SegmentSource
    from compactlib.raftlog.segment import SegmentReader
    from compactlib.raftlog.segment_changes import SegmentChanges
    from compactlib.raftlog.segment_set import Lease, SegmentSet
    from compactlib.raftlog.snapshot_state import SnapshotState, read_snapshot_state, write_snapshot_state
    from compactlib.raftlog.snapshots import LiveSetLost, LiveTracker, SnapshotFolder, SnapshotManifest, StateMachine
    from compactlib.raftlog.status import LogStatus, StoreStatus
    from compactlib.raftlog.store import RaftLogStore, StoreOptions, open_log
    from compactlib.raftlog.trigger import (
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
    from compactlib.raftlog.view import CompactionView, DamagedSegment
    from compactlib.raftlog.wal import Confirmed, Wal, WalOptions
    from compactlib.raftlog.worker import CompactionWorker
    from compactlib.raftlog.writer import SegmentWriter

__all__ = [
    "AllOf",
    "Answer",
    "AnyOf",
    "Choice",
    "ClumpPlan",
    "CompactSegments",
    "CompactionFailed",
    "CompactionPlan",
    "CompactionPolicy",
    "CompactionReport",
    "CompactionState",
    "CompactionView",
    "CompactionWorker",
    "Confirmed",
    "CostPolicy",
    "Damaged",
    "DamagedSegment",
    "Dead",
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
    "LogState",
    "LogStates",
    "LogStatus",
    "LogStopped",
    "LogWorker",
    "Manual",
    "Memtable",
    "MemtableFull",
    "MergedRefs",
    "Missing",
    "Overwriting",
    "Pin",
    "PinnedEntries",
    "PlanOutdated",
    "PlannedGroup",
    "RaPolicy",
    "RaftLog",
    "RaftLogStore",
    "ReadPlan",
    "RecoveryReport",
    "ReclaimReport",
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
    "StoreStatus",
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
    ".clump": ("ClumpPlan", "plan_clump"),
    ".commit": ("commit_group",),
    ".errors": ("GapDetected", "LogStopped", "MemtableFull", "Overwriting", "PlanOutdated"),
    ".flush": ("FlushPlan", "plan_flush"),
    ".holes": ("HoleReport",),
    ".log": ("SegmentLog",),
    ".log_reader": ("LogReader",),
    ".log_segments": ("LogSegments",),
    ".log_state": ("LogState", "LogStates"),
    ".memtable": ("Memtable",),
    ".model": ("Answer", "Damaged", "Dead", "Entry", "Missing", "SegmentLimits", "SegmentRef", "SegmentStats"),
    ".options": ("LogOptions",),
    ".pins": ("Pin",),
    ".plan": ("CompactionPlan", "GroupFailed", "PlannedGroup", "plan_for"),
    ".policies": ("CostPolicy", "DropDead", "RaPolicy", "SeedPolicy"),
    ".policy": ("Choice", "CompactionPolicy", "LeftOut"),
    ".protocols": ("LogWorker", "PinnedEntries", "ReplicatedLog", "SnapshotMeta", "SnapshotStore", "WorkerFactory"),
    ".raft_log": ("RaftLog",),
    ".read_plan": ("ReadPlan",),
    ".recover": ("RecoveryReport", "leftovers", "recover_folder"),
    ".refs": ("MergedRefs", "find_ref", "merge_refs"),
    ".result": ("CompactionFailed", "CompactionReport", "GroupStats", "ReclaimReport", "report_of"),
    ".rewrite": ("CompactSegments", "SegmentSource"),
    ".segment": ("SegmentReader",),
    ".segment_changes": ("SegmentChanges",),
    ".segment_set": ("Lease", "SegmentSet"),
    ".snapshot_state": ("SnapshotState", "read_snapshot_state", "write_snapshot_state"),
    ".snapshots": ("LiveSetLost", "LiveTracker", "SnapshotFolder", "SnapshotManifest", "StateMachine"),
    ".status": ("LogStatus", "StoreStatus"),
    ".store": ("RaftLogStore", "StoreOptions", "open_log"),
    ".trigger": ("AllOf", "AnyOf", "CompactionState", "DeadBytes", "DeadRatio", "Elapsed", "EveryNMinors", "Manual",
                 "Trigger"),
    ".view": ("CompactionView", "DamagedSegment"),
    ".wal": ("Confirmed", "Wal", "WalOptions"),
    ".worker": ("CompactionWorker",),
    ".writer": ("SegmentWriter",),
})
