# SPDX-License-Identifier: Apache-2.0
"""`CompactSegments`: exactly the live entries, each checked, one file, one sync; nothing left after a failure."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path

import attrs
import pytest
from hypothesis import given, strategies as st

from compactlib.budget import Budget
from compactlib.clock import ManualClock
from compactlib.errors import BudgetSpent, CorruptData, DiskFull, StorageError
from compactlib.executors import Attempt, RewriteResult
from compactlib.observer import Observer, Observers
from compactlib.raftlog import Entry, SegmentLimits, SegmentLog
from compactlib.raftlog.names import segment_name
from compactlib.raftlog.segment.reader import SegmentReader
from tests.harness.failing_files import FailingFiles
from tests.raftlog.compaction_logs import (
    entry_of,
    flip_byte,
    options,
    payload_of,
    payload_place,
    picture,
    task_of,
    vector_45,
)

LIVE = [1, 2, 20, 40]


def attempt(number: int = 1, *, budget: Budget | None = None, observer: Observer | None = None) -> Attempt:
    """An attempt with a clock that does not move."""
    return Attempt(f"try-{number}", budget or Budget(), observer or Observers(), ManualClock())


def contents(result: RewriteResult) -> list[Entry]:
    """Every entry of the new file, read back."""
    with SegmentReader(result.files[0].path, sealed=True) as reader:
        read = list(reader.scan())
        assert len(read) == len(reader.index) == result.files[0].entries
        return [entry for entry in read if isinstance(entry, Entry)]


def test_two_tries_give_equal_bytes_and_do_not_meet(tmp_path: Path) -> None:
    vector_45(tmp_path)
    task = task_of(tmp_path, [1, 2, 3], LIVE, into=tmp_path)
    results: list[RewriteResult] = []
    threads = [threading.Thread(target=lambda number=number: results.append(task.run(attempt(number))))
               for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    paths = {result.files[0].path for result in results}
    assert len(paths) == 4
    assert len({Path(path).read_bytes() for path in paths}) == 1
    with pytest.raises(StorageError):
        task.run(attempt(0))


def test_damage_to_a_live_entry_is_named_and_leaves_nothing(tmp_path: Path) -> None:
    vector_45(tmp_path)
    place = payload_place(tmp_path, 2, 22)
    flip_byte(tmp_path / segment_name(2), place + 3)
    before = picture(tmp_path)
    with pytest.raises(CorruptData) as caught:
        task_of(tmp_path, [1, 2, 3], [1, 22, 40], into=tmp_path).run(attempt())
    error = caught.value
    assert (error.path, error.offset, error.index) == (str(tmp_path / segment_name(2)), place, 22)
    assert picture(tmp_path) == before


def test_damage_to_a_dead_entry_is_nobodys_business(tmp_path: Path) -> None:
    vector_45(tmp_path)
    for index in (3, 18, 21, 47):
        number = (index + 15) // 16
        flip_byte(tmp_path / segment_name(number), payload_place(tmp_path, number, index))
    result = task_of(tmp_path, [1, 2, 3], LIVE, into=tmp_path).run(attempt())
    assert contents(result) == [entry_of(index) for index in LIVE]


@pytest.mark.parametrize("fail_at", range(1, 6))
def test_a_full_disk_is_named_and_leaves_nothing(fail_at: int, tmp_path: Path) -> None:
    vector_45(tmp_path)
    before = picture(tmp_path)
    task = task_of(tmp_path, [1, 2, 3], LIVE, into=tmp_path)
    with pytest.raises(DiskFull):
        attrs.evolve(task, files=FailingFiles(fail_at=fail_at, sticky=True, short_write=True)).run(attempt())
    assert picture(tmp_path) == before
    assert contents(task.run(attempt())) == [entry_of(index) for index in LIVE]


def test_the_budget_is_checked_before_each_piece(tmp_path: Path) -> None:
    vector_45(tmp_path)
    before = picture(tmp_path)
    live_bytes = sum(len(payload_of(index)) for index in LIVE)
    task = task_of(tmp_path, [1, 2, 3], LIVE, into=tmp_path)
    with pytest.raises(BudgetSpent) as caught:
        task.run(attempt(budget=Budget(total_bytes=live_bytes - 1)))
    assert caught.value.reason == "bytes"
    assert picture(tmp_path) == before
    budget = Budget(total_bytes=live_bytes)
    task.run(attempt(budget=budget))
    assert budget.spent_bytes == live_bytes


@given(st.data())
def test_any_live_set_of_any_log(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    folder = tmp_path_factory.mktemp("any")
    written: list[Entry] = []
    index = 0
    for _ in range(data.draw(st.integers(1, 60))):
        index = data.draw(st.integers(max(index - 3, 0), index + 3))
        entry = Entry(index, len(written), data.draw(st.binary(max_size=40)))
        written.append(entry)
        index += 1
    with SegmentLog(folder, options(limits=SegmentLimits(max_entries=8, max_bytes=100))) as log:
        for entry in written:
            log.append([(entry.index, entry.term, entry.payload)])
        log.end_segment()
    alive = _kept(written)
    live = data.draw(st.sets(st.sampled_from(sorted(alive)), min_size=1))
    with SegmentLog(folder, options()) as log:
        members = [ref.number for ref in log.refs if any(ref.first <= index <= ref.last for index in live)]
    result = task_of(folder, members, sorted(live), into=folder).run(attempt())
    assert contents(result) == [alive[index] for index in sorted(live)]


def _kept(written: Sequence[Entry]) -> dict[int, Entry]:
    kept: dict[int, Entry] = {}
    for entry in written:
        kept = {index: other for index, other in kept.items() if index < entry.index}
        kept[entry.index] = entry
    return kept
