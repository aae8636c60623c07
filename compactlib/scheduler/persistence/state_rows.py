# SPDX-License-Identifier: Apache-2.0
"""A scheduler's whole state as rows of plain values, and as one record of them with its settings, and back.

Two states that give the same rows give the same answers to everything. Rows come in the order in which they must be
loaded. The settings are stored with the state: what was carried out once is never judged again by other limits, and
others begin with a command of their own. Source: `docs/formats/scheduler-state.md`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Any

from compactlib.errors import CorruptData
from compactlib.scheduler.config import SchedulerConfig
from compactlib.scheduler.model.values import BlockMeta, Command, JobPlan, JobState
from compactlib.scheduler.persistence.codec import RecordKind, decode_record, encode_rows
from compactlib.scheduler.persistence.plain import Plain, from_plain, to_plain
from compactlib.scheduler.queue.metadata_index import MetadataIndex
from compactlib.scheduler.queue.state import QuarantinedJob, SchedulerState
from compactlib.scheduler.queue.timeline import Timeline
from compactlib.scheduler.queue.tombstones import TombstoneEntry


def dump_rows(state: SchedulerState) -> Iterator[list[Plain]]:
    """The rows of a state, which must not change meanwhile. O(everything), a row at a time."""
    time = state.timeline
    shared = sorted([level, count] for level, count in state.shared.items())
    yield ["state", to_plain(state.applied), state.index is not None, state.quarantine_dropped, shared,
           state.tombstones_dropped, time.latest, time.doubt, int(time.has_late_stamps), state.polled_term,
           state.tokens_above]
    if state.index is not None:
        dropped = sorted([*place, until] for place, until in state.index.dropped_until().items())
        yield ["index", state.index.partition_seconds, dropped]
        for block in state.index.blocks():
            yield ["block", to_plain(block)]
    for entry in sorted(state.tombstones, key=lambda entry: (entry.index, entry.position)):
        yield ["tombstone", entry.index, entry.position, entry.appended_at, entry.leased_until,
               to_plain(entry.tombstone)]
    yield from state.blocks.dump()
    for number, level in state.jobs.levels.items():
        turns = level.ready.dump()
        if turns:
            yield ["turns", number, *turns]
    for job in state.jobs:
        yield ["job", to_plain(job.state), to_plain(job.plan()), to_plain(job.orphans)]
    for given_up in state.quarantine.values():
        yield ["quarantined", to_plain(given_up)]


def load_rows(rows: Iterable[Plain], config: SchedulerConfig) -> SchedulerState:
    """The state that gave these rows; counters of what happened start at zero. O(rows * log n).

    Queued blocks of levels that are configured no more are left out.
    """
    left = iter(rows)
    state = _begin(next(left), config)
    tombstones: list[TombstoneEntry] = []
    for row in left:
        if row[0] == "tombstone":
            tombstones.append(TombstoneEntry(index=row[1], position=row[2], appended_at=row[3],
                                             leased_until=row[4], tombstone=from_plain(row[5])))
        else:
            _load_row(state, row)
    state.tombstones.restore(tombstones)
    for level in state.jobs.levels.values():
        level.ready.loaded()
    return state


def encode_state(state: SchedulerState) -> bytes:
    """A state, which must not change meanwhile, and its settings as a record. O(everything)."""
    return encode_rows(chain([to_plain(state.config), to_plain(state.opened_with)], dump_rows(state)))


def decode_state(data: bytes, place: str) -> SchedulerState:
    """The inverse of `encode_state`. O(everything * log n).

    Raises:
        CorruptData: the bytes are not those of a state.
        Unsupported: it was written by another release.
    """
    rows = decode_record(data, RecordKind.STATE, place)
    try:
        settings, opened_with, *rest = rows
        state = load_rows(rest, _of(SchedulerConfig, settings))
        state.opened_with = _of(SchedulerConfig, opened_with)
        return state
    except (ValueError, TypeError, LookupError, AttributeError, StopIteration, RecursionError) as error:
        raise CorruptData(path=place, offset=0, expected="the settings and rows of a scheduler's state",
                          found=f"{type(error).__name__}: {error}") from error


def under(state: SchedulerState, config: SchedulerConfig) -> SchedulerState:
    """The state as it goes on under other settings; the very same if they are no others. O(everything).

    Blocks of levels that were not compacted before, and are now, are queued; batches that are full now are flushed.
    """
    if config == state.config:
        return state
    again = load_rows(dump_rows(state), config)
    again.opened_with = state.opened_with
    again.tokens_above = max(state.tokens_above, config.tokens_above)
    for number, level in state.jobs.levels.items():
        again.jobs.level(number).counts = level.counts
    now = 0.0 if state.timeline.latest is None else state.timeline.latest
    for block in again.unaccounted_blocks():
        if block.level >= len(state.config.levels):
            again.blocks.push_meta(block, now)
    again.blocks.flush_full()
    return again


def _begin(row: Plain, config: SchedulerConfig) -> SchedulerState:
    tag, applied, has_index, dropped, shared, tombstones_dropped, latest, doubt, late, polled_term, above = row
    if tag != "state":
        raise ValueError(f"the first row is {tag!r}")
    state = SchedulerState(config, MetadataIndex() if has_index else None)
    state.applied = _of(Command, applied) if applied is not None else None
    state.quarantine_dropped = dropped
    state.shared = dict(shared)
    state.tombstones_dropped = tombstones_dropped
    state.timeline = Timeline(latest, doubt, bool(late))
    state.polled_term = polled_term
    state.tokens_above = above
    return state


def _load_row(state: SchedulerState, row: Plain) -> None:
    tag = row[0]
    if tag in ("queue", "group", "batch"):
        state.blocks.load(row)
    elif tag == "index":
        state.index = MetadataIndex(row[1])
        state.index.restore_dropped_until({(tenant, shard): until for tenant, shard, until in row[2]})
    elif tag == "block":
        if state.index is None:
            raise ValueError("a block without an index")
        state.index.add(_of(BlockMeta, row[1]))
    elif tag == "turns":
        state.jobs.level(row[1]).ready.load(row[2:])
    elif tag == "job":
        job_state, plan = _of(JobState, row[1]), _of(JobPlan, row[2])
        state.jobs.restore(job_state, plan, from_plain(row[3]))
    elif tag == "quarantined":
        state.give_up(_of(QuarantinedJob, row[1]))
    else:
        raise ValueError(f"{tag!r} is no tag of a row")


def _of(kind: type[Any], plain: Plain) -> Any:
    value = from_plain(plain)
    if type(value) is not kind:
        raise ValueError(f"a {type(value).__name__} stands where a {kind.__name__} belongs")
    return value
