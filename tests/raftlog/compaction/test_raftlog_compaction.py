# SPDX-License-Identifier: Apache-2.0
"""Compactions through the log: what is done, what is told, and when."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from compactlib.clock import ManualClock
from compactlib.errors import Busy, Closed
from compactlib.executors import LocalExecutor
from compactlib.raftlog import (
    CostPolicy,
    DeadEntry,
    DropDead,
    Entry,
    EveryNMinors,
    RaPolicy,
    SeedPolicy,
    SegmentLimits,
    SegmentLog,
)
from compactlib.raftlog.compaction.sense.trigger import Elapsed, Manual
from compactlib.raftlog.model.names import segment_name
from compactlib.raftlog.model.values import SegmentRef
from tests.harness.recording import Progress, RecordingObserver
from tests.raftlog.compaction_logs import (
    Expected,
    chained,
    compact_to_rest,
    done,
    entries_of,
    entry_of,
    filled,
    links,
    options,
    overwritten,
    payload_of,
    picture,
    strays,
    vector_45,
)

ONE = segment_name(1)
PAIRS = SeedPolicy(max_sources=2)


def sizes(folder: Path, *numbers: int) -> int:
    """Bytes in the files of these segments, links not followed."""
    return sum(os.lstat(folder / segment_name(number)).st_size for number in numbers)


def test_three_segments_become_one(tmp_path: Path) -> None:
    expected = vector_45(tmp_path, live=[1, 2, 3, 20, 40])
    with SegmentLog(tmp_path, options()) as log:
        report = done(log.compact(policy=log.policy))
        assert log.refs == (SegmentRef(1, 1, 40), SegmentRef(4, 49, 49))
        assert links(tmp_path) == {2: ONE, 3: ONE}
        assert report.groups[0].members == (1, 2, 3)
        assert report.done[0].entries_after == 5
        expected.check(log)
    with SegmentLog(tmp_path, options()) as log:
        expected.check(log)
        log.record_snapshot(48, [])
        done(log.compact(policy=DropDead()))
        assert log.refs == (SegmentRef(4, 49, 49),)
        assert set(os.listdir(tmp_path)) == {segment_name(4), "SNAPSHOT", "CADENCE", "LOCK"}


def test_a_major_after_a_minor_rewrites_the_first_in_place(tmp_path: Path) -> None:
    live = range(1, 127, 5)
    limits = SegmentLimits(max_entries=128)
    expected = filled(tmp_path, last=384, snapshot=256, live=list(live), limits=limits)
    with SegmentLog(tmp_path, options(limits=limits)) as log:
        assert done(log.compact(policy=DropDead())).dropped == (2,)
        report = done(log.compact(policy=log.policy))
        assert report.done[0].members == (1,)
        assert report.done[0].entries_after == 26
        assert log.refs == (SegmentRef(1, 1, 126), SegmentRef(3, 257, 384))
    with SegmentLog(tmp_path, options(limits=limits)) as log:
        expected.check(log)


def test_one_half_live_by_count_a_third_by_bytes(tmp_path: Path) -> None:
    entries = [Entry(index, 1, bytes(1006 if index <= 64 else 2006)) for index in range(1, 132)]
    with SegmentLog(tmp_path, options(limits=SegmentLimits(max_entries=130))) as log:
        log.extend(entries)
        log.record_snapshot(130, range(1, 66))
        assert done(log.compact(policy=RaPolicy())).done[0].entries_after == 65
        Expected.of(entries, 130, range(1, 66)).check(log)


def test_terms_survive_and_what_was_taken_back_does_not(tmp_path: Path) -> None:
    expected = overwritten(tmp_path)
    with SegmentLog(tmp_path, options()) as log:
        compact_to_rest(log)
        expected.check(log)
        kept = b"".join((tmp_path / segment_name(ref.number)).read_bytes() for ref in log.refs[:-1])
    assert payload_of(28, 2) in kept
    assert payload_of(28, 1) not in kept
    with SegmentLog(tmp_path, options()) as log:
        expected.check(log)
        assert [entry.term for entry in log.entries(0, 80)] == [1, 2, 2, 2, 3, 3]


def test_compactions_come_to_rest_and_a_second_one_changes_no_file(tmp_path: Path) -> None:
    expected = chained(tmp_path)
    with SegmentLog(tmp_path, options()) as log:
        assert compact_to_rest(log) == 1
        before = picture(tmp_path)
        stamps = {name: os.lstat(tmp_path / name).st_mtime_ns for name in before}
        outcome = log.compact(policy=log.policy)
        assert outcome.is_empty
        assert outcome.why == (
            "none of the 1 segments up to snapshot 96 is wholly dead; of 1 that hold something alive no two neighbours "
            "fit into one (max_entries=16, max_bytes=64000000), and nothing in them is dead; take a snapshot with "
            "fewer live indexes, or wait")
        assert picture(tmp_path) == before
        assert {name: os.lstat(tmp_path / name).st_mtime_ns for name in before} == stamps
        expected.check(log)


def test_without_a_snapshot_nothing_is_dead(tmp_path: Path) -> None:
    with SegmentLog(tmp_path, options()) as log:
        log.extend(entries_of(1, 60))
        outcome = log.compact(policy=log.policy)
        assert outcome.is_empty
        assert "no snapshot" in outcome.why


def test_another_policy_for_one_run(tmp_path: Path) -> None:
    filled(tmp_path, last=49, snapshot=48, live=[*range(1, 10), 20, *range(33, 49)])
    with SegmentLog(tmp_path, options()) as log:
        policy = CostPolicy(max_bytes_copied_per_byte_freed=0.1)
        plan = log.plan(policy=policy)
        report = done(log.compact(policy=policy))
        assert tuple(group.members for group in report.done) == tuple(group.numbers for group in plan.groups) == ((2,),)


def test_the_numbers_are_those_of_the_files(tmp_path: Path) -> None:
    """Two groups and a drop; every number is measured here, from the files before and after."""
    filled(tmp_path, last=97, snapshot=96, live=[1, 2, 4, 40, 49, 50, 70], policy=PAIRS)
    clock = ManualClock(1_000_000.0)

    class Ticks:
        """Lets a quarter of a second pass with every progress that a task makes."""

        def event(self, name: str, /, **fields: Any) -> None:
            if name == "progress" and fields["work"].startswith("compact 0"):
                clock.advance(0.25)

    observer = RecordingObserver()
    with SegmentLog(tmp_path, options(policy=PAIRS, clock=clock, observer=Ticks())) as log:
        before = {number: sizes(tmp_path, number) for number in range(1, 7)}
        report = done(log.compact(policy=log.policy, executor=LocalExecutor(clock=clock)))
        after = {number: sizes(tmp_path, number) for number in (1, 4)}
        assert report.dropped == (2, 6)
        assert report.dropped_bytes == before[2] + before[6]
        first, second = report.done
        assert (first.members, second.members) == ((1, 3), (4, 5))
        assert (first.entries_before, first.entries_after) == (32, 4)
        assert (second.entries_before, second.entries_after) == (32, 3)
        assert (first.bytes_written, second.bytes_written) == (after[1], after[4])
        assert first.bytes_freed == before[1] + before[3] - after[1]
        assert second.bytes_freed == before[4] + before[5] - after[4]
        assert first.bytes_read == sum(len(payload_of(index)) for index in (1, 2, 3, 4, 40))
        assert second.bytes_read == sum(len(payload_of(index)) for index in (49, 50, 70))
        assert report.bytes_freed == sum(before.values()) - sum(after.values())
        assert report.bytes_written == after[1] + after[4]
        assert report.bytes_read == first.bytes_read + second.bytes_read
        assert [left.stats.number for left in report.left_out] == [7]
        assert report.left_out[0].reason == "the newest segment, still written to"
        assert first.seconds > 0
        assert report.seconds == first.seconds + second.seconds == clock.monotonic()
        assert (report.policy.name, report.why, report.snapshot_index) == (
            "seed", "neighbours fit into one segment, or more than 50% of one can go", 96)
    assert observer.events == []


def test_reports_print_themselves(tmp_path: Path) -> None:
    filled(tmp_path, last=65, snapshot=64, live=[1, 2, 40])
    with SegmentLog(tmp_path, options()) as log:
        report = done(log.compact(policy=log.policy))
    assert "\n" not in repr(report)
    assert repr(report).startswith("<LogCompactionReport: seed(max_sources=8, reclaim_fraction=0.5) at snapshot 64 "
                                   "(neighbours fit into one segment, or more than 50% of one can go): dropped 2, "
                                   "rewrote 2 segments into 1, kept 1; read ")
    rows = report.to_dicts()
    assert [(row["action"], row["members"]) for row in rows] == [
        ("rewritten", (1, 3)), ("dropped", (2,)), ("dropped", (4,)), ("kept", (5,))]
    assert rows[0]["entries_after"] == 3
    assert rows[3]["reason"] == "the newest segment, still written to"
    assert str(report).count("\n") >= 4
    assert "<table" in report._repr_html_()


def test_counters_and_progress(tmp_path: Path) -> None:
    filled(tmp_path, last=97, snapshot=96, live=[1, 2, 4, 40, 49, 50, 70], policy=PAIRS)
    observer = RecordingObserver()
    with SegmentLog(tmp_path, options(policy=PAIRS, observer=observer)) as log:
        report = done(log.compact(policy=log.policy))
        view = log.view()
    labels = (("kind", "raftlog"), ("store", tmp_path.name))
    assert observer.counters == {
        ("store_compactions", (labels[0], ("outcome", "done"), ("reason", "seed"), labels[1])): 1,
        ("store_freed_bytes", labels): report.bytes_freed, ("store_read_bytes", labels): report.bytes_read,
        ("store_copied_bytes", labels): report.bytes_written}
    assert [name for name, _ in observer.measured] == ["store_compaction_seconds"]
    levels = {name: fields["value"] for name, fields in observer.events}
    assert levels["store_live_bytes"] == sum(each.live_bytes for each in view.segments)
    assert levels["store_dead_bytes"] == sum(each.dead_bytes for each in view.segments)
    assert levels["store_oldest_lease_seconds"] is levels["store_oldest_unreclaimed_seconds"] is None
    groups = [progress for progress in observer.progresses if progress.work == "compact"]
    assert groups == [Progress("compact", count, 2, "groups") for count in range(3)]
    for work, live in ((f"compact {ONE}", (1, 2, 4, 40)), (f"compact {segment_name(4)}", (49, 50, 70))):
        steps = [progress for progress in observer.progresses if progress.work == work]
        total = sum(len(payload_of(index)) for index in live)
        assert steps[0] == Progress(work, 0, total)
        assert steps[-1] == Progress(work, total, total)
        assert [step.done for step in steps] == sorted(step.done for step in steps)


def test_an_interrupt_while_an_observer_is_told_stops_the_run_and_nothing_is_lost(tmp_path: Path) -> None:
    expected = vector_45(tmp_path)

    class Interrupts:
        def event(self, name: str, /, **fields: Any) -> None:
            if name == "progress":
                raise KeyboardInterrupt

    with SegmentLog(tmp_path, options(observer=Interrupts())) as log:
        with pytest.raises(KeyboardInterrupt):
            log.compact(policy=log.policy)
        expected.check(log)
        assert strays(tmp_path) == []
    with SegmentLog(tmp_path, options()) as log:
        done(log.compact(policy=log.policy))
        expected.check(log)


def test_a_second_request_while_one_runs_is_busy_and_a_later_one_works(tmp_path: Path) -> None:
    expected = vector_45(tmp_path)
    answers: list[object] = []

    class AsksAgain:
        def event(self, name: str, /, **fields: Any) -> None:
            if name == "progress":
                with pytest.raises(Busy):
                    log.compact(policy=log.policy)
                answers.append(log.status().is_busy)

    with SegmentLog(tmp_path, options(observer=AsksAgain())) as log:
        done(log.compact(policy=log.policy))
        assert answers
        assert all(answers)
        log.extend(entries_of(50, 97))
        log.record_snapshot(96, [2, 40])
        assert not log.compact(policy=log.policy).is_empty
        Expected.of(entries_of(1, 97), 96, [2, 40]).check(log)
    assert expected.snapshot == 48


def test_every_second_minor_is_followed_by_a_major(tmp_path: Path) -> None:
    """With N = 2, requests 1 and 2 are minor, request 3 is major, and so on."""
    policies: list[str] = []
    with SegmentLog(tmp_path, options(trigger=EveryNMinors(2))) as log:
        for request in range(7):
            first = request * 32 + 1
            log.extend(entries_of(first, first + 32) if request == 0 else entries_of(first + 1, first + 32))
            # One segment dies whole each time, so that a minor has something to drop.
            log.record_snapshot(first + 31, [first + 31])
            report = done(log.compact())
            policies.append(report.policy.name)
            wanted = ("2 minors since the last major, at least 2; neighbours" if request % 3 == 2 else
                      f"whole segments hold nothing alive; nothing is rewritten yet: {request % 3} minors since the "
                      f"last major, below EveryNMinors(n=2)")
            assert report.why.startswith(wanted), report.why
    assert policies == ["drop", "drop", "seed"] * 2 + ["drop"]


def test_manual_never_asks_for_a_major(tmp_path: Path) -> None:
    vector_45(tmp_path)
    with SegmentLog(tmp_path, options(trigger=Manual())) as log:
        for _ in range(20):
            outcome = log.compact()
            assert outcome.is_empty
            assert outcome.why == ("none of the 3 segments up to snapshot 48 is wholly dead; nothing is rewritten "
                                      "yet: the trigger Manual() never asks for it; give a policy, or another trigger")
        assert done(log.compact(policy=log.policy)).groups


def test_a_major_with_nothing_alive_drops_everything_and_counts_as_a_minor(tmp_path: Path) -> None:
    vector_45(tmp_path)
    with SegmentLog(tmp_path, options(trigger=EveryNMinors(0))) as log:
        log.record_snapshot(48, [])
        report = done(log.compact())
        assert (report.policy.name, report.dropped, report.groups) == ("drop", (1, 2, 3), ())
        assert log.refs == (SegmentRef(4, 49, 49),)
        assert log.read(40) == DeadEntry(40, 48)
        assert log.read(49) == entry_of(49)


def test_a_closed_log_refuses(tmp_path: Path) -> None:
    vector_45(tmp_path)
    log = SegmentLog(tmp_path, options())
    log.close()
    with pytest.raises(Closed):
        log.compact(policy=log.policy)


def test_a_clock_that_was_wrong_once_keeps_no_major_waiting(tmp_path: Path) -> None:
    clock = ManualClock(1_000_000.0)
    with SegmentLog(tmp_path, options(trigger=Elapsed(60.0), clock=clock)) as log:
        log.extend(entries_of(1, 200))
        log.record_snapshot(48, [1, 20, 40])
        clock.advance(61.0)
        clock.set_now(1_000_000.0 + 86_400.0)
        assert done(log.compact()).policy.name == "seed"
        clock.set_now(1_000_061.0)
        log.record_snapshot(96, [1, 60, 90])
        clock.advance(59.0)
        assert done(log.compact()).drops_only
        log.record_snapshot(160, [1, 60, 100, 120, 150])
        clock.advance(2.0)
        assert done(log.compact()).policy.name == "seed"
