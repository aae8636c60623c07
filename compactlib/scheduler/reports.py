# SPDX-License-Identifier: Apache-2.0
"""`judge`: the verdict on a worker's report; changes nothing.

`prepare` counts the freed slots, and `apply` acts on the verdict.
"""

from __future__ import annotations

from collections.abc import Collection

from compactlib.commandlog.protocol import Command
from compactlib.scheduler.state import SchedulerState
from compactlib.scheduler.values import (
    ANONYMOUS_TENANT,
    CompactedBlocks,
    JobPlan,
    JobStatus,
    StatusAnswer,
    StatusUpdate,
    Verdict,
)

TAKES_EFFECT = frozenset({Verdict.ACCEPTED, Verdict.BAD_RESULT, Verdict.SOURCES_GONE})
"""Verdicts on a report of the job's holder; other verdicts do not change the job."""


def judge(state: SchedulerState, command: Command, said: StatusUpdate, reported: Collection[str]) -> StatusAnswer:
    """Return the answer to a report. O(sources + outputs).

    Args:
        state: the scheduler's state.
        command: the poll's command.
        said: the report.
        reported: jobs that an earlier report of this poll has changed.
    """
    job, now, lease_seconds = state.jobs.get(said.name), command.appended_at, state.config.lease_seconds
    if said.name in reported:
        verdict, detail = Verdict.DUPLICATE, ""
    elif job is None:
        verdict, detail = Verdict.NOT_FOUND, ""
    elif said.token < job.token:
        verdict, detail = Verdict.STALE_TOKEN, f"token {said.token} is below the job's {job.token}"
    elif said.token > command.index:
        verdict, detail = Verdict.FUTURE_TOKEN, f"token {said.token} is above the log's index {command.index}"
    elif not JobStatus.IN_PROGRESS <= said.status <= JobStatus.RELEASED:
        verdict, detail = Verdict.BAD_STATUS, f"a worker may not send the status {said.status}"
    elif job.status is not JobStatus.IN_PROGRESS:
        verdict, detail = Verdict.WRONG_STATE, "the job is not assigned"
    else:
        verdict, detail = _judge_results(state, job.plan, said)
        until = now + lease_seconds if said.status == JobStatus.IN_PROGRESS else None
        return StatusAnswer(said.name, verdict, until, detail)
    is_leased = job is not None and job.status is JobStatus.IN_PROGRESS
    return StatusAnswer(said.name, verdict, min(job.lease_expires_at, now + lease_seconds)
                        if job is not None and is_leased else None, detail)


def frees_slot(said: StatusUpdate, answer: StatusAnswer) -> bool:
    """Return whether the answer stops a job that occupies a slot of the worker.

    The worker's capacity already has the slot of a job that it reports as ended, so a SUCCESS for an unknown job frees
    none.
    """
    return (answer.verdict not in TAKES_EFFECT and answer.verdict is not Verdict.DUPLICATE
            and said.status not in (JobStatus.SUCCESS, JobStatus.FAILED, JobStatus.RELEASED))


def leaves_outputs(said: StatusUpdate, answer: StatusAnswer) -> bool:
    """Return whether the report has outputs of an earlier holder, which are to be deleted."""
    return (said.status == JobStatus.SUCCESS and answer.verdict in (Verdict.NOT_FOUND, Verdict.STALE_TOKEN)
            and said.compacted_blocks is not None and bool(said.compacted_blocks.new_blocks))


def _judge_results(state: SchedulerState, plan: JobPlan, said: StatusUpdate) -> tuple[Verdict, str]:
    results = said.compacted_blocks
    if said.status != JobStatus.SUCCESS:
        return Verdict.ACCEPTED, ""
    problem = result_problem(plan, results)
    if problem is not None or results is None:
        return Verdict.BAD_RESULT, problem or ""
    if len(state.index.find(plan.tenant, plan.shard, results.source_blocks)) < len(results.source_blocks):
        return Verdict.SOURCES_GONE, ""
    covered = next((block.id for block in results.new_blocks if state.tombstones.covers(block)), None)
    if covered is not None:
        # The same outputs have a tombstone: the job is retried after their deletion.
        return Verdict.BAD_RESULT, f"new block {covered!r} waits for deletion; the job is tried again later"
    return Verdict.ACCEPTED, ""


def result_problem(plan: JobPlan, results: CompactedBlocks | None) -> str | None:
    """Return why the results do not fit the job, or `None` if they do."""
    if results is None:
        return "no results were given; send compacted_blocks with SUCCESS"
    tenant, shard, level = plan.tenant, plan.shard, plan.compaction_level + 1
    sources, blocks = results.source_blocks, results.new_blocks
    if results.tenant != tenant or results.shard != shard:
        return (f"results are for tenant {results.tenant!r} and shard {results.shard}, the job is for {tenant!r} and "
                f"{shard}")
    strange = set(sources) - set(plan.source_blocks)
    if strange:
        return f"{len(strange)} sources are not the job's, the first is {min(strange)!r}"
    if len(set(sources)) != len(sources):
        return "a source is named twice"
    if (results.no_output is None) != bool(blocks):
        return f"{len(blocks)} new blocks and no_output {results.no_output}; give one of the two"
    if blocks and not sources:
        return f"{len(blocks)} new blocks were made of no sources"
    if len({(block.tenant, block.id) for block in blocks}) != len(blocks):
        return f"a block is named twice among {len(blocks)} new ones"
    for block in blocks:
        if block.level != level or block.shard != shard:
            return (f"new block {block.id!r} has level {block.level} and shard {block.shard}; the job's outputs have "
                    f"{level} and {shard}")
        if block.tenant != tenant and tenant != ANONYMOUS_TENANT:
            return f"new block {block.id!r} is of tenant {block.tenant!r}, the job's is {tenant!r}"
    return None
