# SPDX-License-Identifier: Apache-2.0
"""What a store finds: names not yet durable, things of others, extreme numbers, entries nobody can read, its parent."""

from __future__ import annotations

import contextlib
import errno
import gc
import shutil
import threading
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import attrs
import pytest

from compactlib.clock import ManualClock
from compactlib.errors import (
    CompactlibError,
    CorruptData,
    DiskFull,
    InvalidInput,
    StorageError,
    Unsupported,
)
from compactlib.files.checksum import crc32
from compactlib.indexset import IndexSet
from compactlib.observer import Observer, Observers
from compactlib.raftlog import (
    DeadEntry,
    Entry,
    LogOptions,
    MissingEntry,
    RaftLog,
    RaftLogStore,
    SegmentLimits,
    SnapshotFolder,
    SnapshotMeta,
    StoreOptions,
    open_log,
)
from compactlib.raftlog.errors import GapDetected
from compactlib.testing import RecordingFiles, explore_crashes
from tests.harness.recording import RecordingObserver
from tests.raftlog.raft_host import indexes, overwrite, rows
from tests.raftlog.wrapped_files import LocksAsideFiles, UnsyncedFiles, WatchedFiles

HIGHEST = (1 << 64) - 1
PLAIN = StoreOptions(log=LogOptions(limits=SegmentLimits(max_entries=8), keep_links_seconds=0.0, files=UnsyncedFiles()),
                     background=False)


# -- names that an earlier process was killed before it synced


def test_every_opening_syncs_the_folders_it_finds_before_anything_is_appended(tmp_path: Path) -> None:
    RaftLogStore(tmp_path / "store", PLAIN).close()
    found: list[tuple[str, str]] = []
    files = WatchedFiles(lambda operation, path: found.append((operation, path)))
    with RaftLogStore(tmp_path / "store", StoreOptions(background=False, log=LogOptions(files=files))):
        begun = next(place for place, (operation, _) in enumerate(found) if operation == "create")
        before = [path for operation, path in found[:begun] if operation == "sync folder"]
        store = tmp_path / "store"
        assert {str(tmp_path), str(store), str(store / "wal"), str(store / "logs")} <= set(before)


def test_a_folder_of_snapshots_syncs_what_it_finds(tmp_path: Path) -> None:
    SnapshotFolder(tmp_path / "snap")
    found: list[tuple[str, str]] = []
    SnapshotFolder(tmp_path / "snap", files=WatchedFiles(lambda operation, path: found.append((operation, path))))
    assert [("sync folder", str(tmp_path / "snap")), ("sync folder", str(tmp_path))] == found


# -- a log that is empty


def test_a_log_that_was_made_and_never_written_begins_anywhere_in_its_next_life_too(tmp_path: Path) -> None:
    for _ in range(2):
        with RaftLogStore(tmp_path, PLAIN) as store:
            assert store.log("a").last_index == -1
    with RaftLogStore(tmp_path, PLAIN) as store:
        store.log("a").append(rows(1, 3))
        store.log("a").sync()
        with pytest.raises(GapDetected):
            store.log("a").append(rows(5, 5))
    with RaftLogStore(tmp_path, PLAIN) as store:
        assert indexes(store.log("a")) == [1, 2, 3]


def test_a_log_of_which_everything_was_taken_back_begins_anywhere(tmp_path: Path) -> None:
    with RaftLogStore(tmp_path, PLAIN) as store:
        log = store.log("a")
        log.append(rows(0, 9))
        log.flush()
        log.reset(-1)
        log.append(rows(5, 7, 2))
        log.flush()
        assert indexes(log) == [5, 6, 7]
    with RaftLogStore(tmp_path, PLAIN) as store:
        assert indexes(store.log("a")) == [5, 6, 7]


# -- both ends of the range


@pytest.mark.parametrize("flushed", [False, True])
@pytest.mark.parametrize("term", [0, HIGHEST])
def test_the_highest_index_and_both_terms_are_kept(term: int, flushed: bool, tmp_path: Path) -> None:
    kept = [Entry(index, term, b"%d" % index) for index in range(HIGHEST - 3, HIGHEST + 1)]
    with RaftLogStore(tmp_path, PLAIN) as store:
        log = store.log("a")
        store.log("b").append(rows(0, 0))
        log.append(kept)
        log.sync()
        if flushed:
            store.flush()
        with pytest.raises(InvalidInput):
            log.append([(HIGHEST + 1, 1, b"")])
    for _ in range(2):
        with RaftLogStore(tmp_path, PLAIN) as store:
            log = store.log("a")
            assert list(log.entries()) == kept
            assert log.last_term == term
            store.flush()
            store.audit()
    with RaftLogStore(tmp_path, PLAIN) as store:
        log = store.log("a")
        overwrite(log, [(HIGHEST, term, b"again")])
        log.snapshot(HIGHEST, [HIGHEST - 1])
        log.compact(policy=log.policy)
        store.flush()
        assert log.read(HIGHEST) == DeadEntry(HIGHEST, HIGHEST)
        assert list(log.entries()) == kept[2:3]
    with RaftLogStore(tmp_path, PLAIN) as store:
        log = store.log("a")
        assert (log.last_index, indexes(log)) == (HIGHEST, [HIGHEST - 1])
        with pytest.raises(InvalidInput):
            log.append([(HIGHEST, term, b"")])
        assert indexes(store.log("b")) == [0]


def test_a_snapshot_of_the_highest_index_may_come_from_elsewhere(tmp_path: Path) -> None:
    with RaftLogStore(tmp_path, PLAIN) as store:
        store.log("a").append_sparse([Entry(HIGHEST, HIGHEST, b"live")])
        store.log("a").install(SnapshotMeta(HIGHEST, HIGHEST, IndexSet.from_sorted([HIGHEST])))
    for _ in range(2):
        with RaftLogStore(tmp_path, PLAIN) as store:
            store.flush()
            assert list(store.log("a").entries()) == [Entry(HIGHEST, HIGHEST, b"live")]


WRONG: list[object] = [-1, HIGHEST + 1, "1", 1.5, None]


@pytest.mark.parametrize("wrong", WRONG)
def test_numbers_that_are_none_are_refused_by_name_and_leave_the_log_as_it_is(wrong: object, tmp_path: Path) -> None:
    with RaftLogStore(tmp_path, PLAIN) as store:
        log = store.log("a")
        log.append(rows(1, 3))
        number: int = wrong  # type: ignore[assignment]
        calls = (lambda: log.append([(number, 1, b"")]), lambda: log.append([(4, number, b"")]),
                 lambda: log.append([(4, 1, b""), (5, number, b"")]), lambda: log.snapshot(number),
                 lambda: log.append_sparse([Entry(number, 1, b"")]), lambda: log.append_sparse([Entry(4, number, b"")]),
                 lambda: log.append_sparse([Entry(4, 1, b""), Entry(9, number, b"")]))
        for call in calls:
            with pytest.raises(InvalidInput):
                call()
        assert log.last_index == 3
        store.audit()
    with RaftLogStore(tmp_path, PLAIN) as store:
        assert indexes(store.log("a")) == [1, 2, 3]


def test_what_is_no_entry_is_refused_by_name(tmp_path: Path) -> None:
    with RaftLogStore(tmp_path, PLAIN) as store:
        log = store.log("a")
        wrongs: list[Any] = [[1, 2], [(1, 1)], [(1, 1, 5)], [(1, 1, "text")], [None], [(1, 1, b"", 4)]]
        for wrong in wrongs:
            with pytest.raises(InvalidInput):
                log.append(wrong)
        with pytest.raises(InvalidInput):
            log.append_sparse([Entry(1, 1, "text")])  # type: ignore[arg-type]
        assert log.last_index == -1
        log.append([(1, 1, bytearray(b"kept")), (2, 1, memoryview(b"too"))])
        assert list(log.entries()) == [Entry(1, 1, b"kept"), Entry(2, 1, b"too")]


def test_empty_and_huge_payloads_are_kept(tmp_path: Path) -> None:
    huge = bytes(100_000_000)
    with open_log(tmp_path, PLAIN) as log:
        log.append([(1, 1, b""), (2, 1, huge), (3, 1, b"")])
        log.flush()
    with open_log(tmp_path, PLAIN) as log:
        assert [len(entry.payload) for entry in log.entries()] == [0, len(huge), 0]


# -- what a host gives


def test_an_observer_that_raises_keeps_no_store_from_being_opened(tmp_path: Path) -> None:
    class Raising:
        def event(self, name: str, /, **fields: object) -> None:
            raise ZeroDivisionError(name)

    with RaftLogStore(tmp_path / "s", PLAIN) as store:
        store.log("y").append(rows(1, 2))
    (tmp_path / "s/logs/lost+found").mkdir()
    (tmp_path / "s/logs/lost+found/theirs").touch()
    with RaftLogStore(tmp_path / "s", attrs.evolve(PLAIN, log=attrs.evolve(PLAIN.log, observer=Raising()))) as store:
        assert indexes(store.log("y")) == [1, 2]
        store.audit()


@pytest.mark.parametrize("now", [-1e9, 0.0, 1e300])
def test_a_clock_may_stand_anywhere(now: float, tmp_path: Path) -> None:
    options = attrs.evolve(PLAIN, max_wal_bytes=1, log=attrs.evolve(PLAIN.log, clock=ManualClock(now)))
    for _ in range(2):
        with RaftLogStore(tmp_path, options) as store:
            log = store.log("a")
            log.append(rows(log.last_index + 1, log.last_index + 3))
            store.sync()
    with RaftLogStore(tmp_path, PLAIN) as store:
        assert indexes(store.log("a")) == list(range(6))


def test_any_printable_character_in_an_id_is_taken_or_refused_by_name(tmp_path: Path) -> None:
    taken = []
    with RaftLogStore(tmp_path, PLAIN) as store:
        for character in map(chr, [*range(32, 127), 0xe9, 0x660, 0x1f600]):
            for log_id in (character, "a" + character, character + "a"):
                try:
                    store.log(log_id).append(rows(1, 1))
                except InvalidInput:
                    continue
                taken.append(log_id)
        wrongs = ["a" * 101, "a\n", "a\0"]
        for wrong in wrongs:
            with pytest.raises(InvalidInput):
                store.log(wrong)
        ids = store.log_ids
    assert set(ids) == set(taken)
    with RaftLogStore(tmp_path, PLAIN) as store:
        assert store.log_ids == ids
        assert all(indexes(store.log(log_id)) == [1] for log_id in ids)


@pytest.mark.parametrize("refused", [1, 2])
def test_a_store_whose_threads_cannot_be_started_lets_everything_go(refused: int, tmp_path: Path,
                                                                    monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[threading.Thread] = []
    start = threading.Thread.start

    def limited(thread: threading.Thread) -> None:
        if len(started) + 1 == refused:
            raise RuntimeError("can't start new thread")
        start(thread)
        started.append(thread)

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", limited)
        with pytest.raises(RuntimeError, match="can't start"):
            RaftLogStore(tmp_path, StoreOptions(sync_by_itself=True))
    assert not any(thread.is_alive() for thread in started)
    RaftLogStore(tmp_path, StoreOptions(sync_by_itself=True)).close()


# -- removed logs


def test_a_removed_log_is_not_held_any_more(tmp_path: Path) -> None:
    with RaftLogStore(tmp_path, PLAIN) as store:
        gone = []
        for number in range(3):
            log = store.log(f"l{number}")
            log.append(rows(1, 1))
            gone.append(weakref.ref(log))
            del log
            store.remove(f"l{number}")
        gc.collect()
        assert [each() for each in gone] == [None, None, None]


def test_a_log_whose_removal_was_refused_is_there_with_all_it_held(tmp_path: Path) -> None:
    armed: list[str] = []

    def look(operation: str, path: str) -> None:
        if operation in armed and ".removed-" in path:
            raise DiskFull(operation=operation, path=path, errno=errno.ENOSPC)

    options = StoreOptions(background=False, log=LogOptions(files=WatchedFiles(look)))
    with RaftLogStore(tmp_path, options) as store:
        store.log("a").append(rows(1, 9))
        store.log("a").snapshot(5, [3])
        armed.append("rename")
        with pytest.raises(DiskFull):
            store.remove("a")
        armed.clear()
        log = store.log("a", create=False)
        assert (indexes(log), log.state.index) == ([3, 6, 7, 8, 9], 5)
        log.append(rows(10, 10))
        store.flush()
        store.remove("a")
        assert store.log_ids == ()


def refusing_once(armed: list[bool]) -> Callable[[str, str], None]:
    """The first sync of the logs' names while it is armed."""

    def look(operation: str, path: str) -> None:
        if operation == "sync folder" and path.endswith("/logs") and armed:
            armed.clear()
            raise DiskFull(operation=operation, path=path, errno=errno.ENOSPC)

    return look


def test_a_log_that_takes_the_name_of_one_whose_removal_was_refused_half_way_can_be_removed(tmp_path: Path) -> None:
    armed: list[bool] = []
    options = StoreOptions(background=False, log=LogOptions(files=WatchedFiles(refusing_once(armed))))
    with RaftLogStore(tmp_path, options) as store:
        store.log("a").append(rows(1, 9))
        armed.append(True)
        with pytest.raises(DiskFull):
            store.remove("a")
        store.log("a").append(rows(1, 2))
        store.remove("a")
        assert store.log_ids == ()
    assert list((tmp_path / "logs").iterdir()) == []


# -- what was queued and is not durable


def test_a_log_that_is_closed_and_opened_again_still_says_what_is_not_durable(tmp_path: Path) -> None:
    """Its sync was refused: neither the next object's `sync` nor its `status` may count the entries as durable."""
    full = [False]

    def look(operation: str, path: str) -> None:
        if full[0] and operation == "write":
            raise DiskFull(operation=operation, path=path, errno=errno.ENOSPC)

    with RaftLogStore(tmp_path, StoreOptions(background=False, log=LogOptions(files=WatchedFiles(look)))) as store:
        log = store.log("a")
        log.append(rows(1, 3))
        full[0] = True
        with pytest.raises(DiskFull):
            log.close()
        again = store.log("a")
        assert again is not log
        assert list(again.unconfirmed) == [1, 2, 3]
        with pytest.raises(DiskFull):
            again.sync()
        full[0] = False
        again.sync()
        assert not again.unconfirmed


# -- snapshots that the disk refuses


@pytest.mark.parametrize("trailing", [0, 3])
def test_a_snapshot_that_the_disk_refused_at_any_step_can_be_taken_again(trailing: int, tmp_path: Path) -> None:
    fail_at, refused = 0, True
    while refused:
        fail_at, refused, left = fail_at + 1, False, -1

        def look(operation: str, path: str) -> None:
            nonlocal left, refused
            left -= 1
            if not left:
                refused = True
                raise DiskFull(operation=operation, path=path, errno=errno.ENOSPC)

        files = WatchedFiles(look, UnsyncedFiles())
        folder = tmp_path / str(fail_at)
        folder.mkdir()
        options = StoreOptions(log=LogOptions(files=files), background=False, keep_trailing=trailing)
        with RaftLogStore(folder / "s", options) as store:
            log = store.log("a")
            log.attach(SnapshotFolder(folder / "snap", files=files))
            log.append(rows(1, 10))
            log.sync()
            left = fail_at
            try:
                log.snapshot(5, [2], [b"state"])
            except StorageError:
                log.snapshot(5, [2], [b"state"])
            left = -1
            assert (log.state.index, indexes(log)) == (5, [2, *range(6 - trailing, 11)])
            log.snapshot(7, [2, 6], [b"state"])
        with RaftLogStore(folder / "s", PLAIN) as store:
            log = store.log("a")
            log.attach(SnapshotFolder(folder / "snap"))
            assert (log.state.index, indexes(log)) == (7, sorted({2, 6, *range(8 - trailing, 11)}))
    assert fail_at > 15


def test_a_received_snapshot_whose_row_was_refused_can_be_received_again(tmp_path: Path) -> None:
    full = [False]

    def look(operation: str, path: str) -> None:
        if full[0] and path.endswith("SNAPSHOT.tmp"):
            raise DiskFull(operation=operation, path=path, errno=errno.ENOSPC)

    with RaftLogStore(tmp_path / "s", StoreOptions(log=LogOptions(files=WatchedFiles(look)),
                                                   background=False)) as store:
        log, folder = store.log("a"), SnapshotFolder(tmp_path / "snap")
        log.attach(folder)
        source = SnapshotFolder(tmp_path / "source")
        source.write(SnapshotMeta(8, 2), [b"state"])
        manifest = source.manifest
        assert manifest is not None
        for full[0] in (True, False):
            incoming = folder.receive(manifest)
            incoming.write(0, b"state")
            folder.adopt(incoming, IndexSet())
            with pytest.raises(DiskFull) if full[0] else contextlib.nullcontext():
                log.install(SnapshotMeta(8, 2))
        assert log.state.index == 8
        assert sorted(path.suffix for path in (tmp_path / "snap").iterdir()) == [".live", ".snapshot", ".state"]


def test_a_snapshot_after_a_received_one_whose_row_was_refused_begins_from_that_one(tmp_path: Path) -> None:
    is_full = False

    def look(operation: str, path: str) -> None:
        if is_full and path.endswith("SNAPSHOT.tmp"):
            raise DiskFull(operation=operation, path=path, errno=errno.ENOSPC)

    with RaftLogStore(tmp_path / "s", StoreOptions(log=LogOptions(files=WatchedFiles(look)),
                                                   background=False)) as store:
        log, folder, source = store.log("a"), SnapshotFolder(tmp_path / "snap"), SnapshotFolder(tmp_path / "source")
        log.attach(folder)
        log.append(rows(1, 10))
        source.write(SnapshotMeta(8, 1), [b"state"])
        assert source.manifest is not None
        incoming = folder.receive(source.manifest)
        incoming.write(0, b"state")
        folder.adopt(incoming, IndexSet())
        is_full = True
        with pytest.raises(DiskFull):
            log.install(SnapshotMeta(8, 1))
        is_full = False
        log.snapshot(8, [], [b"state"])
        assert (log.state.index, indexes(log)) == (8, [9, 10])


# -- a dead entry that nobody can read any more


def with_hole(folder: Path) -> RaftLog:
    """Entries 27 to 32 of the second segment are dead; those from 33 on lie above the snapshot."""
    log = open_log(folder, StoreOptions(background=False, log=LogOptions(limits=SegmentLimits(max_entries=16))))
    log.append([(index, 1, bytes([index]) * 5000) for index in range(1, 41)])
    log.flush()
    log.snapshot(32, IndexSet.from_runs([(1, 10), (17, 26)]))
    path = folder / "logs/log/0000000000000002.segment"
    place = path.read_bytes().index(bytes([32]) * 100)
    with open(path, "r+b") as file:
        file.seek(place)
        file.write(bytes(5000))
    return log


@pytest.mark.parametrize("first", [33, 35])
def test_a_dead_entry_that_cannot_be_read_keeps_no_flush_back(first: int, tmp_path: Path) -> None:
    """Also where it is the highest one that is left when entries are taken back: its payload is not needed for that."""
    with with_hole(tmp_path / "s") as log:
        if first == 33:
            log.append_entries(32, 1, rows(33, 40, 2))
            wanted = list(range(33, 41))
        else:
            log.reset(32)
            log.append_sparse([Entry(first, 2, b"%d" % first)])
            wanted = [first]
        log.flush()
        assert [each for each in indexes(log) if each > 32] == wanted
        assert log.read(32) == DeadEntry(32, 32)
        assert log.status().memtable_entries == 0
    with open_log(tmp_path / "s", PLAIN) as log:
        assert [(entry.index, entry.term) for entry in log.entries(33)] == [(each, 2) for each in wanted]


def test_a_damaged_entry_that_is_taken_back_or_followed_keeps_no_other_log_back(tmp_path: Path) -> None:
    with RaftLogStore(tmp_path, PLAIN) as store:
        damaged, other = store.log("a"), store.log("b")
        damaged.append(rows(1, 9))
        store.flush()
        path = tmp_path / "logs/a/0000000000000001.segment"
        data = bytearray(path.read_bytes())
        data[data.index(b"1234") + 3] ^= 1
        path.write_bytes(data)
        damaged.reset(4)
        other.append(rows(1, 5))
        store.flush()
        assert other.status().memtable_entries == 0, "the other log is in segments"
        damaged.append(rows(5, 6, 2))
        store.flush()
        assert store.status().flush_error is None
        assert store.status().wal_files == 1
        assert [entry.index for entry in damaged.entries(5)] == [5, 6]


def test_what_is_alive_in_memory_only_is_not_missing_from_segments(tmp_path: Path) -> None:
    with open_log(tmp_path, PLAIN) as log:
        log.append(rows(1, 50))
        log.snapshot(50, [7, 8])
        assert log.verify().is_sound
        log.flush()
        assert log.verify().is_sound



# -- a log that cannot be opened

DAMAGES = ("segment", "row", "gone", "file", "version")


def damage(folder: Path, kind: str) -> Callable[[], None]:
    """Make the folder of a log one that cannot be opened; returns what mends it."""
    away = folder.parent.parent.parent / "away"
    if kind in ("segment", "row", "version"):
        path = folder / ("0000000000000001.segment" if kind == "segment" else "SNAPSHOT")
        whole = path.read_bytes()
        if kind == "version":
            head = whole[:8] + b"\x63\x00" + whole[10:24]
            path.write_bytes(head + crc32(head).to_bytes(4, "little") + whole[28:])
        else:
            path.write_bytes(whole[:9] + bytes([whole[9] ^ 0x10]) + whole[10:])

        def mend_file() -> None:
            path.write_bytes(whole)

        return mend_file
    folder.rename(away)
    if kind == "file":
        folder.write_bytes(b"theirs")

    def mend() -> None:
        if kind != "gone":
            folder.unlink()
        away.rename(folder)

    return mend


def with_two_logs(folder: Path) -> None:
    """Log `a` has entries in segments, a snapshot, and entries in the WAL only."""
    with RaftLogStore(folder, PLAIN) as store:
        for name in ("a", "b"):
            store.log(name).append(rows(1, 10))
        store.flush()
        store.log("a").snapshot(5, [3])
        for name in ("a", "b"):
            store.log(name).append_entries(8, 1, rows(9, 12, 2))


SMALL_WAL = attrs.evolve(PLAIN, max_wal_bytes=300, max_unflushed_files=1)


@pytest.mark.parametrize("kind", DAMAGES)
def test_a_log_that_cannot_be_opened_keeps_no_other_back_and_loses_nothing(kind: str, tmp_path: Path) -> None:
    folder = tmp_path / "s"
    with_two_logs(folder)
    mend = damage(folder / "logs/a", kind)
    for life in range(3):
        with RaftLogStore(folder, SMALL_WAL) as store:
            assert "a" not in store.log_ids
            assert store.status().damaged == ("a",)
            with pytest.raises(CompactlibError):
                store.log("a")
            for _ in range(8):
                store.log("b").append(rows(store.log("b").last_index + 1, store.log("b").last_index + 4, 3))
                store.sync()
            store.log(f"new-{life}").append(rows(life, life))
            store.flush()
            assert store.status().unflushed_files == 0
            store.audit()
    mend()
    for _ in range(2):
        with RaftLogStore(folder, SMALL_WAL) as store:
            assert store.status().damaged == ()
            log = store.log("a", create=False)
            assert [(entry.index, entry.term) for entry in log.entries()] == [
                (3, 1), (6, 1), (7, 1), (8, 1), (9, 2), (10, 2), (11, 2), (12, 2)]
            assert log.state.index == 5
            assert store.log("b").last_index == 12 + 3 * 8 * 4
            store.flush()


@pytest.mark.parametrize("writes", [0, 1, 3])
def test_what_is_held_of_a_log_that_cannot_be_opened_is_held_once(writes: int, tmp_path: Path) -> None:
    """Each opening begins a file that repeats it, and until a flush all these files are there."""
    folder = tmp_path / "s"
    with_two_logs(folder)
    mend = damage(folder / "logs/a", DAMAGES[0])
    sizes: list[int] = []
    for _ in range(12):
        with RaftLogStore(folder, PLAIN) as store:
            sizes.append(store.status().wal_bytes)
            for _ in range(writes):
                store.log("b").append(rows(store.log("b").last_index + 1, store.log("b").last_index + 1, 3))
                store.sync()
    assert max(sizes) < 1.5 * sizes[0], sizes
    mend()
    with RaftLogStore(folder, PLAIN) as store:
        assert indexes(store.log("a")) == [3, *range(6, 13)]
        assert store.log("b").last_index == 12 + 12 * writes


@pytest.mark.parametrize("kind", DAMAGES)
def test_a_log_that_cannot_be_opened_can_be_removed(kind: str, tmp_path: Path) -> None:
    folder = tmp_path / "s"
    with_two_logs(folder)
    damage(folder / "logs/a", kind)
    with RaftLogStore(folder, PLAIN) as store:
        store.remove("a")
        assert store.status().damaged == ()
        if kind == "file":
            assert (folder / "logs/a").exists()
        else:
            store.log("a").append(rows(1, 2, 9))
    with RaftLogStore(folder, PLAIN) as store:
        assert store.status().damaged == ()
        assert indexes(store.log("b")) == list(range(1, 13))
        if kind != "file":
            assert indexes(store.log("a")) == [1, 2]


def test_a_damaged_log_whose_removal_was_refused_keeps_all_it_held(tmp_path: Path) -> None:
    folder, armed = tmp_path / "s", [True]
    with_two_logs(folder)
    mend = damage(folder / "logs/a", "segment")

    def look(operation: str, path: str) -> None:
        if armed[0] and operation == "rename" and ".removed-" in path:
            raise DiskFull(operation=operation, path=path, errno=errno.ENOSPC)

    with RaftLogStore(folder, StoreOptions(background=False, log=LogOptions(files=WatchedFiles(look)))) as store:
        with pytest.raises(DiskFull):
            store.remove("a")
        store.flush()
        assert store.status().damaged == ("a",)
    mend()
    with RaftLogStore(folder, PLAIN) as store:
        assert indexes(store.log("a", create=False)) == [3, *range(6, 13)]
        assert indexes(store.log("b")) == list(range(1, 13))


def test_a_crash_after_a_damaged_logs_removal_was_refused_half_way_leaves_all_or_nothing(tmp_path: Path) -> None:
    lived = tmp_path / "lived"
    lived.mkdir()
    with_two_logs(lived / "s")
    index = next((lived / "s/logs/a").glob("*.segment"))
    whole = index.read_bytes()
    index.write_bytes(b"\xff" * len(whole))
    armed: list[bool] = []
    files = RecordingFiles(lived)

    def check(folder: Path, acknowledged: Sequence[int]) -> None:
        damaged = folder / "s/logs/a" / index.name
        if not damaged.exists():
            return
        damaged.write_bytes(whole)
        with RaftLogStore(folder / "s", PLAIN) as store:
            assert indexes(store.log("a", create=False)) == [3, *range(6, 13)]

    log = LogOptions(keep_links_seconds=0.0, files=WatchedFiles(refusing_once(armed), LocksAsideFiles(files)))
    with RaftLogStore(lived / "s", StoreOptions(background=False, log=log)) as store:
        assert store.status().damaged == ("a",)
        armed.append(True)
        with pytest.raises(DiskFull):
            store.remove("a")
        store.remove("a")
    explore_crashes(files.recording(), check, seed=3, limit_per_point=3)


def test_a_crash_while_a_log_cannot_be_opened_loses_nothing_of_it(tmp_path: Path) -> None:
    def prepare(folder: Path) -> None:
        folder.mkdir()
        with_two_logs(folder / "s")
        (folder / "s/logs/a").rename(folder / "away")

    def live(folder: Path, files: RecordingFiles) -> None:
        options = attrs.evolve(SMALL_WAL, log=attrs.evolve(SMALL_WAL.log, files=files))
        with RaftLogStore(folder / "s", options) as store:
            for _ in range(3):
                store.log("b").append(rows(store.log("b").last_index + 1, store.log("b").last_index + 5, 3))
                store.sync()
                files.acknowledge(store.log("b").last_index)
            store.flush()

    def check(folder: Path, acknowledged: Sequence[int]) -> None:
        (folder / "away").rename(folder / "s/logs/a")
        with RaftLogStore(folder / "s", PLAIN) as store:
            assert indexes(store.log("a", create=False)) == [3, *range(6, 13)]
            assert store.log("b").last_index >= max(acknowledged, default=12)

    prepare(tmp_path / "lived")
    files = RecordingFiles(tmp_path / "lived")
    live(tmp_path / "lived", files)
    explore_crashes(files.recording(), check, seed=3, limit_per_point=3)


# -- a row that is damaged or lost, beside its snapshot


def with_snapshots(folder: Path, observer: Observer | None = None) -> StoreOptions:
    log = LogOptions(limits=SegmentLimits(max_entries=8), keep_links_seconds=0.0, files=UnsyncedFiles(),
                     observer=observer or Observers())
    return StoreOptions(log=log, background=False,
                        snapshots_of=lambda log_id: SnapshotFolder(folder / f"{log_id}-snap"))


def with_a_snapshot(folder: Path) -> Path:
    """Log `a` was compacted after a snapshot, its last entries are in the WAL only; returns where its row is."""
    with RaftLogStore(folder / "store", with_snapshots(folder)) as store:
        log = store.log("a")
        log.attach(SnapshotFolder(folder / "a-snap"))
        log.append(rows(1, 60))
        log.flush()
        log.snapshot(40, [5, 7, 38], [b"state"])
        assert not log.compact(policy=log.policy).is_empty
        log.append(rows(61, 70))
        log.sync()
        assert log.term_of(39) is None or log.term_of(33) is None
        store.log("b").append(rows(1, 3))
    return folder / "store" / "logs" / "a" / "SNAPSHOT"


@pytest.mark.parametrize("place", [0, 8, 16, 25, 33, 41, -1, "cut", "lost"])
def test_a_damaged_row_is_written_anew_from_the_snapshot(place: int | str, tmp_path: Path) -> None:
    row = with_a_snapshot(tmp_path)
    whole = row.read_bytes()
    if isinstance(place, int):
        row.write_bytes(bytes(byte ^ (number == place % len(whole)) for number, byte in enumerate(whole)))
    else:
        row.unlink()
        if place == "cut":
            row.write_bytes(whole[:30])
    told = RecordingObserver()
    if place != "lost":
        with RaftLogStore(tmp_path / "store", attrs.evolve(with_snapshots(tmp_path), snapshots_of=None)) as store:
            with pytest.raises(CorruptData, match="SNAPSHOT"):
                store.log("a")
            assert indexes(store.log("b")) == [1, 2, 3]
    for life in range(2):
        with RaftLogStore(tmp_path / "store", with_snapshots(tmp_path, told)) as store:
            log = store.log("a")
            log.attach(SnapshotFolder(tmp_path / "a-snap"), applied=40)
            assert row.read_bytes() == whole
            assert log.state == SnapshotMeta(40, 1, IndexSet.from_sorted([5, 7, 38]))
            assert indexes(log) == [5, 7, 38, *range(41, 71 + life)]
            assert log.read(6) == DeadEntry(6, 40)
            log.append(rows(71 + life, 71 + life))
            log.sync()
            assert not store.status().damaged
            store.audit()
    assert [name for name, _ in told.events if name == "raftlog_row_rebuilt"] == \
        ([] if place == "lost" else ["raftlog_row_rebuilt"])


def test_a_row_is_not_written_anew_without_what_its_snapshot_needs(tmp_path: Path) -> None:
    row = with_a_snapshot(tmp_path)
    row.write_bytes(b"\0" * 50)
    damaged = row.read_bytes()
    segment = min(row.parent.glob("*.segment"))
    kept = segment.read_bytes()
    segment.unlink()
    for _ in range(2):
        with RaftLogStore(tmp_path / "store", with_snapshots(tmp_path)) as store:
            with pytest.raises(CorruptData, match="SNAPSHOT"):
                store.log("a")
            assert store.status().damaged == ("a",)
            store.log("b").append_entries(0, 0, rows(1, 3, 2))
            store.flush()
            assert row.read_bytes() == damaged
    # What the WAL has of it has stayed.
    segment.write_bytes(kept)
    with RaftLogStore(tmp_path / "store", with_snapshots(tmp_path)) as store:
        assert indexes(store.log("a")) == [5, 7, 38, *range(41, 71)]


def test_a_row_of_another_version_is_no_damage_and_without_a_snapshot_nothing_is_mended(tmp_path: Path) -> None:
    row = with_a_snapshot(tmp_path)
    mend = damage(row.parent, "version")
    with RaftLogStore(tmp_path / "store", with_snapshots(tmp_path)) as store, pytest.raises(Unsupported):
        store.log("a")
    mend()
    row.write_bytes(b"damaged")
    shutil.rmtree(tmp_path / "a-snap")
    with RaftLogStore(tmp_path / "store", with_snapshots(tmp_path)) as store, pytest.raises(CorruptData):
        store.log("a")


@pytest.mark.parametrize("flushed", ["nothing", "what was there", "all"])
@pytest.mark.parametrize("taken_back", [False, True])
def test_what_comes_and_is_covered_while_many_are_read_is_not_called_damaged(flushed: str, taken_back: bool,
                                                                             tmp_path: Path) -> None:
    with open_log(tmp_path, StoreOptions(background=False)) as log:
        log.append(rows(1, 5))
        if flushed != "nothing":
            log.flush()
        answers = log.read_many(range(1, 9))
        assert next(answers) == Entry(*rows(1, 1)[0])
        if taken_back:
            log.reset(3)
        later = [(index, 2, b"later") for index in range(log.last_index + 1, 9)]
        log.append(later)
        log.snapshot(8, live=[2, 7])
        if flushed == "all":
            log.flush()
        found = list(answers)
        assert len(found) == 7
        before = [*map(Entry._make, rows(2, 5)), *map(MissingEntry, range(6, 9))]
        now = [log.read(index) for index in range(2, 9)]
        assert all(answer in pair for answer, pair in zip(found, zip(before, now, strict=True), strict=True))
        assert log.verify().is_sound


APPENDS: dict[str, Callable[[RaftLog, int], object]] = {
    "append": lambda log, index: log.append(rows(index, index)),
    "append_sparse": lambda log, index: log.append_sparse([Entry(*rows(index, index)[0])]),
}


@pytest.mark.parametrize("way", APPENDS)
@pytest.mark.parametrize("queued", [0, 150])
def test_what_an_append_says_is_true_when_the_disk_refuses_the_sync_that_it_makes(way: str, queued: int,
                                                                                  tmp_path: Path) -> None:
    """The host has told nobody of an entry that was refused, and appends another in its place."""
    full = False

    def look(operation: str, path: str) -> None:
        if full and path.endswith(".wal"):
            raise DiskFull(operation=operation, path=path, errno=errno.ENOSPC)

    options = StoreOptions(log=LogOptions(files=WatchedFiles(look, UnsyncedFiles())), background=False,
                           max_queued_bytes=queued)
    taken, refused = 0, 0
    with open_log(tmp_path, options) as log:
        for turn in range(40):
            full = turn % 8 > 2
            try:
                APPENDS[way](log, taken + 1)
            except DiskFull:
                refused += 1
            else:
                taken += 1
            assert log.last_index == (taken or -1)
        full = False
        assert refused
        log.sync()
        assert indexes(log) == list(range(1, taken + 1))
    with open_log(tmp_path, PLAIN) as log:
        assert indexes(log) == list(range(1, taken + 1))


@pytest.mark.parametrize("live", [[1, 5], [5, 8], [7]])
def test_a_scan_of_what_is_taken_back_and_covered_meanwhile_is_no_damage(live: list[int], tmp_path: Path) -> None:
    with open_log(tmp_path, StoreOptions(background=False, log=LogOptions(limits=SegmentLimits(max_entries=3)))) as log:
        log.append(rows(1, 4))
        log.append_sparse([Entry(6, 1, b"6"), Entry(9, 1, b"9")])
        log.flush()
        entries = log.entries()
        assert next(entries).index == 1
        log.reset(4)
        log.append([(index, 2, b"later") for index in range(5, 10)])
        log.snapshot(9, live=live)
        assert {entry.index for entry in entries} <= {2, 3, 4, 6, 9}
        assert [entry.index for entry in log.entries()] == live
        log.flush()
        assert log.verify().is_sound
