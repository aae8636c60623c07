# SPDX-License-Identifier: Apache-2.0
"""A follower that is too far behind gets the leader's snapshot with its live entries: all of it, or nothing yet."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Any

import attrs
import pytest

from compactlib.files import Files, LocalFiles
from compactlib.hosting import SnapshotClient, SnapshotServer
from compactlib.outcome import Done
from compactlib.raftlog import (
    DeadEntry,
    Entry,
    LogOptions,
    RaftLog,
    SegmentLimits,
    SnapshotFolder,
    StoreOptions,
    open_log,
)
from compactlib.testing import RecordingFiles, explore_crashes, record

OPTIONS = StoreOptions(log=LogOptions(limits=SegmentLimits(max_entries=16)), background=False)
STATE = b"the state of the machine;" * 40
LAST, LIVE = 60, (3, 17, 18, 41)

FOLLOWERS = {
    "empty": [],
    "behind": [Entry(index, 1, b"entry %d" % index) for index in range(1, 11)],
    "of another history": [Entry(index, 1, b"entry %d" % index) for index in range(1, 6)]
    + [Entry(index, 2, b"nobody else has it %d" % index) for index in range(6, 31)],
}


def entry(index: int) -> Entry:
    return Entry(index, 1 if index < 11 else 3, b"entry %d" % index)


@contextlib.contextmanager
def member(folder: Path, files: Files | None = None) -> Iterator[tuple[RaftLog, SnapshotFolder]]:
    """A log with its snapshots, which lie beside it."""
    disk = LocalFiles() if files is None else files
    options = attrs.evolve(OPTIONS, log=attrs.evolve(OPTIONS.log, files=disk))
    with open_log(folder / "log", options) as log:
        snapshots = SnapshotFolder(folder / "snapshots", files=disk)
        log.attach(snapshots)
        yield log, snapshots


@contextlib.contextmanager
def leader(folder: Path) -> Iterator[tuple[RaftLog, SnapshotFolder]]:
    folder.mkdir()
    with member(folder) as (log, snapshots):
        log.append([entry(index) for index in range(1, LAST + 11)])
        log.sync()
        log.flush()
        log.snapshot(LAST, LIVE, [STATE])
        log.compact()
        yield log, snapshots


def transfer(of: tuple[RaftLog, SnapshotFolder], to: tuple[RaftLog, SnapshotFolder], applied: int = 0) -> object:
    """Bring a follower up to date, over a line within this process."""

    async def sent() -> object:
        installed: list[Any] = []
        async with SnapshotServer(listen=("127.0.0.1", 0)) as server:
            server.add(*to, term=3, applied=lambda: LAST if installed else applied,
                       installed=lambda manifest, state: installed.append(manifest))
            return await SnapshotClient(server.address).send(*of, term=3)

    return asyncio.run(asyncio.wait_for(sent(), 60))


def require_snapshot(log: RaftLog, snapshots: SnapshotFolder) -> None:
    """What the leader has is there, and nothing else up to the snapshot."""
    assert log.state.index == LAST
    for index in range(1, LAST + 1):
        assert log.read(index) == (entry(index) if index in LIVE else DeadEntry(index, LAST))
    with snapshots.open_state() as state:
        assert b"".join(bytes(piece) for piece in state.pieces()) == STATE
    assert log.verify().is_sound


@pytest.mark.parametrize("had", FOLLOWERS)
def test_follower_has_what_its_leader_has(had: str, tmp_path: Path) -> None:
    (tmp_path / "follower").mkdir()
    with leader(tmp_path / "leader") as of:
        with member(tmp_path / "follower") as to:
            to[0].append(FOLLOWERS[had])
            to[0].sync()
            assert isinstance(transfer(of, to), Done)
            require_snapshot(*to)
            to[0].append([entry(LAST + 1)])
            to[0].sync()
        with member(tmp_path / "follower") as to:
            require_snapshot(*to)
            assert to[0].read(LAST + 1) == entry(LAST + 1)
            assert [each.index for each in to[0].entries(LAST + 1)] == [LAST + 1]


@pytest.mark.parametrize("had", ["behind", "of another history"])
def test_crash_of_a_transfer_leaves_the_old_log_or_the_snapshot(had: str, tmp_path: Path) -> None:
    """After the next transfer, too, the follower has what its leader has."""
    with leader(tmp_path / "leader") as of:

        def follow(folder: Path, files: RecordingFiles) -> None:
            with member(folder, files) as to:
                assert isinstance(transfer(of, to), Done)
                files.acknowledge("installed")

        def check(folder: Path, notes: Sequence[Any]) -> None:
            with member(folder) as to:
                log = to[0]
                if log.state.index == LAST:
                    require_snapshot(*to)
                else:
                    assert not notes, "the follower had said that it has the snapshot"
                    agreed = [each for each in FOLLOWERS[had] if each == entry(each.index)]
                    assert [log.read(each.index) for each in agreed] == agreed
                    assert all(each in FOLLOWERS[had] or each == entry(each.index) for each in log.entries())
                log.attach(to[1], applied=log.state.index)
                if log.state.index != LAST:
                    assert isinstance(transfer(of, to), Done)
                require_snapshot(*to)

        folder = tmp_path / "follower"
        folder.mkdir()
        with member(folder) as to:
            to[0].append(FOLLOWERS[had])
            to[0].sync()
        recording = record(folder, follow)
        points = sorted(Random(1).sample(range(len(recording.operations) + 1), 16))
        assert explore_crashes(recording, check, points=points, limit_per_point=2) > 10
