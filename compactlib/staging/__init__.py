# SPDX-License-Identifier: Apache-2.0
"""Branches and commits over a key-value store: uncommitted changes in staging tokens, commits in immutable ranges.

A `Repository` has the calls of every store of the library: view, plan, compact, reclaim, verify, status, audit, close.

>>> from compactlib.kv import MemoryStore
>>> from compactlib.objects import MemoryObjects
>>> from compactlib.staging import CommittedRanges, Repository
>>> repository = Repository(MemoryStore(), CommittedRanges(MemoryObjects()))
>>> main = repository.create_branch("main")
>>> main.put(b"a", b"1")
>>> main.put(b"b", b"2")
>>> print(main.commit("two keys").added)
2
>>> main.delete(b"a")
>>> main.list().keys, main.head().list().keys
((b'b',), (b'a', b'b'))
>>> print(repository.plan(branch=main).why)
1 tombstones, at most 1 in a row, and 0 sealed tokens would go; 1 of 1 ranges would be rewritten
>>> print(repository.compact(branch=main).sealed_before)
1
>>> repository.reclaim().left[0]
'2 dropped tokens wait until they are older than grace_seconds=3600.0'
>>> [(one.kind, one.key) for one in main.differences()]
[('removed', b'a')]
>>> main.commit("one key less").ranges_written
0
"""

from typing import TYPE_CHECKING

from compactlib._lazy import offer

if TYPE_CHECKING:
    from compactlib.staging.branch import Branch as Branch
    from compactlib.staging.commits import Commit as Commit
    from compactlib.staging.context import StagingOptions as StagingOptions
    from compactlib.staging.errors import (
        BranchNotFound as BranchNotFound,
        DirtyBranch as DirtyBranch,
        MergeConflict as MergeConflict,
        PreconditionFailed as PreconditionFailed,
        RecordNotFound as RecordNotFound,
    )
    from compactlib.staging.policies import AlwaysPolicy as AlwaysPolicy, PressurePolicy as PressurePolicy
    from compactlib.staging.policy import (
        StagingChoice as StagingChoice,
        StagingPlan as StagingPlan,
        StagingPolicy as StagingPolicy,
        StagingView as StagingView,
    )
    from compactlib.staging.ranges.committed import CommittedRanges as CommittedRanges
    from compactlib.staging.ranges.metarange import SplitRule as SplitRule
    from compactlib.staging.ranges.parquet import ParquetFormat as ParquetFormat
    from compactlib.staging.ranges.plain import PlainFormat as PlainFormat
    from compactlib.staging.ranges.rows import (
        ChangeBatch as ChangeBatch,
        RangeFormat as RangeFormat,
        Rows as Rows,
    )
    from compactlib.staging.repository import Repository as Repository
    from compactlib.staging.results import (
        CommitReport as CommitReport,
        StagingCompactionReport as StagingCompactionReport,
    )
    from compactlib.staging.rewrite import MergeInParts as MergeInParts
    from compactlib.staging.sensor import CompactionSensor as CompactionSensor
    from compactlib.staging.values import CommitId as CommitId, Record as Record, repository_in as repository_in
    from compactlib.staging.worker import StagingWorker as StagingWorker
else:
    offer(__name__, {
        "compactlib.staging.ranges.committed": "CommittedRanges",
        "compactlib.staging.ranges.parquet": "ParquetFormat",
        "compactlib.staging.ranges.plain": "PlainFormat",
        "compactlib.staging.ranges.rows": "ChangeBatch RangeFormat Rows",
        "compactlib.staging.ranges.metarange": "SplitRule",
        "compactlib.staging.policy": "StagingChoice StagingPlan StagingPolicy StagingView",
        "compactlib.staging.policies": "AlwaysPolicy PressurePolicy",
        "compactlib.staging.rewrite": "MergeInParts",
        "compactlib.staging.sensor": "CompactionSensor",
        "compactlib.staging.errors": "BranchNotFound DirtyBranch MergeConflict PreconditionFailed RecordNotFound",
        "compactlib.staging.values": "CommitId Record repository_in",
        "compactlib.staging.branch": "Branch",
        "compactlib.staging.context": "StagingOptions",
        "compactlib.staging.commits": "Commit",
        "compactlib.staging.repository": "Repository",
        "compactlib.staging.results": "CommitReport StagingCompactionReport",
        "compactlib.staging.worker": "StagingWorker",
    })
