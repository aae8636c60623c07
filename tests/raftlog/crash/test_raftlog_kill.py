# SPDX-License-Identifier: Apache-2.0
"""A process that writes and compacts is killed with signal 9 at random moments, and the log is judged each time."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from compactlib.outcome import Failed
from compactlib.raftlog import LogReader, SegmentLog
from tests.raftlog.compaction_logs import options, strays
from tests.raftlog.crash.journal import Journal, Line

ROOT = Path(__file__).parents[3]


def killed_life(folder: Path, seed: int, lines: int) -> list[Line]:
    """Let a process live on the log, kill it once it has told so many lines, and return all that it told."""
    command = [sys.executable, "-m", "tests.raftlog.crash.killed_writer", str(folder), str(seed)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        told = [process.stdout.readline() for _ in range(lines)]
        process.send_signal(signal.SIGKILL)
        told.extend(process.stdout.readlines())
    assert process.returncode == -signal.SIGKILL, told[-1]
    return [line.decode().rstrip("\n") for line in told if line.endswith(b"\n")]


def campaign(folder: Path, kills: int, seed: int) -> None:
    """Kill a writer of one log again and again; after each, nothing promised may be missing."""
    rng = random.Random(seed)
    SegmentLog(folder, options()).close()
    before = Journal()
    for _ in range(kills):
        for line in killed_life(folder, rng.randrange(1 << 30), rng.randint(1, 600)):
            if not line.startswith("disk "):
                before.note(line)
        with LogReader(folder) as reader:
            before.judge(reader)
        with SegmentLog(folder, options()) as log:
            assert strays(folder) == []
            before.judge(log)
            if rng.random() < 0.5:
                outcome = log.compact(policy=log.policy)
                assert not isinstance(outcome, Failed), outcome
                before.judge(log)
            before = Journal.of(log)


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.soak)])
def test_a_log_survives_kills_of_its_writer(seed: int, tmp_path: Path) -> None:
    campaign(tmp_path, 4, seed)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(4))
def test_a_log_survives_two_hundred_kills_of_its_writer(seed: int, tmp_path: Path) -> None:
    campaign(tmp_path, 50, 100 + seed)
