# SPDX-License-Identifier: Apache-2.0
"""What the two sides of a transfer send each other: frozen values, each about one attempt of one transfer."""

from __future__ import annotations

from enum import IntEnum, unique
from typing import TypeAlias

import attrs

from compactlib.files.checksum import crc32
from compactlib.raftlog.model.values import Entry
from compactlib.raftlog.replication.errors import AbortReason
from compactlib.raftlog.segment.format import head_crc
from compactlib.raftlog.snapshots.model import SnapshotManifest


@unique
class Phase(IntEnum):
    """The parts of a transfer, in order; the value is its number on the wire."""

    LIVE = 1
    """The live set."""
    ENTRIES = 2
    """The live entries that the receiver needs."""
    STATE = 3
    """The state."""
    END = 4
    """Everything has arrived; the receiver waits for its entries to be durable, or installs."""


@attrs.frozen(order=True)
class Position:
    """How far a transfer has come.

    Attributes:
        phase: which part of the transfer follows.
        offset: bytes of the live set or the state that have arrived; in `ENTRIES` the index of the last entry that
            arrived, or the receiver's `last_applied` before the first; 0 at the `END`.
    """

    phase: Phase
    offset: int


@attrs.frozen
class Envelope:
    """Which transfer a message belongs to.

    Attributes:
        transfer: chosen by the sender at random, 64 bits.
        attempt: counts the sender's offers within the transfer, from 1; an answer repeats it, so that a late one is
            distinguished from a new one.
        term: the term of the side that speaks.
    """

    transfer: int
    attempt: int
    term: int


@attrs.frozen
class SentEntry:
    """A live entry on its way, with the checksum that its segment holds: CRC-32 of index, term, length and payload."""

    index: int
    term: int
    crc: int
    payload: bytes

    @classmethod
    def of(cls, entry: Entry) -> SentEntry:
        """An entry that was read, with its checksum."""
        return cls(entry.index, entry.term, entry_crc(entry.index, entry.term, entry.payload), entry.payload)

    @property
    def is_whole(self) -> bool:
        """Whether the checksum holds."""
        return entry_crc(self.index, self.term, self.payload) == self.crc

    @property
    def entry(self) -> Entry:
        """The entry without its checksum."""
        return Entry(self.index, self.term, self.payload)


def entry_crc(index: int, term: int, payload: bytes) -> int:
    """The checksum of an entry as segments hold it."""
    return crc32(payload, head_crc(index, term, len(payload)))


# -- from the sender


@attrs.frozen
class Offer:
    """The sender has a snapshot of the log `log_id`; the receiver answers with a `Progress`, a `Wait` or a `Refusal`.

    What else is said of the transfer does not repeat the log's id.
    """

    envelope: Envelope
    meta: SnapshotManifest
    log_id: str


@attrs.frozen
class LiveChunk:
    """A piece of the live set's bytes."""

    envelope: Envelope
    offset: int
    data: bytes


@attrs.frozen
class EntryChunk:
    """Live entries, ascending. `previous` is the index before the first, so that a gap in a sparse sequence shows."""

    envelope: Envelope
    previous: int
    entries: tuple[SentEntry, ...]


@attrs.frozen
class StateChunk:
    """A piece of the state."""

    envelope: Envelope
    offset: int
    data: bytes


@attrs.frozen
class Probe:
    """The sender asks after a while without an answer how far the receiver is."""

    envelope: Envelope


@attrs.frozen
class Withdrawal:
    """The sender gives up."""

    envelope: Envelope
    reason: AbortReason
    detail: str


# -- from the receiver


@attrs.frozen
class Progress:
    """Everything before `position` has arrived. The first one, after an `Offer`, accepts it.

    `life` distinguishes one life of the receiver from the next: what arrived in an earlier one is gone.
    """

    envelope: Envelope
    position: Position
    last_applied: int
    life: int


@attrs.frozen
class Unknown:
    """The receiver knows nothing of this transfer, perhaps because it started anew: offer again."""

    envelope: Envelope


@attrs.frozen
class Wait:
    """Transfers of other logs have the memory that this one needs: offer again in a while."""

    envelope: Envelope


@attrs.frozen
class Installed:
    """The snapshot is in force at the receiver, durably."""

    envelope: Envelope
    index: int


@attrs.frozen
class Refusal:
    """The receiver will not, or could not, install the snapshot."""

    envelope: Envelope
    reason: AbortReason
    last_applied: int
    detail: str


FromSender: TypeAlias = Offer | LiveChunk | EntryChunk | StateChunk | Probe | Withdrawal
FromReceiver: TypeAlias = Progress | Unknown | Wait | Installed | Refusal
TransferMessage: TypeAlias = FromSender | FromReceiver
"""Whatever can be in a frame."""
