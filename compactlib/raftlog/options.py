# SPDX-License-Identifier: Apache-2.0
"""`StoreOptions`: the settings of a store of logs."""

from __future__ import annotations

from collections.abc import Callable

import attrs

from compactlib._arguments import is_whole
from compactlib.raftlog.compaction.options import LogOptions
from compactlib.raftlog.memtable import DEFAULT_MAX_ENTRIES
from compactlib.raftlog.snapshots.machine import StateMachine


@attrs.frozen(kw_only=True)
class StoreOptions:
    """The settings of a store.

    Attributes:
        log: settings of each log's segments; its files, clock and observer serve the whole store.
        max_wal_bytes: a WAL file is closed after the batch that exceeds this.
        max_unflushed_files: closed WAL files that may wait for a flush; beyond that `append` flushes.
        max_queued_bytes: bytes that may wait for a sync; beyond that `append` syncs.
        max_memtable_entries: entries of a log that may wait for a flush.
        background: flush in a thread of the store; else in the thread that fills a WAL file.
        sync_by_itself: sync appended entries in a thread of the store, as fast as the disk can, and call `on_confirmed`
            (`RaftLog.attach`); else entries wait for the next `sync`.
        keep_trailing: count of the last entries at or below a snapshot that stay in the log as if they were live, as
            far as the log has them. A follower that is no further behind is sent entries (`RaftLog.entries_after`)
            instead of the snapshot. 0 by default: only the host knows how far its followers lag. The entries of a few
            seconds are a good value.
        machine_of: makes an empty state machine of a log, given the log's id. It rebuilds a damaged live set from the
            snapshot's state; without it such a log is not opened (`LiveSetLost`).
    """

    log: LogOptions = attrs.field(factory=LogOptions)
    max_wal_bytes: int = attrs.field(default=64 << 20, validator=is_whole(1))
    max_unflushed_files: int = attrs.field(default=4, validator=is_whole())
    max_queued_bytes: int = attrs.field(default=16 << 20, validator=is_whole())
    max_memtable_entries: int = attrs.field(default=DEFAULT_MAX_ENTRIES, validator=is_whole(1))
    background: bool = True
    sync_by_itself: bool = False
    keep_trailing: int = attrs.field(default=0, validator=is_whole())
    machine_of: Callable[[str], StateMachine] | None = None
