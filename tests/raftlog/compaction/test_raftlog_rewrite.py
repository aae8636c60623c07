# SPDX-License-Identifier: Apache-2.0
"""`CompactSegments`: exactly the live entries, each checked, one file, one sync; nothing left after a failure."""

from __future__ import annotations

import os
import pickle
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import attrs
import pytest
from hypothesis import given, strategies as st

from compactlib.budget import Budget
from compactlib.clock import ManualClock
from compactlib.errors import BudgetSpent, CorruptData, DiskFull, InvalidInput, StorageError
from compactlib.executors import Attempt, RewriteResult
from compactlib.observer import Observer, Observers
from compactlib.raftlog import Entry, LogOptions, SegmentLimits, SegmentLog
from compactlib.raftlog.errors import LiveIndexMissing
from compactlib.raftlog.model.names import segment_name
from compactlib.raftlog.segment.reader import SegmentReader
from tests.harness.failing_files import FailingFiles
from tests.harness.recording import Progress, RecordingObserver
from tests.raftlog.compaction_logs import (
    entries_of,
    entry_of,
    filled,
    flip_byte,
    options,
    overwritten,
    payload_of,
    payload_place,
    picture,
    task_of,
    vector_45,
)
from tests.raftlog.wrapped_files import WatchedFiles

LIVE = [1, 2, 20, 40]


def attempt(number: int = 1, *, budget: Budget | None = None, observer: Observer | None = None) -> Attempt:
    """An attempt whose clock stands still."""
    return Attempt(f"try-{number}", budget or Budget(), observer or Observers(), ManualClock())


def contents(result: RewriteResult) -> list[Entry]:
    """Every entry of the new file, read back."""
    with SegmentReader(result.files[0].path, tail="refuse") as reader:
        read = list(reader.scan())
        assert len(read) == reader.index.entries == result.files[0].entries
        return [entry for entry in read if isinstance(entry, Entry)]


def test_the_new_file_holds_exactly_the_live_entries(tmp_path: Path) -> None:
    vector_45(tmp_path)
    before = picture(tmp_path)
    result = task_of(tmp_path, [1, 2, 3], LIVE, into=tmp_path).run(attempt())
    assert contents(result) == [entry_of(index) for index in LIVE]
    assert result.files[0].path == str(tmp_path / "0000000000000001.segment.try-1")
    with SegmentReader(result.files[0].path, tail="refuse", number=1) as reader:
        assert reader.loaded.header is not None
        assert reader.loaded.header.limits == SegmentLimits(max_entries=4, max_bytes=1 << 20)
        assert reader.loaded.sealed
    assert {name: old for name, old in picture(tmp_path).items() if name in before} == before


def test_the_odd_ones_of_a_hundred(tmp_path: Path) -> None:
    with SegmentLog(tmp_path, LogOptions(limits=SegmentLimits(max_entries=100))) as log:
        log.extend(entry_of(index) for index in range(1, 102))
    result = task_of(tmp_path, [1], range(1, 101, 2), into=tmp_path).run(attempt())
    assert len(contents(result)) == result.files[0].entries == 50
    with SegmentReader(result.files[0].path, tail="refuse") as reader:
        assert [reader.read(index) for index in (1, 2, 3)] == [entry_of(1), None, entry_of(3)]


def test_the_numbers_of_the_result_are_those_of_the_files(tmp_path: Path) -> None:
    vector_45(tmp_path)
    result = task_of(tmp_path, [1, 2, 3], LIVE, into=tmp_path).run(attempt())
    size = 104 + 40 * 4 + sum(len(payload_of(index)) for index in LIVE)
    assert os.path.getsize(result.files[0].path) == size == result.files[0].size_bytes == result.bytes_written
    # 1 and 2 lie side by side, and are read with one call.
    assert result.bytes_read == sum(len(payload_of(index)) for index in LIVE)
    assert (result.task, result.attempt, result.seconds) == ("0000000000000001.segment", "try-1", 0.0)


def test_gaps_between_live_entries_are_read_over_and_counted(tmp_path: Path) -> None:
    vector_45(tmp_path)
    result = task_of(tmp_path, [1], [1, 4], into=tmp_path).run(attempt())
    assert result.bytes_read == sum(len(payload_of(index)) for index in range(1, 5))
    assert contents(result) == [entry_of(1), entry_of(4)]


def test_one_sync_and_no_other_change_than_to_its_own_file(tmp_path: Path) -> None:
    vector_45(tmp_path)
    steps: list[tuple[str, str]] = []
    files = WatchedFiles(lambda operation, path: steps.append((operation, os.path.basename(path))))
    task_of(tmp_path, [1, 2, 3], LIVE, into=tmp_path, files=files).run(attempt())
    assert {path for _, path in steps} == {"0000000000000001.segment.try-1"}
    operations = [operation for operation, _ in steps]
    assert operations[0] == "create"
    assert operations[-1] == "sync"
    assert operations.count("sync") == 1


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


def test_a_task_survives_pickling(tmp_path: Path) -> None:
    vector_45(tmp_path)
    task = task_of(tmp_path, [1, 2, 3], LIVE, into=tmp_path)
    again = pickle.loads(pickle.dumps(task))
    assert again == task
    assert contents(again.run(attempt())) == [entry_of(index) for index in LIVE]


def test_entries_that_were_taken_back_are_not_copied_and_terms_survive(tmp_path: Path) -> None:
    expected = overwritten(tmp_path)
    with SegmentLog(tmp_path, options()) as log:
        members, end = [ref.number for ref in log.refs[:-1]], log.refs[-2].last
    live = sorted(index for index in expected.entries if index <= end)
    result = task_of(tmp_path, members, live, into=tmp_path).run(attempt())
    assert contents(result) == [expected.entries[index] for index in live]
    assert {entry.term for entry in contents(result)} == {1, 2, 3}
    data = Path(result.files[0].path).read_bytes()
    assert payload_of(28, 1) not in data
    assert payload_of(28, 2) in data


def test_payloads_of_no_bytes(tmp_path: Path) -> None:
    with SegmentLog(tmp_path, options()) as log:
        log.extend((index, 7, b"") for index in range(1, 34))
    observer = RecordingObserver()
    result = task_of(tmp_path, [1, 2], [1, 16, 17, 30], into=tmp_path).run(attempt(observer=observer))
    assert contents(result) == [Entry(index, 7, b"") for index in (1, 16, 17, 30)]
    assert (result.bytes_read, result.bytes_written) == (0, 104 + 4 * 40)
    assert all(progress.done == progress.total == 0 for progress in observer.progresses)


def test_entries_larger_than_a_read(tmp_path: Path) -> None:
    large = {index: bytes([index]) * (700_000 * index) for index in range(1, 6)}
    with SegmentLog(tmp_path, options()) as log:
        log.extend((index, 1, large.get(index, b"small")) for index in range(1, 18))
    observer = RecordingObserver()
    result = task_of(tmp_path, [1], [1, 3, 4, 5, 9], into=tmp_path).run(attempt(observer=observer))
    assert contents(result) == [Entry(index, 1, large.get(index, b"small")) for index in (1, 3, 4, 5, 9)]
    steps = [progress.done for progress in observer.progresses]
    assert len(steps) > 3
    assert steps == sorted(steps)
    assert observer.progresses[-1] == Progress("compact 0000000000000001.segment", steps[-1], steps[-1])


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


def test_a_live_index_that_is_not_there(tmp_path: Path) -> None:
    filled(tmp_path, last=17, snapshot=16, live=[1])
    with SegmentLog(tmp_path, options()) as log:
        log.append(30, 1, b"behind a gap")
        log.extend(entries_of(31, 60))
    before = picture(tmp_path)
    with pytest.raises(LiveIndexMissing) as caught:
        task_of(tmp_path, [2], [17, 25, 31], into=tmp_path).run(attempt())
    assert (caught.value.missing, caught.value.first) == (1, 25)
    assert picture(tmp_path) == before


def test_nothing_to_copy_is_refused(tmp_path: Path) -> None:
    vector_45(tmp_path)
    before = picture(tmp_path)
    with pytest.raises(InvalidInput, match="no live entry"):
        task_of(tmp_path, [1, 2], [], into=tmp_path).run(attempt())
    assert picture(tmp_path) == before


@pytest.mark.parametrize("fail_at", range(1, 6))
def test_a_full_disk_is_named_and_leaves_nothing(fail_at: int, tmp_path: Path) -> None:
    vector_45(tmp_path)
    before = picture(tmp_path)
    task = task_of(tmp_path, [1, 2, 3], LIVE, into=tmp_path)
    with pytest.raises(DiskFull):
        attrs.evolve(task, files=FailingFiles(fail_at=fail_at, sticky=True, short_write=True)).run(attempt())
    assert picture(tmp_path) == before
    assert contents(task.run(attempt())) == [entry_of(index) for index in LIVE]


def test_the_budget_is_asked_before_each_piece_and_what_it_stops_leaves_nothing(tmp_path: Path) -> None:
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


class _CancelsAt:
    def __init__(self, budget: Budget, done: int) -> None:
        self.budget, self.done = budget, done
        self.seen: list[int] = []

    def event(self, name: str, /, **fields: Any) -> None:
        self.seen.append(fields["done"])
        if fields["done"] >= self.done:
            self.budget.cancel()


def test_it_can_be_cancelled_between_two_entries(tmp_path: Path) -> None:
    with SegmentLog(tmp_path, options()) as log:
        log.extend((index, 1, bytes(1_000_000)) for index in range(1, 18))
    before = picture(tmp_path)
    budget = Budget()
    observer = _CancelsAt(budget, 3_000_000)
    with pytest.raises(BudgetSpent) as caught:
        task_of(tmp_path, [1], range(1, 9), into=tmp_path).run(attempt(budget=budget, observer=observer))
    assert caught.value.reason == "cancelled"
    assert 3_000_000 <= observer.seen[-1] < 5_000_000
    assert picture(tmp_path) == before


def test_the_rate_is_kept(tmp_path: Path) -> None:
    clock = ManualClock()
    with SegmentLog(tmp_path, options()) as log:
        log.extend((index, 1, bytes(1_000_000)) for index in range(1, 18))
    budget = Budget(bytes_per_second=2_000_000.0, clock=clock)
    result = task_of(tmp_path, [1], range(1, 9), into=tmp_path).run(Attempt("1", budget, Observers(), clock))
    # Eight megabytes at two a second, of which a tenth of a second's worth was saved up.
    assert 3.8 <= result.seconds <= 4.0


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
            log.append(entry.index, entry.term, entry.payload)
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
