# SPDX-License-Identifier: Apache-2.0
"""A replicated log whose snapshots were lost says so when it is opened; a machine is never replayed onto nothing."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from compactlib.errors import Closed, CorruptData, StorageError
from compactlib.raftlog import Entry, LogOptions, RaftLog, RaftLogStore, SegmentLimits, StoreOptions, open_log
from compactlib.raftlog.errors import LiveSetLost, SnapshotLost
from compactlib.testing import FilesInFront, Request

TOTAL = 200


class Sum:
    """A machine that adds up what its entries say."""

    def __init__(self) -> None:
        self.applied = -1
        self.total = 0

    def apply(self, entry: Entry) -> None:
        self.applied = entry.index
        self.total += int(entry.payload)

    def live_indexes(self) -> list[int]:
        return []

    def snapshot(self) -> list[bytes]:
        return [b"%d %d" % (self.applied, self.total)]

    def restore(self, pieces: Iterator[bytes]) -> None:
        self.applied, self.total = map(int, b"".join(pieces).split())


def opened(base: Path, *, rebuilds: bool) -> tuple[RaftLog, Sum]:
    """The log, and the machine brought up to its end."""
    log = open_log(base / "log", StoreOptions(background=False, machine_of=(lambda _: Sum()) if rebuilds else None,
                                              log=LogOptions(limits=SegmentLimits(max_entries=16))))
    try:
        machine = Sum()
        if log.state.index >= 0:
            with log.open_state() as state:
                machine.restore(state.pieces())
        replay(log, machine, machine.applied + 1)
    except BaseException:
        log.close()
        raise
    return log, machine


def replay(log: RaftLog, machine: Sum, first: int) -> None:
    for entry in log.entries(first, log.last_index):
        machine.apply(entry)


every_host = pytest.mark.parametrize("rebuilds", [False, True], ids=["without a machine", "with a machine"])


def grown(base: Path) -> None:
    """A log of 200 entries, whose newest snapshot covers 150 of them; with a copy of an older one of 100."""
    log, machine = opened(base, rebuilds=False)
    write(log, machine, 1, 100)
    log.close()
    shutil.copytree(snapshots_of(base), base / "older")
    shutil.copy(row_of(base), base / "older row")
    log, machine = opened(base, rebuilds=False)
    assert machine.total == 100
    write(log, machine, 101, 150)
    log.append_run(151, 1, [b"1"] * 50)
    log.sync()
    log.flush()
    log.compact()
    log.close()


def write(log: RaftLog, machine: Sum, first: int, last: int) -> None:
    """Entries, and a snapshot that covers them."""
    log.append_run(first, 1, [b"1"] * (last - first + 1))
    log.sync()
    replay(log, machine, first)
    log.snapshot(last, [], machine.snapshot())


def row_of(base: Path) -> Path:
    """The file that says which snapshot is in force."""
    return base / "log" / "logs" / "log" / "SNAPSHOT"


def snapshots_of(base: Path) -> Path:
    """The folder of the states."""
    return base / "log" / "logs" / "log" / "snapshots"


def lost(base: Path) -> None:
    """A volume that is not mounted, or the wrong folder."""
    shutil.rmtree(snapshots_of(base))


def older(base: Path) -> None:
    """A backup of another hour."""
    shutil.rmtree(snapshots_of(base))
    shutil.copytree(base / "older", snapshots_of(base))


def without_newest(base: Path) -> None:
    """A copy that stopped, or left a file out."""
    for path in snapshots_of(base).glob("*.state"):
        path.unlink()


def without_row(base: Path) -> None:
    """The file that says which snapshot is in force was left out."""
    row_of(base).unlink()


def older_row(base: Path) -> None:
    """That file comes from a backup of another hour."""
    shutil.copy(base / "older row", row_of(base))


@every_host
def test_machine_has_everything_when_its_snapshot_folder_is_whole(tmp_path: Path, rebuilds: bool) -> None:
    grown(tmp_path)
    log, machine = opened(tmp_path, rebuilds=rebuilds)
    log.close()
    assert (machine.applied, machine.total) == (TOTAL, TOTAL)


@every_host
@pytest.mark.parametrize("what", [lost, older, without_newest, without_row, older_row], ids=lambda what: what.__name__)
def test_log_names_the_loss_of_its_snapshot_at_opening(what: Callable[[Path], None], tmp_path: Path,
                                                       rebuilds: bool) -> None:
    grown(tmp_path)
    what(tmp_path)
    with pytest.raises(SnapshotLost):
        opened(tmp_path, rebuilds=rebuilds)


def test_other_logs_of_the_store_work(tmp_path: Path) -> None:
    grown(tmp_path)
    lost(tmp_path)
    with RaftLogStore(tmp_path / "log") as store:
        assert store.status().damaged == ("log",)
        assert store.log("another").append([(1, 1, b"x")]) == 1


@every_host
def test_damaged_live_set_is_rebuilt_from_the_state_or_named(tmp_path: Path, rebuilds: bool) -> None:
    grown(tmp_path)
    data = bytearray(row_of(tmp_path).read_bytes())
    data[-6] ^= 1
    row_of(tmp_path).write_bytes(data)
    if rebuilds:
        log, machine = opened(tmp_path, rebuilds=True)
        log.close()
        assert machine.total == TOTAL
    with contextlib.ExitStack() as stack:
        if not rebuilds:
            stack.enter_context(pytest.raises(LiveSetLost))
        opened(tmp_path, rebuilds=False)[0].close()


def test_machine_that_cannot_rebuild_a_live_set_stops_no_other_log(tmp_path: Path) -> None:
    class Mistaken(Sum):
        def restore(self, pieces: Iterator[bytes]) -> None:
            raise ValueError("the host's mistake")

    grown(tmp_path)
    data = bytearray(row_of(tmp_path).read_bytes())
    data[-6] ^= 1
    row_of(tmp_path).write_bytes(data)
    with RaftLogStore(tmp_path / "log", StoreOptions(background=False, machine_of=lambda _: Mistaken())) as store:
        assert store.log("another").append([(1, 1, b"x")]) == 1
        with pytest.raises(LiveSetLost) as lost:
            store.log("log")
        assert "the host's mistake" in str(lost.value.__cause__)
    opened(tmp_path, rebuilds=True)[0].close()


def test_snapshot_of_unknown_outcome_closes_the_log(tmp_path: Path) -> None:
    """Which one is in force shows after opening it again: nothing may be acknowledged on top of the older one."""
    answers = ["a row is replaced", "the folder cannot be synced"]

    def meet(request: Request, act: Callable[[], Any]) -> Any:
        if len(answers) == 1 and request.kind == "sync folder":
            answers.clear()
            raise StorageError(operation="sync", path=request.path, errno=5)
        if len(answers) == 2 and request.kind == "rename" and "SNAPSHOT" in request.path:
            answers.pop()
        return act()

    options = StoreOptions(background=False, log=LogOptions(files=FilesInFront(meet)))
    with RaftLogStore(tmp_path / "store", options) as store:
        log = store.log("a")
        log.append_run(1, 1, [b"x"] * 30)
        with pytest.raises(StorageError):
            log.snapshot(29, [])
        with pytest.raises(Closed):
            log.append_entries(27, 1, [(28, 2, b"y")])
        assert store.log("b").append([(1, 1, b"x")]) == 1
        assert store.log("a").state.index == 29
        assert [entry.index for entry in store.log("a").entries()] == [30]


def test_verify_names_a_damaged_state(tmp_path: Path) -> None:
    grown(tmp_path)
    (state,) = snapshots_of(tmp_path).glob("*.state")
    state.write_bytes(bytes([state.read_bytes()[0] ^ 1]) + state.read_bytes()[1:])
    log = open_log(tmp_path / "log", StoreOptions(background=False))
    with log:
        assert [finding.kind for finding in log.verify().findings] == ["damage"]


def test_state_that_the_disk_garbles_takes_no_ones_place(tmp_path: Path) -> None:
    garbles = [False]

    def meet(request: Request, act: Callable[[], Any]) -> Any:
        found = act()
        if request.kind == "write" and request.path.endswith(".state") and garbles[0]:
            Path(request.path).write_bytes(b"another state")
        return found

    options = StoreOptions(background=False, log=LogOptions(files=FilesInFront(meet)))
    with open_log(tmp_path / "log", options) as log:
        log.append_run(1, 1, [b"x"] * 30)
        log.snapshot(10, [], [b"the first state"])
        garbles[0] = True
        with pytest.raises(CorruptData):
            log.snapshot(20, [], [b"the second state"])
        assert log.state.index == 10
        with log.open_state() as state:
            assert list(state.pieces()) == [b"the first state"]
        assert len(list(snapshots_of(tmp_path).iterdir())) == 1
