# SPDX-License-Identifier: Apache-2.0
"""Checks what a worker reports against what it was asked to do.

See `docs/design/scheduler.md` for how Pyroscope does it, and for the differences.
"""

from __future__ import annotations

from compactlib.scheduler.model.values import ANONYMOUS_TENANT, BlockMeta, CompactedBlocks, NoOutput
from compactlib.scheduler.queue.job import Job


def result_problem(job: Job, results: CompactedBlocks | None) -> str | None:
    """Why the results cannot be those of the job, or `None` if they can. O(sources + outputs)."""
    if results is None:
        return "no results were given; send compacted_blocks with SUCCESS"
    if (results.tenant, results.shard) != (job.tenant, job.shard):
        return (f"results are for tenant {results.tenant!r} and shard {results.shard}, the job is for "
                f"{job.tenant!r} and {job.shard}")
    if not job.has_sources(results.source_blocks):
        strange = set(results.source_blocks) - set(job.source_blocks)
        if strange:
            return f"{len(strange)} sources are not the job's, the first is {min(strange)!r}"
        if len(set(results.source_blocks)) != len(results.source_blocks):
            return "a source is named twice"
    if (results.no_output is None) != bool(results.new_blocks):
        return f"{len(results.new_blocks)} new blocks and no_output {results.no_output}; give one of the two"
    if results.new_blocks and not results.source_blocks:
        return f"{len(results.new_blocks)} new blocks were made of no sources"
    return _output_problem(job, results)


def _output_problem(job: Job, results: CompactedBlocks) -> str | None:
    level = job.state.compaction_level + 1
    blocks = results.new_blocks
    if len(blocks) > 1 and len({(block.tenant, block.id) for block in blocks}) != len(blocks):
        return f"a block is named twice among {len(blocks)} new ones"
    for block in blocks:
        if block.level != level or block.shard != job.shard:
            return (f"new block {block.id!r} has level {block.level} and shard {block.shard}; the job's outputs have "
                    f"{level} and {job.shard}")
        if job.tenant not in (ANONYMOUS_TENANT, block.tenant):
            return f"new block {block.id!r} is of tenant {block.tenant!r}, the job's is {job.tenant!r}"
    return None


def unread_sources(job: Job, results: CompactedBlocks) -> tuple[str, ...]:
    """The job's sources that the worker did not find. O(sources)."""
    if results.no_output is NoOutput.MISSING:
        return job.source_blocks
    if job.has_sources(results.source_blocks):
        return ()
    read = set(results.source_blocks)
    return tuple(block_id for block_id in job.source_blocks if block_id not in read)


def by_place(blocks: tuple[BlockMeta, ...]) -> dict[tuple[str, int, int], list[str]]:
    """Ids by (tenant, shard, level), in order."""
    found: dict[tuple[str, int, int], list[str]] = {}
    for block in blocks:
        found.setdefault((block.tenant, block.shard, block.level), []).append(block.id)
    return found
