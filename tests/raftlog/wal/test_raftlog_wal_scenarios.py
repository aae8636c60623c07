# SPDX-License-Identifier: Apache-2.0
"""Plays the stories in `raftlog/scenarios/wal_*.txt`: `write 5 after 4 => resend 4`, or `written`, or `dropped`."""

from __future__ import annotations

from pathlib import Path

import pytest

from compactlib.raftlog.model.row import LogRows
from compactlib.raftlog.wal.rules import Dropped, Resend, Verdict
from compactlib.raftlog.wal.wal import Wal

SCENARIOS = sorted((Path(__file__).parents[1] / "scenarios").glob("wal_*.txt"))


def told(verdict: Verdict) -> str:
    if isinstance(verdict, Resend):
        return f"resend {verdict.index}"
    return "dropped" if isinstance(verdict, Dropped) else "written"


def play(text: str, folder: Path) -> None:
    wal = Wal(folder, LogRows())
    try:
        for line in filter(None, (line.partition("#")[0].strip() for line in text.splitlines())):
            command, _, wanted = line.partition(" => ")
            _, index, _, previous = command.split()
            assert told(wal.write_run("log", int(previous), int(index), 1, [b""])) == wanted, line
    finally:
        wal.close()


@pytest.mark.parametrize("scenario", SCENARIOS, ids=[path.stem.removeprefix("wal_") for path in SCENARIOS])
def test_scenario(scenario: Path, tmp_path: Path) -> None:
    play(scenario.read_text(), tmp_path)


def test_a_story_can_fail(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="write 9 after 8"):
        play("write 1 after 0 => written\nwrite 9 after 8 => dropped", tmp_path)
