# SPDX-License-Identifier: Apache-2.0
"""Objects in a folder: the conformance kit, a crash at every step, a disk that refuses, processes that race."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from compactlib.errors import StorageError
from compactlib.files import LocalFiles
from compactlib.files.disk import StrPath
from compactlib.objects import LocalObjects


def test_an_object_is_a_file_that_any_tool_can_open(tmp_path: Path) -> None:
    with LocalObjects(tmp_path / "store") as store:
        store.create("ranges/part-0", b"bytes")
    assert (tmp_path / "store" / "ranges" / "part-0").read_bytes() == b"bytes"


def test_an_object_after_a_refused_sync_is_synced_before_a_read(tmp_path: Path) -> None:
    """The folder was settled before, so that a read took all that it holds for durable."""
    class Refusing(LocalFiles):
        refuses = False
        syncs = 0

        def sync_folder(self, path: StrPath) -> None:
            self.syncs += 1
            if self.refuses:
                raise StorageError(operation="sync", path=path, errno=errno.EIO)
            super().sync_folder(path)

    reads: list[Callable[[LocalObjects], object]] = [
        lambda store: store.get("a/b"), lambda store: store.info("a/b"), lambda store: list(store.list())]
    for number, read in enumerate(reads):
        files = Refusing()
        with LocalObjects(tmp_path / str(number), files=files) as store:
            store.create("a/before", b"")
            for change in (partial(store.create, "a/b", b"data"), partial(store.delete, ["a/before"])):
                files.refuses = True
                with pytest.raises(StorageError):
                    change()
                with pytest.raises(StorageError):
                    read(store)
                files.refuses, files.syncs = False, 0
                read(store)
                assert files.syncs


def test_leftovers_of_crashed_writers_are_swept_by_age(tmp_path: Path) -> None:
    with LocalObjects(tmp_path) as store:
        store.create("kept", b"data")
        for name, age in (("old", 1000), ("young", 3000)):
            path = tmp_path / ".incoming" / name
            path.write_bytes(b"half an obj")
            os.utime(path, (age, age))
        assert store.sweep(older_than=2000) == 1
        assert os.listdir(tmp_path / ".incoming") == ["young"]
        assert [info.key for info in store.list()] == ["kept"]


def test_a_leftover_that_another_sweep_has_just_removed_is_no_error(tmp_path: Path) -> None:
    class Raced(LocalFiles):
        def unlink(self, path: StrPath) -> None:
            os.unlink(path)  # by another process
            super().unlink(path)

    with LocalObjects(tmp_path, files=Raced()) as store:
        for name in ("one", "two"):
            (tmp_path / ".incoming" / name).write_bytes(b"half an obj")
        assert store.sweep(older_than=float("inf")) == 0
        assert os.listdir(tmp_path / ".incoming") == []


def test_a_read_only_folder_is_named(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"")
    with pytest.raises(StorageError):
        LocalObjects(path)


RACER = """
import sys
from compactlib.objects import LocalObjects, ObjectExists
store = LocalObjects(sys.argv[1])
print("ready", flush=True)
sys.stdin.readline()
won = 0
for number in range(100):
    try:
        store.create(f"contested/{number % 7}/{number}", sys.argv[2].encode())
        won += 1
    except ObjectExists:
        pass
print(won)
"""


def test_of_processes_that_create_the_same_keys_one_succeeds_each(tmp_path: Path) -> None:
    racers = [subprocess.Popen([sys.executable, "-c", RACER, str(tmp_path / "store"), str(number)],
                               stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for number in range(3)]
    for racer in racers:
        assert racer.stdout is not None
        assert racer.stdout.readline() == "ready\n"
    won = {str(number): int(racer.communicate("go\n")[0]) for number, racer in enumerate(racers)}
    with LocalObjects(tmp_path / "store") as store:
        owners = [store.get(info.key).decode() for info in store.list()]
    assert len(owners) == 100
    assert {racer: owners.count(racer) for racer in won} == won
