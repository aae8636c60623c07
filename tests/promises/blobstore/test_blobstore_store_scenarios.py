# SPDX-License-Identifier: Apache-2.0
"""Plays the stories in `promises/scenarios/blobstore/store_*.txt`; `blob_store_story.py` describes their language."""

from __future__ import annotations

from pathlib import Path

import pytest

from compactlib.errors import InvalidInput
from tests.harness.blob_store_story import StoreStory

SCENARIOS = sorted((Path(__file__).parents[1] / "scenarios" / "blobstore").glob("store_*.txt"))


@pytest.mark.parametrize("scenario", SCENARIOS, ids=[path.stem for path in SCENARIOS])
def test_scenario(scenario: Path, scratch: Path) -> None:
    StoreStory(scratch).run(scenario.read_text())


@pytest.mark.parametrize("wrong", ["expect blob 10 life 1", "expect missing", "purr"])
def test_a_story_can_fail_and_names_the_line(wrong: str, scratch: Path) -> None:
    with pytest.raises((AssertionError, InvalidInput)) as caught:
        StoreStory(scratch).run(f"put cat 10\nget cat\n{wrong}\n")
    assert caught.value.__notes__ == [f"in line 3: {wrong}"]
