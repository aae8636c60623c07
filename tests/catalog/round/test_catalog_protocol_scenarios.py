# SPDX-License-Identifier: Apache-2.0
"""Plays the stories in `tests/catalog/scenarios/protocol_*.txt`; `protocol_story.py` describes their language."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.catalog.round.protocol_story import Story

SCENARIOS = sorted((Path(__file__).parents[2] / "catalog" / "scenarios").glob("protocol_*.txt"))


@pytest.mark.parametrize("scenario", SCENARIOS, ids=[path.stem.removeprefix("protocol_") for path in SCENARIOS])
def test_scenario(scenario: Path) -> None:
    Story().run(scenario.read_text())


@pytest.mark.parametrize("wrong", ["expect compaction done", "expect missing a", "expect rounds 3", "expect failures x",
                                   "expect coordinator b on a", "expect triggers interval"])
def test_a_story_can_fail_and_names_the_line(wrong: str) -> None:
    with pytest.raises(AssertionError) as caught:
        Story().run(f"nodes a b\nelect a in 1\ndeliver\n\n{wrong}\n")
    assert caught.value.__notes__ == [f"in line 5: {wrong}"]
