# SPDX-License-Identifier: Apache-2.0
"""The shared WAL: which writes it takes, what it confirms, what a restart finds."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from compactlib.errors import Closed, CorruptData, InvalidInput
from compactlib.indexset import IndexSet
from compactlib.raftlog import SnapshotMeta
from compactlib.raftlog.wal.recovery import recover_wal
from compactlib.raftlog.wal.rules import Dropped, Resend, Write, WriterState, judge
from tests.raftlog.wal.opened_wal import LOCAL, Opened, entries_of
from tests.raftlog.wrapped_files import WatchedFiles


def test_a_gap_is_asked_for_once_and_what_follows_is_dropped_until_it_is_filled(tmp_path: Path) -> None:
    opened = Opened(tmp_path)
    for index in (1, 2, 3):
        assert isinstance(opened.put("a", index - 1, index), Write)
    assert opened.put("a", 4, 5) == Resend(WriterState(3, in_sequence=False), 4)
    assert opened.put("a", 5, 6) == Dropped(WriterState(3, in_sequence=False), "out of sequence")
    assert isinstance(opened.put("a", 3, 4), Write)
    assert isinstance(opened.put("a", 4, 5), Write)
    assert opened.put("a", 6, 7) == Resend(WriterState(5, in_sequence=False), 6)
    opened.wal.sync()
    assert opened.told() == [("a", 1, [1, 2, 3, 4, 5])]


@pytest.mark.parametrize("rolled", [False, True])
def test_gaps_are_noticed_after_a_restart_too(rolled: bool, tmp_path: Path) -> None:
    opened = Opened(tmp_path)
    for index in range(1, 201):
        opened.put("a", index - 1, index)
    opened.wal.sync()
    if rolled:
        # The entries are in segments by now, and their file is gone.
        opened.wal.roll_over()
        opened.wal.remove_through(1)
    opened.wal.close()
    again = Opened(tmp_path)
    assert len(entries_of(again.found)) == (0 if rolled else 200)
    assert again.put("a", 219, 220) == Resend(WriterState(200, in_sequence=False), 201)
    assert isinstance(again.put("a", 200, 201), Write)


def test_sparse_writes_are_confirmed_and_handed_over_as_they_were_written(tmp_path: Path) -> None:
    opened = Opened(tmp_path)
    assert opened.wal.write_sparse("a", 11, [12], [1], [b"x"]) == Write(WriterState(12), 12)
    opened.wal.sync()
    assert opened.wal.write_sparse("a", 12, [15], [1], [b"y"]) == Write(WriterState(15), 15)
    opened.wal.sync()
    assert opened.told() == [("a", 1, [12]), ("a", 1, [15])]
    opened.wal.roll_over()
    (closed,) = opened.closed
    assert closed.indexes == {"a": IndexSet.from_sorted([12, 15])}
    opened.wal.close()
    again = Opened(tmp_path)
    assert entries_of(again.found) == [("a", 12, 1, b"x"), ("a", 15, 1, b"y")]
    assert again.wal.last_index("a") == 15


ROW = SnapshotMeta(20, 1, IndexSet.from_sorted([8, 12]))


@pytest.mark.parametrize(("known", "previous", "first", "last", "verdict"), [
    # Entries below the smallest live index are not written, whether the log is known or not.
    (None, 6, 7, 7, Dropped(WriterState(7), "dead")),
    (WriterState(3), 4, 5, 7, Dropped(WriterState(7), "dead")),
    (WriterState(5), 5, 6, 9, Write(WriterState(9), 8)),
    # The smallest live index fits whatever came before; what was above it is taken back.
    (WriterState(3), 7, 8, 8, Write(WriterState(8), 8)),
    (WriterState(15), 7, 8, 8, Write(WriterState(8), 8, cut_after=7)),
    # An unknown log begins anywhere.
    (None, 98, 99, 99, Write(WriterState(99), 99)),
    # Contiguous writes behind a snapshot that is ahead of what was written.
    (WriterState(14), 20, 21, 30, Write(WriterState(30), 21)),
    (WriterState(14), 21, 22, 30, Resend(WriterState(14, in_sequence=False), 21)),
    # An overwrite: what lay above the index before is taken back.
    (WriterState(40), 29, 30, 31, Write(WriterState(31), 30, cut_after=29)),
    (WriterState(40), 29, 35, 35, Write(WriterState(35), 35, cut_after=29)),
    (WriterState(40, in_sequence=False), 29, 30, 31, Write(WriterState(31), 30, cut_after=29)),
    # A writer that does not say what it follows means whatever there is.
    (WriterState(14), None, 99, 99, Write(WriterState(99), 99)),
    (WriterState(40), None, 30, 30, Write(WriterState(30), 30, cut_after=29)),
])
def test_what_becomes_of_a_write(known: WriterState | None, previous: int | None, first: int, last: int,
                                 verdict: object) -> None:
    assert judge(known, ROW, previous, first, last) == verdict


def test_a_queued_write_that_a_snapshot_overtakes_is_not_written(tmp_path: Path) -> None:
    opened = Opened(tmp_path)
    for index in range(1, 10):
        opened.put("a", index - 1, index, payload=bytes(1000))
    opened.put("b", None, 1)
    opened.states.put("a", SnapshotMeta(9, 1, IndexSet.from_sorted([8])))
    opened.wal.sync()
    assert opened.told() == [("a", 1, [8, 9]), ("b", 1, [1])]
    assert opened.wal.size_bytes < 3000
    opened.wal.audit()


def test_confirmations_name_what_stands_by_log_and_term(tmp_path: Path) -> None:
    opened = Opened(tmp_path)
    opened.wal.write_run("a", None, 1, 1, [b""] * 10)
    opened.wal.write_run("b", None, 5, 7, [b"x", b"y"])
    opened.wal.write_run("a", 4, 5, 2, [b""] * 2)
    opened.wal.write_sparse("a", 6, [9, 12], [2, 3], [b"", b""])
    opened.wal.cut("b", 5)
    opened.wal.sync()
    assert opened.told() == [("a", 1, [1, 2, 3, 4]), ("b", 7, [5]), ("a", 2, [5, 6, 9]), ("a", 3, [12])]


# -- batches


def test_one_fsync_for_all_that_threads_and_logs_have_queued(tmp_path: Path) -> None:
    """A batch costs one write of the batch, one fsync, and no folder sync."""
    done: list[str] = []
    opened = Opened(tmp_path, files=WatchedFiles(lambda operation, path: done.append(operation)))
    done.clear()
    threads = [threading.Thread(target=lambda name=name: [opened.put(name, index - 1, index)
                                                          for index in range(1, 51)]) for name in "abcd"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    opened.wal.sync()
    assert done.count("sync") == 1
    assert set(done) == {"write", "sync"}
    assert sorted(log_id for log_id, _, indexes in opened.told() if len(indexes) == 50) == list("abcd")
    opened.wal.sync()
    assert done.count("sync") == 1


def test_threads_that_sync_at_once_are_all_served(tmp_path: Path) -> None:
    opened = Opened(tmp_path, max_bytes=3000)
    durable: list[tuple[str, int]] = []

    def work(name: str) -> None:
        for index in range(1, 31):
            opened.put(name, index - 1, index)
            opened.wal.sync()
            durable.append((name, index))

    threads = [threading.Thread(target=work, args=(name,)) for name in "abc"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(durable) == 90
    assert len(opened.closed) > 1
    opened.wal.audit()
    opened.wal.close()
    rows = entries_of(recover_wal(LOCAL, tmp_path))
    assert [row[1] for row in rows if row[0] == "b"] == list(range(1, 31))


# -- files


def test_a_full_file_is_closed_and_the_next_one_names_its_logs_and_its_length(tmp_path: Path) -> None:
    opened = Opened(tmp_path, max_bytes=2000)
    for index in range(1, 40):
        opened.put("a", index - 1, index, payload=bytes(200))
        opened.wal.sync()
    assert [closed.number for closed in opened.closed] == list(range(1, opened.wal.number))
    assert IndexSet().union(*(closed.indexes["a"] for closed in opened.closed)).first == 1
    opened.wal.remove_through(2)
    with pytest.raises(InvalidInput, match="is in use"):
        opened.wal.remove_through(opened.wal.number)
    assert min(os.listdir(tmp_path)) == "0000000000000003.wal"
    opened.wal.close()
    with pytest.raises(Closed):
        opened.put("a", 39, 40)
    again = Opened(tmp_path)
    assert entries_of(again.found)[-1][1] == 39
    again.wal.audit()


def test_a_missing_file_in_between_is_damage(tmp_path: Path) -> None:
    opened = Opened(tmp_path)
    for _ in range(2):
        opened.wal.roll_over()
    opened.wal.close()
    os.unlink(tmp_path / "0000000000000002.wal")
    with pytest.raises(CorruptData, match=r"0000000000000002\.wal .* expected a WAL file"):
        recover_wal(LOCAL, tmp_path)
