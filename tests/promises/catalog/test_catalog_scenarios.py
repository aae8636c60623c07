# SPDX-License-Identifier: Apache-2.0
"""Plays the stories in `promises/scenarios/catalog/`; `catalog_story.py` is their language."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.harness.catalog_story import Story

SCENARIOS = sorted((Path(__file__).parents[1] / "scenarios" / "catalog").glob("*.txt"))


@pytest.mark.parametrize("scenario", SCENARIOS, ids=[path.stem for path in SCENARIOS])
def test_scenario(scenario: Path) -> None:
    Story().run(scenario.read_text())


@pytest.mark.parametrize("wrong", ["expect compact to 5", "expect hold by pin", "expect nothing to do", "jump",
                                   "expect limit pin allows 3", "expect culprit node B", "expect versions 0 to 4",
                                   "expect missing B", "expect nothing cut", "expect nothing published",
                                   "expect compaction fails Stale", "expect zone Z fails"])
def test_a_story_can_fail_and_names_the_line(wrong: str) -> None:
    with pytest.raises(AssertionError) as caught:
        Story().run(f"versions 3\nsettle\nround\n\n{wrong}\n")
    assert caught.value.__notes__ == [f"in line 5: {wrong}"]
