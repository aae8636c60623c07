# SPDX-License-Identifier: Apache-2.0
"""The rewrite of a compaction as a task for any executor: from tokens and a base to a metarange.

Ranges and metaranges are immutable and named by their content, so a task is idempotent: it may run twice, concurrently,
or die at any step. Garbage collection removes its orphans.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from typing import TypeAlias

import attrs

from compactlib.kv import KVStore
from compactlib.rewrite import Attempt, RewriteResult
from compactlib.staging.names import StagingToken
from compactlib.staging.ranges.committed import CommittedRanges
from compactlib.staging.tokens import MergedTokens
from compactlib.staging.values import Applied, MetaRangeId

OpenStores: TypeAlias = Callable[[], AbstractContextManager[tuple[KVStore, CommittedRanges]]]
"""Opens the key-value store and the committed layer in the process of a task, and closes them after it.

Must be picklable for executors with other processes, and opens its own connections there.
"""


@attrs.frozen
class StoresForWorkers:
    """Opens stores in the process of a rewrite, and closes them after it; picklable if its functions are.

    Attributes:
        open_store: opens the key-value store of the repository.
        open_committed: opens the committed layer.
    """

    open_store: Callable[[], KVStore]
    open_committed: Callable[[], CommittedRanges]

    @contextmanager
    def __call__(self) -> Iterator[tuple[KVStore, CommittedRanges]]:
        with closing(self.open_store()) as store:
            yield store, self.open_committed()


@attrs.frozen(kw_only=True)
class CompactedTokens(RewriteResult):
    """The result of `CompactTokens`: the metarange and the counts."""

    applied: Applied


@attrs.frozen
class CompactTokens:
    """Apply sealed tokens to a base. O(staged entries + ranges they touch); memory for one range at a time.

    `name` is unique within a call of an executor; `apply` replaces the method of the committed layer.
    """

    name: str
    stores: OpenStores
    base: MetaRangeId | None
    newest_first: tuple[StagingToken, ...]
    apply: Callable[..., Applied] | None = None

    def run(self, attempt: Attempt) -> CompactedTokens:
        """Apply the tokens. An unreadable token or range is an error."""
        began = attempt.clock.monotonic()
        with self.stores() as (store, committed):
            apply = self.apply or committed.apply
            applied = apply(self.base, MergedTokens(store, self.newest_first), budget=attempt.budget,
                            observer=attempt.observer)
        return CompactedTokens(task=self.name, attempt=attempt.id, files=(), bytes_read=applied.bytes_read,
                               bytes_written=applied.bytes_written, seconds=attempt.clock.monotonic() - began,
                               applied=applied)
