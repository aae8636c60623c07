# SPDX-License-Identifier: Apache-2.0
"""Opened with other settings, by two nodes at once, while clocks jump and answers are lost: what was granted holds."""

from __future__ import annotations

from tests.catalog.opening_world import OpeningWorld
from tests.harness.effort import Effort


def test_what_was_executed_pinned_and_published_holds_under_other_settings(effort: Effort) -> None:
    for seed in range(effort(20, 5_000)):
        world = OpeningWorld(seed)
        try:
            world.live(5, 20)
        except BaseException as wrong:
            wrong.add_note(f"seed {seed}: {world.story[-10:]}")
            raise
