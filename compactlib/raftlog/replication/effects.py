# SPDX-License-Identifier: Apache-2.0
"""What the two sides ask of their host: frozen values, to be carried out in order, one by one.

If one cannot be carried out, the host reports that to the machine (`read_failed`, `failed`) and drops the rest of the
list, which may say that something was done.
"""

from __future__ import annotations

from typing import TypeAlias

import attrs

from compactlib._arguments import require_above_zero
from compactlib.errors import InvalidInput
from compactlib.indexset.index_set import IndexSet
from compactlib.outcome import Done, Failed, Skipped
from compactlib.raftlog.model.values import Entry
from compactlib.raftlog.replication.messages import TransferMessage
from compactlib.raftlog.replication.wire import MAX_FRAME_BYTES
from compactlib.raftlog.snapshots.model import SnapshotManifest

_MOST_BYTES = MAX_FRAME_BYTES - (1 << 16)
"""Payload that fits into a frame, beside all that is said of it there."""


@attrs.frozen(kw_only=True)
class TransferLimits:
    """How much at once, and how long to wait. Sizes are bytes, times are seconds.

    Attributes:
        chunk_bytes: a chunk's payload, at most 79,934,464; one that holds a single larger entry exceeds it.
        window_bytes: sent and not yet acknowledged.
        max_entry_bytes: an entry's payload, at most 79,934,464; a larger one ends the transfer by name.
        max_live_bytes: the receiver's limit for a live set, which it holds in memory; a larger one is refused by name.
            Also for those of all logs of a `SnapshotServer` together: what would exceed it waits for the others' end.
        resend_seconds: the sender's patience before it goes back to what was acknowledged; doubles up to eightfold.
        sender_seconds: silence after which the sender gives up.
        receiver_seconds: silence after which the receiver gives up.

    Raises:
        InvalidInput: a limit is not above 0, or no frame holds as much.
    """

    chunk_bytes: int = 1 << 20
    window_bytes: int = 4 << 20
    max_entry_bytes: int = 64_000_000
    max_live_bytes: int = 1 << 30
    resend_seconds: float = 2.0
    sender_seconds: float = 120.0
    receiver_seconds: float = 300.0

    def __attrs_post_init__(self) -> None:
        require_above_zero(self)
        for name, value in (("chunk_bytes", self.chunk_bytes), ("max_entry_bytes", self.max_entry_bytes)):
            if value > _MOST_BYTES:
                raise InvalidInput(f"{name} is {value}; at most {_MOST_BYTES} fit into a frame")


@attrs.frozen(kw_only=True)
class TransferStats:
    """What a transfer that ended well has cost one side.

    Attributes:
        index: the snapshot's index.
        attempts: offers made or accepted, one if nothing went wrong.
        entries: live entries that were sent or written, repeated ones included.
        payload_bytes: live set, entries and state, repeated ones included.
        resends: times the sender went back because it got no answer; 0 at the receiver.
        ignored: chunks that came twice or out of order; 0 at the sender.
        seconds: from the beginning to the end.
    """

    index: int
    attempts: int
    entries: int
    payload_bytes: int
    resends: int
    ignored: int
    seconds: float


TransferOutcome: TypeAlias = Done[TransferStats] | Skipped | Failed
"""`Done`: the snapshot is in force at the receiver. `Skipped`: the receiver was further already. `Failed`: with a
`TransferAborted`."""


@attrs.frozen
class Send:
    """Give the message to the network, which may lose, repeat or reorder it."""

    message: TransferMessage


@attrs.frozen
class Finished:
    """The transfer is over on this side; release pins and timers."""

    outcome: TransferOutcome


# -- of the sender


@attrs.frozen
class ReadEntries:
    """Read the first of `indexes`, as many as fit into `max_bytes`, at least one; answer with `entries_read`."""

    indexes: IndexSet
    max_bytes: int


@attrs.frozen
class ReadState:
    """Read a piece of the state; answer with `state_read`."""

    offset: int
    length: int


# -- of the receiver


@attrs.frozen
class TermSeen:
    """A higher term was seen; keep it as Raft does. Said again, if that has failed, with the next message."""

    term: int


@attrs.frozen
class BeginInstall:
    """Make room for what comes: live entries, and a state of which `keep_bytes` are there. Leave the log alone."""

    meta: SnapshotManifest
    keep_bytes: int


@attrs.frozen
class WriteEntries:
    """Put live entries aside, not into the log: the first follows index `previous`, each other one the one before."""

    previous: int
    entries: tuple[Entry, ...]


@attrs.frozen
class WriteState:
    """Put a piece of the state where it belongs; need not be durable."""

    offset: int
    data: bytes


@attrs.frozen
class AwaitEntries:
    """Everything is here, live entries up to index `last`: make the state durable; answer with `entries_durable`."""

    last: int


@attrs.frozen
class InstallSnapshot:
    """Put the snapshot in force, durably: the state and the entries that were put aside, and this live set (see
    `put_in_force`); answer with `installed`."""

    meta: SnapshotManifest
    live: IndexSet


@attrs.frozen
class DiscardInstall:
    """Forget the entries that were put aside, and the state too, unless it is kept for another try."""

    meta: SnapshotManifest
    keep_state: bool = False


Effect: TypeAlias = (Send | Finished | ReadEntries | ReadState | TermSeen | BeginInstall | WriteEntries | WriteState
                     | AwaitEntries | InstallSnapshot | DiscardInstall)
"""One thing the host has to do."""
