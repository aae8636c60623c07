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

from typing import TYPE_CHECKING

from compactlib._lazy import offer

if TYPE_CHECKING:
    from compactlib.blobstore.compaction.plan.plan import BlobPlan as BlobPlan
    from compactlib.blobstore.compaction.plan.policies.compact_all import CompactAll as CompactAll
    from compactlib.blobstore.compaction.plan.policies.copy_budget import CopyBudget as CopyBudget
    from compactlib.blobstore.compaction.plan.policies.cost_benefit import CostBenefit as CostBenefit
    from compactlib.blobstore.compaction.plan.policies.d_choices import DChoices as DChoices
    from compactlib.blobstore.compaction.plan.policies.expiry_forecast import ExpiryForecast as ExpiryForecast
    from compactlib.blobstore.compaction.plan.policies.greedy import Greedy as Greedy
    from compactlib.blobstore.compaction.plan.policies.hybrid import Hybrid as Hybrid
    from compactlib.blobstore.compaction.plan.policies.stats_based import StatsBased as StatsBased
    from compactlib.blobstore.compaction.plan.policy import (
        BlobChoice as BlobChoice,
        BlobPolicy as BlobPolicy,
        BlobView as BlobView,
    )
    from compactlib.blobstore.compaction.run.compact_many import compact_many as compact_many
    from compactlib.blobstore.compaction.run.work import Questions as Questions
    from compactlib.blobstore.config import BlobStoreConfig as BlobStoreConfig
    from compactlib.blobstore.errors import (
        BlobExists as BlobExists,
        BlobMissing as BlobMissing,
        NotAStore as NotAStore,
        StoreFull as StoreFull,
    )
    from compactlib.blobstore.model.pace import Pace as Pace
    from compactlib.blobstore.model.values import (
        Blob as Blob,
        Deleted as Deleted,
        Expired as Expired,
        GetOptions as GetOptions,
        Missing as Missing,
        RecordKind as RecordKind,
    )
    from compactlib.blobstore.segment.descriptor import is_blob_store as is_blob_store
    from compactlib.blobstore.store.blob_reader import BlobReader as BlobReader
    from compactlib.blobstore.store.copying import StoreCopy as StoreCopy, copy_store as copy_store
    from compactlib.blobstore.store.replication import ReplicationToken as ReplicationToken
    from compactlib.blobstore.store.segment_records import (
        SegmentRecords as SegmentRecords,
        StoredRecord as StoredRecord,
    )
    from compactlib.blobstore.store.store import BlobStore as BlobStore
    from compactlib.blobstore.store.store_reader import look_at_store as look_at_store
else:
    offer(__name__, {
        "compactlib.blobstore.compaction.plan.plan": "BlobPlan",
        "compactlib.blobstore.compaction.plan.policies.compact_all": "CompactAll",
        "compactlib.blobstore.compaction.plan.policies.copy_budget": "CopyBudget",
        "compactlib.blobstore.compaction.plan.policies.cost_benefit": "CostBenefit",
        "compactlib.blobstore.compaction.plan.policies.d_choices": "DChoices",
        "compactlib.blobstore.compaction.plan.policies.expiry_forecast": "ExpiryForecast",
        "compactlib.blobstore.compaction.plan.policies.greedy": "Greedy",
        "compactlib.blobstore.compaction.plan.policies.hybrid": "Hybrid",
        "compactlib.blobstore.compaction.plan.policies.stats_based": "StatsBased",
        "compactlib.blobstore.compaction.plan.policy": "BlobChoice BlobPolicy BlobView",
        "compactlib.blobstore.compaction.run.compact_many": "compact_many",
        "compactlib.blobstore.compaction.run.work": "Questions",
        "compactlib.blobstore.config": "BlobStoreConfig",
        "compactlib.blobstore.errors": "BlobExists BlobMissing NotAStore StoreFull",
        "compactlib.blobstore.model.pace": "Pace",
        "compactlib.blobstore.model.values": "Blob Deleted Expired GetOptions Missing RecordKind",
        "compactlib.blobstore.segment.descriptor": "is_blob_store",
        "compactlib.blobstore.store.blob_reader": "BlobReader",
        "compactlib.blobstore.store.copying": "StoreCopy copy_store",
        "compactlib.blobstore.store.replication": "ReplicationToken",
        "compactlib.blobstore.store.segment_records": "SegmentRecords StoredRecord",
        "compactlib.blobstore.store.store": "BlobStore",
        "compactlib.blobstore.store.store_reader": "look_at_store",
    })
