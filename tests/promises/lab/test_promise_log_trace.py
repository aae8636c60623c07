# SPDX-License-Identifier: Apache-2.0
"""The entries of a Raft log are a workload: each is a put of the key that its command writes."""

from __future__ import annotations

from pathlib import Path

from compactlib.lab import LogTrace, RaftLogModel, Row, replay
from compactlib.raftlog import LogReader, SeedPolicy, SegmentLog, open_log

COMMANDS = [b"x 1", b"yy 22", b"", b"x 333"]
PUT, DELETE = 0, 1


def first_word(command: bytes) -> str | None:
    return command.split()[0].decode() if command else None


def rows(trace: LogTrace) -> list[Row]:
    return list(trace.rows(0))


def test_log_trace_puts_the_key_of_each_command(tmp_path: Path) -> None:
    with open_log(tmp_path / "log") as log:
        log.append_run(1, 1, COMMANDS)
        log.sync()
        assert rows(LogTrace(log, first_word)) == [
            (PUT, 0, 3, -1, 0), (PUT, 1, 5, -1, 1), (DELETE, 2, 0, -1, 2), (PUT, 0, 5, -1, 3)]
        assert rows(LogTrace(log)) == [(PUT, 0, 3, -1, 0), (PUT, 1, 5, -1, 1), (PUT, 2, 1, -1, 2), (PUT, 3, 5, -1, 3)]


def test_log_trace_is_replayed_from_a_reader(tmp_path: Path) -> None:
    with SegmentLog(tmp_path / "log") as log:
        for index in range(1, 101):
            log.append([(index, 1, b"%d=%d" % (index % 5, index))])
        log.sync()
    with LogReader(tmp_path / "log") as reader:
        trace = LogTrace(reader, lambda command: command.split(b"=")[0].decode())
        report = replay(trace, SeedPolicy(), RaftLogModel(snapshot_every=20))
        assert report == replay(trace, SeedPolicy(), RaftLogModel(snapshot_every=20))
    assert report.total.operations == 100
    assert report.total.live_bytes < report.total.user_bytes
