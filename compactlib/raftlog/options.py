# SPDX-License-Identifier: Apache-2.0
"""`StoreOptions`: how a store of logs is kept."""

from __future__ import annotations

from collections.abc import Callable

import attrs

from compactlib._arguments import is_whole
from compactlib.raftlog.compaction.options import LogOptions
from compactlib.raftlog.memtable import DEFAULT_MAX_ENTRIES
from compactlib.raftlog.snapshots.machine import StateMachine


@attrs.frozen(kw_only=True)
class StoreOptions:
    """How a store is kept.

    Attributes:
        log: how the segments of each log are kept; its files, clock and observer serve the whole store.
        max_wal_bytes: a WAL file is closed after the batch that exceeds this.
        max_unflushed_files: so many closed WAL files may wait for their entries to be in segments; then the caller that
            appends has to wait too.
        max_queued_bytes: what may wait for a sync before `append` syncs by itself.
        max_memtable_entries: so many entries of one log may wait for segments.
        background: flush in a thread of the store's own; else the thread that fills a WAL file does it.
        sync_by_itself: a thread of the store's own syncs whatever is appended, as fast as the disk can, and the host
            is notified through `on_confirmed` (`RaftLog.attach`); else entries wait for the next `sync`.
        keep_trailing: so many of the last entries that a snapshot covers, that of its own index included, stay in the
            log, with their terms, as if they were live: a follower that is no further behind is sent entries
            (`RaftLog.entries_after`) instead of the snapshot. Fewer stay where fewer are there: behind a snapshot from
            elsewhere, say. None by default, so that a snapshot frees what it says: how far followers lag is the
            host's to know. A few seconds of what is written is a good value.
        machine_of: makes an empty state machine of a log, given the log's id. From it and the state of a snapshot a
            live set that is damaged is rebuilt; without one the log is not opened (`LiveSetLost`).
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
