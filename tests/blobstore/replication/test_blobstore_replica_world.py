# SPDX-License-Identifier: Apache-2.0
"""Replicas of unlike settings, with refusals, kills and jumps of the clock, keep what is promised and come to agree."""

from __future__ import annotations

import contextlib
from pathlib import Path

from tests.blobstore.replication.replica_world import World
from tests.harness.effort import Effort


def test_replicas_of_unlike_settings_keep_what_is_promised_and_come_to_agree(effort: Effort, tmp_path: Path) -> None:
    for seed in range(effort(12, 1_000)):
        folder = tmp_path / str(seed)
        folder.mkdir()
        with contextlib.closing(World(folder, seed)) as world:
            try:
                world.run(120)
            except AssertionError as error:
                raise AssertionError(f"seed {seed}: {error}, after\n" + "\n".join(world.trace)) from error
