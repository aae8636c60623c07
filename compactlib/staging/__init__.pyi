# SPDX-License-Identifier: Apache-2.0
from compactlib.staging.committed.committed_ranges import CommittedRanges as CommittedRanges
from compactlib.staging.committed.formats.parquet import ParquetFormat as ParquetFormat
from compactlib.staging.committed.formats.plain_format import PlainFormat as PlainFormat
from compactlib.staging.committed.formats.rows import (
    ChangeBatch as ChangeBatch,
    RangeFormat as RangeFormat,
    Rows as Rows,
)
from compactlib.staging.committed.formats.split import SplitRule as SplitRule
from compactlib.staging.compaction.merge_in_parts import MergeInParts as MergeInParts
from compactlib.staging.compaction.outcome import CompactionOutcome as CompactionOutcome
from compactlib.staging.compaction.plan import (
    StagingChoice as StagingChoice,
    StagingPlan as StagingPlan,
    StagingView as StagingView,
)
from compactlib.staging.compaction.policies import (
    AlwaysPolicy as AlwaysPolicy,
    StagingPolicy as StagingPolicy,
    TombstoneCostPolicy as TombstoneCostPolicy,
)
from compactlib.staging.compaction.rewrite import StoresForWorkers as StoresForWorkers
from compactlib.staging.compaction.sense import CompactionSensor as CompactionSensor
from compactlib.staging.compaction.sense_policies import (
    AnyOf as AnyOf,
    DeletesPolicy as DeletesPolicy,
    ListingCostPolicy as ListingCostPolicy,
    SealedTokensPolicy as SealedTokensPolicy,
)
from compactlib.staging.errors import (
    BranchNotFound as BranchNotFound,
    DirtyBranch as DirtyBranch,
    MergeConflict as MergeConflict,
    PreconditionFailed as PreconditionFailed,
    RecordNotFound as RecordNotFound,
)
from compactlib.staging.model.names import CommitId as CommitId, repository_in as repository_in
from compactlib.staging.model.values import Record as Record
from compactlib.staging.operations.branch import Branch as Branch
from compactlib.staging.operations.commit import CommitOutcome as CommitOutcome
from compactlib.staging.operations.head import MoveOutcome as MoveOutcome
from compactlib.staging.options import StagingOptions as StagingOptions
from compactlib.staging.records.commits import Commit as Commit
from compactlib.staging.repository.repository import Repository as Repository
from compactlib.staging.repository.worker import StagingWorker as StagingWorker
