# SPDX-License-Identifier: Apache-2.0
"""Plays the stories in `promises/scenarios/staging`; `staging_story.py` describes their language."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.harness.backends import BACKENDS
from tests.harness.staging_story import Story
from tests.harness.staging_world import StagingWorld

SCENARIOS = sorted((Path(__file__).parents[1] / "scenarios" / "staging").glob("*.txt"))


@pytest.mark.parametrize("scenario", SCENARIOS, ids=[path.stem for path in SCENARIOS])
def test_scenario(scenario: Path) -> None:
    Story().run(scenario.read_text())


@pytest.mark.parametrize("kind", ["sqlite", pytest.param("dynamodb", marks=pytest.mark.cluster)])
def test_the_tour_on_other_stores(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = BACKENDS[kind](tmp_path)
    monkeypatch.setattr(StagingWorld, "make_store", staticmethod(lambda: store))
    Story().run((SCENARIOS[0].parent / "tour.txt").read_text())
    store.close()


@pytest.mark.parametrize("wrong", [
    "branch main head a=1\nget main a\n----\n2", "branch main head a=1\nget main a", "branch main\n----\nmade",
    "branch main head a=1\nann: get main a until read b", "branch main\nann: put main a 1 until write a",
])
def test_a_story_can_fail(wrong: str) -> None:
    with pytest.raises(AssertionError):
        Story().run(wrong)
