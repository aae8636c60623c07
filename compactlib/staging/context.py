# SPDX-License-Identifier: Apache-2.0
"""`StagingContext`: what every operation on the branches of one repository works with."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

import attrs

from compactlib.clock import Clock
from compactlib.kv import KVStore
from compactlib.observer import Observer, Observers
from compactlib.staging.activity import Activity
from compactlib.staging.branches import BranchStore
from compactlib.staging.commits import CommitStore
from compactlib.staging.names import repository_partition
from compactlib.staging.options import StagingOptions
from compactlib.staging.owner import RangeOwner
from compactlib.staging.ranges.committed import CommittedRanges
from compactlib.staging.ranges.diff_cache import DiffCache
from compactlib.staging.tokens import StagingTokens

if TYPE_CHECKING:
    from compactlib.staging.sensor import CompactionSensor


@attrs.frozen
class StagingContext:
    """The stores and tools of one repository; holds no state of its own.

    Attributes:
        repository: its name.
        store: the key-value store.
        committed: ranges and metaranges.
        differences: between HEADs and compacted metaranges.
        branches: branch records.
        commits: commits.
        tokens: staged entries.
        owner: whose the ranges are.
        options: limits and numbers of tries.
        clock: time.
        rng: randomness; must not repeat in any process.
        activity: what happens on branches, for the sensor and the observer.
        observer: notified of what an operator may want to know.
    """

    repository: str
    store: KVStore
    committed: CommittedRanges
    differences: DiffCache
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
        """The context of a repository over its two stores.

        Raises:
            InvalidInput: it is no name of a repository.
        """
        partition = repository_partition(repository)
        notified = Observers(observer)
        activity = Activity(repository, notified, sensor)
        tokens = StagingTokens(store, partition, rng, clock)
        return cls(repository=repository, store=store, committed=committed, differences=DiffCache(committed),
                   branches=BranchStore(store, partition, tokens, options, clock, rng, activity),
                   commits=CommitStore(store, partition, rng), tokens=tokens,
                   owner=RangeOwner(store, partition, repository, committed, rng, clock),
                   options=options, clock=clock, rng=rng, activity=activity,
                   observer=notified)
