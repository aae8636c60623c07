# SPDX-License-Identifier: Apache-2.0
from compactlib.scheduler.config import LevelConfig as LevelConfig, SchedulerConfig as SchedulerConfig
from compactlib.scheduler.errors import FencedOff as FencedOff
from compactlib.scheduler.fences.fence import MemoryFence as MemoryFence, TokenFence as TokenFence
from compactlib.scheduler.fences.fence_file import FileFence as FileFence
from compactlib.scheduler.fences.fence_kv import KVFence as KVFence
from compactlib.scheduler.model.poll import (
    Assignment as Assignment,
    PollRequest as PollRequest,
    PollResponse as PollResponse,
    StatusAnswer as StatusAnswer,
    StatusUpdate as StatusUpdate,
    Verdict as Verdict,
)
from compactlib.scheduler.model.update import (
    AddBlocks as AddBlocks,
    Configure as Configure,
    Requeue as Requeue,
    Retain as Retain,
    Tick as Tick,
)
from compactlib.scheduler.model.values import (
    BlockMeta as BlockMeta,
    BlockTombstones as BlockTombstones,
    Command as Command,
    CompactedBlocks as CompactedBlocks,
    JobPlan as JobPlan,
    JobStatus as JobStatus,
    NoOutput as NoOutput,
    Tombstone as Tombstone,
    span_of as span_of,
)
from compactlib.scheduler.plan.policies.by_priority import ByPriority as ByPriority
from compactlib.scheduler.plan.policies.fair_tenants import FairTenants as FairTenants
from compactlib.scheduler.plan.policies.smallest_first import SmallestFirst as SmallestFirst
from compactlib.scheduler.plan.policy import (
    AssignmentPolicy as AssignmentPolicy,
    AssignmentView as AssignmentView,
    JobChoice as JobChoice,
)
from compactlib.scheduler.service.service import SchedulerService as SchedulerService
from compactlib.scheduler.service.store import StoredScheduler as StoredScheduler
from compactlib.scheduler.workers.running_job import RunningJob as RunningJob
from compactlib.scheduler.workers.transport import Transport as Transport
from compactlib.scheduler.workers.worker import Worker as Worker, WorkerOptions as WorkerOptions
