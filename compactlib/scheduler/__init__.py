# SPDX-License-Identifier: Apache-2.0
"""A scheduler of compaction jobs with leases, fenced by the log's index (Grafana Pyroscope).

Blocks are queued per tenant, shard and level, and become jobs; workers poll, get jobs with a lease and
a fencing token, and report. The log's index is the only identity and its time the only clock.

>>> from compactlib.clock import ManualClock
>>> from compactlib.commandlog import KVLog
>>> from compactlib.kv import MemoryStore, SnapshotStore
>>> from compactlib.scheduler import (
...     BlockMeta, JobStatus, LevelConfig, PollRequest, Scheduler, SchedulerConfig, StatusUpdate)
>>> store, clock = MemoryStore(), ManualClock(1000.0)
>>> config = SchedulerConfig(levels=(LevelConfig(max_blocks=2),))
>>> scheduler = Scheduler(KVLog(store, clock=clock), SnapshotStore(store), config)
>>> added = scheduler.add_blocks(BlockMeta(id=f"block-{n}", tenant="acme", shard=7, level=0) for n in range(4))
>>> planned = scheduler.poll(PollRequest(job_capacity=1))
>>> answer = scheduler.poll(PollRequest(job_capacity=1))
>>> [job] = answer.compaction_jobs
>>> job.source_blocks, answer.assignments[0].token, answer.assignments[0].lease_expires_at
(('block-0', 'block-1'), 4, 1015.0)
>>> late = scheduler.poll(PollRequest((StatusUpdate(job.name, token=3, status=JobStatus.SUCCESS),)))
>>> late.answers[0].verdict
<Verdict.STALE_TOKEN: 'stale token'>
"""

from typing import TYPE_CHECKING

from compactlib._lazy import offer

if TYPE_CHECKING:
    from compactlib.scheduler.config import LevelConfig as LevelConfig, SchedulerConfig as SchedulerConfig
    from compactlib.scheduler.http import (
        SchedulerApplication as SchedulerApplication,
        SchedulerClient as SchedulerClient,
    )
    from compactlib.scheduler.machine import SchedulerMachine as SchedulerMachine
    from compactlib.scheduler.policies import (
        ByPriority as ByPriority,
        FairTenants as FairTenants,
        SmallestFirst as SmallestFirst,
    )
    from compactlib.scheduler.policy import (
        AssignmentPolicy as AssignmentPolicy,
        AssignmentView as AssignmentView,
        JobChoice as JobChoice,
    )
    from compactlib.scheduler.scheduler import Scheduler as Scheduler
    from compactlib.scheduler.update import (
        AddBlocks as AddBlocks,
        Configure as Configure,
        Requeue as Requeue,
        Retain as Retain,
    )
    from compactlib.scheduler.values import (
        Assignment as Assignment,
        BlockMeta as BlockMeta,
        CompactedBlocks as CompactedBlocks,
        JobPhase as JobPhase,
        JobPlan as JobPlan,
        JobStatus as JobStatus,
        NoOutput as NoOutput,
        PollRequest as PollRequest,
        PollResponse as PollResponse,
        StatusAnswer as StatusAnswer,
        StatusUpdate as StatusUpdate,
        Tombstone as Tombstone,
        Verdict as Verdict,
        span_of as span_of,
    )
    from compactlib.scheduler.worker import (
        RunningJob as RunningJob,
        Transport as Transport,
        Worker as Worker,
        WorkerOptions as WorkerOptions,
    )
else:
    offer(__name__, {
        "compactlib.scheduler.config": "LevelConfig SchedulerConfig",
        "compactlib.scheduler.http": "SchedulerApplication SchedulerClient",
        "compactlib.scheduler.machine": "SchedulerMachine",
        "compactlib.scheduler.policies": "ByPriority FairTenants SmallestFirst",
        "compactlib.scheduler.policy": "AssignmentPolicy AssignmentView JobChoice",
        "compactlib.scheduler.scheduler": "Scheduler",
        "compactlib.scheduler.update": "AddBlocks Configure Requeue Retain",
        "compactlib.scheduler.values":
            "Assignment BlockMeta CompactedBlocks JobPhase JobPlan JobStatus NoOutput PollRequest "
            "PollResponse StatusAnswer StatusUpdate Tombstone Verdict span_of",
        "compactlib.scheduler.worker": "RunningJob Transport Worker WorkerOptions",
    })
