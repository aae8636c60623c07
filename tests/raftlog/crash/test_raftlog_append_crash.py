# SPDX-License-Identifier: Apache-2.0
"""Crashes at every step of appending, rolling over, overwriting and recording snapshots.

After each crash the log opens, holds everything that was acknowledged and nothing that was never appended, in a state
that it really was in, and goes on. What compactions do is in `test_raftlog_crash.py`.
"""

from __future__ import annotations

import contextlib
import copy
import errno
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from compactlib.errors import StorageError
from compactlib.files import Files, LocalFiles, zeros_ahead
from compactlib.raftlog import Entry, LogOptions, LogReader, SegmentLimits, SegmentLog
from compactlib.raftlog.segment.reader import SegmentReader
from compactlib.raftlog.segment.writer import SegmentWriter
from compactlib.testing import RecordingFiles, explore_crashes, explore_recovery, record
from tests.harness.effort import Effort
from tests.harness.plain_log import History, PlainLog
from tests.tools.faults.plan import FailingFiles

TINY = SegmentLimits(max_entries=3, max_bytes=100)
LOCAL = LocalFiles()


@pytest.fixture(params=[False, True], ids=["no zeros", "zeros ahead"], autouse=True)
def zeros(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each crash without zeros ahead, as logs so small have none, and with them from the first sync on."""
    if request.param:
        monkeypatch.setattr(zeros_ahead, "_LEAST_BYTES", 1)
        monkeypatch.setattr(zeros_ahead, "_FEWEST_SYNCS", 0)


def goes_on(folder: Path, state: PlainLog) -> None:
    """Appending to what was found works, and what is appended is there when the log is opened once more."""
    state = copy.copy(state)
    for _ in range(2):
        with SegmentLog(folder, LogOptions(limits=TINY)) as log:
            state.check(log)
            for _ in range(2):
                row = (state.last + 1, 9, b"after the crash")
                log.append(*row)
                state.append(*row)
    with SegmentLog(folder) as log:
        state.check(log)
        assert log.torn_entries == 0


# -- one segment


SEGMENT_GROUPS = (
    [(1, 1, b"one"), (2, 1, b""), (3, 1, b"three")],
    [(4, 2, b"four"), (5, 2, b"")],
    [(7, 2, bytes(5000))],
)


def write_segment_in_groups(history: History) -> Callable[[Path, RecordingFiles], None]:
    def write(folder: Path, files: RecordingFiles) -> None:
        writer = SegmentWriter.create(files, folder, 1, SegmentLimits(max_entries=8))
        files.acknowledge(0)
        for group in SEGMENT_GROUPS:
            for number, row in enumerate(group):
                writer.append(*row)
                history.append(*row)
                if number == 1:
                    writer.flush()
            writer.sync()
            files.acknowledge(len(history.states) - 1)
        writer.seal()
        writer.close()

    return write


def check_segment(history: History) -> Callable[[Path, Sequence[Any]], None]:
    def check(folder: Path, acknowledged: Sequence[int]) -> None:
        path = folder / "0000000000000001.segment"
        if not acknowledged and not path.exists():
            return
        with SegmentReader(path) as reader:
            state = history.found_in((each for each in reader.scan() if isinstance(each, Entry)), None, acknowledged)
            sealed = reader.loaded.sealed
        if sealed:
            assert state == history.states[-1]
            return
        with SegmentWriter.open(LOCAL, folder, 1) as writer:
            writer.append(100, 9, b"after the crash")
        with SegmentReader(path) as reader:
            assert [entry.index for entry in reader.scan()] == [*state.entries, 100]
            assert reader.loaded.torn_tail is None

    return check


def test_a_segment_survives_a_crash_at_every_step(tmp_path: Path) -> None:
    history = History()
    recording = record(tmp_path, write_segment_in_groups(history))
    explore_crashes(recording, check_segment(history))


def test_a_crash_while_the_torn_tail_is_cut_loses_nothing(effort: Effort, tmp_path: Path) -> None:
    history = History()
    recording = record(tmp_path, write_segment_in_groups(history))

    def reopen(folder: Path, files: Files) -> None:
        path = folder / "0000000000000001.segment"
        if path.exists():
            with SegmentReader(path) as reader:
                sealed = reader.loaded.sealed
            if not sealed:
                SegmentWriter.open(files, folder, 1).close()

    explore_recovery(recording, reopen, check_segment(history), recoveries=effort(20, 60),
                     limit_per_point=effort(6, 16))


# -- a log


def plain(log: SegmentLog, history: History, files: RecordingFiles) -> None:
    """Two roll-overs, syncs at different places in the segments, a snapshot."""
    for index in range(1, 9):
        write(log, history, index, 1)
        if index in (2, 3, 7):
            sync(log, history, files)
    log.record_snapshot(5, [2, 4])
    history.record_snapshot(5, [2, 4])
    files.acknowledge(len(history.states) - 1)
    write(log, history, 9, 1)
    write(log, history, 10, 1)


def overwrites(log: SegmentLog, history: History, files: RecordingFiles) -> None:
    """A new leader takes back a part of one segment and the whole of another, twice."""
    for index in range(1, 9):
        write(log, history, index, 1)
    sync(log, history, files)
    write(log, history, 3, 2)
    write(log, history, 4, 2)
    sync(log, history, files)
    write(log, history, 5, 2)
    write(log, history, 2, 3)
    # Not synced: segment 2, and what was written in term 2, must stay until it is.
    write(log, history, 3, 3)
    sync(log, history, files)
    write(log, history, 4, 3)


def sparse(log: SegmentLog, history: History, files: RecordingFiles) -> None:
    """Gaps, empty payloads, payloads that fill a segment by their size."""
    payloads = {5: b"", 7: b"", 20: b"x" * 90, 21: b"y" * 20, 22: b"", 30: b"z" * 200, 31: b""}
    for index, payload in payloads.items():
        log.append(index, 1, payload)
        history.append(index, 1, payload)
        if index in (7, 22):
            sync(log, history, files)


def write(log: SegmentLog, history: History, index: int, term: int) -> None:
    row = (index, term, b"%d in term %d" % (index, term))
    log.append(*row)
    history.append(*row)


def sync(log: SegmentLog, history: History, files: RecordingFiles) -> None:
    log.sync()
    files.acknowledge(len(history.states) - 1)


Story = Callable[[SegmentLog, History, RecordingFiles], None]
STORIES: dict[str, Story] = {"plain": plain, "overwrites": overwrites, "sparse": sparse}


def check_log(history: History) -> Callable[[Path, Sequence[Any]], None]:
    def check(folder: Path, acknowledged: Sequence[int]) -> None:
        if acknowledged:
            with LogReader(folder) as reader:
                before = history.found(reader, acknowledged)
        with SegmentLog(folder, LogOptions(limits=TINY)) as log:
            state = history.found(log, acknowledged)
            assert not acknowledged or state == before
        goes_on(folder, state)

    return check


@pytest.mark.parametrize("name", STORIES)
def test_a_log_survives_a_crash_at_every_step(name: str, effort: Effort, tmp_path: Path) -> None:
    history = History()

    def run(folder: Path, files: RecordingFiles) -> None:
        with SegmentLog(folder, LogOptions(limits=TINY, files=files)) as log:
            STORIES[name](log, history, files)
        files.acknowledge(len(history.states) - 1)

    recording = record(tmp_path, run)
    explore_crashes(recording, check_log(history), limit_per_point=effort(8, 240))


@pytest.mark.parametrize("name", STORIES)
def test_a_crash_of_opening_the_log_loses_nothing(name: str, effort: Effort, tmp_path: Path) -> None:
    history = History()

    def run(folder: Path, files: RecordingFiles) -> None:
        with SegmentLog(folder, LogOptions(limits=TINY, files=files)) as log:
            STORIES[name](log, history, files)

    def recover(folder: Path, files: Files) -> None:
        SegmentLog(folder, LogOptions(limits=TINY, files=files)).close()

    recording = record(tmp_path, run)
    explore_recovery(recording, recover, check_log(history), seed=3, recoveries=effort(5, 60),
                     limit_per_point=effort(6, 16))


def test_a_process_that_ends_at_any_step_leaves_a_log_that_survives_a_crash_later(effort: Effort,
                                                                                  tmp_path: Path) -> None:
    """The first process dies (its disk refuses everything from one step on), the second goes on, the machine crashes.

    The second one meets what the first had written and not synced, a seal for example, and must not build on it.
    """
    counting = FailingFiles()
    (tmp_path / "count").mkdir()

    def first(folder: Path, files: Files, history: History) -> None:
        log = SegmentLog(folder, LogOptions(limits=TINY, files=files))
        try:
            for index in range(1, 5):
                write(log, history, index, 1)
            log.sync()
            write(log, history, 3, 2)
            log.sync()
        finally:
            with contextlib.suppress(StorageError):
                log.close()

    first(tmp_path / "count", counting, History())
    for number in range(2, counting.count + 1, effort(2, 1)):
        history = History()

        second_begins: list[int] = []

        def run(folder: Path, files: RecordingFiles, number: int = number, history: History = history,
                second_begins: list[int] = second_begins) -> None:
            with contextlib.suppress(StorageError):
                first(folder, FailingFiles(files, fail_at=number, errno=errno.EIO, sticky=True), history)
            second_begins.append(len(files.recording().operations))
            with SegmentLog(folder, LogOptions(limits=TINY, files=files)) as log:
                found = history.found(log, [])
                history.states.append(copy.copy(found))
                for index in range(found.last + 1, found.last + 5):
                    write(log, history, index, 3)
                sync(log, history, files)
                write(log, history, 2, 4)
                sync(log, history, files)

        folder = tmp_path / str(number)
        folder.mkdir()
        recording = record(folder, run)
        explore_crashes(recording, check_log(history), seed=number, limit_per_point=effort(2, 24),
                points=range(second_begins[0], len(recording.operations) + 1))
