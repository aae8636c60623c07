# SPDX-License-Identifier: Apache-2.0
"""The status values of a log and of a store."""

from __future__ import annotations

import attrs

from compactlib.report import Printed


@attrs.frozen(kw_only=True, repr=False)
class LogStatus(Printed):
    """One log at one moment.

    Attributes:
        log_id: which log.
        first_index: the lowest index that is held, `None` if none is.
        last_index: the highest index, or the snapshot's if that is higher; -1 if there is neither.
        last_term: of the last index, `None` if it is not known.
        durable_index: everything up to here that the log holds is durable.
        unconfirmed: entries that were appended and are not durable.
        snapshot_index: -1 without a snapshot.
        snapshot_term: 0 without a snapshot.
        smallest_live_index: everything below is dead.
        live: how many entries that the snapshot covers stay in the log: what the machine needs, and trailing ones.
        memtable_entries: entries in memory that are not in segments, overwritten ones included.
        segments: how many segment files answer.
        pinned: entries that are pinned, and by how many pins.
        pins: how many pins are held.
        is_busy: whether a compaction or a reclaim is under way.
        failures: how often a listener, the worker or the server that it notifies raised an unexpected exception.
        last_error: what was raised last, as `Kind: message`; empty if nothing ever was.
    """

    log_id: str
    first_index: int | None
    last_index: int
    last_term: int | None
    durable_index: int
    unconfirmed: int
    snapshot_index: int
    snapshot_term: int
    smallest_live_index: int
    live: int
    memtable_entries: int
    segments: int
    pinned: int
    pins: int
    is_busy: bool = False
    failures: int = 0
    last_error: str = ""

    def _summary(self) -> str:
        trouble = f"; {self.failures} failures, the last {self.last_error}" if self.failures else ""
        return (f"log {self.log_id!r}: {self.first_index} to {self.last_index}, durable to {self.durable_index}, "
                f"snapshot {self.snapshot_index} with {self.live} live, {self.segments} segments"
                f"{', busy' if self.is_busy else ''}{trouble}")


@attrs.frozen(kw_only=True, repr=False)
class RaftLogStoreStatus(Printed):
    """A store of logs at one moment.

    Attributes:
        logs: how many logs.
        wal_files: how many WAL files there are, the one that is written to included.
        wal_bytes: how much of that one is durable.
        queued_bytes: what waits for the next sync.
        unflushed_files: closed WAL files whose entries are not all in segments.
        flush_error: what the last flush ended in, `None` if it went well.
        damaged: ids of logs that could not be opened; `RaftLogStore.log` says why.
        is_busy: whether a compaction of one of the logs is under way.
        failures: how often the store's own threads failed at a turn, or a listener raised.
        last_error: what was raised last, as `Kind: message`; empty if nothing ever was.
    """

    logs: int
    wal_files: int
    wal_bytes: int
    queued_bytes: int
    unflushed_files: int
    flush_error: str | None
    damaged: tuple[str, ...] = ()
    is_busy: bool = False
    failures: int = 0
    last_error: str = ""

    def _summary(self) -> str:
        trouble = f"; {self.failures} failures, the last {self.last_error}" if self.failures else ""
        return (f"{self.logs} logs, {self.wal_files} WAL files, {self.queued_bytes:,} bytes queued"
                f"{', busy' if self.is_busy else ''}{trouble}")


def error_text(error: BaseException | None) -> str:
    """An error as `Kind: message`; empty for `None`."""
    return "" if error is None else f"{type(error).__name__}: {error}"
