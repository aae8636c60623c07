# SPDX-License-Identifier: Apache-2.0
"""The protocols around `RaftLog`: what it takes from a host, and what workers and snapshots may use of it.

A host gives `RaftLog` a `SnapshotStore` (where snapshots lie) and may give it a `LogWorker` (who compacts, and when).
Replication of snapshots works against `ReplicatedLog`, which `RaftLog` satisfies.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Protocol

from compactlib.indexset.index_set import IndexSet
from compactlib.raftlog.model.snapshot_meta import SnapshotMeta
from compactlib.raftlog.model.values import Answer, DeadEntry, Entry, MissingEntry

if TYPE_CHECKING:
    from typing_extensions import Buffer


class SnapshotStore(Protocol):
    """Where the snapshots of one log lie. The facade calls it with its own lock held: one call at a time.

    Order of a snapshot: `write` (durable, switched) -> the log's row -> `remove_older` -> compaction. A crash after
    `write` leaves a store that is ahead of the row: on opening the facade asks `latest` and brings the row up to it.
    """

    def latest(self) -> SnapshotMeta | None:
        """The newest snapshot in force, its live set included; `None` before the first.

        Raises:
            CorruptData: it is damaged, or its live set is missing or damaged and cannot be rebuilt.
        """

    def write(self, meta: SnapshotMeta, state: Iterable[Buffer]) -> None:
        """Put a snapshot in force durably, in one step; the one before stays readable until `remove_older`.

        Raises:
            Stale: a newer one is in force.
            StorageError: the disk refused; the one before stays in force.
        """

    def remove_older(self) -> None:
        """Remove every snapshot older than the latest. Called once the log's row names the latest."""


class CheckpointStore(SnapshotStore, Protocol):
    """A snapshot store that keeps checkpoints too, as `SnapshotFolder` does. `RaftLog.checkpoint` and `promote` use it.
    """

    def write_checkpoint(self, meta: SnapshotMeta, state: Iterable[Buffer]) -> None:
        """Put a checkpoint in force durably, in one step.

        Raises:
            Stale: a snapshot or checkpoint of the same or a higher index is in force.
            StorageError: the disk refused; nothing has changed.
        """

    def checkpoint_below(self, index: int) -> SnapshotMeta | None:
        """The newest checkpoint at or below `index` and above the snapshot, its live set included; or `None`.

        Raises:
            CorruptData: it is damaged.
        """

    def promote(self, index: int) -> object:
        """Make that checkpoint the snapshot in force, durably, in one step.

        Raises:
            NotFound: there is none.
            StorageError: the disk refused.
        """


class LogWorker(Protocol):
    """Who compacts a log, off the threads that append. `LogCompactionWorker` is one.

    The log starts it, notifies it of changes without ever waiting for it, and stops it before it closes.
    """

    def start(self) -> None:
        """Begin; starting again does nothing."""

    def snapshot_recorded(self, row: SnapshotMeta) -> None:
        """The row was replaced: a snapshot was taken or installed. Called with the log's lock held: must not block."""

    def segments_flushed(self, last_index: int | None) -> None:
        """Entries came to segments. Called with the log's lock held: must not block."""

    def stop(self, *, wait_seconds: float = 30.0) -> None:
        """See `PeriodicService.stop`. Called without any lock held."""


class PinnedEntries(Protocol):
    """Entries held readable, whatever snapshots and compactions do meanwhile, until released. A context manager."""

    @property
    def indexes(self) -> IndexSet:
        """What was pinned."""

    def read(self, index: int) -> Entry:
        """A pinned entry.

        Raises:
            NotFound: it was not pinned.
            CorruptData: it is damaged.
        """

    def entries(self) -> Iterator[Entry]:
        """All pinned entries, ascending; neighbours in a file are read together.

        Raises:
            CorruptData: one is damaged; those before it have been given.
        """

    def release(self) -> None:
        """Let them go; again does nothing."""

    def __enter__(self) -> PinnedEntries: ...

    def __exit__(self, *_: object) -> None: ...


class ReplicatedLog(Protocol):
    """What senders and receivers of snapshots, and the log worker, may rely on in a log."""

    @property
    def log_id(self) -> str:
        """The log's id, the same on all nodes."""

    @property
    def state(self) -> SnapshotMeta:
        """The row: one value, replaced as a whole."""

    @property
    def last_index(self) -> int:
        """The highest index held, or the snapshot's if that is higher; -1 in an empty log."""

    @property
    def unconfirmed(self) -> IndexSet:
        """What was appended and is not durable yet."""

    def append_sparse(self, entries: Sequence[Entry], *, previous_index: int | None = None,
                      apart: bool = False) -> None:
        """Append ascending entries with gaps between them, each after the one before.

        Args:
            entries: ascending by index.
            previous_index: the log's last index, as the caller knows it; `None` accepts whatever it is.
            apart: there is a gap before the first, after a crash too, even if no index is missing between.

        Raises:
            GapDetected: the log's last index is another.
            Overwriting: an index is not above the last one.
            StorageError: the disk refused; nothing was appended.
        """

    def reset(self, last_index: int) -> None:
        """Take back everything above `last_index`, unconfirmed entries included; durable when this returns.

        Raises:
            InvalidInput: it lies below the snapshot.
            StorageError: the disk refused.
        """

    def sync(self) -> None:
        """Return when everything appended before is durable."""

    def read(self, index: int) -> Entry | DeadEntry | MissingEntry:
        """One entry, or that it is dead, or that the log does not hold it."""

    def read_many(self, indexes: Sequence[int]) -> Iterator[Answer]:
        """One answer for each of ascending `indexes`."""

    def pin(self, indexes: IndexSet) -> PinnedEntries:
        """Hold entries readable until released, although a newer snapshot may leave them dead.

        Raises:
            LiveIndexMissing: the log does not hold one of them.
        """

    def install(self, meta: SnapshotMeta) -> None:
        """Put the row of a snapshot in force that came from elsewhere and is in the snapshot store already.

        Its live entries must have been appended; they are made durable first. What the log holds above `meta.index`
        stays if the entry at `meta.index` has `meta.term`, and is taken back otherwise. The next index is
        `last_index + 1`.

        Raises:
            Stale: the row is at or above it.
            LiveIndexMissing: the log does not hold a live entry; nothing was changed.
        """
