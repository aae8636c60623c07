# SPDX-License-Identifier: Apache-2.0
"""Judges of views find planted mistakes, and views reach the cases that policies get wrong."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import attrs
import pytest
from hypothesis import HealthCheck, Phase, find, settings

from compactlib.blobstore import BlobChoice, BlobView
from compactlib.raftlog import LogChoice, LogView
from compactlib.raftlog.compaction.policy import filled_groups
from compactlib.scheduler import AssignmentView, JobChoice
from compactlib.staging import StagingChoice
from compactlib.staging.policy import BranchPressure
from compactlib.testing import Views, check_policy
from compactlib.testing.views import blob_views, branch_pressures, job_views, log_views


@attrs.frozen
class Planted:
    """A policy that chooses by a function of this module, which has one mistake."""

    how: str
    name = "planted"

    def choose(self, view: Any, now: float) -> Any:
        return globals()[self.how](view)


def log_names_one_twice(view: LogView) -> LogChoice:
    return LogChoice(tuple((each.number,) for each in view.candidates[:1]) * 2, "the 1st, twice")


def log_invents_one(view: LogView) -> LogChoice:
    return LogChoice(((10_000_000,),), "1 made up")


def log_merges_all(view: LogView) -> LogChoice:
    numbers = tuple(each.number for each in view.candidates)
    return LogChoice((numbers,) if numbers else (), "all 1")


def log_rewrites_live_ones(view: LogView) -> LogChoice:
    return LogChoice(tuple((each.number,) for each in view.candidates), "each 1 of them")


def blob_takes_any(view: BlobView) -> BlobChoice:
    return BlobChoice(view.segments[:1], why="the 1st")


def blob_names_one_twice(view: BlobView) -> BlobChoice:
    return BlobChoice((*view.eligible[:1], *view.eligible[:1]), why="the 1st, twice")


def blob_takes_valid_ones(view: BlobView) -> BlobChoice:
    return BlobChoice(view.eligible[:1], why="the 1st")


def blob_answers_a_job_choice(view: BlobView) -> JobChoice:
    return JobChoice(("a",), "1 of them")


def always(view: BranchPressure) -> StagingChoice:
    return StagingChoice("1 of them")


def never(view: BranchPressure) -> StagingChoice:
    return StagingChoice("0 of them", is_empty=True)


def at_exactly_a_thousand(view: BranchPressure) -> StagingChoice:
    high = view.deletes == 1_000 or view.sealed_tokens == 10_000
    return StagingChoice(f"{view.deletes} deletes", is_empty=not high)


def job_ignores_capacity(view: AssignmentView) -> JobChoice:
    return JobChoice(tuple(job.name for level in view.levels for job in level.ready), "all 1")


def job_names_one_twice(view: AssignmentView) -> JobChoice:
    jobs = tuple(job.name for level in view.levels for job in level.ready)[:1]
    return JobChoice(jobs * 2 if view.capacity > 1 else (), "2 of them")


def job_invents_one(view: AssignmentView) -> JobChoice:
    return JobChoice(("unknown",), "1 of them")


VIEWS: dict[str, Views[Any]] = {
    "log": log_views(), "blob": blob_views(), "branch": branch_pressures(), "job": job_views()}


@pytest.mark.parametrize(("kind", "how", "lesson"), [
    ("log", log_names_one_twice, "each in one group"),
    ("log", log_invents_one, "choose from view.candidates"),
    ("log", log_merges_all, "a segment holds|wholly live"),
    ("log", log_rewrites_live_ones, "wholly live"),
    ("blob", blob_takes_any, "Take segments of view.eligible"),
    ("blob", blob_names_one_twice, "names segment .* twice"),
    ("blob", blob_takes_valid_ones, "makes no progress"),
    ("blob", blob_answers_a_job_choice, "return a BlobChoice"),
    ("branch", always, "Every new branch would be compacted"),
    ("branch", never, "would accumulate without limit"),
    ("branch", at_exactly_a_thousand, "compare with >="),
    ("job", job_ignores_capacity, "return at most view.capacity"),
    ("job", job_names_one_twice, "named twice"),
    ("job", job_invents_one, "take names from view.levels"),
])
def test_judge_finds_planted_mistake(kind: str, how: Callable[[Any], Any], lesson: str) -> None:
    with pytest.raises(AssertionError, match=lesson):
        check_policy(Planted(how.__name__), VIEWS[kind], max_examples=200)


# That there is one is enough: the smallest takes a minute to find.
REACHED = settings(max_examples=5_000, database=None, derandomize=True, suppress_health_check=list(HealthCheck),
                   phases=[Phase.generate])


@pytest.mark.parametrize("condition", [
    lambda view: not view.segments,
    lambda view: len(view.candidates) > 10,
    lambda view: any(each.live_entries == 0 for each in view.segments[:-1]),
    lambda view: any(each.live_bytes == 0 < each.live_entries for each in view.candidates),
    lambda view: any(each.live_entries > view.limits.max_entries for each in view.candidates),
    lambda view: any(len(group) > 2 for group in filled_groups(view.candidates, view.limits, 14)),
], ids=["no segments", "many", "all dead", "nothing but keys", "already too large", "three fit"])
def test_log_views_reach_the_edges(condition: Callable[[LogView], bool]) -> None:
    examples: Any = log_views().examples
    assert condition(find(examples, condition, settings=REACHED))


def test_rest_of_the_kit_loads_without_hypothesis() -> None:
    program = ("import sys; sys.modules['hypothesis'] = None\n"
               "from compactlib.testing import Views, check_policy, KVStoreConformance, record, check_hazards\n"
               "from compactlib.errors import MissingDependency\n"
               "try:\n    import compactlib.testing.views\n"
               "except MissingDependency as error:\n    print(error)")
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert "compactlib[testing]" in found.stdout
