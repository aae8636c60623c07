# SPDX-License-Identifier: Apache-2.0
"""Checks what a worker reports against what it was asked to do.

See `docs/design/scheduler.md` for how Pyroscope does it, and for the differences.
"""

from __future__ import annotations

from compactlib.scheduler.model.poll import StatusUpdate
from compactlib.scheduler.model.values import ANONYMOUS_TENANT, BlockMeta, CompactedBlocks, NoOutput
from compactlib.scheduler.queue.job import Job


def are_recordable(said: StatusUpdate, results: CompactedBlocks) -> bool:
    """Whether all of these results is of types that can be recorded, as it is of those of nearly all; of others
    `misfit` says what is not, if anything is. O(sources + outputs)."""
    if type(results) is not CompactedBlocks or type(said.token) is not int:
        return False
    sources, blocks = results.source_blocks, results.new_blocks
    if (results.no_output is not None or type(results.tenant) is not str or type(results.shard) is not int
            or type(sources) is not tuple or type(blocks) is not tuple):
        return False
    for block_id in sources:
        if type(block_id) is not str:
            return False
    for block in blocks:
        if (type(block) is not BlockMeta or type(block.id) is not str or type(block.tenant) is not str
                or type(block.shard) is not int or type(block.level) is not int or type(block.size_bytes) is not int
                or (block.min_time is not None and type(block.min_time) is not float)
                or (block.max_time is not None and type(block.max_time) is not float)
                or (block.rows is not None and type(block.rows) is not int) or type(block.columns) is not str):
            return False
    return True


def result_problem(job: Job, results: CompactedBlocks | None) -> str | None:
    """Why the results cannot be those of the job, or `None` if they can. O(sources + outputs)."""
    if results is None:
        return "no results were given; send compacted_blocks with SUCCESS"
    tenant, shard, level = job.tenant, job.shard, job.compaction_level + 1
    sources, blocks = results.source_blocks, results.new_blocks
    if results.tenant != tenant or results.shard != shard:
        return (f"results are for tenant {results.tenant!r} and shard {results.shard}, the job is for {tenant!r} and "
                f"{shard}")
    if not job.has_sources(sources):
        strange = set(sources) - set(job.source_blocks)
        if strange:
            return f"{len(strange)} sources are not the job's, the first is {min(strange)!r}"
        if len(set(sources)) != len(sources):
            return "a source is named twice"
    if (results.no_output is None) != bool(blocks):
        return f"{len(blocks)} new blocks and no_output {results.no_output}; give one of the two"
    if blocks and not sources:
        return f"{len(blocks)} new blocks were made of no sources"
    if len(blocks) > 1 and len({(block.tenant, block.id) for block in blocks}) != len(blocks):
        return f"a block is named twice among {len(blocks)} new ones"
    for block in blocks:
        if block.level != level or block.shard != shard:
            return (f"new block {block.id!r} has level {block.level} and shard {block.shard}; the job's outputs have "
                    f"{level} and {shard}")
        if block.tenant != tenant and tenant != ANONYMOUS_TENANT:
            return f"new block {block.id!r} is of tenant {block.tenant!r}, the job's is {tenant!r}"
    return None


def unread_sources(job: Job, results: CompactedBlocks) -> tuple[str, ...]:
    """The job's sources that the worker did not find, of results that fit the job. O(sources), O(1) if it found all."""
    if results.no_output is NoOutput.MISSING:
        return job.source_blocks
    if len(results.source_blocks) == job.source_count:
        return ()
    read = set(results.source_blocks)
    return tuple(block_id for block_id in job.source_blocks if block_id not in read)


def by_place(blocks: tuple[BlockMeta, ...]) -> dict[tuple[str, int, int], list[str]]:
    """Ids by (tenant, shard, level), in order."""
    found: dict[tuple[str, int, int], list[str]] = {}
    for block in blocks:
        found.setdefault((block.tenant, block.shard, block.level), []).append(block.id)
    return found
