# SPDX-License-Identifier: Apache-2.0
"""`StagingOptions`: the settings of a repository. `StagingContext`: the stores and tools of its operations."""

from __future__ import annotations

from math import inf
from random import Random
from typing import TYPE_CHECKING

import attrs

from compactlib._arguments import is_seconds, is_whole
from compactlib.clock import Clock
from compactlib.kv import KVStore, Retries
from compactlib.observer import Observer
from compactlib.staging.branches import BranchStore
from compactlib.staging.commits import CommitStore
from compactlib.staging.owner import RangeOwner
from compactlib.staging.ranges.committed import CommittedRanges
from compactlib.staging.record import Cells
from compactlib.staging.values import CommitId, is_commit_id, repository_partition

if TYPE_CHECKING:
    from compactlib.staging.sensor import CompactionSensor

_RETRIES = Retries(10, first_seconds=0.005, longest_seconds=5.0)


@attrs.frozen(kw_only=True)
class StagingOptions:
    """Settings of a `Repository`.

    Attributes:
        retries: number and waits of the tries of a put or delete whose staging token was replaced, of a read whose
            layers were replaced, and of a change of a branch record.
        max_scanned: staged and committed entries that a page of a listing or diff reads before it ends early.
        grace_seconds: age of a dropped token before `reclaim` removes its entries; must exceed the longest read, which
            would have to start over.
        owns_ranges: whether this repository alone uses the ranges (of the object store, or of the prefix): only then
            `reclaim` collects unneeded ranges.
        range_grace_seconds: age of a range before it may be collected; must exceed the longest commit, compaction and
            scan.

    Raises:
        InvalidInput: a number is out of its range.
    """

    retries: Retries = _RETRIES
    max_scanned: int = attrs.field(default=100_000, validator=is_whole(1))
    grace_seconds: float = attrs.field(default=3600.0, validator=is_seconds(most=inf))
    owns_ranges: bool = False
    range_grace_seconds: float = attrs.field(default=86_400.0, validator=is_seconds(most=inf))


class StagingContext:
    """The stores and tools of a repository, as attributes; has no state."""

    def __init__(self, store: KVStore, committed: CommittedRanges, repository: str, *, options: StagingOptions,
                 clock: Clock, rng: Random, sensor: CompactionSensor | None, observer: Observer) -> None:
        self.repository: str = repository
        self.store: KVStore = store
        self.committed: CommittedRanges = committed
        self.options: StagingOptions = options
        self.clock: Clock = clock
        self.rng: Random = rng
        self.observer: Observer = observer
        self.cells: Cells = Cells(store, repository_partition(repository), options.retries, clock, rng)
        self.branches: BranchStore = BranchStore(repository, self.cells, observer, sensor)
        self.commits: CommitStore = CommitStore(self.cells)
        self.owner: RangeOwner = RangeOwner(repository, self.cells, committed)

    def resolve(self, ref: str) -> CommitId | None:
        """Return the commit of a commit id, or of a branch's HEAD; `None` for a branch without a commit."""
        if is_commit_id(ref):
            self.commits.get(CommitId(ref))
            return CommitId(ref)
        return self.branches.read(ref).commit_id

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
