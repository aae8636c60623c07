# SPDX-License-Identifier: Apache-2.0
"""`SnapshotFolder`: what it keeps, what it refuses, and that a live set is never taken for empty."""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st

from compactlib.errors import (
    Closed,
    CorruptData,
    DiskFull,
    InvalidInput,
    NotFound,
    Stale,
    StorageError,
    Unsorted,
    Unsupported,
)
from compactlib.files.checksum import crc32
from compactlib.indexset import IndexSet
from compactlib.raftlog import Entry, LiveTracker, SnapshotFolder, SnapshotMeta
from compactlib.raftlog.errors import LiveAboveSnapshot, LiveSetLost
from compactlib.raftlog.snapshots import folder as snapshot_folder
from compactlib.raftlog.snapshots.files_format import (
    LIVE_HEAD,
    PART_HEAD_BYTES,
    decode_manifest,
    encode_manifest,
)
from compactlib.raftlog.snapshots.model import SnapshotManifest
from compactlib.raftlog.store.protocols import SnapshotStore
from compactlib.testing import FilesInFront, Request
from tests.harness.failing_files import FailingFiles
from tests.harness.open_files import open_files
from tests.raftlog.wrapped_files import UnsyncedFiles

LIVE = IndexSet.from_sorted([5, 10, 15])


class PlacesMachine:
    """Keeps the index of each key's last put; a payload is the key, with a `-` before it for a delete."""

    def __init__(self) -> None:
        self.places: dict[str, int] = {}

    def apply(self, entry: Entry) -> None:
        key = entry.payload.decode()
        if key.startswith("-"):
            self.places.pop(key[1:], None)
        else:
            self.places[key] = entry.index

    def live_indexes(self) -> Iterable[int]:
        return self.places.values()

    def snapshot(self) -> Iterable[bytes]:
        return [f"{key}={place};".encode() for key, place in sorted(self.places.items())]

    def restore(self, pieces: Iterator[bytes]) -> None:
        text = b"".join(pieces).decode()
        self.places = {key: int(place) for key, _, place in (part.partition("=") for part in text.split(";") if part)}


def machine() -> PlacesMachine:
    """Lives on 5, 10 and 15."""
    made = PlacesMachine()
    for index, key in ((5, "a"), (10, "b"), (12, "x"), (15, "c"), (16, "-x")):
        made.apply(Entry(index, 1, key.encode()))
    return made


def meta(index: int = 16, term: int = 2, live: IndexSet = LIVE) -> SnapshotMeta:
    return SnapshotMeta(index, term, live)


def state_of(store: SnapshotFolder, manifest: SnapshotManifest | None = None) -> bytes:
    with store.open_state(manifest) as reader:
        return b"".join(reader.pieces())


def names(folder: Path) -> list[str]:
    return sorted(os.listdir(folder))


def live_file(folder: Path) -> Path:
    (path,) = folder.glob("*.live")
    return path


def test_a_snapshot_reads_back_here_and_after_opening_anew(tmp_path: Path) -> None:
    store: SnapshotStore = SnapshotFolder(tmp_path)
    assert store.latest() is None
    store.write(meta(), machine().snapshot())
    for opened in (store, SnapshotFolder(tmp_path)):
        assert isinstance(opened, SnapshotFolder)
        assert opened.latest() == meta()
        restored = PlacesMachine()
        with opened.open_state() as reader:
            restored.restore(reader.pieces())
        assert restored.places == {"a": 5, "b": 10, "c": 15}
        opened.audit()
    assert [name.partition(".")[2] for name in names(tmp_path)] == ["live", "snapshot", "state"]


def test_an_empty_live_set_is_written_and_an_empty_state_too(tmp_path: Path) -> None:
    store = SnapshotFolder(tmp_path)
    store.write(meta(live=IndexSet()), [])
    assert store.latest() == meta(live=IndexSet())
    assert live_file(tmp_path).stat().st_size > PART_HEAD_BYTES
    assert state_of(store) == b""
    live_file(tmp_path).unlink()
    with pytest.raises(LiveSetLost):
        SnapshotFolder(tmp_path).latest()


def test_states_larger_than_a_batch_in_pieces_of_any_kind(tmp_path: Path) -> None:
    pieces: list[Any] = [os.urandom(700_000), bytearray(os.urandom(900_000)), memoryview(os.urandom(3)), b""]
    store = SnapshotFolder(tmp_path)
    store.write(meta(), iter(pieces), machine_version=7, cluster=b"three members")
    whole = b"".join(map(bytes, pieces))
    assert state_of(store) == whole
    manifest = store.manifest
    assert manifest is not None
    assert (manifest.machine_version, manifest.cluster) == (7, b"three members")
    with store.open_state() as reader:
        assert reader.read(1_600_000, 100) == whole[1_600_000:]
        assert reader.read(5, 7) == whole[5:12]
        reader.close()
        with pytest.raises(Closed):
            reader.read(0, 1)


def test_the_snapshot_before_stays_until_remove_older_and_its_state_beyond(tmp_path: Path) -> None:
    store = SnapshotFolder(tmp_path)
    store.write(meta(), [b"old"])
    reader = store.open_state()
    store.write(meta(30, 2, IndexSet.from_sorted([15])), [b"new"])
    assert len(names(tmp_path)) == 6
    assert store.latest() == meta(30, 2, IndexSet.from_sorted([15]))
    store.remove_older()
    store.remove_older()
    assert len(names(tmp_path)) == 3
    assert state_of(store) == b"new"
    assert b"".join(reader.pieces()) == b"old"
    reader.close()


def test_snapshots_only_move_forward(tmp_path: Path) -> None:
    store = SnapshotFolder(tmp_path)
    store.write(meta(), [])
    for index in (15, 16):
        with pytest.raises(Stale, match=f"snapshot {index} is not above 16"):
            store.write(meta(index, live=IndexSet()), [])
        with pytest.raises(Stale):
            store.write_checkpoint(meta(index, live=IndexSet()), [])
    with pytest.raises(LiveAboveSnapshot):
        store.write(meta(20, live=IndexSet.from_sorted([21])), [])
    with pytest.raises(InvalidInput, match="max_checkpoints is -1"):
        SnapshotFolder(tmp_path, max_checkpoints=-1)


# -- a lost live set


def damage_crc(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


def make_version_99(path: Path) -> None:
    head = bytearray(LIVE_HEAD.encode(16, 2)[:-4])
    head[8] = 99
    path.write_bytes(bytes(head) + crc32(head).to_bytes(4, "little") + path.read_bytes()[PART_HEAD_BYTES:])


DAMAGES: dict[str, Callable[[Path], object]] = {
    "missing": lambda path: path.unlink(),
    "empty": lambda path: path.write_bytes(b""),
    "wrong CRC": damage_crc,
    "cut": lambda path: path.write_bytes(path.read_bytes()[:-3]),
    "of another snapshot": lambda path: path.write_bytes(
        LIVE_HEAD.encode(17, 2) + path.read_bytes()[PART_HEAD_BYTES:]),
    "an empty set": lambda path: path.write_bytes(LIVE_HEAD.encode(16, 2) + IndexSet().to_bytes()),
    "another set of the same size": lambda path: path.write_bytes(
        LIVE_HEAD.encode(16, 2) + IndexSet.from_sorted([5, 10, 14]).to_bytes()),
    "headerless, as bare bytes of a set": lambda path: path.write_bytes(LIVE.to_bytes()),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_lost_live_set_is_an_error_or_rebuilt_from_the_state(damage: str, tmp_path: Path) -> None:
    """The notes' headerless old form does not exist here, so it is damage too; missing is rebuilt, not empty."""
    SnapshotFolder(tmp_path).write(meta(), machine().snapshot())
    whole = live_file(tmp_path).read_bytes()
    DAMAGES[damage](live_file(tmp_path))
    with pytest.raises(LiveSetLost):
        SnapshotFolder(tmp_path).latest()
    assert SnapshotFolder(tmp_path, machine=PlacesMachine).latest() == meta()
    assert live_file(tmp_path).read_bytes() == whole
    assert SnapshotFolder(tmp_path).latest() == meta()


def test_version_99_is_unsupported_not_damage(tmp_path: Path) -> None:
    SnapshotFolder(tmp_path).write(meta(), machine().snapshot())
    make_version_99(live_file(tmp_path))
    with pytest.raises(Unsupported, match="version 99"):
        SnapshotFolder(tmp_path, machine=PlacesMachine).latest()


def test_no_crash_leaves_a_snapshot_without_its_live_set(tmp_path: Path) -> None:
    """Ra writes the snapshot, then the live set; here the switch comes when both are durable (see the crash
    tests), and a set that vanishes later is an error."""
    files = FailingFiles()
    store = SnapshotFolder(tmp_path, files=files)
    store.write(meta(), machine().snapshot())
    for fail_at in range(1, files.count + 1):
        folder = tmp_path / str(fail_at)
        folder.mkdir()
        try:
            failing = SnapshotFolder(folder, files=FailingFiles(fail_at=fail_at, errno=errno.ENOSPC, sticky=True))
            failing.write(meta(), machine().snapshot())
        except DiskFull:
            found = SnapshotFolder(folder).latest()
            assert found in (None, meta())


def test_a_rebuilt_set_that_is_not_the_one_written_is_refused(tmp_path: Path) -> None:
    """A machine of another version, or one that is not deterministic, must not pass for the one that wrote it."""
    SnapshotFolder(tmp_path).write(meta(), machine().snapshot())
    live_file(tmp_path).unlink()

    class Forgetful(PlacesMachine):
        def live_indexes(self) -> Iterable[int]:
            return ()

    with pytest.raises(LiveSetLost, match="a set rebuilt from the state with"):
        SnapshotFolder(tmp_path, machine=Forgetful).latest()
    assert not list(tmp_path.glob("*.live"))


# -- damage elsewhere


def test_damaged_states_are_found_before_their_last_piece_is_given(tmp_path: Path) -> None:
    store = SnapshotFolder(tmp_path)
    store.write(meta(), [bytes(3_000_000)])
    (path,) = tmp_path.glob("*.state")
    data = bytearray(path.read_bytes())
    data[2_000_000] = 1
    path.write_bytes(data)
    got: list[bytes] = []
    reader = store.open_state()
    with pytest.raises(CorruptData, match="expected 3000000 bytes with CRC"):
        got.extend(reader.pieces())
    assert sum(map(len, got)) < 3_000_000
    reader.close()
    with pytest.raises(CorruptData):
        store.audit()
    path.write_bytes(data[:-1])
    with pytest.raises(CorruptData, match="expected 3000000 bytes, found 2999999"):
        store.open_state()
    path.unlink()
    with pytest.raises(CorruptData, match="found no file"):
        store.open_state()


def test_every_flipped_byte_and_every_cut_of_a_small_snapshot_is_found(tmp_path: Path) -> None:
    store = SnapshotFolder(tmp_path)
    store.write(meta(), [b"state"], cluster=b"ab")
    for path in list(tmp_path.iterdir()):
        whole = path.read_bytes()
        for place in range(len(whole)):
            for damaged in (whole[:place] + bytes([whole[place] ^ 0xFF]) + whole[place + 1:], whole[:place]):
                path.write_bytes(damaged)
                with pytest.raises(CorruptData):
                    SnapshotFolder(tmp_path).audit()
        path.write_bytes(whole)
    SnapshotFolder(tmp_path).audit()


def test_a_manifest_under_another_name_is_damage(tmp_path: Path) -> None:
    store = SnapshotFolder(tmp_path)
    store.write(meta(), [])
    (path,) = tmp_path.glob("*.snapshot")
    path.rename(path.with_name(path.name.replace("16-", "17-")))
    with pytest.raises(CorruptData, match="expected index 17, term 2, found 16, 2"):
        store.latest()


NUMBERS = st.integers(0, (1 << 64) - 1)
SMALL = st.integers(0, (1 << 32) - 1)


@given(st.builds(SnapshotManifest, index=NUMBERS, term=NUMBERS, machine_version=SMALL, cluster=st.binary(max_size=50),
                 live_count=NUMBERS, live_bytes=NUMBERS, live_crc=SMALL, state_bytes=NUMBERS, state_crc=SMALL))
def test_a_manifest_reads_back(manifest: SnapshotManifest) -> None:
    assert decode_manifest(encode_manifest(manifest), "x") == manifest


def test_a_manifest_of_a_later_version_is_unsupported(tmp_path: Path) -> None:
    body = bytearray(encode_manifest(SnapshotManifest.of(1, 1, LIVE.at_most(1), state_bytes=0, state_crc=0))[:-4])
    body[8] = 2
    with pytest.raises(Unsupported, match="version 2"):
        decode_manifest(bytes(body) + crc32(body).to_bytes(4, "little"), "x")


# -- leftovers


def test_opening_removes_what_a_crash_left_and_nothing_else(tmp_path: Path) -> None:
    SnapshotFolder(tmp_path).write(meta(), [])
    before = names(tmp_path)
    stem = f"{30:020d}-{2:020d}"
    for name in (f"{stem}.state", f"{stem}.live", f"{stem}.live.tmp", f"{stem}.snapshot.tmp", "incoming.state",
                 "incoming.manifest.tmp"):
        (tmp_path / name).write_bytes(b"leftover")
    for name in ("README", "notes.state", f"{stem}.backup"):
        (tmp_path / name).write_bytes(b"not ours")
    SnapshotFolder(tmp_path)
    assert names(tmp_path) == sorted([*before, "README", "notes.state", f"{stem}.backup"])


# -- checkpoints


@pytest.mark.parametrize("kind", ["snapshot", "checkpoint"])
def test_what_the_disk_kept_from_being_removed_goes_with_the_next_one(kind: str, tmp_path: Path) -> None:
    """Whichever step is refused: nothing of an older one is left, and only its sync has one that is there refused."""
    def refuses(at: int) -> bool:
        folder, steps, refused = tmp_path / str(at), itertools.count(1), ""
        is_armed = False

        def step(request: Request, act: Callable[[], Any]) -> Any:
            if request.changes and is_armed and next(steps) == at:
                raise StorageError.from_os(OSError(5, "refused"), request.kind, request.path)
            return act()

        files = FailingFiles(FilesInFront(step))
        store = SnapshotFolder(folder, files=files, max_checkpoints=1)
        write = store.write if kind == "snapshot" else store.write_checkpoint
        write(meta(15), [b"older"])
        is_armed = True
        try:
            write(meta(16), [b"newer"])
            if kind == "snapshot":
                store.remove_older()
        except StorageError as error:
            refused = str(error)
        is_armed = False
        if kind == "checkpoint" and refused and len(store.checkpoints) == 2:
            assert refused.startswith("sync folder")
            before = files.count
            with pytest.raises(Stale):
                write(meta(16), [b"newer"])
            assert files.count == before + 1
        write(meta(17), [b"newest"])
        store.remove_older()
        assert {name.partition("-")[0] for name in names(folder)} == {f"{17:020d}"}, at
        return next(steps) > at

    assert next(at for at in itertools.count(1) if not refuses(at)) > 10


def test_a_checkpoint_serves_a_fast_start_and_becomes_a_snapshot_by_one_renaming(tmp_path: Path) -> None:
    files = FailingFiles()
    store = SnapshotFolder(tmp_path, files=files)
    store.write(meta(10, live=IndexSet()), [b"snapshot"])
    for index in (12, 14, 16):
        store.write_checkpoint(meta(index, live=LIVE.at_most(index)), [b"checkpoint %d" % index])
    found = store.latest()
    assert found is not None
    assert found.index == 10
    assert [manifest.index for manifest in store.checkpoints] == [12, 14, 16]
    assert state_of(store, store.checkpoints[-1]) == b"checkpoint 16"
    before = files.count
    assert store.promote(15).index == 14
    assert files.count - before == 2
    assert store.latest() == meta(14, live=LIVE.at_most(14))
    assert [manifest.index for manifest in store.checkpoints] == [16]
    store.remove_older()
    assert len(names(tmp_path)) == 6
    assert state_of(store) == b"checkpoint 14"
    store.audit()
    with pytest.raises(NotFound, match="no checkpoint at or below 15"):
        store.promote(15)
    with pytest.raises(Stale, match="checkpoint 16 is not above 16"):
        store.write_checkpoint(meta(), [])


def test_a_snapshot_of_a_checkpoints_entry_promotes_it(tmp_path: Path) -> None:
    store = SnapshotFolder(tmp_path)
    store.write_checkpoint(meta(), [b"written once"])

    asked = [1]
    store.write(meta(), (b"%d" % asked.pop() for _ in range(1)))
    assert asked == [1]
    assert state_of(store) == b"written once"
    assert store.checkpoints == ()


def test_a_damaged_checkpoint_is_not_promoted(tmp_path: Path) -> None:
    store = SnapshotFolder(tmp_path)
    store.write_checkpoint(meta(), [b"old"])
    live_file(tmp_path).unlink()
    with pytest.raises(LiveSetLost):
        store.promote(16)
    assert store.latest() is None
    store.write(meta(), [b"anew"])
    assert state_of(store) == b"anew"
    store.audit()


def test_old_checkpoints_go(tmp_path: Path) -> None:
    store = SnapshotFolder(tmp_path, max_checkpoints=2)
    for index in range(20, 27):
        store.write_checkpoint(meta(index), [])
    assert [manifest.index for manifest in store.checkpoints] == [25, 26]
    none = SnapshotFolder(tmp_path / "none", max_checkpoints=0)
    none.write_checkpoint(meta(), [])
    assert len(none.checkpoints) <= 1


# -- receiving


def manifest_for(state: bytes, index: int = 16) -> SnapshotManifest:
    return SnapshotManifest.of(index, 2, LIVE, state_bytes=len(state), state_crc=crc32(state), cluster=b"c")


def test_a_received_snapshot_is_put_in_force_whole(tmp_path: Path) -> None:
    state = bytes(range(256)) * 10
    store = SnapshotFolder(tmp_path)
    store.write(meta(10, live=IndexSet()), [b"before"])
    store.write_checkpoint(meta(), [b"a checkpoint of the same entry, from here"])
    incoming = store.receive(manifest_for(state))
    incoming.write(0, state[:1000])
    incoming.write(1000, state[1000:])
    found = store.latest()
    assert found is not None
    assert found.index == 10
    store.adopt(incoming, LIVE)
    store.remove_older()
    assert store.latest() == meta()
    assert store.manifest == manifest_for(state)
    assert state_of(store) == state
    assert len(names(tmp_path)) == 3
    store.audit()
    with pytest.raises(Closed):
        incoming.write(0, b"")


def test_what_was_received_is_gone_on_with_after_a_restart(tmp_path: Path) -> None:
    state = bytes(range(256)) * 10
    store = SnapshotFolder(tmp_path)
    incoming = store.receive(manifest_for(state))
    incoming.write(0, state[:1000])
    incoming.close()
    staged = SnapshotFolder(tmp_path).staged()
    assert staged is not None
    assert (staged.meta, staged.state_bytes) == (manifest_for(state), 1000)
    store = SnapshotFolder(tmp_path)
    incoming = store.receive(manifest_for(state), keep_bytes=700)
    incoming.write(700, state[700:])
    store.adopt(incoming, LIVE)
    assert state_of(store) == state
    assert store.staged() is None


@pytest.mark.parametrize("keep_bytes", [0, 700])
def test_a_disk_that_refuses_to_receive_keeps_no_file_open(keep_bytes: int, tmp_path: Path) -> None:
    state = bytes(2000)
    for fail_at in itertools.count(1):
        folder = tmp_path / f"{fail_at}"
        store = SnapshotFolder(folder)
        with contextlib.closing(store.receive(manifest_for(state))) as incoming:
            incoming.write(0, state[:900])
        files = FailingFiles(fail_at=fail_at)
        receiving = SnapshotFolder(folder, files=UnsyncedFiles())
        receiving._files = files  # noqa: SLF001 - of a disk that was well when the folder was opened
        try:
            receiving.receive(manifest_for(state), keep_bytes=keep_bytes).close()
        except StorageError:
            assert open_files(folder) == []
        else:
            assert fail_at > 1
            break


def test_what_is_not_the_announced_snapshot_is_never_put_in_force(tmp_path: Path) -> None:
    state = b"0123456789"
    store = SnapshotFolder(tmp_path)
    for written, live in ((state[:-1], LIVE), (b"012345678?", LIVE), (state, IndexSet()),
                          (state, IndexSet.from_sorted([5, 10, 14]))):
        incoming = store.receive(manifest_for(state))
        incoming.write(0, written)
        with pytest.raises(CorruptData):
            store.adopt(incoming, live)
        assert store.latest() is None
        incoming.discard()
    assert names(tmp_path) == []
    store.write(meta(), [])
    with pytest.raises(Stale):
        store.adopt(store.receive(manifest_for(state)), LIVE)
    assert "incoming" in repr(names(tmp_path))


# -- deaths as they happen


@given(st.lists(st.tuples(st.sampled_from("abcd"), st.booleans(), st.integers(1, 3)), max_size=60), st.integers(1, 7))
def test_deaths_reported_as_they_happen_give_what_a_walk_over_the_state_gives(
        commands: list[tuple[str, bool, int]], every: int) -> None:
    walked, tracker, index = PlacesMachine(), LiveTracker(), 0
    for number, (key, is_put, step) in enumerate(commands):
        index += step
        before = walked.places.get(key)
        walked.apply(Entry(index, 1, (key if is_put else "-" + key).encode()))
        tracker.apply(index)
        tracker.mark_dead([place for place in (before, None if is_put else index) if place is not None])
        if number % every == 0:
            assert tracker.live_set() == IndexSet.from_iterable(walked.live_indexes())
    assert tracker.applied == (index if commands else -1)


def test_the_machine_is_not_asked_and_the_base_survives_a_restart() -> None:
    live = IndexSet.range(1, 1_000_000)
    tracker = LiveTracker(live, applied=1_000_000)
    tracker.apply(1_000_001)
    tracker.mark_dead([17])
    assert tracker.live_set() == IndexSet.from_runs([(1, 16), (18, 1_000_001)])


def test_wrong_reports_are_refused_and_change_nothing() -> None:
    tracker = LiveTracker(LIVE, applied=20)
    with pytest.raises(Unsorted):
        tracker.apply(20)
    tracker.mark_dead([5, 5])
    with pytest.raises(InvalidInput, match="2 deaths were reported, of 1 entries, 0 of which were not alive"):
        tracker.live_set()
    tracker = LiveTracker(LIVE, applied=20)
    tracker.mark_dead([7, 6])
    with pytest.raises(InvalidInput, match="2 of which were not alive, the lowest is 6"):
        tracker.live_set()


def test_what_is_in_force_can_be_asked_while_it_changes(tmp_path: Path) -> None:
    """A listing that runs while one manifest comes and another goes may show neither of them."""
    folder = SnapshotFolder(tmp_path, files=UnsyncedFiles())
    folder.write(SnapshotMeta(0, 1, IndexSet()), [b"state"])

    def renew() -> None:
        for index in range(1, 400):
            folder.write(SnapshotMeta(index, 1, IndexSet()), [b"state"])
            folder.remove_older()

    writing = threading.Thread(target=renew)
    writing.start()
    newest = 0
    while writing.is_alive():
        manifest = folder.manifest
        assert manifest is not None
        assert manifest.index >= newest
        newest = manifest.index
    writing.join()


@pytest.mark.parametrize("read", ["read_live_set", "StateReader"])
def test_a_snapshot_that_is_replaced_while_it_is_read_is_no_damage(read: str, tmp_path: Path,
                                                                   monkeypatch: pytest.MonkeyPatch) -> None:
    """Another thread asks what is in force, just as the log puts a newer one in force and removes the older."""
    folder = SnapshotFolder(tmp_path / "snapshots")
    folder.write(SnapshotMeta(1, 1, IndexSet()), [b"old"])
    original = getattr(snapshot_folder, read)

    def replaced(*arguments: Any) -> Any:
        if len(written) < 1:
            written.append(2)
            folder.write(SnapshotMeta(2, 1, IndexSet()), [b"new"])
            folder.remove_older()
        return original(*arguments)

    written: list[int] = []
    monkeypatch.setattr(snapshot_folder, read, replaced)
    assert folder.latest() == SnapshotMeta(2 if written else 1, 1, IndexSet())
    with folder.open_state() as state:
        assert list(state.pieces()) == [b"new"]
