# SPDX-License-Identifier: Apache-2.0
"""`RaftLog` with a `SnapshotFolder` and a `LogCompactionWorker`: both halves of a snapshot under crashes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from compactlib.files import Files, LocalFiles
from compactlib.indexset import IndexSet
from compactlib.raftlog import Entry, RaftLog, SnapshotFolder, open_log
from compactlib.raftlog.log.worker import LogCompactionWorker
from compactlib.raftlog.model.snapshot_meta import SnapshotMeta
from compactlib.testing import explore, record
from compactlib.testing.crash.recorder import RecordingFiles
from tests.raftlog.raft_host import held
from tests.raftlog.raft_world import RaftModel, check_log, found_state, install_plain, store_options

LIVE = {9: [2, 5], 14: [5, 12], 30: [5, 17, 22]}


def opened(folder: Path, files: Files) -> tuple[RaftLog, SnapshotFolder]:
    """A log whose snapshots lie beside it."""
    if not (folder / "snapshots").exists():
        files.make_folder(folder / "snapshots")
        files.sync_folder(folder)
    snapshots = SnapshotFolder(folder / "snapshots", files=files)
    log = open_log(folder / "log", store_options(files))
    log.attach(snapshots)
    return log, snapshots


def rows(first: int, last: int, term: int) -> list[tuple[int, int, bytes]]:
    return [(index, term, b"%d in %d" % (index, term)) for index in range(first, last + 1)]


def live_through_snapshots(model: RaftModel, folder: Path, files: RecordingFiles) -> None:
    """Two snapshots, a flush and a major between them, and one that is installed from elsewhere."""
    log, snapshots = opened(folder, files)

    def put(first: int, last: int, term: int) -> None:
        log.append(rows(first, last, term))
        for row in rows(first, last, term):
            model.change(lambda state, row=row: state.append(*row))  # type: ignore[misc]
        log.sync()
        files.acknowledge(len(model.history.states) - 1)

    def snapshot(index: int) -> None:
        model.change(lambda state: state.record_snapshot(index, LIVE[index]))
        log.snapshot(index, LIVE[index], [b"state at %d" % index])
        files.acknowledge(len(model.history.states) - 1)

    put(1, 10, 1)
    snapshot(9)
    log.flush()
    put(11, 16, 1)
    snapshot(14)
    log.compact(policy=log.policy)
    sent = [Entry(17, 2, b"17 from elsewhere"), Entry(22, 2, b"22 from elsewhere")]
    log.append_sparse(sent)
    model.change(lambda state: state.entries.update({entry.index: entry for entry in sent}))
    # As the receiver does: durable, put in the store, then in force.
    log.sync()
    meta = SnapshotMeta(30, 2, IndexSet.from_sorted(LIVE[30]))
    model.change(lambda state: install_plain(state, meta))
    snapshots.write(meta, [b"state at 30"])
    log.install(meta)
    files.acknowledge(len(model.history.states) - 1)
    log.close()


def test_a_crash_between_any_two_steps_of_a_snapshot_leaves_one_snapshot_and_all_it_needs(tmp_path: Path) -> None:
    model = RaftModel()

    def check(folder: Path, acknowledged: Sequence[Any]) -> None:
        log, snapshots = opened(folder, LocalFiles())
        with log:
            state = found_state(log, model.history, max(acknowledged, default=0))
            check_log(log, state)
            found = snapshots.latest()
            assert log.state.index == (-1 if found is None else found.index)
            if found is not None:
                assert found.live == log.state.live
                with snapshots.open_state() as reader:
                    assert b"".join(reader.pieces()) == b"state at %d" % found.index
            snapshots.audit()
            # The machine is restored from its snapshot; the rest of a transfer that was cut short goes.
            log.attach(applied=-1 if found is None else found.index)
            assert log.last_index == log.contiguous_through
            log.append(rows(log.last_index + 1, log.last_index + 2, 9))
            log.flush()

    recording = record(tmp_path, lambda folder, files: live_through_snapshots(model, folder, files))
    explore(recording, check, limit_per_point=2)


def test_a_worker_compacts_after_snapshots_while_entries_come_in(tmp_path: Path) -> None:
    log, _ = opened(tmp_path, LocalFiles())
    workers: list[LogCompactionWorker] = []

    def make(_: object) -> LogCompactionWorker:
        workers.append(LogCompactionWorker(log.segments))
        return workers[-1]

    with log:
        log.attach(worker=make)
        for round_number in range(6):
            first = log.last_index + 1
            log.append(rows(max(first, 1), max(first, 1) + 39, 1))
            log.flush()
            log.snapshot(log.last_index - 5, [7, 19], [b"state %d" % round_number])
        workers[0].wait_until_idle()
        log.audit()
        # Only the segments in which they lie are left.
        assert held(log).between(1, 100).issubset(IndexSet.from_runs([(5, 8), (17, 20)]))
        assert [log.read(index) for index in (7, 19)] == [Entry(7, 1, b"7 in 1"), Entry(19, 1, b"19 in 1")]
    assert log.is_closed
