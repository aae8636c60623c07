# SPDX-License-Identifier: Apache-2.0
"""Carries out the completion of a job: its sources are replaced by what the worker wrote.

See `docs/design/scheduler.md` for how Pyroscope does it, and for the differences.
"""

from __future__ import annotations

from collections.abc import Iterable

import attrs

from compactlib.scheduler.apply.effects import Effects
from compactlib.scheduler.model.poll import Verdict
from compactlib.scheduler.model.update import CompletedJob
from compactlib.scheduler.model.values import BlockMeta, CompactedBlocks, NoOutput
from compactlib.scheduler.queue.block_queue import Pushed
from compactlib.scheduler.queue.job import Job
from compactlib.scheduler.queue.metadata_index import AddOutcome
from compactlib.scheduler.queue.results import unread_sources
from compactlib.scheduler.queue.state import SchedulerState


def complete(effects: Effects, item: CompletedJob) -> None:
    """Take the job out of the queue and do with its blocks what the results say, unless the job has changed since."""
    state, name, results = effects.state, item.state.name, item.compacted_blocks
    job = state.jobs.get(name)
    if job is None or job.token != item.state.token:
        effects.verdicts[name] = Verdict.SUPERSEDED
        if results is not None:
            refuse_outputs(effects, name, results.new_blocks)
        return
    finish(effects, ((job, results),))


def finish(effects: Effects, completed: Iterable[tuple[Job, CompactedBlocks | None]]) -> None:
    """As `complete`, for jobs that have not changed since, one after the other."""
    state = effects.state
    jobs, tombstones, index = state.jobs, state.tombstones, state.index
    levels = len(state.blocks.levels)
    for job, results in completed:
        if results is None:
            jobs.complete(job)
            continue
        sources, blocks = results.source_blocks, results.new_blocks
        gone = index is not None and sources_gone(state, job, results)
        if not gone and tombstones._first_covered(blocks) is not None:
            # They were given up between prepare and apply; the worker keeps the job and learns it with its next poll.
            effects.verdicts[job.name] = Verdict.SUPERSEDED
            continue
        jobs.complete(job, sources)
        if gone:
            effects.verdicts[job.name] = Verdict.SOURCES_GONE
            effects.throw_away(job.name, (*job.orphans, *blocks))
            _queue_survivors(effects, job)
            continue
        if sources and (blocks or results.no_output is NoOutput.EMPTY):
            # The sources, of which there is at least one, go, and the new blocks come.
            tombstones._add_blocks(effects.command, job.name, job.tenant, job.shard, job.compaction_level, sources)
            if index is not None:
                index.remove(job.tenant, job.shard, sources)
            for block in blocks:
                if index is not None or block.level < levels:
                    _queue_output(effects, block)
        effects.completed(job, blocks)
        if job.orphans:
            settle_orphans(effects, job, blocks)
        if results.no_output is not None or len(sources) != job.source_count:
            _quarantine_unread(effects, job, results)


def _quarantine_unread(effects: Effects, job: Job, results: CompactedBlocks) -> None:
    """The sources that the worker did not find, if there are any, go where an operator sees them."""
    unread, index = unread_sources(job, results), effects.state.index
    if unread and index is not None:
        # What retention has removed meanwhile is missed by nobody.
        unread = tuple(block.id for block in index.find(job.tenant, job.shard, unread))
    if unread:
        effects.quarantine(attrs.evolve(job.plan(), source_blocks=unread, tombstones=()),
                           "the worker did not find these sources", job.failures)


def refuse_outputs(effects: Effects, name: str, blocks: tuple[BlockMeta, ...]) -> None:
    """Deal with blocks written by a worker that did not hold the job.

    While another worker holds it, they may be the very blocks that the holder writes, since ids are derived from the
    sources: they are remembered with the job until it ends. A quarantined job may be run again as well.
    """
    job = effects.state.jobs.get(name)
    given_up = effects.state.quarantine.get(name)
    if job is not None:
        job.orphans = _joined(job.orphans, blocks)
    elif given_up is not None:
        effects.state.give_up(attrs.evolve(given_up, orphans=_joined(given_up.orphans, blocks)))
    else:
        effects.throw_away(name, blocks)


def settle_orphans(effects: Effects, job: Job, owned: tuple[BlockMeta, ...]) -> None:
    """The job has ended: what others wrote for it is deleted, except what became the job's own output."""
    kept = {(block.tenant, block.id) for block in owned}
    effects.throw_away(job.name, (block for block in job.orphans if (block.tenant, block.id) not in kept))


MAX_ORPHANS = 10_000
"""Blocks remembered for one job that late workers wrote; more are not deleted."""


def _joined(orphans: tuple[BlockMeta, ...], blocks: tuple[BlockMeta, ...]) -> tuple[BlockMeta, ...]:
    known = {(block.tenant, block.id) for block in orphans}
    return (*orphans, *(block for block in blocks if (block.tenant, block.id) not in known))[:MAX_ORPHANS]


def sources_gone(state: SchedulerState, job: Job, results: CompactedBlocks) -> bool:
    """Whether the metadata index has lost a source that was read, while the job ran."""
    index = state.index
    return index is not None and bool(index.missing(job.tenant, job.shard, results.source_blocks))


def _queue_survivors(effects: Effects, job: Job) -> None:
    """Those sources that still exist wait for compaction again."""
    index = effects.state.index
    assert index is not None
    for block_id in job.source_blocks:
        block = index.get(job.tenant, job.shard, block_id)
        if block is not None:
            queue_block(effects, block)


def _queue_output(effects: Effects, block: BlockMeta) -> None:
    """A new block comes into index and queue; one that is known already stays where it is, in a job perhaps."""
    state, index = effects.state, effects.state.index
    if index is not None:
        is_new = index.add(block) is AddOutcome.ADDED
    else:
        is_new = not state.is_taken((block.tenant, block.shard, block.level), block.id)
    if is_new:
        state.blocks.push_meta(block, effects.command.appended_at)


def queue_block(effects: Effects, block: BlockMeta) -> bool:
    """Let the block wait for compaction; `False` if it waits already or its level is not compacted."""
    return effects.state.blocks.push_meta(block, effects.command.appended_at) is Pushed.QUEUED
