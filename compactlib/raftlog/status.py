# SPDX-License-Identifier: Apache-2.0
"""The status values of a log and of a store."""

from __future__ import annotations

import attrs

from compactlib.report import Printed


@attrs.frozen(kw_only=True, repr=False)
class LogStatus(Printed):
    """The status of a log.

    Attributes:
        log_id: its id.
        first_index: the lowest index, `None` in an empty log.
        last_index: the highest index, or the snapshot's if that is higher; -1 in an empty log without a snapshot.
        last_term: the term of the last index, `None` if it is not known.
        durable_index: all entries up to here are durable.
        snapshot_index: -1 without a snapshot.
        live: size of the live set, trailing entries included.
        memtable_entries: entries in memory that are not in segments, truncated entries included.
        segments: count of segments.
        pins: count of pins.
        is_busy: whether a compaction or a reclaim runs.
        failures: count of the worker's errors.
        last_error: the last of them, as `Kind: message`; empty before the first.
    """

    log_id: str
    first_index: int | None
    last_index: int
    last_term: int | None
    durable_index: int
    snapshot_index: int
    live: int
    memtable_entries: int
    segments: int
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
    """The status of a store of logs.

    Attributes:
        logs: count of logs.
        wal_files: count of WAL files, the current file included.
        wal_bytes: durable bytes of the current file.
        queued_bytes: bytes that wait for the next sync.
        damaged: ids of logs that could not be opened; `RaftLogStore.log` raises the reason.
        is_busy: whether a compaction of a log runs.
        failures: count of failed flushes in the background.
        last_error: the error of the last flush, as `Kind: message`; empty if it succeeded.
    """

    logs: int
    wal_files: int
    wal_bytes: int
    queued_bytes: int
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
