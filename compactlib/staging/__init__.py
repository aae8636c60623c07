"""Branches over a key-value store: uncommitted changes in staging tokens, committed ones in immutable ranges.

A `Repository` offers what every store here does: view, plan, compact, reclaim, verify, status, audit, close.

>>> from compactlib.kv import MemoryStore
>>> from compactlib.objects import MemoryObjects
>>> from compactlib.staging import CommittedRanges, Repository
>>> repository = Repository(MemoryStore(), CommittedRanges(MemoryObjects()))
>>> main = repository.create_branch("main")
>>> main.put(b"a", b"1")
>>> main.put(b"b", b"2")
>>> print(main.commit("two keys").stats.added)
2
>>> main.delete(b"a")
>>> main.list().keys, main.head().list().keys
((b'b',), (b'a', b'b'))
>>> print(repository.plan(branch=main).why)
1 tombstones, at most 1 in a row, and 0 sealed tokens would go; 1 of 1 ranges would be written anew
>>> print(repository.compact(branch=main).stats.sealed_after)
0
>>> repository.reclaim().reason.split(";")[1]
' 2 dropped tokens wait until they are older than grace_seconds=3600.0'
>>> [(one.kind, one.key) for one in main.differences()]
[('removed', b'a')]
>>> main.commit("one key less").stats.ranges_written
0
"""

from typing import TYPE_CHECKING

from compactlib._lazy import load_lazily

if TYPE_CHECKING:
    from compactlib.staging.branch import Branch
    from compactlib.staging.cleanup import CleanupStats
    from compactlib.staging.commit import CommitOutcome
    from compactlib.staging.commits import Commit
    from compactlib.staging.committed import Committed, DifferenceScan, MergeStrategy, RecordScan
    from compactlib.staging.committed_ranges import CommittedRanges
    from compactlib.staging.compaction_outcome import CompactionOutcome, CompactionStats, LostRace
    from compactlib.staging.compaction_task import CompactedTokens, CompactTokens, OpenStores, RewriteStores
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
        OutdatedPlan,
        PreconditionFailed,
        RangeNotFound,
        RecordNotFound,
        TooManyKeys,
        TooManySealed,
        TooManyTries,
        UnsortedKeys,
    )
    from compactlib.staging.events import StagingEvents
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
    from compactlib.staging.options import MAX_BATCH_KEYS, OnNewSealed, StagingOptions
    from compactlib.staging.pages import DiffPage, Listed, ListPage
    from compactlib.staging.plain_format import PlainFormat
    from compactlib.staging.plan import CompactionPlan, CompactionView
    from compactlib.staging.plan_policies import AlwaysPolicy, CompactionPolicy, CostPolicy
    from compactlib.staging.policy import (
        AnyOf,
        BranchPressure,
        Choice,
        DeletesPolicy,
        ListingCostPolicy,
        SealedTokensPolicy,
        SensePolicy,
    )
    from compactlib.staging.read import CommittedView
    from compactlib.staging.reclaim import ReclaimReport
    from compactlib.staging.record import MAX_SEALED_TOKENS, BranchRecord
    from compactlib.staging.repository import Repository
    from compactlib.staging.reset import ResetOutcome
    from compactlib.staging.results import AlreadyCommitted, CommitStats, NoChanges, ResetStats
    from compactlib.staging.sensor import CompactionSensor, CompactionTrigger
    from compactlib.staging.split import SplitRule
    from compactlib.staging.status import BranchStatus, RepositoryStatus, RepositorySurvey
    from compactlib.staging.worker import CompactionWorker

__all__ = [
    # A repository and its branches
    "MAX_BATCH_KEYS",
    "MAX_LIST_LIMIT",
    "MAX_SEALED_TOKENS",
    "Branch",
    "BranchRecord",
    "BranchStatus",
    "Commit",
    "CommitId",
    "CommittedView",
    "Expected",
    "Repository",
    "RepositoryStatus",
    "RepositorySurvey",
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
    "AlwaysPolicy",
    "AnyOf",
    "BranchPressure",
    "Choice",
    "CleanupStats",
    "CompactTokens",
    "CompactedTokens",
    "CompactionOutcome",
    "CompactionPlan",
    "CompactionPolicy",
    "CompactionSensor",
    "CompactionStats",
    "CompactionTrigger",
    "CompactionView",
    "CompactionWorker",
    "CostPolicy",
    "DeletesPolicy",
    "ListingCostPolicy",
    "LiveMetaRanges",
    "LostRace",
    "OnNewSealed",
    "OpenStores",
    "ReclaimReport",
    "RewriteStores",
    "SealedTokensPolicy",
    "SensePolicy",
    "StagingMetrics",
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
    "OutdatedPlan",
    "PreconditionFailed",
    "RangeNotFound",
    "RecordNotFound",
    "TooManyKeys",
    "TooManySealed",
    "TooManyTries",
    "UnsortedKeys",
]

load_lazily(__name__, {
    ".branch": ("Branch",),
    ".cleanup": ("CleanupStats",),
    ".commit": ("CommitOutcome",),
    ".commits": ("Commit",),
    ".committed": ("Committed", "DifferenceScan", "MergeStrategy", "RecordScan"),
    ".committed_ranges": ("CommittedRanges",),
    ".compaction_outcome": ("CompactionOutcome", "CompactionStats", "LostRace"),
    ".compaction_task": ("CompactedTokens", "CompactTokens", "OpenStores", "RewriteStores"),
    ".conditional": ("Expected",),
    ".context": ("StagingContext",),
    ".errors": ("BeingCollected", "BranchExists", "BranchNotFound", "CommitNotFound", "DamagedRange", "DirtyBranch",
                "MergeConflict", "MetaRangeNotFound", "NewerFormat", "NilValue", "OutdatedPlan", "PreconditionFailed",
                "RangeNotFound", "RecordNotFound", "TooManyKeys", "TooManySealed", "TooManyTries", "UnsortedKeys"),
    ".events": ("StagingEvents",),
    ".head": ("MoveOutcome",),
    ".listing": ("MAX_LIST_LIMIT",),
    ".metrics": ("StagingMetrics",),
    ".model": ("Applied", "Collected", "Difference", "LiveMetaRanges", "MetaRangeId", "RangeEntry", "RangeId",
               "Record"),
    ".names": ("CommitId", "StagingToken"),
    ".options": ("MAX_BATCH_KEYS", "OnNewSealed", "StagingOptions"),
    ".pages": ("DiffPage", "Listed", "ListPage"),
    ".plain_format": ("PlainFormat",),
    ".plan": ("CompactionPlan", "CompactionView"),
    ".plan_policies": ("AlwaysPolicy", "CompactionPolicy", "CostPolicy"),
    ".policy": ("AnyOf", "BranchPressure", "Choice", "DeletesPolicy", "ListingCostPolicy", "SealedTokensPolicy",
                "SensePolicy"),
    ".read": ("CommittedView",),
    ".reclaim": ("ReclaimReport",),
    ".record": ("MAX_SEALED_TOKENS", "BranchRecord"),
    ".repository": ("Repository",),
    ".reset": ("ResetOutcome",),
    ".results": ("AlreadyCommitted", "CommitStats", "NoChanges", "ResetStats"),
    ".sensor": ("CompactionSensor", "CompactionTrigger"),
    ".split": ("SplitRule",),
    ".status": ("BranchStatus", "RepositoryStatus", "RepositorySurvey"),
    ".worker": ("CompactionWorker",),
})
