# SPDX-License-Identifier: Apache-2.0
"""A blob store's compaction as a scheduler's job: its commits go through a fence, and a late worker commits nothing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import attrs

from compactlib.clock import ManualClock
from compactlib.executors import LocalExecutor, RewriteTask
from compactlib.fences import FencedOff, LockingFence, MemoryFence, TokenFence
from compactlib.outcome import Done, Failed
from compactlib.rewrite import RewriteOutcome
from compactlib.runtime import Budget, Observer
from tests.blobstore.compaction_stores import START, answers, garbage_store, plan_of, segment_names


@attrs.frozen
class Overtaken:
    """Copies as it should; meanwhile the job goes to somebody with a higher token."""

    fence: LockingFence
    token: int

    def run(self, tasks: Iterable[RewriteTask], *, budget: Budget | None = None,
            observer: Observer | None = None) -> Iterator[RewriteOutcome]:
        yield from LocalExecutor().run(tasks, budget=budget, observer=observer)
        self.fence.admit("store", self.token)


def test_the_holder_of_the_job_commits(tmp_path: Path) -> None:
    fence = MemoryFence()
    mine = TokenFence(fence, "store", 7)
    with garbage_store(tmp_path / "store", ManualClock(START)) as store:
        before = answers(store, 60)
        assert isinstance(store.compact(plan_of(store), fence=mine), Done)
        assert answers(store, 60) == before


def test_a_worker_that_lost_its_job_while_copying_commits_nothing(tmp_path: Path) -> None:
    fence = MemoryFence()
    mine = TokenFence(fence, "store", 7)
    with garbage_store(tmp_path / "store", ManualClock(START)) as store:
        before, segments = answers(store, 60), segment_names(store)
        outcome = store.compact(plan_of(store), executor=Overtaken(fence, 8), fence=mine)
        assert isinstance(outcome, Failed)
        assert isinstance(outcome.error, FencedOff)
        assert (segment_names(store), answers(store, 60)) == (segments, before)
        # It cannot commit later either; who holds the job now may go on with what was copied.
        late = store.resume(fence=mine)
        assert isinstance(late, Failed)
        assert isinstance(late.error, FencedOff)
        assert isinstance(store.resume(fence=TokenFence(fence, "store", 8)), Done)
        assert answers(store, 60) == before
        assert store.verify().is_sound
