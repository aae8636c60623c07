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

from compactlib._lazy import offer

offer(__name__)
