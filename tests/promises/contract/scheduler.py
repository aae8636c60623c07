# SPDX-License-Identifier: Apache-2.0
"""The scheduler's worker, and its policies on views of all kinds."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from compactlib.observer import Observer
from compactlib.scheduler import (
    Assignment,
    ByPriority,
    CompactedBlocks,
    FairTenants,
    JobPlan,
    JobStatus,
    NoOutput,
    PollRequest,
    PollResponse,
    RunningJob,
    SmallestFirst,
    StatusAnswer,
    Verdict,
    Worker,
    WorkerOptions,
)
from compactlib.testing.views import job_views
from tests.promises.contract.services import ServiceFactory, ServiceHooks

_EVERY = 3


class _Desk:
    """A scheduler that has a job for every third poll, so that a worker is idle in between; by hand, at once."""

    def __init__(self, hooks: ServiceHooks) -> None:
        self._hooks = hooks
        self._polls = 0
        self._lock = threading.Lock()

    def poll(self, request: PollRequest) -> PollResponse:
        self._hooks.decides()
        with self._lock:
            self._polls += 1
            number = self._polls
        renewed = [Assignment(said.name, said.token, 60.0) for said in request.status_updates
                   if said.status == JobStatus.IN_PROGRESS]
        answers = tuple(StatusAnswer(said.name, Verdict.ACCEPTED) for said in request.status_updates)
        is_by_hand = threading.current_thread() is threading.main_thread()
        if not request.job_capacity or (number % _EVERY and not is_by_hand):
            return PollResponse((), tuple(renewed), answers)
        plan = JobPlan(name=f"job-{number}", tenant="A", shard=0, compaction_level=0, source_blocks=("a",))
        return PollResponse((plan,), (*renewed, Assignment(plan.name, number, 60.0)), answers)


class Workers(ServiceFactory):
    def make(self, folder: Path, hooks: ServiceHooks, *, observer: Observer) -> Worker:
        def execute(job: RunningJob) -> CompactedBlocks:
            hooks.works(job.budget)
            return CompactedBlocks(tenant="A", shard=0, source_blocks=("a",), no_output=NoOutput.EMPTY)

        return Worker(_Desk(hooks), execute, observer=observer,
                      options=WorkerOptions(poll_seconds=0.05, max_poll_seconds=0.1))

    def held(self, service: Any) -> Sequence[object]:
        return tuple(service.jobs)


SERVICES = (Workers(),)
POLICIES = tuple((policy, job_views()) for policy in (
    ByPriority(), FairTenants(), FairTenants({"A": 3}), SmallestFirst(),
    SmallestFirst(max_wait_seconds=60.0, window=3)))
