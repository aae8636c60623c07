# SPDX-License-Identifier: Apache-2.0
"""Snapshots, checkpoints and received snapshots are crashed after every operation, under every loss."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from compactlib.files import Files
from compactlib.files.checksum import crc32
from compactlib.indexset import IndexSet
from compactlib.raftlog import SnapshotFolder, SnapshotMeta
from compactlib.raftlog.snapshots.model import SnapshotManifest
from compactlib.testing import RecordingFiles, explore_crashes, explore_recovery, record
from tests.raftlog.snapshots.test_raftlog_snapshots import PlacesMachine

STATES = {index: b"k%d=%d;" % (index, index - 1) for index in (10, 20, 30)}


def meta(index: int) -> SnapshotMeta:
    """Each snapshot lives on the entry before it."""
    return SnapshotMeta(index, 2, IndexSet.from_sorted([index - 1]))


def manifest(index: int) -> SnapshotManifest:
    state = STATES[index]
    return SnapshotManifest.of(index, 2, meta(index).live, state_bytes=len(state), state_crc=crc32(state))


def take_two(folder: Path, files: RecordingFiles) -> None:
    store = SnapshotFolder(folder / "snapshots", files=files)
    for index in (10, 20):
        store.write(meta(index), [STATES[index][:4], STATES[index][4:]])
        files.acknowledge(index)
        store.remove_older()


def promote_one(folder: Path, files: RecordingFiles) -> None:
    store = SnapshotFolder(folder / "snapshots", files=files, max_checkpoints=2)
    store.write(meta(10), [STATES[10]])
    files.acknowledge(10)
    store.write_checkpoint(meta(20), [STATES[20]])
    store.write_checkpoint(meta(30), [STATES[30]])
    store.promote(20)
    files.acknowledge(20)
    store.remove_older()
    store.write(meta(30), [STATES[30]])
    files.acknowledge(30)
    store.remove_older()


def receive_one(folder: Path, files: RecordingFiles) -> None:
    store = SnapshotFolder(folder / "snapshots", files=files)
    store.write(meta(10), [STATES[10]])
    files.acknowledge(10)
    store.write_checkpoint(meta(20), [STATES[20]])
    incoming = store.receive(manifest(20))
    incoming.write(0, STATES[20][:3])
    incoming.close()
    incoming = store.receive(manifest(20), keep_bytes=3)
    incoming.write(3, STATES[20][3:])
    store.adopt(incoming, meta(20).live)
    files.acknowledge(20)
    store.remove_older()
    store.receive(manifest(30)).write(0, STATES[30][:5])


STORIES: dict[str, Callable[[Path, RecordingFiles], None]] = {
    "two snapshots": take_two, "promoted checkpoints": promote_one, "received": receive_one}


def recover(folder: Path, files: Files) -> None:
    """What is crashed after a crash: opening the folder, and removing what is older, as the facade does."""
    store = SnapshotFolder(folder / "snapshots", files=files)
    store.remove_older()
    store.audit()


def check(folder: Path, acknowledged: Sequence[Any]) -> None:
    """What was acknowledged, or something newer, is in force and whole; nothing else lies about."""
    if not (folder / "snapshots").exists():
        assert not acknowledged
        return
    store = SnapshotFolder(folder / "snapshots")
    store.audit()
    found = store.latest()
    if acknowledged:
        assert found is not None
        assert found.index >= acknowledged[-1]
    if found is not None:
        assert found == meta(found.index)
        with store.open_state() as reader:
            assert b"".join(reader.pieces()) == STATES[found.index]
        # A live set lost after that is rebuilt from this very state.
        (path,) = (folder / "snapshots").glob(f"{found.index:020d}-*.live")
        path.unlink()
        assert SnapshotFolder(folder / "snapshots", machine=machine_of).latest() == found
    store.remove_older()
    checkpoints = len(store.checkpoints)
    staged = store.staged()
    kept = {path.name.partition(".")[2] for path in (folder / "snapshots").glob("incoming.*")}
    assert kept == ({"state", "manifest"} if staged else set())
    whole = len([path for path in (folder / "snapshots").iterdir() if not path.name.startswith("incoming")])
    assert whole == 3 * ((found is not None) + checkpoints)
    if staged is not None:
        finish(store, staged.meta, staged.state_bytes, found is not None and found.index >= staged.meta.index)


def finish(store: SnapshotFolder, wanted: SnapshotManifest, kept: int, is_old: bool) -> None:
    """Go on with what a crash left of a received state, as far as its bytes survived."""
    if is_old:
        return
    incoming = store.receive(wanted, keep_bytes=kept)
    state = STATES[wanted.index]
    # Its bytes were not synced: the receiver's CRC says whether they can be used, and here they are all sent again.
    incoming.write(0, state)
    store.adopt(incoming, meta(wanted.index).live)
    with store.open_state() as reader:
        assert b"".join(reader.pieces()) == state


def machine_of() -> PlacesMachine:
    return PlacesMachine()


@pytest.mark.parametrize("name", STORIES)
def test_a_crash_at_any_operation_loses_no_snapshot(name: str, tmp_path: Path) -> None:
    checked = explore_crashes(record(tmp_path, STORIES[name]), check, seed=1, limit_per_point=6)
    assert checked > 20


@pytest.mark.parametrize("name", STORIES)
def test_a_crash_of_the_recovery_loses_no_snapshot(name: str, tmp_path: Path) -> None:
    recording = record(tmp_path, STORIES[name])
    checked = explore_recovery(recording, recover_if_there, check, seed=2, recoveries=3,
                              limit_per_point=6)
    assert checked > 3


def recover_if_there(folder: Path, files: Files) -> None:
    """The folder itself may not have survived."""
    if (folder / "snapshots").exists():
        recover(folder, files)


@pytest.mark.soak
@pytest.mark.parametrize("name", STORIES)
def test_soak_every_loss(name: str, tmp_path: Path) -> None:
    explore_crashes(record(tmp_path, STORIES[name]), check, seed=3, limit_per_point=1 << 12)
