# SPDX-License-Identifier: Apache-2.0
"""Plays the stories in `promises/scenarios/scheduler`; `scheduler_story.py` describes their language."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.harness.scheduler_story import Story

SCENARIOS = sorted((Path(__file__).parents[1] / "scenarios" / "scheduler").glob("*.txt"))


@pytest.mark.parametrize("scenario", SCENARIOS, ids=[path.stem for path in SCENARIOS])
def test_scenario(scenario: Path) -> None:
    Story().run(scenario.read_text())


@pytest.mark.parametrize("wrong", ["show\n----\nsomething", "show", "push A 1 0 a\n----\nqueued", "time +1\n----\n1"])
def test_a_story_can_fail(wrong: str) -> None:
    with pytest.raises(AssertionError):
        Story().run(wrong)
