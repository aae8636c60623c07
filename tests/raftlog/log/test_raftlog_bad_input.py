# SPDX-License-Identifier: Apache-2.0
"""Bad input (the issue's last section): each a named error, and afterwards the log opens and reads as before.

A disk that fills up in the middle of a rewrite is in `test_raftlog_compaction_faults.py`.
"""

from __future__ import annotations

import contextlib
import os
import struct
import subprocess
import sys
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest

from compactlib.errors import Busy, CompactlibError, CorruptData, ReadOnly, Unsorted, Unsupported
from compactlib.files import LocalFiles
from compactlib.files.disk import StrPath
from compactlib.raftlog import Entry, LogOptions, LogReader, SegmentLimits, SegmentLog
from compactlib.raftlog.errors import LiveAboveSnapshot, LiveIndexMissing, NotALog
from compactlib.raftlog.model.names import segment_name
from tests.harness.plain_log import PlainLog
from tests.harness.readonly import read_only_copy
from tests.raftlog.compaction_logs import picture

OPTIONS = LogOptions(limits=SegmentLimits(max_entries=4))


@pytest.fixture
def model(tmp_path: Path) -> PlainLog:
    """A log of five segments with a snapshot in `tmp_path / "log"`."""
    expected = PlainLog.of((index, 1, b"payload of %d" % index) for index in range(1, 19))
    with SegmentLog(tmp_path / "log", OPTIONS) as log:
        log.extend(expected.entries.values())
        log.record_snapshot(12, [2, 7, 12])
    expected.record_snapshot(12, [2, 7, 12])
    return expected


def edited(path: Path, offset: int, new: bytes, *, crc_of: int = 0) -> None:
    """Put `new` in place, and make the header's CRC right again if it stands at `crc_of`."""
    data = bytearray(path.read_bytes())
    data[offset:offset + len(new)] = new
    if crc_of:
        struct.pack_into("<I", data, crc_of, zlib.crc32(data[:crc_of]))
    path.write_bytes(data)


DAMAGE: dict[str, tuple[type[CompactlibError], str, str, Callable[[Path], None]]] = {
    "unknown version of a segment": (
        Unsupported, "segment format version 3; this release reads 2: upgrade", segment_name(2),
        lambda path: edited(path, 8, b"\3\0", crc_of=36)),
    "unknown version of the newest segment": (
        Unsupported, "segment format version 258", segment_name(5), lambda path: edited(path, 8, b"\2\1", crc_of=36)),
    "unknown version of a segment by Ra": (
        Unsupported, "Ra segment version 3; this release reads versions 1 and 2", segment_name(1),
        lambda path: edited(path, 0, b"RASG\0\3\0\x10")),
    "unknown version of the snapshot": (
        Unsupported, "snapshot state version 4; this release reads 3: upgrade", "SNAPSHOT",
        lambda path: edited(path, 8, b"\4\0", crc_of=24)),
    "truncated header": (
        CorruptData, "expected at least 40 bytes, found 39 bytes", segment_name(3),
        lambda path: os.truncate(path, 39)),
    "no header": (
        CorruptData, "expected at least 40 bytes, found 0 bytes", segment_name(3),
        lambda path: os.truncate(path, 0)),
    "truncated seal": (
        CorruptData, "expected a header and seals of 104 bytes", segment_name(5), lambda path: os.truncate(path, 103)),
    "truncated snapshot": (
        CorruptData, "expected at least 28 bytes, found 27 bytes", "SNAPSHOT", lambda path: os.truncate(path, 27)),
    "wrong magic": (
        CorruptData, "expected magic b'CLRAFSEG', found b'notaraft'", segment_name(4),
        lambda path: edited(path, 0, b"notaraft")),
    "wrong magic of the snapshot": (
        CorruptData, "expected magic b'CLRAFSNP', found b'notasnap'", "SNAPSHOT",
        lambda path: edited(path, 0, b"notasnap")),
    "a segment under another's name": (
        CorruptData, "expected segment number 2 as in the file name, found 3", segment_name(2),
        lambda path: edited(path, 0, path.with_name(segment_name(3)).read_bytes())),
}


@pytest.mark.parametrize("what", DAMAGE)
def test_a_file_that_cannot_be_read_is_named_and_nothing_is_changed(tmp_path: Path, model: PlainLog, what: str) -> None:
    error, told, name, damage = DAMAGE[what]
    folder = tmp_path / "log"
    path = folder / name
    whole = path.read_bytes()
    damage(path)
    before = picture(folder)
    for open_log in (SegmentLog, LogReader):
        with pytest.raises(error) as raised:
            open_log(folder)
        assert told in str(raised.value)
        assert str(path) in str(raised.value)
    assert picture(folder) == before
    # Restored from a copy, as the message advises, the log is as it was.
    path.write_bytes(whole)
    with SegmentLog(folder, OPTIONS) as log:
        model.check(log)


def test_a_folder_that_is_not_a_log(tmp_path: Path) -> None:
    strangers = {"notes.txt": "mine", "rewrite-plan.md": "mine too", "1.segment": "not sixteen digits"}
    for name, text in strangers.items():
        (tmp_path / name).write_text(text)
    for open_log in (SegmentLog, LogReader):
        with pytest.raises(NotALog, match="is not a log: expected segment files such as") as raised:
            open_log(tmp_path)
        assert raised.value.path == str(tmp_path)
        with pytest.raises(NotALog, match=r"notes.txt is not a folder; a log is a folder of segment files"):
            open_log(tmp_path / "notes.txt")
    # What it does not know it leaves alone, down to the lock file that it did not make.
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == strangers


def test_a_folder_whose_parent_is_missing(tmp_path: Path) -> None:
    with pytest.raises(CompactlibError, match="No such file or directory"):
        SegmentLog(tmp_path / "missing" / "log")
    assert not (tmp_path / "missing").exists()


@pytest.mark.parametrize(("error", "index", "live", "told"), [
    (LiveAboveSnapshot, 14, [7, 15], "live index 15 lies above the snapshot index 14"),
    (Unsorted, 14, [12, 7], "7"),
    (Unsorted, 18, [7, 18, 18], "18"),
    (LiveIndexMissing, 30, [7, 25], "the first of them 25"),
    (LiveIndexMissing, 14, [3, 7], "the first of them 3"),
], ids=["above the snapshot", "unsorted", "twice", "in no segment", "dead before"])
def test_a_live_set_that_cannot_be(tmp_path: Path, model: PlainLog, error: type[CompactlibError], index: int,
                                   live: list[int], told: str) -> None:
    before = picture(tmp_path / "log")
    with SegmentLog(tmp_path / "log", OPTIONS) as log:
        with pytest.raises(error) as raised:
            log.record_snapshot(index, live)
        assert told in str(raised.value)
        model.check(log)
        log.compact(policy=log.policy)
        model.check(log)
    assert picture(tmp_path / "log")["SNAPSHOT"] == before["SNAPSHOT"]
    with SegmentLog(tmp_path / "log") as log:
        model.check(log)


def test_a_read_only_folder_can_be_read(tmp_path: Path, model: PlainLog) -> None:
    (tmp_path / "log" / "LOCK").unlink()
    with read_only_copy(tmp_path / "log") as folder:
        with pytest.raises(ReadOnly, match=r"use another folder|give this process the permission"):
            SegmentLog(folder, OPTIONS)
        with LogReader(folder) as reader:
            model.check(reader)
    with SegmentLog(tmp_path / "log", OPTIONS) as log:
        model.check(log)


def test_a_read_only_place_for_a_new_log(tmp_path: Path) -> None:
    (tmp_path / "place").mkdir()
    with read_only_copy(tmp_path / "place") as folder:
        for path in (folder, folder / "log"):
            with pytest.raises(ReadOnly):
                SegmentLog(path)
    assert not (tmp_path / "place" / "log").exists()


WRITER = """
import sys
from compactlib.raftlog import SegmentLog
with SegmentLog(sys.argv[1]) as log:
    log.append(19, 2, b"from the other process")
    log.sync()
    print("open", flush=True)
    sys.stdin.read()
"""


def test_two_processes_cannot_write_one_log(tmp_path: Path, model: PlainLog) -> None:
    with subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path / "log")], stdin=subprocess.PIPE,
                          stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "open\n"
        with pytest.raises(Busy, match=rf"is open for writing by process {process.pid}; close it there"):
            SegmentLog(tmp_path / "log", OPTIONS)
        # Reading goes on beside it.
        with LogReader(tmp_path / "log") as reader:
            assert reader.read(19) == Entry(19, 2, b"from the other process")
        process.communicate()
        assert process.returncode == 0
    model.append(19, 2, b"from the other process")
    with SegmentLog(tmp_path / "log", OPTIONS) as log:
        model.check(log)


def test_of_two_who_create_one_log_at_once_the_later_is_told_busy(tmp_path: Path) -> None:
    folder = tmp_path / "log"

    class Overtaken(LocalFiles):
        """Another opens the log between the look at the folder and its creation."""

        def make_folder(self, path: StrPath) -> None:
            first.enter_context(SegmentLog(folder))
            super().make_folder(path)

    with contextlib.ExitStack() as first, pytest.raises(Busy, match="is open for writing"):
        SegmentLog(folder, LogOptions(files=Overtaken()))
    with SegmentLog(folder) as log:
        assert log.last_index is None
