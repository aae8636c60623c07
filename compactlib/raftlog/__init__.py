# SPDX-License-Identifier: Apache-2.0
"""A durable Raft log: entries appended to segment files, read by index, compacted by live indexes (RabbitMQ Ra).

A snapshot leaves a list of live indexes in the log; everything else below it is dead. Compaction drops segments that
are wholly dead and merges those that are mostly dead, while appends and reads go on.

>>> import tempfile
>>> from compactlib.raftlog import LogOptions, SeedPolicy, SegmentLimits, SegmentLog
>>> folder = tempfile.mkdtemp()
>>> with SegmentLog(folder, LogOptions(limits=SegmentLimits(max_entries=4))) as log:
...     _ = log.append((index, 1, b"command %d" % index) for index in range(1, 14))
...     log.snapshot(12, live=[2, 3, 11])
...     report = log.compact(policy=SeedPolicy())
...     [log.read(2).payload, log.read(4), log.read(99), len(log.refs)]
[b'command 2', DeadEntry(index=4, snapshot_index=12), MissingEntry(index=99), 2]

`SegmentLog` is the log in segments alone. `RaftLogStore` puts a write-ahead log for many logs and a memtable for each
before it, and its `RaftLog` is what the host of a replicated state machine uses (`docs/raftlog.md`).
"""

from typing import TYPE_CHECKING

from compactlib._lazy import offer

if TYPE_CHECKING:
    from compactlib.raftlog.compaction.plan import LogPlan as LogPlan
    from compactlib.raftlog.compaction.policy import LogChoice as LogChoice, LogPolicy as LogPolicy, LogView as LogView
    from compactlib.raftlog.compaction.report import (
        LogCompactionReport as LogCompactionReport,
        SegmentChanges as SegmentChanges,
    )
    from compactlib.raftlog.local_log import LocalLog as LocalLog
    from compactlib.raftlog.log.folder import is_log as is_log, logs_of_store as logs_of_store
    from compactlib.raftlog.log.log_reader import (
        LogReader as LogReader,
        verify_log as verify_log,
    )
    from compactlib.raftlog.log.segment_log import SegmentLog as SegmentLog
    from compactlib.raftlog.options import (
        LogOptions as LogOptions,
        StateMachine as StateMachine,
        StoreOptions as StoreOptions,
    )
    from compactlib.raftlog.policies import (
        DeadRatio as DeadRatio,
        DropDead as DropDead,
        EveryNMinors as EveryNMinors,
        SeedPolicy as SeedPolicy,
    )
    from compactlib.raftlog.raft_log import RaftLog as RaftLog
    from compactlib.raftlog.segment.listing import open_segment as open_segment
    from compactlib.raftlog.snapshot_meta import (
        SnapshotManifest as SnapshotManifest,
        SnapshotMeta as SnapshotMeta,
    )
    from compactlib.raftlog.snapshots import StateReader as StateReader
    from compactlib.raftlog.store import RaftLogStore as RaftLogStore, open_log as open_log
    from compactlib.raftlog.transfer import (
        TransferReport as TransferReport,
        receive_snapshot as receive_snapshot,
        send_snapshot as send_snapshot,
    )
    from compactlib.raftlog.values import (
        AppendAnswer as AppendAnswer,
        AppendEntries as AppendEntries,
        DamagedEntry as DamagedEntry,
        DeadEntry as DeadEntry,
        Entry as Entry,
        MissingEntry as MissingEntry,
        SegmentLimits as SegmentLimits,
    )
    from compactlib.raftlog.worker import (
        LogCompactionWorker as LogCompactionWorker,
        MachineCopy as MachineCopy,
        SnapshotWriter as SnapshotWriter,
    )
else:
    offer(__name__, {
        "compactlib.raftlog.compaction.plan": "LogPlan",
        "compactlib.raftlog.compaction.policy": "LogChoice LogPolicy LogView",
        "compactlib.raftlog.compaction.report": "LogCompactionReport SegmentChanges",
        "compactlib.raftlog.local_log": "LocalLog",
        "compactlib.raftlog.log.folder": "is_log logs_of_store",
        "compactlib.raftlog.log.log_reader": "LogReader verify_log",
        "compactlib.raftlog.log.segment_log": "SegmentLog",
        "compactlib.raftlog.worker": "LogCompactionWorker MachineCopy SnapshotWriter",
        "compactlib.raftlog.segment.listing": "open_segment",
        "compactlib.raftlog.snapshot_meta": "SnapshotManifest SnapshotMeta",
        "compactlib.raftlog.values":
            "AppendAnswer AppendEntries DamagedEntry DeadEntry Entry MissingEntry SegmentLimits",
        "compactlib.raftlog.transfer": "TransferReport receive_snapshot send_snapshot",
        "compactlib.raftlog.snapshots": "StateReader",
        "compactlib.raftlog.options": "LogOptions StateMachine StoreOptions",
        "compactlib.raftlog.policies": "DeadRatio DropDead EveryNMinors SeedPolicy",
        "compactlib.raftlog.raft_log": "RaftLog",
        "compactlib.raftlog.store": "RaftLogStore open_log",
    })
