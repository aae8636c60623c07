# SPDX-License-Identifier: Apache-2.0
"""A local blob store in a segmented log, with time to live, delete and undelete, compacted by policy (LinkedIn Ambry;
`docs/internals/differences.md`).

A policy chooses segments. A compaction copies their valid records into new segments, commits by one switch, and frees
the old segments, while reads and writes go on.

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
...     report = store.compact(store.plan())
...     [store.get("blob 1"), store.get("blob 2").info.size_bytes, report.freed_segments]
[Missing(id=b'blob 1'), 1000, 1]
"""

from typing import TYPE_CHECKING

from compactlib._lazy import offer

if TYPE_CHECKING:
    from compactlib.blobstore.blobs import (
        Blob as Blob,
        Deleted as Deleted,
        Expired as Expired,
        GetOptions as GetOptions,
        Missing as Missing,
    )
    from compactlib.blobstore.config import BlobStoreConfig as BlobStoreConfig
    from compactlib.blobstore.copying import StoreCopy as StoreCopy, copy_store as copy_store
    from compactlib.blobstore.errors import (
        BlobExists as BlobExists,
        BlobMissing as BlobMissing,
        NotAStore as NotAStore,
        StoreFull as StoreFull,
    )
    from compactlib.blobstore.plan import BlobPlan as BlobPlan
    from compactlib.blobstore.policies import (
        CompactAll as CompactAll,
        CostBenefit as CostBenefit,
        Greedy as Greedy,
        Hybrid as Hybrid,
        StatsBased as StatsBased,
    )
    from compactlib.blobstore.reader import (
        BlobReader as BlobReader,
        SegmentRecords as SegmentRecords,
        StoredRecord as StoredRecord,
    )
    from compactlib.blobstore.records import RecordKind as RecordKind
    from compactlib.blobstore.replication import ReplicationToken as ReplicationToken
    from compactlib.blobstore.report import (
        BlobCompactionReport as BlobCompactionReport,
        BlobReclaimReport as BlobReclaimReport,
    )
    from compactlib.blobstore.segment_list import is_blob_store as is_blob_store
    from compactlib.blobstore.store import BlobStore as BlobStore, compact_many as compact_many
    from compactlib.blobstore.view import (
        BlobChoice as BlobChoice,
        BlobPolicy as BlobPolicy,
        BlobView as BlobView,
    )
else:
    offer(__name__, {
        "compactlib.blobstore.config": "BlobStoreConfig",
        "compactlib.blobstore.copying": "StoreCopy copy_store",
        "compactlib.blobstore.segment_list": "is_blob_store",
        "compactlib.blobstore.errors": "BlobExists BlobMissing NotAStore StoreFull",
        "compactlib.blobstore.plan": "BlobPlan",
        "compactlib.blobstore.policies": "CompactAll CostBenefit Greedy Hybrid StatsBased",
        "compactlib.blobstore.reader": "BlobReader SegmentRecords StoredRecord",
        "compactlib.blobstore.records": "RecordKind",
        "compactlib.blobstore.replication": "ReplicationToken",
        "compactlib.blobstore.report": "BlobCompactionReport BlobReclaimReport",
        "compactlib.blobstore.store": "BlobStore compact_many",
        "compactlib.blobstore.blobs": "Blob Deleted Expired GetOptions Missing",
        "compactlib.blobstore.view": "BlobChoice BlobPolicy BlobView",
    })
