# SPDX-License-Identifier: Apache-2.0
"""A process that writes and compacts is killed with signal 9 at random moments, and the log is judged each time."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from compactlib.outcome import Failed
from compactlib.raftlog import LogReader, SegmentLog
from tests.harness.killed_life import killed_life
from tests.raftlog.compaction_logs import options, strays
from tests.raftlog.crash.journal import Journal


def campaign(folder: Path, kills: int, seed: int) -> None:
    """Kill a writer of one log again and again; after each, nothing promised may be missing."""
    rng = random.Random(seed)
    SegmentLog(folder, options()).close()
    before = Journal()
    for _ in range(kills):
        told = killed_life("tests.raftlog.crash.killed_writer", folder, rng.randrange(1 << 30), rng.randint(1, 600))
        for line in told:
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
