# SPDX-License-Identifier: Apache-2.0
"""`SegmentLog` as its host sees it: cases with known answers end to end, and what each call promises."""

from __future__ import annotations

import copy
import errno
import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from compactlib.clock import ManualClock
from compactlib.errors import Busy, Closed, InvalidInput, Stale, StorageError, Unsorted
from compactlib.files import LocalFiles, OutFile
from compactlib.files.disk import LocalOutFile, StrPath
from compactlib.indexset import IndexSet
from compactlib.raftlog import (
    DeadEntry,
    DropDead,
    Entry,
    EveryNMinors,
    LogOptions,
    LogReader,
    MissingEntry,
    SegmentLimits,
    SegmentLog,
)
from compactlib.raftlog.compaction.report import LogCompactionReport
from compactlib.raftlog.errors import LiveAboveSnapshot, LiveIndexMissing
from compactlib.raftlog.model.names import segment_name
from compactlib.raftlog.model.values import MAX_INDEX, SegmentRef
from compactlib.raftlog.segment.writer import SegmentWriter
from tests.harness.plain_log import History, PlainLog, log_answers
from tests.harness.recording import RecordingObserver
from tests.raftlog.reading import copy_folder, write_segment

if TYPE_CHECKING:
    from typing_extensions import Buffer


def payload(index: int) -> bytes:
    return b"payload of %d" % index


def options(max_entries: int = 128, max_bytes: int = 64_000_000, **changes: Any) -> LogOptions:
    return LogOptions(limits=SegmentLimits(max_entries=max_entries, max_bytes=max_bytes), **changes)


def append(log: SegmentLog, model: PlainLog, indexes: Iterable[int], term: int = 1) -> None:
    rows = [(index, term, payload(index)) for index in indexes]
    log.extend(rows)
    for row in rows:
        model.append(*row)


def record(log: SegmentLog, model: PlainLog, index: int, live: Iterable[int] = ()) -> None:
    kept = sorted(live)
    log.record_snapshot(index, kept)
    model.record_snapshot(index, kept)


def ranges(log: LogReader | SegmentLog) -> list[tuple[int, int]]:
    return [(ref.first, ref.last) for ref in log.refs]


def report(found: LogCompactionReport) -> LogCompactionReport:
    assert not found.is_empty
    return found


def segment_files(folder: Path) -> list[str]:
    return sorted(name for name in os.listdir(folder) if name.endswith(".segment"))


# -- known answers


def test_a_reopened_log_keeps_the_capacity_of_its_newest_segment(tmp_path: Path) -> None:
    with SegmentLog(tmp_path, options(4)) as log:
        log.extend((index, 1, b"") for index in (1, 2))
    with SegmentLog(tmp_path, options(128)) as log:
        log.extend((index, 1, b"") for index in range(3, 9))
        # Two more fit into the old one; the new limits hold for the next.
        assert ranges(log) == [(1, 4), (5, 8)]


def test_five_then_two(tmp_path: Path) -> None:
    with SegmentLog(tmp_path) as log:
        log.append(5, 1, b"five")
        log.append(2, 2, b"two")
        assert ranges(log) == [(2, 2)]
        expected = {1: MissingEntry(1), 2: Entry(2, 2, b"two"), 5: MissingEntry(5)}
        assert log_answers(log, [1, 2, 5]) == expected
    with LogReader(tmp_path) as reader:
        assert log_answers(reader, [1, 2, 5]) == expected


@pytest.mark.parametrize("max_entries", [128, 5, 4, 3, 2])
def test_one_to_five_then_three_to_five(tmp_path: Path, max_entries: int) -> None:
    """In one file, and over several: the older ones become shorter, or go."""
    model = PlainLog()
    with SegmentLog(tmp_path, options(max_entries)) as log:
        append(log, model, range(1, 6), term=1)
        model.check(log)
        append(log, model, range(3, 6), term=2)
        assert [model.entries[index].term for index in range(1, 6)] == [1, 1, 2, 2, 2]
        model.check(log)
        log.sync()
        assert (log.first_index, log.last_index) == (1, 5)
    for _ in range(2):
        with SegmentLog(tmp_path, options(max_entries)) as log:
            model.check(log)


def test_a_newest_file_of_no_bytes_is_replaced(tmp_path: Path) -> None:
    write_segment(tmp_path, 1, [(1, 1, b"one")])
    (tmp_path / segment_name(2)).touch()
    with LogReader(tmp_path) as reader:
        assert log_answers(reader, [1, 2]) == {1: Entry(1, 1, b"one"), 2: MissingEntry(2)}
    with SegmentLog(tmp_path) as log:
        log.append(2, 1, b"two")
        assert log.refs == (SegmentRef(1, 1, 1), SegmentRef(2, 2, 2))
    with LogReader(tmp_path) as reader:
        assert [entry.payload for entry in reader.entries()] == [b"one", b"two"]


def test_alone(tmp_path: Path) -> None:
    (tmp_path / segment_name(1)).touch()
    with SegmentLog(tmp_path) as log:
        log.extend((index, 1, b"") for index in (1, 2, 3))
        assert log.refs == (SegmentRef(1, 1, 3),)


def test_ten_entries_of_126_bytes_take_two_files_of_1000(tmp_path: Path) -> None:
    with SegmentLog(tmp_path, options(4096, 1000)) as log:
        log.extend((index, 1, bytes(126)) for index in range(1, 11))
        assert ranges(log) == [(1, 8), (9, 10)]


def test_a_dead_segment_goes_and_then_all_but_the_newest(tmp_path: Path) -> None:
    model = PlainLog()
    with SegmentLog(tmp_path, options()) as log:
        append(log, model, range(1, 501))
        assert ranges(log) == [(1, 128), (129, 256), (257, 384), (385, 500)]
        record(log, model, 500, [1, 257, *range(267, 498, 10)])
        found = report(log.compact(policy=DropDead()))
        assert (found.dropped, found.groups) == ((2,), ())
        assert ranges(log) == [(1, 128), (257, 384), (385, 500)]
        model.check(log)
    with SegmentLog(tmp_path, options()) as log:
        assert ranges(log) == [(1, 128), (257, 384), (385, 500)]
        model.check(log)
        # The newest segment goes on; the others are dead now.
        append(log, model, [501])
        record(log, model, 501)
        assert report(log.compact(policy=DropDead())).dropped == (1, 3)
        assert ranges(log) == [(385, 501)]
        model.check(log)
    assert segment_files(tmp_path) == [segment_name(4)]


def test_a_segment_with_live_entries_stays(tmp_path: Path) -> None:
    model = PlainLog()
    with SegmentLog(tmp_path, options()) as log:
        append(log, model, range(1, 385))
        record(log, model, 256, range(1, 127, 5))
        assert report(log.compact(policy=DropDead())).dropped == (2,)
        assert ranges(log) == [(1, 128), (257, 384)]
        model.check(log)
    assert len(segment_files(tmp_path)) == 2


def test_a_segment_that_reaches_above_the_snapshot_is_not_compactable(tmp_path: Path) -> None:
    model = PlainLog()
    with SegmentLog(tmp_path, options()) as log:
        append(log, model, range(1, 301))
        record(log, model, 127)
        assert log.view().compactable == ()
        assert log.compact(policy=DropDead()).is_empty
        record(log, model, 300)
        assert [stats.number for stats in log.view().compactable] == [1, 2]
        model.check(log)


def test_a_single_segment_and_a_low_snapshot_are_nothing_to_do(tmp_path: Path) -> None:
    with SegmentLog(tmp_path / "one", options(trigger=EveryNMinors(1))) as log:
        log.extend((index, 1, b"") for index in range(1, 100))
        log.record_snapshot(99)
        for policy in (DropDead(), log.policy, None):
            assert log.compact(policy=policy).is_empty
        assert ranges(log) == [(1, 99)]
    model = PlainLog()
    with SegmentLog(tmp_path / "low", options(trigger=EveryNMinors(1))) as log:
        append(log, model, range(1, 301))
        record(log, model, 100, [1])
        for _ in range(3):
            assert log.compact().is_empty
        # None of them counted as a minor: with one, the next would be a major.
        record(log, model, 256, [1, 200])
        assert log.compact().is_empty
        assert report(log.compact()).policy.name == "seed"
        model.check(log)


def test_one_of_two_files_goes(tmp_path: Path) -> None:
    model = PlainLog()
    with SegmentLog(tmp_path, options()) as log:
        append(log, model, range(150))
        assert ranges(log) == [(0, 127), (128, 149)]
        record(log, model, 127)
        assert report(log.compact(policy=DropDead())).dropped == (1,)
        assert segment_files(tmp_path) == [segment_name(2)]
        record(log, model, 149)
        assert log.compact(policy=DropDead()).is_empty
        assert segment_files(tmp_path) == [segment_name(2)]
        model.check(log)


# -- opening and closing


def test_a_new_log_is_a_folder_with_an_empty_segment(tmp_path: Path) -> None:
    with SegmentLog(tmp_path / "log") as log:
        assert (log.refs, log.first_index, log.last_index, log.snapshot) == ((), None, None, None)
        assert (log.recovery, log.torn_entries) == (type(log.recovery)(), 0)
        assert log_answers(log, [0, 1]) == {0: MissingEntry(0), 1: MissingEntry(1)}
        assert "0 segments, None to None, snapshot None" in repr(log)
    assert sorted(os.listdir(tmp_path / "log")) == [segment_name(1), "LOCK"]
    with LogReader(tmp_path / "log") as reader:
        assert (list(reader.entries()), reader.verify().findings, reader.stats()) == ([], (), ())


def test_a_log_closes_once_and_answers_nothing_afterwards(tmp_path: Path) -> None:
    log = SegmentLog(tmp_path, options(1))
    log.extend([(1, 1, b"one"), (2, 1, b"two")])
    log.close()
    log.close()
    acts: list[Callable[[], object]] = [
        lambda: log.append(3, 1, b""), lambda: log.extend([(3, 1, b"")]), log.sync, lambda: log.record_snapshot(1),
        log.compact, log.reclaim, *(lambda index=index: log.read(index) for index in (1, 2, 9)),
        lambda: list(log.read_many([1])),
        lambda: log.plan_read([1]), lambda: list(log.entries()), log.stats, log.verify]
    for act in acts:
        with pytest.raises(Closed, match=r"the log in .* was closed; open it again"):
            act()
    with LogReader(tmp_path) as reader:
        assert list(reader.entries()) == [Entry(1, 1, b"one"), Entry(2, 1, b"two")]


def test_a_torn_tail_is_told(tmp_path: Path) -> None:
    with SegmentLog(tmp_path) as log:
        log.extend((index, 1, b"payload") for index in (1, 2))
        log.sync()
        log.extend((index, 1, b"payload") for index in (3, 4))
        log.sync()
        copied = copy_folder(tmp_path, tmp_path.parent / (tmp_path.name + "-copy"))
    os.truncate(copied / segment_name(1), os.path.getsize(copied / segment_name(1)) - 9)
    # The newer seal is damaged, so that only what is whole tells; 3 and 4 are no longer known to be durable.
    data = bytearray((copied / segment_name(1)).read_bytes())
    data[72] ^= 1
    (copied / segment_name(1)).write_bytes(data)
    told = RecordingObserver()
    with SegmentLog(copied, LogOptions(observer=told)) as log:
        assert log.torn_entries == 2
        assert [entry.index for entry in log.entries()] == [1, 2]
        assert log.last_index == 2


def test_entries_come_back_as_entries(tmp_path: Path) -> None:
    with SegmentLog(tmp_path / "one") as log:
        log.extend([Entry(1, 1, b"one"), (2, 1, b"two")])
        entries = list(log.entries())
    with SegmentLog(tmp_path / "two") as log:
        log.extend(entries)
        assert list(log.entries()) == entries


def test_an_extend_that_is_refused_adds_nothing(tmp_path: Path) -> None:
    with SegmentLog(tmp_path, options(2)) as log:
        with pytest.raises(InvalidInput):
            log.extend([(1, 1, b"one"), (2, 1, b"two"), (3, -1, b"refused"), (4, 1, b"four")])
        PlainLog.of([]).check(log)
        log.append(3, 1, b"three")
        PlainLog.of([(3, 1, b"three")]).check(log)


@pytest.mark.parametrize("wrong", ["text", None, 5])
def test_a_payload_of_a_wrong_type_changes_nothing(tmp_path: Path, wrong: Any) -> None:
    with SegmentLog(tmp_path, options(2)) as log:
        log.extend([(1, 1, b"one"), (2, 1, b"two")])
        with pytest.raises(InvalidInput):
            log.append(3, 1, wrong)
        PlainLog.of([(1, 1, b"one"), (2, 1, b"two")]).check(log)


def test_the_largest_index(tmp_path: Path) -> None:
    with SegmentLog(tmp_path, options(1)) as log:
        log.append(MAX_INDEX - 1, MAX_INDEX, b"one before")
        log.append(MAX_INDEX, MAX_INDEX, b"last")
        with pytest.raises(InvalidInput):
            log.append(MAX_INDEX + 1, 1, b"")
        log.record_snapshot(MAX_INDEX, [MAX_INDEX])
        assert log.read(MAX_INDEX) == Entry(MAX_INDEX, MAX_INDEX, b"last")
        assert log.read(MAX_INDEX - 1) == DeadEntry(MAX_INDEX - 1, MAX_INDEX)
        assert [entry.index for entry in log.entries()] == [MAX_INDEX]
        report(log.compact())
    with SegmentLog(tmp_path) as log:
        assert log.read(MAX_INDEX) == Entry(MAX_INDEX, MAX_INDEX, b"last")


# -- what was published may become old


def test_a_list_that_was_asked_for_does_not_hide_what_is_appended_later(tmp_path: Path) -> None:
    """Asking opened a reader of the newest segment, which then answered for it for ever."""
    model = PlainLog()
    with SegmentLog(tmp_path, options(4)) as log:
        for index in range(1, 14):
            append(log, model, [index])
            assert log.refs[-1].last == index
            assert list(log.read_many([index])) == [model.answer(index)]
            model.check(log)


def test_an_entry_that_was_taken_back_is_missing_at_once(tmp_path: Path) -> None:
    model = PlainLog()
    with SegmentLog(tmp_path, options(10)) as log:
        append(log, model, range(1, 8))
        model.check(log)
        append(log, model, [3], term=2)
        assert log.read(5) == MissingEntry(5)
        model.check(log)


def test_an_overwrite_after_reopening_a_sealed_segment(tmp_path: Path) -> None:
    """The newest segment is sealed when a process ended while rolling over."""
    write_segment(tmp_path, 1, [(index, 1, payload(index)) for index in range(1, 4)])
    write_segment(tmp_path, 2, [(index, 1, payload(index)) for index in range(4, 7)])
    model = PlainLog.of([(index, 1, payload(index)) for index in range(1, 7)])
    with SegmentLog(tmp_path) as log:
        model.check(log)
        append(log, model, [2], term=2)
        assert log.read(6) == MissingEntry(6)
        model.check(log)
        log.sync()
        # Segment 2 holds nothing that counts any more.
        assert segment_files(tmp_path) == [segment_name(1), segment_name(3)]
    with SegmentLog(tmp_path) as log:
        model.check(log)


def test_dead_missing_and_live_are_three_answers(tmp_path: Path) -> None:
    with SegmentLog(tmp_path) as log:
        log.extend((index, 1, payload(index)) for index in (1, 2, 3, 5))
        log.record_snapshot(3, [2])
        for opened in (log, LogReader(tmp_path)):
            assert log_answers(opened, range(7)) == {
                0: DeadEntry(0, 3), 1: DeadEntry(1, 3), 2: Entry(2, 1, payload(2)), 3: DeadEntry(3, 3),
                4: MissingEntry(4), 5: Entry(5, 1, payload(5)), 6: MissingEntry(6)}


def test_a_snapshot_that_cannot_be_leaves_the_one_before_in_force(tmp_path: Path) -> None:
    model = PlainLog()
    with SegmentLog(tmp_path, options(4)) as log:
        append(log, model, [*range(1, 11), 12, 13])
        record(log, model, 5, [2, 4])
        before = (tmp_path / "SNAPSHOT").read_bytes()
        acts: list[tuple[type[Exception], Callable[[], None]]] = [
            (LiveAboveSnapshot, lambda: log.record_snapshot(8, [4, 9])),
            (Unsorted, lambda: log.record_snapshot(8, [4, 2])),
            (Unsorted, lambda: log.record_snapshot(8, [2, 2])),
            (InvalidInput, lambda: log.record_snapshot(8, [-1])),
            (InvalidInput, lambda: log.record_snapshot(-1)),
            (InvalidInput, lambda: log.record_snapshot(MAX_INDEX + 1)),
            # In no segment: below the first, in a gap, above the last, dead already.
            (LiveIndexMissing, lambda: log.record_snapshot(13, [0])),
            (LiveIndexMissing, lambda: log.record_snapshot(13, [2, 11])),
            (LiveIndexMissing, lambda: log.record_snapshot(20, [14])),
            (LiveIndexMissing, lambda: log.record_snapshot(13, [3, 7])),
            (LiveIndexMissing, lambda: log.record_snapshot(13, IndexSet.range(4, 12))),
            (Stale, lambda: log.record_snapshot(4, [2])),
        ]
        for error, act in acts:
            with pytest.raises(error):
                act()
            assert (tmp_path / "SNAPSHOT").read_bytes() == before
            model.check(log)
        with pytest.raises(LiveIndexMissing, match="1 of 5 live indexes are in no segment or died before") as raised:
            log.record_snapshot(13, [2, 4, 7, 11, 13])
    assert (raised.value.missing, raised.value.first) == (1, 11)
    with SegmentLog(tmp_path) as log:
        model.check(log)


def test_a_snapshot_syncs_what_it_covers(tmp_path: Path) -> None:
    with SegmentLog(tmp_path) as log:
        log.append(1, 1, b"one")
        log.record_snapshot(1, [1])
        with LogReader(tmp_path) as reader:
            assert list(reader.entries()) == [Entry(1, 1, b"one")]


def test_a_snapshot_may_reach_above_the_log_and_be_recorded_again(tmp_path: Path) -> None:
    """A follower that is far behind is given a snapshot; and the same index may come with fewer live entries."""
    model = PlainLog()
    with SegmentLog(tmp_path, options(2)) as log:
        append(log, model, range(1, 6))
        record(log, model, 100, [2, 5])
        with pytest.raises(InvalidInput, match="index 100 lies at or below the snapshot 100"):
            log.append(100, 2, b"")
        append(log, model, [101], term=2)
        record(log, model, 100, [5])
        model.check(log)
    with SegmentLog(tmp_path) as log:
        model.check(log)


def test_an_empty_live_set_is_written_out(tmp_path: Path) -> None:
    """A missing file says that there never was a snapshot, and nothing is dead then."""
    with SegmentLog(tmp_path, options(2)) as log:
        log.extend((index, 1, b"") for index in range(1, 6))
        assert log.compact(policy=log.policy).is_empty
        log.record_snapshot(5)
    assert (tmp_path / "SNAPSHOT").exists()
    with SegmentLog(tmp_path) as log:
        assert log.snapshot is not None
        assert (log.snapshot.index, list(log.snapshot.live)) == (5, [])
        assert log.read(5) == DeadEntry(5, 5)


def test_old_links_go_when_their_time_has_come(tmp_path: Path) -> None:
    clock = ManualClock(os.stat(tmp_path).st_mtime)
    model = PlainLog()
    with SegmentLog(tmp_path, options(4, clock=clock, keep_links_seconds=3600)) as log:
        append(log, model, range(1, 18))
        record(log, model, 16, [1, 6, 11])
        assert [group.members for group in report(log.compact(policy=log.policy)).done] == [(1, 2, 3)]
        assert (tmp_path / segment_name(2)).is_symlink()
        clock.advance(3000)
        assert log.reclaim().is_empty
        clock.advance(700)
        outcome = log.reclaim()
        assert not outcome.is_empty
        assert outcome.links == (2, 3)
        model.check(log)


# -- a disk that refuses


def drive(log: SegmentLog, history: History, acknowledged: list[int]) -> None:
    """Roll-overs, an overwrite across segments, a snapshot; notes each state before it is asked for."""
    def write(indexes: Iterable[int], term: int) -> None:
        for index in indexes:
            history.append(index, term, payload(index))
            log.append(index, term, payload(index))

    def sync() -> None:
        log.sync()
        acknowledged.append(len(history.states) - 1)

    write(range(1, 8), 1)
    sync()
    write([9, 12, *range(3, 6)], 2)
    sync()
    history.record_snapshot(4, [2, 4])
    log.record_snapshot(4, [2, 4])
    acknowledged.append(len(history.states) - 1)
    write(range(6, 9), 3)
    log.close()
    acknowledged.append(len(history.states) - 1)


def goes_on_by_itself(log: SegmentLog, history: History, acknowledged: list[int]) -> None:
    """What the error has cost is gone; the next entry goes behind what is left, and is acknowledged as ever."""
    try:
        state = history.found(log, acknowledged)
    except Closed:
        # It was the last sync that was refused.
        return
    state.check(log)
    refused = history.states[-1]
    row = (state.last + 1, 8, b"after the error")
    log.append(*row)
    log.sync()
    acknowledged.append(len(history.states))
    history.states.append(copy.copy(state))
    history.append(*row)
    del history.states[-2]
    history.states[-1].check(log)
    if refused.snapshot > state.snapshot:
        # The snapshot may have arrived although it was refused: only the last sync was, and it is there when the log
        # is opened again.
        history.states.append(copy.copy(history.states[-1]))
        history.states[-1].record_snapshot(refused.snapshot, [2, 4])


class SwitchedFiles(LocalFiles):
    """A disk that can be broken and repaired."""

    broken = False

    def create(self, path: StrPath) -> OutFile:
        self.check(path)
        return SwitchedOutFile(path, os.O_CREAT | os.O_EXCL, self)

    def open(self, path: StrPath) -> OutFile:
        self.check(path)
        return SwitchedOutFile(path, 0, self)

    def check(self, path: StrPath) -> None:
        if self.broken:
            raise StorageError(operation="write", path=path, errno=errno.EIO)


class SwitchedOutFile(LocalOutFile):
    def __init__(self, path: StrPath, flags: int, files: SwitchedFiles) -> None:
        super().__init__(path, flags)
        self.files = files

    def write_at(self, offset: int, pieces: Sequence[Buffer]) -> int:
        self.files.check(self.path)
        return super().write_at(offset, pieces)

    def sync(self) -> None:
        self.files.check(self.path)
        super().sync()


def test_a_writer_object_is_not_shared_by_two_logs(tmp_path: Path) -> None:
    with SegmentLog(tmp_path) as log:
        log.append(1, 1, b"one")
        with pytest.raises(Busy, match=r"by process \d+; close it there first, or read it with a LogReader"):
            SegmentLog(tmp_path)
        log.append(2, 1, b"two")
    with SegmentLog(tmp_path) as log:
        assert [entry.index for entry in log.entries()] == [1, 2]


def test_segments_written_without_a_log_are_a_log(tmp_path: Path) -> None:
    with SegmentWriter.create(LocalFiles(), tmp_path, 3) as writer:
        writer.append(1, 1, b"one")
    with SegmentLog(tmp_path) as log:
        log.append(2, 1, b"two")
        assert log.refs == (SegmentRef(3, 1, 2),)
