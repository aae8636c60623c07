# SPDX-License-Identifier: Apache-2.0
"""Stores compacted by processes that are killed at random, with budgets that end and are cancelled anywhere."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import random
import signal
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from compactlib.clock import ManualClock
from compactlib.executors import Executor, LocalExecutor, ProcessExecutor
from compactlib.outcome import Done, Failed, Outcome, Skipped
from compactlib.raftlog import LogOptions, SeedPolicy, SegmentLimits, SegmentLog
from compactlib.runtime import Budget
from tests.blobstore.compaction_stores import RETENTION, START, fill, open_store
from tests.harness.effort import Effort

ROUNDS = 3


@contextlib.contextmanager
def killing(rng: random.Random, budget: Budget) -> Iterator[None]:
    """Kill a worker now and then, and perhaps cancel."""
    ended = threading.Event()
    pauses = [rng.random() * 0.15 for _ in range(rng.randrange(4))]

    def kill() -> None:
        for pause in pauses:
            if ended.wait(pause):
                return
            for worker in multiprocessing.active_children():
                if worker.name == "compactlib-rewrite" and worker.pid is not None:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(worker.pid, signal.SIGKILL)
                    break

    threads = [threading.Thread(target=kill)]
    if rng.random() < 0.3:
        threads.append(threading.Timer(rng.random() * 0.5, budget.cancel))
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        ended.set()
        for thread in threads:
            if isinstance(thread, threading.Timer):
                thread.cancel()
            thread.join()


def compact_often(rng: random.Random, totals: Sequence[int | None], compact: Callable[[Executor, Budget], Outcome[Any]],
                  check: Callable[[], object], executor: Executor) -> None:
    """By workers that are killed, then by none: that finds nothing in its way."""
    for _ in range(ROUNDS):
        budget = Budget(total_bytes=rng.choice(totals))
        with killing(rng, budget):
            outcome = compact(executor, budget)
        assert isinstance(outcome, Done | Skipped | Failed)
        check()
    for _ in range(ROUNDS):
        outcome = compact(LocalExecutor(), Budget())
        assert not isinstance(outcome, Failed), outcome
    check()


def blobs(folder: Path, rng: random.Random, executor: Executor) -> None:
    clock = ManualClock(START)
    with open_store(folder, clock, capacity_bytes=40 * 20_480, segment_bytes=20_480) as store:
        fill(store, 150, rng, largest=3000)
        dead = set(rng.sample(range(150), 70))
        for number in dead:
            store.delete(f"b{number}")
        clock.advance(RETENTION + 1)
        kept = {f"b{number}": store.get(f"b{number}") for number in range(150) if number not in dead}

        def check() -> None:
            assert {name: store.get(name) for name in kept} == kept
            store.audit()

        compact_often(rng, (None, None, 5000, 30_000, 100_000),
                      lambda executor, budget: store.compact(executor=executor, budget=budget), check, executor)
        store.reclaim()
        assert not store.verify().findings
    assert not list(folder.glob("*.temp"))


def entries(folder: Path, rng: random.Random, executor: Executor) -> None:
    with SegmentLog(folder, LogOptions(limits=SegmentLimits(max_entries=20), keep_links_seconds=0.0)) as log:
        log.extend((index, 1, b"%d" % index * rng.randrange(200)) for index in range(1, 600))
        live = sorted(rng.sample(range(1, 590), 120))
        log.record_snapshot(590, live)
        kept = {index: log.read(index) for index in live}

        def check() -> None:
            assert {index: log.read(index) for index in live} == kept
            log.audit()
            assert all(name.endswith(".segment") or name.isupper() for name in os.listdir(folder))

        compact_often(rng, (None, None, 500, 3000, 10_000), lambda executor, budget: log.compact(
            policy=SeedPolicy(max_sources=rng.choice((2, 4, 8))), executor=executor, budget=budget), check, executor)
        assert not log.verify().findings


def test_whichever_worker_is_killed_nothing_is_lost_and_nothing_is_left(effort: Effort) -> None:
    with ProcessExecutor(2, max_attempts=2) as executor:
        for seed in range(effort(1, 500)):
            for live in (blobs, entries):
                with tempfile.TemporaryDirectory() as folder:
                    live(Path(folder) / "store", random.Random(seed), executor)
    assert not [worker for worker in multiprocessing.active_children() if worker.name == "compactlib-rewrite"]
