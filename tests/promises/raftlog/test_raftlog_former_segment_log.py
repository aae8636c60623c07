# SPDX-License-Identifier: Apache-2.0
"""No call changes a file of a `SegmentLog`, or of a `LocalLog`, after `close`: the next owner has it for itself."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path

import attrs
import pytest

from compactlib.commandlog import Command
from compactlib.errors import BudgetSpent, Closed, CompactionFailed
from compactlib.executors import LocalExecutor
from compactlib.files import Files, LocalFiles
from compactlib.raftlog import EveryNMinors, LocalLog, LogOptions, SeedPolicy, SegmentLimits, SegmentLog
from compactlib.rewrite import Executor
from tests.harness.closing import Closing, close_everywhere
from tests.harness.effort import Effort

CALLS: dict[str, Callable[[SegmentLog], int | None]] = {
    "append": lambda log: appended(log, 31, 1),
    "append many": lambda log: appended(log, 31, 10),
    "append_run": lambda log: appended_run(log),
    "truncate": lambda log: appended(log, 23, 1),
    "sync": lambda log: log.sync(),
    "snapshot": lambda log: log.snapshot(25, (6, 25)),
    "end_segment": lambda log: log.end_segment(),
    "compact": lambda log: compacted(log),
    "compact in threads": lambda log: compacted(log, LocalExecutor(2)),
    "reclaim": lambda log: reclaimed(log),
    "verify": lambda log: verified(log),
}


def appended(log: SegmentLog, first: int, count: int, payload: bytes = b"new") -> int:
    log.append([(index, 3, payload) for index in range(first, first + count)])
    log.sync()
    return log.last_index


def appended_run(log: SegmentLog) -> int:
    log.append_run(31, 3, [b"new"] * 10)
    log.sync()
    return log.last_index


def compacted(log: SegmentLog, executor: Executor | None = None) -> None:
    assert log.compact(policy=SeedPolicy(), executor=executor).done


def reclaimed(log: SegmentLog) -> None:
    assert not log.reclaim().is_empty


def verified(log: SegmentLog) -> None:
    assert log.verify().is_sound


def options(files: Files) -> LogOptions:
    return LogOptions(files=files, limits=SegmentLimits(max_entries=4), trigger=EveryNMinors(0), keep_links_seconds=0.0)


def prepared(folder: Path, files: Files) -> SegmentLog:
    """A log with live, dead and merged segments, files to reclaim, and entries that are not synced."""
    log = SegmentLog(folder, options(files))
    log.append((index, 1, b"entry") for index in range(1, 13))
    log.snapshot(11, (6, 9))
    with log.lease():
        log.compact(policy=SeedPolicy())
    log.append((index, 1, b"entry") for index in range(13, 29))
    log.snapshot(22, (6, 14, 19))
    log.append((index, 1, b"entry") for index in range(29, 31))
    return log


def next_log(log: SegmentLog, closes: str, closing: Closing) -> SegmentLog:
    if closes == "close":
        log.close()
    else:
        closing.interrupt(lambda: appended(log, log.last_index + 1, 1, b"interrupted"))
    return SegmentLog(log.folder, options(LocalFiles()))


def work(later: SegmentLog) -> int:
    """Append an entry durably, compact and cut the log, and append again; return the last index."""
    with later:
        index = appended(later, later.last_index + 1, 1, b"of the next owner")
        later.compact(policy=SeedPolicy())
        return appended(later, index, 1, b"of the next owner")


@pytest.mark.parametrize("closes", ["close", "interrupt"])
@pytest.mark.parametrize("call", CALLS)
def test_no_call_changes_a_segment_log_after_a_close(call: str, closes: str, tmp_path: Path, effort: Effort) -> None:
    def closed_before(line: int) -> Closing:
        folder, closing = tmp_path / str(line), Closing(lambda path: False)
        log, done = prepared(folder, closing.files), None
        with (closing.before(line, lambda: next_log(log, closes, closing), work),
              contextlib.suppress(Closed, BudgetSpent, CompactionFailed)):
            done = CALLS[call](log)
        index = None if closing.closed is None else closing.closed.result(60)
        log.close()
        where = f"closed before line {line}"
        assert not closing.late, where
        with SegmentLog(folder, options(LocalFiles())) as later:
            later.audit()
            assert later.verify().is_sound, where
            assert not later.torn_entries, where
            found, state = {entry.index: entry for entry in later.entries()}, later.state
            # An interrupted append comes behind a truncation, with a gap.
            assert call == "truncate" or found.keys() == {*state.live, *range(state.index + 1, later.last_index + 1)}
            assert found.keys() >= set(state.live), where
            if index is not None:
                assert later.last_index == index, where
                assert found[index].payload == b"of the next owner", where
            assert done is None or any(entry.payload == b"new" for entry in found.values()), where
        return closing

    close_everywhere(closed_before, effort(20, 200))


@attrs.define
class Said:
    """A machine that keeps its commands."""

    applied_index: int = 0
    said: list[bytes] = attrs.field(factory=list)

    def apply(self, command: Command, payload: bytes) -> bytes:
        self.applied_index = command.index
        self.said.append(payload)
        return payload


COMMANDS: dict[str, Callable[[LocalLog], object]] = {
    "decide": lambda log: [log.decide(lambda command: b"new") for _ in range(2)],
    "compact": lambda log: log.compact(7),
    "start": lambda log: log.start(Said(3)),
}


@pytest.mark.parametrize("closes", ["close", "interrupt"])
@pytest.mark.parametrize("call", COMMANDS)
def test_no_call_changes_a_local_log_after_a_close(call: str, closes: str, tmp_path: Path, effort: Effort) -> None:
    def next_log(log: LocalLog, folder: Path, closing: Closing) -> LocalLog:
        if closes == "close" or call == "start":
            log.close()
        else:
            closing.interrupt(lambda: log.decide(lambda command: b"interrupted"))
        return LocalLog(folder, options(LocalFiles()))

    def work(later: LocalLog) -> None:
        with later:
            later.start(Said(later.first_index - 1))
            later.decide(lambda command: b"of the next owner")

    def closed_before(line: int) -> Closing:
        folder, closing = tmp_path / str(line), Closing(lambda path: False)
        with LocalLog(folder, options(LocalFiles())) as log:
            log.start(Said())
            for _ in range(10):
                log.decide(lambda command: b"first")
            log.compact(3)
        log = LocalLog(folder, options(closing.files))
        if call != "start":
            log.start(Said(3))
        done = None
        with (closing.before(line, lambda: next_log(log, folder, closing), work),
              contextlib.suppress(Closed, BudgetSpent, CompactionFailed)):
            done = COMMANDS[call](log)
        if closing.closed is not None:
            closing.closed.result(60)
        log.close()
        where = f"closed before line {line}"
        assert not closing.late, where
        with LocalLog(folder, options(LocalFiles())) as later:
            machine = Said(later.first_index - 1)
            later.start(machine)
            assert machine.said.count(b"of the next owner") == (closing.closed is not None), where
            assert machine.said[-1:] == [b"of the next owner"] or closing.closed is None, where
            assert machine.said.count(b"new") >= (2 if done else 0), where
        return closing

    close_everywhere(closed_before, effort(20, 200))
