"""Compaction jobs fenced by the Raft log index (Grafana Pyroscope; `seeds/scheduler.md`).

Blocks are queued per tenant, shard and level; full or old batches become jobs; workers poll, get jobs with a lease and
a fencing token, and report. The log's index is the only identity and its time the only clock.

>>> from compactlib.scheduler import (AddBlocks, BlockMeta, Command, JobStatus, LevelConfig, PollRequest,
...                                   SchedulerConfig, SchedulerService, StatusUpdate)
>>> service = SchedulerService(SchedulerConfig(levels=(LevelConfig(max_blocks=2),)))
>>> log = iter(Command(index, 1, 1000.0 + index) for index in range(1, 99))
>>> blocks = [BlockMeta(id=f"block-{n}", tenant="acme", shard=7, level=0) for n in range(4)]
>>> added = service.apply(next(log), AddBlocks(tuple(blocks)))
>>> planned = service.poll(next(log), PollRequest(job_capacity=1))
>>> answer = service.poll(next(log), PollRequest(job_capacity=1))
>>> [job] = answer.compaction_jobs
>>> job.source_blocks, answer.assignments[0].token, answer.assignments[0].lease_expires_at
(('block-0', 'block-1'), 3, 1018.0)
>>> late = service.poll(next(log), PollRequest((StatusUpdate(job.name, token=2, status=JobStatus.SUCCESS),)))
>>> late.answers[0].verdict
<Verdict.STALE_TOKEN: 'stale token'>
"""

from typing import TYPE_CHECKING

from compactlib._lazy import load_lazily

if TYPE_CHECKING:
    from compactlib.scheduler.config import LevelConfig, SchedulerConfig
    from compactlib.scheduler.errors import (
        BadConfig,
        CommandOutOfOrder,
        CommittedOtherwise,
        FencedOff,
        JobLost,
        JobNotFound,
        JournalConflict,
        ReleaseJob,
    )
    from compactlib.scheduler.fences.fence import Admission, Commitment, Fence, LockingFence, MemoryFence, TokenFence
    from compactlib.scheduler.fences.fence_file import FileFence
    from compactlib.scheduler.fences.fence_kv import KVFence
    from compactlib.scheduler.fences.token import TokenSealer, owns
    from compactlib.scheduler.model.poll import (
        Assignment,
        PollRequest,
        PollResponse,
        StatusAnswer,
        StatusUpdate,
        Verdict,
    )
    from compactlib.scheduler.model.update import (
        AddBlocks,
        AlreadyApplied,
        Applied,
        ApplyResult,
        AssignedJob,
        BlocksAdded,
        CompletedJob,
        EvictedJob,
        NewJob,
        Operation,
        PlanUpdate,
        RefusedOutputs,
        Requeue,
        Requeued,
        Retain,
        Retained,
        ReturnedJob,
        TermChanged,
        Tick,
        Ticked,
        TombstoneLease,
        UpdatedJob,
    )
    from compactlib.scheduler.model.values import (
        ANONYMOUS_TENANT,
        BlockEntry,
        BlockMeta,
        BlockTombstones,
        Command,
        CompactedBlocks,
        JobPhase,
        JobPlan,
        JobState,
        JobStatus,
        NoOutput,
        ShardTombstone,
        Tombstone,
    )
    from compactlib.scheduler.persistence.codec import decode_command, decode_message, encode_command, encode_message
    from compactlib.scheduler.plan.policies.by_priority import ByPriority
    from compactlib.scheduler.plan.policies.fair_tenants import FairTenants
    from compactlib.scheduler.plan.policies.smallest_first import SmallestFirst
    from compactlib.scheduler.plan.policy import (
        AssignmentPolicy,
        AssignmentView,
        JobChoice,
        LevelView,
        TenantLine,
        WaitingJob,
    )
    from compactlib.scheduler.queue.metadata_index import MetadataIndex
    from compactlib.scheduler.queue.state import QuarantinedJob, SchedulerState
    from compactlib.scheduler.queue.tombstones import Tombstones
    from compactlib.scheduler.service.service import SchedulerService
    from compactlib.scheduler.service.store import StoredScheduler
    from compactlib.scheduler.workers.running_job import Cleanup, Execute, RunningJob, output_block_id
    from compactlib.scheduler.workers.transport import SealedPolls, Transport
    from compactlib.scheduler.workers.worker import Polled, Worker, WorkerOptions

__all__ = [
    "ANONYMOUS_TENANT",
    "AddBlocks",
    "Admission",
    "AlreadyApplied",
    "Applied",
    "ApplyResult",
    "AssignedJob",
    "Assignment",
    "AssignmentPolicy",
    "AssignmentView",
    "BadConfig",
    "BlockEntry",
    "BlockMeta",
    "BlockTombstones",
    "BlocksAdded",
    "ByPriority",
    "Cleanup",
    "Command",
    "CommandOutOfOrder",
    "Commitment",
    "CommittedOtherwise",
    "CompactedBlocks",
    "CompletedJob",
    "EvictedJob",
    "Execute",
    "FairTenants",
    "Fence",
    "FencedOff",
    "FileFence",
    "JobChoice",
    "JobLost",
    "JobNotFound",
    "JobPhase",
    "JobPlan",
    "JobState",
    "JobStatus",
    "JournalConflict",
    "KVFence",
    "LevelConfig",
    "LevelView",
    "LockingFence",
    "MemoryFence",
    "MetadataIndex",
    "NewJob",
    "NoOutput",
    "Operation",
    "PlanUpdate",
    "PollRequest",
    "PollResponse",
    "Polled",
    "QuarantinedJob",
    "RefusedOutputs",
    "ReleaseJob",
    "Requeue",
    "Requeued",
    "Retain",
    "Retained",
    "ReturnedJob",
    "RunningJob",
    "SchedulerConfig",
    "SchedulerService",
    "SchedulerState",
    "SealedPolls",
    "ShardTombstone",
    "SmallestFirst",
    "StatusAnswer",
    "StatusUpdate",
    "StoredScheduler",
    "TenantLine",
    "TermChanged",
    "Tick",
    "Ticked",
    "TokenFence",
    "TokenSealer",
    "Tombstone",
    "TombstoneLease",
    "Tombstones",
    "Transport",
    "UpdatedJob",
    "Verdict",
    "WaitingJob",
    "Worker",
    "WorkerOptions",
    "decode_command",
    "decode_message",
    "encode_command",
    "encode_message",
    "output_block_id",
    "owns",
]

load_lazily(__name__, {
    ".plan.policy": ("AssignmentPolicy", "AssignmentView", "JobChoice", "LevelView", "TenantLine", "WaitingJob"),
    ".plan.policies.by_priority": ("ByPriority",),
    ".persistence.codec": ("decode_command", "decode_message", "encode_command", "encode_message"),
    ".config": ("LevelConfig", "SchedulerConfig"),
    ".errors": ("BadConfig", "CommandOutOfOrder", "CommittedOtherwise", "FencedOff", "JobLost", "JobNotFound",
                "JournalConflict", "ReleaseJob"),
    ".plan.policies.fair_tenants": ("FairTenants",),
    ".fences.fence": ("Admission", "Commitment", "Fence", "LockingFence", "MemoryFence", "TokenFence"),
    ".fences.fence_file": ("FileFence",),
    ".fences.fence_kv": ("KVFence",),
    ".queue.metadata_index": ("MetadataIndex",),
    ".model.values": ("ANONYMOUS_TENANT", "BlockEntry", "BlockMeta", "BlockTombstones", "Command", "CompactedBlocks",
               "JobPhase", "JobPlan", "JobState", "JobStatus", "NoOutput", "ShardTombstone", "Tombstone"),
    ".model.poll": ("Assignment", "PollRequest", "PollResponse", "StatusAnswer", "StatusUpdate", "Verdict"),
    ".workers.running_job": ("Cleanup", "Execute", "RunningJob", "output_block_id"),
    ".service.service": ("SchedulerService",),
    ".plan.policies.smallest_first": ("SmallestFirst",),
    ".queue.state": ("QuarantinedJob", "SchedulerState"),
    ".service.store": ("StoredScheduler",),
    ".fences.token": ("TokenSealer", "owns"),
    ".queue.tombstones": ("Tombstones",),
    ".workers.transport": ("SealedPolls", "Transport"),
    ".model.update": ("AddBlocks", "AlreadyApplied", "Applied", "ApplyResult", "AssignedJob", "BlocksAdded",
                "CompletedJob", "EvictedJob", "NewJob", "Operation", "PlanUpdate", "RefusedOutputs", "Requeue",
                "Requeued", "Retain", "Retained", "ReturnedJob", "TermChanged", "Tick", "Ticked", "TombstoneLease",
                "UpdatedJob"),
    ".workers.worker": ("Polled", "Worker", "WorkerOptions"),
})
