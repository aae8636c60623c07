# SPDX-License-Identifier: Apache-2.0
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
from compactlib.blobstore.store.replication import ReplicationToken as ReplicationToken
from compactlib.blobstore.store.segment_records import SegmentRecords as SegmentRecords, StoredRecord as StoredRecord
from compactlib.blobstore.store.store import BlobStore as BlobStore
from compactlib.blobstore.store.store_reader import look_at_store as look_at_store
