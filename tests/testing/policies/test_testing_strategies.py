# SPDX-License-Identifier: Apache-2.0
"""The strategies reach what they promise, and shrink to the least that fails."""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import pytest
from hypothesis import Phase, find, given, settings, strategies as st

from compactlib.catalog import NodeReport
from compactlib.catalog.model.values import Factor, Floor
from compactlib.indexset import IndexSet
from compactlib.indexset.runs import MAX_INDEX
from compactlib.kv import MemoryStore
from compactlib.objects import MemoryObjects
from compactlib.raftlog.model.values import SegmentRef
from compactlib.testing import Fault, strategies
from compactlib.testing.faults.clocks import ClockScript, Jump
from compactlib.testing.faults.fault_plans import FILE_FAULTS, FaultPlan
from compactlib.testing.histories.blob_histories import BlobHistory, BlobStep, CompactBlobs, Put
from compactlib.testing.histories.index_strategies import BOUNDARIES
from compactlib.testing.histories.log_histories import Append, Compact, LogHistory, LogStep, Snapshot
from compactlib.testing.histories.scheduler_histories import Arrive, Poll
from compactlib.testing.histories.staging_histories import CompactBranch, StagingHistory, StagingStep, Write

T = TypeVar("T")


def smallest(strategy: st.SearchStrategy[T], condition: Callable[[T], bool]) -> T:
    return find(strategy, condition, settings=settings(max_examples=300, database=None, derandomize=True),
                random=random.Random(1))


# ----------------------------------------------------------------------------------------------- what they shrink to


def test_live_sets_shrink_to_the_fewest_lowest_members() -> None:
    assert smallest(strategies.live_sets(), lambda live: True) == IndexSet()
    assert smallest(strategies.live_sets(5, 100), lambda live: len(live) >= 1).members() == [5]
    assert smallest(strategies.live_sets(), lambda live: live.run_count >= 2).members() == [0, 2]
    assert smallest(strategies.live_sets(), lambda live: bool(live) and live.last >= 1 << 16).members() == [1 << 16]


def test_segments_shrink_to_ranges_of_one_index() -> None:
    assert smallest(strategies.segment_refs(), lambda refs: len(refs) == 2) == [
        SegmentRef(1, 0, 0), SegmentRef(2, 1, 1)]
    overwriting = smallest(strategies.written_refs(), lambda refs: len(refs) == 2 and refs[1].first < refs[0].last)
    assert overwriting == [SegmentRef(1, 0, 1), SegmentRef(2, 0, 0)]


def test_clocks_shrink_to_one_that_is_right_and_events_to_whole_seconds() -> None:
    assert smallest(strategies.clock_scripts(), lambda script: True) == ClockScript()
    assert smallest(strategies.clock_scripts(), lambda script: script.goes_back) == ClockScript(
        events=(Jump(0.0, -1.0),))


def test_fault_plans_shrink_to_the_fewest_and_earliest_faults() -> None:
    assert smallest(strategies.fault_plans(), lambda plan: True) == FaultPlan()
    assert smallest(strategies.fault_plans(), lambda plan: len(plan.faults) == 2) == FaultPlan.of(
        {1: Fault.SLOW_DOWN, 2: Fault.SLOW_DOWN})
    crash = smallest(strategies.fault_plans(FILE_FAULTS), lambda plan: any(
        number >= 5 and fault is Fault.CRASH_AFTER for number, fault in plan.faults))
    assert crash == FaultPlan.of({5: Fault.CRASH_AFTER})


@pytest.mark.soak
def test_reports_shrink_to_a_node_that_needs_and_hosts_nothing() -> None:
    plain = smallest(strategies.node_reports(), lambda report: True)
    assert (plain.floors, plain.unavailable, plain.transactions_from, len(plain.hosted)) == ((), (), 1, 0)
    assert smallest(strategies.floors(factors=[Factor.PIN]), lambda floor: True) == Floor(Factor.PIN, 1)
    assert len(smallest(strategies.catalog_histories(), lambda view: True)) == 1


@pytest.mark.soak
def test_histories_shrink_to_the_steps_that_matter() -> None:
    def kinds(history: tuple[object, ...]) -> list[type]:
        return [type(step) for step in history]

    log = smallest(strategies.log_histories(), lambda steps: Compact in kinds(steps) and Append in kinds(
        steps[:kinds(steps).index(Compact)]))
    assert log == (Append(1), Compact("policy"))
    blobs = smallest(strategies.blob_histories(), lambda steps: any(
        isinstance(step, Put) and step.life_seconds is not None for step in steps))
    assert len(blobs) == 1
    staging = smallest(strategies.staging_histories(), lambda steps: kinds(steps)[-1:] == [CompactBranch])
    assert staging == (CompactBranch(),)
    jobs = smallest(strategies.scheduler_histories(max_steps=8), lambda steps: {Arrive, Poll} <= {*kinds(steps)})
    assert sorted(jobs, key=str) == [Arrive(1), Poll(0)]
    assert smallest(strategies.blob_lifetimes(), lambda lives: True) == (None,)


# ---------------------------------------------------------------------------------------------------- what they reach


SHAPES: dict[str, Callable[[IndexSet], bool]] = {
    "none": lambda live: not live,
    "one": lambda live: len(live) == 1,
    "a run": lambda live: live.run_count == 1 and len(live) > 5,
    "every second": lambda live: live.run_count == len(live) > 3 and len(live) * 2 > live.last - live.first,
    "around a boundary": lambda live: any(place in live and place - 1 in live for place in BOUNDARIES),
    "the highest": lambda live: MAX_INDEX in live,
    "far apart": lambda live: len(live) > 1 and live.last - live.first > 1 << 62,
}


def test_live_sets_have_every_shape() -> None:
    missing = set(SHAPES)

    @settings(max_examples=400, derandomize=True, database=None, phases=[Phase.generate])
    @given(strategies.live_sets())
    def look(live: IndexSet) -> None:
        live.audit()
        missing.difference_update([shape for shape in missing if SHAPES[shape](live)])

    look()
    assert not missing


@given(strategies.live_sets(10, 200))
def test_live_sets_keep_their_bounds(live: IndexSet) -> None:
    assert not live or (live.first >= 10 and live.last <= 200)


def test_small_ranges_are_also_live_all_over() -> None:
    assert len(smallest(strategies.live_sets(1, 500), lambda live: len(live) > 480)) > 480


@given(strategies.node_reports())
def test_reports_name_each_factor_once(report: NodeReport) -> None:
    assert len({floor.factor for floor in report.floors}) == len(report.floors)


# ----------------------------------------------------------------------------------------------- they are lived through


@settings(max_examples=20)
@given(strategies.log_histories())
def test_logs_keep_what_is_live(tmp_path_factory: pytest.TempPathFactory, history: tuple[LogStep, ...]) -> None:
    with LogHistory(tmp_path_factory.mktemp("log") / "log") as log:
        for step in history:
            log.step(step)


@settings(max_examples=20)
@given(strategies.blob_histories())
def test_stores_keep_what_is_live(tmp_path_factory: pytest.TempPathFactory, history: tuple[BlobStep, ...]) -> None:
    with BlobHistory(tmp_path_factory.mktemp("blobs") / "store") as store:
        for step in history:
            store.step(step)


@settings(max_examples=20)
@given(strategies.staging_histories())
def test_branches_keep_what_was_written(history: tuple[StagingStep, ...]) -> None:
    store, objects = MemoryStore(), MemoryObjects()
    branch = StagingHistory(lambda: store, lambda: objects)
    for step in history:
        branch.step(step)


def test_a_log_that_loses_an_entry_is_told_so(tmp_path: Path) -> None:
    with LogHistory(tmp_path / "log") as log:
        log.step(Append(9))
        log.step(Snapshot(back=0, live=IndexSet.range(2, 3)))
        log.entries[4] = b"never live"
        with pytest.raises(AssertionError, match="live entry 4 is gone: the log answers Dead"):
            log.step(Compact("policy"))


def test_a_log_that_revives_an_entry_is_told_so(tmp_path: Path) -> None:
    with LogHistory(tmp_path / "log") as log:
        log.step(Append(3))
        del log.entries[2]
        with pytest.raises(AssertionError, match="index 2, which is not there"):
            log.check("nothing")


def test_a_branch_that_loses_a_record_is_told_so() -> None:
    store, objects = MemoryStore(), MemoryObjects()
    branch = StagingHistory(lambda: store, lambda: objects)
    branch.step(Write({b"a": b"1"}))
    branch.now[b"b"] = b"2"
    with pytest.raises(AssertionError, match=r"after CompactBranch\(\) the branch holds \{b'a': b'1'\}, and"):
        branch.step(CompactBranch())


def test_a_blob_is_put_once_and_stays(tmp_path: Path) -> None:
    with BlobHistory(tmp_path / "store") as store:
        for step in (Put(0, 3), Put(0, 5), CompactBlobs()):
            store.step(step)
        assert store.live == {0: b"aaa"}


# -------------------------------------------------------------------------------------------- Hypothesis stays optional


def test_without_hypothesis_the_rest_is_there_and_the_checks_name_the_extra() -> None:
    program = ("import sys; sys.modules['hypothesis'] = None\n"
               "import compactlib.testing as testing\n"
               "from compactlib.errors import MissingDependency\n"
               "assert testing.check_kv_store and testing.FailingFiles\n"
               "for name in ('check_raftlog_policy', 'check_blob_policy', 'check_need_source', 'check_sense_policy'):\n"
               "    try:\n        getattr(testing, name)\n"
               "    except MissingDependency as error:\n        assert 'testing' in str(error), error\n"
               "    else:\n        raise SystemExit(f'{name} needs no Hypothesis')\n"
               "try:\n    testing.no_such_name\nexcept AttributeError:\n    print('right')")
    told = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert told.stdout == "right\n", told.stderr


def test_every_strategy_is_listed() -> None:
    made: dict[str, Any] = {name: getattr(strategies, name) for name in strategies.__all__}
    assert all(callable(each) and each.__doc__ for each in made.values())
    assert list(made) == sorted(made)
