"""A local blob store in a segmented log, with time to live, delete and undelete, compacted by policy (LinkedIn Ambry;
`seeds/blobstore.md`).

A policy chooses segments, a compaction copies their valid records into new ones and switches, while reads and writes go
on; the segments it took are freed.

>>> import tempfile
>>> from compactlib.blobstore import BlobStore, BlobStoreConfig, StatsBased
>>> from compactlib.clock import ManualClock
>>> clock = ManualClock(1_000_000)
>>> config = BlobStoreConfig(capacity_bytes=1 << 16, segment_bytes=1 << 12, journal_max_entries=0, max_blob_bytes=0)
>>> folder = tempfile.mkdtemp() + "/store"
>>> with BlobStore(folder, config, policy=StatsBased(min_used_fraction=0.0), clock=clock) as store:
...     for number in range(8):
...         _ = store.put(f"blob {number}", b"x" * 1000, ttl_seconds=3600 if number % 2 else None)
...     clock.advance(3601)
...     plan = store.plan()
...     outcome = store.compact(plan)
...     [store.get("blob 1"), store.get("blob 2").info.size_bytes, outcome.stats.freed_segments]
[Missing(id=b'blob 1'), 1000, 1]
"""

from typing import TYPE_CHECKING

from compactlib._lazy import load_lazily

if TYPE_CHECKING:
    from compactlib.blobstore.compaction.commit.recover import CompactionRecovery
    from compactlib.blobstore.compaction.plan.best_range import SegmentRange, best_range
    from compactlib.blobstore.compaction.plan.last_plans import LastPlans
    from compactlib.blobstore.compaction.plan.plan import (
        BlobPlan,
        LeftSegment,
        PlannedSegment,
        check_plan,
        forecast,
        plan_for,
        plan_for_choice,
    )
    from compactlib.blobstore.compaction.plan.policies import (
        CompactAll,
        CopyBudget,
        CostBenefit,
        DChoices,
        ExpiryForecast,
        Greedy,
        Hybrid,
        StatsBased,
    )
    from compactlib.blobstore.compaction.plan.policy import BlobChoice, Dying, BlobPolicy, SegmentView, BlobView, ValidRecords
    from compactlib.blobstore.compaction.progress.compaction_log import CompactionLog, Phase
    from compactlib.blobstore.compaction.progress.finished import FinishedCompactions
    from compactlib.blobstore.compaction.rewrite.task import CopyRecords
    from compactlib.blobstore.compaction.run.compact_many import compact_many
    from compactlib.blobstore.compaction.run.report import (
        BlobCompactionOutcome,
        BlobCompactionReport,
        HardDeleteReport,
        BlobReclaimReport,
    )
    from compactlib.blobstore.compaction.run.work import Questions
    from compactlib.blobstore.compaction.sense.buckets import BucketStatistics
    from compactlib.blobstore.compaction.sense.kept_statistics import BucketSettings, KeptStatistics
    from compactlib.blobstore.compaction.sense.statistics import LogStatistics, container_statistics, log_statistics
    from compactlib.blobstore.compaction.swap import SegmentInfo, Snapshot
    from compactlib.blobstore.config import BlobStoreConfig, Durability
    from compactlib.blobstore.errors import (
        AlreadyUndeleted,
        BlobConflict,
        BlobDeleted,
        BlobExists,
        BlobExpired,
        BlobMissing,
        BlobTooLarge,
        CompactionOutOfOrder,
        DeletedForGood,
        HistoryLost,
        NotAStore,
        NotDeleted,
        PlanDoesNotFit,
        StoreFull,
        TtlAlreadyUpdated,
        TtlUpdateTooLate,
        WritesStopped,
    )
    from compactlib.blobstore.log.contents import LogSnapshot
    from compactlib.blobstore.log.load_log import BlobRecoveryReport
    from compactlib.blobstore.model.names import LogPosition, SegmentName
    from compactlib.blobstore.model.pace import Pace
    from compactlib.blobstore.model.values import (
        Answer,
        Blob,
        BlobId,
        BlobInfo,
        Deleted,
        Expired,
        GetOptions,
        IndexEntry,
        Missing,
        RecordFlag,
        RecordKind,
    )
    from compactlib.blobstore.store.blob_reader import BlobReader, ReaderStatus
    from compactlib.blobstore.store.peers import ContainerStates, PeerTokens
    from compactlib.blobstore.store.replication import FoundEntries, ReplicaEntry, ReplicationToken
    from compactlib.blobstore.store.status import BlobStoreStatus
    from compactlib.blobstore.store.store import BlobStore
    from compactlib.blobstore.store.verify import StorePicture, compare
    from compactlib.blobstore.validity.lifetimes import PurgeRules
    from compactlib.blobstore.validity.verdicts import Rules, Verdict, judge
    from compactlib.report import Finding, PolicyRecord, VerifyReport

__all__ = [
    "AlreadyUndeleted",
    "Answer",
    "Blob",
    "BlobCompactionOutcome",
    "BlobCompactionReport",
    "BlobConflict",
    "BlobDeleted",
    "BlobExists",
    "BlobExpired",
    "BlobId",
    "BlobInfo",
    "BlobMissing",
    "BlobReader",
    "BlobStore",
    "BlobStoreConfig",
    "BlobTooLarge",
    "BucketSettings",
    "BucketStatistics",
    "BlobChoice",
    "CompactAll",
    "CompactionLog",
    "CompactionOutOfOrder",
    "BlobPlan",
    "CompactionRecovery",
    "ContainerStates",
    "CopyBudget",
    "CopyRecords",
    "CostBenefit",
    "DChoices",
    "Deleted",
    "DeletedForGood",
    "Durability",
    "Dying",
    "Expired",
    "ExpiryForecast",
    "Finding",
    "FinishedCompactions",
    "FoundEntries",
    "GetOptions",
    "Greedy",
    "HardDeleteReport",
    "HistoryLost",
    "Hybrid",
    "IndexEntry",
    "KeptStatistics",
    "LastPlans",
    "LeftSegment",
    "LogPosition",
    "LogSnapshot",
    "LogStatistics",
    "Missing",
    "NotAStore",
    "NotDeleted",
    "Pace",
    "PeerTokens",
    "Phase",
    "PlanDoesNotFit",
    "PlannedSegment",
    "BlobPolicy",
    "PolicyRecord",
    "PurgeRules",
    "Questions",
    "ReaderStatus",
    "BlobReclaimReport",
    "RecordFlag",
    "RecordKind",
    "BlobRecoveryReport",
    "ReplicaEntry",
    "ReplicationToken",
    "Rules",
    "SegmentInfo",
    "SegmentName",
    "SegmentRange",
    "SegmentView",
    "Snapshot",
    "StatsBased",
    "StoreFull",
    "StorePicture",
    "BlobStoreStatus",
    "BlobView",
    "TtlAlreadyUpdated",
    "TtlUpdateTooLate",
    "ValidRecords",
    "Verdict",
    "VerifyReport",
    "WritesStopped",
    "best_range",
    "check_plan",
    "compact_many",
    "compare",
    "container_statistics",
    "forecast",
    "judge",
    "log_statistics",
    "plan_for",
    "plan_for_choice",
]

load_lazily(__name__, {
    ".compaction.plan.best_range": ("SegmentRange", "best_range"),
    ".store.blob_reader": ("BlobReader", "ReaderStatus"),
    ".compaction.sense.buckets": ("BucketStatistics",),
    ".compaction.run.compact_many": ("compact_many",),
    ".compaction.progress.compaction_log": ("CompactionLog", "Phase"),
    ".compaction.run.report": ("BlobCompactionOutcome", "BlobCompactionReport", "HardDeleteReport", "BlobReclaimReport"),
    ".compaction.run.work": ("Questions",),
    ".config": ("BlobStoreConfig", "Durability"),
    ".errors": ("AlreadyUndeleted", "BlobConflict", "BlobDeleted", "BlobExists", "BlobExpired", "BlobMissing",
                "BlobTooLarge", "CompactionOutOfOrder", "DeletedForGood", "HistoryLost",
                "NotAStore", "NotDeleted", "PlanDoesNotFit", "StoreFull", "TtlAlreadyUpdated", "TtlUpdateTooLate",
                "WritesStopped"),
    ".compaction.progress.finished": ("FinishedCompactions",),
    ".compaction.sense.kept_statistics": ("BucketSettings", "KeptStatistics"),
    ".validity.lifetimes": ("PurgeRules",),
    ".log.load_log": ("BlobRecoveryReport",),
    ".log.contents": ("LogSnapshot",),
    ".model.values": ("Answer", "Blob", "BlobId", "BlobInfo", "Deleted", "Expired", "GetOptions", "IndexEntry",
                      "Missing",
               "RecordFlag", "RecordKind"),
    ".model.names": ("LogPosition", "SegmentName"),
    ".model.pace": ("Pace",),
    ".store.peers": ("ContainerStates", "PeerTokens"),
    ".compaction.plan.plan": ("BlobPlan", "LeftSegment", "PlannedSegment", "check_plan", "forecast", "plan_for",
              "plan_for_choice"),
    ".compaction.plan.last_plans": ("LastPlans",),
    ".compaction.plan.policies": ("CompactAll", "CopyBudget", "CostBenefit", "DChoices", "ExpiryForecast", "Greedy",
                                  "Hybrid",
                  "StatsBased"),
    ".compaction.plan.policy": ("BlobChoice", "Dying", "BlobPolicy", "SegmentView", "BlobView", "ValidRecords"),
    ".compaction.commit.recover": ("CompactionRecovery",),
    ".store.replication": ("FoundEntries", "ReplicaEntry", "ReplicationToken"),
    ".compaction.rewrite.task": ("CopyRecords",),
    ".compaction.sense.statistics": ("LogStatistics", "container_statistics", "log_statistics"),
    ".store.status": ("BlobStoreStatus",),
    ".store.store": ("BlobStore",),
    ".compaction.swap": ("SegmentInfo", "Snapshot"),
    ".validity.verdicts": ("Rules", "Verdict", "judge"),
    ".store.verify": ("StorePicture", "compare"),
    "compactlib.report": ("Finding", "PolicyRecord", "VerifyReport"),
})
