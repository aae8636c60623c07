# SPDX-License-Identifier: Apache-2.0
"""Appends, snapshots, reads, leases and closing that meet a compaction, each at the moment that hurts most.

The other thread's step is taken from within: a hook on the disk, the policy or the observer does it just then.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import ClassVar

import attrs
import pytest

from compactlib.errors import Busy, Closed
from compactlib.executors import LocalExecutor
from compactlib.files.disk import StrPath
from compactlib.outcome import Done, Failed, Skipped
from compactlib.raftlog import DeadEntry, LogChoice, LogReader, LogView, MissingEntry, SeedPolicy, SegmentLog
from compactlib.raftlog.compaction.report import CompactionFailed
from compactlib.raftlog.model.names import segment_name
from compactlib.rewrite import RewriteOutcome, RewriteTask
from compactlib.runtime import Budget, Observer, Progress
from tests.raftlog.compaction_logs import (
    Expected,
    compact_to_rest,
    done,
    entries_of,
    entry_of,
    filled,
    links,
    options,
    strays,
    vector_45,
)
from tests.raftlog.wrapped_files import WatchedFiles


def silent() -> WatchedFiles:
    """Files whose hook does nothing yet."""
    return WatchedFiles(lambda operation, path: None)


def once(condition: Callable[[str, str], bool], act: Callable[[], object]) -> Callable[[str, str], None]:
    """A hook that acts at the first operation that meets the condition."""
    waiting = [act]

    def look(operation: str, path: str) -> None:
        if waiting and condition(operation, path):
            waiting.pop()()
    return look


@attrs.frozen
class HookedPolicy:
    """The default policy, after a hook has run: the segments have been counted, nothing is copied yet."""

    hook: Callable[[], object]

    name: ClassVar[str] = "hooked"

    def choose(self, view: LogView, now: float) -> LogChoice:
        self.hook()
        return SeedPolicy().choose(view, now)


def test_a_snapshot_recorded_while_segments_are_counted_does_not_lose_what_it_keeps(tmp_path: Path) -> None:
    """It raised the range that may be compacted, but what was copied went by the snapshot before it."""
    with SegmentLog(tmp_path, options()) as log:
        log.extend(entries_of(1, 100))
        log.record_snapshot(48, [1, 20])
    files = silent()
    with SegmentLog(tmp_path, options(files)) as log:
        # Something to settle, between the moment the run looks at the snapshot and the moment it counts.
        (tmp_path / "rewrite-left").mkdir()
        files.look = once(lambda operation, path: path.endswith("rewrite-left"),
                          lambda: log.record_snapshot(96, [20, 60, 90]))
        assert isinstance(log.compact(policy=log.policy), Done)
        expected = Expected.of(entries_of(1, 100), 96, [20, 60, 90])
        expected.check(log)
        compact_to_rest(log)
        expected.check(log)


def test_a_snapshot_recorded_after_counting_and_one_during_the_copy(tmp_path: Path) -> None:
    with SegmentLog(tmp_path, options()) as log:
        log.extend(entries_of(1, 100))
        log.record_snapshot(48, [1, 2, 20, 40])
    files = silent()
    with SegmentLog(tmp_path, options(files)) as log:
        files.look = once(lambda operation, path: operation == "create" and "rewrite-" in path,
                          lambda: log.record_snapshot(80, [20, 40, 60]))
        done(log.compact(policy=HookedPolicy(lambda: log.record_snapshot(64, [2, 20, 40, 60]))))
        Expected.of(entries_of(1, 100), 80, [20, 40, 60]).check(log)
        compact_to_rest(log)
        Expected.of(entries_of(1, 100), 80, [20, 40, 60]).check(log)


def test_what_an_append_is_just_creating_is_not_taken_for_a_leftover(tmp_path: Path) -> None:
    """A compaction that began at that moment removed the temporary name, and the append failed."""
    vector_45(tmp_path)
    files = silent()
    outcomes: list[object] = []
    with SegmentLog(tmp_path, options(files)) as log:
        entered, compacted = threading.Event(), threading.Event()

        def compact() -> None:
            entered.wait()
            outcomes.append(log.compact(policy=log.policy))
            compacted.set()

        def in_between() -> None:
            entered.set()
            # The compaction has to wait for the append; give it every chance not to.
            compacted.wait(0.2)

        thread = threading.Thread(target=compact)
        thread.start()
        files.look = once(lambda operation, path: operation == "sync" and path.endswith(".tmp"), in_between)
        log.extend(entries_of(50, 80))
        thread.join()
        assert isinstance(outcomes[0], Done)
        Expected.of(entries_of(1, 80), 48, [1, 2, 20, 40]).check(log)


class _LooksAfterUnlink(WatchedFiles):
    """Calls `after` when a name has just been removed."""

    def __init__(self) -> None:
        super().__init__(lambda operation, path: None)
        self.after: Callable[[str, str], object] = lambda operation, path: None

    def unlink(self, path: StrPath) -> None:
        super().unlink(path)
        self.after("unlink", str(path))


def test_a_sync_that_discards_and_a_compaction_that_reclaims_do_not_remove_one_file_twice(tmp_path: Path) -> None:
    """An append that covers whole segments leaves them to the next sync; a compaction reclaims at the same time."""
    filled(tmp_path, last=97, snapshot=48, live=[1, 40])
    files = _LooksAfterUnlink()
    with SegmentLog(tmp_path, options(files)) as log:
        synced = threading.Event()

        def sync() -> None:
            log.append(49, 2, b"covers 4 and what follows")
            log.sync()
            synced.set()

        thread = threading.Thread(target=sync)

        def in_between() -> None:
            thread.start()
            # The sync has to wait for the removal; give it every chance not to.
            synced.wait(0.2)

        files.after = once(lambda operation, path: path.endswith(segment_name(2)), in_between)
        report = done(log.compact(policy=log.policy))
        thread.join()
        assert report.dropped == (2,)
        assert [group.members for group in report.done] == [(1, 3)]
        log.audit()
        assert not {segment_name(number) for number in (2, 4, 5, 6)} & set(os.listdir(tmp_path))


def test_an_index_that_dies_while_it_is_looked_up_is_dead_not_missing(tmp_path: Path) -> None:
    filled(tmp_path, last=49, snapshot=48, live=[1, 2, 20, 40])
    with SegmentLog(tmp_path, options()) as log:
        with log.plan_read([1, 2, 20, 40]) as plan:
            answers = plan.answers()
            assert next(answers) == entry_of(1)
            log.record_snapshot(48, [1, 40])
            done(log.compact(policy=log.policy))
            # 2 was read together with 1; the others are looked up now.
            assert list(answers) == [entry_of(2), DeadEntry(20, 48), entry_of(40)]
        assert log.read(20) == DeadEntry(20, 48)


def test_a_reader_of_another_process_follows_compactions(tmp_path: Path) -> None:
    """Its list and its snapshot grow old, and files vanish under it; it answers what is true, never what is not."""
    expected = filled(tmp_path, last=49, snapshot=48, live=[1, 2, 20, 40], keep_links_seconds=0.0)
    with LogReader(tmp_path) as cold, LogReader(tmp_path) as warm, LogReader(tmp_path, max_open_segments=1) as planned:
        expected.check(warm)
        plan = planned.plan_read([1, 2, 20, 40, 49])
        with SegmentLog(tmp_path, options(keep_links_seconds=0.0)) as log:
            log.extend(entries_of(50, 97))
            log.record_snapshot(96, [2, 40, 60])
            compact_to_rest(log)
            assert links(tmp_path) == {}
        after = Expected.of(entries_of(1, 97), 96, [2, 40, 60])
        for index in (1, 2, 20, 40, 49):
            for reader in (cold, warm):
                assert reader.read(index) in (expected.answer(index), after.answer(index)), index
        for index, answer in zip([1, 2, 20, 40, 49], plan.answers(), strict=True):
            assert answer in (expected.answer(index), after.answer(index)), index
        plan.close()
        for reader in (cold, warm, planned):
            reader.refresh()
            after.check(reader)


def test_a_scan_of_another_process_goes_on_through_compactions(tmp_path: Path) -> None:
    filled(tmp_path, last=97, snapshot=96, live=range(1, 97, 3), keep_links_seconds=0.0)
    with LogReader(tmp_path, max_open_segments=1) as reader:
        scan = reader.entries()
        first = [next(scan).index for _ in range(5)]
        with SegmentLog(tmp_path, options(keep_links_seconds=0.0)) as log:
            log.record_snapshot(96, [1, 40, 94])
            compact_to_rest(log)
        rest = [entry.index for entry in scan]
        assert first == [1, 4, 7, 10, 13]
        assert {40, 94, 97} <= set(rest)
        assert rest == sorted(rest)


def test_closing_waits_for_a_compaction_and_ends_it(tmp_path: Path) -> None:
    """The lock was given up while groups were still committed, so that two processes could write one log."""
    expected = filled(tmp_path, last=97, snapshot=96, live=[1, 2, 24, 49, 50, 70, 91], policy=SeedPolicy(max_sources=2))
    began, closing, tried = threading.Event(), threading.Event(), threading.Event()
    outcomes: list[object] = []

    class Waits:
        """An executor that goes on behind the first group once closing has cancelled the compaction."""

        def run(self, tasks: Iterable[RewriteTask], *, budget: Budget | None = None,
                observer: Observer | None = None) -> Iterator[RewriteOutcome]:
            assert budget is not None
            for outcome in LocalExecutor().run(tasks, budget=budget, observer=observer):
                yield outcome
                began.set()
                while not budget.cancelled:
                    time.sleep(0.001)
                closing.set()
                assert tried.wait(30)

    log = SegmentLog(tmp_path, options(policy=SeedPolicy(max_sources=2)))
    thread = threading.Thread(target=lambda: outcomes.append(log.compact(policy=log.policy, executor=Waits())))
    thread.start()
    assert began.wait(30)
    closer = threading.Thread(target=log.close)
    closer.start()
    assert closing.wait(30)
    with pytest.raises(Busy):
        SegmentLog(tmp_path, options())
    tried.set()
    closer.join()
    thread.join()
    (outcome,) = outcomes
    assert isinstance(outcome, CompactionFailed)
    assert [len(outcome.report.done), len(outcome.report.failed)] == [1, 2]
    assert strays(tmp_path) == []
    with SegmentLog(tmp_path, options()) as again:
        expected.check(again)


def test_closing_from_within_a_compaction_is_refused(tmp_path: Path) -> None:
    expected = vector_45(tmp_path)
    refused: list[Busy] = []

    class Closes(Observer):
        def progress(self, progress: Progress) -> None:
            try:
                log.close()
            except Busy as error:
                refused.append(error)

    with SegmentLog(tmp_path, options(observer=Closes())) as log:
        done(log.compact(policy=log.policy))
        assert refused
        expected.check(log)
    with pytest.raises(Closed):
        log.compact(policy=log.policy)


def test_readers_appenders_and_compactions_at_once(tmp_path: Path) -> None:
    everything_at_once(tmp_path, 1199)


@pytest.mark.soak
@pytest.mark.parametrize("number", range(10))
def test_soak_readers_appenders_and_compactions_at_once(number: int, tmp_path: Path) -> None:
    everything_at_once(tmp_path, 8_000)


def everything_at_once(folder: Path, last: int) -> None:
    """Four threads on one log for a while: every answer is right, and nothing is lost."""
    live = list(range(0, last, 17))
    stop = threading.Event()
    errors: list[BaseException] = []
    with SegmentLog(folder, options(keep_links_seconds=0.0)) as log:
        log.extend(entries_of(0, 100))
        log.sync()

        def guarded(work: Callable[[], object]) -> Callable[[], None]:
            def run() -> None:
                try:
                    while not stop.is_set():
                        work()
                except BaseException as error:  # whatever it is, it is this test's failure
                    errors.append(error)
                    stop.set()
            return run

        def read() -> None:
            for index in live[:20]:
                answer = log.read(index)
                assert answer == entry_of(index) or isinstance(answer, MissingEntry), answer
            for index, found in zip(live[:20], log.read_many(live[:20]), strict=True):
                assert found == entry_of(index) or isinstance(found, MissingEntry), found
            for entry in log.entries(0, 300):
                assert entry == entry_of(entry.index)

        def compact() -> None:
            outcome = log.compact(policy=log.policy)
            assert not isinstance(outcome, Failed), outcome

        def look() -> None:
            log.plan()
            log.audit()
            with LogReader(folder) as reader:
                for index in live[:10]:
                    answer = reader.read(index)
                    assert answer == entry_of(index) or isinstance(answer, MissingEntry), answer

        threads = [threading.Thread(target=guarded(work)) for work in (read, compact, look)]
        for thread in threads:
            thread.start()
        for index in range(101, last + 1):
            log.append(index, 1, entry_of(index).payload)
            if index % 40 == 0:
                log.sync()
                log.record_snapshot(index, [other for other in live if other <= index])
            if stop.is_set():
                break
        stop.set()
        for thread in threads:
            thread.join()
        assert errors == []
        outcome = log.compact(policy=log.policy)
        assert isinstance(outcome, Done | Skipped)
        snapshot = last // 40 * 40
        Expected.of(entries_of(0, last), snapshot, [other for other in live if other <= snapshot]).check(log)
    with contextlib.closing(SegmentLog(folder, options())) as log:
        assert not log.recovery
