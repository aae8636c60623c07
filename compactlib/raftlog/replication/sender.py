# SPDX-License-Identifier: Apache-2.0
"""The sending side of a transfer, without I/O: messages, answers to reads, and time in; effects out.

```
offering ──Progress──▶ sending: live set, entries, state ──all acknowledged──▶ waiting ──Installed──▶ over
    ▲                      │                                                      │
    └────── Unknown ───────┴──────────────────────────────────────────────────────┘
```

Up to `window_bytes` are under way. What the receiver does not acknowledge in time is sent again from where it says it
is; so drops, repeats and reorderings cost time and nothing else.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Literal, TypeAlias

from compactlib.errors import CompactlibError, InvalidInput
from compactlib.indexset.index_set import IndexSet
from compactlib.outcome import Done, Failed, Skipped
from compactlib.raftlog.model.values import Entry
from compactlib.raftlog.replication.course import Course, needed_entries
from compactlib.raftlog.replication.effects import (
    Effect,
    Finished,
    ReadEntries,
    ReadState,
    Send,
    TransferLimits,
    TransferOutcome,
    TransferStats,
)
from compactlib.raftlog.replication.errors import AbortReason, TransferAborted
from compactlib.raftlog.replication.messages import (
    EntryChunk,
    Envelope,
    FromReceiver,
    FromSender,
    Installed,
    LiveChunk,
    Offer,
    Phase,
    Position,
    Probe,
    Progress,
    Refusal,
    SentEntry,
    StateChunk,
    Unknown,
    Wait,
    Withdrawal,
)
from compactlib.raftlog.snapshots.model import SnapshotManifest

SenderStage: TypeAlias = Literal["new", "offering", "sending", "waiting", "over"]
_MAX_BACKOFF = 8
_FRAME_OVERHEAD = 64


class SnapshotSender:
    """Sends one snapshot to one receiver. Used by one thread at a time; after `Finished` it asks for nothing more.

    Args:
        meta: the snapshot.
        live: its live set; every entry of it can be read until the transfer is over (pin them).
        term: the leader's term.
        transfer: a number for this transfer, chosen at random, 64 bits.
        log_id: the log's, the same at both sides.
        limits: sizes and times.
        kept_from: from this index on the log holds every entry, so that a receiver that has applied it, or a later one,
            needs entries and no snapshot; `None` sends the snapshot all the same.

    Raises:
        InvalidInput: `live` is not the live set that `meta` describes.
    """

    def __init__(self, meta: SnapshotManifest, live: IndexSet, *, term: int, transfer: int, log_id: str,
                 limits: TransferLimits | None = None, kept_from: int | None = None) -> None:
        self._meta = meta
        self._live = live
        self._live_data: bytes = live.to_bytes()
        if len(self._live_data) != meta.live_bytes or live.count != meta.live_count:
            raise InvalidInput(f"the live set has {live.count} members in {len(self._live_data)} bytes, the snapshot "
                               f"says {meta.live_count} in {meta.live_bytes}; read it from the same snapshot")
        self._term = term
        self._transfer = transfer
        self._log_id = log_id
        self._limits: TransferLimits = limits or TransferLimits()
        self._kept_from = kept_from
        self._stage: SenderStage = "new"
        self._attempt = 1
        self._last_applied = -1
        self._life: int | None = None
        self._course: Course = Course(meta, -1, live)
        self._acked: Position = Position(Phase.LIVE, 0)
        self._sent: Position = self._acked
        # Ascending: where each chunk ends, and its size; and what they add up to.
        self._under_way: deque[tuple[Position, int]] = deque()
        self._under_way_bytes = 0
        self._reading: ReadEntries | ReadState | None = None
        self._reading_at: Position = self._acked
        self._began_at = self._heard_at = self._quiet_since = 0.0
        self._backoff = 1
        self._entries = self._bytes = self._resends = 0
        self._outcome: TransferOutcome | None = None

    # -- what the host says

    def start(self, now: float) -> list[Effect]:
        """Offer the snapshot.

        Args:
            now: seconds on any clock that does not go back, the same for every call.
        """
        if self._stage != "new":
            raise InvalidInput("the transfer was started before; make another sender")
        self._began_at = now
        self._heard_at = now
        return self._offer(now)

    def receive(self, message: FromReceiver, now: float) -> list[Effect]:
        """Take a message of the receiver. One of another transfer or of an earlier attempt is passed over."""
        envelope = message.envelope
        if self._stage in ("new", "over") or envelope.transfer != self._transfer:
            return []
        if envelope.term > self._term:
            return self._abort(AbortReason.HIGHER_TERM, f"the receiver is in term {envelope.term}, the sender in "
                               f"{self._term}", now, term=envelope.term, tell=False)
        if isinstance(message, Installed):
            return self._installed(message, now)
        if envelope.attempt != self._attempt:
            return []
        self._heard_at = now
        if isinstance(message, Progress):
            return self._progress(message, now)
        if isinstance(message, Wait):
            # It was heard: that is all. The offer is made again after the usual delay.
            return []
        if isinstance(message, Unknown):
            if self._stage == "offering":
                return []
            return self._offer_again(now)
        return self._refused(message, now)

    def entries_read(self, asked: ReadEntries, entries: Sequence[Entry], now: float) -> list[Effect]:
        """The answer to `ReadEntries`: the first of those asked for, in order."""
        place = self._answered(asked)
        if place != self._course.settled(self._sent):
            return self._pump(now)
        previous = place.offset
        if not entries:
            return self._abort(AbortReason.SOURCE_LOST, f"no entry was read after {previous}, though "
                               f"{asked.indexes.first} is live", now)
        large = next((entry for entry in entries if len(entry.payload) > self._limits.max_entry_bytes), None)
        if large is not None:
            return self._abort(AbortReason.TOO_LARGE, f"entry {large.index} has {len(large.payload)} bytes, "
                               f"max_entry_bytes is {self._limits.max_entry_bytes}", now)
        if not self._course.entries.follows(previous, [entry.index for entry in entries]):
            return self._abort(AbortReason.SOURCE_LOST, f"after entry {previous}, {entries[0].index} to "
                               f"{entries[-1].index} were read, which are not the next live ones", now)
        chunk = EntryChunk(self._envelope, previous, tuple(map(SentEntry.of, entries)))
        size = sum(len(entry.payload) for entry in entries)
        self._entries += len(entries)
        return self._chunk(chunk, Position(Phase.ENTRIES, entries[-1].index), size, now)

    def state_read(self, asked: ReadState, data: bytes, now: float) -> list[Effect]:
        """The answer to `ReadState`: the bytes asked for."""
        if self._answered(asked) != self._course.settled(self._sent):
            return self._pump(now)
        end = asked.offset + len(data)
        if len(data) != asked.length:
            return self._abort(AbortReason.SOURCE_LOST, f"the state ends at {end} bytes, the snapshot says "
                               f"{self._meta.state_bytes}", now)
        return self._chunk(StateChunk(self._envelope, asked.offset, data), Position(Phase.STATE, end), len(data), now)

    def read_failed(self, error: CompactlibError, now: float) -> list[Effect]:
        """A read could not be carried out: the transfer ends."""
        return self._abort(AbortReason.SOURCE_LOST, str(error), now)

    def observe_term(self, term: int, now: float) -> list[Effect]:
        """The host has seen a term; a higher one ends the transfer."""
        if term <= self._term:
            return []
        return self._abort(AbortReason.HIGHER_TERM, f"the sender leads no more: term {term} has begun after its own "
                           f"{self._term}", now, term=term)

    def cancel(self, reason: str, now: float) -> list[Effect]:
        """Give up; a message says so to the receiver."""
        return self._abort(AbortReason.CANCELLED, reason, now)

    def tick(self, now: float) -> list[Effect]:
        """Let time pass; call when `deadline` has come, or more often."""
        if self._stage in ("new", "over"):
            return []
        if now >= self._heard_at + self._limits.sender_seconds:
            return self._abort(AbortReason.TIMED_OUT, f"the receiver was silent for {now - self._heard_at:.1f} seconds",
                               now)
        if now < self._quiet_since + self._patience:
            return []
        self._backoff = min(2 * self._backoff, _MAX_BACKOFF)
        self._resends += 1
        return self._say_again(now)

    def _say_again(self, now: float) -> list[Effect]:
        self._quiet_since = now
        if self._stage == "offering":
            return [Send(Offer(self._envelope, self._meta, self._log_id))]
        if self._stage == "waiting":
            return [Send(Probe(self._envelope))]
        self._go_back()
        # Whatever is lost again, the probe brings word of where the receiver is.
        return [Send(Probe(self._envelope)), *self._pump(now)]

    def reconnected(self, now: float) -> list[Effect]:
        """There is a line again: what was said since the last one broke is lost, so say it again at once."""
        if self._stage in ("new", "over"):
            return []
        self._backoff = 1
        return self._say_again(now)

    # -- what the host may ask

    @property
    def stage(self) -> SenderStage:
        """Where the transfer stands."""
        return self._stage

    @property
    def outcome(self) -> TransferOutcome | None:
        """How it ended; `None` before."""
        return self._outcome

    @property
    def deadline(self) -> float | None:
        """When to call `tick` next; `None` if there is nothing to wait for."""
        if self._stage in ("new", "over"):
            return None
        return min(self._heard_at + self._limits.sender_seconds, self._quiet_since + self._patience)

    def __repr__(self) -> str:
        return f"SnapshotSender(snapshot {self._meta.index}, {self._stage}, {self._acked.phase.name.lower()} " \
               f"{self._acked.offset})"

    # -- inside

    @property
    def _envelope(self) -> Envelope:
        return Envelope(self._transfer, self._attempt, self._term)

    @property
    def _patience(self) -> float:
        return self._limits.resend_seconds * self._backoff

    def _offer(self, now: float) -> list[Effect]:
        self._stage = "offering"
        self._forget_under_way()
        self._quiet_since = now
        self._acked = self._sent = Position(Phase.LIVE, 0)
        return [Send(Offer(self._envelope, self._meta, self._log_id))]

    def _offer_again(self, now: float) -> list[Effect]:
        self._attempt += 1
        return self._offer(now)

    def _progress(self, message: Progress, now: float) -> list[Effect]:
        position = message.position
        if self._stage != "offering" and message.life != self._life:
            # It died, and a late offer reached its next life: what it had is gone.
            return self._offer_again(now)
        if self._stage == "offering":
            if self._kept_from is not None and message.last_applied >= self._kept_from:
                reason = f"the log holds every entry from {self._kept_from} on; go on with those"
                return [Send(Withdrawal(self._envelope, AbortReason.ALREADY_APPLIED, reason)), *self._finish(Skipped(
                    f"the receiver has applied up to {message.last_applied}, and {reason}"))]
            self._stage, self._life = "sending", message.life
            self._last_applied = message.last_applied
            self._course = Course(self._meta, message.last_applied, needed_entries(self._live, message.last_applied))
            self._acked = self._sent = position
        elif position > self._acked:
            self._acked = position
            self._sent = max(self._sent, position)
            while self._under_way and self._under_way[0][0] <= position:
                self._under_way_bytes -= self._under_way.popleft()[1]
        elif self._stage == "sending":
            # Late, or an answer to what came twice: it says nothing about what is under way.
            return self._pump(now)
        self._backoff = 1
        self._quiet_since = now
        if position.phase is Phase.END:
            self._stage = "waiting"
            return []
        return self._pump(now)

    def _installed(self, message: Installed, now: float) -> list[Effect]:
        if message.index < self._meta.index:
            return []
        stats = TransferStats(index=self._meta.index, attempts=self._attempt, entries=self._entries,
                              payload_bytes=self._bytes, resends=self._resends, ignored=0,
                              seconds=now - self._began_at)
        return self._finish(Done(stats))

    def _refused(self, message: Refusal, now: float) -> list[Effect]:
        if message.reason is AbortReason.ALREADY_APPLIED:
            return self._finish(Skipped(f"the receiver has applied up to {message.last_applied}, snapshot "
                                        f"{self._meta.index} would bring nothing; go on with entries from "
                                        f"{message.last_applied + 1}"))
        self._last_applied = message.last_applied
        return self._abort(message.reason, message.detail, now, tell=False)

    def _go_back(self) -> None:
        self._sent = self._acked
        self._forget_under_way()

    def _forget_under_way(self) -> None:
        self._under_way.clear()
        self._under_way_bytes, self._reading = 0, None

    def _pump(self, now: float) -> list[Effect]:
        """Send the live set's next pieces, or ask for what comes behind it, while there is room in the window."""
        effects: list[Effect] = []
        while self._stage == "sending" and self._reading is None and self._has_room:
            place = self._course.settled(self._sent)
            if place.phase is Phase.LIVE:
                data = self._live_data[place.offset:place.offset + self._limits.chunk_bytes]
                effects += self._sent_chunk(LiveChunk(self._envelope, place.offset, data),
                                            Position(Phase.LIVE, place.offset + len(data)), len(data))
                continue
            if place.phase is Phase.ENTRIES:
                self._reading = ReadEntries(self._course.entries.after(place.offset), self._limits.chunk_bytes)
            elif place.phase is Phase.STATE:
                rest = self._meta.state_bytes - place.offset
                self._reading = ReadState(place.offset, min(self._limits.chunk_bytes, rest))
            self._reading_at = place
            return effects if self._reading is None else [*effects, self._reading]
        return effects

    @property
    def _has_room(self) -> bool:
        return self._under_way_bytes < self._limits.window_bytes

    def _answered(self, asked: ReadEntries | ReadState) -> Position | None:
        """What the answer continues; `None` for one that is not waited for any more.

        It is to be sent only if that is still where sending has come to: the receiver may turn out to be further.
        """
        if asked is not self._reading:
            return None
        self._reading = None
        return self._reading_at

    def _chunk(self, chunk: FromSender, end: Position, size: int, now: float) -> list[Effect]:
        return [*self._sent_chunk(chunk, end, size), *self._pump(now)]

    def _sent_chunk(self, chunk: FromSender, end: Position, size: int) -> list[Effect]:
        self._sent = end
        # A payload may be empty, its frame is not.
        self._under_way.append((end, size + _FRAME_OVERHEAD))
        self._under_way_bytes += size + _FRAME_OVERHEAD
        self._bytes += size
        return [Send(chunk)]

    def _abort(self, reason: AbortReason, detail: str, now: float, *, term: int | None = None,
               tell: bool = True) -> list[Effect]:
        if self._stage == "over":
            return []
        error = TransferAborted(reason=reason, detail=detail, index=self._meta.index,
                                term=self._term if term is None else term, last_applied=self._last_applied)
        told: list[Effect] = [Send(Withdrawal(self._envelope, reason, detail))] if tell else []
        return [*told, *self._finish(Failed(error))]

    def _finish(self, outcome: TransferOutcome) -> list[Effect]:
        self._stage = "over"
        self._outcome = outcome
        self._forget_under_way()
        return [Finished(outcome)]
