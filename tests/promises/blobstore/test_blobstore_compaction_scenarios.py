# SPDX-License-Identifier: Apache-2.0
"""Plays the stories in `promises/scenarios/blobstore/compaction_*.txt`; `blob_compaction_story.py` lists commands."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.harness.blob_compaction_story import Story

SCENARIOS = sorted((Path(__file__).parents[1] / "scenarios" / "blobstore").glob("compaction_*.txt"))


@pytest.mark.parametrize("scenario", SCENARIOS, ids=[path.stem.removeprefix("compaction_") for path in SCENARIOS])
def test_scenario(scenario: Path, tmp_path: Path) -> None:
    (tmp_path / "base").mkdir()
    Story(tmp_path / "base").run(scenario.read_text())


@pytest.mark.parametrize("wrong", ["expect records 0_1 a:put", "expect get a blob", "expect segments 0_0",
                                   "expect phase copy", "expect done freed 3", "expect failed DiskFull",
                                   "expect left out 0_0", "expect event blobstore_expired_gone records 7", "jump"])
def test_a_story_can_fail_and_names_the_line(wrong: str, tmp_path: Path) -> None:
    with pytest.raises(AssertionError) as caught:
        Story(tmp_path).run(f"put a\ndelete a\nroll\nwait 11\ncompact\n\n{wrong}\n")
    assert caught.value.__notes__ == [f"in line 7: {wrong}"]
