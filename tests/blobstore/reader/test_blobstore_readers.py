# SPDX-License-Identifier: Apache-2.0
"""Eight threads read everything while compactions run in a loop: every answer is right, no file handle is left."""

from __future__ import annotations

import os
import random
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from compactlib.blobstore import Blob, BlobStore, Deleted
from compactlib.clock import ManualClock
from tests.blobstore.compaction_stores import START, delete_some, done, open_store, plan_of
from tests.harness.open_files import open_files

COUNT = 50


def content_of(number: int) -> bytes:
    return b"%d:" % number * (5 + number % 40)


class Readers:
    """Threads that read all blobs until told to stop."""

    def __init__(self, store: BlobStore, count: int) -> None:
        self.store = store
        self.gone: set[int] = set()
        self.reads = 0
        self.errors: list[BaseException] = []
        self.stop = threading.Event()
        self.passes = threading.Semaphore(0)
        self.threads = [threading.Thread(target=self._read, args=(seed,)) for seed in range(count)]

    def _read(self, seed: int) -> None:
        rng = random.Random(seed)
        order = list(range(COUNT))
        try:
            while not self.stop.is_set():
                rng.shuffle(order)
                for number in order:
                    was_gone = number in self.gone
                    answer = self.store.get(f"b{number}")
                    if was_gone:
                        assert isinstance(answer, Deleted), (number, answer)
                    elif isinstance(answer, Blob):
                        assert answer.content == content_of(number), number
                    else:
                        assert isinstance(answer, Deleted), (number, answer)
                        assert number in self.gone or number in self.going, (number, answer)
                    self.reads += 1
                self.passes.release()
        except BaseException as error:
            self.errors.append(error)
            self.passes.release()

    going: frozenset[int] = frozenset()

    def __enter__(self) -> Readers:
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop.set()
        for thread in self.threads:
            thread.join()


def campaign(folder: Path, rounds: int, readers: int, *, seed: int = 1) -> int:
    clock = ManualClock(START)
    rng = random.Random(seed)
    with open_store(folder, clock, swap_segments=2, capacity_bytes=200 * 2048, max_open_segments=4) as store:
        for number in range(COUNT):
            store.put(f"b{number}", content_of(number))
        before = len(open_files(folder))
        with Readers(store, readers) as reading:
            for turn in range(rounds):
                doomed = [number for number in rng.sample(range(COUNT), 2) if number not in reading.gone]
                reading.going = frozenset(doomed)
                delete_some(store, doomed, clock)
                reading.gone |= set(doomed)
                for number in range(8):
                    store.put(f"new{turn}.{number}", bytes(300), ttl_seconds=5)
                done(store.compact(plan_of(store)))
                # A whole pass of some reader belongs to each round, whatever the threads' luck.
                assert reading.passes.acquire(timeout=100)
        assert not reading.errors, reading.errors[0]
        assert not store.verify().findings
        store.audit()
        assert len(open_files(folder)) <= before + 4
        names = {info.name.log_file for info in store.snapshot().segments}
        assert {name for name in os.listdir(folder) if name.endswith(".log")} == names
    return reading.reads


@pytest.fixture(autouse=True)
def _eager_threads() -> Iterator[None]:
    """Threads take turns fifty times as often: the compaction gets on, and is cut at more places."""
    usual = sys.getswitchinterval()
    sys.setswitchinterval(0.0001)
    yield
    sys.setswitchinterval(usual)


def test_every_answer_is_right_while_segments_are_switched(tmp_path: Path) -> None:
    assert campaign(tmp_path / "store", 4, 4) >= 4 * COUNT


@pytest.mark.soak
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", range(2, 10))
def test_soak_readers(seed: int, tmp_path: Path) -> None:
    # By then hardly a blob is left to be read.
    campaign(tmp_path / "store", 60, 8, seed=seed)
