"""Branches over a key-value store: uncommitted changes in staging tokens, committed ones in immutable ranges.

>>> from compactlib.kv import MemoryStore
>>> from compactlib.objects import MemoryObjects
>>> from compactlib.staging import CommittedRanges, Compactor, StagingArea
>>> area = StagingArea(MemoryStore(), CommittedRanges(MemoryObjects()))
>>> main = area.create_branch("main")
>>> main.put(b"a", b"1")
>>> main.put(b"b", b"2")
>>> print(main.commit("two keys").stats.added)
2
>>> main.delete(b"a")
>>> main.list().keys, main.head().list().keys
((b'b',), (b'a', b'b'))
>>> print(Compactor(area.context).compact("main").stats.sealed_after)
0
>>> [(one.kind, one.key) for one in main.differences()]
[('removed', b'a')]
>>> main.commit("one key less").stats.ranges_written
0
"""

from typing import TYPE_CHECKING

from compactlib._lazy import load_lazily

if TYPE_CHECKING:
    from compactlib.staging.area import StagingArea
    from compactlib.staging.branch import Branch
    from compactlib.staging.cleanup import CleanupStats, TokenCleaner
    from compactlib.staging.commit import CommitOutcome
    from compactlib.staging.commits import Commit
    from compactlib.staging.committed import Committed, DifferenceScan, MergeStrategy, RecordScan
    from compactlib.staging.committed_ranges import CommittedRanges
    from compactlib.staging.compaction_outcome import (
        CompactionOutcome,
        CompactionStats,
        LostRace,
        NothingToDo,
        Throttled,
    )
    from compactlib.staging.compaction_task import CompactedTokens, CompactTokens, OpenStores, RewriteStores
    from compactlib.staging.compactor import Compactor, OnNewSealed
    from compactlib.staging.conditional import Expected
    from compactlib.staging.context import StagingContext
    from compactlib.staging.errors import (
        BeingCollected,
        BranchExists,
        BranchNotFound,
        CommitNotFound,
        DamagedRange,
        DirtyBranch,
        MergeConflict,
        MetaRangeNotFound,
        NewerFormat,
        NilValue,
        PreconditionFailed,
        RangeNotFound,
        RecordNotFound,
        TooManyKeys,
        TooManySealed,
        TooManyTries,
        UnsortedKeys,
    )
    from compactlib.staging.events import StagingEvents
    from compactlib.staging.garbage import collect_garbage, live_metaranges
    from compactlib.staging.head import MoveOutcome
    from compactlib.staging.listing import MAX_LIST_LIMIT
    from compactlib.staging.metrics import StagingMetrics
    from compactlib.staging.model import (
        Applied,
        Collected,
        Difference,
        LiveMetaRanges,
        MetaRangeId,
        RangeEntry,
        RangeId,
        Record,
    )
    from compactlib.staging.names import CommitId, StagingToken
    from compactlib.staging.options import MAX_BATCH_KEYS, StagingOptions
    from compactlib.staging.pages import DiffPage, Listed, ListPage
    from compactlib.staging.plain_format import PlainFormat
    from compactlib.staging.plan import CompactionPlan, CompactionView, CostPolicy, PlanPolicy
    from compactlib.staging.policy import (
        AnyOf,
        BranchPressure,
        DeletesPolicy,
        ListingCostPolicy,
        SealedTokensPolicy,
        SensePolicy,
    )
    from compactlib.staging.read import CommittedView
    from compactlib.staging.record import MAX_SEALED_TOKENS, BranchRecord
    from compactlib.staging.reset import ResetOutcome
    from compactlib.staging.results import AlreadyCommitted, CommitStats, NoChanges, ResetStats
    from compactlib.staging.sensor import CompactionSensor, CompactionTrigger
    from compactlib.staging.split import SplitRule
    from compactlib.staging.status import AreaStatus, BranchStatus
    from compactlib.staging.worker import BranchesAtWork, CompactionWorker, WorkDone

__all__ = [
    # An area and its branches
    "MAX_BATCH_KEYS",
    "MAX_LIST_LIMIT",
    "MAX_SEALED_TOKENS",
    "AreaStatus",
    "Branch",
    "BranchRecord",
    "BranchStatus",
    "Commit",
    "CommitId",
    "CommittedView",
    "Expected",
    "StagingArea",
    "StagingContext",
    "StagingEvents",
    "StagingOptions",
    "StagingToken",
    # What calls give
    "AlreadyCommitted",
    "CommitOutcome",
    "CommitStats",
    "DiffPage",
    "Difference",
    "ListPage",
    "Listed",
    "MoveOutcome",
    "NoChanges",
    "Record",
    "ResetOutcome",
    "ResetStats",
    # The committed layer
    "Applied",
    "Collected",
    "Committed",
    "CommittedRanges",
    "DifferenceScan",
    "MergeStrategy",
    "MetaRangeId",
    "PlainFormat",
    "RangeEntry",
    "RangeId",
    "RecordScan",
    "SplitRule",
    # Compaction: when, what, how, and what is left of it
    "AnyOf",
    "BranchPressure",
    "BranchesAtWork",
    "CleanupStats",
    "CompactTokens",
    "CompactedTokens",
    "CompactionOutcome",
    "CompactionPlan",
    "CompactionSensor",
    "CompactionStats",
    "CompactionTrigger",
    "CompactionView",
    "CompactionWorker",
    "Compactor",
    "CostPolicy",
    "DeletesPolicy",
    "ListingCostPolicy",
    "LiveMetaRanges",
    "LostRace",
    "NothingToDo",
    "OnNewSealed",
    "OpenStores",
    "PlanPolicy",
    "RewriteStores",
    "SealedTokensPolicy",
    "SensePolicy",
    "StagingMetrics",
    "Throttled",
    "TokenCleaner",
    "WorkDone",
    "collect_garbage",
    "live_metaranges",
    # Errors
    "BeingCollected",
    "BranchExists",
    "BranchNotFound",
    "CommitNotFound",
    "DamagedRange",
    "DirtyBranch",
    "MergeConflict",
    "MetaRangeNotFound",
    "NewerFormat",
    "NilValue",
    "PreconditionFailed",
    "RangeNotFound",
    "RecordNotFound",
    "TooManyKeys",
    "TooManySealed",
    "TooManyTries",
    "UnsortedKeys",
]

load_lazily(__name__, {
    ".area": ("StagingArea",),
    ".branch": ("Branch",),
    ".cleanup": ("CleanupStats", "TokenCleaner"),
    ".commit": ("CommitOutcome",),
    ".commits": ("Commit",),
    ".committed": ("Committed", "DifferenceScan", "MergeStrategy", "RecordScan"),
    ".committed_ranges": ("CommittedRanges",),
    ".compaction_outcome": ("CompactionOutcome", "CompactionStats", "LostRace", "NothingToDo", "Throttled"),
    ".compaction_task": ("CompactedTokens", "CompactTokens", "OpenStores", "RewriteStores"),
    ".compactor": ("Compactor", "OnNewSealed"),
    ".conditional": ("Expected",),
    ".context": ("StagingContext",),
    ".errors": ("BeingCollected", "BranchExists", "BranchNotFound", "CommitNotFound", "DamagedRange", "DirtyBranch",
                "MergeConflict", "MetaRangeNotFound", "NewerFormat", "NilValue", "PreconditionFailed",
                "RangeNotFound", "RecordNotFound", "TooManyKeys", "TooManySealed", "TooManyTries", "UnsortedKeys"),
    ".events": ("StagingEvents",),
    ".garbage": ("collect_garbage", "live_metaranges"),
    ".head": ("MoveOutcome",),
    ".listing": ("MAX_LIST_LIMIT",),
    ".metrics": ("StagingMetrics",),
    ".model": ("Applied", "Collected", "Difference", "LiveMetaRanges", "MetaRangeId", "RangeEntry", "RangeId",
               "Record"),
    ".names": ("CommitId", "StagingToken"),
    ".options": ("MAX_BATCH_KEYS", "StagingOptions"),
    ".pages": ("DiffPage", "Listed", "ListPage"),
    ".plain_format": ("PlainFormat",),
    ".plan": ("CompactionPlan", "CompactionView", "CostPolicy", "PlanPolicy"),
    ".policy": ("AnyOf", "BranchPressure", "DeletesPolicy", "ListingCostPolicy", "SealedTokensPolicy", "SensePolicy"),
    ".read": ("CommittedView",),
    ".record": ("MAX_SEALED_TOKENS", "BranchRecord"),
    ".reset": ("ResetOutcome",),
    ".results": ("AlreadyCommitted", "CommitStats", "NoChanges", "ResetStats"),
    ".sensor": ("CompactionSensor", "CompactionTrigger"),
    ".split": ("SplitRule",),
    ".status": ("AreaStatus", "BranchStatus"),
    ".worker": ("BranchesAtWork", "CompactionWorker", "WorkDone"),
})
