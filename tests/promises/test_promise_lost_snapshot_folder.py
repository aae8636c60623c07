# SPDX-License-Identifier: Apache-2.0
"""A replicated log whose snapshots were lost says so when it is opened; a machine is never replayed onto nothing."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import attrs
import pytest

from compactlib import CompactlibError
from compactlib.raftlog import Entry, LogOptions, RaftLog, SegmentLimits, SnapshotFolder, StoreOptions, open_log

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


@attrs.frozen
class Host:
    """How a host gives the log its snapshots.

    Attributes:
        says_applied: `attach` is told what the machine has applied.
        names_folder: the store is told, when it is opened, where the snapshots of a log lie.
    """

    says_applied: bool = False
    names_folder: bool = False

    def opened(self, base: Path) -> tuple[RaftLog, Sum]:
        """The log, and the machine brought up to its end."""
        folder = SnapshotFolder(base / "snapshots", machine=Sum)
        log = open_log(base / "log", StoreOptions(
            background=False, snapshots_of=(lambda _: folder) if self.names_folder else None,
            log=LogOptions(limits=SegmentLimits(max_entries=16))))
        try:
            machine = Sum()
            manifest = folder.manifest
            if manifest is not None:
                with folder.open_state(manifest) as state:
                    machine.restore(state.pieces())
            if self.says_applied:
                log.attach(folder, applied=machine.applied)
            else:
                log.attach(folder)
            replay(log, machine, machine.applied + 1)
        except BaseException:
            log.close()
            raise
        return log, machine


def replay(log: RaftLog, machine: Sum, first: int) -> None:
    for entry in log.entries(first, log.contiguous_through):
        machine.apply(entry)


every_host = pytest.mark.parametrize("host", [
    Host(), Host(says_applied=True), Host(names_folder=True), Host(says_applied=True, names_folder=True)])


def grown(host: Host, base: Path) -> None:
    """A log of 200 entries, whose newest snapshot covers 150 of them; beside it lies a copy of an older one of 100."""
    log, machine = host.opened(base)
    write(log, machine, 1, 100)
    log.close()
    shutil.copytree(base / "snapshots", base / "older")
    log, machine = host.opened(base)
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



def lost(base: Path) -> None:
    """A volume that is not mounted, or the wrong folder."""
    shutil.rmtree(base / "snapshots")


def older(base: Path) -> None:
    """A backup of another hour."""
    shutil.rmtree(base / "snapshots")
    shutil.copytree(base / "older", base / "snapshots")


def without_newest(base: Path) -> None:
    """A copy that stopped, or left a file out."""
    for path in (base / "snapshots").glob("*.snapshot"):
        path.unlink()


def is_named_or_right(host: Host, base: Path) -> bool:
    """Whether opening says by name that something is wrong, or else the machine has everything."""
    try:
        log, machine = host.opened(base)
    except CompactlibError:
        return True
    log.close()
    return machine.total == TOTAL


@every_host
def test_machine_has_everything_when_its_snapshot_folder_is_whole(tmp_path: Path, host: Host) -> None:
    grown(host, tmp_path)
    log, machine = host.opened(tmp_path)
    log.close()
    assert (machine.applied, machine.total) == (TOTAL, TOTAL)


@pytest.mark.xfail(strict=True, raises=AssertionError, reason=(
    "a log that says that a snapshot is in force names the loss of its snapshot folder at opening, and replays no "
    "machine onto nothing"))
@every_host
def test_log_names_the_loss_of_its_snapshot_folder_at_opening(tmp_path: Path, host: Host) -> None:
    grown(host, tmp_path)
    lost(tmp_path)
    assert is_named_or_right(host, tmp_path)


@pytest.mark.xfail(strict=True, raises=AssertionError, reason=(
    "a log whose snapshot folder is older than the snapshot that it says is in force names that at opening"))
@every_host
def test_log_names_an_older_snapshot_folder_at_opening(tmp_path: Path, host: Host) -> None:
    grown(host, tmp_path)
    older(tmp_path)
    assert is_named_or_right(host, tmp_path)


@pytest.mark.xfail(strict=True, raises=AssertionError, reason=(
    "a log whose snapshot folder lacks the snapshot that it says is in force names that at opening"))
@every_host
def test_log_names_an_incomplete_snapshot_folder_at_opening(tmp_path: Path, host: Host) -> None:
    grown(host, tmp_path)
    without_newest(tmp_path)
    assert is_named_or_right(host, tmp_path)
