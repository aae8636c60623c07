# SPDX-License-Identifier: Apache-2.0
"""The recorder: records all operations, in order, and detects unrecorded changes."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from compactlib.errors import InvalidInput, StorageError, Unsupported
from compactlib.files import Files, write_durably
from compactlib.files.disk import replace_with_symlink
from compactlib.testing import RecordingFiles, explore_crashes, record, repeat_crash
from tests.harness.pictures import picture


def test_the_work_is_done_for_real_and_noted_in_order(tmp_path: Path) -> None:
    def work(folder: Path, files: Files) -> None:
        files.make_folder(folder / "sub")
        write_durably(files, folder / "sub" / "a", [b"12", b"345"])
        files.link(folder / "sub/a", folder / "b")
        replace_with_symlink(files, "sub/a", folder / "c")
        files.unlink(folder / "b")
        out = files.open(folder / "c")
        out.truncate(1)
        out.close()
        files.make_folder(folder / "empty")
        files.remove_folder(folder / "empty")

    recording = record(tmp_path, work)
    assert picture(tmp_path) == {"sub": None, "sub/a": b"1", "c": "sub/a"}
    assert str(recording).splitlines() == [
        "   0 make folder sub",
        "   1 create sub/a.tmp",
        "   2 write sub/a.tmp at 0, 5 bytes",
        "   3 sync sub/a.tmp",
        "   4 rename sub/a.tmp to sub/a",
        "   5 sync folder sub",
        "   6 link sub/a as b",
        "   7 symlink c.link to sub/a",
        "   8 rename c.link to c",
        "   9 unlink b",
        "  10 truncate sub/a to 1 bytes",
        "  11 make folder empty",
        "  12 remove folder empty",
    ]
    assert repr(recording) == "Recording(13 operations, 5 bytes written, 0 acknowledged)"


def test_acknowledgements_count_from_the_operation_they_follow(tmp_path: Path) -> None:
    def work(folder: Path, files: RecordingFiles) -> None:
        files.acknowledge("nothing yet")
        files.make_folder(folder / "a")
        files.acknowledge("a")
        files.acknowledge("a again")
        files.make_folder(folder / "b")

    recording = record(tmp_path, work)
    assert [recording.acknowledged(point) for point in range(3)] == [
        ("nothing yet",), ("nothing yet", "a", "a again"), ("nothing yet", "a", "a again")]


def test_relative_paths_and_paths_through_links_are_understood(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "real/sub").mkdir(parents=True)
    (tmp_path / "alias").symlink_to("real")
    monkeypatch.chdir(tmp_path)

    def work(folder: Path, files: Files) -> None:
        write_durably(files, "alias/sub/../a", [b"x"])
        files.rename(tmp_path / "real" / "a", "real/sub/b")
        files.sync_folder("alias/sub")

    recording = record("alias", work)
    assert str(recording).splitlines()[-2:] == ["   5 rename a to sub/b", "   6 sync folder sub"]


def split(folder: Path) -> None:
    (folder / "twin").unlink()
    (folder / "twin").write_bytes(b"2")


WRONG_WAYS: dict[str, Callable[[Path], object]] = {
    "new is new": lambda folder: (folder / "new").write_bytes(b""),
    "old is missing": lambda folder: (folder / "old").unlink(),
    "old differs": lambda folder: (folder / "old").write_bytes(b"changed"),
    "sub/deep is new": lambda folder: (folder / "sub/deep").symlink_to("x"),
    "twin differs": split,
}


@pytest.mark.parametrize("told", WRONG_WAYS)
def test_changes_past_the_recorder_are_noticed(tmp_path: Path, told: str) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "old").write_bytes(b"1")
    (tmp_path / "one").write_bytes(b"2")
    os.link(tmp_path / "one", tmp_path / "twin")
    with pytest.raises(InvalidInput, match=f"{told}.*cannot be rebuilt"):
        record(tmp_path, lambda folder, files: WRONG_WAYS[told](folder))


def test_a_file_made_past_the_recorder_is_not_known(tmp_path: Path) -> None:
    def work(folder: Path, files: Files) -> None:
        (folder / "a").write_bytes(b"")
        files.rename(folder / "a", folder / "b")

    with pytest.raises(InvalidInput, match=r"a in .* was made without the Files"):
        record(tmp_path, work)


def test_a_lock_file_may_be_made_past_the_recorder(tmp_path: Path) -> None:
    def work(folder: Path, files: Files) -> None:
        (folder / "LOCK").write_bytes(b"process 1")
        files.make_folder(folder / "a")

    recording = record(tmp_path, work)
    repeat_crash(recording, {0: 1}, tmp_path / "out")
    assert picture(tmp_path / "out") == {"a": None}
    with pytest.raises(InvalidInput, match="is a lock"):
        record(tmp_path / "out", lambda folder, files: files.create(folder / "LOCK"))


def test_paths_outside_are_refused_before_anything_is_done(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "beside").mkdir()
    (tmp_path / "other").write_bytes(b"x")
    files = RecordingFiles(tmp_path / "in")
    outside: list[Callable[[], object]] = [
        lambda: files.create(tmp_path / "new"),
        lambda: files.open(tmp_path / "other"),
        lambda: files.rename(tmp_path / "other", tmp_path / "in/a"),
        lambda: files.link(tmp_path / "other", tmp_path / "in/a"),
        lambda: files.unlink(tmp_path / "other"),
        lambda: files.make_folder(tmp_path / "in/../new"),
        lambda: files.remove_folder(tmp_path / "in"),
        lambda: files.sync_folder(tmp_path / "beside"),
    ]
    for attempt in outside:
        with pytest.raises(InvalidInput, match="not below"):
            attempt()
    files.sync_folder(tmp_path)  # Changes nothing: opening a store syncs the names above it.
    assert picture(tmp_path) == {"beside": None, "in": None, "other": b"x"}
    assert files.recording().operations == ()


def test_a_folder_cannot_be_moved_into_another(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    with pytest.raises(Unsupported, match="folder"):
        record(tmp_path, lambda folder, files: files.rename(folder / "a", folder / "b/a"))
    assert picture(tmp_path) == {"a": None, "b": None}


def test_something_that_is_no_file_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(InvalidInput, match="pipe"):
        RecordingFiles(tmp_path)


def test_a_refused_operation_is_not_recorded(tmp_path: Path) -> None:
    files = RecordingFiles(tmp_path)
    refused: list[Callable[[], object]] = [
        lambda: files.open(tmp_path / "a"),
        lambda: files.create(tmp_path / "no/a"),
        lambda: files.rename(tmp_path / "a", tmp_path / "b"),
        lambda: files.link(tmp_path / "a", tmp_path / "b"),
        lambda: files.symlink("text", tmp_path / "no/a"),
        lambda: files.unlink(tmp_path / "a"),
        lambda: files.make_folder(tmp_path / "no/a"),
        lambda: files.remove_folder(tmp_path / "a"),
        lambda: files.sync_folder(tmp_path / "a"),
    ]
    for attempt in refused:
        with pytest.raises(StorageError):
            attempt()
    assert files.recording().operations == ()


def test_a_rename_between_two_names_of_a_file_changes_nothing(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"x")
    os.link(tmp_path / "a", tmp_path / "b")
    recording = record(tmp_path, lambda folder, files: files.rename(folder / "a", folder / "b"))
    assert recording.operations == ()
    assert sorted(os.listdir(tmp_path)) == ["a", "b"]


def test_threads_may_share_a_recorder(tmp_path: Path) -> None:
    def work(folder: Path, files: RecordingFiles) -> None:
        def one(number: int) -> None:
            for round_number in range(10):
                write_durably(files, folder / f"{number}", [b"%d" % round_number])
                files.acknowledge((number, round_number))

        threads = [threading.Thread(target=one, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    recording = record(tmp_path, work)
    assert len(recording.operations) == 4 * 10 * 5
    assert len(recording.acknowledgements) == 40

    def check(folder: Path, acknowledged: object) -> None:
        assert isinstance(acknowledged, tuple)
        for number, round_number in acknowledged:
            assert int((folder / str(number)).read_bytes()) >= round_number

    explore_crashes(recording, check, limit_per_point=8)
