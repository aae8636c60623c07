# SPDX-License-Identifier: Apache-2.0
"""`LogReader`: a log read by another process while one writes, compacts and ends in between."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from compactlib.errors import CorruptData
from compactlib.executors import RewrittenFile
from compactlib.files import LocalFiles
from compactlib.raftlog import (
    DeadEntry,
    DropDead,
    Entry,
    LogOptions,
    LogReader,
    MissingEntry,
    SeedPolicy,
    SegmentLimits,
    SegmentLog,
    SnapshotMeta,
)
from compactlib.raftlog.errors import NotALog
from compactlib.raftlog.names import compacting_name, segment_name
from compactlib.raftlog.segment.listing import FolderContents, read_folder
from compactlib.raftlog.segment.reader import SegmentReader
from compactlib.raftlog.values import Answer
from tests.harness.plain_log import PlainLog, log_answers
from tests.raftlog.compaction_logs import commit_group, damaged, flip_byte, payload_place
from tests.raftlog.reading import write_segment


def rows(first: int, last: int, term: int = 1) -> list[tuple[int, int, bytes]]:
    return [(index, term, b"payload of %d in %d" % (index, term)) for index in range(first, last + 1)]


def options() -> LogOptions:
    return LogOptions(limits=SegmentLimits(max_entries=4), keep_links_seconds=0.0)


def test_it_changes_nothing(tmp_path: Path) -> None:
    with SegmentLog(tmp_path, options()) as log:
        log.append(rows(1, 18))
        log.snapshot(16, [2])
    with open(tmp_path / segment_name(5), "ab") as file:
        file.write(b"a torn tail")
    (tmp_path / compacting_name([1, 2])).write_bytes(b"left over")
    os.chmod(tmp_path, 0o555)
    before = {name: (tmp_path / name).read_bytes() for name in os.listdir(tmp_path)}
    with LogReader(tmp_path) as reader:
        assert [entry.index for entry in reader.entries()] == [2, 17, 18]
        assert reader.plan(DropDead()).drops[0].number == 2
        assert reader.plan(SeedPolicy()).groups
        assert reader.verify().is_sound
    os.chmod(tmp_path, 0o755)
    assert {name: (tmp_path / name).read_bytes() for name in os.listdir(tmp_path)} == before


@pytest.mark.parametrize("max_open", [1, 128])
def test_compactions_and_snapshots_that_it_has_not_seen(tmp_path: Path, max_open: int) -> None:
    """Segments vanish, are rewritten under their name, become links and lose them. Live entries are still read."""
    with SegmentLog(tmp_path, options()) as log:
        log.append(rows(1, 22))
        log.snapshot(8, range(1, 9))
        with LogReader(tmp_path, max_open_segments=max_open) as reader:
            log.snapshot(20, [2, 6, 14, 18])
            assert not log.compact(policy=log.policy).is_empty
            log.reclaim()
            live = {row[0]: Entry(*row) for row in rows(1, 22) if row[0] in (2, 6, 14, 18, 21, 22)}
            for index in range(1, 24):
                answer = reader.read(index)
                if index in live:
                    assert answer == live[index]
                elif isinstance(answer, Entry):
                    # It died since; the old file is still open.
                    assert answer == Entry(*rows(index, index)[0])
                else:
                    assert answer == (DeadEntry(index, 20) if index < 23 else MissingEntry(23))
            reader.refresh()
            assert log_answers(reader, range(24)) == log_answers(log, range(24))


@pytest.mark.parametrize("how", ["read_many", "entries"])
def test_a_bulk_read_continues_through_another_compaction(tmp_path: Path, how: str) -> None:
    with SegmentLog(tmp_path, options()) as log:
        log.append(rows(1, 22))
        log.sync()
        with LogReader(tmp_path, max_open_segments=1) as reader:
            indexes = range(1, 24)
            ways: dict[str, Callable[[], Iterator[Answer]]] = {
                "read_many": lambda: reader.read_many(indexes), "entries": reader.entries}
            answers = ways[how]()
            assert next(answers) == Entry(*rows(1, 1)[0])
            log.snapshot(20, [2, 6, 14, 18])
            log.compact(policy=log.policy)
            log.reclaim()
            given = {answer.index: answer for answer in answers}
            for index in (2, 6, 14, 18, 21, 22):
                assert given[index] == Entry(*rows(index, index)[0])
            for index in set(given) - {2, 6, 14, 18, 21, 22, 23}:
                assert given[index] in (DeadEntry(index, 20), Entry(*rows(index, index)[0]))


def test_a_folder_in_the_middle_of_a_commit(tmp_path: Path) -> None:
    """The leader has been replaced, its members have not: they answer for themselves."""
    model = PlainLog.of(rows(1, 18))
    with SegmentLog(tmp_path, options()) as log:
        log.append(rows(1, 18))
        log.snapshot(16, [2, 6, 11])
    model.record_snapshot(16, [2, 6, 11])
    merged = write_segment(tmp_path / "..", 1, [row for row in rows(1, 18) if row[0] in (2, 6, 11)], max_entries=3)
    with SegmentReader(merged) as written:
        found = RewrittenFile(str(tmp_path / "private"), os.path.getsize(merged), 3, written.loaded.index_crc)
    os.rename(merged, tmp_path / "private")

    class Interrupted(LocalFiles):
        def symlink(self, text: str, path: os.PathLike[str] | str) -> None:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        commit_group(Interrupted(), tmp_path, [1, 2, 3], found)
    assert (tmp_path / compacting_name([1, 2, 3])).exists()
    with LogReader(tmp_path) as reader:
        model.check(reader)
    with SegmentLog(tmp_path, options()) as log:
        assert log.recovery.finished == ((1, 2, 3),)
        model.check(log)


def test_a_list_and_a_snapshot_are_of_one_moment(tmp_path: Path) -> None:
    """Entries that were appended, and called alive, after the list was read must not be taken for lost."""
    with SegmentLog(tmp_path, options()) as log:
        log.append(rows(1, 6))
        log.snapshot(4, [2])
        with LogReader(tmp_path) as reader:
            log.append(rows(7, 14))
            log.snapshot(12, [2, 9, 12])
            # By the list it knows, 9 is above the end; it must not say that it was lost.
            assert reader.read(9) in (MissingEntry(9), Entry(*rows(9, 9)[0]))
            assert [error.index for error in damaged(reader)] == []
            reader.refresh()
            assert reader.read(9) == Entry(*rows(9, 9)[0])


def test_a_snapshot_and_a_compaction_while_the_list_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between its reads of the snapshot and the segments: the list lacks segments that were alive before."""
    with SegmentLog(tmp_path, options()) as log:
        log.append(rows(1, 10))
        log.snapshot(8, [2, 6])
        calls: list[int] = []

        def overtaken(folder: str, row: SnapshotMeta | None) -> FolderContents:
            calls.append(len(calls))
            if len(calls) == 1:
                log.snapshot(8, [2])
                assert not log.compact(policy=DropDead()).is_empty
            return read_folder(folder, row)

        monkeypatch.setattr("compactlib.raftlog.log.log_reader.read_folder", overtaken)
        with LogReader(tmp_path) as reader:
            assert calls == [0, 1]
            assert reader.verify().is_sound
            assert reader.state == log.state


def test_verify_names_every_damaged_entry_and_segment(tmp_path: Path) -> None:
    with SegmentLog(tmp_path, options()) as log:
        log.append(rows(1, 18))
        log.snapshot(16, [2, 6])
    with LogReader(tmp_path, max_open_segments=1) as reader:
        for index in (2, 3):
            flip_byte(tmp_path / segment_name(1), payload_place(tmp_path, 1, index))
        flip_byte(tmp_path / segment_name(2), 70)
        os.truncate(tmp_path / segment_name(3), 20)
        found = damaged(reader)
        assert [(Path(error.path).name, error.index) for error in found] == [
            (segment_name(1), 2), (segment_name(1), 3), (segment_name(2), None), (segment_name(3), None)]
        with pytest.raises(CorruptData):
            list(reader.entries())
    with pytest.raises(CorruptData):
        LogReader(tmp_path)


def test_scans_stop_or_continue_at_damage(tmp_path: Path) -> None:
    with SegmentLog(tmp_path, options()) as log:
        log.append(rows(1, 6))
    flip_byte(tmp_path / segment_name(1), payload_place(tmp_path, 1, 3))
    with LogReader(tmp_path) as reader:
        entries = reader.entries()
        assert [next(entries).index, next(entries).index] == [1, 2]
        with pytest.raises(CorruptData, match=r"\(index 3\)"):
            next(entries)
        assert [answer.index for answer in reader.scan()] == [1, 2, 3, 4, 5, 6]
        assert [entry.index for entry in reader.entries(4)] == [4, 5, 6]


def test_no_log_no_reader(tmp_path: Path) -> None:
    with pytest.raises(NotALog, match="does not exist; check the path"):
        LogReader(tmp_path / "missing")
    with pytest.raises(NotALog, match=r"is not a log: expected segment files such as '0000000000000001\.segment', "
                                      "found nothing"):
        LogReader(tmp_path)
    assert os.listdir(tmp_path) == []
