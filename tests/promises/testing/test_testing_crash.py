# SPDX-License-Identifier: Apache-2.0
"""The explorers: they find planted mistakes, pass sound protocols, and print a failure so that it can be repeated."""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from compactlib.errors import InvalidInput
from compactlib.files import Files, sync_names, write_durably
from compactlib.raftlog import LogOptions, SegmentLimits, SegmentLog
from compactlib.testing import (
    Killed,
    Recording,
    RecordingFiles,
    explore_crashes,
    explore_kills,
    record,
    repeat_crash,
)
from tests.harness.pictures import picture

Work: TypeAlias = Callable[[Path, RecordingFiles], object]
Look: TypeAlias = Callable[[Path, Sequence[Any]], object]


def note_of(error: BaseException) -> str:
    return error.__notes__[0]


# --------------------------------------------------------------------------------------------------- planted mistakes


def replaced(folder: Path, files: RecordingFiles, *, sync_file: bool = True, sync_folder: bool = True) -> None:
    """Replace `value` twice and acknowledge each time; sound if both syncs are there."""
    for number in (1, 2):
        out = files.create(folder / "value.tmp")
        out.write_at(0, [json.dumps([number] * 400).encode()])
        if sync_file:
            out.sync()
        out.close()
        files.rename(folder / "value.tmp", folder / "value")
        if sync_folder:
            files.sync_folder(folder)
        files.acknowledge(number)


def value_is_there(folder: Path, acknowledged: Sequence[Any]) -> None:
    if (folder / "value").exists() or acknowledged:
        found = json.loads((folder / "value").read_bytes())
        assert len(found) == 400
        assert found[0] >= max(acknowledged, default=0)


def in_new_folder(folder: Path, files: RecordingFiles, *, sync_parent: bool = True) -> None:
    files.make_folder(folder / "sub")
    if sync_parent:
        files.sync_folder(folder)
    write_durably(files, folder / "sub" / "value", [json.dumps([1] * 400).encode()])
    files.acknowledge(1)


def value_is_in_new_folder(folder: Path, acknowledged: Sequence[Any]) -> None:
    if acknowledged:
        value_is_there(folder / "sub", acknowledged)


def switched(folder: Path, files: RecordingFiles, *, ordered: bool = True) -> None:
    """Move the data to a new name, then the pointer that names it; the pointer must not get there first."""
    write_durably(files, folder / "data-1", [b"one"])
    write_durably(files, folder / "pointer", [b"data-1"])
    files.acknowledge("one")
    for name, content in (("data-2.new", b"two"), ("pointer.new", b"data-2")):
        out = files.create(folder / name)
        out.write_at(0, [content])
        out.sync()
        out.close()
    files.rename(folder / "data-2.new", folder / "data-2")
    if ordered:
        files.sync_folder(folder)
    files.rename(folder / "pointer.new", folder / "pointer")
    files.sync_folder(folder)
    files.acknowledge("two")
    files.unlink(folder / "data-1")


def pointer_leads_somewhere(folder: Path, acknowledged: Sequence[Any]) -> None:
    if acknowledged:
        found = (folder / (folder / "pointer").read_text()).read_text()
        assert found in ("one", "two")[len(acknowledged) - 1:]


def appended(folder: Path, files: RecordingFiles, *, checksum: bool = True) -> None:
    """Append four entries to a preallocated file: length, CRC, payload; sync and acknowledge each."""
    out = files.create(folder / "log")
    out.truncate(4096)
    out.sync()
    files.sync_folder(folder)
    offset = 0
    for number in range(4):
        payload = bytes([65 + number]) * 20
        crc = zlib.crc32(payload) if checksum else 0
        offset += out.write_at(offset, [len(payload).to_bytes(2, "big"), crc.to_bytes(4, "big"), payload])
        out.sync()
        files.acknowledge(payload)
    out.close()


def entries_are_whole(folder: Path, acknowledged: Sequence[Any], *, checksum: bool = True) -> None:
    data = (folder / "log").read_bytes() if (folder / "log").exists() else b""
    found = []
    while length := int.from_bytes(data[:2], "big"):
        payload = data[6:6 + length]
        if len(payload) < length or (checksum and zlib.crc32(payload) != int.from_bytes(data[2:6], "big")):
            break
        found.append(payload)
        data = data[6 + length:]
    assert found[:len(acknowledged)] == list(acknowledged)
    assert all(len(set(payload)) == 1 and payload[0] in b"ABCDE" for payload in found), "an entry never written"


@pytest.mark.parametrize(("work", "check", "found"), [
    (partial(replaced, sync_file=False), value_is_there, "1 write value.tmp at 0, 1200 bytes LOST"),
    (partial(replaced, sync_folder=False), value_is_there, "3 rename value.tmp to value LOST"),
    (partial(in_new_folder, sync_parent=False), value_is_in_new_folder, "0 make folder sub LOST"),
    (partial(switched, ordered=False), pointer_leads_somewhere, "rename data-2.new to data-2 LOST"),
    (partial(appended, checksum=False), partial(entries_are_whole, checksum=False), "write log at 0, 26 bytes TORN"),
], ids=["no sync of the file", "no sync of the folder", "no sync of the parent", "no order of two renames",
        "a torn tail is trusted"])
def test_planted_mistake_is_found(tmp_path: Path, work: Work, check: Look, found: str) -> None:
    with pytest.raises((AssertionError, OSError, json.JSONDecodeError)) as caught:
        explore_crashes(record(tmp_path, work), check)
    assert found in " ".join(note_of(caught.value).split())


@pytest.mark.parametrize(("work", "check"), [
    (replaced, value_is_there), (in_new_folder, value_is_in_new_folder), (switched, pointer_leads_somewhere),
    (appended, entries_are_whole)])
def test_sound_protocol_passes(tmp_path: Path, work: Work, check: Look) -> None:
    assert explore_crashes(record(tmp_path, work), check) > 8


# ---------------------------------------------------------------------------------------------- the report of a failure


def failing(folder: Path) -> tuple[Recording, str]:
    folder.mkdir()
    recording = record(folder, partial(replaced, sync_file=False))
    with pytest.raises(json.JSONDecodeError) as caught:
        explore_crashes(recording, value_is_there)
    return recording, note_of(caught.value)


def test_failure_prints_the_history(tmp_path: Path) -> None:
    _, note = failing(tmp_path / "work")
    assert [" ".join(line.split()) for line in note.splitlines()] == [
        "after this crash the folder is wrong:",
        "0 create value.tmp there",
        "1 write value.tmp at 0, 1200 bytes LOST",
        "2 rename value.tmp to value there",
        "-- crash --",
        "3 sync folder . not reached",
        "4 create value.tmp not reached",
        "5 write value.tmp at 0, 1200 bytes not reached",
        "acknowledged before the crash: 0; repeat_crash(recording, {0: 3, 3: 1}, folder) rebuilds the folder",
    ]


def test_failure_is_repeated_from_a_new_recording(tmp_path: Path) -> None:
    failing(tmp_path / "work")
    recording, _ = failing(tmp_path / "again")
    assert repeat_crash(recording, {0: 3, 3: 1}, tmp_path / "crashed") == ()
    assert picture(tmp_path / "crashed") == {"value": b""}
    assert repeat_crash(recording, {0: 4}, tmp_path / "out") == (1,)
    with pytest.raises(InvalidInput, match="not empty"):
        repeat_crash(recording, {0: 4}, tmp_path / "out")


@pytest.mark.parametrize("picks", [{0: 99}, {0: 4, 3: 1}, {0: 4, 2: 99}, {0: 4, 1: 2}])
def test_picks_of_another_recording_are_refused(tmp_path: Path, picks: dict[int, int]) -> None:
    recording, _ = failing(tmp_path / "work")
    with pytest.raises(InvalidInput, match="do not fit the recording"):
        repeat_crash(recording, picks, tmp_path / "out")


def test_failure_with_the_least_loss_is_first(tmp_path: Path) -> None:
    def check(folder: Path, acknowledged: Sequence[Any]) -> None:
        there = os.listdir(folder)
        if "a" not in there or not ("b" in there or "c" in there):
            pytest.fail("seen")

    def work(folder: Path, files: Files) -> None:
        for name in "abc":
            files.make_folder(folder / name)

    recording = record(tmp_path, work)
    with pytest.raises(pytest.fail.Exception, match=r"\{0: 3, 2: 1\}"):
        explore_crashes(recording, check, points=[3])


# ------------------------------------------------------------------------------------------------- how much is checked


def test_equal_seeds_check_equal_folders(tmp_path: Path) -> None:
    def states(seed: int) -> list[object]:
        seen: list[object] = []
        explore_crashes(recording, lambda folder, told: seen.append({**picture(folder), "#": len(told)}),
                        seed=seed, limit_per_point=6)
        return seen

    recording = record(tmp_path, replaced)
    first = states(1)
    assert states(1) == first
    assert states(2) != first


def test_equal_folders_are_checked_once_unless_more_was_acknowledged(tmp_path: Path) -> None:
    def work(folder: Path, files: RecordingFiles) -> None:
        files.sync_folder(folder)
        files.sync_folder(folder)
        files.acknowledge("something")
        files.sync_folder(folder)

    seen: list[int] = []
    assert explore_crashes(record(tmp_path, work), lambda folder, told: seen.append(len(told))) == 2
    assert seen == [0, 1]


def test_check_may_change_its_folder_which_is_removed(tmp_path: Path) -> None:
    folders: list[Path] = []

    def check(folder: Path, acknowledged: Sequence[Any]) -> None:
        assert not (folder / "seen").exists()
        (folder / "seen").write_bytes(b"")
        folders.append(folder)

    explore_crashes(record(tmp_path, switched), check)
    assert len(folders) > 1
    assert not any(each.exists() or each.parent.exists() for each in folders)


# ------------------------------------------------------------------------ killed, then a successor, then no power


def numbered(folder: Path) -> list[int]:
    """The numbers of the entries in a folder of one file an entry."""
    return sorted(int(name.name) for name in folder.iterdir() if name.name.isdigit())


def life(folder: Path, files: RecordingFiles, *, syncs_found: bool = True) -> None:
    """A log of one file an entry, whose acknowledged entries follow each other."""
    folder = folder / "log"
    if not folder.exists():
        files.make_folder(folder)
        files.sync_folder(folder.parent)
    if syncs_found:
        sync_names(files, folder)
    for number in range(len(numbered(folder)), len(numbered(folder)) + 2):
        write_durably(files, folder / str(number), [b"entry"])
        files.acknowledge(number)


careless = partial(life, syncs_found=False)


def entries_follow(folder: Path, acknowledged: Sequence[Any]) -> None:
    found = numbered(folder / "log") if (folder / "log").exists() else []
    assert found == list(range(len(found)))
    assert len(found) >= max(acknowledged, default=-1) + 1


def test_opening_without_a_sync_of_found_files_is_detected() -> None:
    assert explore_kills(life, life, entries_follow) > 30
    with pytest.raises(AssertionError, match=r"killed before change 2; .*points=\[2\]") as caught:
        explore_kills(careless, careless, entries_follow)
    # Before the sync of the parent: the log's folder is there for the successor alone.
    assert "the successor begins with operation 1" in note_of(caught.value)
    with pytest.raises(AssertionError) as alone:
        explore_kills(careless, careless, entries_follow, points=[2])
    assert note_of(alone.value) == note_of(caught.value)


def test_acknowledgements_of_a_killed_life_count() -> None:
    def forgetful(folder: Path, files: RecordingFiles) -> None:
        for name in (folder / "log").glob("*"):
            files.unlink(name)
        files.sync_folder(folder / "log")

    with pytest.raises(AssertionError):
        explore_kills(life, forgetful, entries_follow, prepare=lambda folder: (folder / "log").mkdir())


def test_real_log_is_killed_and_opens_again() -> None:
    def append(folder: Path, files: RecordingFiles) -> None:
        with SegmentLog(folder / "s", LogOptions(files=files, limits=SegmentLimits(max_entries=2))) as log:
            for _ in range(3):
                log.append([(max(log.last_index, 0) + 1, 1, b"entry")])
            log.sync()
            files.acknowledge(log.last_index)

    def check(folder: Path, acknowledged: Sequence[Any]) -> None:
        if acknowledged:
            with SegmentLog(folder / "s") as log:
                assert max(log.last_index, 0) >= acknowledged[-1]

    assert explore_kills(append, append, check, limit_per_point=4, power_failures=2, seed=3) > 40


def test_lives_that_swallow_the_kill_or_leave_their_files_fail() -> None:
    def swallows(folder: Path, files: RecordingFiles) -> None:
        try:
            files.make_folder(folder / "a")
            files.make_folder(folder / "b")
        except BaseException:
            return

    with pytest.raises(InvalidInput, match="catch `BaseException`"):
        explore_kills(swallows, lambda folder, files: None, lambda folder, acknowledged: None)
    with pytest.raises(InvalidInput, match="was changed without the Files"):
        explore_kills(lambda folder, files: (folder / "x").mkdir(), lambda folder, files: None,
                      lambda folder, acknowledged: None)


def test_killed_life_stays_killed_while_its_successor_works() -> None:
    """As of a thread of the first process that was about to write."""
    lives: list[RecordingFiles] = []

    def first(folder: Path, files: RecordingFiles) -> None:
        lives.append(files)
        files.create(folder / "first").close()

    def successor(folder: Path, files: RecordingFiles) -> None:
        files.create(folder / "successor").close()
        with pytest.raises(Killed):
            lives[-1].create(folder / "late")
        lives[-1].acknowledge("late")

    def check(folder: Path, acknowledged: Sequence[object]) -> None:
        assert not acknowledged
        assert not (folder / "late").exists()

    assert explore_kills(first, successor, check, points=[1]) > 1
