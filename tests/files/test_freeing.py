# SPDX-License-Identifier: Apache-2.0
"""`Freeing`: removed files are freed by a thread, and all of them before `wait` returns."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from compactlib.files.freeing import Freeing
from tests.harness.open_files import open_files


def removed(folder: Path) -> list[str]:
    """The files of a folder that are open although their names are gone."""
    return [path for path in open_files(folder) if path.endswith(" (deleted)")]


def test_what_was_removed_is_freed_when_wait_returns(tmp_path: Path) -> None:
    freeing = Freeing()
    kept, gone = tmp_path / "kept", [tmp_path / str(number) for number in range(3)]
    for path in (kept, *gone):
        path.write_bytes(b"x")
    for paths in ([kept, gone[0], tmp_path / "missing"], gone[1:]):
        with freeing.later(paths):
            for path in paths:
                if path in gone:
                    path.unlink()
                    assert str(path) in " ".join(removed(tmp_path)), "freed by who removed it"
    freeing.wait()
    assert removed(tmp_path) == []
    assert kept.read_bytes() == b"x"
    assert not [thread for thread in threading.enumerate() if thread.name == "compactlib-freeing"]
    freeing.wait()


def test_what_the_body_raises_passes_and_nothing_stays_open(tmp_path: Path) -> None:
    freeing, path = Freeing(), tmp_path / "file"
    path.write_bytes(b"x")

    def refused() -> None:
        with freeing.later([path]):
            path.unlink()
            raise OSError("refused")

    with pytest.raises(OSError, match="refused"):
        refused()
    freeing.wait()
    assert removed(tmp_path) == []


def test_what_the_paths_raise_passes_and_nothing_stays_open(tmp_path: Path) -> None:
    freeing, path = Freeing(), tmp_path / "file"
    path.write_bytes(b"x")

    def paths() -> Iterator[Path]:
        yield path
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), freeing.later(paths()):
        pass
    freeing.wait()
    assert open_files(tmp_path) == []


def test_a_close_that_is_refused_keeps_no_other_from_being_freed(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    freeing, gone = Freeing(), [tmp_path / str(number) for number in range(10)]
    for path in gone:
        path.write_bytes(b"x")
    real = os.close

    def refused(descriptor: int) -> None:
        real(descriptor)
        raise OSError(errno.EIO, "refused")

    monkeypatch.setattr(os, "close", refused)
    with freeing.later(gone):
        for path in gone:
            path.unlink()
    freeing.wait()
    monkeypatch.undo()
    assert open_files(tmp_path) == []


def test_links_and_folders_are_not_followed(tmp_path: Path) -> None:
    freeing, link = Freeing(), tmp_path / "link"
    os.symlink("/dev/zero", link)
    with freeing.later([link]):
        link.unlink()
    freeing.wait()
    assert not link.is_symlink()


def test_few_descriptors_are_held_however_many_files_go(tmp_path: Path) -> None:
    freeing, most = Freeing(), 0
    gone = [tmp_path / str(number) for number in range(200)]
    for path in gone:
        path.write_bytes(b"x")
    for start in range(0, len(gone), 100):
        with freeing.later(gone[start:start + 100]):
            most = max(most, len(open_files(tmp_path)))
            for path in gone[start:start + 100]:
                path.unlink()
    freeing.wait()
    assert 0 < most <= 64 + 4, "more than may be held, and what four threads are closing"
    assert removed(tmp_path) == []
