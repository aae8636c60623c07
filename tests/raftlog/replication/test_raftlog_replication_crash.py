# SPDX-License-Identifier: Apache-2.0
"""A follower is crashed at every step of a transfer and of the installation, under every loss."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from compactlib.app.kv_machine import KvMachine, Put
from compactlib.errors import StorageError
from compactlib.files import Files, LocalFiles
from compactlib.files.checksum import crc32
from compactlib.indexset import IndexSet
from compactlib.outcome import Done
from compactlib.raftlog import Entry, LogOptions, SegmentLimits, SnapshotFolder, StoreOptions, open_log
from compactlib.raftlog.model.gap import KeptGap
from compactlib.raftlog.replication.effects import (
    AwaitEntries,
    BeginInstall,
    DiscardInstall,
    Effect,
    Finished,
    InstallSnapshot,
    ReadEntries,
    ReadState,
    Send,
    TransferLimits,
    TransferOutcome,
    WriteEntries,
    WriteState,
)
from compactlib.raftlog.replication.install import put_aside, put_in_force
from compactlib.raftlog.replication.messages import FromReceiver, TransferMessage
from compactlib.raftlog.replication.receiver import SnapshotReceiver
from compactlib.raftlog.replication.sender import SnapshotSender
from compactlib.raftlog.snapshots.model import SnapshotManifest
from compactlib.raftlog.snapshots.staging import IncomingState
from compactlib.testing import RecordingFiles, explore_crashes, record
from examples.raft_kv import KvStore
from tests.raftlog.wrapped_files import UnsyncedFiles
from tests.tools.faults.plan import Crash, FailingFiles, Fault

LIMITS = TransferLimits(chunk_bytes=60, window_bytes=120)


def options(files: Files) -> StoreOptions:
    return StoreOptions(background=False, log=LogOptions(limits=SegmentLimits(max_entries=4), files=files,
                                                         keep_links_seconds=0.0, run_id=lambda: "run"))


class Install:
    """Both machines of one transfer, joined without a network; the follower's disk work is done at once."""

    def __init__(self, leader: KvStore, follower: KvStore | Behind) -> None:
        manifest = leader.snapshots.manifest
        assert manifest is not None
        self.leader, self.follower = leader, follower
        self.live = leader.snapshots.live_set(manifest)
        self.sender = SnapshotSender(manifest, self.live, term=1, transfer=1, log_id="log", limits=LIMITS)
        self.receiver = SnapshotReceiver(term=1, life=1, limits=LIMITS, staged=follower.snapshots.staged())
        self.incoming: IncomingState | None = None
        self.outcome: TransferOutcome | None = None
        self.letters: deque[TransferMessage] = deque()
        self.now = 0.0

    def run(self) -> None:
        self.carry(self.sender.start(self.now))
        while self.outcome is None:
            if not self.letters:
                deadline = self.sender.deadline
                assert deadline is not None
                self.now = deadline
                self.carry(self.sender.tick(self.now))
                continue
            message = self.letters.popleft()
            if isinstance(message, FromReceiver):
                self.carry(self.sender.receive(message, self.now))
            else:
                applied = self.follower.machine.applied
                self.carry(self.receiver.receive(message, self.now, last_applied=applied))

    def carry(self, effects: Iterable[Effect]) -> None:
        for effect in effects:
            self.carry_one(effect)

    def carry_one(self, effect: Effect) -> None:
        log, store = self.follower.log, self.follower.snapshots
        match effect:
            case Send(message):
                self.letters.append(message)
            case ReadEntries(indexes, _):
                entry = self.leader.log.read(indexes.first)
                assert isinstance(entry, Entry)
                self.carry(self.sender.entries_read(effect, [entry], self.now))
            case ReadState(offset, length):
                with self.leader.snapshots.open_state() as state:
                    self.carry(self.sender.state_read(effect, state.read(offset, length), self.now))
            case BeginInstall(manifest, keep_bytes):
                self.incoming = store.receive(manifest, keep_bytes=keep_bytes)
            case WriteEntries(previous, entries):
                assert self.incoming is not None
                put_aside(self.incoming, previous, entries)
            case WriteState(offset, data):
                assert self.incoming is not None
                self.incoming.write(offset, data)
            case AwaitEntries(last):
                assert self.incoming is not None
                self.incoming.sync()
                self.carry(self.receiver.entries_durable(last, self.now))
            case InstallSnapshot(manifest, live):
                assert self.incoming is not None
                put_in_force(log, store, self.incoming, manifest, live)
                self.carry(self.receiver.installed(self.now))
            case DiscardInstall():
                raise AssertionError(effect)
            case Finished(outcome):
                self.outcome = outcome


class Members:
    """A leader with a snapshot, and what a follower that has some of it must hold before and after."""

    def __init__(self, folder: Path) -> None:
        rng = random.Random(5)
        self.leader = KvStore(str(folder / "leader"), options(UnsyncedFiles()), with_worker=False)
        self.leader.write([Put(f"k{rng.randrange(6)}", b"old %d" % number) for number in range(10)])
        self.prefix = [self.leader.log.read(index) for index in range(10)]
        self.before = self.leader.items()
        self.leader.write([Put(f"k{rng.randrange(9)}", b"new %d" % number) for number in range(20)])
        self.leader.snapshot()
        self.after = self.leader.items()
        self.index = self.leader.machine.applied

    def follow(self, folder: Path, files: Files) -> KvStore:
        """A follower that has applied the first ten entries, and taken a snapshot of its own."""
        follower = KvStore(str(folder / "follower"), options(files), with_worker=False)
        if follower.log.last_index < 0:
            follower.log.append(entry for entry in self.prefix if isinstance(entry, Entry))
            follower.log.sync()
            follower.catch_up()
            follower.snapshot()
        return follower


@pytest.mark.parametrize("limit", [pytest.param(3, id="ordinary"),
                                   pytest.param(400, id="soak", marks=pytest.mark.soak)])
def test_a_crash_at_any_step_leaves_the_old_state_or_the_new_one(limit: int, tmp_path: Path) -> None:
    members = Members(tmp_path)
    place = tmp_path / "disk"
    place.mkdir()
    members.follow(place, UnsyncedFiles()).close()

    def work(folder: Path, files: RecordingFiles) -> None:
        follower = KvStore(str(folder / "follower"), options(files), with_worker=False)
        install = Install(members.leader, follower)
        install.run()
        assert isinstance(install.outcome, Done), install.outcome
        files.acknowledge("installed")
        follower.log.append([(members.index + 1, 1, members.prefix[0].payload)])  # type: ignore[union-attr]
        follower.log.sync()
        files.acknowledge("appended")
        follower.log.flush()
        follower.compact()

    def check(folder: Path, promised: Sequence[Any]) -> None:
        for _ in range(2):
            check_once(folder, promised)

    def check_once(folder: Path, promised: Sequence[Any]) -> None:
        with KvStore(str(folder / "follower"), options(UnsyncedFiles()), with_worker=False) as follower:
            log = follower.log
            for index in range(10):
                assert isinstance(log.read(index), Entry) == (not log.state.is_dead(index))
            if "installed" in promised:
                assert log.state.index == members.index
            if "appended" in promised:
                assert log.last_index == members.index + 1
            if log.state.index == members.index:
                expected = dict(members.after)
                if log.last_index > members.index:
                    expected.update(old_first(members))
                assert follower.items() == expected
                assert log.state.live == IndexSet.from_iterable(
                    members.leader.machine.live_indexes())
                assert follower.snapshots.latest() is not None
            else:
                assert not promised
                assert log.state.index == 9
                assert {key: value for key, value in follower.items().items() if key in members.before}
                # Whatever was left of the transfer, the next one ends well.
                install = Install(members.leader, follower)
                install.run()
                assert isinstance(install.outcome, Done)
            log.segments.verify()
            follower.snapshots.audit()

    checked = explore_crashes(record(place, work), check, seed=1, limit_per_point=limit)
    assert checked > 40
    members.leader.close()


class Behind:
    """A follower whose log goes on behind what it has applied: acknowledged, and not known to be committed."""

    def __init__(self, folder: Path, files: Files, entries: Sequence[Entry], applied: int) -> None:
        self.snapshots = SnapshotFolder(folder / "snapshots", files=files)
        self.log = open_log(str(folder / "log"), options(files))
        self.machine = KvMachine()
        self.machine.begin_after(applied)
        if self.log.last_index < 0:
            self.log.append(entries)
            self.log.sync()
        self.log.attach(self.snapshots, applied=applied)


@pytest.mark.parametrize("limit", [pytest.param(2, id="ordinary"),
                                   pytest.param(100, id="soak", marks=pytest.mark.soak)])
@pytest.mark.parametrize(("last", "stale"), [(20, False), (35, False), (20, True)],
                         ids=["shorter", "longer", "stale"])
def test_a_crash_at_any_step_takes_nothing_back_that_does_not_contradict_the_snapshot(
        last: int, stale: bool, limit: int, tmp_path: Path) -> None:
    rng = random.Random(5)
    leader = KvStore(str(tmp_path / "leader"), options(UnsyncedFiles()), with_worker=False)
    leader.write([Put(f"k{number if number in (12, 14) else rng.randrange(6)}", b"%d" % number)
                  for number in range(30)])
    held = [entry for entry in map(leader.log.read, range(30)) if isinstance(entry, Entry)]
    leader.snapshot()
    index, applied = leader.machine.applied, 9
    live = leader.machine.live_set()
    assert any(applied < each <= 15 for each in live), "some of what comes is in the follower's log"
    assert any(each > 20 for each in live), "and some is not"
    # Terms above the snapshot's are the next leader's; a stale end is an earlier leader's, whom nobody followed.
    more = [Entry(number, 2, b"later") for number in range(30, 40)]
    mine = [*held, *more][:last]
    if stale:
        mine = [Entry(entry.index, 0, b"?") if entry.index > 15 else entry for entry in mine]
    place = tmp_path / "disk"
    place.mkdir()
    follower = Behind(place, UnsyncedFiles(), mine, applied)
    follower.log.close()

    def work(folder: Path, files: RecordingFiles) -> None:
        follower = Behind(folder, files, (), applied)
        install = Install(leader, follower)
        install.run()
        assert isinstance(install.outcome, Done), install.outcome
        files.acknowledge("installed")

    def check(folder: Path, promised: Sequence[Any]) -> None:
        follower = Behind(folder, UnsyncedFiles(), (), applied)
        log = follower.log
        if log.state.index == index:
            assert [log.read(each) for each in live] == [held[each] for each in live]
            assert log.last_index == max(last - 1, index)
            assert [log.read(entry.index) for entry in mine if entry.index > index] == mine[index + 1:]
        else:
            assert not promised
            sure = mine[:16] if stale else mine
            assert log.last_index >= len(sure) - 1
            assert [log.read(entry.index) for entry in sure] == sure
            if log.last_index == last - 1:
                assert [log.read(entry.index) for entry in mine] == mine
        log.close()

    checked = explore_crashes(record(place, work), check, seed=1, limit_per_point=limit)
    assert checked > 20
    leader.close()


@pytest.mark.parametrize(("stale", "sent", "through", "refused"), [
    ([2] * 4, 25, 24, 24), ([2] * 9, 25, 24, 24), ([3] * 4, 25, 25, 24), ([2, 2], 25, 22, 22), ([], 21, 21, 20),
    ([1, 3], 23, 23, 22), ([1, 3], 24, 22, 22)],
    ids=["right behind them", "in their place", "of one leader", "further on", "behind what is applied", "of its term",
         "behind a gap"])
@pytest.mark.parametrize("is_killed", [True, False])
def test_an_entry_that_came_with_a_snapshot_never_follows_one_of_another_leader(
        stale: list[int], sent: int, through: int, refused: int, is_killed: bool, tmp_path: Path) -> None:
    """The log would claim, by its last entry, to be the leader's, with entries in it that nobody has committed."""
    index, live, applied, state = 30, IndexSet.from_sorted([12, sent]), 20, b"state"
    held = [Entry(number, 1, b"applied") for number in range(1, applied + 1)]
    held += [Entry(applied + number, term, b"of nobody") for number, term in enumerate(stale, 1)]
    log = open_log(str(tmp_path / "log"), options(LocalFiles()))
    log.append(held)
    log.sync()
    manifest = SnapshotManifest.of(index, 3, live, state_bytes=len(state), state_crc=crc32(state))
    files = FailingFiles()
    snapshots = SnapshotFolder(tmp_path / "snapshots", files=files)
    incoming = snapshots.receive(manifest)
    put_aside(incoming, applied, (Entry(sent, 3, b"live"),))
    incoming.write(0, state)
    incoming.sync()
    fault = Fault.CRASH_BEFORE if is_killed else Fault.REFUSED
    ends = FailingFiles(faults=lambda number: fault)
    with mock.patch.object(files, "step", ends.step), pytest.raises(Crash if is_killed else StorageError):
        put_in_force(log, snapshots, incoming, manifest, live)
    incoming.close()
    log.close()
    with open_log(str(tmp_path / "log"), options(LocalFiles())) as log:
        log.attach(SnapshotFolder(tmp_path / "snapshots"), applied=applied)
        assert (log.last_index, log.contiguous_through) == ((through,) * 2 if is_killed else (refused,) * 2)
        assert [log.read(entry.index) for entry in held[:min(log.last_index, sent - 1)]] == held[:min(
            log.last_index, sent - 1)]


def old_first(members: Members) -> dict[str, bytes]:
    """What the entry that is appended behind the snapshot does: the first command once more."""
    from compactlib.app.kv_machine import decode_command
    entry = members.prefix[0]
    assert isinstance(entry, Entry)
    command = decode_command(entry.payload)
    assert isinstance(command, Put)
    return {command.key: command.value}


class Adjoining:
    """A follower whose log ends at 24, in a term of its own, and a snapshot of which it lacks entry 25."""

    INDEX, APPLIED, LIVE, STATE = 30, 20, IndexSet.from_sorted([12, 25, 28]), b"state"
    HELD = (*(Entry(number, 1, b"applied") for number in range(1, 21)),
            *(Entry(number, 2, b"acknowledged") for number in range(21, 25)))
    SENT = (Entry(25, 3, b"live"), Entry(28, 3, b"live"))

    def __init__(self, folder: Path, files: Files) -> None:
        self.snapshots = SnapshotFolder(folder / "snapshots", files=files)
        self.log = open_log(str(folder / "log"), options(files))
        if self.log.last_index < 0:
            self.log.append(self.HELD)
            self.log.sync()

    def install(self) -> None:
        manifest = SnapshotManifest.of(self.INDEX, 3, self.LIVE, state_bytes=len(self.STATE),
                                       state_crc=crc32(self.STATE))
        incoming = self.snapshots.receive(manifest)
        put_aside(incoming, self.APPLIED, self.SENT)
        incoming.write(0, self.STATE)
        incoming.sync()
        put_in_force(self.log, self.snapshots, incoming, manifest, self.LIVE)

    def begin_anew(self) -> None:
        found = self.snapshots.manifest
        self.log.attach(self.snapshots, applied=self.APPLIED if found is None else found.index)


@pytest.mark.parametrize("limit", [pytest.param(2, id="ordinary"),
                                   pytest.param(100, id="soak", marks=pytest.mark.soak)])
def test_what_is_acknowledged_stays_although_the_next_entry_comes_with_a_snapshot(limit: int, tmp_path: Path) -> None:
    """The last entry may be the leader's, and the follower has said that it has it."""
    place = tmp_path / "disk"
    place.mkdir()
    Adjoining(place, UnsyncedFiles()).log.close()
    notes: list[bool] = []

    def work(folder: Path, files: RecordingFiles) -> None:
        follower = Adjoining(folder, files)
        follower.begin_anew()
        follower.install()
        files.acknowledge("installed")

    def check(folder: Path, promised: Sequence[Any]) -> None:
        notes.append((folder / "log/logs/log/GAP").exists())
        follower = Adjoining(folder, UnsyncedFiles())
        log = follower.log
        if log.state.index < follower.INDEX and follower.snapshots.manifest is None:
            assert not promised
            assert log.contiguous_through == 24
            assert log.status().gap_after == (24 if log.last_index > 24 else None)
        follower.begin_anew()
        if log.state.index == follower.INDEX:
            assert [log.read(entry.index) for entry in follower.SENT] == [*follower.SENT]
            assert log.contiguous_through == log.last_index == 30
        else:
            assert log.contiguous_through == log.last_index == 24
            assert tuple(log.entries()) == follower.HELD
        log.close()

    checked = explore_crashes(record(place, work), check, seed=1, limit_per_point=limit)
    assert checked > 20
    assert len(set(notes)) == 2


@pytest.mark.parametrize("limit", [pytest.param(2, id="ordinary"),
                                   pytest.param(100, id="soak", marks=pytest.mark.soak)])
@pytest.mark.parametrize("knows_applied", [True, False])
@pytest.mark.parametrize("message", [(24, 2, [Entry(25, 3, b"live"), Entry(26, 3, b"later")]),
                                     (22, 2, [Entry(23, 3, b"a"), Entry(24, 3, b"b"), Entry(25, 3, b"live")])],
                         ids=["of its leader", "of another"])
def test_what_follows_such_an_entry_by_another_way_is_no_gap(
        message: tuple[int, int, list[Entry]], knows_applied: bool, limit: int, tmp_path: Path) -> None:
    """A crash had left the snapshot's entries in the log, and then the leader sends what follows."""
    place = tmp_path / "disk"
    place.mkdir()
    follower = Adjoining(place, UnsyncedFiles())
    with mock.patch.object(follower.snapshots, "adopt", side_effect=Crash("killed")), pytest.raises(Crash):
        follower.install()
    follower.log.close()
    previous, term, entries = message
    old = Adjoining.HELD
    new = (*old[:previous], *entries)

    def work(folder: Path, files: RecordingFiles) -> None:
        log = Adjoining(folder, files).log
        assert (log.contiguous_through, log.status().gap_after) == (24, 24)
        if knows_applied:
            log.attach(applied=20)
        assert log.append_entries(previous, term, entries).success
        files.acknowledge("appended")
        log.close()

    def check(folder: Path, promised: Sequence[Any]) -> None:
        with open_log(str(folder / "log"), options(UnsyncedFiles())) as log:
            through = log.contiguous_through
            found = tuple(log.entries(0, through))
            assert found == new or (found == old and not promised), (through, promised)
            log.attach(applied=20)
            assert log.last_index == through
            assert log.append_entries(through, found[-1].term, [Entry(through + 1, 4, b"next")]).success
        with open_log(str(folder / "log"), options(UnsyncedFiles())) as log:
            assert (log.last_index, log.contiguous_through) == (through + 1, through + 1)
            assert not (folder / "log/logs/log/GAP").exists()

    checked = explore_crashes(record(place, work), check, seed=1, limit_per_point=limit)
    assert checked > 3


def test_a_gap_that_cannot_be_noted_lets_nothing_in(tmp_path: Path) -> None:
    follower = Adjoining(tmp_path, LocalFiles())
    refused = StorageError(operation="write", path="GAP", errno=5)
    with mock.patch.object(KeptGap, "note", side_effect=refused), \
            pytest.raises(StorageError, match="GAP"):
        follower.install()
    assert tuple(follower.log.entries()) == follower.HELD
    assert follower.log.append_entries(24, 2, [Entry(25, 3, b"live")]).success
    follower.log.close()
