# SPDX-License-Identifier: Apache-2.0
"""The shared WAL under damage, disks that refuse, interrupts and crashes."""

from __future__ import annotations

import errno
import linecache
import os
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from compactlib.errors import CorruptData, DiskFull, InvalidInput, StorageError
from compactlib.files import Files, zeros_ahead
from compactlib.indexset import IndexSet
from compactlib.raftlog import SnapshotMeta
from compactlib.raftlog.errors import LogStopped
from compactlib.raftlog.model.row import LogRows
from compactlib.raftlog.wal.recovery import recover_wal
from compactlib.raftlog.wal.wal import ClosedFile, Wal
from compactlib.testing import RecordingFiles, explore_crashes, explore_recovery, record
from tests.harness.effort import Effort
from tests.raftlog.wal.opened_wal import LOCAL, Opened, entries_of
from tests.raftlog.wrapped_files import WatchedFiles
from tests.tools.faults.plan import FailingFiles, Fault

# -- damage


def written(folder: Path, batches: int = 4, *, close: bool = True) -> Path:
    """One file of `batches` batches of 3 entries each; without a clean end, the last batch has no mark behind it."""
    opened = Opened(folder)
    for batch in range(batches):
        first = 3 * batch + 1
        opened.wal.write_run("a", first - 1, first, 1, [b"entry %d" % (first + place) for place in range(3)])
        opened.wal.sync()
    path = Path(opened.wal.path)
    if close:
        opened.wal.close()
    return path


def test_a_flipped_byte_in_what_was_durable_is_damage_at_every_place(tmp_path: Path) -> None:
    path = written(tmp_path)
    data = path.read_bytes()
    end = Opened(tmp_path).wal
    end.close()
    os.unlink(end.path)
    checked = 0
    for place in range(64, len(data) - 64, 3):
        path.write_bytes(data[:place] + bytes([data[place] ^ 0x10]) + data[place + 1:])
        try:
            found = recover_wal(LOCAL, tmp_path)
        except CorruptData as error:
            assert error.path == str(path)
            checked += 1
        else:
            # Padding is not part of anything.
            assert len(entries_of(found)) == 12
    assert checked > (len(data) - 128) // 3 * 0.9


def test_a_torn_tail_is_cut_at_every_length(tmp_path: Path) -> None:
    path = written(tmp_path, close=False)
    data = path.read_bytes()
    for size in range(64, len(data), 5):
        path.write_bytes(data[:size])
        rows = entries_of(recover_wal(LOCAL, tmp_path))
        assert len(rows) % 3 == 0
        assert [row[1] for row in rows] == list(range(1, len(rows) + 1))
    path.write_bytes(data[:40])
    with pytest.raises(CorruptData, match="expected at least 64 bytes"):
        recover_wal(LOCAL, tmp_path)


def test_zeros_ahead_of_the_frames_are_not_torn_bytes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    plain, zeros = tmp_path / "plain", tmp_path / "zeros"
    plain.mkdir()
    before = written(plain).stat().st_size
    zeros_at_once(monkeypatch)
    zeros.mkdir()
    path = written(zeros)
    assert path.stat().st_size > before + 64
    assert path.read_bytes()[:before] == (plain / path.name).read_bytes()
    assert not any(path.read_bytes()[before:])
    # Nor is the mark.
    assert recover_wal(LOCAL, zeros).torn_bytes == recover_wal(LOCAL, plain).torn_bytes == 0


def test_a_disk_without_room_for_zeros_takes_the_batch(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    zeros_at_once(monkeypatch)
    probe = FailingFiles()
    (tmp_path / "probe").mkdir()
    Opened(tmp_path / "probe", files=probe)
    folder = tmp_path / "wal"
    folder.mkdir()
    opened = Opened(folder, files=FailingFiles(fail_at=probe.count + 2))
    opened.put("a", 0, 1)
    opened.wal.sync()
    assert opened.told() == [("a", 1, [1])]
    assert Path(opened.wal.path).stat().st_size == opened.wal.size_bytes + 64
    assert [row[1] for row in entries_of(recover_wal(LOCAL, folder))] == [1]


def test_a_batch_that_lost_its_first_block_is_torn(tmp_path: Path) -> None:
    """The frames behind it are whole, but nothing ever said that the batch was durable."""
    opened = Opened(tmp_path)
    opened.put("a", 0, 1)
    opened.wal.sync()
    begins = opened.wal.size_bytes
    for index in (2, 3, 4):
        opened.put("a", index - 1, index, payload=bytes([index]) * 5000)
    opened.wal.sync()
    path, ends = Path(opened.wal.path), opened.wal.size_bytes
    data = path.read_bytes()
    for block in range(begins, ends, 4096):
        hole = min(4096, ends - block)
        # As a crash leaves it: without the mark that was written after the sync.
        path.write_bytes(data[:block] + bytes(hole) + data[block + hole:ends])
        rows = [row[1] for row in entries_of(recover_wal(LOCAL, tmp_path))]
        assert rows == list(range(1, len(rows) + 1))
        assert 1 <= len(rows) < 4


def test_damage_in_a_file_that_has_a_successor_is_never_a_torn_tail(tmp_path: Path) -> None:
    opened = Opened(tmp_path)
    opened.wal.write_run("a", None, 1, 1, [b"one", b"two"])
    opened.wal.sync()
    path, end = Path(opened.wal.path), opened.wal.size_bytes
    opened.wal.roll_over()
    opened.wal.close()
    data = path.read_bytes()
    path.write_bytes(data[:end - 8] + b"\xff" * 8)
    with pytest.raises(CorruptData, match="as the next file says"):
        recover_wal(LOCAL, tmp_path)
    path.write_bytes(data[:end - 8])
    with pytest.raises(CorruptData, match="as the next file says"):
        recover_wal(LOCAL, tmp_path)


def test_a_payload_that_looks_like_a_frame_proves_nothing(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    foreign = written(tmp_path / "other").read_bytes()
    folder = tmp_path / "wal"
    folder.mkdir()
    opened = Opened(folder, now=1.0)
    opened.put("a", None, 1)
    opened.wal.sync()
    opened.put("a", 1, 2, payload=bytes(-opened.wal.size_bytes % 8) + foreign * 3)
    opened.wal.sync()
    path = Path(opened.wal.path)
    data = path.read_bytes()
    # The batch lost its first block, and nothing behind it: torn.
    torn = bytearray(data[:-64])
    torn[opened.found.last_end + 300:opened.found.last_end + 340] = bytes(40)
    path.write_bytes(torn)
    assert [row[1] for row in entries_of(recover_wal(LOCAL, folder))] == [1]


# -- a disk that refuses


def test_after_a_failed_sync_nothing_is_confirmed_any_more(tmp_path: Path) -> None:
    probe = FailingFiles()
    (tmp_path / "probe").mkdir()
    Opened(tmp_path / "probe", files=probe)
    before = probe.count
    (tmp_path / "wal").mkdir()
    opened = Opened(tmp_path / "wal", files=FailingFiles(fail_at=before + 2, errno=errno.EIO))
    opened.put("a", 0, 1)
    with pytest.raises(LogStopped, match="could not be made durable") as raised:
        opened.wal.sync()
    assert isinstance(raised.value.__cause__, StorageError)
    # The disk is well again, which proves nothing.
    for _ in range(2):
        with pytest.raises(LogStopped):
            opened.wal.sync()
        with pytest.raises(LogStopped):
            opened.put("a", 1, 2)
    with pytest.raises(LogStopped):
        opened.wal.roll_over()
    assert opened.told() == []
    assert opened.wal.stopped is not None
    opened.wal.close()


@pytest.mark.parametrize("operation", ["write", "sync"])
def test_an_interrupt_in_the_middle_of_a_batch_stops_the_wal(operation: str, tmp_path: Path) -> None:
    """Ctrl-C: nobody can say what the file holds, and the queue was taken already."""
    armed = threading.Event()

    def look(found: str, path: str) -> None:
        if armed.is_set() and found == operation:
            raise KeyboardInterrupt

    opened = Opened(tmp_path, files=WatchedFiles(look))
    opened.put("a", 0, 1)
    armed.set()
    with pytest.raises(KeyboardInterrupt):
        opened.wal.sync()
    armed.clear()
    with pytest.raises(LogStopped, match="KeyboardInterrupt"):
        opened.wal.sync()
    assert opened.told() == []


def test_an_interrupt_at_any_line_of_a_sync_lets_nobody_acknowledge_what_is_not_written(tmp_path: Path) -> None:
    """Whoever syncs next finds an empty queue, and must not take it for a durable one."""
    number, interrupted = 0, True
    while interrupted:
        number += 1
        left = number

        def trace(frame: FrameType, event: str, argument: object) -> Any:
            nonlocal left
            if not frame.f_code.co_filename.endswith("wal.py"):
                return trace
            # Python delivers no signal between the end of a `with` and its `__exit__`, traced as its first line.
            if event == "line" and "with " not in linecache.getline(frame.f_code.co_filename, frame.f_lineno):
                left -= 1
                if not left:
                    raise KeyboardInterrupt
            return trace

        folder = tmp_path / str(number)
        folder.mkdir()
        opened = Opened(folder)
        opened.put("a", 0, 1)
        before = sys.gettrace()
        sys.settrace(trace)
        try:
            opened.wal.sync()
            interrupted = left <= 0
        except KeyboardInterrupt:
            interrupted = True
        finally:
            sys.settrace(before)
        try:
            opened.wal.sync()
            acknowledged = True
        except LogStopped:
            acknowledged = False
        opened.wal.close()
        assert len(Opened(folder).found.frames) == 1 or not acknowledged, f"interrupted at line {number}"
    assert number > 10


def test_an_interrupt_in_a_roll_over_keeps_the_file(tmp_path: Path) -> None:
    """Nobody was told what it holds, so nobody has seen to it that it is in segments."""
    told: list[int] = []

    def rolled(closed: ClosedFile) -> None:
        told.append(closed.number)
        if len(told) == 1:
            raise KeyboardInterrupt

    wal = Wal(tmp_path, LogRows(), rolled=rolled)
    wal.write_run("a", 0, 1, 1, [b"x"])
    wal.sync()
    with pytest.raises(KeyboardInterrupt):
        wal.roll_over()
    assert (wal.number, wal.handed_over) == (2, 0)
    with pytest.raises(InvalidInput, match="in use"):
        wal.remove_through(1)
    assert wal.file_numbers == range(1, 3)
    wal.roll_over()
    wal.remove_through(2)
    assert wal.file_numbers == range(3, 4)
    wal.close()


def test_what_a_failed_sync_left_in_the_file_is_written_anew_before_it_counts(tmp_path: Path) -> None:
    """The bytes may be in the system's memory only; the next process must not take them for durable."""
    opened = Opened(tmp_path, files=FailingFiles(fail_at=7, errno=errno.EIO))
    opened.put("a", 0, 1)
    with pytest.raises(LogStopped):
        opened.wal.sync()
    opened.wal.close()
    again = Opened(tmp_path)
    assert (len(again.found.frames), again.found.unproven) == (1, 1)
    again.wal.close()
    # Without the first file, as if its bytes had never reached the disk.
    first = tmp_path / "0000000000000001.wal"
    first.write_bytes(first.read_bytes()[:again.found.last_end])
    assert [row[1] for row in entries_of(recover_wal(LOCAL, tmp_path))] == [1]
    os.unlink(first)
    assert [row[1] for row in entries_of(recover_wal(LOCAL, tmp_path))] == [1]


def test_a_full_disk_confirms_nothing_and_goes_on_when_there_is_room(tmp_path: Path) -> None:
    opened = Opened(tmp_path, files=FailingFiles(fail_at=6, errno=errno.ENOSPC, short_write=True))
    opened.put("a", 0, 1, payload=bytes(5000))
    with pytest.raises(DiskFull):
        opened.wal.sync()
    assert opened.told() == []
    opened.put("a", 1, 2)
    opened.wal.audit()
    opened.wal.sync()
    assert opened.told() == [("a", 1, [1, 2])]
    opened.wal.close()
    assert [row[1] for row in entries_of(recover_wal(LOCAL, tmp_path))] == [1, 2]


def batch_left_over(folder: Path, later: dict[int, Fault]) -> tuple[Opened, list[bytes]]:
    """Five frames of which two reach the file, a snapshot of four of them, and the file as the next batch synced it."""
    faults = {9: Fault.TORN, **later}
    durable: list[bytes] = []
    before: list[str] = []

    def look(operation: str, path: str) -> None:
        if operation == "write" and before[-1:] == ["sync"]:
            # The mark behind a batch is not synced: this is what a crash leaves that loses it.
            durable.append(Path(path).read_bytes())
        before.append(operation)

    opened = Opened(folder, files=WatchedFiles(look, FailingFiles(faults=faults.get)))
    opened.put("a", None, 0)
    opened.wal.sync()
    for index in range(1, 6):
        opened.put("a", index - 1, index)
    with pytest.raises(StorageError):
        opened.wal.sync()
    opened.states.put("a", SnapshotMeta(4, 1, IndexSet()))
    return opened, durable


def test_what_a_refused_batch_has_left_does_not_count_behind_a_shorter_one(tmp_path: Path) -> None:
    opened, durable = batch_left_over(tmp_path, {})
    opened.wal.sync()
    assert opened.wal.durable_ticket == opened.wal.ticket
    Path(opened.wal.path).write_bytes(durable[-1])
    assert [row[1] for row in entries_of(recover_wal(LOCAL, tmp_path))] == [0, 5]


def test_nothing_is_written_behind_a_refused_batch_until_it_could_be_cut_off(tmp_path: Path) -> None:
    opened, durable = batch_left_over(tmp_path, {10: Fault.REFUSED, 11: Fault.REFUSED})
    with pytest.raises(StorageError, match="truncate"):
        opened.wal.sync()
    assert opened.told() == [("a", 1, [0])]
    opened.wal.sync()
    assert opened.told() == [("a", 1, [5])]
    Path(opened.wal.path).write_bytes(durable[-1])
    assert [row[1] for row in entries_of(recover_wal(LOCAL, tmp_path))] == [0, 5]


class NamedMeanwhile(str):
    """A log id; whenever it is looked up, another thread begins a log."""

    __slots__ = ("begin", "others")
    begin: Callable[[str], object]
    others: list[threading.Thread]

    def __hash__(self) -> int:
        if hasattr(self, "begin") and threading.current_thread() is threading.main_thread():
            self.others.append(threading.Thread(target=self.begin, args=[f"new-{len(self.others)}"], daemon=True))
            self.others[-1].start()
            # It may have to wait until the file is closed.
            self.others[-1].join(0.02)
        return super().__hash__()


def test_a_log_may_be_begun_while_a_file_is_closed(tmp_path: Path) -> None:
    wal = Wal(tmp_path, LogRows())
    log_id = NamedMeanwhile("a")
    wal.write_run(log_id, None, 1, 1, [b"x"])
    wal.write_run("b", None, 1, 1, [b"x"])
    wal.sync()
    log_id.others, log_id.begin = [], lambda name: wal.write_run(name, None, 1, 1, [b"x"])
    wal.roll_over()
    del log_id.begin
    for other in log_id.others:
        other.join()
    wal.sync()
    wal.audit()
    wal.close()
    assert len(entries_of(recover_wal(LOCAL, tmp_path))) == 2 + len(log_id.others) > 2


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
def test_a_disk_that_refuses_any_step_of_a_roll_over_loses_nothing(number: int, tmp_path: Path) -> None:
    for fail_at in range(6, 20):
        folder = tmp_path / str(fail_at)
        folder.mkdir()
        opened = Opened(folder, files=FailingFiles(fail_at=fail_at, errno=number), max_bytes=300)
        durable = 0
        for index in range(1, 6):
            try:
                opened.put("a", index - 1, index, payload=bytes(100))
                opened.wal.sync()
            except (StorageError, LogStopped):
                break
            durable = index
        try:
            opened.wal.close()
        except (StorageError, LogStopped):
            pass
        else:
            assert [index for each in opened.confirmed for index in each.indexes][:durable] == list(
                range(1, durable + 1))
        rows = entries_of(Opened(folder).found)
        assert len({row[1] for row in rows}) >= durable


# -- crashes


def life(folder: Path, files: RecordingFiles) -> None:
    """Batches of two logs, an overwrite, roll-overs, and the removal of what is in segments."""
    opened = Opened(folder, files=files, max_bytes=700)
    confirmed: dict[str, dict[int, int]] = {"a": {}, "b": {}}

    def sync() -> None:
        opened.wal.sync()
        for log_id, term, indexes in opened.told():
            for index in indexes:
                confirmed[log_id] = {each: known for each, known in confirmed[log_id].items() if each < index}
                confirmed[log_id][index] = term
        files.acknowledge({log_id: dict(rows) for log_id, rows in confirmed.items()})

    for index in range(1, 5):
        opened.put("a", index - 1, index, payload=b"a%d" % index * 20)
        opened.put("b", index - 1, index, 5)
        sync()
    opened.wal.write_run("a", 2, 3, 2, [b"over", b"written"])
    sync()
    opened.wal.write_sparse("b", 4, [7, 9], [5, 6], [b"seven", b"nine"])
    sync()
    opened.put("a", 4, 5, 2)


def check_life(folder: Path, acknowledged: Sequence[Any]) -> None:
    for _ in range(2):
        opened = Opened(folder)
        found: dict[str, dict[int, int]] = {"a": {}, "b": {}}
        for log_id, index, term, _payload in entries_of(opened.found):
            found[log_id] = {each: known for each, known in found[log_id].items() if each < index}
            found[log_id][index] = term
        if acknowledged:
            for log_id, rows in acknowledged[-1].items():
                # What was confirmed last may have been overwritten by what was written, but not confirmed, after it.
                for index, term in rows.items():
                    assert found[log_id].get(index, term) >= term
                    assert index in found[log_id] or max(found[log_id].values(), default=0) > term
        opened.wal.close()


@pytest.fixture(params=[False, True], ids=["no zeros", "zeros ahead"])
def zeros(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without zeros ahead, as files so small have none, and with them from the first batch on."""
    if request.param:
        zeros_at_once(monkeypatch)


def zeros_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zeros_ahead, "_LEAST_BYTES", 1)
    monkeypatch.setattr(zeros_ahead, "_FEWEST_SYNCS", 0)


@pytest.mark.usefixtures("zeros")
def test_the_wal_survives_a_crash_at_every_step(effort: Effort, tmp_path: Path) -> None:
    checked = explore_crashes(record(tmp_path, life), check_life, limit_per_point=effort(8, 240))
    assert checked > 20


@pytest.mark.usefixtures("zeros")
def test_a_crash_while_the_wal_is_opened_loses_nothing(effort: Effort, tmp_path: Path) -> None:
    def reopen(folder: Path, files: Files) -> None:
        Opened(folder, files=files).wal.close()

    explore_recovery(record(tmp_path, life), reopen, check_life, recoveries=effort(5, 60),
                     limit_per_point=effort(6, 16))
