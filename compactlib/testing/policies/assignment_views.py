# SPDX-License-Identifier: Apache-2.0
"""What a poll may meet, for trying a policy of the scheduler's: which jobs may be assigned, and to whom."""

from __future__ import annotations

from compactlib.errors import MissingDependency
from compactlib.scheduler.plan.policy import (
    AssignmentPolicy,
    AssignmentView,
    JobChoice,
    LevelView,
    TenantLine,
    WaitingJob,
)
from compactlib.testing.policies.policy_conformance import check_policy
from compactlib.testing.promises import PromiseBroken

try:
    from hypothesis import strategies as st
except ImportError:
    raise MissingDependency(package="hypothesis", extra="testing", purpose="trying a policy on random input") from None

_TENANTS = "ABCD"
_STRIDE = 1 << 20


def assignment_views(*, max_jobs: int = 12) -> st.SearchStrategy[AssignmentView]:
    """Jobs of up to three levels and four tenants, some of whom have had turns; also none. Shrinks to no jobs."""
    jobs = st.builds(
        WaitingJob, name=st.uuids().map(str), tenant=st.sampled_from(_TENANTS), shard=st.just(0),
        level=st.integers(0, 2), blocks=st.integers(1, 20), size_bytes=st.integers(0, 1 << 30),
        added_at=st.integers(0, 2_000_000_000).map(float), failures=st.integers(0, 3))
    return st.builds(
        _view, st.lists(jobs, max_size=max_jobs, unique_by=lambda job: job.name), st.integers(1, max_jobs + 3),
        st.integers(0, 3), st.lists(st.integers(0, 4 * _STRIDE), min_size=len(_TENANTS), max_size=len(_TENANTS)))


def _view(jobs: list[WaitingJob], capacity: int, leased: int, virtual: list[int]) -> AssignmentView:
    levels = []
    for number in sorted({job.level for job in jobs}):
        ready = tuple(job for job in jobs if job.level == number and not job.failures)
        again = tuple(job for job in jobs if job.level == number and job.failures)
        turns = sorted((virtual[_TENANTS.index(tenant)], tenant) for tenant in {job.tenant for job in ready})
        tenants = tuple(TenantLine(tenant, time, tuple(job for job in ready if job.tenant == tenant))
                        for time, tenant in turns)
        levels.append(LevelView(number, len(jobs) % 7, ready, again, tenants))
    return AssignmentView(capacity=capacity, levels=tuple(levels), queued=len(jobs) + leased, leased=leased)


def check_assignment_policy(policy: AssignmentPolicy, *, max_examples: int = 100) -> None:
    """Try a scheduler's policy on random views: the contract of every policy, and that its choices can be carried out.

    Args:
        policy: configured as it will be used.
        max_examples: how many views.

    Raises:
        PromiseBroken: it does not keep the contract; the message says which rule, why there is one, and what to do.
    """
    check_policy(policy, assignment_views(), max_examples=max_examples, judge=_judge)


def _judge(view: AssignmentView, now: float, choice: JobChoice) -> None:
    there = {job.name for level in view.levels for jobs in (level.ready, level.again) for job in jobs}
    strange = [name for name in choice.jobs if name not in there]
    if strange or len(set(choice.jobs)) < len(choice.jobs) or len(choice.jobs) > view.capacity:
        raise PromiseBroken(
            test="check_assignment_policy", promise="a choice can be carried out", at=f"at {now}",
            found=f"{len(choice.jobs)} jobs for a capacity of {view.capacity}, {strange} not of the view",
            expected="jobs of the view, each once, and no more than there is room for",
            advice="take names from view.levels, and cut them to view.capacity; a poll that got another choice fails")
