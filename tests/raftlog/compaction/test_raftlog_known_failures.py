# SPDX-License-Identifier: Apache-2.0
"""What is known to fail in Ra, looked at from every side.

Each item also has a story in `promises/scenarios/raftlog/compaction_*.txt`.
"""

from __future__ import annotations

import errno
import random
import shutil
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings, strategies as st

from compactlib.errors import CompactlibError, CorruptData, StorageError
from compactlib.outcome import Failed
from compactlib.raftlog import (
    DamagedEntry,
    DeadEntry,
    Entry,
    LogReader,
    MissingEntry,
    RaPolicy,
    SeedPolicy,
    SegmentLimits,
    SegmentLog,
)
from compactlib.raftlog.compaction.report import CompactionFailed
from compactlib.raftlog.errors import LiveIndexMissing
from compactlib.raftlog.model.names import compacting_members, compacting_name, segment_name
from tests.raftlog.compaction_logs import (
    Expected,
    compact_to_rest,
    done,
    entries_of,
    entry_of,
    filled,
    flip_byte,
    options,
    picture,
    rewritten,
    strays,
    vector_45,
)
from tests.raftlog.wrapped_files import WatchedFiles
from tests.tools.faults.plan import FailingFiles

LIVE = [1, 2, 20, 40]


@pytest.mark.parametrize("number", [errno.EMFILE, errno.EACCES, errno.ENOSPC])
def test_whatever_a_job_fails_at_the_next_start_loses_nothing(number: int, tmp_path: Path) -> None:
    """Ra reads "marker, but no output" as committed: two files cannot be created in one step."""
    (tmp_path / "log").mkdir()
    expected = vector_45(tmp_path / "log")
    for fail_at in range(1, 40):
        folder = tmp_path / f"failed-at-{fail_at}"
        shutil.copytree(tmp_path / "log", folder, symlinks=True)
        files = FailingFiles(fail_at=fail_at, errno=number, sticky=True)
        try:
            with SegmentLog(folder, options(files)) as log:
                log.compact(policy=log.policy)
        except StorageError:
            assert files.count >= fail_at
        with LogReader(folder) as reader:
            expected.check_live(reader)
        with SegmentLog(folder, options()) as log:
            expected.check(log)
            assert strays(folder) == []
        if files.count < fail_at:
            return
    raise AssertionError("the compaction never came to its end")


@given(names=st.lists(st.one_of(
    st.text("0123456789-_.", min_size=1, max_size=30).map(lambda text: f"{text}.compacting"),
    st.lists(st.integers(0, 60), min_size=1, max_size=4).map(compacting_name),
    st.integers(0, 60).map(lambda number: f"{segment_name(number)}.link"),
    st.integers(0, 60).map(lambda number: f"{segment_name(number)}.swap"),
    st.integers(0, 60).map(lambda number: f"{segment_name(number)}.tmp")), max_size=6, unique=True),
    content=st.binary(max_size=100))
@settings(max_examples=40)
def test_no_stray_file_keeps_a_log_from_opening_or_stays(
        names: list[str], content: bytes, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("log")
    expected = vector_45(folder)
    before = picture(folder)
    for name in names:
        (folder / name).write_bytes(content)
    with LogReader(folder) as reader:
        expected.check_live(reader)
    with SegmentLog(folder, options()) as log:
        assert picture(folder) == before
        assert set(log.recovery.removed) == {name for name in names if compacting_members(name) is None}
        expected.check_live(log)


def test_job_after_job_may_fail_and_the_next_one_works(tmp_path: Path) -> None:
    expected = vector_45(tmp_path)
    refused: list[int] = [0]
    count = [0]

    def look(operation: str, path: str) -> None:
        count[0] += 1
        if count[0] == refused[0]:
            raise StorageError(operation=operation, path=path, errno=errno.EIO)

    files = WatchedFiles(lambda operation, path: None)
    with SegmentLog(tmp_path, options(files)) as log:
        files.look = look
        for refused[0] in range(1, 11):
            count[0] = 0
            outcome = log.compact(policy=log.policy)
            assert isinstance(outcome, Failed), refused
            expected.check_live(log)
        refused[0] = 0
        done(log.compact(policy=log.policy))
        expected.check(log)
        assert strays(tmp_path) == []


def test_a_damaged_live_set_is_never_taken_for_an_empty_one(tmp_path: Path) -> None:
    expected = vector_45(tmp_path)
    whole = (tmp_path / "SNAPSHOT").read_bytes()
    damaged = [whole[:size] for size in range(len(whole))]
    damaged += [bytes([*whole[:place], whole[place] ^ bit, *whole[place + 1:]])
                for place in range(len(whole)) for bit in (1, 128)]
    before = picture(tmp_path)
    for content in damaged:
        (tmp_path / "SNAPSHOT").write_bytes(content)
        with pytest.raises(CompactlibError):
            SegmentLog(tmp_path, options())
        with pytest.raises(CompactlibError):
            LogReader(tmp_path)
    (tmp_path / "SNAPSHOT").write_bytes(whole)
    assert picture(tmp_path) == before
    with SegmentLog(tmp_path, options()) as log:
        compact_to_rest(log)
        expected.check(log)


@pytest.mark.parametrize("seed", range(3))
def test_a_damaged_byte_is_never_copied(seed: int, tmp_path: Path) -> None:
    """One byte of any source, anywhere: the group fails by name, or the byte was nobody's, and all is well."""
    rng = random.Random(seed)
    (tmp_path / "log").mkdir()
    expected = vector_45(tmp_path / "log", live=[1, 2, 3, 21, 22, 41, 48])
    failed = 0
    for number in range(25):
        folder = tmp_path / f"damaged-{number}"
        shutil.copytree(tmp_path / "log", folder, symlinks=True)
        victim = folder / segment_name(rng.randint(1, 3))
        with SegmentLog(folder, options()) as log:
            # Damage in the index is found by opening; here it comes later, in what opening has read already.
            flip_byte(victim, rng.randrange(104, victim.stat().st_size))
            outcome = log.compact(policy=log.policy)
            if isinstance(outcome, Failed):
                assert isinstance(outcome.error, CorruptData)
                assert outcome.error.path == str(victim)
                failed += 1
            else:
                expected.check(log)
    assert 0 < failed < 25


@pytest.mark.parametrize("seed", range(4))
def test_small_segments_merge_and_that_comes_to_rest(seed: int, tmp_path: Path) -> None:
    rng = random.Random(seed)
    with SegmentLog(tmp_path, options(limits=SegmentLimits(max_entries=rng.choice([1, 3, 4])))) as log:
        log.extend(entries_of(1, 121))
        live = sorted(rng.sample(range(1, 121), rng.randint(1, 120)))
        log.record_snapshot(120, live)
        assert not log.plan(policy=RaPolicy()).groups or len(live) < 100
    limits = SegmentLimits(max_entries=32)
    with SegmentLog(tmp_path, options(limits=limits)) as log:
        assert compact_to_rest(log) <= 4
        Expected.of(entries_of(1, 121), 120, live).check(log)
        sizes = [stats.live_entries for stats in log.stats()[:-1]]
        assert all(first + second > 32 for first, second in pairwise(sizes)), sizes
        assert all(stats.entries == stats.live_entries for stats in log.stats())


def test_payloads_of_no_bytes_beside_others(tmp_path: Path) -> None:
    entries = [Entry(index, 1, b"" if index <= 32 else b"not empty") for index in range(1, 66)]
    with SegmentLog(tmp_path, options()) as log:
        log.extend(entries)
        log.record_snapshot(64, [*range(1, 11), 20, 40, 60])
        done(log.compact(policy=RaPolicy()))
        Expected.of(entries, 64, [*range(1, 11), 20, 40, 60]).check(log)
        compact_to_rest(log)
        Expected.of(entries, 64, [*range(1, 11), 20, 40, 60]).check(log)


def test_a_segment_of_65536_entries(tmp_path: Path) -> None:
    """Ra stores the count in 16 bits, and writes 0."""
    live = range(1, 65_537, 1000)
    with SegmentLog(tmp_path, options(limits=SegmentLimits(max_entries=65_536))) as log:
        log.extend((index, 1, b"x") for index in range(1, 65_538))
        log.record_snapshot(65_536, live)
        assert [ref.number for ref in log.refs] == [1, 2]
        assert done(log.compact(policy=log.policy)).done[0].entries_after == len(live)
        assert [entry.index for entry in log.entries(0, 65_536)] == list(live)
    with SegmentLog(tmp_path, options()) as log:
        assert log.verify().is_sound


def test_one_lost_entry_leaves_every_other_group_alone(tmp_path: Path) -> None:
    """Ra's job dies, and with it all groups behind."""
    pairs = SeedPolicy(max_sources=2)
    live = [1, 20, 40, 60, 70, 90, 100, 120]
    filled(tmp_path, last=129, snapshot=128, live=live, policy=pairs)
    path = tmp_path / segment_name(3)
    path.write_bytes(Path(rewritten(tmp_path, [3], [33, 48]).path).read_bytes())
    with SegmentLog(tmp_path, options(policy=pairs)) as log:
        outcome = log.compact(policy=log.policy)
        assert isinstance(outcome, CompactionFailed)
        assert strays(tmp_path) == []
        for index in live:
            if index != 40:
                assert log.read(index) == entry_of(index)
        with pytest.raises(CorruptData, match="index 40"):
            log.read(40)
        (failed,) = outcome.report.failed
        assert 3 in failed.members
        assert isinstance(failed.error, LiveIndexMissing)
        assert len(outcome.report.done) == 3


@given(st.data())
@settings(max_examples=25)
def test_a_read_plan_answers_each_index_by_itself(tmp_path_factory: pytest.TempPathFactory,
                                                    data: st.DataObject) -> None:
    folder = tmp_path_factory.mktemp("log")
    gaps = data.draw(st.sets(st.integers(1, 64), max_size=6), label="gaps")
    written = [entry for entry in entries_of(1, 65) if entry.index not in gaps]
    there = [entry.index for entry in written if entry.index <= 64]
    live = data.draw(st.sets(st.sampled_from(there)), label="live")
    later = data.draw(st.sets(st.sampled_from(sorted(live))) if live else st.just(set()), label="live later")
    wanted = sorted(data.draw(st.sets(st.integers(0, 70), min_size=1), label="wanted"))
    with SegmentLog(folder, options(keep_links_seconds=0.0)) as log:
        log.extend(written)
        with log.plan_read(wanted) as plan:
            before = Expected.of(written)
            assert list(plan.answers()) == [before.answer(index) for index in wanted]
            for snapshot, alive in ((40, {index for index in live if index <= 40}), (64, later)):
                kept = sorted(alive)
                log.record_snapshot(snapshot, kept)
                outcome = log.compact(policy=log.policy)
                assert not isinstance(outcome, Failed)
                now = Expected.of(written, snapshot, kept)
                answers = list(plan.answers())
                assert answers == [now.answer(index) for index in wanted]
                assert not any(isinstance(answer, DamagedEntry) for answer in answers)
                assert all(isinstance(answer, Entry | DeadEntry | MissingEntry) for answer in answers)
