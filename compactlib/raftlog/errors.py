# SPDX-License-Identifier: Apache-2.0
"""The errors of the Raft log; leaves of the library's exception tree."""

from __future__ import annotations

from enum import Enum, unique

from compactlib.errors import Busy, CompactlibError, CorruptData, InvalidInput, NotFound, Stale


class GapDetected(InvalidInput):
    """An entry does not follow what the log holds: entries in between are missing. Append those first.

    Attributes:
        previous: the index that the entry says it follows.
        last: the last index of the log.
    """

    def __init__(self, *, previous: int, last: int) -> None:
        super().__init__(f"an entry that follows index {previous} was given to a log that ends at {last}; append from "
                         f"{last + 1} on")
        self.previous = previous
        self.last = last


class Overwriting(InvalidInput):
    """An entry is not above the log's last index: the log holds another there, and all behind it may be committed.

    A follower takes what its leader sends with `append_entries`; to take entries back on purpose, `reset` first.

    Attributes:
        index: the entry's index.
        last: the last index of the log.
    """

    def __init__(self, *, index: int, last: int) -> None:
        super().__init__(f"entry {index} is not above the last index {last}; a follower takes what its leader sends "
                         f"with append_entries(), and to take entries back on purpose, call reset({index - 1}) first")
        self.index = index
        self.last = last


class PlanOutdated(Stale):
    """The log has changed since a compaction was planned. Nothing was done: plan again."""

    def __init__(self, what: str) -> None:
        super().__init__(f"the plan is outdated: {what}; plan again")


class MemtableFull(Busy):
    """A log holds too many entries in memory that are not in segments yet. Flush, or look why flushing fails.

    Attributes:
        entries: how many it holds.
        limit: how many it may hold.
    """

    def __init__(self, *, entries: int, limit: int) -> None:
        super().__init__(f"{entries:,} entries are in memory, at most {limit:,} may be; call flush(), and look at "
                         f"status() if it fails")
        self.entries = entries
        self.limit = limit


class LiveSetLost(CorruptData):
    """A snapshot's live set is damaged, and this process cannot rebuild it; it is never taken for empty.

    Give the store `StoreOptions.machine_of`, from whose state it is rebuilt, or restore the file from a copy.
    """


class SnapshotLost(CorruptData):
    """The state of a log's last snapshot is missing or another one, or the note of that snapshot is; what it covers is
    not in the log any more. Put back the log's whole folder from one copy, or remove the log and receive a snapshot."""


class LiveAboveSnapshot(InvalidInput):
    """A live set names an index above its snapshot index. Take the live set from the snapshot's own state."""

    def __init__(self, *, index: int, snapshot_index: int) -> None:
        super().__init__(
            f"live index {index} lies above the snapshot index {snapshot_index}; live indexes describe what the "
            f"snapshot left in the log, so each must be <= {snapshot_index}"
        )
        self.index = index
        self.snapshot_index = snapshot_index


class NotALog(InvalidInput):
    """The folder does not hold a log of this kind. Check the path, or create a log in an empty folder."""

    def __init__(self, message: str, *, path: str) -> None:
        super().__init__(message)
        self.path = path


class LiveIndexMissing(NotFound):
    """A live set names indexes that no segment holds. Nothing was changed: the previous snapshot stays in force."""

    def __init__(self, message: str, *, missing: int, first: int) -> None:
        super().__init__(message)
        self.missing = missing
        self.first = first


@unique
class RefusalReason(Enum):
    """Why a side ends the transfer of a snapshot; the value is its number on the wire, append only."""

    ALREADY_APPLIED = 1
    """The follower has applied the snapshot, or all that it lacks is in the leader's log: send entries."""
    HIGHER_TERM = 2
    """The follower knows a higher term: the sender leads no more."""
    OTHER_LOG = 3
    """The stream led to a log of another id."""
    UNSUPPORTED = 4
    """The follower does not know the version of the transfer, or cannot restore the machine version: upgrade it."""
    TOO_LARGE = 5
    """An entry or the live set exceeds what the follower takes; the detail names it."""
    FAILED = 6
    """A disk, damage, or another transfer; the detail says which, and the next one may end well."""


class TransferRefused(CompactlibError):
    """One side has ended the transfer of a snapshot, which is not in force at the follower by it.

    Attributes:
        reason: why.
        detail: in words, with the numbers.
        index: the snapshot's index, -1 where no offer was read.
        term: the highest term that the side knows that has ended it.
        last_applied: what the follower has applied, -1 if nothing, or if it has not said.
        by_peer: whether the other side has ended it.
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
    """The stream of a transfer has ended before the transfer: open another stream and send the snapshot again.

    At the sender, the snapshot may be in force at the follower. At the follower it is not; what has come of its state
    is kept, and the next offer of the same snapshot goes on there.
    """


class FrameDamaged(CorruptData):
    """A frame of a transfer is not what was sent, or is out of its order. Close the stream, and send again over another
    one."""
