# SPDX-License-Identifier: Apache-2.0
"""The rewrite of a compaction as a task that any executor can run: tokens and a base in, a metarange out.

It changes nothing that is read: ranges and metaranges are immutable and named after their content. So it may run
twice, at once, or die half-way; garbage collection removes what was made in vain.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from random import SystemRandom
from typing import TypeAlias

import attrs

from compactlib.clock import SystemClock
from compactlib.kv import KVStore
from compactlib.rewrite import Attempt, RewriteResult
from compactlib.staging.names import StagingToken, repository_partition
from compactlib.staging.ranges.committed import CommittedRanges
from compactlib.staging.tokens import MergedTokens, StagingTokens
from compactlib.staging.values import Applied, MetaRangeId

OpenStores: TypeAlias = Callable[[], AbstractContextManager[tuple[StagingTokens, CommittedRanges]]]
"""Opens the tokens to read and the committed layer to read and write, where a task runs, and closes them behind it.

An executor that runs tasks in another process needs a picklable one, which opens its own connections there.
"""


@attrs.frozen
class StoresForWorkers:
    """Stores that are opened where a rewrite runs, and closed behind it; picklable if its functions are.

    Attributes:
        open_store: opens the key-value store of the repository.
        open_committed: opens the committed layer.
        repository: the repository's name.
    """

    open_store: Callable[[], KVStore]
    open_committed: Callable[[], CommittedRanges]
    repository: str = "main"

    @contextmanager
    def __call__(self) -> Iterator[tuple[StagingTokens, CommittedRanges]]:
        with closing(self.open_store()) as store:
            tokens = StagingTokens(store, repository_partition(self.repository), SystemRandom(), SystemClock())
            yield tokens, self.open_committed()


@attrs.frozen(kw_only=True)
class CompactedTokens(RewriteResult):
    """What `CompactTokens` made.

    Attributes:
        base: as the task has it.
        newest_first: likewise.
        applied: the merge and its numbers.
    """

    base: MetaRangeId | None
    newest_first: tuple[StagingToken, ...]
    applied: Applied


@attrs.frozen
class CompactTokens:
    """Apply sealed tokens to a base. O(staged entries + ranges they touch); memory for one range at a time.

    Attributes:
        name: unique within one call of an executor.
        stores: where it reads and writes.
        base: the metarange to apply them to; `None` if nothing was ever committed.
        newest_first: the tokens; of each key the newest entry counts.
    """

    name: str
    stores: OpenStores
    base: MetaRangeId | None
    newest_first: tuple[StagingToken, ...]

    def run(self, attempt: Attempt) -> CompactedTokens:
        """Run; a token or a range that cannot be read is never left out."""
        began = attempt.clock.monotonic()
        with self.stores() as (tokens, committed):
            applied = committed.apply(self.base, MergedTokens(tokens, self.newest_first), budget=attempt.budget,
                                      observer=attempt.observer)
        return CompactedTokens(task=self.name, attempt=attempt.id, files=(), bytes_read=applied.bytes_read,
                               bytes_written=applied.bytes_written, seconds=attempt.clock.monotonic() - began,
                               base=self.base, newest_first=self.newest_first, applied=applied)
