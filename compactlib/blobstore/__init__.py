# SPDX-License-Identifier: Apache-2.0
"""A local blob store in a segmented log, with time to live, delete and undelete, compacted by policy (LinkedIn Ambry;
`docs/design/blobstore.md`).

A policy chooses segments, a compaction copies their valid records into new ones and switches, while reads and writes go
on; the segments it took are freed.

>>> import tempfile
>>> from compactlib.blobstore import BlobStore, BlobStoreConfig, StatsBased
>>> from compactlib.clock import ManualClock
>>> clock = ManualClock(1_000_000)
>>> config = BlobStoreConfig(capacity_bytes=1 << 16, segment_bytes=1 << 12, journal_max_entries=0, max_blob_bytes=0)
>>> folder = tempfile.mkdtemp() + "/store"
>>> with BlobStore(folder, config, policy=StatsBased(min_used_fraction=0.0), clock=clock) as store:
...     for number in range(8):
...         _ = store.put(f"blob {number}", b"x" * 1000, ttl_seconds=3600 if number % 2 else None)
...     clock.advance(3601)
...     plan = store.plan()
...     outcome = store.compact(plan)
...     [store.get("blob 1"), store.get("blob 2").info.size_bytes, outcome.stats.freed_segments]
[Missing(id=b'blob 1'), 1000, 1]
"""

from compactlib._lazy import offer

offer(__name__)
