# SPDX-License-Identifier: Apache-2.0
"""Plays the stories in `promises/scenarios/raftlog/log_*.txt`; `log_story.py` describes their language."""

from __future__ import annotations

from pathlib import Path

import pytest

from compactlib.errors import InvalidInput
from tests.harness.log_story import LogStory

SCENARIOS = sorted((Path(__file__).parents[1] / "scenarios" / "raftlog").glob("log_*.txt"))


@pytest.mark.parametrize("scenario", SCENARIOS, ids=[path.stem.removeprefix("log_") for path in SCENARIOS])
def test_scenario(scenario: Path, tmp_path: Path) -> None:
    LogStory(tmp_path).run(scenario.read_text())


@pytest.mark.parametrize("wrong", ["expect entries 1..3", "append 9", "append 5 => GapDetected", "jump",
                                   "expect joy 1"])
def test_a_story_can_fail_and_names_the_line(wrong: str, tmp_path: Path) -> None:
    with pytest.raises((AssertionError, InvalidInput)) as caught:
        LogStory(tmp_path).run(f"append 1..4\n\n{wrong}\n")
    assert caught.value.__notes__ == [f"in line 3: {wrong}"]
