# SPDX-License-Identifier: Apache-2.0
"""A durable Raft log: entries appended to segment files, read by index, compacted by live indexes (RabbitMQ Ra).

A snapshot leaves a list of live indexes in the log; everything else below it is dead. Compaction drops segments that
are wholly dead and merges those that are mostly dead, while appends and reads go on.

>>> import tempfile
>>> from compactlib.raftlog import LogOptions, SeedPolicy, SegmentLimits, SegmentLog
>>> folder = tempfile.mkdtemp()
>>> with SegmentLog(folder, LogOptions(limits=SegmentLimits(max_entries=4))) as log:
...     log.extend((index, 1, b"command %d" % index) for index in range(1, 14))
...     log.record_snapshot(12, live=[2, 3, 11])
...     outcome = log.compact(policy=SeedPolicy())
...     [log.read(2).payload, log.read(4), log.read(99), len(log.refs)]
[b'command 2', DeadEntry(index=4, snapshot_index=12), MissingEntry(index=99), 2]

`SegmentLog` is the log in segments alone. `RaftLogStore` puts a write-ahead log for many logs and a memtable for each
before it, and its `RaftLog` is what the host of a replicated state machine uses (`docs/raftlog.md`).
"""

from compactlib._lazy import offer

offer(__name__)
