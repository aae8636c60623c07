# SPDX-License-Identifier: Apache-2.0
"""The protocols around `RaftLog`: what it takes from a host.

A host gives `RaftLog` a `SnapshotStore` (where snapshots lie) and may give it a `LogWorker` (who compacts, and when).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Protocol

from compactlib.raftlog.model.snapshot_meta import SnapshotMeta

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
