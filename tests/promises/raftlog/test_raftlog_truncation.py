# SPDX-License-Identifier: Apache-2.0
"""Truncation cuts files: after a call that cuts, and after a crash at any step of it, no file has a cut entry."""

from __future__ import annotations

import errno
import os
import shutil
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import attrs
import pytest

from compactlib.budget import Budget
from compactlib.clock import SystemClock
from compactlib.errors import Closed, CorruptData, InvalidInput, StorageError
from compactlib.executors import LocalExecutor
from compactlib.files import Files, LocalFiles
from compactlib.indexset import IndexSet
from compactlib.raftlog import (
    Entry,
    EveryNMinors,
    LogOptions,
    LogReader,
    RaftLog,
    RaftLogStore,
    SeedPolicy,
    SegmentLimits,
    SegmentLog,
    StoreOptions,
    open_log,
    open_segment,
)
from compactlib.testing import (
    FilesInFront,
    Interrupted,
    RecordingFiles,
    Request,
    explore_crashes,
    explore_kills,
    record,
)
from tests.harness.effort import Effort
from tests.harness.recoveries import explore_recovery
from tests.harness.snapshot_line import transfer

Terms = Mapping[int, int]
"""By index, the term of the entry that is held."""


def options(files: Files | None = None) -> LogOptions:
    return LogOptions(limits=SegmentLimits(max_entries=4), trigger=EveryNMinors(0), keep_links_seconds=0.0,
                      files=LocalFiles() if files is None else files)


def store_options(files: Files | None = None) -> StoreOptions:
    return StoreOptions(log=options(files), background=False, max_wal_bytes=700)


def payload_of(index: int, term: int) -> bytes:
    return b"%d in %d;" % (index, term) * (index % 3)


def rows(first: int, last: int, term: int) -> list[tuple[int, int, bytes]]:
    return [(index, term, payload_of(index, term)) for index in range(first, last + 1)]


def terms_in_segments(log: RaftLog) -> dict[int, int]:
    """Return the live entries in the files of a log, independent of its memory."""
    found: dict[int, int] = {}
    for path in sorted(Path(log.folder).glob("*.segment")):
        if not path.is_symlink() and path.stat().st_size:
            with open_segment(log.folder, int(path.stem), newest=True) as segment:
                found.update((index, term) for index, term in zip(segment.index.indexes, segment.index.terms,
                                                                  strict=True) if not log.state.is_dead(index))
    return found


def terms_of(entries: Iterable[Entry]) -> Terms:
    """The terms; each payload is that of its index and term."""
    found: dict[int, int] = {}
    for index, term, payload in entries:
        assert payload == payload_of(index, term)
        found[index] = term
    return found


def files_with_entries(folder: Path) -> list[str]:
    """The segment files, but for empty ones: the newest, and the first of a log that was truncated to nothing."""
    names = sorted(path.name for path in folder.glob("*.segment") if not path.is_symlink())
    found = []
    for name in names:
        with open_segment(folder, int(name.partition(".")[0]), newest=True) as reader:
            if len(reader.index) or name not in (f"{1:016d}.segment", names[-1]):
                found.append(name)
    return found


class Beside:
    """Runs the tasks of a compaction, and does something else when their files are written."""

    def __init__(self, do: Callable[[], object]) -> None:
        self._do = do

    def run(self, tasks: Iterable[Any], **given: Any) -> Iterator[Any]:
        outcomes = list(LocalExecutor().run(list(tasks), **given))
        self._do()
        yield from outcomes


# -- a log in segments alone


@attrs.define
class Life:
    """A log with the history of its states; synced states are acknowledged.

    Attributes:
        states: the entries after each call.
        cuts: by state, the last index that the call before it has kept.
    """

    log: SegmentLog
    acknowledge: Callable[[int], object]
    states: list[Terms] = attrs.field(factory=lambda: [{}])
    cuts: list[int] = attrs.field(factory=lambda: [0])

    def append(self, first: int, last: int, term: int) -> None:
        for row in rows(first, last, term):
            held = {index: old for index, old in self.states[-1].items() if index < row[0]}
            self.states.append({**held, row[0]: term})
            self.cuts.append(row[0] - 1)
            self.log.append([row])

    def sync(self) -> None:
        self.log.sync()
        self.acknowledge(len(self.states) - 1)

    def compact(self, do: Callable[[], object] = bool) -> None:
        self.log.snapshot(8, range(1, 9))
        self.acknowledge(len(self.states) - 1)
        self.log.compact(policy=SeedPolicy(), executor=Beside(do))

    def may_hold(self, acknowledged: int) -> Iterator[Terms]:
        """Check the state after a crash: no hole, no mixture, and no acknowledged entry lost but by a later cut."""
        kept = max(self.states[acknowledged], default=0)
        for number in range(acknowledged, len(self.states)):
            # The cut of the next call may have begun.
            kept = min([kept, *self.cuts[number + 1:number + 2]])
            state = self.states[number]
            for end in range(kept, max(state, default=0) + 1):
                yield {index: term for index, term in state.items() if index <= end}


def within_a_segment(life: Life) -> None:
    life.append(1, 11, 1)
    life.sync()
    life.append(7, 9, 2)
    life.sync()


def several_segments(life: Life) -> None:
    life.append(1, 22, 1)
    life.sync()
    life.append(6, 7, 2)
    life.sync()


def everything(life: Life) -> None:
    life.append(1, 10, 1)
    life.sync()
    life.append(1, 2, 2)
    life.sync()


def the_end_of_a_segment(life: Life) -> None:
    life.append(1, 14, 1)
    life.sync()
    life.append(9, 10, 2)
    life.sync()


def what_was_not_synced(life: Life) -> None:
    life.append(1, 5, 1)
    life.sync()
    life.append(6, 11, 1)
    life.append(8, 9, 2)
    life.sync()


def before_any_sync(life: Life) -> None:
    """A kill behind the first step of the cut leaves two empty segments."""
    life.append(1, 3, 1)
    life.append(2, 2, 2)
    life.sync()


def two_cuts(life: Life) -> None:
    life.append(1, 19, 1)
    life.sync()
    life.append(15, 15, 2)
    life.append(14, 14, 3)
    life.sync()
    life.append(10, 11, 4)
    life.append(3, 3, 5)
    life.sync()


def beside_a_compaction(life: Life) -> None:
    life.append(1, 19, 1)
    life.sync()
    life.compact(lambda: life.append(11, 12, 2))
    life.sync()


def behind_a_merged_segment(life: Life) -> None:
    life.append(1, 19, 1)
    life.sync()
    life.compact()
    life.append(9, 9, 2)
    life.sync()


STORIES = [within_a_segment, several_segments, everything, the_end_of_a_segment, what_was_not_synced, two_cuts,
           beside_a_compaction, behind_a_merged_segment]


@pytest.mark.parametrize("story", STORIES, ids=lambda story: story.__name__)
def test_truncation_survives_a_power_failure(story: Callable[[Life], None], tmp_path: Path, effort: Effort) -> None:
    lives: list[Life] = []

    def live(folder: Path, files: RecordingFiles) -> None:
        with SegmentLog(folder / "log", options(files)) as log:
            lives.append(Life(log, files.acknowledge))
            story(lives[-1])

    def check(folder: Path, acknowledged: Sequence[int]) -> None:
        if not (folder / "log").exists():
            return
        with SegmentLog(folder / "log", options()) as log:
            found = terms_of(log.entries())
            assert found in list(lives[0].may_hold(max(acknowledged, default=0)))
            log.audit()
            assert log.verify().is_sound
            assert len(files_with_entries(folder / "log")) == len(log.refs)
            last = max(found, default=0)
            floor = log.state.index
            for first in (last + 1, max(last - 2, floor + 1, 1)):
                log.append([(first, 9, payload_of(first, 9))])
                log.sync()
            after = terms_of(log.entries())
        with SegmentLog(folder / "log", options()) as log:
            assert terms_of(log.entries()) == after

    def recover(folder: Path, files: Files) -> None:
        if (folder / "log").exists():
            SegmentLog(folder / "log", options(files)).close()

    recording = record(tmp_path, live)
    points = range(0, len(recording.operations) + 1, effort(5, 1))
    assert explore_crashes(recording, check, limit_per_point=effort(4, 64), points=points) >= 20
    explore_recovery(recording, recover, check, recoveries=effort(2, 100), limit_per_point=effort(2, 16))


@pytest.mark.parametrize("story", [within_a_segment, several_segments, before_any_sync],
                         ids=lambda story: story.__name__)
def test_truncation_of_a_killed_owner_survives_a_power_failure(story: Callable[[Life], None],
                                                               effort: Effort) -> None:
    """A successor reads a cut that was never synced, and acknowledges an entry behind it."""
    def first(folder: Path, files: RecordingFiles) -> None:
        with SegmentLog(folder / "log", options(files)) as log:
            story(Life(log, lambda state: None))

    def successor(folder: Path, files: RecordingFiles) -> None:
        with SegmentLog(folder / "log", options(files)) as log:
            index = log.last_index + 1
            log.append([(index, 9, payload_of(index, 9))])
            log.sync()
            files.acknowledge(index)

    def check(folder: Path, acknowledged: Sequence[int]) -> None:
        if (folder / "log").exists() or acknowledged:
            with SegmentLog(folder / "log", options()) as log:
                assert log.verify().is_sound
                assert all(terms_of(log.entries())[index] == 9 for index in acknowledged)

    assert explore_kills(first, successor, check, limit_per_point=effort(2, 16),
                         power_failures=effort(4, 1000)) > 20


# -- a log of a store


@attrs.define
class StoreLife:
    """A log of a store, and the states that it went through, each acknowledged when its call has returned."""

    store: RaftLogStore
    acknowledge: Callable[[int], object]
    states: list[Terms] = attrs.field(factory=lambda: [{}])

    @property
    def log(self) -> RaftLog:
        return self.store.log("a")

    def done(self, after: int, added: Sequence[tuple[int, int, bytes]], call: Callable[[], object]) -> None:
        kept = {index: term for index, term in self.states[-1].items() if index <= after}
        self.states.append({**kept, **{index: term for index, term, _ in added}})
        call()
        self.acknowledge(len(self.states) - 1)

    def append(self, last: int, term: int) -> None:
        added = rows(self.log.last_index + 1 if self.log.last_index >= 0 else 1, last, term)

        def call() -> None:
            self.log.append(added)
            self.log.sync()

        self.done(last, added, call)

    def conflict(self, first: int, last: int, term: int) -> None:
        """What another leader sends."""
        added = rows(first, last, term)
        before = self.log.term_of(first - 1) or 0
        self.done(first - 1, added, lambda: self.log.append_entries(first - 1, before, added))

    def reset(self, last: int) -> None:
        self.done(last, (), lambda: self.log.reset(last))

    def flush(self) -> None:
        self.store.flush()

    def compact(self, do: Callable[[], object] = bool) -> None:
        self.log.snapshot(8, range(1, 9))
        self.log.compact(policy=SeedPolicy(), executor=Beside(do))


def store_within_a_segment(life: StoreLife) -> None:
    life.append(11, 1)
    life.flush()
    life.conflict(7, 8, 2)
    life.flush()


def store_several_segments(life: StoreLife) -> None:
    life.append(22, 1)
    life.flush()
    life.conflict(6, 6, 2)
    life.append(9, 2)
    life.flush()


def store_reset(life: StoreLife) -> None:
    life.append(14, 1)
    life.flush()
    life.reset(5)
    life.append(7, 2)
    life.flush()


def store_in_memory_and_segments(life: StoreLife) -> None:
    life.append(9, 1)
    life.flush()
    life.append(16, 1)
    life.conflict(12, 13, 2)
    life.conflict(6, 7, 3)
    life.append(10, 3)
    life.flush()


def store_two_cuts(life: StoreLife) -> None:
    life.append(19, 1)
    life.flush()
    life.reset(14)
    life.reset(13)
    life.conflict(10, 12, 2)
    life.flush()
    life.conflict(3, 3, 3)


def store_overruled_under_a_snapshot(life: StoreLife) -> None:
    life.append(14, 1)
    life.flush()
    life.conflict(6, 12, 2)
    life.compact()
    life.flush()
    life.log.compact(policy=SeedPolicy())


def store_beside_a_compaction(life: StoreLife) -> None:
    life.append(19, 1)
    life.flush()

    def meanwhile() -> None:
        life.conflict(11, 12, 2)
        life.flush()

    life.compact(meanwhile)


def store_installs_a_snapshot(life: StoreLife) -> None:
    life.append(19, 1)
    life.flush()
    life.done(7, (), lambda: life.log.reset(7))
    live = {index: life.states[-1][index] for index in (2, 5)}
    life.states.append(live)
    with TemporaryDirectory() as folder, open_log(Path(folder) / "leader", log_id="a") as leader:
        leader.append((index, 1 if index < 20 else 3, payload_of(index, 1)) for index in range(1, 31))
        leader.snapshot(30, [2, 5], [b"the state"])
        assert transfer(leader, life.log, applied=7).is_well
    life.acknowledge(len(life.states) - 1)


STORE_STORIES = [store_within_a_segment, store_several_segments, store_reset, store_in_memory_and_segments,
                 store_two_cuts, store_overruled_under_a_snapshot, store_beside_a_compaction, store_installs_a_snapshot]


@pytest.mark.parametrize("story", STORE_STORIES, ids=lambda story: story.__name__.removeprefix("store_"))
def test_cut_of_a_store_survives_a_power_failure(story: Callable[[StoreLife], None], tmp_path: Path,
                                                 effort: Effort) -> None:
    lives: list[StoreLife] = []

    def live(folder: Path, files: RecordingFiles) -> None:
        with RaftLogStore(folder / "store", store_options(files)) as store:
            lives.append(StoreLife(store, files.acknowledge))
            story(lives[-1])

    def check(folder: Path, acknowledged: Sequence[int]) -> None:
        if not (folder / "store").exists():
            return
        with RaftLogStore(folder / "store", store_options()) as store:
            found, states = terms_of(store.log("a").entries()), lives[0].states
            number = max(acknowledged, default=0)
            assert found in states[number:number + 2]
            store.audit()
            assert store.verify().is_sound
            # What segments hold agrees with the log, in this opening and in the next.
            own = terms_in_segments(store.log("a"))
            assert own.items() <= found.items()
            log, last = store.log("a"), store.log("a").last_index
            first = max(last - 2, log.state.index + 1, 2)
            if last >= first:
                log.append_entries(first - 1, log.term_of(first - 1) or 0, rows(first, first, 9))
            else:
                log.append(rows(max(last, 0) + 1, max(last, 0) + 1, 9))
                log.sync()
            after = terms_of(log.entries())
            if number % 2:
                store.flush()
        with RaftLogStore(folder / "store", store_options()) as store:
            assert terms_of(store.log("a").entries()) == after

    def recover(folder: Path, files: Files) -> None:
        if (folder / "store").exists():
            RaftLogStore(folder / "store", store_options(files)).close()

    recording = record(tmp_path, live)
    points = range(0, len(recording.operations) + 1, effort(5, 1))
    assert explore_crashes(recording, check, limit_per_point=effort(2, 64), points=points) > 20
    explore_recovery(recording, recover, check, recoveries=effort(2, 100), limit_per_point=effort(1, 16))


# -- other misfortunes


def cut_log(folder: Path) -> None:
    """Segments 1 to 6 of four entries, cut behind 10."""
    with SegmentLog(folder, options()) as log:
        log.append(rows(1, 24, 1))
        log.sync()
        log.append([(11, 2, payload_of(11, 2))])
        log.sync()


def test_cut_entries_are_in_no_file(tmp_path: Path) -> None:
    cut_log(tmp_path)
    with SegmentLog(tmp_path, options()) as log:
        assert [(ref.first, ref.last) for ref in log.refs] == [(1, 4), (5, 8), (9, 10), (11, 11)]
    names = [f"{number:016d}.segment" for number in (1, 2, 3, 7)]
    assert sorted(path.name for path in tmp_path.glob("*.segment")) == names


def test_run_without_entries_truncates_nothing(tmp_path: Path) -> None:
    with SegmentLog(tmp_path / "log", options()) as log:
        log.append(rows(1, 10, 1))
        log.append_run(5, 1, [])
        assert terms_of(log.entries()) == dict.fromkeys(range(1, 11), 1)


def test_room_behind_a_cut_is_given_back_by_a_rewrite(tmp_path: Path) -> None:
    cut_log(tmp_path)
    with SegmentLog(tmp_path, options()) as log:
        log.append(rows(12, 20, 2))
        log.snapshot(10, range(1, 11))
        size = (tmp_path / f"{3:016d}.segment").stat().st_size
        assert log.view().segments[2].dead_bytes > 0
        log.compact(policy=SeedPolicy(reclaim_fraction=0.1))
        assert sum(len(bytes(entry.payload)) for entry in log.entries(9, 10)) < size
        assert terms_of(log.entries(1, 10)) == dict.fromkeys(range(1, 11), 1)


@pytest.mark.parametrize("number", [3, 4, 6])
def test_a_file_from_before_a_cut_is_named(number: int, tmp_path: Path) -> None:
    with SegmentLog(tmp_path / "log", options()) as log:
        log.append(rows(1, 24, 1))
    shutil.copytree(tmp_path / "log", tmp_path / "older")
    with SegmentLog(tmp_path / "log", options()) as log:
        log.append([(11, 2, payload_of(11, 2))])
    name = f"{number:016d}.segment"
    shutil.copy(tmp_path / "older" / name, tmp_path / "log" / name)
    for opens in (SegmentLog, LogReader):
        with pytest.raises(CorruptData, match=r"end of segment|sealed segment"):
            opens(tmp_path / "log")


def test_cut_without_room_changes_nothing(tmp_path: Path) -> None:
    with RaftLogStore(tmp_path / "store", store_options()) as store:
        store.log("a").append(rows(1, 12, 1))
        store.flush()
    full = {"is": False}

    def step(request: Request, act: Callable[[], Any]) -> Any:
        if full["is"] and request.needs_room:
            raise StorageError.from_os(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), request.kind, request.path)
        return act()

    with RaftLogStore(tmp_path / "store", store_options(FilesInFront(step))) as store:
        full["is"] = True
        with pytest.raises(StorageError):
            store.log("a").reset(5)
        assert terms_of(store.log("a").entries()) == dict.fromkeys(range(1, 13), 1)
        full["is"] = False
        store.log("a").reset(5)
        assert terms_of(store.log("a").entries()) == dict.fromkeys(range(1, 6), 1)


def test_append_over_held_entries_without_room_changes_nothing(tmp_path: Path) -> None:
    full = {"is": False}

    def step(request: Request, act: Callable[[], Any]) -> Any:
        if full["is"] and request.needs_room:
            raise StorageError.from_os(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), request.kind, request.path)
        return act()

    with SegmentLog(tmp_path, options(FilesInFront(step))) as log:
        log.append(rows(1, 12, 1))
        log.sync()
        full["is"] = True
        with pytest.raises(StorageError):
            log.append([(6, 2, payload_of(6, 2))])
        assert terms_of(log.entries()) == dict.fromkeys(range(1, 13), 1)
        full["is"] = False
        log.append([(6, 2, payload_of(6, 2))])
        assert terms_of(log.entries()) == {**dict.fromkeys(range(1, 6), 1), 6: 2}


def test_cut_to_nothing_that_finds_no_more_room_is_carried_out(tmp_path: Path) -> None:
    """The next segment is there: the truncation has begun."""
    def step(request: Request, act: Callable[[], Any]) -> Any:
        if request.needs_room and request.path.endswith(f"{1:016d}.segment.tmp") and full:
            raise StorageError.from_os(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), request.kind, request.path)
        return act()

    full: list[bool] = []
    with SegmentLog(tmp_path, options(FilesInFront(step))) as log:
        log.append(rows(1, 12, 1))
        full.append(True)
        log.append(rows(1, 2, 2))
    for _ in range(2):
        with SegmentLog(tmp_path, options()) as log:
            assert terms_of(log.entries()) == {1: 2, 2: 2}
            assert log.verify().is_sound
    assert sum(path.stat().st_size for path in tmp_path.glob("*.segment")) < 1000


def test_a_log_that_failed_in_a_cut_closes_and_opens_again(tmp_path: Path) -> None:
    failing = {"is": False}

    def step(request: Request, act: Callable[[], Any]) -> Any:
        if failing["is"] and request.kind == "unlink":
            raise StorageError.from_os(OSError(errno.EIO, os.strerror(errno.EIO)), request.kind, request.path)
        return act()

    log = SegmentLog(tmp_path, options(FilesInFront(step)))
    log.append(rows(1, 20, 1))
    log.sync()
    failing["is"] = True
    with pytest.raises(StorageError):
        log.append([(6, 2, b"")])
    for call in (log.sync, lambda: log.read(1), lambda: log.append([(1, 1, b"")]), log.compact):
        with pytest.raises(Closed, match="open it again"):
            call()
    failing["is"] = False
    # It still exists, and has the folder.
    with SegmentLog(tmp_path, options()) as again:
        found = terms_of(again.entries())
        assert set(range(1, 6)) <= set(found) <= set(range(1, 21))
        assert set(found.values()) == {1}
        assert list(found) == list(range(1, len(found) + 1))
    log.close()


def test_log_that_is_truncated_to_nothing_looks_damaged_to_no_reader(tmp_path: Path) -> None:
    """Not to one that has its first segment open, in this process or in another."""
    before = dict.fromkeys(range(1, 5), 1)
    with SegmentLog(tmp_path, options()) as log:
        log.append(rows(1, 10, 1))
        log.sync()
        with LogReader(tmp_path) as reader:
            scans = [iter(log.scan()), iter(reader.entries()), iter(reader.read_many(range(1, 5)))]
            first = [next(scan) for scan in scans]
            log.append(rows(1, 1, 2))
            log.sync()
            assert reader.read(2) == Entry(2, 1, payload_of(2, 1))
            for entry, scan in zip(first, scans, strict=True):
                found = [entry, *scan]
                assert all(isinstance(each, Entry) for each in found), found
                assert {each.index: each.term for each in found if isinstance(each, Entry)}.items() >= before.items()
            reader.refresh()
            assert terms_of(reader.entries()) == {1: 2}


def test_a_reader_sees_a_log_before_or_after_a_cut(tmp_path: Path) -> None:
    before, after = dict.fromkeys(range(1, 25), 1), {**dict.fromkeys(range(1, 11), 1), 11: 2}
    prefixes = [dict.fromkeys(range(1, end + 1), 1) for end in range(10, 25)]
    seen: list[Terms] = []
    cutting = {"is": False}

    def step(request: Request, act: Callable[[], Any]) -> Any:
        if cutting["is"]:
            with LogReader(tmp_path) as reader:
                seen.append(terms_of(reader.entries()))
                assert reader.verify().is_sound
        return act()

    with SegmentLog(tmp_path, options(FilesInFront(step))) as log:
        log.append(rows(1, 24, 1))
        log.sync()
        with LogReader(tmp_path) as old:
            cutting["is"] = True
            log.append([(11, 2, payload_of(11, 2))])
            log.sync()
            cutting["is"] = False
            assert old.read(10) == Entry(10, 1, payload_of(10, 1))
            old.refresh()
            assert terms_of(old.entries()) == after
    assert seen[0] == before
    assert all(each in [*prefixes, after] for each in seen)


def test_a_failed_log_of_a_store_opens_again_while_others_work(tmp_path: Path) -> None:
    failing = {"is": False}

    def step(request: Request, act: Callable[[], Any]) -> Any:
        if failing["is"] and request.kind == "unlink" and request.path.endswith(".segment"):
            raise StorageError.from_os(OSError(errno.EIO, os.strerror(errno.EIO)), request.kind, request.path)
        return act()

    with RaftLogStore(tmp_path / "store", store_options(FilesInFront(step))) as store:
        store.log("a").append(rows(1, 20, 1))
        store.log("b").append(rows(1, 9, 1))
        store.flush()
        failed = store.log("a")
        failing["is"] = True
        with pytest.raises(StorageError):
            failed.append_entries(5, 1, rows(6, 7, 2))
        failing["is"] = False
        with pytest.raises(Closed, match="open it again"):
            failed.append(rows(8, 8, 2))
        store.log("b").append(rows(10, 10, 1))
        store.sync()
        again = store.log("a")
        wanted = {**dict.fromkeys(range(1, 6), 1), 6: 2, 7: 2}
        assert terms_of(again.entries()) == wanted
        assert terms_in_segments(again).items() <= wanted.items()
        again.append(rows(8, 9, 2))
        store.flush()
        store.audit()
    with RaftLogStore(tmp_path / "store", store_options()) as store:
        assert terms_of(store.log("a").entries()) == {**wanted, 8: 2, 9: 2}
        assert terms_of(store.log("b").entries()) == dict.fromkeys(range(1, 11), 1)


def test_a_reader_of_a_store_sees_a_log_before_or_after_a_cut(tmp_path: Path) -> None:
    before, after = dict.fromkeys(range(1, 15), 1), {**dict.fromkeys(range(1, 6), 1), 6: 2, 7: 2}

    def read(folder: Path, place: int) -> tuple[Terms, int]:
        """Return the answers of a reader paused at this place while a leader's entries cut the log."""
        with RaftLogStore(folder, store_options()) as store:
            store.log("a").append(rows(1, 14, 1))
            store.flush()
            paused = Interrupted(place, lambda: store.log("a").append_entries(5, 1, rows(6, 7, 2)))
            with paused:
                reader = LogReader(folder / "logs" / "a")
            with reader:
                return terms_of(reader.entries()), paused.places

    found, places = read(tmp_path / "whole", 0)
    assert found == before
    for place in range(1, places, max(places // 30, 1)):
        found, _ = read(tmp_path / str(place), place)
        assert found in (before, after), place


def test_truncated_entries_are_not_reported_as_durable(tmp_path: Path) -> None:
    with open_log(tmp_path / "store", StoreOptions(background=False)) as log:
        log.append([(index, 1, b"") for index in range(1, 6)])
        assert log.unconfirmed == IndexSet.range(1, 5)
        log.reset(3)
        assert not log.unconfirmed
        assert log.status().durable_index == 3
        log.append([(4, 2, b"")])
        assert log.unconfirmed == IndexSet.range(4, 4)
        assert log.status().durable_index == 3


def test_entry_that_is_appended_beside_a_status_is_not_reported_as_durable(tmp_path: Path) -> None:
    with open_log(tmp_path, StoreOptions(background=False)) as log, ThreadPoolExecutor(1) as other:
        place, places = 1, 1
        while place <= places:
            log.append([(place, 1, b"")])
            log.sync()
            appended: list[Future[int]] = []

            def append(first: int = place + 1, appended: list[Future[int]] = appended) -> None:
                appended.append(other.submit(log.append, [(first, 1, b"")]))
                # A status that holds a lock does not wait for it.
                wait(appended, 0.01)

            with Interrupted(place, append) as paused:
                status = log.status()
            assert status.durable_index == place, paused.where
            wait(appended)
            log.reset(place)
            place, places = place + 1, paused.places


def test_entries_below_a_snapshot_are_refused_if_the_log_was_truncated_during_it(tmp_path: Path) -> None:
    with open_log(tmp_path, StoreOptions(background=False)) as log:
        log.append([(index, 1, b"") for index in range(1, 11)])

        def pieces() -> Iterator[bytes]:
            log.reset(5)
            yield b"state"

        log.snapshot(10, (), pieces())
        with pytest.raises(InvalidInput, match="at or below the snapshot"):
            log.append([(6, 2, b"it would be dead")])
        log.append([(11, 2, b"next")])
        log.sync()
    with open_log(tmp_path, StoreOptions(background=False)) as log:
        assert list(log.entries()) == [(11, 2, b"next")]


def test_entries_that_a_snapshot_covers_are_refused_before_any_is_appended(tmp_path: Path) -> None:
    with SegmentLog(tmp_path / "log") as log:
        log.append([(index, 1, b"") for index in range(1, 6)])
        log.snapshot(4, live=[2])
        for rows in ([(6, 1, b""), (4, 2, b"")], [(4, 2, b"")], [(-1, 2, b"")], [(6, 1, b""), (1 << 64, 1, b"")]):
            with pytest.raises(InvalidInput):
                log.append(rows)
        with pytest.raises(InvalidInput):
            log.append_run(3, 2, [b"", b""])
        assert [entry.index for entry in log.entries()] == [2, 5]
        assert log.append([(7, 1, b""), (9, 2, b"")]) == 9
        assert [entry.index for entry in log.entries()] == [2, 5, 7, 9]


def test_segments_that_a_truncation_removes_are_no_damage(tmp_path: Path) -> None:
    """A view that has listed them before, and opens them while their files go, leaves them out."""
    removing, seen = threading.Event(), threading.Event()

    def step(request: Request, act: Callable[[], Any]) -> Any:
        if request.kind == "unlink" and request.path.endswith("0000000000000003.segment"):
            removing.set()
            # Perhaps the view waits for the truncation.
            seen.wait(0.3)
        return act()

    class TruncatesMeanwhile(SystemClock):
        def now(self) -> float:
            if not truncation.is_alive() and not removing.is_set():
                truncation.start()
                removing.wait()
            return super().now()

    with SegmentLog(tmp_path, options(FilesInFront(step))) as log:
        log.append([Entry(index, 1, b"x") for index in range(1, 11)])
        truncation = threading.Thread(target=lambda: log.append([Entry(9, 2, b"y")]))
        view = log.view(budget=Budget(deadline=1e12, clock=TruncatesMeanwhile()))
        seen.set()
        truncation.join()
        assert not view.damaged
        assert 3 not in {each.number for each in view.segments}
