# SPDX-License-Identifier: Apache-2.0
"""A follower on a disk that refuses or dies, among leaders that come and go, snapshots that arrive, and other settings.

Two leaders with snapshots of their own take turns, and one that was deposed may not know it. The process of the
follower ends, or its node loses power, and with that what was not synced; it votes, and is asked what it answered.
Leaders and the follower are real logs, the network is a list of frames. A plain model says what Raft allows: which
entry each (index, term) is, which entry lies before it, and what the follower has acknowledged.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import shutil
from collections.abc import Callable, Coroutine, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import attrs

from compactlib.clock import ManualClock
from compactlib.errors import CompactlibError, Conflict, NotFound, Stale, StorageError
from compactlib.files import Files
from compactlib.hosting.transfer.receiving import ReceivingLog
from compactlib.hosting.transfer.sending import _Source
from compactlib.indexset import IndexSet
from compactlib.outcome import Done, Failed, Skipped
from compactlib.raftlog import (
    CostPolicy,
    DropDead,
    Entry,
    LogOptions,
    MissingEntry,
    RaftLog,
    RaPolicy,
    SeedPolicy,
    SegmentLimits,
    SnapshotFolder,
    StoreOptions,
    open_log,
)
from compactlib.raftlog.errors import LogStopped
from compactlib.raftlog.model.values import AppendAnswer, AppendEntries
from compactlib.raftlog.replication.effects import (
    Effect,
    Finished,
    InstallSnapshot,
    ReadEntries,
    ReadState,
    Send,
    TransferLimits,
)
from compactlib.raftlog.replication.errors import AbortReason, TransferAborted
from compactlib.raftlog.replication.messages import FromReceiver, FromSender, Installed, Refusal
from compactlib.raftlog.replication.receiver import SnapshotReceiver
from compactlib.raftlog.replication.sender import SnapshotSender
from compactlib.raftlog.replication.wire import LENGTH_BYTES, decode, encode
from compactlib.raftlog.snapshots.model import SnapshotManifest
from compactlib.raftlog.snapshots.state_reader import StateReader
from compactlib.testing import RecordingFiles
from compactlib.testing.crash import write_image
from compactlib.testing.disk_model import CrashModel, fates_of
from tests.raftlog.wrapped_files import UnsyncedFiles
from tests.tools.faults.plan import Crash, FailingFiles, Fault

LIMITS = TransferLimits(chunk_bytes=48, window_bytes=150, max_entry_bytes=4000, resend_seconds=1.0, sender_seconds=30.0,
                        receiver_seconds=20.0)
KEYS = "abcdefg"


def some_options(rng: random.Random, files: Files) -> StoreOptions:
    """Settings, others at each opening."""
    choose = rng.choice
    log = LogOptions(limits=SegmentLimits(max_entries=choose((1, 2, 4, 9)), max_bytes=choose((60, 300, 5000))),
                     files=files, clock=ManualClock(1.0), keep_links_seconds=choose((0.0, 5.0)), run_id=lambda: "run",
                     policy=choose((SeedPolicy(), SeedPolicy(max_sources=2), RaPolicy(), CostPolicy())))
    return StoreOptions(log=log, background=False, max_wal_bytes=choose((200, 900, 5000)),
                        keep_trailing=choose((0, 0, 1, 3, 8)), max_unflushed_files=choose((0, 1, 4)),
                        max_queued_bytes=choose((0, 100, 1 << 20)), max_memtable_entries=choose((400, 1000)))


class Machine:
    """Key to the index of its last value; the values stay in the log."""

    def __init__(self) -> None:
        self.places: dict[str, int] = {}
        self.applied = 0

    def apply(self, entry: Entry) -> None:
        assert entry.index == self.applied + 1
        self.applied = entry.index
        key = chr(entry.payload[0])
        if entry.payload[1:2] == b"-":
            self.places.pop(key, None)
        else:
            self.places[key] = entry.index

    def dump(self) -> bytes:
        return json.dumps(self.places, sort_keys=True).encode()

    def load(self, index: int, state: bytes) -> None:
        self.places, self.applied = json.loads(state), index

    @property
    def live(self) -> IndexSet:
        return IndexSet.from_iterable(self.places.values())


class Paper:
    """What Raft says of the group: each entry, the one before it, and how far the present leader has committed."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self.made: dict[tuple[int, int], Entry] = {}
        self.term_before: dict[tuple[int, int], int] = {}
        self.log: list[Entry] = []
        self.term = 1
        self.committed = 0

    def write(self, branch: list[Entry], term: int, count: int) -> None:
        """A leader adds entries to its log."""
        for _ in range(count):
            index, before = len(branch) + 1, branch[-1].term if branch else 0
            payload = self._rng.choice(KEYS).encode() + self._rng.choice((b"-", b"=", b"=", b"=")) + \
                b"%d" % term + self._rng.randbytes(self._rng.choice((0, 5, 40)))
            entry = Entry(index, term, payload)
            assert (index, term) not in self.made
            self.made[index, term], self.term_before[index, term] = entry, before
            branch.append(entry)

    def machine_at(self, index: int) -> Machine:
        machine = Machine()
        for entry in self.log[:index]:
            machine.apply(entry)
        return machine


def _message(branch: list[Entry], prev: int) -> AppendEntries:
    prev = min(max(prev, 0), len(branch))
    return AppendEntries(prev, branch[prev - 1].term if prev else 0, tuple(branch[prev:prev + 20]))


class Wire:
    """A line that hands on what is written to it."""

    def __init__(self, answered: Callable[[bytes], object]) -> None:
        self._answered = answered

    def is_closing(self) -> bool:
        return False

    def write(self, data: bytes) -> None:
        self._answered(data)

    async def drain(self) -> None:
        """Nothing waits."""


class Task:
    """Of `HereAndNow`: as `KeptTask`."""

    def __init__(self, task: asyncio.Task[Any]) -> None:
        self.task = task

    @property
    def has_ended(self) -> bool:
        return self.task.done()


class HereAndNow:
    """As `AsyncWork`, without threads: what blocks is done at once, or when other tasks have had their turns."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self.tasks: list[Task] = []
        self.wrong: list[AssertionError] = []

    async def call(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        for _ in range(self._rng.choice((0, 0, 0, 1, 4, 20))):
            await asyncio.sleep(0)
        return function(*args, **kwargs)

    def spawn(self, coroutine: Coroutine[Any, Any, object], what: str) -> Task:
        self.tasks.append(Task(asyncio.create_task(coroutine)))
        return self.tasks[-1]

    def note(self, error: BaseException, what: str) -> None:
        if isinstance(error, AssertionError):
            self.wrong.append(error)

    async def settle(self) -> None:
        """Until no task goes on; what one has ended with is raised."""
        while self.tasks:
            await asyncio.wait([self.tasks[0].task])
            self.tasks.pop(0).task.result()


class Taking(ReceivingLog):
    """Notes which changes of the disk put a snapshot in force."""

    world: FollowerWorld

    def let_go(self) -> None:
        """Close the files, as the end of a process does."""
        if self._incoming is not None:
            self._incoming.close()

    def _on_disk(self, effect: Effect) -> None:
        world = self.world
        before = world.changes + world.files.count
        world.installing |= isinstance(effect, InstallSnapshot)
        super()._on_disk(effect)
        if isinstance(effect, InstallSnapshot):
            world.installing = False
            world.installs += range(before + 1, world.changes + world.files.count + 1)


@attrs.frozen
class Met:
    """What one of the changes of the follower's disk meets.

    Attributes:
        at: which, counted over the follower's life.
        number: the system's error; `None`: the process ends.
        short: whether half of a write arrives.
        power: whether each end of the process is one of its node, too, which loses of what was not synced some.
    """

    at: int
    number: int | None
    short: bool = False
    power: bool = False


class Leading:
    """A member that leads now and then, with snapshots of its own."""

    def __init__(self, name: str, folder: Path, rng: random.Random) -> None:
        self.name, self.folder, self.rng = name, folder, rng
        folder.mkdir()
        self.files = UnsyncedFiles()
        self.open()

    def open(self) -> None:
        self.states = SnapshotFolder(self.folder / "states", files=self.files)
        self.log = open_log(str(self.folder / "log"), some_options(self.rng, self.files))
        self.log.attach(self.states)

    def begin(self, entries: Sequence[Entry]) -> None:
        """It is elected, so it has all that is committed: its log is made to be this one."""
        log = self.log
        same = max(log.state.index, 0)
        while same < min(log.contiguous_through, len(entries)) and log.term_of(same + 1) == entries[same].term:
            same += 1
        log.reset(same)
        log.append(entries[same:])
        log.sync()


class Sending:
    """One transfer of a leader, who may be deposed and not know."""

    def __init__(self, by: Leading, term: int, transfer: int, log_id: str) -> None:
        row = by.log.state
        self.by = by
        self.source = _Source.held(by.log, by.states)
        self.machine = SnapshotSender(self.source.manifest, self.source.live, term=term, transfer=transfer,
                                      log_id=log_id, limits=LIMITS,
                                      kept_from=None if row.live == self.source.live else row.kept_from)


class FollowerWorld:
    """See the module.

    Args:
        folder: for both logs.
        rng: chooses everything.
        fault: of the follower's disk, counted over its life.
    """

    def __init__(self, folder: Path, rng: random.Random, fault: Met | None) -> None:
        self.folder, self.rng, self._fault = folder, rng, fault
        self.files: FailingFiles
        self.log: RaftLog
        self.taking: Taking
        self.place = folder / "follower"
        self.place.mkdir()
        self.loses_power = fault is not None and fault.power
        self.recorder: RecordingFiles | None = None
        # What the log may be if the process ends in the middle of a message; no message, no choice.
        self.maybe: list[dict[int, Entry]] = []
        # Whether one was being put in force, and is not.
        self.installing = False
        self.changes = 0
        self.installs: list[int] = []
        self.paper = Paper(rng)
        self.leaders = [Leading(name, folder / name, rng) for name in ("one", "another")]
        self.leads = self.leaders[0]
        self.work = HereAndNow(rng)
        self.now = 0.0
        self.frames: list[tuple[bool, bytes]] = []
        self.transfers: dict[int, Sending] = {}
        self.senders: dict[int, str] = {}
        self.earlier: list[tuple[int, AppendEntries]] = []
        # What the follower has answered for: its terms, its votes, its snapshot.
        self.said_term = 0
        self.votes: dict[int, str] = {}
        self.said_row = -1
        self.mine: dict[int, Entry] = {}
        self.row = -1
        self.ended: list[str] = []
        self.machine = Machine()
        self.open_follower()
        self.first_changes = self.files.count

    # -- the leader

    @property
    def leader(self) -> RaftLog:
        return self.leads.log

    def lead(self) -> None:
        """The leader writes, and commits some of it."""
        log = self.paper.log
        before = len(log)
        self.paper.write(log, self.paper.term, self.rng.randrange(1, 7))
        self.leader.append(log[before:])
        self.leader.sync()
        self.commit()

    def commit(self) -> None:
        # Of an earlier term only with one of its own.
        least = min((entry.index for entry in self.paper.log if entry.term == self.paper.term), default=None)
        if least is not None and self.rng.random() < 0.8:
            self.paper.committed = max(self.paper.committed, self.rng.randint(least, len(self.paper.log)))

    def leader_snapshot(self) -> None:
        """A snapshot, a checkpoint or a promotion, and perhaps a compaction."""
        index = self.rng.randint(max(self.paper.committed - 3, 0), self.paper.committed)
        if index > max(self.leader.state.index, 0):
            machine = self.paper.machine_at(index)
            if self.rng.random() < 0.3:
                with contextlib.suppress(Stale):
                    self.leader.checkpoint(index, machine.live, [machine.dump()])
            else:
                self.leader.snapshot(index, machine.live, [machine.dump()])
        elif self.leads.states.checkpoints and self.paper.committed:
            with contextlib.suppress(CompactlibError):
                self.leader.promote(self.paper.committed)

    def leader_compact(self) -> None:
        if self.rng.random() < 0.5:
            self.leader.flush()
        self.leader.compact(policy=self.rng.choice((DropDead(), self.leader.policy)))
        self.leader.reclaim()

    def leader_reopens(self) -> None:
        """It starts anew, with other settings; its transfer is forgotten."""
        self.let_senders_go(self.leads)
        self.leader.close()
        self.leads.open()

    def election(self) -> None:
        """Another leader; before it one whom hardly anybody followed, but the follower."""
        paper, rng = self.paper, self.rng
        stale, branch = paper.term + 1, paper.log[:rng.randint(paper.committed, len(paper.log))]
        paper.write(branch, stale, rng.randrange(1, 8))
        paper.term += 2
        del paper.log[rng.randint(paper.committed, len(paper.log)):]
        if rng.random() < 0.5:
            self.let_senders_go(self.leads)
        self.leads = rng.choice(self.leaders)
        self.leads.begin(paper.log)
        if rng.random() < 0.7 and self.is_idle and self.observe(stale):
            self.replicate(lambda prev: _message(branch, prev), lambda answer: max(answer.next_index, 1))

    # -- ordinary entries

    @property
    def is_idle(self) -> bool:
        return self.taking.stage == "idle"

    def observe(self, term: int) -> bool:
        """The follower hears of a term in an ordinary message; whether it is not an old one."""
        if term < self.log.hard_state.term:
            return False
        if term > self.log.hard_state.term:
            self.log.record_hard_state(term)
        self.said_term = term
        self.receiver.observe_term(term)
        return True

    async def vote(self) -> None:
        """A candidate asks for the follower's vote, in the term that has one, or in one that nobody led."""
        term, name = self.rng.choice((self.log.hard_state.term, self.paper.term, self.paper.term - 1)), \
            self.rng.choice("xyz")
        with contextlib.suppress(Conflict, Stale):
            given = self.log.record_hard_state(term, name)
            assert (given.term, given.voted_for) == (term, name)
            assert self.votes.setdefault(term, name) == name, f"two have its vote in term {term}"
            self.said_term = max(self.said_term, term)
        await self.taking.observe_term(self.log.hard_state.term)
        await self.work.settle()

    def taken(self, entries: Sequence[Entry]) -> dict[int, Entry]:
        """What the follower's log is once it has these, by Raft's rule."""
        mine = dict(self.mine)
        for entry in entries:
            if entry.index > max(self.log.state.index, 0) and mine.get(entry.index) != entry:
                mine = {index: held for index, held in mine.items() if index < entry.index}
                mine[entry.index] = entry
        return mine

    def replicate(self, message_after: Callable[[int], AppendEntries | None],
                  next_index: Callable[[AppendAnswer], int]) -> None:
        """A leader sends what comes behind the follower's log, or something else, by AppendEntries."""
        prev = self.log.contiguous_through if self.rng.random() < 0.8 else self.rng.randint(0, self.log.last_index + 1)
        for _ in range(len(self.paper.made) + 2):
            message = message_after(prev)
            if message is None:
                # Only the snapshot helps.
                return
            # Entries of one term come with one write, which is there or not.
            ends = [number for number, (entry, after) in enumerate(pairwise(message.entries), 1)
                    if entry.term != after.term or self.loses_power]
            self.maybe = [self.taken(message.entries[:end]) for end in (0, *ends, len(message.entries))]
            answer = self.log.append_entries(*message)
            expected, self.maybe = self.maybe[-1], []
            if answer.success:
                self.mine = expected
                assert answer.match_index >= message.prev_index + len(message.entries)
                self.earlier.append((self.said_term, message))
                return
            prev = next_index(answer) - 1
        raise AssertionError("it never takes what a leader sends")

    def follow(self) -> None:
        """The present leader sends entries, and says what is committed."""
        if self.is_idle and self.observe(self.paper.term):
            most = self.rng.choice((1, 100, 1000))
            self.replicate(lambda prev: self.leader.entries_after(prev, max_bytes=most), self.leader.next_index)
            self.apply()
            for term, message in self.rng.sample(self.earlier, min(len(self.earlier), 2)):
                if term == self.paper.term:
                    # It comes once more.
                    assert self.log.append_entries(*message).success

    def apply(self) -> None:
        through = self.log.contiguous_through
        while self.machine.applied < min(self.paper.committed, through):
            index = self.machine.applied + 1
            if self.mine.get(index) != self.paper.log[index - 1]:
                break
            entry = self.log.read(index)
            assert entry == self.paper.log[index - 1], (entry, self.paper.log[index - 1])
            self.machine.apply(entry)

    # -- the follower

    def open_follower(self) -> None:
        """With other settings; the machine begins with the newest snapshot."""
        fault, before = self._fault, self.changes
        inner: Files = UnsyncedFiles()
        self.is_dead = False
        if self.loses_power:
            inner = self.recorder = self.recorder or RecordingFiles(self.place, inner)
        if self.loses_power or fault is None or fault.at <= before:
            at = 0 if fault is None else fault.at - before
            self.files = FailingFiles(inner, faults=lambda number: Fault.CRASH_BEFORE if number == at or self.is_dead
                                      else None)
        elif fault.number is None:
            at = fault.at - before
            self.files = FailingFiles(inner, faults=lambda number: Fault.CRASH_BEFORE if number == at else None)
        else:
            self.files = FailingFiles(inner, fail_at=fault.at - before, errno=fault.number, short_write=fault.short)
        self.states = SnapshotFolder(self.place / "states", files=self.files)
        self.log = open_log(str(self.place / "log"), some_options(self.rng, self.files))
        try:
            manifest = self.states.manifest
            self.log.attach(self.states, applied=0 if manifest is None else manifest.index)
            self.machine = Machine()
            if manifest is not None:
                with self.states.open_state(manifest) as state:
                    self.machine.load(manifest.index, b"".join(state.pieces()))
            self.take_up()
        except BaseException:
            with contextlib.suppress(StorageError, LogStopped, Crash):
                self.log.close()
            raise

    def take_up(self) -> None:
        self.work = HereAndNow(self.rng)
        self.clock = ManualClock(1.0)
        self.receiver = SnapshotReceiver(term=max(self.log.hard_state.term, 1), life=self.rng.getrandbits(64),
                                         limits=LIMITS, staged=self.states.staged())
        self.taking = Taking(self.log, self.states, self.receiver, self.work, self, asyncio.Semaphore(4),  # type: ignore[arg-type]
                             lambda: self.machine.applied, self.installed, self.term_seen)
        self.taking.world = self
        self.line = Wire(self.answered)

    def monotonic(self) -> float:
        return self.now

    def installed(self, manifest: SnapshotManifest, state: StateReader) -> None:
        if self.rng.random() < 0.05:
            raise RuntimeError("the host is not ready")
        self.machine.load(manifest.index, b"".join(state.pieces()))

    def term_seen(self, term: int) -> None:
        if self.rng.random() < 0.05:
            raise RuntimeError("the host is not ready")
        if term > self.log.hard_state.term:
            self.log.record_hard_state(term)

    def shut(self) -> None:
        self.changes += self.files.count
        for task in self.work.tasks:
            task.task.cancel()
        self.taking.let_go()
        self.is_dead = self.loses_power
        with contextlib.suppress(StorageError, LogStopped, Crash):
            self.log.close()
        self.lose_power()

    def lose_power(self) -> None:
        """The node may lose power, too: of what was not synced, its disk has some, now or after the next end."""
        if self.recorder is None or self.rng.random() < 0.4:
            return
        recording, self.recorder = self.recorder.recording(), None
        model = CrashModel(recording)
        model.advance_to(len(recording.operations))
        fates = self.rng.choice(list(fates_of(model, self.rng, 12)))
        shutil.rmtree(self.place)
        self.place.mkdir()
        write_image(model.image(fates), self.place)

    def restart(self) -> None:
        """The follower's process ends, in whatever it was, and another begins; the disk is well by then."""
        self.shut()
        self.work.tasks.clear()
        for _ in range(3):
            try:
                self.open_follower()
                break
            except (StorageError, LogStopped, Crash):
                self.changes += self.files.count
                self.lose_power()
        else:
            raise AssertionError("it cannot be opened")
        self.look_after_restart()

    def look_after_restart(self) -> None:
        """What was acknowledged is there; of what was under way, all of it or a part."""
        log, row = self.log, self.log.state.index
        held = {entry.index: entry for entry in log.entries(max(row, 0) + 1)}
        expected = {index: entry for index, entry in self.mine.items() if index > row}
        self.check_matching()
        lost = [index for index in expected if held.get(index) != expected[index]]
        hard = log.hard_state
        assert hard.term >= self.said_term, f"term {self.said_term} was answered, {hard} is what is kept"
        assert self.votes.get(hard.term) in (None, hard.voted_for), f"{self.votes} have its votes, kept is {hard}"
        assert row >= self.said_row, f"snapshot {self.said_row} was said to be in force, it is {row}"
        if self.maybe:
            possible = [{index: entry for index, entry in each.items() if index > row} for each in self.maybe]
            assert held in possible, (held, possible)
        elif lost and row <= self.row:
            # A snapshot came, and was not put in force: what contradicts it may be gone, and what lies behind that.
            wrong = next((index for index in expected if self.paper.log[index - 1:index] != [expected[index]]), None)
            assert self.installing, f"acknowledged: {lost} are gone of {sorted(expected)}"
            assert wrong is not None, f"acknowledged, and the leader's: {lost} are gone of {sorted(expected)}"
            assert wrong <= min(*lost, self.paper.committed), (
                f"acknowledged: {lost} are gone of {sorted(expected)}, of which {wrong} is not the leader's, and "
                f"{self.paper.committed} are committed")
        elif lost:
            last = self.mine.get(row)
            assert last is None or last.term != log.state.term, f"acknowledged: {lost} are gone of {sorted(expected)}"
        if row < self.row:
            raise AssertionError(f"the row went back from {self.row} to {row}")
        self.row = row
        self.mine = held
        self.maybe = []
        self.installing = False
        self.apply()

    # -- transfers

    def send(self) -> None:
        """The leader begins to send its newest snapshot."""
        self.let_senders_go(self.leads)
        if self.leads.states.manifest is None:
            return
        transfer = self.rng.getrandbits(64)
        self.transfers[transfer] = Sending(self.leads, self.paper.term, transfer, self.log.log_id)
        self.senders[transfer] = self.leads.name
        self.by_sender(transfer, self.transfers[transfer].machine.start(self.now))

    def let_senders_go(self, by: Leading) -> None:
        for transfer, sending in list(self.transfers.items()):
            if sending.by is by:
                self.let_go(transfer)

    def let_go(self, transfer: int) -> None:
        self.transfers.pop(transfer).source.release()

    def by_sender(self, transfer: int, effects: list[Effect]) -> None:
        for effect in effects:
            sending = self.transfers.get(transfer)
            if sending is None:
                return
            sender, source = sending.machine, sending.source
            match effect:
                case Send(message):
                    self.frames.append((True, encode(message)))
                case ReadEntries():
                    self.by_sender(transfer, sender.entries_read(effect, source.read_entries(effect), self.now))
                case ReadState(offset, length):
                    self.by_sender(transfer, sender.state_read(effect, source.state.read(offset, length), self.now))
                case Finished(outcome):
                    self.judge(outcome, source.manifest)
                    self.let_go(transfer)

    def judge(self, outcome: object, manifest: SnapshotManifest) -> None:
        """What the leader is told is true."""
        if isinstance(outcome, Done):
            self.ended.append("done")
            in_force = self.states.manifest
            assert in_force is not None
            assert in_force.index >= manifest.index
            assert self.log.state.index >= manifest.index
            assert self.machine.applied >= manifest.index
        elif isinstance(outcome, Skipped):
            self.ended.append("skipped")
        else:
            assert isinstance(outcome, Failed)
            assert isinstance(outcome.error, TransferAborted), outcome
            self.ended.append(outcome.error.reason.name)
            assert outcome.error.reason not in (AbortReason.DAMAGED, AbortReason.LIVE_MISSING, AbortReason.SOURCE_LOST,
                                                AbortReason.UNSUPPORTED, AbortReason.OTHER_SENDER), outcome

    async def deliver(self) -> None:
        """A frame comes: perhaps twice, late, or not at all."""
        if not self.frames:
            return
        chance, place = self.rng.random(), 0
        if self.rng.random() < 0.3:
            place = self.rng.randrange(min(len(self.frames), 4))
        to_follower, frame = self.frames[place] if chance < 0.05 else self.frames.pop(place)
        if 0.05 <= chance < 0.1:
            return
        message = decode(frame[LENGTH_BYTES:])
        if not to_follower:
            assert isinstance(message, FromReceiver)
            transfer = message.envelope.transfer
            if transfer in self.transfers:
                self.by_sender(transfer, self.transfers[transfer].machine.receive(message, self.now))
            return
        assert isinstance(message, FromSender)
        await self.taking.take_in(message, self.senders[message.envelope.transfer], self.line,  # type: ignore[arg-type]
                                  has_room=self.rng.random() < 0.9)
        if self.rng.random() < 0.6:
            await self.work.settle()

    def answered(self, frame: bytes) -> None:
        """What the follower says has to be true from then on."""
        answer = decode(frame[LENGTH_BYTES:])
        self.frames.append((False, frame))
        if isinstance(answer, Installed):
            self.said_row = max(self.said_row, answer.index)
        assert isinstance(answer, Refusal) or answer.envelope.term <= max(self.log.hard_state.term, 1), (
            f"{answer} was answered, and term {self.log.hard_state.term} is what is kept")

    async def pass_time(self) -> None:
        self.now += self.rng.choice((0.3, 1.0, 2.5, 12.0))
        for transfer, sending in list(self.transfers.items()):
            self.by_sender(transfer, sending.machine.tick(self.now))
        await self.taking.tick()
        await self.work.settle()

    # -- one life

    async def step(self) -> None:
        """One thing happens."""
        chance, rng = self.rng.random(), self.rng
        if self.frames and chance < 0.6:
            for _ in range(rng.choice((1, 1, 5, 40))):
                await self.deliver()
        elif chance < 0.68:
            self.lead()
        elif chance < 0.72:
            self.follow()
        elif chance < 0.79:
            self.leader_snapshot()
        elif chance < 0.84:
            self.leader_compact()
        elif chance < 0.87:
            self.election()
        elif chance < 0.92:
            self.send()
        elif chance < 0.945:
            await self.pass_time()
        elif chance < 0.95:
            await self.vote()
        elif chance < 0.96:
            self.frames.clear()
        elif chance < 0.965:
            self.leader_reopens()
        else:
            self.follower_works()

    def follower_works(self) -> None:
        kind = self.rng.randrange(7)
        if kind == 0:
            self.log.flush()
        elif kind == 1:
            self.done(self.log.compact(policy=self.rng.choice((DropDead(), self.log.policy))))
        elif kind == 2:
            self.done(self.log.reclaim())
        elif kind == 3 and self.machine.applied > max(self.log.state.index, 0):
            self.log.snapshot(self.machine.applied, self.machine.live, [self.machine.dump()])
            self.row = self.log.state.index
        elif kind == 4 and self.machine.applied > max(self.log.state.index, 0):
            with contextlib.suppress(Stale):
                self.log.checkpoint(self.machine.applied, self.machine.live, [self.machine.dump()])
        elif kind == 5 and self.states.checkpoints:
            with contextlib.suppress(NotFound, Stale):
                self.row = self.log.promote(self.machine.applied).index
        elif kind == 6:
            raise Crash("killed between two steps")

    @staticmethod
    def done(outcome: object) -> None:
        if isinstance(outcome, Failed) and not isinstance(outcome.error, StorageError):
            error = outcome.error
            reports = getattr(getattr(error, "report", None), "failed", None)
            if not reports or not all(isinstance(group.error, StorageError) for group in reports):
                raise error

    async def live(self, steps: int) -> None:
        """A life, and then one in which all is well: the follower has to get there."""
        for number in range(steps):
            try:
                await self.step()
                is_well = self.log.stopped is None
            except (StorageError, LogStopped, Crash):
                is_well = False
            if not is_well:
                self.restart()
            self.check(fully=not is_well or number % 5 == 0)
        self.all_changes = self.changes + self.files.count
        self._fault = None
        self.restart()
        await self.end_well()

    async def end_well(self) -> None:
        """All is well from here on."""
        self.frames.clear()
        self.lead()
        for _ in range(40):
            if self.machine.applied >= self.paper.committed:
                break
            if self.is_idle:
                self.follow()
            self.send()
            for _ in range(3000):
                if not self.transfers:
                    break
                if self.frames:
                    await self.deliver()
                else:
                    await self.pass_time()
            else:
                raise AssertionError(f"the transfer does not end: {self.transfers}, {self.taking!r}")
            if not self.is_idle:
                self.now += 30.0
                await self.pass_time()
            self.check()
        else:
            raise AssertionError("the follower does not get there")
        self.check()
        for leader in self.leaders:
            self.let_senders_go(leader)
            assert leader.log.status().pins == 0
            leader.log.close()
        assert self.log.status().pins == 0
        self.shut()

    # -- what holds at each step

    def check(self, *, fully: bool = True) -> None:
        """The follower holds what the model says, and only that."""
        if self.work.wrong:
            raise self.work.wrong[0]
        log, row = self.log, self.log.state.index
        if row > self.row:
            # A snapshot has come.
            held = self.mine.get(row)
            if held is None or held.term != log.state.term:
                self.mine = {}
            self.row = row
        assert row == self.row
        assert not self.is_idle or self.machine.applied >= row, (
            f"the log is dead up to {row}, and the machine stands at {self.machine.applied}")
        manifest = self.states.manifest
        if self.is_idle:
            assert (-1 if manifest is None else manifest.index) == row
            assert log.status().pins == 0
        self.mine = {index: entry for index, entry in self.mine.items() if index > row}
        if self.installing:
            # What contradicts the snapshot, and what lies behind that, may be gone.
            wrong = next((index for index, entry in self.mine.items()
                          if self.paper.log[index - 1:index] != [entry]), None)
            if wrong is not None and log.last_index < max(self.mine):
                assert log.last_index >= wrong - 1
                self.mine = {index: entry for index, entry in self.mine.items() if index <= log.last_index}
        if self.taking.stage != "installing":
            for index in range(max(row, 0) + 1, max(log.last_index, max(self.mine, default=0)) + 2):
                assert log.read(index) == self.mine.get(index, MissingEntry(index)), (
                    index, log.read(index), self.mine.get(index))
        if not fully or self.taking.stage == "installing":
            return
        self.check_matching()
        machine = self.paper.machine_at(self.machine.applied)
        assert self.machine.places == machine.places
        for index in self.machine.places.values():
            assert log.read(index) == self.paper.log[index - 1], (index, log.read(index))
        log.audit()
        self.leader.audit()
        self.states.audit()

    def check_matching(self) -> None:
        """Each entry of the follower has the one before it that it had when a leader made it."""
        log, row = self.log, self.log.state
        for index in range(max(row.index, 0) + 1, log.contiguous_through + 1):
            entry = log.read(index)
            assert isinstance(entry, Entry)
            assert entry == self.paper.made[index, entry.term]
            before = log.term_of(index - 1) if index > 1 else 0
            wanted = self.paper.term_before[index, entry.term]
            assert before == wanted, f"entry {index} of term {entry.term} follows one of term {before}, not of {wanted}"
