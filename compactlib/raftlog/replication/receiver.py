# SPDX-License-Identifier: Apache-2.0
"""The receiving side of transfers, without I/O: messages, what the disk has done, and time in; effects out.

```
idle ──Offer──▶ receiving: live set, entries, state ──all there──▶ syncing ──entries durable──▶ installing ──▶ idle
  ▲                  │                                                │                             │
  └── discarded ◀────┴── higher term, newer snapshot, silence, damage, Withdrawal, host ────────────┘
```

A chunk counts only if it begins where the last one ended; every message is answered with where the receiver is. So what
is lost, repeated or reordered does no harm, and nothing is written twice. Nothing reaches the log before all of it is
here and whole: a transfer that ends earlier leaves the log as it was.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import attrs

from compactlib.errors import CompactlibError, CorruptData, InvalidInput, StorageError
from compactlib.files.checksum import crc32
from compactlib.indexset.index_set import IndexSet
from compactlib.outcome import Done, Failed
from compactlib.raftlog.errors import LiveIndexMissing
from compactlib.raftlog.replication.course import Course, needed_entries
from compactlib.raftlog.replication.effects import (
    AwaitEntries,
    BeginInstall,
    DiscardInstall,
    Effect,
    Finished,
    InstallSnapshot,
    Send,
    TermSeen,
    TransferLimits,
    TransferStats,
    WriteEntries,
    WriteState,
)
from compactlib.raftlog.replication.errors import AbortReason, TransferAborted
from compactlib.raftlog.replication.messages import (
    EntryChunk,
    Envelope,
    FromSender,
    Installed,
    LiveChunk,
    Offer,
    Phase,
    Position,
    Probe,
    Progress,
    Refusal,
    StateChunk,
    TransferMessage,
    Unknown,
    Wait,
    Withdrawal,
)
from compactlib.raftlog.snapshots.model import SnapshotManifest, StagedState

_MIN_LIVE_BYTES = len(IndexSet().to_bytes())

ReceiverStage: TypeAlias = Literal["idle", "receiving", "syncing", "installing"]


@attrs.define
class _Transfer:
    """One transfer under way."""

    meta: SnapshotManifest
    transfer: int
    attempt: int
    term: int
    last_applied: int
    began_at: float
    course: Course
    position: Position
    state_crc: int
    live_data: bytearray = attrs.field(factory=bytearray)
    live: IndexSet | None = None
    last_entry: int = -1
    entries: int = 0
    payload_bytes: int = 0
    attempts: int = 1
    ignored: int = 0
    wants_offer: bool = False


class SnapshotReceiver:
    """Takes one snapshot at a time, from the leader. Used by one thread at a time.

    While a transfer is on, the host applies nothing and appends nothing else to the log.

    Args:
        term: the highest term that the host knows.
        life: a number for this object, chosen at random, 64 bits.
        machine_versions: the lowest and the highest machine version whose state the host can restore.
        limits: sizes and times.
        staged: what an earlier try left.
    """

    def __init__(self, *, term: int, life: int, machine_versions: tuple[int, int] = (0, (1 << 32) - 1),
                 limits: TransferLimits | None = None, staged: StagedState | None = None) -> None:
        self._term = term
        self._life = life
        self._machine_versions = machine_versions
        self._limits: TransferLimits = limits or TransferLimits()
        self._staged = staged
        self._leader: tuple[int, str] = -1, ""
        self._stage: ReceiverStage = "idle"
        self._now: _Transfer | None = None
        self._heard_at = 0.0
        self._finished: tuple[int, int] | None = None
        # Whether the host is to be told the term, and whether the last message has told it.
        self._owes_term = self._tells_term = False

    # -- what the host says

    def receive(self, message: FromSender, now: float, *, last_applied: int, sender: str = "",
                has_room: bool = True) -> list[Effect]:
        """Take a message of a sender.

        Args:
            message: what came.
            now: seconds on any clock that does not go back, the same for every call.
            last_applied: the last index that the host's state machine has applied, -1 if none.
            sender: the name of the member that sent it. A term has one leader: in each the first name counts.
            has_room: whether there is memory for the live set of another transfer; else an offer that would begin one
                is to be made again later, by a `Wait`.
        """
        envelope = message.envelope
        if envelope.term < self._term:
            return [Send(Refusal(self._answer_to(envelope), AbortReason.HIGHER_TERM, last_applied,
                                 f"term {envelope.term} is over, {self._term} has begun"))]
        if envelope.term == self._leader[0] and sender != self._leader[1]:
            return [Send(Refusal(self._answer_to(envelope), AbortReason.OTHER_SENDER, last_applied,
                                 f"{self._leader[1]!r} sends in term {envelope.term}, and a term has one leader"))]
        effects: list[Effect] = []
        if isinstance(message, Offer):
            self._leader = envelope.term, sender
        if envelope.term > self._term:
            self._owes_term = True
            # A new leader may offer the very snapshot that is under way; whatever else it says, the old one is over.
            effects += [] if isinstance(message, Offer) else self.observe_term(envelope.term)
            self._term = envelope.term
        effects = [*self._owed_term(), *effects]
        if isinstance(message, Offer):
            return effects + self._offered(message, now, last_applied, has_room)
        return effects + self._told(message, now)

    def entries_durable(self, last: int, now: float) -> list[Effect]:
        """The answer to `AwaitEntries`, whose `last` this is."""
        current = self._now
        if current is None or self._stage != "syncing" or last < current.last_entry:
            return []
        self._heard_at = now
        assert current.live is not None, "the live set comes first"
        self._stage = "installing"
        return [InstallSnapshot(current.meta, current.live)]

    def installed(self, now: float) -> list[Effect]:
        """The answer to `InstallSnapshot`: the snapshot is in force, durably."""
        current = self._now
        if current is None or self._stage != "installing":
            raise InvalidInput(f"installed() answers InstallSnapshot; the receiver is {self._stage}")
        self._finished = current.transfer, current.meta.index
        stats = TransferStats(index=current.meta.index, attempts=current.attempts, entries=current.entries,
                              payload_bytes=current.payload_bytes, resends=0, ignored=current.ignored,
                              seconds=now - current.began_at)
        self._stage, self._now, self._staged = "idle", None, None
        # Told first: where the term cannot be kept, `Installed` is not said in it, but to the sender's next probe.
        return [Finished(Done(stats)), *self._owed_term(), Send(Installed(self._envelope(current), current.meta.index))]

    def failed(self, error: CompactlibError, effect: Effect) -> list[Effect]:
        """An effect could not be carried out: the transfer ends, and a message says so to the sender.

        A snapshot that is being installed meanwhile goes on, unless the effect is its `InstallSnapshot`.
        """
        named = ((LiveIndexMissing, AbortReason.LIVE_MISSING), (CorruptData, AbortReason.DAMAGED),
                 (StorageError, AbortReason.DISK_REFUSED))
        # It may be the term that was not kept: say it again.
        self._owes_term = self._owes_term or self._tells_term
        if self._stage == "installing" and not isinstance(effect, InstallSnapshot):
            return []
        reason = next((reason for kind, reason in named if isinstance(error, kind)), AbortReason.OUT_OF_STEP)
        return self._abort(reason, str(error))

    def observe_term(self, term: int) -> list[Effect]:
        """The host has seen a term. A higher one than the sender's ends the transfer; during the install it is kept."""
        if term <= self._term:
            return []
        self._term = term
        if self._now is None or self._stage == "installing":
            return []
        return self._abort(AbortReason.HIGHER_TERM, f"term {term} has begun, the sender leads in {self._now.term}",
                           keep=True)

    def cancel(self, reason: str) -> list[Effect]:
        """The host gives up; no effect once the snapshot is being installed."""
        return [] if self._stage == "installing" else self._abort(AbortReason.CANCELLED, reason)

    def tick(self, now: float) -> list[Effect]:
        """Let time pass; call when `deadline` has come, or more often."""
        deadline = self.deadline
        if deadline is None or now < deadline:
            return []
        return self._abort(AbortReason.TIMED_OUT, f"the sender was silent for {now - self._heard_at:.1f} seconds",
                           keep=True)

    # -- what the host may ask

    @property
    def stage(self) -> ReceiverStage:
        """Where the receiver stands."""
        return self._stage

    @property
    def meta(self) -> SnapshotManifest | None:
        """The snapshot that is being received."""
        return None if self._now is None else self._now.meta

    @property
    def transfers(self) -> frozenset[int]:
        """The transfers that the receiver knows: the one under way, and the last that ended well."""
        ended = () if self._finished is None else (self._finished[0],)
        return frozenset((*ended, *(() if self._now is None else (self._now.transfer,))))

    @property
    def deadline(self) -> float | None:
        """When to call `tick` next; `None` if there is nothing to wait for."""
        # The disk may take as long as it likes: only waiting for the sender is bounded.
        return self._heard_at + self._limits.receiver_seconds if self._stage == "receiving" else None

    def __repr__(self) -> str:
        return f"SnapshotReceiver({self._stage}{'' if self._now is None else f', snapshot {self._now.meta.index}'})"

    def _owed_term(self) -> list[Effect]:
        self._tells_term, self._owes_term = self._owes_term, False
        return [TermSeen(self._term)] if self._tells_term else []

    # -- offers

    def _offered(self, message: Offer, now: float, last_applied: int, has_room: bool) -> list[Effect]:
        envelope, meta, current = message.envelope, message.meta, self._now
        if current is None:
            if self._finished == (envelope.transfer, meta.index):
                return [Send(Installed(self._answer_to(envelope), meta.index))]
            return self._refuse(envelope, meta, last_applied, has_room) or self._begin(envelope, meta, now,
                                                                                       last_applied)
        if meta == current.meta:
            if envelope.transfer == current.transfer and envelope.attempt < current.attempt + current.wants_offer:
                return [Send(Unknown(self._answer_to(envelope)))] if current.wants_offer else []
            # The same snapshot from a sender that lost its connection, or started anew: go on where we are.
            current.attempts += (envelope.transfer, envelope.attempt) != (current.transfer, current.attempt)
            current.transfer, current.attempt, current.term = envelope.transfer, envelope.attempt, envelope.term
            current.wants_offer = False
            self._heard_at = now
            return [self._progress(current)]
        newer = (envelope.term, meta.index) > (current.term, current.meta.index)
        if not newer or self._stage == "installing":
            return [Send(Refusal(self._answer_to(envelope), AbortReason.SUPERSEDED, current.last_applied,
                                 f"snapshot {current.meta.index} is being installed"))]
        refusal = self._refuse(envelope, meta, current.last_applied, has_room)
        if refusal:
            return refusal
        given_up = self._abort(AbortReason.SUPERSEDED, f"snapshot {meta.index} of term {envelope.term} takes its place")
        return [*given_up, *self._begin(envelope, meta, now, current.last_applied)]

    def _refuse(self, envelope: Envelope, meta: SnapshotManifest, last_applied: int, has_room: bool) -> list[Effect]:
        lowest, highest = self._machine_versions
        if meta.index <= last_applied:
            reason, detail = AbortReason.ALREADY_APPLIED, f"entries up to {last_applied} are applied"
        elif not lowest <= meta.machine_version <= highest:
            reason = AbortReason.UNSUPPORTED
            detail = f"machine version {meta.machine_version}, this member restores {lowest} to {highest}: upgrade it"
        elif meta.live_bytes < _MIN_LIVE_BYTES:
            reason, detail = AbortReason.DAMAGED, f"a live set of {meta.live_bytes} bytes; none is so short"
        elif meta.live_bytes > self._limits.max_live_bytes:
            reason = AbortReason.TOO_LARGE
            detail = f"a live set of {meta.live_bytes} bytes, max_live_bytes is {self._limits.max_live_bytes}"
        else:
            return [] if has_room else [Send(Wait(self._answer_to(envelope)))]
        return [Send(Refusal(self._answer_to(envelope), reason, last_applied, detail))]

    def _begin(self, envelope: Envelope, meta: SnapshotManifest, now: float, last_applied: int) -> list[Effect]:
        staged = self._staged if self._staged is not None and self._staged.meta == meta else None
        self._staged = None
        kept, crc = (0, 0) if staged is None else (staged.state_bytes, staged.state_crc)
        course = Course(meta, last_applied, None, state_offset=kept)
        self._now = _Transfer(meta, envelope.transfer, envelope.attempt, envelope.term, last_applied, now, course,
                              Position(Phase.LIVE, 0), crc)
        self._stage, self._heard_at = "receiving", now
        return [BeginInstall(meta, kept), self._progress(self._now)]

    # -- chunks

    def _told(self, message: TransferMessage, now: float) -> list[Effect]:
        envelope, current = message.envelope, self._now
        if current is None or envelope.transfer != current.transfer:
            if self._finished is not None and envelope.transfer == self._finished[0]:
                return [Send(Installed(self._answer_to(envelope), self._finished[1]))]
            return [] if isinstance(message, Withdrawal) else [Send(Unknown(self._answer_to(envelope)))]
        if isinstance(message, Withdrawal):
            if self._stage == "installing":
                return []
            return self._abort(message.reason, message.detail, tell=False, keep=True)
        if envelope.attempt != current.attempt:
            # An offer that was overtaken on the way may have taken us back to an earlier attempt.
            return [Send(Unknown(self._answer_to(envelope)))] if envelope.attempt > current.attempt else []
        self._heard_at = now
        if current.wants_offer:
            return [Send(Unknown(self._answer_to(envelope)))]
        if isinstance(message, Probe):
            return [self._progress(current)]
        if isinstance(message, LiveChunk):
            return self._live_chunk(message, current)
        if isinstance(message, EntryChunk):
            return self._entry_chunk(message, current)
        assert isinstance(message, StateChunk), message
        return self._state_chunk(message, current)

    def _live_chunk(self, message: LiveChunk, current: _Transfer) -> list[Effect]:
        if current.position != Position(Phase.LIVE, message.offset):
            return self._ignored(current)
        end = message.offset + len(message.data)
        if not message.data or end > current.meta.live_bytes:
            return self._abort(AbortReason.OUT_OF_STEP, f"a piece of the live set ends at {end} of "
                               f"{current.meta.live_bytes} bytes")
        current.live_data += message.data
        current.payload_bytes += len(message.data)
        if end == current.meta.live_bytes:
            damage = self._live_damage(current)
            if damage:
                return self._abort(AbortReason.DAMAGED, damage)
        return self._moved(current, Position(Phase.LIVE, end), [])

    def _live_damage(self, current: _Transfer) -> str:
        """What is wrong with the live set, now that it is complete; takes it if nothing is."""
        meta, data = current.meta, bytes(current.live_data)
        current.live_data.clear()
        try:
            live = meta.live_set(data, path=f"<live set of snapshot {meta.index}>")
        except CompactlibError as error:
            return str(error)
        current.live = live
        current.course = Course(meta, current.last_applied, needed_entries(live, current.last_applied),
                                state_offset=current.course.state_offset)
        return ""

    def _entry_chunk(self, message: EntryChunk, current: _Transfer) -> list[Effect]:
        if current.position != Position(Phase.ENTRIES, message.previous):
            return self._ignored(current)
        indexes = [entry.index for entry in message.entries]
        if not indexes or not current.course.entries.follows(message.previous, indexes):
            return self._abort(AbortReason.OUT_OF_STEP, f"after entry {message.previous} came {indexes[:3]}, which "
                               f"are not the next live ones")
        for entry in message.entries:
            if not entry.is_whole or entry.term > current.meta.term:
                return self._abort(AbortReason.DAMAGED, f"entry {entry.index} of term {entry.term} in a snapshot of "
                                   f"term {current.meta.term} has not the CRC {entry.crc:#010x} it was written with, "
                                   f"or too high a term")
        current.entries += len(indexes)
        current.payload_bytes += sum(len(entry.payload) for entry in message.entries)
        current.last_entry = indexes[-1]
        write = WriteEntries(message.previous, tuple(entry.entry for entry in message.entries))
        return self._moved(current, Position(Phase.ENTRIES, indexes[-1]), [write])

    def _state_chunk(self, message: StateChunk, current: _Transfer) -> list[Effect]:
        if current.position != Position(Phase.STATE, message.offset):
            return self._ignored(current)
        end = message.offset + len(message.data)
        if not message.data or end > current.meta.state_bytes:
            return self._abort(AbortReason.OUT_OF_STEP, f"a piece of the state ends at {end} of "
                               f"{current.meta.state_bytes} bytes")
        current.state_crc = crc32(message.data, current.state_crc)
        current.payload_bytes += len(message.data)
        return self._moved(current, Position(Phase.STATE, end), [WriteState(message.offset, message.data)])

    def _moved(self, current: _Transfer, to: Position, effects: list[Effect]) -> list[Effect]:
        current.position = current.course.settled(to)
        if current.position.phase is not Phase.END:
            return [*effects, self._progress(current)]
        if current.state_crc != current.meta.state_crc and current.course.state_offset:
            # What an earlier life had left was not durable, and a crash has torn it: take all of the state again. Only
            # another offer takes a sender back, so ask for one.
            current.course.state_offset, current.state_crc = 0, 0
            current.position, current.wants_offer = Position(Phase.STATE, 0), True
            return [*effects, Send(Unknown(self._envelope(current)))]
        if current.state_crc != current.meta.state_crc:
            return [*effects, *self._abort(AbortReason.DAMAGED, f"the state's CRC is {current.state_crc:#010x}, "
                                           f"expected {current.meta.state_crc:#010x}")]
        self._stage = "syncing"
        return [*effects, self._progress(current), AwaitEntries(current.last_entry)]

    def _ignored(self, current: _Transfer) -> list[Effect]:
        current.ignored += 1
        return [self._progress(current)]

    # -- ends and answers

    def _abort(self, reason: AbortReason, detail: str, *, tell: bool = True, keep: bool = False) -> list[Effect]:
        current = self._now
        if current is None:
            return []
        error = TransferAborted(reason=reason, detail=detail, index=current.meta.index, term=self._term,
                                last_applied=current.last_applied)
        told: list[Effect] = [Send(Refusal(self._envelope(current), reason, current.last_applied, detail))]
        kept = keep and current.position.phase is Phase.STATE
        # A sender that starts anew need not send again what is here of the state; entries come again.
        self._staged = StagedState(current.meta, current.position.offset, current.state_crc) if kept else None
        self._stage, self._now = "idle", None
        return [*(told if tell else []), DiscardInstall(current.meta, keep_state=kept),
                Finished(Failed(error))]

    def _answer_to(self, envelope: Envelope) -> Envelope:
        return attrs.evolve(envelope, term=self._term)

    def _envelope(self, current: _Transfer) -> Envelope:
        return Envelope(current.transfer, current.attempt, self._term)

    def _progress(self, current: _Transfer) -> Send:
        return Send(Progress(self._envelope(current), current.position, current.last_applied, self._life))
