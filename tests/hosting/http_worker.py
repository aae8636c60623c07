# SPDX-License-Identifier: Apache-2.0
"""A worker in a process of its own: `python -m tests.hosting.http_worker URL,URL...`.

Says the name of each job that the scheduler has taken note of as done, a line each, and ends with its standard input.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from compactlib.hosting.http.client import SchedulerClient
from compactlib.runtime import Observer
from compactlib.scheduler import BlockMeta, CompactedBlocks, RunningJob, Worker, WorkerOptions


class Told(Observer):
    """Says which jobs were accepted."""

    def event(self, name: str, fields: Mapping[str, Any]) -> None:
        if name == "scheduler_job_reported" and (fields["status"], fields["verdict"]) == ("SUCCESS", "ACCEPTED"):
            sys.stdout.write(f"{fields['job']}\n")
            sys.stdout.flush()


def execute(job: RunningJob) -> CompactedBlocks:
    """One block out of all sources."""
    plan = job.plan
    job.check()
    made = BlockMeta(id=job.output_id(), tenant=plan.tenant, shard=plan.shard, level=plan.compaction_level + 1)
    return CompactedBlocks(tenant=plan.tenant, shard=plan.shard, source_blocks=plan.source_blocks, new_blocks=(made,))


def main(urls: str) -> None:
    """Work until standard input ends."""
    options = WorkerOptions(capacity=3, poll_seconds=0.02, max_poll_seconds=0.2)
    with SchedulerClient(urls.split(","), timeout_seconds=5.0) as client, \
            Worker(client, execute, options=options, observer=Told()):
        sys.stdin.read()


if __name__ == "__main__":
    main(*sys.argv[1:])
