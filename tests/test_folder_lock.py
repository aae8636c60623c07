"""One writer per folder, over objects and processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from compactlib.errors import Busy, ReadOnly, StorageError
from compactlib.folder_lock import FolderLock
from tests.readonly import read_only_copy

HOLD = """
import sys
from compactlib.folder_lock import FolderLock
with FolderLock(sys.argv[1]):
    print("held", flush=True)
    sys.stdin.read()
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
            with pytest.raises(Busy, match=rf"open for writing by process {os.getpid()}"):
                FolderLock(tmp_path)
    assert "released" in repr(lock)
    lock.release()
    FolderLock(tmp_path).release()


def test_two_folders_and_two_names_do_not_meet(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    with FolderLock(tmp_path), FolderLock(tmp_path / "other"), FolderLock(tmp_path, "ANOTHER"):
        assert sorted(os.listdir(tmp_path)) == ["ANOTHER", "LOCK", "other"]


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


def test_a_folder_that_is_not_there_or_read_only(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match=r"lock .*LOCK: No such file or directory"):
        FolderLock(tmp_path / "missing")
    with read_only_copy(tmp_path) as folder, pytest.raises(ReadOnly, match="open for reading only"):
        FolderLock(folder)


def test_a_full_disk_is_no_reason_to_refuse(tmp_path: Path) -> None:
    (tmp_path / "LOCK").symlink_to("/dev/full")
    with FolderLock(tmp_path), pytest.raises(Busy):
        FolderLock(tmp_path)


def test_a_lock_left_by_another_holder_with_no_name(tmp_path: Path) -> None:
    """What stands in the file means nothing, and may be anything."""
    (tmp_path / "LOCK").write_bytes(b"\xff\xfe\0")
    with FolderLock(tmp_path), pytest.raises(Busy):
        FolderLock(tmp_path)
