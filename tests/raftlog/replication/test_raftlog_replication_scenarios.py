# SPDX-License-Identifier: Apache-2.0
"""Plays the stories in `tests/raftlog/scenarios/transfer_*.txt`; `transfer_story.py` describes their language."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.raftlog.replication.transfer_story import TransferStory

SCENARIOS = sorted((Path(__file__).parents[2] / "raftlog" / "scenarios").glob("transfer_*.txt"))


@pytest.mark.parametrize("scenario", SCENARIOS, ids=[path.stem.removeprefix("transfer_") for path in SCENARIOS])
def test_scenario(scenario: Path) -> None:
    TransferStory().run(scenario.read_text())


@pytest.mark.parametrize("wrong", ["expect done", "expect sender sending", "expect aborted damaged", "jump",
                                   "expect follower equals", "expect nonsense", "expect trace\n  -> Probe"])
def test_a_story_can_fail_and_names_the_line(wrong: str) -> None:
    with pytest.raises((AssertionError, KeyError, IndexError)) as caught:
        TransferStory().run(f"leader applies 3\nsend\n\n{wrong}\n")
    assert caught.value.__notes__ == [f"in line 4: {wrong.splitlines()[0]}"]
