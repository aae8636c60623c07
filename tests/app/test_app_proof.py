# SPDX-License-Identifier: Apache-2.0
"""The demo's proof: it finds everything that a compaction could have done wrong."""

from __future__ import annotations

import random
from pathlib import Path

import attrs
import pytest

from compactlib.app.demo_log import LogSize, WrittenLog, copy_log, limits_for, write_log
from compactlib.app.kv_machine import Put, encode_command
from compactlib.app.proof import differing_files, problems_in
from compactlib.app.workload import make_history, select_files
from compactlib.clock import SystemClock
from compactlib.errors import StorageError
from compactlib.raftlog import LogOptions, LogReader, SegmentLog
from compactlib.raftlog.model.names import segment_name
from tests.app.log_folders import flip_byte


@pytest.fixture
def written(tmp_path: Path) -> WrittenLog:
    source = tmp_path / "input"
    source.mkdir()
    for number in range(40):
        (source / f"{number}.txt").write_bytes(b"line %d\n" % number * number)
    rng = random.Random(7)
    history = make_history(select_files(str(source), 1_000_000, rng).files, rng)
    return write_log(str(tmp_path / "log"), history, limits=limits_for(history), seed=7, clock=SystemClock())


def compacted(written: WrittenLog) -> str:
    with SegmentLog(written.folder) as log:
        assert not log.compact(policy=log.policy).is_empty
    return written.folder


def file_of(folder: str, index: int) -> Path:
    """The file of the segment that answers for an index."""
    with LogReader(folder) as reader:
        return Path(folder) / segment_name(next(ref.number for ref in reader.refs if ref.first <= index <= ref.last))


def test_a_log_as_it_was_written_has_no_problems_before_and_after_a_compaction(written: WrittenLog) -> None:
    assert list(problems_in(written.folder, written)) == []
    assert list(problems_in(compacted(written), written)) == []
    assert written.deleted
    assert written.unreadable == 0


def test_a_history_fills_about_two_dozen_segments(written: WrittenLog) -> None:
    assert 12 <= LogSize.of(written.folder).segments <= 48


def test_a_value_that_changed_is_found(written: WrittenLog) -> None:
    key, index = next((key, index) for key, index in written.machine.places.items() if written.digests[key])
    other = attrs.evolve(written, digests={**written.digests, key: b"of other bytes"})
    (problem,) = problems_in(compacted(written), other)
    assert problem.startswith(f"{key} at index {index} is not what was written: an entry of ")


def test_a_damaged_value_is_found(written: WrittenLog) -> None:
    compacted(written)
    last = max(written.machine.places.values())
    with SegmentLog(written.folder) as log:
        log.append(written.last_index + 1, 1, b"x")
    flip_byte(file_of(written.folder, last), -2)
    assert any("corrupt data" in problem for problem in problems_in(written.folder, written))


def test_damage_that_no_read_would_meet_is_found(written: WrittenLog) -> None:
    # The last byte of the first segment: an entry that is dead, and no compaction has removed.
    flip_byte(Path(written.folder) / segment_name(1), -1)
    (problem,) = problems_in(written.folder, written)
    assert segment_name(1) in problem


def test_a_live_entry_that_is_gone_is_found(written: WrittenLog) -> None:
    index = min(written.machine.places.values())
    file_of(compacted(written), index).unlink()
    assert any(f"{index}" in problem for problem in problems_in(written.folder, written))


def test_dead_entries_that_came_back_are_found(written: WrittenLog) -> None:
    compacted(written)
    (Path(written.folder) / "SNAPSHOT").unlink()
    problems = list(problems_in(written.folder, written))
    assert "index 1 should be dead: MissingEntry(index=1)" in problems


def test_an_entry_too_many_is_found(written: WrittenLog) -> None:
    with SegmentLog(written.folder) as log:
        log.append(written.last_index + 1, 1, encode_command(Put("new", b"")))
    assert list(problems_in(written.folder, written)) == [
        "a state machine rebuilt from the log differs from the one that wrote it"]


def test_a_log_that_cannot_be_opened_is_one_problem(written: WrittenLog) -> None:
    flip_byte(Path(written.folder) / "SNAPSHOT", 20)
    (problem,) = problems_in(written.folder, written)
    assert "corrupt data" in problem


def test_a_step_whose_file_is_gone_is_counted_and_the_rest_is_as_it_should(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"a")
    (tmp_path / "b").write_bytes(b"b")
    rng = random.Random(1)
    files = select_files(str(tmp_path), 100, rng).files
    history = make_history(files, rng)
    (tmp_path / "b").unlink()
    written = write_log(str(tmp_path / "log"), history, limits=limits_for(history), seed=1, clock=SystemClock())
    assert written.unreadable == sum(step.file.key == "b" and step.version > 0 for step in history)
    assert set(written.machine.places) == {"a"}
    assert list(problems_in(written.folder, written)) == []


def test_equal_jobs_leave_equal_files(written: WrittenLog, tmp_path: Path) -> None:
    twin = str(tmp_path / "twin")
    copy_log(written.folder, twin)
    assert differing_files(written.folder, twin) == []
    for folder in (written.folder, twin):
        with SegmentLog(folder, LogOptions()) as log:
            assert not log.compact(policy=log.policy).is_empty
    assert differing_files(written.folder, twin) == []


def test_files_and_links_that_differ_are_named(written: WrittenLog, tmp_path: Path) -> None:
    twin = tmp_path / "twin"
    copy_log(written.folder, str(twin))
    flip_byte(twin / segment_name(2), 0)
    (twin / segment_name(3)).unlink()
    (twin / segment_name(4)).unlink()
    (twin / segment_name(4)).symlink_to(segment_name(5))
    (twin / "more").touch()
    for folder, target in ((written.folder, "1"), (twin, "2")):
        (Path(folder) / "link").symlink_to(target)
    names = [segment_name(2), segment_name(3), segment_name(4), "link", "more"]
    assert differing_files(written.folder, str(twin)) == names
    assert differing_files(str(twin), written.folder) == names


def test_a_copy_is_not_made_over_something(written: WrittenLog, tmp_path: Path) -> None:
    (tmp_path / "twin").mkdir()
    with pytest.raises(StorageError, match="twin"):
        copy_log(written.folder, str(tmp_path / "twin"))
