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
    from compactlib.staging.committed.committed_ranges import CommittedRanges
    from compactlib.staging.committed.formats.plain_format import PlainFormat
    from compactlib.staging.committed.formats.split import SplitRule
    from compactlib.staging.committed.interface import Committed, DifferenceScan, MergeStrategy, RecordScan
    from compactlib.staging.compaction.metrics import StagingMetrics
    from compactlib.staging.compaction.outcome import CompactionOutcome, CompactionStats, LostRace
    from compactlib.staging.compaction.plan import StagingChoice, StagingPlan, StagingView
    from compactlib.staging.compaction.policies import AlwaysPolicy, StagingPolicy, TombstoneCostPolicy
    from compactlib.staging.compaction.reclaim.cleanup import CleanupStats
    from compactlib.staging.compaction.reclaim.reclaim import StagingReclaimReport
    from compactlib.staging.compaction.rewrite import CompactedTokens, CompactTokens, OpenStores, RewriteStores
    from compactlib.staging.compaction.sense import CompactionSensor, CompactionTrigger
    from compactlib.staging.compaction.sense_policies import (
        AnyOf,
        BranchPressure,
        DeletesPolicy,
        ListingCostPolicy,
        SealedTokensPolicy,
        SensePolicy,
    )
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
    from compactlib.staging.model.names import CommitId, StagingToken
    from compactlib.staging.model.values import (
        Applied,
        Collected,
        Difference,
        LiveMetaRanges,
        MetaRangeId,
        RangeEntry,
        RangeId,
        Record,
    )
    from compactlib.staging.operations.branch import Branch
    from compactlib.staging.operations.commit import CommitOutcome
    from compactlib.staging.operations.conditional import Expected
    from compactlib.staging.operations.head import MoveOutcome
    from compactlib.staging.operations.listing import MAX_LIST_LIMIT
    from compactlib.staging.operations.pages import DiffPage, Listed, ListPage
    from compactlib.staging.operations.read import CommittedView
    from compactlib.staging.operations.reset import ResetOutcome
    from compactlib.staging.operations.results import AlreadyCommitted, CommitStats, NoChanges, ResetStats
    from compactlib.staging.options import MAX_BATCH_KEYS, OnNewSealed, StagingOptions
    from compactlib.staging.records.commits import Commit
    from compactlib.staging.records.context import StagingContext
    from compactlib.staging.records.events import StagingEvents
    from compactlib.staging.records.record import MAX_SEALED_TOKENS, BranchRecord
    from compactlib.staging.records.status import BranchStatus, RepositoryStatus, RepositorySurvey
    from compactlib.staging.repository.repository import Repository
    from compactlib.staging.repository.worker import StagingWorker

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
    "StagingChoice",
    "CleanupStats",
    "CompactTokens",
    "CompactedTokens",
    "CompactionOutcome",
    "StagingPlan",
    "StagingPolicy",
    "CompactionSensor",
    "CompactionStats",
    "CompactionTrigger",
    "StagingView",
    "StagingWorker",
    "TombstoneCostPolicy",
    "DeletesPolicy",
    "ListingCostPolicy",
    "LiveMetaRanges",
    "LostRace",
    "OnNewSealed",
    "OpenStores",
    "StagingReclaimReport",
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
    ".operations.branch": ("Branch",),
    ".compaction.reclaim.cleanup": ("CleanupStats",),
    ".operations.commit": ("CommitOutcome",),
    ".records.commits": ("Commit",),
    ".committed.interface": ("Committed", "DifferenceScan", "MergeStrategy", "RecordScan"),
    ".committed.committed_ranges": ("CommittedRanges",),
    ".compaction.outcome": ("CompactionOutcome", "CompactionStats", "LostRace"),
    ".compaction.rewrite": ("CompactedTokens", "CompactTokens", "OpenStores", "RewriteStores"),
    ".operations.conditional": ("Expected",),
    ".records.context": ("StagingContext",),
    ".errors": ("BeingCollected", "BranchExists", "BranchNotFound", "CommitNotFound", "DamagedRange", "DirtyBranch",
                "MergeConflict", "MetaRangeNotFound", "NewerFormat", "NilValue", "OutdatedPlan", "PreconditionFailed",
                "RangeNotFound", "RecordNotFound", "TooManyKeys", "TooManySealed", "TooManyTries", "UnsortedKeys"),
    ".records.events": ("StagingEvents",),
    ".operations.head": ("MoveOutcome",),
    ".operations.listing": ("MAX_LIST_LIMIT",),
    ".compaction.metrics": ("StagingMetrics",),
    ".model.values": ("Applied", "Collected", "Difference", "LiveMetaRanges", "MetaRangeId", "RangeEntry", "RangeId",
               "Record"),
    ".model.names": ("CommitId", "StagingToken"),
    ".options": ("MAX_BATCH_KEYS", "OnNewSealed", "StagingOptions"),
    ".operations.pages": ("DiffPage", "Listed", "ListPage"),
    ".committed.formats.plain_format": ("PlainFormat",),
    ".compaction.plan": ("StagingChoice", "StagingPlan", "StagingView"),
    ".compaction.policies": ("AlwaysPolicy", "StagingPolicy", "TombstoneCostPolicy"),
    ".compaction.sense_policies": ("AnyOf", "BranchPressure", "DeletesPolicy", "ListingCostPolicy",
                                   "SealedTokensPolicy", "SensePolicy"),
    ".operations.read": ("CommittedView",),
    ".compaction.reclaim.reclaim": ("StagingReclaimReport",),
    ".records.record": ("MAX_SEALED_TOKENS", "BranchRecord"),
    ".repository.repository": ("Repository",),
    ".operations.reset": ("ResetOutcome",),
    ".operations.results": ("AlreadyCommitted", "CommitStats", "NoChanges", "ResetStats"),
    ".compaction.sense": ("CompactionSensor", "CompactionTrigger"),
    ".committed.formats.split": ("SplitRule",),
    ".records.status": ("BranchStatus", "RepositoryStatus", "RepositorySurvey"),
    ".repository.worker": ("StagingWorker",),
})
