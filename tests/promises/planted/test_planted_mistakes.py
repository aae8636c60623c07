# SPDX-License-Identifier: Apache-2.0
"""The promise tests detect each planted mistake of the table, and pass without one."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests.promises.planted.plant import ROOT, Mistake, planted, run
from tests.promises.planted.table import MISTAKES


def test_mistakes_can_be_planted() -> None:
    """Each text that a mistake replaces occurs once in its file, the result is Python, and names differ."""
    stale = [mistake.id for mistake in MISTAKES if (ROOT / mistake.file).read_text().count(mistake.before) != 1]
    assert not stale, f"plant these again, or drop them if their line was removed: {stale}"
    for mistake in MISTAKES:
        compile((ROOT / mistake.file).read_text().replace(mistake.before, mistake.after), mistake.id, "exec")
    assert max(Counter(mistake.id for mistake in MISTAKES).values()) == 1


@pytest.mark.soak
@pytest.mark.parametrize("mistake", MISTAKES, ids=[mistake.id for mistake in MISTAKES])
def test_planted_mistake_is_noticed(mistake: Mistake, tmp_path: Path) -> None:
    """One of the row's tests fails; all of them exist."""
    ended = run(planted(mistake, tmp_path), mistake.nodes, "-x")
    assert ended.returncode == 1, ended.stdout + ended.stderr
    assert "\nFAILED " in ended.stdout, ended.stdout


@pytest.mark.soak
def test_library_without_mistakes_passes(tmp_path: Path) -> None:
    """The tests that the rows name pass in a copy that is as it was."""
    nodes = {node for mistake in MISTAKES for node in mistake.nodes}
    # The soak runs their full forms itself, some of which take longer than one test may.
    ended = run(planted(None, tmp_path), sorted(nodes), "-x", "-m", "not cluster and not soak")
    assert ended.returncode == 0, ended.stdout + ended.stderr
