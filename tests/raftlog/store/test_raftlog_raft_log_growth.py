# SPDX-License-Identifier: Apache-2.0
"""Four times as much of anything that a host does with a log again and again is four times the work."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from compactlib.indexset import IndexSet
from compactlib.raftlog import LogOptions, RaftLog, SegmentLimits, StoreOptions, open_log
from tests.harness.steps import calls_of
from tests.raftlog.raft_host import rows
from tests.raftlog.wrapped_files import UnsyncedFiles

FEW, MANY = 50, 200


def take_back_each(log: RaftLog, count: int) -> None:
    for term in range(1, count + 1):
        log.append([(log.last_index + 1, term, b"x")])
        log.reset(log.last_index - 1)


def be_overwritten(log: RaftLog, count: int) -> None:
    for term in range(2, count + 2):
        log.append_entries(1, 1, [(2, term, b"x")])


def take_back_one_by_one(log: RaftLog, count: int) -> None:
    for index in range(2, count + 2):
        log.append(rows(index, index))
    for index in range(count, 0, -1):
        log.reset(index)


def take_snapshots(log: RaftLog, count: int) -> None:
    for index in range(2, count + 2):
        log.append(rows(index, index))
        log.snapshot(index, IndexSet.range(1, index))


def flush_each(log: RaftLog, count: int) -> None:
    for index in range(2, count + 2):
        log.append(rows(index, index))
        log.flush()


def flush_segments(log: RaftLog, count: int) -> None:
    """Bring the log up to index `count`, in segments of 4 entries."""
    while log.last_index < count:
        log.append(rows(log.last_index + 1, log.last_index + 1))
    log.flush()


def pin_over_segments(log: RaftLog, count: int) -> None:
    flush_segments(log, count)
    pins = [log.pin(IndexSet.range(index, index)) for index in range(1, count + 1)]
    for pin in pins:
        pin.release()


def take_snapshots_over_segments(log: RaftLog, count: int) -> None:
    flush_segments(log, count)
    for index in range(2, count + 1):
        log.snapshot(index, [1, index])


def read_far_apart(log: RaftLog, count: int) -> None:
    flush_segments(log, count)
    for index in range(2, count + 1):
        assert len(list(log.read_many([1, index]))) == 2


@pytest.mark.parametrize("act", [take_back_each, be_overwritten, take_back_one_by_one, take_snapshots,
                                 flush_each, pin_over_segments, take_snapshots_over_segments, read_far_apart])
def test_a_repeated_operation_costs_the_same_each_time(
        act: Callable[[RaftLog, int], None], tmp_path: Path) -> None:
    options = StoreOptions(background=False, log=LogOptions(limits=SegmentLimits(max_entries=4), files=UnsyncedFiles()))
    calls = []
    for count in (FEW, MANY):
        with open_log(tmp_path / str(count), options) as log:
            log.append(rows(1, 1))
            log.sync()

            def work(log: RaftLog = log, count: int = count) -> None:
                act(log, count)
                log.sync()
                for _ in range(count):
                    log.read(1)

            calls.append(calls_of(work).total())
    assert calls[1] < 5 * calls[0], calls
