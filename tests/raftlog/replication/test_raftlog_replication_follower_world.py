# SPDX-License-Identifier: Apache-2.0
"""Lives of a follower in `follower_world`, and what was found in them."""

from __future__ import annotations

import asyncio
import errno
import random
import tempfile
from pathlib import Path

import pytest

from compactlib.hosting.transfer import receiving
from tests.harness.effort import Effort
from tests.raftlog.replication.follower_world import FollowerWorld, Met


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(receiving, "_LOOK_AGAIN_SECONDS", 0.0)


def life(seed: int, met: Met | None = None, steps: int = 100) -> FollowerWorld:
    """One life; its world after it has ended well."""
    async def run() -> FollowerWorld:
        with tempfile.TemporaryDirectory() as folder:
            world = FollowerWorld(Path(folder), random.Random(seed), met)
            await world.live(steps)
            return world

    try:
        return asyncio.run(run())
    except BaseException as error:
        error.add_note(f"to see it again: life({seed}, {met}, {steps})")
        raise


def test_a_follower_has_what_its_leader_has_and_keeps_what_it_acknowledged(effort: Effort) -> None:
    ended = [end for seed in range(effort(5, 1_000)) for end in life(seed).ended]
    assert {"done", "skipped"} <= set(ended)


def test_a_follower_that_is_killed_in_the_middle_of_a_message_has_what_was_there_or_what_came() -> None:
    """The model had forgotten the message, and missed what another leader's entries had taken the place of."""
    life(203, Met(279, None))


@pytest.mark.parametrize(("number", "power"), [(None, False), (None, True), (errno.ENOSPC, False), (errno.EIO, False)],
                         ids=["killed", "without power", "full", "refused"])
def test_so_does_one_whose_disk_refuses_once_or_which_is_killed(number: int | None, power: bool,
                                                                effort: Effort) -> None:
    for seed in range(effort(2, 500)):
        world, rng = life(seed), random.Random(seed)
        for _ in range(effort(3, 8)):
            # Most of all while a snapshot is put in force.
            everywhere = range(world.first_changes + 1, world.all_changes + 1)
            at = rng.choice(world.installs if world.installs and rng.random() < 0.8 else everywhere)
            life(seed, Met(at, number, short=rng.random() < 0.5, power=power))
