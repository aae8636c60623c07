# SPDX-License-Identifier: Apache-2.0
"""A worker that lost its job while it copied commits nothing to a blob store; the new holder compacts it. A fence that
fails after the commit takes nothing back."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import attrs
import pytest

from compactlib.clock import ManualClock
from compactlib.errors import CompactionFailed
from compactlib.executors import LocalExecutor, RewriteTask
from compactlib.fences import FencedOff, LockingFence, MemoryFence, TokenFence
from tests.harness.blob_stores import START, answers, garbage_store, segment_names


@attrs.frozen
class Overtaken:
    """Copies correctly; during the copy the job is assigned again with a higher token."""

    fence: LockingFence
    token: int

    def run(self, tasks: Iterable[RewriteTask], *, budget: Any = None, observer: Any = None) -> Iterator[Any]:
        yield from LocalExecutor().run(tasks, budget=budget, observer=observer)
        self.fence.admit("store", self.token)


def test_holder_of_the_job_commits(tmp_path: Path) -> None:
    with garbage_store(tmp_path / "store", ManualClock(START)) as store:
        before = answers(store, 60)
        report = store.compact(fence=TokenFence(MemoryFence(), "store", 7))
        assert report.freed_segments > 0
        assert answers(store, 60) == before


def test_worker_that_lost_its_job_while_copying_commits_nothing(tmp_path: Path) -> None:
    fence = MemoryFence()
    mine = TokenFence(fence, "store", 7)
    with garbage_store(tmp_path / "store", ManualClock(START)) as store:
        before, segments = answers(store, 60), segment_names(store)
        with pytest.raises(FencedOff):
            store.compact(executor=Overtaken(fence, 8), fence=mine)
        assert (segment_names(store), answers(store, 60)) == (segments, before)
        with pytest.raises(FencedOff):
            store.compact(fence=mine)
        assert store.compact(fence=TokenFence(fence, "store", 8)).freed_segments > 0
        assert answers(store, 60) == before
        assert store.verify().is_sound


@attrs.frozen
class FailsToLeave:
    """Admits every commit, and fails when the commit has been made."""

    error: Exception

    @contextmanager
    def guard(self) -> Iterator[None]:
        yield
        raise self.error


def test_fence_that_fails_after_the_commit_takes_nothing_back(tmp_path: Path) -> None:
    with garbage_store(tmp_path / "store", ManualClock(START)) as store:
        before = answers(store, 60)
        with pytest.raises(RuntimeError, match="lease"):
            store.compact(fence=FailsToLeave(RuntimeError("the lease cannot be given back")))
        assert answers(store, 60) == before
        store.compact(fence=TokenFence(MemoryFence(), "store", 7))
        assert answers(store, 60) == before
        assert store.verify().is_sound


def test_a_refusal_after_the_commit_does_not_say_that_nothing_changed(tmp_path: Path) -> None:
    with garbage_store(tmp_path / "store", ManualClock(START)) as store:
        before = answers(store, 60)
        with pytest.raises(CompactionFailed) as caught:
            store.compact(fence=FailsToLeave(FencedOff(resource="store", token=7, highest=8)))
        assert caught.value.report.steps == 1
        assert caught.value.report.freed_segments > 0
        assert answers(store, 60) == before
        assert store.verify().is_sound
