"""The scheduler's worker, and its policies on views of all kinds."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from compactlib.observe import Observer
from compactlib.scheduler import (
    Assignment,
    AssignmentView,
    ByPriority,
    CompactedBlocks,
    FairTenants,
    JobPlan,
    JobStatus,
    LevelView,
    NoOutput,
    PollRequest,
    PollResponse,
    RunningJob,
    SmallestFirst,
    StatusAnswer,
    TenantLine,
    Verdict,
    WaitingJob,
    Worker,
    WorkerOptions,
)
from compactlib.testing import ServiceFactory, ServiceHooks

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


def views() -> st.SearchStrategy[AssignmentView]:
    """What a poll may meet: any jobs of up to three levels and four tenants, also none."""
    jobs = st.builds(WaitingJob, name=st.uuids().map(str), tenant=st.sampled_from("ABCD"), shard=st.just(0),
                     level=st.integers(0, 2), blocks=st.integers(1, 20), size_bytes=st.integers(0, 1 << 30),
                     added_at=st.floats(0, 2e9), failures=st.integers(0, 3), is_reclaimed=st.booleans())
    some = st.lists(jobs, max_size=12, unique_by=lambda job: job.name)

    def view(drawn: tuple[list[WaitingJob], int, int, list[int]]) -> AssignmentView:
        found, capacity, others, virtual = drawn
        levels = []
        for number in sorted({job.level for job in found}):
            ready = tuple(job for job in found if job.level == number and not job.failures)
            again = tuple(job for job in found if job.level == number and job.failures)
            lines = sorted((virtual["ABCD".index(tenant)], tenant) for tenant in {job.tenant for job in ready})
            levels.append(LevelView(number, len(found) % 7, ready, again, tuple(
                TenantLine(tenant, time, tuple(job for job in ready if job.tenant == tenant))
                for time, tenant in lines)))
        return AssignmentView(capacity=capacity, levels=tuple(levels), queued=len(found) + others, leased=others)

    return st.tuples(some, st.integers(1, 15), st.integers(0, 3),
                     st.lists(st.integers(0, 1 << 22), min_size=4, max_size=4)).map(view)


SERVICES = (Workers(),)
POLICIES = tuple((policy, views()) for policy in (
    ByPriority(), ByPriority(0.3), FairTenants(), FairTenants({"A": 3}, higher_level_share=0.5), SmallestFirst(),
    SmallestFirst(max_wait_seconds=60.0, window=3, higher_level_share=0.2)))
