# SPDX-License-Identifier: Apache-2.0
"""A commit writes large ranges in a thread: an error of it fails the commit by name, and no thread is left."""

from __future__ import annotations

import itertools
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

from compactlib.budget import Budget
from compactlib.clock import ManualClock
from compactlib.errors import BudgetSpent
from compactlib.kv import MemoryStore, Retries
from compactlib.objects import MemoryObjects
from compactlib.objects.errors import ObjectStoreFailed
from compactlib.staging import Branch, CommittedRanges, Record, Repository, SplitRule, StagingOptions

RECORDS = {b"%02d" % number: bytes([number]) * 600_000 for number in range(10)}
RANGES = 4


class Objects(MemoryObjects):
    """Refuses one of the ranges, and notes which threads write ranges."""

    refused: int | None = None

    def __init__(self) -> None:
        super().__init__()
        self.writers: list[threading.Thread] = []

    def _create(self, key: str, data: bytes | memoryview) -> None:
        if key.startswith("ranges/"):
            self.writers.append(threading.current_thread())
            if len(self.writers) - 1 == self.refused:
                raise ObjectStoreFailed(operation="create", key=key, detail="503")
        super()._create(key, data)


def dirty_branch(objects: Objects) -> Branch:
    rule = SplitRule(max_bytes=1_500_000, raggedness=1 << 30)
    main = Repository(MemoryStore(), CommittedRanges(objects, rule=rule),
                      options=StagingOptions(retries=Retries(3, 0))).create_branch("main")
    main.put_many(RECORDS)
    return main


def check_commit(main: Branch) -> None:
    main.commit("all")
    assert {key: record.data for key, record in main.head().records()} == RECORDS


@pytest.mark.parametrize("refused", range(RANGES))
def test_error_of_the_thread_fails_the_commit_and_publishes_nothing(refused: int) -> None:
    objects, threads = Objects(), set(threading.enumerate())
    main = dirty_branch(objects)
    objects.refused = refused
    with pytest.raises(ObjectStoreFailed, match="503"):
        main.commit("all")
    assert set(threading.enumerate()) <= threads
    assert objects.writers[0] not in threads
    assert main.record().commit_id is None
    assert not list(objects.list("metaranges/"))
    objects.refused = None
    check_commit(main)
    assert set(threading.enumerate()) <= threads


def test_error_beside_the_thread_leaves_no_thread() -> None:
    objects, threads = Objects(), set(threading.enumerate())
    main = dirty_branch(objects)
    with pytest.raises(BudgetSpent):
        main.commit("all", budget=Budget(total_bytes=2_000_000))
    assert set(threading.enumerate()) <= threads
    assert len(objects.writers) == 1
    check_commit(main)


@pytest.mark.parametrize("refusals", [1, RANGES])
def test_commit_where_no_thread_can_start_at_first(refusals: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(thread: threading.Thread) -> None:
        if len(objects.writers) < refusals:
            raise RuntimeError("can't start new thread")
        start(thread)

    objects, start = Objects(), threading.Thread.start
    main = dirty_branch(objects)
    monkeypatch.setattr(threading.Thread, "start", refuse)
    check_commit(main)
    assert objects.writers[:refusals] == [threading.current_thread()] * refusals
    assert len(objects.writers) == RANGES


AT_THE_END = """
import threading
from compactlib.objects import MemoryObjects
from compactlib.staging import CommittedRanges, Record

def apply_after_the_main_thread():
    threading.main_thread().join()
    print(CommittedRanges(MemoryObjects()).apply(None, [(b"a", Record.of(bytes(2 << 20)))]).bytes_written)

threading.Thread(target=apply_after_the_main_thread).start()
"""


def test_first_large_range_of_a_process_that_ends() -> None:
    done = subprocess.run([sys.executable, "-c", AT_THE_END], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == (f"{(2 << 20) + 12 + 1 + 20}\n", "")


def test_interrupt_ends_a_write_that_waits_in_a_pause() -> None:
    def changes() -> Iterator[tuple[bytes, Record]]:
        for number in range(15):  # more than are read at once
            yield b"%02d" % number, Record.of(bytes(600_000))
        raise KeyboardInterrupt

    objects, threads, budget = Objects(), set(threading.enumerate()), Budget()
    budget.pause()
    late = threading.Timer(5, budget.resume)
    late.start()
    with pytest.raises(KeyboardInterrupt):
        CommittedRanges(objects, rule=SplitRule(max_bytes=5_000_000, raggedness=1 << 30)).apply(
            None, changes(), budget=budget)
    assert (objects.writers, budget.spent_bytes) == ([], 0)
    assert set(threading.enumerate()) <= {*threads, late}
    late.cancel()
    late.join()


def test_commit_whose_budget_is_spent_ends_at_once() -> None:
    clock = ManualClock()
    main = Repository(MemoryStore(), CommittedRanges(MemoryObjects()), clock=clock).create_branch("main")
    main.put(b"a", bytes(1000))
    before = clock.now()
    with pytest.raises(BudgetSpent):
        main.commit("all", budget=Budget(total_bytes=1))
    assert clock.now() == before


def test_range_that_is_read_ahead_is_merged_with_its_own_changes() -> None:
    rule = SplitRule(max_bytes=1_500_000, raggedness=1 << 30)
    layer = CommittedRanges(MemoryObjects(), rule=rule, cache_bytes=0)
    base = layer.apply(None, [(key, Record.of(data)) for key, data in RECORDS.items()]).metarange_id
    firsts = [entry.min_key for entry in layer.ranges_of(base)]
    assert len(firsts) == RANGES
    for changed in itertools.product([False, True], repeat=RANGES):
        changes = {key: Record.of(b"x" * 600_000) for key in itertools.compress(firsts, changed)}
        applied = layer.apply(base, changes.items())
        assert applied.ranges_read == len(changes)
        assert dict(layer.scan(applied.metarange_id)) == {
            **{key: Record.of(data) for key, data in RECORDS.items()}, **changes}
