# SPDX-License-Identifier: Apache-2.0
"""One writer per folder, over objects, processes and forks."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from compactlib.errors import Busy, InvalidInput, ReadOnly, StorageError
from compactlib.files.folder_lock import FolderLock
from tests.harness.interruptions import interruptions
from tests.harness.readonly import read_only_copy

HOLD = """
import sys
from compactlib.files.folder_lock import FolderLock
with FolderLock(sys.argv[1]):
    print("held", flush=True)
    sys.stdin.read()
"""
FORK = """
import os, sys
from compactlib.errors import Busy
from compactlib.files.folder_lock import FolderLock

lock = FolderLock(sys.argv[1])
reading, writing = os.pipe()
go, going = os.pipe()
idle = os.fork()
if idle == 0:
    os.close(going)
    os.read(go, 1)
    os._exit(0)
child = os.fork()
if child == 0:
    os.close(going)
    os.write(writing, repr(lock).encode())
    lock.release()
    os.write(writing, b"; released")
    os.read(go, 1)
    os._exit(0)
told = b""
while not told.endswith(b"; released"):
    told += os.read(reading, 1000)
print(told.decode())
try:
    FolderLock(sys.argv[1])
except Busy:
    print("still held")
lock.release()
FolderLock(sys.argv[1]).release()
print("given up, although forks live")
os.close(going)
os.waitpid(child, 0)
os.waitpid(idle, 0)
"""


def holder(folder: Path) -> subprocess.Popen[str]:
    """Another process that holds the lock until its input ends."""
    process = subprocess.Popen([sys.executable, "-c", HOLD, str(folder)], stdin=subprocess.PIPE,
                               stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    return process


def test_the_second_of_two_objects_is_refused(tmp_path: Path) -> None:
    with FolderLock(tmp_path) as lock:
        assert "held" in repr(lock)
        for _ in range(2):
            with pytest.raises(Busy, match=rf"open for writing by process {os.getpid()};"):
                FolderLock(tmp_path)
    assert "released" in repr(lock)
    lock.release()
    FolderLock(tmp_path).release()


def test_another_process_is_named_and_leaves_with_its_end(tmp_path: Path) -> None:
    with holder(tmp_path) as process:
        with pytest.raises(Busy, match=rf"is open for writing by process {process.pid}"):
            FolderLock(tmp_path)
        process.communicate()
        assert process.returncode == 0
    FolderLock(tmp_path).release()


def test_a_killed_process_holds_nothing(tmp_path: Path) -> None:
    with holder(tmp_path) as process:
        process.send_signal(signal.SIGKILL)
        process.communicate()
    with FolderLock(tmp_path):
        assert (tmp_path / "LOCK").exists()


def test_removing_the_lock_file_admits_no_second_owner(tmp_path: Path) -> None:
    with FolderLock(tmp_path):
        (tmp_path / "LOCK").unlink()
        with pytest.raises(Busy, match="open for writing by a process;"):
            FolderLock(tmp_path)
    FolderLock(tmp_path).release()


def test_a_fork_neither_holds_nor_releases_its_parents_lock(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", FORK, str(tmp_path)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    told, *rest = done.stdout.splitlines()
    assert told.endswith(", released); released")
    assert rest == ["still held", "given up, although forks live"]


def test_an_absent_or_read_only_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match=r"lock .*LOCK: No such file or directory"):
        FolderLock(tmp_path / "missing")
    with read_only_copy(tmp_path) as folder, pytest.raises(
            ReadOnly, match=r"mount the file system for writing|permission to write there"):
        FolderLock(folder)


@pytest.mark.parametrize("target", ["victim", "not there yet", "/dev/full"])
def test_a_link_is_never_followed(tmp_path: Path, target: str) -> None:
    folder, victim = tmp_path / "store", tmp_path / "victim"
    folder.mkdir()
    victim.write_bytes(b"v" * 40)
    (folder / "LOCK").symlink_to(tmp_path / target)
    with pytest.raises(InvalidInput, match="not an ordinary file"):
        FolderLock(folder)
    assert victim.read_bytes() == b"v" * 40
    assert not (tmp_path / "not there yet").exists()
    (folder / "LOCK").unlink()
    FolderLock(folder).release()


def test_a_lock_path_that_is_no_file_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "LOCK")
    with pytest.raises(InvalidInput, match="not an ordinary file"):
        FolderLock(tmp_path)
    (tmp_path / "LOCK").unlink()
    (tmp_path / "LOCK").mkdir()
    with pytest.raises(InvalidInput, match="not an ordinary file"):
        FolderLock(tmp_path)


def test_a_lock_left_by_another_holder_with_no_name(tmp_path: Path) -> None:
    """The content of the lock file has no meaning."""
    (tmp_path / "LOCK").write_bytes(b"\xff\xfe\0")
    with FolderLock(tmp_path), pytest.raises(Busy):
        FolderLock(tmp_path)


def test_an_interrupt_anywhere_leaves_no_lock(tmp_path: Path) -> None:
    def work() -> None:
        with FolderLock(tmp_path):
            pass

    for interrupt in interruptions(work, 1_000):
        with contextlib.suppress(KeyboardInterrupt), interrupt:
            work()
        FolderLock(tmp_path).release()
