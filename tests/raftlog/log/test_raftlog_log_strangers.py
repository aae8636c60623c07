# SPDX-License-Identifier: Apache-2.0
"""What others leave in a log's folder, or give to it: it works, or is refused by name, and the log opens afterwards."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from compactlib.errors import CompactlibError, CorruptData, InvalidInput
from compactlib.raftlog import DeadEntry, Entry, LogOptions, LogReader, SegmentLimits, SegmentLog
from compactlib.raftlog.errors import NotALog
from compactlib.raftlog.model.names import segment_name
from compactlib.raftlog.model.values import MAX_INDEX
from tests.raftlog.compaction_logs import Expected, compact_to_rest, entries_of, options
from tests.raftlog.wrapped_files import UnsyncedFiles

LIVE = [1, 20, 40, 60]


def small(**changes: Any) -> LogOptions:
    return options(UnsyncedFiles(), **changes)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    with SegmentLog(tmp_path / "log", small()) as log:
        log.extend(entries_of(1, 80))
        log.record_snapshot(64, LIVE)
    return tmp_path / "log"


@pytest.fixture
def victim(tmp_path: Path) -> Iterator[Path]:
    """Somebody else's file, beside the log; nothing may happen to it."""
    path = tmp_path / "victim"
    path.write_bytes(b"v" * 5000)
    yield path
    assert path.read_bytes() == b"v" * 5000


def go_through(folder: Path) -> None:
    """All that a log does, in a folder with a stranger."""
    with SegmentLog(folder, small()) as log:
        Expected.of(entries_of(1, 80), 64, LIVE).check(log)
        log.record_snapshot(66, LIVE)
        compact_to_rest(log)
        log.reclaim()
        log.verify()
        Expected.of(entries_of(1, 80), 66, LIVE).check(log)
    with LogReader(folder) as reader:
        Expected.of(entries_of(1, 80), 66, LIVE).check(reader)


LINKED = ["SNAPSHOT.tmp", f"{segment_name(6)}.tmp", f"{segment_name(1)}.swap", f"{segment_name(2)}.link", "rewrite-1",
          "0000000000000001-0000000000000002.compacting", "notes", ".DS_Store"]


@pytest.mark.parametrize("name", LINKED)
def test_a_link_is_never_followed(folder: Path, victim: Path, name: str) -> None:
    (folder / name).symlink_to(victim)
    go_through(folder)


@pytest.mark.parametrize("name", [segment_name(1), segment_name(3), segment_name(99), "SNAPSHOT"])
@pytest.mark.parametrize("kind", ["link", "folder", "pipe"])
def test_what_stands_in_for_a_file_of_the_log_is_named(folder: Path, victim: Path, name: str, kind: str) -> None:
    """A pipe was waited for, for good; a link to a file elsewhere was read, and would have been written."""
    kept = (folder / name).read_bytes() if (folder / name).exists() else None
    (folder / name).unlink(missing_ok=True)
    if kind == "link":
        (folder / name).symlink_to(victim)
    elif kind == "folder":
        (folder / name).mkdir()
    else:
        os.mkfifo(folder / name)
    for opened in (SegmentLog, LogReader):
        with pytest.raises(CompactlibError, match=name):
            opened(folder)
    (folder / name).rmdir() if kind == "folder" else (folder / name).unlink()
    if kept is not None:
        (folder / name).write_bytes(kept)
    go_through(folder)


def test_a_link_to_a_whole_snapshot_is_not_followed_either(folder: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    (folder / "SNAPSHOT").rename(elsewhere)
    (folder / "SNAPSHOT").symlink_to(elsewhere)
    for opened in (SegmentLog, LogReader):
        with pytest.raises(CorruptData, match="symbolic link"):
            opened(folder)
    (folder / "SNAPSHOT").unlink()
    elsewhere.rename(folder / "SNAPSHOT")
    go_through(folder)


def test_a_new_log_writes_nothing_through_a_link(tmp_path: Path, victim: Path) -> None:
    (tmp_path / "log").mkdir()
    (tmp_path / "log" / segment_name(1)).symlink_to(victim)
    with pytest.raises(CorruptData, match="symbolic link"):
        SegmentLog(tmp_path / "log", small())


def test_a_folder_of_somebody_else_is_not_emptied(folder: Path) -> None:
    """Any folder named `rewrite-...` was removed with all that lay in it."""
    for name in ("rewrite-of-my-book", "rewrite-1"):
        (folder / name).mkdir()
        (folder / name / "chapter 1.txt").write_text("It was a dark and stormy night.")
    (folder / "rewrite-2").mkdir()
    (folder / "rewrite-2" / f"{segment_name(1)}.0123").write_bytes(b"left by a crash")
    go_through(folder)
    assert (folder / "rewrite-of-my-book" / "chapter 1.txt").exists()
    assert (folder / "rewrite-1" / "chapter 1.txt").exists()
    assert not (folder / "rewrite-2").exists()


@pytest.mark.parametrize("name", [".DS_Store", "lost+found", ".nfs0000", "notes.txt", "名前 \n\t%", "segment"])
def test_foreign_names_are_left_alone(folder: Path, name: str) -> None:
    (folder / name).write_bytes(b"somebody's")
    go_through(folder)
    assert (folder / name).read_bytes() == b"somebody's"


@pytest.mark.parametrize("name", [".DS_Store", "lost+found"])
def test_a_log_may_begin_where_a_system_keeps_its_own(tmp_path: Path, name: str) -> None:
    """The root of a new file system has `lost+found`, and was refused."""
    (tmp_path / name).mkdir()
    with SegmentLog(tmp_path, small()) as log:
        log.append(1, 1, b"x")
    with SegmentLog(tmp_path, small()) as log:
        assert log.read(1) == Entry(1, 1, b"x")
    assert (tmp_path / name).is_dir()


def test_a_folder_of_other_things_is_still_no_log(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("x")
    with pytest.raises(NotALog, match=r"thesis\.txt"):
        SegmentLog(tmp_path)


# ------------------------------------------------------------------------------------------------- both ends of ranges


@pytest.mark.parametrize("index", [0, MAX_INDEX - 1, MAX_INDEX])
@pytest.mark.parametrize("term", [0, MAX_INDEX])
def test_the_ends_of_index_and_term_are_kept(tmp_path: Path, index: int, term: int) -> None:
    entry = Entry(index, term, b"at the end")
    for life in range(3):
        with SegmentLog(tmp_path, small()) as log:
            if life == 0:
                log.append(*entry)
                log.sync()
            assert (log.read(index), log.last_index, list(log.scan())) == (entry, index, [entry])
            assert list(log.read_many([index])) == [entry]
            if life == 1:
                log.record_snapshot(index, [index])
            compact_to_rest(log)
            assert log.verify().is_sound
            log.audit()
    with SegmentLog(tmp_path, small()) as log:
        if index < MAX_INDEX:
            log.append(index + 1, term, b"one more")
        else:
            with pytest.raises(InvalidInput):
                log.append(index + 1, term, b"one more")
        log.record_snapshot(MAX_INDEX, [])
        assert log.read(index) == DeadEntry(index, MAX_INDEX)
    with SegmentLog(tmp_path, small()) as log:
        assert log.read(index) == DeadEntry(index, MAX_INDEX)
        with pytest.raises(InvalidInput):
            log.append(MAX_INDEX, 1, b"covered")


WRONG: dict[str, Callable[[SegmentLog], object]] = {
    "index of text": lambda log: log.append("1", 1, b""),  # type: ignore[arg-type]
    "index of a fraction": lambda log: log.append(81.5, 1, b""),  # type: ignore[arg-type]
    "index of nothing": lambda log: log.append(None, 1, b""),  # type: ignore[arg-type]
    "index below 0": lambda log: log.append(-1, 1, b""),
    "index above": lambda log: log.append(MAX_INDEX + 1, 1, b""),
    "term of text": lambda log: log.append(81, "1", b""),  # type: ignore[arg-type]
    "term of a fraction": lambda log: log.append(81, 1.5, b""),  # type: ignore[arg-type]
    "term below 0": lambda log: log.append(81, -1, b""),
    "term above": lambda log: log.append(81, MAX_INDEX + 1, b""),
    "payload of text": lambda log: log.append(81, 1, "text"),  # type: ignore[arg-type]
    "payload of a number": lambda log: log.append(81, 1, 7),  # type: ignore[arg-type]
    "payload of nothing": lambda log: log.append(81, 1, None),  # type: ignore[arg-type]
    "extend with numbers": lambda log: log.extend([7]),  # type: ignore[list-item]
    "extend with pairs": lambda log: log.extend([(81, 1)]),  # type: ignore[list-item]
    "read text": lambda log: log.read("1"),  # type: ignore[arg-type]
    "read nothing": lambda log: log.read(None),  # type: ignore[arg-type]
    "scan from text": lambda log: list(log.scan("1")),  # type: ignore[arg-type]
    "scan up to nothing": lambda log: list(log.scan(1, None)),  # type: ignore[arg-type]
    "snapshot at text": lambda log: log.record_snapshot("70", []),  # type: ignore[arg-type]
    "snapshot at a fraction": lambda log: log.record_snapshot(70.5, []),  # type: ignore[arg-type]
    "snapshot of text": lambda log: log.record_snapshot(70, ["a"]),  # type: ignore[list-item]
    "snapshot of nothing": lambda log: log.record_snapshot(70, None),  # type: ignore[arg-type]
    "snapshot above": lambda log: log.record_snapshot(MAX_INDEX + 1, []),
    "no plan": lambda log: log.compact("major"),  # type: ignore[arg-type]
    "no view": lambda log: log.plan(view=log.stats()),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("what", WRONG)
def test_what_cannot_be_meant_is_invalid_input_and_changes_nothing(folder: Path, what: str) -> None:
    with SegmentLog(folder, small()) as log:
        with pytest.raises(InvalidInput):
            WRONG[what](log)
        Expected.of(entries_of(1, 80), 64, LIVE).check(log)
        log.append(81, 1, b"goes on")
        log.sync()
        log.audit()
    go_through_again(folder)


def go_through_again(folder: Path) -> None:
    with SegmentLog(folder, small()) as log:
        assert log.read(81) == Entry(81, 1, b"goes on")
        assert log.verify().is_sound


NO_SETTINGS: list[tuple[Callable[..., object], dict[str, Any]]] = [
    (SegmentLog, {"folder": None}), (LogReader, {"folder": 7}), (SegmentLog, {"folder": "a\0b"}),
    (LogOptions, {"max_open_segments": 0}), (LogOptions, {"keep_links_seconds": -1.0}),
    (LogOptions, {"keep_links_seconds": float("nan")}), (LogReader, {"folder": ".", "max_open_segments": 0}),
    (SegmentLimits, {"max_entries": "many"}), (SegmentLimits, {"max_bytes": None}),
    (SegmentLimits, {"max_entries": 1.5}), (LogOptions, {"max_open_segments": "x"})]


@pytest.mark.parametrize(("make", "given"), NO_SETTINGS,
                         ids=[f"{make.__name__} of {given}" for make, given in NO_SETTINGS])
def test_options_that_cannot_be_meant_are_invalid_input(make: Callable[..., object], given: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput):
        make(**given)


def test_payloads_of_no_bytes_and_of_a_hundred_million(tmp_path: Path) -> None:
    large = random.Random(0).randbytes(1 << 20) * 100
    with SegmentLog(tmp_path, small(limits=SegmentLimits(max_entries=2))) as log:
        log.extend([(1, 1, b""), (2, 1, large), (3, 1, b""), (4, 1, b"abc"), (5, 1, b"")])
        log.sync()
        log.record_snapshot(4, [2, 3])
    with SegmentLog(tmp_path, small()) as log:
        assert log.read(2) == Entry(2, 1, large)
        compact_to_rest(log)
        assert log.verify().is_sound
        assert [entry.index for entry in log.entries()] == [2, 3, 5]
        assert log.read(2) == Entry(2, 1, large)
