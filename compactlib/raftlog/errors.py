# SPDX-License-Identifier: Apache-2.0
"""The errors of the Raft log; leaves of the library's exception tree."""

from __future__ import annotations

from enum import Enum, unique

from compactlib.errors import CompactlibError, CorruptData, InvalidInput, NotFound


class GapDetected(InvalidInput):
    """An entry does not follow the log's last index: entries in between are missing. Append those first."""


class Overwriting(InvalidInput):
    """An entry is not above the log's last index: it would overwrite entries that may be committed.

    A follower appends its leader's entries with `append_entries`; to truncate on purpose, call `reset` first.
    """


class LiveSetLost(CorruptData):
    """A snapshot's live set is damaged and cannot be rebuilt; it does not count as empty.

    Set `StoreOptions.machine_of`, which rebuilds it from the snapshot's state, or restore the file from a copy.
    """


class SnapshotLost(CorruptData):
    """The row or the state of a log's last snapshot is missing, and the log has removed the entries that it covers.

    Restore the log's whole folder from a single copy, or remove the log and receive a snapshot.
    """


class LiveAboveSnapshot(InvalidInput):
    """A live set names an index above its snapshot index. Take the live set from the snapshot's own state."""


class NotALog(InvalidInput):
    """The folder does not hold a log of this kind. Check the path, or create a log in an empty folder."""


class LiveIndexMissing(NotFound):
    """A live set has indexes that are in no segment. Nothing was changed: the previous snapshot stays in force."""

    def __init__(self, message: str, *, missing: int, first: int) -> None:
        super().__init__(message)
        self.missing = missing
        self.first = first


@unique
class RefusalReason(Enum):
    """Why a side ends the transfer of a snapshot. The value is its number on the wire: append only."""

    ALREADY_APPLIED = 1
    """The follower has applied the snapshot, or the leader's log has all entries that it lacks: send entries."""
    HIGHER_TERM = 2
    """The follower knows a higher term: the sender is deposed."""
    OTHER_LOG = 3
    """The receiver's log has another id."""
    UNSUPPORTED = 4
    """The follower does not know the transfer's version, or cannot restore the machine version: upgrade it."""
    TOO_LARGE = 5
    """An entry or the live set exceeds a limit of the follower; the detail names it."""
    FAILED = 6
    """A disk error, damage, or another running transfer; the detail has the message. Retry."""


class TransferRefused(CompactlibError):
    """A side has ended the transfer of a snapshot before the follower installed it.

    Attributes:
        reason: why.
        detail: the reason in words, with the numbers.
        index: the snapshot's index, -1 if no offer has arrived.
        term: the highest term that the refusing side knows.
        last_applied: the follower's last applied index, -1 if it has none or has not sent it.
        by_peer: whether the other side has refused.
    """

    def __init__(self, *, reason: RefusalReason, detail: str, index: int, term: int, last_applied: int,
                 by_peer: bool = False) -> None:
        super().__init__(f"the transfer of snapshot {index} was refused: {detail} ({reason.name.lower()})")
        self.reason = reason
        self.detail = detail
        self.index = index
        self.term = term
        self.last_applied = last_applied
        self.by_peer = by_peer


class TransferBroken(CompactlibError):
    """The stream has ended before the transfer: open another stream and send the snapshot again.

    Raised at the sender, the follower may have installed the snapshot. Raised at the follower, it has not; the state
    that has arrived stays, and the next transfer of the same snapshot continues behind it.
    """


class FrameDamaged(CorruptData):
    """A frame of a transfer is damaged or out of order. Close the stream, and send again over another stream."""

    def __init__(self, *, expected: str, found: str) -> None:
        super().__init__(path="<stream>", offset=0, expected=expected, found=found)
