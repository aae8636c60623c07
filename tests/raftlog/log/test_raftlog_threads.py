# SPDX-License-Identifier: Apache-2.0
"""One appender, readers of every kind and compactions on real threads: whatever is read is right."""

from __future__ import annotations

import random
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from compactlib.executors import LocalExecutor
from compactlib.outcome import Failed
from compactlib.raftlog import (
    DamagedEntry,
    DeadEntry,
    DropDead,
    Entry,
    LogOptions,
    LogPolicy,
    LogReader,
    MissingEntry,
    RaPolicy,
    SeedPolicy,
    SegmentLimits,
    SegmentLog,
)
from compactlib.raftlog.model.values import Answer

LAST = 700
KEEP_EVERY = 7
OPTIONS = LogOptions(limits=SegmentLimits(max_entries=16), keep_links_seconds=0.0, max_open_segments=6)


def term_of(index: int) -> int:
    """The term in which an index is committed in the end; before, it may be written in lower ones."""
    return 2 + index // 10


def payload(index: int, term: int) -> bytes:
    return b"%d in %d " % (index, term) * (1 + index % 5)


class Shared:
    """What the threads know of each other. Each field is written by one of them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.log = SegmentLog(folder, OPTIONS)
        self.committed = 0
        self.done = threading.Event()
        self.problems: list[BaseException] = []

    def is_right(self, answer: Answer, committed: int, *, asked_at_once: bool = True) -> None:
        """Check an answer that was asked for when everything up to `committed` was acknowledged for good."""
        index = answer.index
        assert not isinstance(answer, DamagedEntry), answer.error
        if isinstance(answer, Entry):
            assert answer.payload == payload(index, answer.term)
            assert index > committed or answer.term == term_of(index)
        elif index <= committed:
            # It may have died, but what every snapshot keeps is there, and nothing that was there is missing.
            assert isinstance(answer, DeadEntry), answer
            assert index % KEEP_EVERY
        elif asked_at_once:
            assert isinstance(answer, MissingEntry | DeadEntry)


def append(shared: Shared, rng: random.Random) -> None:
    """Write ahead, take it back in the next term, commit; record a snapshot now and then."""
    log = shared.log
    for start in range(1, LAST, 10):
        ahead = start + rng.randrange(5, 30)
        log.extend((index, 1, payload(index, 1)) for index in range(start, ahead))
        log.extend((index, term_of(index), payload(index, term_of(index))) for index in range(start, start + 10))
        log.sync()
        shared.committed = start + 9
        if start % 50 == 1 and start > 50:
            snapshot = start - rng.randrange(0, 20)
            live = set(range(KEEP_EVERY, snapshot + 1, KEEP_EVERY))
            log.record_snapshot(snapshot, sorted(live))


def compact(shared: Shared, rng: random.Random) -> None:
    policies: list[LogPolicy | None] = [None, DropDead(), SeedPolicy(), RaPolicy()]
    while not shared.done.is_set():
        outcome = shared.log.compact(policy=rng.choice(policies), executor=LocalExecutor(rng.choice([1, 2])))
        assert not isinstance(outcome, Failed), outcome.error
        shared.log.reclaim()


def read_singly(shared: Shared, rng: random.Random) -> None:
    while not shared.done.is_set():
        committed = shared.committed
        shared.is_right(shared.log.read(rng.randrange(1, committed + 20)), committed)


def read_in_bulk(shared: Shared, rng: random.Random) -> None:
    while not shared.done.is_set():
        committed = shared.committed
        indexes = sorted(rng.sample(range(1, committed + 20), min(committed, 40)))
        ways: list[Callable[[], Iterator[Answer]]] = [
            lambda indexes=indexes: shared.log.read_many(indexes),  # type: ignore[misc]
            lambda committed=committed: shared.log.scan(max(committed - 300, 0))]  # type: ignore[misc]
        for answer in rng.choice(ways)():
            shared.is_right(answer, committed)


def ask_for_everything_else(shared: Shared, rng: random.Random) -> None:
    log = shared.log

    def verify() -> None:
        assert log.verify().is_sound

    questions: list[Callable[[], object]] = [log.stats, log.view, log.plan, log.audit, lambda: log.last_index, verify]
    while not shared.done.is_set():
        with log.plan_read(range(1, shared.committed + 1, 3)) as plan:
            committed = shared.committed
            rng.choice(questions)()
            for answer in plan.answers():
                shared.is_right(answer, min(committed, answer.index), asked_at_once=False)


def read_from_elsewhere(shared: Shared, rng: random.Random) -> None:
    """As another process would, without the log object."""
    while not shared.done.is_set():
        committed = shared.committed
        with LogReader(shared.folder, max_open_segments=rng.choice([1, 128])) as reader:
            for _ in range(3):
                for answer in reader.read_many(range(1, committed + 1, rng.randrange(1, 9))):
                    shared.is_right(answer, committed, asked_at_once=False)
                assert reader.verify().is_sound
                for _ in range(20):
                    if committed:
                        shared.is_right(reader.read(rng.randrange(1, committed + 1)), committed)


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.soak)])
def test_whatever_is_read_while_others_write_and_compact_is_right(tmp_path: Path, seed: int) -> None:
    shared = Shared(tmp_path / "log")
    works = [append, compact, read_singly, read_in_bulk, ask_for_everything_else, read_from_elsewhere]

    def run(number: int) -> None:
        try:
            works[number](shared, random.Random(100 * seed + number))
        except BaseException as error:
            shared.problems.append(error)
        finally:
            # The readers and compactions go on as long as the appender works; a problem of anybody ends all.
            if shared.problems or works[number] is append:
                shared.done.set()

    interval = sys.getswitchinterval()
    sys.setswitchinterval(0.0005)
    try:
        threads = [threading.Thread(target=run, args=(number,)) for number in range(len(works))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    if shared.problems:
        raise shared.problems[0]
    check_the_end(shared)


def check_the_end(shared: Shared) -> None:
    shared.log.compact(policy=shared.log.policy)
    shared.log.close()
    with SegmentLog(shared.folder, OPTIONS) as log:
        assert log.snapshot is not None
        for index in range(1, shared.committed + 1):
            expected = Entry(index, term_of(index), payload(index, term_of(index)))
            gone = index <= log.snapshot.index and index % KEEP_EVERY
            assert log.read(index) == (DeadEntry(index, log.snapshot.index) if gone else expected)
        assert log.verify().is_sound
        log.audit()
