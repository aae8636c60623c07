# SPDX-License-Identifier: Apache-2.0
"""The errors of snapshot transfers: leaves under the tree of `compactlib.errors`."""

from __future__ import annotations

from enum import Enum, unique

from compactlib.errors import CompactlibError, CorruptData


@unique
class AbortReason(Enum):
    """Why a transfer ended without an installed snapshot; the value is its number on the wire, append only."""

    ALREADY_APPLIED = 1
    """The receiver has applied the snapshot's index already: go on with ordinary entries."""
    HIGHER_TERM = 2
    """One side knows a higher term: the sender leads no more."""
    SUPERSEDED = 3
    """Another snapshot took this one's place."""
    TIMED_OUT = 4
    """The other side was silent for too long."""
    DAMAGED = 5
    """A checksum over something whole fails: an entry, the live set, the state."""
    UNSUPPORTED = 6
    """The receiver does not know the machine version."""
    CANCELLED = 7
    """The host of one side gave up."""
    DISK_REFUSED = 8
    """The receiver could not write."""
    SOURCE_LOST = 9
    """The sender could not read an entry or the state."""
    LIVE_MISSING = 10
    """The receiver lacks live entries at or below what it has applied: the snapshot would have holes."""
    TOO_LARGE = 11
    """Something exceeds a limit of one side; the message says which."""
    OUT_OF_STEP = 12
    """One side said or did what the other cannot have caused: they disagree on the protocol, or on the log."""
    OTHER_SENDER = 13
    """Another member sends in the same term, which has one leader."""
    UNKNOWN_LOG = 14
    """The receiving node has no log of this id, or receives none for it."""


class TransferAborted(CompactlibError):
    """The snapshot was not installed; the receiver's log is as it was, or has lost what contradicts the snapshot. Start
    another transfer.

    Attributes:
        reason: why.
        detail: in words, with the numbers.
        index: the snapshot's index.
        term: the highest term that this side knows.
        last_applied: what the receiver had applied, -1 if it never said.
    """

    def __init__(self, *, reason: AbortReason, detail: str, index: int, term: int, last_applied: int = -1) -> None:
        super().__init__(f"the transfer of snapshot {index} ended: {detail} ({reason.name.lower()})")
        self.reason = reason
        self.detail = detail
        self.index = index
        self.term = term
        self.last_applied = last_applied


class FrameDamaged(CorruptData):
    """A frame of a transfer is not what was sent; close the connection and go on with a new one.

    Attributes:
        path: who sent it, or `"<frame>"`.
    """
