# SPDX-License-Identifier: Apache-2.0
"""A leader, a follower and a bad network in memory, to play transfers of snapshots in.

The leader goes on applying commands, taking snapshots and dropping what is dead, except what is pinned; the follower
loses what is not durable when it restarts. Every message passes through `wire`.
"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence

import attrs

from compactlib.files.checksum import crc32
from compactlib.indexset import IndexSet
from compactlib.outcome import Done, Failed, Skipped
from compactlib.raftlog import Entry
from compactlib.raftlog.errors import LiveIndexMissing
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
    TermSeen,
    TransferLimits,
    TransferOutcome,
    WriteEntries,
    WriteState,
)
from compactlib.raftlog.replication.errors import TransferAborted
from compactlib.raftlog.replication.messages import (
    EntryChunk,
    FromReceiver,
    FromSender,
    LiveChunk,
    Offer,
    Progress,
    Refusal,
    StateChunk,
    TransferMessage,
    Withdrawal,
)
from compactlib.raftlog.replication.receiver import SnapshotReceiver
from compactlib.raftlog.replication.sender import SnapshotSender
from compactlib.raftlog.replication.wire import LENGTH_BYTES, decode, encode
from compactlib.raftlog.snapshots.model import SnapshotManifest, StagedState

LIMITS = TransferLimits(chunk_bytes=64, window_bytes=200, max_entry_bytes=4000, resend_seconds=1.0, sender_seconds=30.0,
                        receiver_seconds=20.0)


def manifest_of(index: int, term: int, live: IndexSet, state: bytes, *, version: int = 0) -> SnapshotManifest:
    """What a snapshot of these parts says of itself."""
    return SnapshotManifest.of(index, term, live, machine_version=version, state_bytes=len(state),
                               state_crc=crc32(state))


@attrs.frozen
class Taken:
    """A snapshot with its parts."""

    manifest: SnapshotManifest
    live: IndexSet
    state: bytes


def places_of(state: bytes) -> dict[str, int]:
    """The machine that a snapshot's state describes."""
    return {str(key): int(place) for key, place in json.loads(state).items()}


class Leader:
    """Applies puts and deletes of a few keys; a snapshot keeps each key's place, the values stay in the log."""

    def __init__(self, rng: random.Random, term: int = 1) -> None:
        self.rng = rng
        self.term = term
        self.log: dict[int, Entry] = {}
        self.places: dict[str, int] = {}
        self.last = 0
        self.pinned: dict[int, IndexSet] = {}
        self.snapshot = self.take()

    def apply(self, count: int) -> None:
        """Write and apply some commands."""
        for _ in range(count):
            self.last += 1
            key = self.rng.choice("abcdefghij")
            value = self.rng.randbytes(self.rng.choice((0, 5, 40, 150)))
            self.log[self.last] = Entry(self.last, self.term, key.encode() + value)
            self.places[key] = self.last
            if self.rng.random() < 0.2:
                self.places.pop(self.rng.choice("abcdefghij"), None)

    def take(self) -> Taken:
        """Take a snapshot, and drop what is dead by it and not pinned."""
        live = IndexSet.from_iterable(self.places.values())
        state = json.dumps(self.places, sort_keys=True).encode()
        self.snapshot = Taken(manifest_of(self.last, self.term, live, state), live, state)
        kept = live.union(*self.pinned.values())
        self.log = {index: entry for index, entry in self.log.items() if index in kept}
        return self.snapshot


class Follower:
    """A log of which a part is durable, and the machine that was made of it."""

    def __init__(self) -> None:
        self.log: dict[int, Entry] = {}
        self.durable: set[int] = set()
        self.last_applied = -1
        self.places: dict[str, int] = {}
        self.aside: dict[int, Entry] = {}
        self.is_aside_durable = False
        self.staging = bytearray()
        self.staged_manifest: SnapshotManifest | None = None
        self.term = 1
        self.installed: list[SnapshotManifest] = []

    def reset(self, last: int) -> None:
        """Take back everything above `last`."""
        self.log = {index: entry for index, entry in self.log.items() if index <= last}
        self.durable &= self.log.keys()

    def crash(self) -> None:
        """Lose what is not durable, and (as recovery does) every sparse leftover above what was applied."""
        self.log = {index: entry for index, entry in self.log.items() if index in self.durable}
        self.aside = {}
        self.reset(self.last_applied)

    def install(self, manifest: SnapshotManifest, live: IndexSet) -> None:
        """Put the staged snapshot in force."""
        state = bytes(self.staging)
        assert manifest.index > self.last_applied
        assert (len(state), crc32(state)) == (manifest.state_bytes, manifest.state_crc)
        assert self.is_aside_durable, "installed before what was received was durable"
        if any(self.log.get(index) != entry for index, entry in self.aside.items()):
            self.reset(self.last_applied)
        self.log.update(self.aside)
        self.durable |= self.log.keys()
        self.aside = {}
        missing = [index for index in live if index not in self.log]
        if missing:
            raise LiveIndexMissing("gone", missing=len(missing), first=missing[0])
        self.places = places_of(state)
        self.log = {index: entry for index, entry in self.log.items() if index in live}
        self.last_applied = manifest.index
        self.installed.append(manifest)

    def follow(self, leader: Leader, count: int) -> None:
        """Get some entries in the ordinary way, if the leader still has them all."""
        wanted = range(self.last_applied + 1, self.last_applied + 1 + count)
        if self.last_applied < 0 or not all(index in leader.log for index in wanted):
            return
        for index in wanted:
            entry = leader.log[index]
            self.log[index] = entry
            self.durable.add(index)
            self.last_applied = index
            self.places[chr(entry.payload[0])] = index


def told(message: TransferMessage) -> str:
    """A message in a few words."""
    name = type(message).__name__.removesuffix("Chunk").lower()
    if isinstance(message, Progress):
        return f"{name} {message.position.phase.name.lower()} {message.position.offset}"
    if isinstance(message, EntryChunk):
        return f"{name} {', '.join(str(entry.index) for entry in message.entries)} after {message.previous}"
    if isinstance(message, LiveChunk | StateChunk):
        return f"{name} {message.offset} to {message.offset + len(message.data)}"
    if isinstance(message, Refusal | Withdrawal):
        return f"{name} {message.reason.name.lower()}"
    return name


@attrs.define
class Letter:
    """A frame under way, to the follower or back."""

    to_follower: bool
    frame: bytes


class World:
    """One leader that sends its snapshot to one follower.

    Args:
        rng: for the commands, the transfers' numbers, and `shuffle`d networks.
        commands: what the leader has applied before the first snapshot.
    """

    def __init__(self, rng: random.Random, commands: int = 30, limits: TransferLimits = LIMITS) -> None:
        self.rng = rng
        self.limits = limits
        self.now = 0.0
        self.leader = Leader(rng)
        self.leader.apply(commands)
        self.leader.take()
        self.follower = Follower()
        self.network: list[Letter] = []
        self.slow_disk: list[AwaitEntries] = []
        self.disk_is_slow = False
        self.reads: list[ReadEntries | ReadState] = []
        self.reads_are_slow = False
        self.receiver = SnapshotReceiver(term=1, life=rng.getrandbits(64), limits=limits)
        self.trace: list[str] = []
        self.sender: SnapshotSender
        self.sent: Taken
        self.sender_outcome: TransferOutcome | None = None
        self.receiver_outcomes: list[TransferOutcome] = []

    # -- events

    def start_sender(self) -> None:
        """A new sender with the leader's newest snapshot; one that is under way is forgotten, as by a restart."""
        self.sent = self.leader.take()
        transfer = self.rng.getrandbits(64)
        # The pins of a sender that died go with it.
        self.leader.pinned = {transfer: self.sent.live}
        self.sender = SnapshotSender(self.sent.manifest, self.sent.live, term=self.leader.term, transfer=transfer,
                                     log_id="log", limits=self.limits)
        self.sender_outcome = None
        self.offers = 0
        self.reads.clear()
        self.by_sender(self.sender.start(self.now))

    def restart_receiver(self, *, keep_staged: bool = True, tear_staged: bool = False) -> None:
        """The follower dies and comes back; what it had staged may be torn."""
        self.follower.crash()
        self.slow_disk.clear()
        if tear_staged and self.follower.staging:
            self.follower.staging[self.rng.randrange(len(self.follower.staging))] ^= 1
        staged = None
        if keep_staged and self.follower.staged_manifest is not None and self.follower.staging:
            staged = StagedState(self.follower.staged_manifest, len(self.follower.staging),
                                 crc32(self.follower.staging))
        self.receiver = SnapshotReceiver(term=self.follower.term, life=self.rng.getrandbits(64), limits=self.limits,
                                         staged=staged)

    def compact_both(self, commands: int) -> None:
        """The leader goes on and takes a snapshot; the follower forgets what is dead by its own."""
        self.leader.apply(commands)
        self.leader.take()

    def new_term(self) -> None:
        """Another election; the leader wins again and hears of it only by the answers."""
        self.follower.term += 1
        self.by_receiver(self.receiver.observe_term(self.follower.term))

    def pass_time(self, seconds: float) -> None:
        """Let time pass."""
        self.look_at_clock(self.now + seconds)

    def look_at_clock(self, now: float) -> None:
        """Let both sides see that it is `now`."""
        self.now = now
        self.by_sender(self.sender.tick(self.now))
        self.by_receiver(self.receiver.tick(self.now))

    def deliver(self, place: int, *, keep: bool = False) -> None:
        """Hand over the letter at `place`; with `keep` it will come once more."""
        letter = self.network[place] if keep else self.network.pop(place)
        message = decode(letter.frame[LENGTH_BYTES:])
        self.trace.append(f"{'->' if letter.to_follower else '<-'} {told(message)}")
        if letter.to_follower:
            assert isinstance(message, FromSender)
            # Now and then other logs have the memory.
            self.offers += isinstance(message, Offer)
            has_room = self.offers % 7 != 5
            self.by_receiver(self.receiver.receive(message, self.now, last_applied=self.follower.last_applied,
                                                   has_room=has_room))
        else:
            assert isinstance(message, FromReceiver)
            self.by_sender(self.sender.receive(message, self.now))

    def let_disk_catch_up(self) -> None:
        """The follower's disk makes durable what it was asked to."""
        for asked in self.slow_disk[:]:
            self.slow_disk.remove(asked)
            self.make_durable(asked)

    # -- effects

    def by_sender(self, effects: Sequence[Effect]) -> None:
        """Carry out what the sender asks for."""
        for effect in effects:
            match effect:
                case Send(message):
                    self.network.append(Letter(True, encode(message)))
                case ReadEntries() | ReadState():
                    self.reads.append(effect)
                    if not self.reads_are_slow:
                        self.answer_reads()
                case Finished(outcome):
                    self.sender_outcome = outcome
                    self.leader.pinned.clear()
                    self.reads.clear()
                case _:
                    raise AssertionError(effect)

    def answer_reads(self) -> None:
        """The leader's disk answers what it was asked."""
        while self.reads:
            asked = self.reads.pop(0)
            if isinstance(asked, ReadEntries):
                self.by_sender(self.sender.entries_read(asked, self.read_entries(asked), self.now))
            else:
                data = self.sent.state[asked.offset:asked.offset + asked.length]
                self.by_sender(self.sender.state_read(asked, data, self.now))

    def read_entries(self, asked: ReadEntries) -> list[Entry]:
        """As many as fit, at least one."""
        entries: list[Entry] = []
        for index in asked.indexes:
            entry = self.leader.log[index]
            if entries and sum(len(each.payload) for each in (*entries, entry)) > asked.max_bytes:
                break
            entries.append(entry)
        return entries

    def by_receiver(self, effects: Sequence[Effect]) -> None:
        """Carry out what the receiver asks for."""
        follower = self.follower
        for effect in effects:
            match effect:
                case Send(message):
                    self.network.append(Letter(False, encode(message)))
                case TermSeen(term):
                    assert term > follower.term or term == self.leader.term
                    follower.term = max(term, follower.term)
                case BeginInstall(manifest, keep_bytes):
                    follower.aside, follower.is_aside_durable = {}, False
                    del follower.staging[keep_bytes:]
                    follower.staged_manifest = manifest
                case WriteEntries(previous, entries):
                    assert previous == max(follower.aside, default=follower.last_applied)
                    assert all(entry.index > follower.last_applied for entry in entries)
                    follower.aside.update((entry.index, entry) for entry in entries)
                case WriteState(offset, data):
                    assert offset <= len(follower.staging)
                    follower.staging[offset:offset + len(data)] = data
                case AwaitEntries():
                    self.slow_disk.append(effect)
                    if not self.disk_is_slow:
                        self.let_disk_catch_up()
                case InstallSnapshot(manifest, live):
                    follower.install(manifest, live)
                    self.by_receiver(self.receiver.installed(self.now))
                case DiscardInstall(manifest, keep_state):
                    follower.aside = {}
                    if not keep_state:
                        follower.staging.clear()
                        follower.staged_manifest = None
                case Finished(outcome):
                    self.receiver_outcomes.append(outcome)
                case _:
                    raise AssertionError(effect)

    def make_durable(self, asked: AwaitEntries) -> None:
        """What the follower has put aside is durable now."""
        self.follower.is_aside_durable = True
        self.by_receiver(self.receiver.entries_durable(asked.last, self.now))

    # -- judgement

    def settle(self) -> None:
        """From here on the network and the disk are well: the transfer must end."""
        self.disk_is_slow = self.reads_are_slow = False
        self.let_disk_catch_up()
        self.answer_reads()
        for _ in range(2000):
            if self.sender_outcome is not None:
                break
            if self.network:
                self.deliver(0)
            else:
                deadline = self.sender.deadline
                assert deadline is not None
                self.look_at_clock(max(deadline, self.now))
        else:
            raise AssertionError(f"the transfer did not end: {self.trace[-30:]}")
        self.judge()

    def judge(self) -> None:
        """Equal state, or a named abort."""
        outcome, follower = self.sender_outcome, self.follower
        if isinstance(outcome, Failed):
            assert isinstance(outcome.error, TransferAborted), outcome
            assert outcome.error.reason.name
        else:
            assert isinstance(outcome, Done | Skipped), outcome
            assert follower.last_applied >= self.sent.manifest.index
        self.judge_follower()

    def judge_follower(self) -> None:
        """Whatever happened: the follower is what the log up to its last applied entry makes of it."""
        follower = self.follower
        if follower.installed and follower.installed[-1] == self.sent.manifest == self.leader.snapshot.manifest and \
                follower.last_applied == self.sent.manifest.index:
            assert follower.places == places_of(self.sent.state)
        for key, place in follower.places.items():
            assert follower.log[place].payload[:1] == key.encode(), (key, place)
            known = self.leader.log.get(place)
            assert known is None or known == follower.log[place]
