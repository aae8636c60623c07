# SPDX-License-Identifier: Apache-2.0
"""The store in an SQLite file: processes, kills, damage, other files and versions, readers during writes."""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from compactlib.clock import ManualClock
from compactlib.errors import (
    Busy,
    Closed,
    CompactlibError,
    CorruptData,
    DiskFull,
    InvalidInput,
    ReadOnly,
    StorageError,
    Unsupported,
)
from compactlib.files import LocalFiles
from compactlib.files.disk import StrPath
from compactlib.kv import KeyNotFound, MemoryStore, SlowDown, SqliteStore
from compactlib.kv.errors import ConnectFailed, DamagedStore, NotAStore, OutcomeUnknown, StoreFailed
from tests.harness.forks import in_a_fork
from tests.harness.kv.sqlite_file import locked
from tests.harness.readonly import read_only_copy

ROOT = Path(__file__).parents[2]


# -- durability, processes


def test_an_interrupt_as_a_transaction_begins_leaves_no_lock(tmp_path: Path) -> None:
    """Ctrl-C while it waits for another writer is raised once it has the lock."""
    store, other = (SqliteStore(tmp_path / "kv", busy_seconds=0.1) for _ in range(2))
    with contextlib.suppress(KeyboardInterrupt), store._lent("test") as connection:  # noqa: SLF001
        connection.execute("BEGIN IMMEDIATE")
        raise KeyboardInterrupt
    other.set(b"p", b"k", b"other")
    store.set(b"p", b"k", b"own")
    assert other.get(b"p", b"k").value == b"own"
    store.close()
    other.close()


def test_a_connection_in_use_is_closed_after_its_use(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "kv")
    with store._lent("test") as connection:  # noqa: SLF001
        store.close()
        connection.execute("SELECT 1")
    with pytest.raises(sqlite3.ProgrammingError, match="closed"):
        connection.execute("SELECT 1")


def test_the_disk_is_synced_by_the_setting(tmp_path: Path) -> None:
    for synchronous, number in (("full", 2), ("normal", 1)):
        store = SqliteStore(tmp_path / synchronous, synchronous=synchronous)  # type: ignore[arg-type]
        with store._lent("test") as connection:  # noqa: SLF001
            assert connection.execute("PRAGMA synchronous").fetchone() == (number,)
            assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
        store.close()
    with pytest.raises(InvalidInput, match="synchronous"):
        SqliteStore(tmp_path / "off", synchronous="off")  # type: ignore[arg-type]


def processes(command: list[str], count: int) -> list[subprocess.Popen[bytes]]:
    return [subprocess.Popen([sys.executable, "-m", "tests.kv.sqlite_writer", *command], cwd=ROOT)
            for _ in range(count)]


def test_eight_processes_count_by_compare_and_set(tmp_path: Path) -> None:
    # They also race to make the file.
    path = tmp_path / "kv"
    for process in processes(["count", str(path), "50"], 8):
        assert process.wait(timeout=120) == 0
    with contextlib.closing(SqliteStore(path)) as store:
        assert store.get(b"p", b"counter").value == b"400"
        store.audit()


def test_a_writer_that_is_killed_leaves_whole_transactions(tmp_path: Path) -> None:
    path = tmp_path / "kv"
    with contextlib.closing(SqliteStore(path)) as store:
        store.set(b"left", b"k", b"0")
    rng = random.Random(9)
    for _ in range(5):
        command = [sys.executable, "-m", "tests.kv.sqlite_writer", "live", str(path)]
        with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            told = [process.stdout.readline() for _ in range(rng.randint(1, 150))]
            process.send_signal(signal.SIGKILL)
            told.extend(process.stdout.readlines())
        assert process.returncode == -signal.SIGKILL
        words = [line.split() for line in told if line.endswith(b"\n")]
        promised = max((int(number) for word, number in words if word == b"done"), default=0)
        begun = max(int(number) for _, number in words)
        with contextlib.closing(SqliteStore(path)) as store:
            left = store.get(b"left", b"k").value
            assert promised <= int(left) <= begun
            assert int(left) == 0 or store.get(b"right", b"k").value == left
            with store.scan(b"log") as entries:
                assert [int(entry.key) for entry in entries] == list(range(1, int(left) + 1))
            store.audit()


def test_a_found_file_is_made_durable_before_an_acknowledgement(tmp_path: Path) -> None:
    """The creator may have been killed before its sync of the folder; a power failure would then remove the name."""
    synced: list[str] = []

    class Noting(LocalFiles):
        def sync_folder(self, path: StrPath) -> None:
            synced.append(os.fspath(path))
            super().sync_folder(path)

    path = tmp_path / "folder" / "kv"
    path.parent.mkdir()
    path.touch()
    for _ in range(2):
        synced.clear()
        with contextlib.closing(SqliteStore(path, files=Noting())) as store:
            assert synced == [str(path.parent), str(tmp_path)]
            store.set(b"p", b"k", b"v")


def test_another_process_may_create_the_file_at_any_statement(tmp_path: Path,
                                                              monkeypatch: pytest.MonkeyPatch) -> None:
    """Several processes open one new store at once; at each statement of one, another opens it whole."""
    statements = itertools.count()
    turn, path, met = -1, tmp_path / "kv", False
    connect = sqlite3.connect

    class Meddled(sqlite3.Connection):
        def execute(self, *arguments: Any) -> sqlite3.Cursor:
            nonlocal met
            if next(statements) == turn:
                met = True
                monkeypatch.setattr(sqlite3, "connect", connect)
                # Waits for nothing that this one holds.
                with contextlib.suppress(SlowDown), contextlib.closing(SqliteStore(path, busy_seconds=0)) as other:
                    other.set(b"p", b"k", b"v")
            return super().execute(*arguments)

    while met or turn < 0:
        turn, met, statements, path = turn + 1, False, itertools.count(), tmp_path / f"kv{turn + 1}"
        monkeypatch.setattr(sqlite3, "connect", lambda *at, **how: connect(*at, factory=Meddled, **how))
        with contextlib.closing(SqliteStore(path)) as store:
            store.set(b"p", b"mine", b"v")
            store.audit()
    assert turn > 8


def refused(store: SqliteStore) -> bool:
    for call in (lambda: store.get(b"p", b"k"), lambda: store.set(b"p", b"k", b"w")):
        with pytest.raises(Closed):
            call()
    store.close()
    return True


def test_a_child_forked_while_a_thread_writes_is_refused(tmp_path: Path) -> None:
    """The locks inside are held by a thread that the child does not have."""
    with contextlib.closing(SqliteStore(tmp_path / "kv", busy_seconds=60)) as store:
        store._joining.acquire()  # noqa: SLF001
        try:
            assert in_a_fork(functools.partial(refused, store)) is True
        finally:
            store._joining.release()  # noqa: SLF001


def open_there(path: Path) -> list[bytes]:
    with contextlib.closing(SqliteStore(path)) as store:
        store.set(b"p", b"child", b"v")
        return [entry.key for entry in store.scan(b"p")]


@pytest.mark.parametrize("reads", [False, True])
def test_a_child_forked_while_the_file_is_open_is_refused(tmp_path: Path, *, reads: bool) -> None:
    """It would take its parent's locks for its own: the next to close the file, its parent too, removes the `-wal` that
    it writes to."""
    with contextlib.closing(SqliteStore(tmp_path / "kv")) as store:
        store.set(b"p", b"k", b"v")
        with contextlib.closing(SqliteStore(tmp_path / "kv", read_only=reads)):
            (tmp_path / "link").symlink_to("kv")
            for name in ("kv", "link"):
                refusal = in_a_fork(functools.partial(open_there, tmp_path / name))
                assert isinstance(refusal, Closed)
                assert "was open when this process" in str(refusal)
        assert in_a_fork(functools.partial(open_there, tmp_path / "other")) == [b"child"]
    assert in_a_fork(functools.partial(open_there, tmp_path / "kv")) == [b"child", b"k"]


# -- files that are moved by hand


@pytest.mark.parametrize("instead", [False, True])
def test_a_write_to_a_removed_file_is_refused(tmp_path: Path, *, instead: bool) -> None:
    with contextlib.closing(SqliteStore(tmp_path / "kv")) as store, \
            contextlib.closing(SqliteStore(tmp_path / "kv")) as other:
        store.set(b"p", b"k", b"v")
        other._drop_idle()  # noqa: SLF001 - so that it has to connect again
        (tmp_path / "kv").rename(tmp_path / "gone")
        if instead:
            SqliteStore(tmp_path / "kv").close()
        for call in (lambda: store.set(b"p", b"k", b"w"), lambda: store.get(b"p", b"k"),
                     lambda: store.get_many([(b"p", b"k")]), lambda: list(store.scan(b"p")), store.audit):
            with pytest.raises(StoreFailed, match="the file was removed, or another one was put in its place"):
                call()
        for call in (lambda: other.set(b"p", b"k", b"w"), lambda: other.get(b"p", b"k")):
            with pytest.raises(StoreFailed, match=r"put in its place|unable to open"):
                call()
        if instead:
            return  # with the content of the `-wal`
        (tmp_path / "gone").rename(tmp_path / "kv")
        assert other.get(b"p", b"k").value == store.get(b"p", b"k").value == b"v"


def test_the_wal_is_bounded_under_readers_without_a_pause(tmp_path: Path,
                                                          monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("compactlib.kv.sqlite._WAL_BYTES", 1 << 20)
    path, done = tmp_path / "kv", threading.Event()

    def reads() -> None:
        lines = [sqlite3.connect(path, isolation_level=None) for _ in range(2)]
        for turn in itertools.count():
            # The next one begins before this one ends.
            lines[turn % 2].execute("BEGIN").execute("SELECT count(*) FROM cells").fetchall()
            if turn:
                lines[turn % 2 - 1].execute("ROLLBACK")
            if done.wait(0.001):
                break
        for line in lines:
            line.close()

    with contextlib.closing(SqliteStore(path, synchronous="normal")) as store:
        reader, largest = threading.Thread(target=reads), 0
        reader.start()
        try:
            for _ in range(200):
                store.set(b"p", b"k", bytes(100_000))
                largest = max(largest, path.with_name("kv-wal").stat().st_size)
        finally:
            done.set()
            reader.join()
        assert largest < 8 << 20
        store.audit()


def test_a_long_reader_costs_writers_one_wait_for_each_doubling(tmp_path: Path,
                                                                monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("compactlib.kv.sqlite._WAL_BYTES", 1 << 20)
    path, clock = tmp_path / "kv", ManualClock()
    with contextlib.closing(SqliteStore(path, busy_seconds=0, clock=clock)) as store:
        store.set(b"p", b"k", b"v")
        with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as reader:
            assert reader.execute("BEGIN").execute("SELECT count(*) FROM cells").fetchall() == [(1,)]
            for _ in range(60):
                store.set(b"p", b"k", bytes(100_000))
            assert path.with_name("kv-wal").stat().st_size > 4 << 20
        store.set(b"p", b"k", b"v")
        assert path.with_name("kv-wal").stat().st_size > 4 << 20
        clock.advance(61.0)
        store.set(b"p", b"k", b"v")
        assert path.with_name("kv-wal").stat().st_size == 0
        with locked(path), pytest.raises(SlowDown):
            store.set(b"p", b"k", b"v")


def test_a_link_to_the_file_is_followed_by_a_reader(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to("folder/kv")
    with contextlib.closing(SqliteStore(tmp_path / "link")) as store:
        store.set(b"p", b"k", b"v")
        with contextlib.closing(SqliteStore(tmp_path / "link", read_only=True)) as reader:
            store.set(b"p", b"l", b"w")
            assert [entry.key for entry in reader.scan(b"p")] == [b"k", b"l"]


def test_an_empty_database_is_refused_if_a_store_must_exist(tmp_path: Path) -> None:
    """Also the leftover of a process that was killed while it created a store."""
    with contextlib.closing(sqlite3.connect(tmp_path / "kv")) as empty:
        empty.execute("PRAGMA journal_mode = WAL")
    with pytest.raises(NotAStore, match="without a key-value store"):
        SqliteStore(tmp_path / "kv", create=False)
    with contextlib.closing(SqliteStore(tmp_path / "kv")) as store:
        store.set(b"p", b"k", b"v")
    SqliteStore(f"/{tmp_path}/kv", create=False).close()


def test_a_failed_audit_holds_no_file_while_its_error_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "kv"
    with contextlib.closing(SqliteStore(path, busy_seconds=0)) as store, contextlib.closing(SqliteStore(path)) as other:
        store.transact({}, {(b"p", b"%d" % number): b"v" * 100 for number in range(200)})
        with contextlib.closing(sqlite3.connect(path)) as damaging, damaging:
            damaging.execute("UPDATE cells SET checksum = 1 WHERE key = ?", (b"1",))
        with pytest.raises(DamagedStore) as kept:
            store.audit()
        other.set(b"p", b"k", b"v")
        assert store.get(b"p", b"k").value == b"v"
        store.set(b"p", b"k", b"w")
        assert "checksum" in str(kept.value)


# -- a disk that does not answer


@pytest.mark.skipif(sys.platform != "linux", reason="finds the descriptors of a file by /proc")
def test_the_disks_error_is_in_the_message_of_concurrent_reads(tmp_path: Path) -> None:
    """SQLite ends the transaction that an I/O error breaks; that it cannot be taken back then is nobody's news."""
    with contextlib.closing(SqliteStore(tmp_path / "kv")) as store:
        for number in range(60):
            store.set(b"p", b"%d" % number, b"v" * 100_000)
        for call in (lambda: store.get(b"p", b"3"), lambda: store.get_many([(b"p", b"3"), (b"p", b"4")]),
                     lambda: store.set(b"p", b"3", b"")):
            write_only = os.open(tmp_path / "other", os.O_WRONLY | os.O_CREAT)
            for descriptor in os.listdir("/proc/self/fd"):
                with contextlib.suppress(OSError):
                    if os.readlink(f"/proc/self/fd/{descriptor}") in (str(tmp_path / "kv"), str(tmp_path / "kv-wal")):
                        os.dup2(write_only, int(descriptor), inheritable=False)
            os.close(write_only)
            with pytest.raises(StoreFailed) as failed:
                call()
            assert failed.value.detail == "disk I/O error"
            assert store.get(b"p", b"3").value == b"v" * 100_000, "on a new connection"


def test_a_commit_of_unknown_fate_stays_unknown(tmp_path: Path,
                                                monkeypatch: pytest.MonkeyPatch) -> None:
    broken: list[bool] = []
    connect = sqlite3.connect

    class Failing(sqlite3.Connection):
        def execute(self, statement: str, *rest: Any) -> sqlite3.Cursor:
            if broken and statement in ("COMMIT", "ROLLBACK"):
                error = sqlite3.OperationalError("disk I/O error")
                error.sqlite_errorcode = sqlite3.SQLITE_IOERR
                raise error
            return super().execute(statement, *rest)

    monkeypatch.setattr(sqlite3, "connect", lambda *at, **how: connect(*at, factory=Failing, **how))
    with contextlib.closing(SqliteStore(tmp_path / "kv", busy_seconds=0)) as store:
        broken.append(True)
        with pytest.raises(OutcomeUnknown):
            store.set(b"p", b"k", b"v")
        broken.clear()
        store.set(b"p", b"l", b"w")
        assert [entry.key for entry in store.scan(b"p")] == [b"l"]


# -- locks


def test_a_file_that_stays_locked_is_slow_down_not_an_endless_wait(tmp_path: Path) -> None:
    path = tmp_path / "kv"
    with contextlib.closing(SqliteStore(path, busy_seconds=0.05)) as store:
        store.set(b"p", b"k", b"v")
        with locked(path):
            with pytest.raises(SlowDown, match="locked by another writer") as refused:
                store.set(b"p", b"k", b"w")
            assert store.get(b"p", b"k").value == b"v", "readers do not wait"
        assert (refused.value.operation, str(path) in refused.value.detail) == ("write", True)
        store.set(b"p", b"k", b"w")


def test_a_store_is_not_set_up_while_the_file_is_locked(tmp_path: Path) -> None:
    path, clock = tmp_path / "kv", ManualClock()
    path.touch()
    with locked(path), pytest.raises(SlowDown):
        SqliteStore(path, busy_seconds=0.05, clock=clock)
    SqliteStore(path).close()


# -- other files, other versions, damage


def test_other_files_are_refused_and_left_alone(tmp_path: Path) -> None:
    text, database = tmp_path / "text", tmp_path / "database"
    text.write_bytes(b"Dear diary, today I wrote more than one page of text.\n" * 100)
    with contextlib.closing(sqlite3.connect(database)) as other:
        other.execute("CREATE TABLE mine (x)")
    for path in (text, database):
        before = path.read_bytes()
        with pytest.raises(NotAStore, match=str(path)):
            SqliteStore(path)
        assert path.read_bytes() == before


def test_a_newer_version_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "kv"
    SqliteStore(path).close()
    with contextlib.closing(sqlite3.connect(path)) as other:
        other.execute("PRAGMA user_version = 2")
    with pytest.raises(Unsupported, match="format 2, this release knows format 1"):
        SqliteStore(path)


def test_an_absent_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="No such file"):
        SqliteStore(tmp_path / "no folder" / "kv")
    (tmp_path / "folder").mkdir()
    for create in (True, False):
        with pytest.raises(ConnectFailed):
            SqliteStore(tmp_path / "folder", create=create)


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    SqliteStore(folder / "kv").close()
    with read_only_copy(folder) as view, pytest.raises(StorageError, match="kv"):
        SqliteStore(view / "kv")


def test_a_full_disk_changes_nothing(tmp_path: Path) -> None:
    with contextlib.closing(SqliteStore(tmp_path / "kv", synchronous="normal")) as store:
        store.set(b"p", b"k", b"v")
        with store._lent("test") as connection:  # noqa: SLF001
            connection.execute("PRAGMA max_page_count = 20")
        with pytest.raises(DiskFull, match="free some space"):
            store.transact({}, {(b"p", b"k"): b"w", (b"p", b"large"): bytes(200_000)})
        assert [(entry.key, entry.value) for entry in store.scan(b"p")] == [(b"k", b"v")]
        store.set(b"p", b"k", b"x")
        store.audit()


def filled(path: Path) -> dict[bytes, bytes]:
    rng = random.Random(3)
    wanted = {b"key %03d" % number: rng.randbytes(rng.choice([0, 5, 60, 3000])) for number in range(60)}
    with contextlib.closing(SqliteStore(path, synchronous="normal")) as store:
        for key, value in wanted.items():
            store.set(b"p", key, value)
    return wanted


def look(path: Path, wanted: dict[bytes, bytes]) -> None:
    """Read everything in every way. A value that is given out is right; a key may be missed, but not by `audit`."""
    store = SqliteStore(path, synchronous="normal")
    missed = False
    try:
        for key, value in wanted.items():
            try:
                assert store.get(b"p", key).value == value
            except KeyNotFound:
                missed = True
        with store.scan(b"p", page_size=7) as entries:
            found = [(entry.key, entry.value) for entry in entries]
        assert set(found) <= set(wanted.items())
        missed |= len(found) < len(wanted)
        store.set(b"p", b"new", b"v")
        if missed:
            with pytest.raises(CorruptData):
                store.audit()
    finally:
        store.close()


def test_no_damaged_byte_gives_a_wrong_value(tmp_path: Path) -> None:
    path = tmp_path / "kv"
    wanted = filled(path)
    sound = path.read_bytes()
    rng = random.Random(4)
    named: set[str] = set()
    for number in range(300):
        damaged = bytearray(sound)
        place = rng.randrange(200) if number < 60 else rng.randrange(len(sound))
        damaged[place] ^= 1 << rng.randrange(8)
        copy = tmp_path / "copy"
        copy.write_bytes(damaged)
        try:
            look(copy, wanted)
        except CompactlibError as error:
            named.add(type(error).__name__)
        for left in tmp_path.glob("copy*"):
            left.unlink()
    assert "DamagedStore" in named


def test_a_file_cut_short_is_damaged(tmp_path: Path) -> None:
    path = tmp_path / "kv"
    wanted = filled(path)
    size = path.stat().st_size
    for length in (1, 50, 99, 100, 4096, 4097, 8192, size // 2, size - 4096):
        copy = tmp_path / "copy"
        shutil.copy(path, copy)
        os.truncate(copy, length)
        with pytest.raises((DamagedStore, NotAStore)):
            look(copy, wanted)
        for left in tmp_path.glob("copy*"):
            left.unlink()


def test_an_absent_store_is_refused_without_create(tmp_path: Path) -> None:
    path = tmp_path / "kv"
    with pytest.raises(NotAStore, match="has 0 bytes"):
        SqliteStore(path, create=False)
    assert not path.exists()
    path.touch()
    with pytest.raises(NotAStore, match="create=True to begin anew"):
        SqliteStore(path, create=False)
    SqliteStore(path).close()
    SqliteStore(path, create=False).close()


def test_a_value_changed_behind_our_back_is_found(tmp_path: Path) -> None:
    path = tmp_path / "kv"
    filled(path)
    with contextlib.closing(sqlite3.connect(path)) as other:
        other.execute("UPDATE cells SET value = x'00' WHERE key = ?", (b"key 007",))
        other.commit()
    with contextlib.closing(SqliteStore(path)) as store:
        with pytest.raises(DamagedStore, match=r"key b'key 007' in partition b'p' does not match its checksum"):
            store.get(b"p", b"key 007")
        with pytest.raises(DamagedStore, match="restore the file from a copy"):
            list(store.scan(b"p"))
        with pytest.raises(DamagedStore):
            store.audit()
        store.get(b"p", b"key 008")


# -- opened for reading alone


def files_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_a_reader_of_a_closed_store_changes_no_file_and_makes_none(tmp_path: Path) -> None:
    with contextlib.closing(SqliteStore(tmp_path / "kv")) as owner:
        owner.set(b"p", b"k", b"value")
        owner.set(b"q", b"k", b"value")
    before = files_of(tmp_path)
    with contextlib.closing(SqliteStore(tmp_path / "kv", read_only=True)) as reader:
        assert reader.get(b"p", b"k").value == b"value"
        assert [entry.key for entry in reader.scan(b"q")] == [b"k"]
        assert list(reader.partitions()) == [b"p", b"q"]
        reader.audit()
        with pytest.raises(ReadOnly):
            reader.set(b"p", b"k", b"other")
    assert before == files_of(tmp_path)


def test_a_reader_during_an_owners_work_reads_committed_values(tmp_path: Path) -> None:
    with contextlib.closing(SqliteStore(tmp_path / "kv")) as owner:
        owner.set(b"p", b"k", b"first")
        with contextlib.closing(SqliteStore(tmp_path / "kv", read_only=True)) as reader:
            owner.set(b"p", b"k", b"second")
            before = files_of(tmp_path)
            assert reader.get(b"p", b"k").value == b"second"
            with pytest.raises(ReadOnly):
                reader.delete(b"p", b"k")
        before.pop("kv-shm")
        assert before.items() <= files_of(tmp_path).items()


def test_a_reader_is_busy_after_a_later_owner_changed_the_file(tmp_path: Path) -> None:
    SqliteStore(tmp_path / "kv").close()
    with contextlib.closing(SqliteStore(tmp_path / "kv", read_only=True)) as reader:
        with contextlib.closing(SqliteStore(tmp_path / "kv")) as owner:
            assert list(reader.partitions()) == []
            owner.set(b"p", b"k", b"x" * 10_000)
            with pytest.raises(Busy, match="open it again"):
                reader.get(b"p", b"k")
        with pytest.raises(Busy, match="open it again"):
            reader.get(b"p", b"k")


def test_a_reader_needs_a_store(tmp_path: Path) -> None:
    with pytest.raises(NotAStore):
        SqliteStore(tmp_path / "none", read_only=True)
    with contextlib.closing(sqlite3.connect(tmp_path / "other")) as other:
        other.execute("CREATE TABLE t (a)")
    with pytest.raises(NotAStore):
        SqliteStore(tmp_path / "other", read_only=True)
    assert not (tmp_path / "none").exists()


def test_a_file_may_have_any_name_that_the_disk_takes(tmp_path: Path) -> None:
    for name in (b"not utf-8 \xff\xfe", b"100%25?mode=ro#x"):
        with contextlib.closing(SqliteStore(tmp_path / os.fsdecode(name))) as store:
            store.set(b"p", b"k", b"v")
        with contextlib.closing(SqliteStore(tmp_path / os.fsdecode(name), read_only=True)) as reader:
            assert reader.get(b"p", b"k").value == b"v"
    assert len(os.listdir(tmp_path)) == 2


def test_a_page_may_be_as_large_as_anybody_likes(tmp_path: Path) -> None:
    for store in (SqliteStore(tmp_path / "store", page_size=1 << 80), MemoryStore(page_size=1 << 80)):
        with contextlib.closing(store):
            store.set(b"p", b"k", b"v")
            assert [entry.key for entry in store.scan(b"p", page_size=1 << 80)] == [b"k"]


def test_the_place_of_a_file_survives_a_rename_and_a_vacuum(tmp_path: Path) -> None:
    with contextlib.closing(SqliteStore(tmp_path / "one")) as store:
        store.set(b"p", b"k", b"v")
        place = store.place()
    with contextlib.closing(sqlite3.connect(tmp_path / "one")) as connection:
        connection.execute("VACUUM")
    os.rename(tmp_path / "one", tmp_path / "two")
    with contextlib.closing(SqliteStore(tmp_path / "two", read_only=True)) as store:
        assert store.place() == place


def test_a_copy_of_a_file_is_another_place_also_under_its_inode(tmp_path: Path) -> None:
    """Fresh volumes of one kind give a copy the inode that the origin has on its own."""
    places = set()
    for _ in range(5):
        with contextlib.closing(SqliteStore(tmp_path / "one")) as store:
            places.add(store.place())
        os.unlink(tmp_path / "one")
    assert len(places) == 5
