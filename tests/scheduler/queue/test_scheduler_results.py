# SPDX-License-Identifier: Apache-2.0
"""What is taken at first sight, of results and of times, is what a closer look would have taken."""

from __future__ import annotations

from typing import Any

import attrs
import pytest
from hypothesis import given, strategies as st

from compactlib.scheduler import BlockMeta, CompactedBlocks, JobPlan, JobStatus, NoOutput, StatusUpdate
from compactlib.scheduler.model.values import JobState
from compactlib.scheduler.persistence.plain import misfit
from compactlib.scheduler.queue.job import Job
from compactlib.scheduler.queue.results import are_recordable, result_problem
from compactlib.scheduler.queue.timeline import Timeline


class Text(str):
    """No text that can be recorded."""

    __slots__ = ()


PLAN = JobPlan(name="j", tenant="A", shard=1, compaction_level=0, source_blocks=("a", "b"))
OF_ALL = attrs.evolve(PLAN, tenant="")
BLOCK = BlockMeta(id="x", tenant="A", shard=1, level=1, min_time=0.0, max_time=0.0)
RESULTS = CompactedBlocks(tenant="A", shard=1, source_blocks=("a", "b"), new_blocks=(BLOCK,))
SAID = StatusUpdate("j", 5, JobStatus.SUCCESS, RESULTS)
BLOCKS: dict[str, tuple[Any, ...]] = {
    "id": ("y", Text("x")), "tenant": ("B", "", Text("A")), "shard": (0, 2, True), "level": (0, 2, True),
    "min_time": (-1, -1.0, False), "max_time": (1, 1.0, True), "size_bytes": (7, True), "rows": (None, 3),
    "columns": ("c",)}
FOUND: dict[str, tuple[Any, ...]] = {
    "tenant": ("", "B", Text("A"), None), "shard": (1.0, True, 2, "1"),
    "source_blocks": ((), ("a",), ("b", "a"), ("a", "a"), ("a", "b", "c"), ("a\nb",), (Text("a"), "b"), ["a", "b"]),
    "new_blocks": ((), [BLOCK], (BLOCK, BLOCK), (BLOCK, attrs.evolve(BLOCK, id="y")), (RESULTS,)),
    "no_output": (NoOutput.EMPTY, NoOutput.MISSING, "empty")}
UPDATES: dict[str, tuple[Any, ...]] = {"token": (5.0, True)}


def changes(of: dict[str, tuple[Any, ...]]) -> st.SearchStrategy[dict[str, Any]]:
    """At most two fields, as they may be and as they may not."""
    return st.lists(st.sampled_from([(name, value) for name, values in of.items() for value in values]),
                    max_size=2).map(dict)


@given(changes(BLOCKS), changes(FOUND), changes(UPDATES))
def test_results_that_are_taken_at_sight_can_be_recorded(of_block: dict[str, Any], of_results: dict[str, Any],
                                                         of_said: dict[str, Any]) -> None:
    block = attrs.evolve(BLOCK, **of_block)
    results = attrs.evolve(RESULTS, **{"new_blocks": (block,), **of_results})
    said = attrs.evolve(SAID, compacted_blocks=results, **of_said)
    if are_recordable(said, results):
        assert misfit(said, StatusUpdate) is None


@pytest.mark.parametrize("plan", [PLAN, OF_ALL])
def test_the_usual_results_are_taken_at_sight(plan: JobPlan) -> None:
    job = Job(JobState(name="j", compaction_level=0), plan)
    several = attrs.evolve(RESULTS, tenant=plan.tenant, new_blocks=(BLOCK, attrs.evolve(BLOCK, id="y", rows=3)))
    assert are_recordable(SAID, several)
    assert result_problem(job, several) is None


TIMES = st.sampled_from((None, 0.0, 60.0, 61.0, 1000.0, 3600.0, 3601.0, 4600.0, 4601.0, 1e9))


@given(TIMES, TIMES, st.booleans(), TIMES.filter(lambda now: now is not None))
def test_a_time_that_goes_on_is_taken_at_its_word(latest: float | None, doubt: float | None, late: bool,
                                                  now: float) -> None:
    timeline = Timeline(latest, doubt, late)
    if timeline.goes_on(now):
        moment = timeline.at(now)
        assert (moment.stamp, moment.expiry, moment.timeline) == (now, now, Timeline(now, None, late))
        assert moment.is_news_after(timeline) == late
