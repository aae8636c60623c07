# SPDX-License-Identifier: Apache-2.0
"""A refused sync may have lost its writes although they can still be read; opening trusts none of them.

After a failed fsync, Linux marks the pages of the file as clean: reads return the lost bytes, and the next fsync
succeeds without writing them. So opening writes again what no earlier sync has covered.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import attrs
import pytest

from compactlib.errors import CompactlibError, StorageError
from compactlib.raftlog import Entry, LogOptions, RaftLogStore, SegmentLimits, SegmentLog, StoreOptions, open_log
from compactlib.raftlog.policy import INDEX_RECORD_BYTES
from compactlib.testing import FilesInFront, Recording, RecordingFiles, Request, explore_crashes, repeat_crash
from tests.harness.open_files import open_files
from tests.harness.snapshot_line import transfer

ENTRIES = [Entry(index, 1, b"payload %d" % index) for index in range(1, 10)]
HEAD_BYTES = 104
"""The header of a segment."""


class Disk:
    """A disk that refuses syncs of files, loses what they would have covered, and can lose its power."""

    def __init__(self, folder: Path, *suffixes: str) -> None:
        folder.mkdir()
        self.folder = folder
        self._recorder = RecordingFiles(folder)
        self.files = FilesInFront(self._step, self._recorder)
        self.refused_from: int | None = None
        self.syncs = 0
        self._suffixes = suffixes
        self._losses: list[tuple[int, str]] = []

    def refuse_from(self, number: int) -> None:
        """Refuse the sync of that number from now on, and every later change of these files, until `repair`."""
        self.syncs, self.refused_from = 0, number

    def repair(self) -> None:
        self.refused_from = None

    def _step(self, request: Request, act: Callable[[], Any]) -> Any:
        if request.path.endswith(self._suffixes) and request.changes:
            self.syncs += request.kind == "sync"
            if self.refused_from is not None and self.syncs >= self.refused_from:
                if request.kind == "sync":
                    end = len(self._recorder.recording().operations)
                    self._losses.append((end, os.path.relpath(request.path, self.folder)))
                raise StorageError.from_os(OSError(errno.EIO, os.strerror(errno.EIO)), request.kind, request.path)
        return act()

    def recording(self) -> Recording:
        """What a power failure can find: without the writes that a refused sync has lost."""
        recording = self._recorder.recording()
        lost: set[int] = set()
        for end, path in self._losses:
            for place in reversed(range(end)):
                operation = recording.operations[place]
                if operation.path == path and operation.kind == "sync":
                    break
                if operation.path == path and operation.kind == "write":
                    lost.add(place)
        kept = tuple(operation for place, operation in enumerate(recording.operations) if place not in lost)
        return attrs.evolve(recording, operations=kept)

    def without_power(self, to: Path, *, unsynced: int) -> Path:
        """The folder after a power failure that keeps (0) or loses (1) what was never synced."""
        recording = self.recording()
        repeat_crash(recording, {0: len(recording.operations), 1: unsynced}, to)
        return to


@pytest.mark.parametrize("number", range(1, 7))
def test_entries_of_a_flush_survive_a_power_failure_after_refused_syncs(tmp_path: Path, number: int) -> None:
    disk = Disk(tmp_path / "store", ".segment")
    options = StoreOptions(log=LogOptions(limits=SegmentLimits(max_entries=4), files=disk.files), background=False)
    with RaftLogStore(disk.folder, options) as store:
        store.log("a").append(ENTRIES[:2])
        store.flush()
        store.log("a").append(ENTRIES[2:])
        store.log("a").sync()
        disk.refuse_from(number)
        with contextlib.suppress(CompactlibError):
            store.flush()
        disk.repair()
        assert list(store.log("a").entries()) == ENTRIES
        store.flush()
        for unsynced in (0, 1):
            with RaftLogStore(disk.without_power(tmp_path / str(unsynced), unsynced=unsynced)) as after:
                assert list(after.log("a", create=False).entries()) == ENTRIES


@pytest.mark.parametrize("number", range(1, 7))
def test_entries_that_opening_has_shown_survive_a_power_failure_after_refused_syncs(tmp_path: Path,
                                                                                    number: int) -> None:
    disk = Disk(tmp_path / "log", ".segment")
    options = LogOptions(limits=SegmentLimits(max_entries=4), files=disk.files)
    log = SegmentLog(disk.folder, options)
    log.append(ENTRIES[:2])
    log.sync()
    disk.refuse_from(number)
    with contextlib.suppress(CompactlibError):
        log.append(ENTRIES[2:])
        log.sync()
        log.end_segment()
    disk.repair()
    with contextlib.suppress(CompactlibError):
        log.close()
    with SegmentLog(disk.folder, options) as again:
        shown = list(again.entries())
        again.append([Entry(len(shown) + 1, 2, b"later")])
        again.sync()
        for unsynced in (0, 1):
            with SegmentLog(disk.without_power(tmp_path / str(unsynced), unsynced=unsynced)) as after:
                assert list(after.entries()) == [*shown, Entry(len(shown) + 1, 2, b"later")]


@pytest.mark.parametrize("number", range(1, 3))
def test_received_state_survives_a_power_failure_after_refused_syncs(tmp_path: Path, number: int) -> None:
    """The transfer goes on behind what has arrived, also in the next process."""
    state = b"state;" * 500
    disk = Disk(tmp_path / "follower", ".state", ".entries")
    options = StoreOptions(log=LogOptions(files=disk.files), background=False)
    with open_log(tmp_path / "leader", StoreOptions(background=False)) as leader:
        leader.append(ENTRIES)
        leader.snapshot(8, (3,), [state])
        disk.refuse_from(number)
        with open_log(disk.folder, options) as follower:
            assert isinstance(transfer(leader, follower).received, CompactlibError)
        disk.repair()
        with open_log(disk.folder, options) as follower:
            assert not isinstance(transfer(leader, follower).received, BaseException)
    for unsynced in (0, 1):
        with open_log(disk.without_power(tmp_path / str(unsynced), unsynced=unsynced)) as after:
            assert after.state.index == 8
            with after.open_state() as reader:
                assert b"".join(map(bytes, reader.pieces())) == state
            assert after.read(3) == ENTRIES[2]


@pytest.mark.parametrize("number", range(1, 3))
def test_entries_of_the_write_ahead_log_survive_a_power_failure_after_refused_syncs(tmp_path: Path,
                                                                                    number: int) -> None:
    disk = Disk(tmp_path / "store", ".wal")
    options = StoreOptions(log=LogOptions(files=disk.files), background=False)
    store = RaftLogStore(disk.folder, options)
    log = store.log("a")
    log.append(ENTRIES[:2])
    log.sync()
    disk.refuse_from(number)
    with contextlib.suppress(CompactlibError):
        for entry in ENTRIES[2:]:
            log.append([entry])
            log.sync()
    disk.repair()
    with contextlib.suppress(CompactlibError):
        store.close()
    with RaftLogStore(disk.folder, options) as again:
        shown = list(again.log("a").entries())
        assert len(shown) > number
        for unsynced in (0, 1):
            with RaftLogStore(disk.without_power(tmp_path / str(unsynced), unsynced=unsynced)) as after:
                assert list(after.log("a", create=False).entries()) == shown


def test_log_with_a_torn_end_is_opened_on_a_full_disk(tmp_path: Path) -> None:
    """It is read and reclaimed; a refused change leaves it open, and the first change with room goes on."""
    full = [False]

    def step(request: Request, act: Callable[[], Any]) -> Any:
        if full[0] and request.needs_room:
            raise StorageError.from_os(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), request.kind, request.path)
        return act()

    (tmp_path / "log").mkdir()
    with SegmentLog(tmp_path / "of a killed owner") as log:
        log.append(ENTRIES[:3])
        log.sync()
        log.append(ENTRIES[3:])
        assert list(log.entries()) == ENTRIES
        name = "0000000000000001.segment"
        # Its last entry is half written, and no seal covers the others.
        (tmp_path / "log" / name).write_bytes((tmp_path / "of a killed owner" / name).read_bytes()[:-3])
    full[0] = True
    with SegmentLog(tmp_path / "log", LogOptions(files=FilesInFront(step))) as log:
        assert list(log.entries()) == ENTRIES[:-1]
        assert log.status().durable_index == 3
        log.reclaim()
        for change in (lambda: log.append([Entry(9, 2, b"later")]), log.sync, log.end_segment,
                       lambda: log.snapshot(3, ())):
            with pytest.raises(StorageError):
                change()
        full[0] = False
        log.append([Entry(9, 2, b"later")])
        log.sync()
        assert list(log.entries()) == [*ENTRIES[:-1], Entry(9, 2, b"later")]
        assert log.status().durable_index == 9


def test_torn_seal_leaves_another_seal_after_refused_syncs(tmp_path: Path) -> None:
    """The seal that a refused sync has lost is durable before the next seal overwrites the one before."""
    disk = Disk(tmp_path / "log", ".segment")
    options = LogOptions(files=disk.files)
    log = SegmentLog(disk.folder, options)
    log.append(ENTRIES[:3])
    log.sync()
    disk.refuse_from(1)
    log.append(ENTRIES[3:6])
    with pytest.raises(StorageError):
        log.sync()
    disk.repair()
    log.close()
    began = len(disk.recording().operations)
    with SegmentLog(disk.folder, options) as again:
        again.append(ENTRIES[6:])
        again.sync()

    def check(folder: Path, _: object) -> None:
        with SegmentLog(folder) as after:
            found = list(after.entries())
            assert len(found) >= 3
            assert found == ENTRIES[:len(found)]

    recording = disk.recording()
    assert explore_crashes(recording, check, points=range(began, len(recording.operations) + 1)) > 10


@pytest.mark.parametrize("number", range(1, 3))
def test_disk_that_is_full_at_any_sync_of_an_opening_only_delays_it(tmp_path: Path, number: int) -> None:
    """Before it, a truncation has ended behind its first step: an empty segment follows an unsealed one."""
    steps: list[int] = []
    refused: set[int] = set()
    error = errno.EIO

    def step(request: Request, act: Callable[[], Any]) -> Any:
        if request.kind == "sync" and request.path.endswith(".segment"):
            steps.append(len(steps) + 1)
            if steps[-1] in refused:
                raise StorageError.from_os(OSError(error, os.strerror(error)), request.kind, request.path)
        return act()

    options = LogOptions(files=FilesInFront(step))
    log = SegmentLog(tmp_path / "log", options)
    log.append(ENTRIES)
    log.sync()
    refused.update(range(len(steps) + 1, len(steps) + 5))
    with pytest.raises(StorageError):
        log.append([Entry(4, 2, b"later")])
    with contextlib.suppress(CompactlibError):
        log.close()
    error = errno.ENOSPC
    steps.clear()
    refused.clear()
    refused.add(number)
    with SegmentLog(tmp_path / "log", options) as again:
        assert list(again.entries()) == ENTRIES
        again.append([Entry(10, 2, b"later")])
        again.sync()
        assert list(again.entries()) == [*ENTRIES, Entry(10, 2, b"later")]


def test_log_that_was_truncated_to_nothing_is_opened_on_a_full_disk_that_takes_no_seal(tmp_path: Path) -> None:
    """Some disks need room for overwriting too."""
    full = [True]

    def step(request: Request, act: Callable[[], Any]) -> Any:
        if full[0] and request.kind == "write":
            raise StorageError.from_os(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), request.kind, request.path)
        return act()

    later = [Entry(1, 2, b"later"), Entry(2, 2, b"later")]
    with SegmentLog(tmp_path) as log:
        log.append(ENTRIES)
        log.append(later[:1])
    with SegmentLog(tmp_path, LogOptions(files=FilesInFront(step))) as log:
        assert list(log.entries()) == later[:1]
        with pytest.raises(StorageError):
            log.append(later[1:])
        full[0] = False
        log.append(later[1:])
    with SegmentLog(tmp_path) as log:
        assert list(log.entries()) == later


def test_entries_that_a_power_failure_has_left_behind_lost_ones_do_not_come_back(tmp_path: Path) -> None:
    """The file's pages reach the disk in any order: here a MiB of the index is lost, and the index behind it is not."""
    options = LogOptions(limits=SegmentLimits(max_entries=40_000))
    with SegmentLog(tmp_path / "log", options) as log:
        log.append([Entry(index, 1, b"") for index in range(1, 30_001)])
        after = shutil.copytree(tmp_path / "log", tmp_path / "after")
    [path] = after.glob("*.segment")
    with path.open("r+b") as file:
        file.seek(HEAD_BYTES)
        file.write(bytes(1 << 20))
    later = [Entry(index, 2, b"") for index in range(1, (1 << 20) // INDEX_RECORD_BYTES + 2)]
    with SegmentLog(after, options) as log:
        assert log.last_index == -1
        log.append(later)
    with SegmentLog(after, options) as log:
        assert log.last_index == later[-1].index


def test_entries_that_a_store_has_found_on_a_full_disk_are_durable_before_their_wal_goes(tmp_path: Path) -> None:
    disk = Disk(tmp_path / "store", ".segment")
    full = False

    def step(request: Request, act: Callable[[], Any]) -> Any:
        if full and request.needs_room:
            raise StorageError.from_os(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), request.kind, request.path)
        return act()

    options = StoreOptions(log=LogOptions(files=FilesInFront(step, disk.files)), background=False)
    with RaftLogStore(disk.folder, options) as store:
        store.log("a").append(ENTRIES)
        store.log("a").sync()
        disk.refuse_from(1)
        with contextlib.suppress(CompactlibError):
            store.flush()
    disk.repair()
    full = True
    with RaftLogStore(disk.folder, options) as store:
        full = False
        assert list(store.log("a", create=False).entries()) == ENTRIES
        store.flush()
        for unsynced in (0, 1):
            with RaftLogStore(disk.without_power(tmp_path / str(unsynced), unsynced=unsynced)) as after:
                assert list(after.log("a", create=False).entries()) == ENTRIES


def test_read_during_the_first_append_with_room_finds_its_entry(tmp_path: Path) -> None:
    """The append comes at each line of the read in turn, as far as the read holds no lock."""
    full = False

    def step(request: Request, act: Callable[[], Any]) -> Any:
        if full and request.needs_room:
            raise StorageError.from_os(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), request.kind, request.path)
        return act()

    for place in range(1, 1000):
        folder = tmp_path / str(place)
        full = False
        with SegmentLog(folder) as log:
            log.append(ENTRIES)
        full = True
        with SegmentLog(folder, LogOptions(files=FilesInFront(step))) as log:
            full = False
            appending = threading.Thread(target=log.append, args=([Entry(10, 1, b"later")],))
            lines = 0

            def at_each_line(frame: FrameType, event: str, argument: Any, place: int = place,
                             appending: threading.Thread = appending) -> Any:
                nonlocal lines
                if not frame.f_code.co_filename.endswith(("reading.py", "segments.py", "listing.py")):
                    return None
                lines += event == "line"
                if event == "line" and lines == place:
                    appending.start()
                    appending.join(0.02)
                return at_each_line

            sys.settrace(at_each_line)
            try:
                found = log.read(5)
            finally:
                sys.settrace(None)
            assert found == ENTRIES[4], f"line {place}"
            if lines < place:
                break
            appending.join()
            assert log.last_index == 10


def test_log_that_was_opened_on_a_full_disk_keeps_no_file_open(tmp_path: Path) -> None:
    def step(request: Request, act: Callable[[], Any]) -> Any:
        if request.needs_room:
            raise StorageError.from_os(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), request.kind, request.path)
        return act()

    with SegmentLog(tmp_path / "log") as log:
        log.append(ENTRIES)
    with SegmentLog(tmp_path / "log", LogOptions(files=FilesInFront(step))) as log:
        assert list(log.entries()) == ENTRIES
    assert not open_files(tmp_path)


@pytest.mark.parametrize("number", range(1, 5))
@pytest.mark.parametrize("synced", [0, 3])
def test_torn_entries_stay_gone_after_a_power_failure_and_refused_syncs(tmp_path: Path, number: int,
                                                                        synced: int) -> None:
    """An old torn record must not count behind a new entry of the same length."""
    with SegmentLog(tmp_path / "killed") as log:
        log.append(ENTRIES[:synced])
        log.sync()
        log.append([Entry(synced + 1, 1, b"0123456789"), Entry(synced + 2, 1, b"")])
        assert isinstance(log.read(synced + 1), Entry)
        assert len(list(log.entries())) == synced + 2  # written to the file
        copy = Path(shutil.copytree(tmp_path / "killed", tmp_path / "copy"))
    [torn] = copy.glob("*.segment")
    os.truncate(torn, torn.stat().st_size - 3)
    disk = Disk(tmp_path / "log", ".segment")
    options = LogOptions(files=disk.files)
    with SegmentLog(disk.folder, options):
        pass
    with contextlib.closing(disk.files.open(disk.folder / torn.name)) as file:
        file.write_at(0, [torn.read_bytes()])
        file.sync()
    disk.refuse_from(number)
    with contextlib.suppress(CompactlibError), SegmentLog(disk.folder, options):
        pass
    disk.repair()
    with SegmentLog(disk.folder, options) as log:
        assert list(log.entries()) == ENTRIES[:synced]
        later = Entry(synced + 1, 2, b"9876543210")
        log.append([later])
        log.sync()
        for unsynced in (0, 1):
            with SegmentLog(disk.without_power(tmp_path / str(unsynced), unsynced=unsynced)) as after:
                assert list(after.entries()) == [*ENTRIES[:synced], later]
