# SPDX-License-Identifier: Apache-2.0
"""`LogOptions`, the settings of a log, and `StoreOptions`, those of a store of logs of `StateMachine`s."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from math import inf
from typing import TYPE_CHECKING, Any, Protocol

import attrs

from compactlib._arguments import is_seconds, is_whole
from compactlib.clock import Clock, SystemClock
from compactlib.files.disk import Files, LocalFiles
from compactlib.indexset import IndexSet
from compactlib.observer import Observer, Observers
from compactlib.raftlog.compaction.policy import LogPolicy, Trigger
from compactlib.raftlog.compaction.report import SegmentChanges
from compactlib.raftlog.policies import DeadRatio, EveryNMinors, SeedPolicy
from compactlib.raftlog.segment.segments import DEFAULT_MAX_OPEN
from compactlib.raftlog.values import Entry, SegmentLimits

if TYPE_CHECKING:
    from typing_extensions import Buffer


@attrs.frozen(kw_only=True)
class LogOptions:
    """The settings of a log.

    Attributes:
        limits: the limits of a segment.
        policy: chooses the victims when the trigger is due.
        trigger: decides whether `compact()`, without a plan or a policy, uses `policy` or only drops (`DropDead`).
        keep_links_seconds: how long the names of merged segments stay readable for other processes.
        max_open_segments: limit of the files open for reading, in all logs of a store together.
        files: the disk.
        clock: the clock of the log.
        observer: receives progress, counters and events.
        on_changes: called with each change of the list of segments (`SegmentChanges`), by the compaction or the reclaim
            that is about to remove files. If it raises, the files stay, and the next reclaim calls it again.
    """

    limits: SegmentLimits = attrs.field(factory=SegmentLimits)
    policy: LogPolicy = attrs.field(factory=SeedPolicy)
    trigger: Trigger = DeadRatio(1.0) | EveryNMinors(8)
    keep_links_seconds: float = attrs.field(default=60.0, validator=is_seconds(0, inf))
    max_open_segments: int = attrs.field(default=DEFAULT_MAX_OPEN, validator=is_whole(1))
    files: Files = attrs.field(factory=LocalFiles)
    clock: Clock = attrs.field(factory=SystemClock)
    observer: Observer = attrs.field(factory=Observers)
    on_changes: Callable[[SegmentChanges], object] | None = None


class StateMachine(Protocol):
    """A deterministic machine over the entries of a log. Called by a single thread at a time.

    The content of an entry may stay in the log: then the entry is live, and the state of a snapshot has its index
    instead of its content.

    A machine whose live entries are clumped (`plan_clump`) has the command "rewrite entry i": it has the content of
    entry i, and replaces entry i if that is still live when the command is applied; else it changes nothing, and is
    dead itself. `examples/kv_machine.py` has such a machine.
    """

    def apply(self, entry: Entry) -> Any:
        """Apply an entry. Called for each entry once, in the order of the log; the result is the host's."""

    def live_indexes(self) -> IndexSet | Iterable[int]:
        """The indexes of the entries that the state needs, in any order; empty if it needs no entry."""

    def snapshot(self) -> Iterable[Buffer]:
        """The current state, in pieces of any size.

        The iterator may run in another thread while later entries are applied: iterate over a copy, or over immutable
        values.
        """

    def restore(self, pieces: Iterator[bytes]) -> None:
        """Replace the state by a state that `snapshot` has returned; the pieces have other sizes."""


@attrs.frozen(kw_only=True)
class StoreOptions:
    """The settings of a store.

    Attributes:
        log: settings of each log's segments; its files, clock and observer serve the whole store.
        max_wal_bytes: a WAL file is closed after the batch that exceeds this.
        max_wal_entries: likewise, the limit of its entries. Entries stay in memory until their file was flushed.
        max_unflushed_files: closed WAL files that may wait for a flush; beyond that `append` flushes.
        max_queued_bytes: bytes that may wait for a sync; an append that finds more in the queue syncs it first.
        background: flush in a thread of the store; else in the thread that fills a WAL file.
        keep_trailing: count of the last entries at or below a snapshot that stay in the log as if they were live, as
            far as the log has them. A follower that is no further behind is sent entries (`RaftLog.entries_after`)
            instead of the snapshot. 0 by default: only the host knows how far its followers lag. The entries of a few
            seconds are a good value.
        machine_of: makes an empty state machine of a log, given the log's id. It rebuilds a damaged live set from the
            snapshot's state; without it such a log is not opened (`LiveSetLost`).
    """

    log: LogOptions = attrs.field(factory=LogOptions)
    max_wal_bytes: int = attrs.field(default=64 << 20, validator=is_whole(1))
    max_wal_entries: int = attrs.field(default=1_000_000, validator=is_whole(1))
    max_unflushed_files: int = attrs.field(default=4, validator=is_whole())
    max_queued_bytes: int = attrs.field(default=16 << 20, validator=is_whole())
    background: bool = True
    keep_trailing: int = attrs.field(default=0, validator=is_whole())
    machine_of: Callable[[str], StateMachine] | None = None
