# SPDX-License-Identifier: Apache-2.0
"""`StagingContext`: the stores and tools of the operations on a repository's branches."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

import attrs

from compactlib.clock import Clock
from compactlib.kv import KVStore
from compactlib.observer import Observer
from compactlib.staging.activity import Activity
from compactlib.staging.branches import BranchStore
from compactlib.staging.commits import CommitStore
from compactlib.staging.names import CommitId, is_commit_id, repository_partition
from compactlib.staging.options import StagingOptions
from compactlib.staging.owner import RangeOwner
from compactlib.staging.ranges.committed import CommittedRanges
from compactlib.staging.record import BranchRecord
from compactlib.staging.results import BranchStatus
from compactlib.staging.tokens import StagingTokens

if TYPE_CHECKING:
    from compactlib.staging.sensor import CompactionSensor


@attrs.frozen
class StagingContext:
    """The stores and tools of a repository; has no state."""

    repository: str
    store: KVStore
    committed: CommittedRanges
    branches: BranchStore
    commits: CommitStore
    tokens: StagingTokens
    owner: RangeOwner
    options: StagingOptions
    clock: Clock
    rng: Random
    activity: Activity
    observer: Observer

    @classmethod
    def over(cls, store: KVStore, committed: CommittedRanges, repository: str, *, options: StagingOptions, clock: Clock,
             rng: Random, sensor: CompactionSensor | None, observer: Observer) -> StagingContext:
        """Return the context of a repository over its two stores."""
        partition = repository_partition(repository)
        activity = Activity(repository, observer, sensor)
        tokens = StagingTokens(store, partition, rng, clock)
        return cls(repository=repository, store=store, committed=committed,
                   branches=BranchStore(store, partition, tokens, options.retries, clock, rng, activity),
                   commits=CommitStore(store, partition, rng), tokens=tokens,
                   owner=RangeOwner(store, partition, repository, committed, rng, clock),
                   options=options, clock=clock, rng=rng, activity=activity, observer=observer)

    def resolve(self, ref: str) -> CommitId | None:
        """Return the commit of a reference: a commit id, or a branch's name for its HEAD (`None` without a commit).

        Raises `CommitNotFound`, `BranchNotFound`, or `InvalidInput` for neither.
        """
        if is_commit_id(ref):
            self.commits.get(CommitId(ref))
            return CommitId(ref)
        return self.branches.read(ref).commit_id

    def status_of(self, branch: str, record: BranchRecord) -> BranchStatus:
        """Return the status of a branch record. Reads the HEAD commit."""
        head = None if record.commit_id is None else self.commits.get(record.commit_id)
        return BranchStatus(branch=branch, version=record.version, commit_id=record.commit_id,
                            generation=0 if head is None else head.generation,
                            sealed_tokens=len(record.sealed_tokens),
                            compacted_metarange_id=record.compacted_metarange_id,
                            compaction_started_at=record.compaction_started_at)

    def resolve_present(self, ref: str) -> CommitId | None:
        """Resolve a reference, and protect its records from collections until a branch names the commit.

        A collection deletes the ranges of an unreachable commit, and keeps the commit. A branch's HEAD may become
        unreachable a moment later, so it is claimed too. Raises `MetaRangeNotFound` or `BeingCollected`.
        """
        commit_id = self.resolve(ref)
        metarange_id = self.commits.metarange_of(commit_id)
        if metarange_id is not None:
            self.committed.claim(metarange_id)
        return commit_id
