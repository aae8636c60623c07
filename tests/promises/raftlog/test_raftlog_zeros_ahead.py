# SPDX-License-Identifier: Apache-2.0
"""Small synced appends to a segment write zeros behind its payloads, which no log takes for entries."""

from __future__ import annotations

import errno
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import attrs

from compactlib.errors import StorageError
from compactlib.raftlog import LogOptions, LogReader, RaftLogStore, SegmentLimits, SegmentLog, StoreOptions
from compactlib.testing import FilesInFront, RecordingFiles, Request, explore_crashes, record
from tests.harness.effort import Effort

ENTRIES = [(index, 1, b"payload %03d" % index * 10) for index in range(1, 201)]
OPTIONS = LogOptions(limits=SegmentLimits(max_entries=1000))


def written(folder: Path) -> SegmentLog:
    log = SegmentLog(folder, OPTIONS)
    for entry in ENTRIES:
        log.append([entry])
        log.sync()
    return log


def test_a_closed_log_has_no_zeros_and_goes_on_in_its_segment(tmp_path: Path) -> None:
    written(tmp_path / "log").close()
    (segment,) = (tmp_path / "log").glob("*.segment")
    assert segment.read_bytes().endswith(ENTRIES[-1][2])
    with SegmentLog(tmp_path / "log", OPTIONS) as log:
        log.append([(201, 1, b"next")])
        assert [tuple(entry) for entry in log.entries()] == [*ENTRIES, (201, 1, b"next")]
        assert len(log.view().segments) == 1


def test_restarts_of_a_store_leave_no_small_segments(tmp_path: Path) -> None:
    payload = b"x" * 1000
    for index in range(1, 101):
        with RaftLogStore(tmp_path, StoreOptions(background=False)) as store:
            log = store.log("a")
            log.append([(index, 1, payload)])
            store.flush()
            assert len(log.refs) == 1
    with RaftLogStore(tmp_path, StoreOptions(background=False)) as store:
        assert [tuple(entry) for entry in store.log("a").entries()] == [(index, 1, payload) for index in range(1, 101)]


def test_zeros_that_a_full_disk_refuses_keep_no_room(tmp_path: Path) -> None:
    refused: list[int] = []

    def step(request: Request, act: Callable[[], Any]) -> Any:
        if request.kind == "write" and request.size >= 4096:
            assert request.half is not None
            request.half()
            refused.append(request.size)
            raise StorageError.from_os(OSError(errno.ENOSPC, "no space left"), "write", request.path)
        return act()

    with SegmentLog(tmp_path, attrs.evolve(OPTIONS, files=FilesInFront(step))) as log:
        for entry in ENTRIES:
            log.append([entry])
            log.sync()
            (segment,) = tmp_path.glob("*.segment")
            assert segment.read_bytes().endswith(entry[2])
    assert refused


def test_an_ended_segment_has_no_zeros(tmp_path: Path) -> None:
    with written(tmp_path / "log") as log:
        log.end_segment()
        segment, *_ = sorted((tmp_path / "log").glob("*.segment"))
        assert segment.read_bytes().endswith(ENTRIES[-1][2])


def test_zeros_of_a_truncated_segment_do_not_count_as_dead_bytes(tmp_path: Path) -> None:
    with written(tmp_path / "log") as log:
        log.append([(151, 2, b"another")])
        counted = log.view().segments[0].data_bytes
        assert counted == sum(len(payload) for _, _, payload in ENTRIES)
        with LogReader(tmp_path / "log") as reader:
            assert reader.view().segments[0].data_bytes == counted


def test_a_killed_log_with_zeros_has_its_entries_and_takes_more(tmp_path: Path) -> None:
    with written(tmp_path / "log"):
        shutil.copytree(tmp_path / "log", tmp_path / "killed")
    (segment,) = (tmp_path / "killed").glob("*.segment")
    assert segment.read_bytes().endswith(bytes(1000))
    with SegmentLog(tmp_path / "killed", OPTIONS) as log:
        assert [tuple(entry) for entry in log.entries()] == ENTRIES
        log.append([(201, 1, b"next")])
        log.sync()
    with SegmentLog(tmp_path / "killed", OPTIONS) as log:
        assert [tuple(entry) for entry in log.entries()] == [*ENTRIES, (201, 1, b"next")]
        assert log.verify().findings == ()


def test_synced_entries_before_zeros_survive_a_power_failure(tmp_path: Path, effort: Effort) -> None:
    limits = SegmentLimits(max_entries=100)
    states: list[list[tuple[int, int, bytes]]] = [[]]

    def live(folder: Path, files: RecordingFiles) -> None:
        with SegmentLog(folder / "log", LogOptions(limits=limits, files=files)) as log:
            for index, term in [*((index, 1) for index in range(1, 9)), (7, 2), (8, 2)]:
                entry = index, term, b"%d %d " % (index, term) * 400
                states.append([*(each for each in states[-1] if each[0] < index), entry])
                log.append([entry])
                log.sync()
                files.acknowledge(len(states) - 1)

    def check(folder: Path, acknowledged: Sequence[int]) -> None:
        if not (folder / "log").exists():
            return
        last = max(acknowledged, default=0)
        with SegmentLog(folder / "log", LogOptions(limits=limits)) as log:
            found = [tuple(entry) for entry in log.entries()]
            # The truncation of the next append may have happened without it.
            assert found in (*states[last:last + 2], states[last][:6])
            assert log.verify().is_sound
            log.append([(9, 9, b"another")])
        with SegmentLog(folder / "log", LogOptions(limits=limits)) as log:
            assert [tuple(entry) for entry in log.entries()] == [*found, (9, 9, b"another")]

    recording = record(tmp_path, live)
    points = range(0, len(recording.operations) + 1, effort(4, 1))
    assert explore_crashes(recording, check, limit_per_point=effort(3, 64), points=points) >= 10
