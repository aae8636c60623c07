# SPDX-License-Identifier: Apache-2.0
"""Plays the stories in `promises/scenarios/raftlog/compaction_*.txt`; `log_compaction_story.py` is their language."""

from __future__ import annotations

from pathlib import Path

import pytest

from compactlib.errors import InvalidInput
from tests.harness.log_compaction_story import Story

SCENARIOS = sorted((Path(__file__).parents[1] / "scenarios" / "raftlog").glob("compaction_*.txt"))


@pytest.mark.parametrize("scenario", SCENARIOS, ids=[path.stem.removeprefix("compaction_") for path in SCENARIOS])
def test_scenario(scenario: Path, tmp_path: Path) -> None:
    Story(tmp_path).run(scenario.read_text())


@pytest.mark.parametrize("wrong", ["expect refs 1{1,17}", "expect read 3 term1", "expect files 1 3",
                                   "compact by accident", "expect done merged 2", "expect skipped nonsense",
                                   "expect recovered finished 1", "jump"])
def test_a_story_can_fail_and_names_the_line(wrong: str, tmp_path: Path) -> None:
    with pytest.raises((AssertionError, InvalidInput)) as caught:
        Story(tmp_path).run(f"append 1..17\nsnapshot 16 live 1\ncompact by seed\n\n{wrong}\n")
    assert caught.value.__notes__ == [f"in line 5: {wrong}"]
