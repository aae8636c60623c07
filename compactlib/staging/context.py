# SPDX-License-Identifier: Apache-2.0
"""`StagingContext`: what every operation on the branches of one repository works with."""

from __future__ import annotations

from collections.abc import Iterable
from random import Random

import attrs

from compactlib.clock import Clock
from compactlib.errors import CompactlibError
from compactlib.kv import KVStore
from compactlib.runtime.observe import Observer, telling
from compactlib.staging.branches import BranchStore
from compactlib.staging.commits import CommitStore
from compactlib.staging.events import StagingEvents, telling_events
from compactlib.staging.names import StagingToken, repository_partition
from compactlib.staging.options import StagingOptions
from compactlib.staging.owner import RangeOwner
from compactlib.staging.ranges.committed import CommittedRanges
from compactlib.staging.record import BranchRecord
from compactlib.staging.tokens import StagingTokens


@attrs.frozen
class StagingContext:
    """The stores and tools of one repository; holds no state of its own.

    Attributes:
        repository: its name.
        store: the key-value store.
        committed: ranges and metaranges.
        branches: branch records.
        commits: commits.
        tokens: staged entries.
        owner: whose the ranges are.
        options: limits and numbers of tries.
        clock: time.
        rng: randomness; must not repeat in any process.
        events: notified of what happens.
        observer: notified of what an operator may want to know.
    """

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
    events: StagingEvents
    observer: Observer

    @classmethod
    def over(cls, store: KVStore, committed: CommittedRanges, repository: str, *, options: StagingOptions, clock: Clock,
             rng: Random, events: StagingEvents, observer: Observer) -> StagingContext:
        """The context of a repository over its two stores.

        Raises:
            InvalidInput: it is no name of a repository.
        """
        partition = repository_partition(repository)
        told = telling_events(events)
        return cls(repository=repository, store=store, committed=committed,
                   branches=BranchStore(store, partition, options, clock, rng, told),
                   commits=CommitStore(store, partition, rng),
                   tokens=StagingTokens(store, partition, rng, clock),
                   owner=RangeOwner(store, partition, repository, committed, rng, clock),
                   options=options, clock=clock, rng=rng, events=told,
                   observer=telling(observer))

    def drop_tokens(self, branch: str, before: BranchRecord, after: BranchRecord | None) -> tuple[StagingToken, ...]:
        """Mark the tokens that `before` named and `after` does not; gives them.

        What already happened is not undone because a mark could not be written: the sweep for orphans finds the tokens
        in the register. The observer is notified.
        """
        kept: Iterable[StagingToken] = () if after is None else after.tokens
        tokens = tuple(token for token in before.tokens if token not in set(kept))
        self.mark_dropped(branch, tokens)
        return tokens

    def mark_dropped(self, branch: str, tokens: Iterable[StagingToken]) -> None:
        """Mark tokens that no branch record names; as `drop_tokens`."""
        tokens = tuple(tokens)
        try:
            self.tokens.mark_dropped(dict.fromkeys(tokens, branch))
        except CompactlibError as error:
            self.observer.event("staging_tokens_not_marked", {"repository": self.repository, "branch": branch,
                                                              "tokens": list(tokens), "error": str(error)})
