# SPDX-License-Identifier: Apache-2.0
"""A scheduler of compaction jobs with leases, fenced by the Raft log index (Grafana Pyroscope).

Blocks are queued per tenant, shard and level; full or old batches become jobs; workers poll, get jobs with a lease and
a fencing token, and report. The log's index is the only identity and its time the only clock.

>>> from compactlib.scheduler import (
...     AddBlocks,
...     BlockMeta,
...     JobStatus,
...     LevelConfig,
...     PollRequest,
...     SchedulerConfig,
...     SchedulerService,
...     StatusUpdate,
... )
>>> from compactlib.scheduler.model.values import Command
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

from compactlib._lazy import offer

if TYPE_CHECKING:
    from compactlib.scheduler.config import LevelConfig as LevelConfig, SchedulerConfig as SchedulerConfig
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
else:
    offer(__name__, {
        "compactlib.scheduler.config": "LevelConfig SchedulerConfig",
        "compactlib.scheduler.model.poll": "Assignment PollRequest PollResponse StatusAnswer StatusUpdate Verdict",
        "compactlib.scheduler.model.update": "AddBlocks Configure Requeue Retain Tick",
        "compactlib.scheduler.model.values":
            "BlockMeta BlockTombstones Command CompactedBlocks JobPlan JobStatus NoOutput Tombstone span_of",
        "compactlib.scheduler.plan.policies.by_priority": "ByPriority",
        "compactlib.scheduler.plan.policies.fair_tenants": "FairTenants",
        "compactlib.scheduler.plan.policies.smallest_first": "SmallestFirst",
        "compactlib.scheduler.plan.policy": "AssignmentPolicy AssignmentView JobChoice",
        "compactlib.scheduler.service.service": "SchedulerService",
        "compactlib.scheduler.service.store": "StoredScheduler",
        "compactlib.scheduler.workers.running_job": "RunningJob",
        "compactlib.scheduler.workers.transport": "Transport",
        "compactlib.scheduler.workers.worker": "Worker WorkerOptions",
    })
