# SPDX-License-Identifier: Apache-2.0
"""Opened with other settings, two at once, while clocks jump: what was acknowledged is there, and no garbage is."""

from __future__ import annotations

from tests.harness.effort import Effort
from tests.staging.settings_world import SettingsWorld


def test_what_was_acknowledged_is_there_under_other_settings_and_garbage_goes_at_last(effort: Effort) -> None:
    for seed in range(effort(8, 2_000)):
        world = SettingsWorld(seed)
        try:
            world.live(6, 12)
        except BaseException as wrong:
            wrong.add_note(f"seed {seed}: {world.story[-10:]}")
            raise
