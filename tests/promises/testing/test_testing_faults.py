# SPDX-License-Identifier: Apache-2.0
"""The failing disk: which changes it refuses, under which name, and what arrives all the same."""

from __future__ import annotations

import contextlib
import errno
import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from compactlib.errors import DiskFull, InvalidInput, ReadOnly, StorageError
from compactlib.files import Files, write_durably
from compactlib.testing import FailingFiles
from tests.harness.pictures import picture


def every_change(folder: Path, files: Files) -> None:
    """One of each change; 14 in all."""
    files.make_folder(folder / "sub")  # 1
    out = files.create(folder / "a")  # 2
    try:
        out.write_at(0, [b"0123", b"4567"])  # 3
        source = os.open(folder / "a", os.O_RDONLY)
        try:
            out.copy_from(source, 0, 8, 8)  # 4
        finally:
            os.close(source)
        out.truncate(20)  # 5
        out.truncate(10)  # 6
        out.sync()  # 7
    finally:
        out.close()
    files.link(folder / "a", folder / "b")  # 8
    files.symlink("b", folder / "c")  # 9
    files.rename(folder / "c", folder / "d")  # 10
    files.unlink(folder / "b")  # 11
    files.sync_folder(folder)  # 12
    files.remove_folder(folder / "sub")  # 13
    files.sync_folder(folder)  # 14


OPERATIONS = ["make folder", "create", "write", "copy", "truncate", "truncate", "sync", "link", "symlink", "rename",
              "unlink", "sync folder", "remove folder", "sync folder"]


def test_without_a_failure_it_counts(tmp_path: Path) -> None:
    files = FailingFiles()
    every_change(tmp_path, files)
    assert files.count == len(OPERATIONS)
    assert picture(tmp_path) == {"a": b"0123456701", "d": "b"}


@pytest.mark.parametrize("number", range(1, len(OPERATIONS) + 1))
def test_exactly_the_nth_change_fails_under_its_name(tmp_path: Path, number: int) -> None:
    files = FailingFiles(fail_at=number)
    with pytest.raises(DiskFull) as caught:
        every_change(tmp_path, files)
    assert caught.value.operation == OPERATIONS[number - 1]
    assert caught.value.errno == errno.ENOSPC
    assert files.count == number


def test_the_refused_change_is_not_carried_out_and_the_next_one_is(tmp_path: Path) -> None:
    files = FailingFiles(fail_at=1)
    with pytest.raises(DiskFull):
        files.make_folder(tmp_path / "a")
    assert picture(tmp_path) == {}
    files.make_folder(tmp_path / "a")
    assert picture(tmp_path) == {"a": None}


@pytest.mark.parametrize(("number", "kind"), [(errno.ENOSPC, DiskFull), (errno.EDQUOT, DiskFull),
                                              (errno.EROFS, ReadOnly), (errno.EIO, StorageError)])
def test_the_error_number_gives_the_error(tmp_path: Path, number: int, kind: type[StorageError]) -> None:
    with pytest.raises(StorageError) as caught:
        FailingFiles(fail_at=1, errno=number).create(tmp_path / "a")
    assert type(caught.value) is kind


@pytest.mark.parametrize(("short", "left"), [(True, b"0123"), (False, b"")])
def test_half_of_a_refused_write_arrives_if_asked(tmp_path: Path, short: bool, left: bytes) -> None:
    with pytest.raises(DiskFull):
        every_change(tmp_path, FailingFiles(fail_at=3, short_write=short))
    assert (tmp_path / "a").read_bytes() == left


@pytest.mark.parametrize(("short", "left"), [(True, b"012345670123"), (False, b"01234567")])
def test_half_of_a_refused_copy_arrives_if_asked(tmp_path: Path, short: bool, left: bytes) -> None:
    with pytest.raises(DiskFull):
        every_change(tmp_path, FailingFiles(fail_at=4, short_write=short))
    assert (tmp_path / "a").read_bytes() == left


def attempts(folder: Path, files: Files) -> dict[str, Callable[[], object]]:
    """One of each change, on what is there: files a and b, an empty folder, an open file."""
    (folder / "empty").mkdir()
    for name in ("a", "b", "open"):
        (folder / name).write_bytes(b"01234567")
    out = files.open(folder / "open")

    def copy() -> None:
        out.copy_from(out.fileno(), 0, 2, 8)

    return {
        "create": lambda: files.create(folder / "new").close(),
        "open": lambda: files.open(folder / "a").close(),
        "write": lambda: out.write_at(0, [b"x"]),
        "copy": copy,
        "extend": lambda: out.truncate(30),
        "cut": lambda: out.truncate(3),
        "sync": out.sync,
        "link": lambda: files.link(folder / "a", folder / "linked"),
        "symlink": lambda: files.symlink("a", folder / "symlinked"),
        "make folder": lambda: files.make_folder(folder / "made"),
        "rename": lambda: files.rename(folder / "a", folder / "renamed"),
        "unlink": lambda: files.unlink(folder / "b"),
        "remove folder": lambda: files.remove_folder(folder / "empty"),
        "sync folder": lambda: files.sync_folder(folder),
        "close": out.close,
    }


def refused(folder: Path, number: int) -> set[str]:
    """Which changes are refused after one has failed for good."""
    files = FailingFiles(fail_at=1, errno=number, sticky=True)
    tries = attempts(folder, files)
    with pytest.raises(StorageError):
        files.make_folder(folder / "first")
    errors: dict[str, int | None] = {}
    for name, attempt in tries.items():
        try:
            attempt()
        except StorageError as error:
            errors[name] = error.errno
    assert set(errors.values()) == {number}
    assert files.count == len(tries) - 1  # opening and closing are no changes, the first one is
    return set(errors)


def test_a_disk_that_stays_full_refuses_what_needs_space(tmp_path: Path) -> None:
    assert refused(tmp_path, errno.ENOSPC) == {"create", "write", "copy", "extend", "link", "symlink", "make folder"}


@pytest.mark.parametrize("number", [errno.EROFS, errno.EIO])
def test_a_disk_that_is_gone_refuses_everything_but_to_close(tmp_path: Path, number: int) -> None:
    everything = set(attempts(tmp_path, FailingFiles())) - {"close"}
    (tmp_path / "again").mkdir()
    assert refused(tmp_path / "again", number) == everything


def test_fail_at_is_counted_from_one() -> None:
    with pytest.raises(InvalidInput, match="fail_at=0"):
        FailingFiles(fail_at=0)


def test_threads_share_the_count(tmp_path: Path) -> None:
    files = FailingFiles(fail_at=150)
    failures: list[StorageError] = []

    def work(name: str) -> None:
        for number in range(50):
            try:
                files.make_folder(tmp_path / f"{name}{number}")
            except StorageError as error:
                failures.append(error)

    threads = [threading.Thread(target=work, args=(name,)) for name in "abcd"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (files.count, len(failures), len(picture(tmp_path))) == (200, 1, 199)


def test_a_durable_write_survives_each_failure(tmp_path: Path) -> None:
    counting = FailingFiles()
    write_durably(counting, tmp_path / "a", [b"old"])
    for sticky in (False, True):
        for number in range(1, counting.count + 1):
            (tmp_path / "a").write_bytes(b"old")
            with contextlib.suppress(DiskFull):
                write_durably(FailingFiles(fail_at=number, short_write=True, sticky=sticky), tmp_path / "a", [b"new"])
            # Only the last change, the sync of the folder, fails with the new bytes in place.
            assert picture(tmp_path) == {"a": b"new" if number == counting.count else b"old"}
