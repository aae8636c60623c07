# SPDX-License-Identifier: Apache-2.0
"""A process that appends, flushes and compacts is killed with signal 9, and its store is judged each time."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path

import pytest

from compactlib.raftlog import RaftLogStore
from tests.harness.killed_life import killed_life
from tests.harness.raft_world import LOGS, World, check_log, found_state, models_of, store_options


def campaign(scratch: Path, kills: int, seed: int) -> None:
    """Kill a store's process again and again; nothing promised may be missing, nothing else may be there."""
    rng = random.Random(seed)
    folder = scratch / "store"
    with RaftLogStore(folder, store_options()) as store:
        for name in LOGS:
            store.log(name)
    for _ in range(kills):
        twin = scratch / "twin"
        shutil.rmtree(twin, ignore_errors=True)
        shutil.copytree(folder, twin, symlinks=True)
        told = killed_life("tests.harness.killed_raft_log", folder, rng.randrange(1 << 30), rng.randint(1, 900))
        promised = dict.fromkeys(LOGS, 0)
        # The same operations on a twin that nobody kills say which states there were.
        world = World(twin)
        world.models = models_of(world.store)
        for line in told:
            kind, _, rest = line.partition(" ")
            if kind == "do":
                operation = json.loads(rest)
                world.perform((operation[0], operation[1], operation[2], operation[3]))
            elif kind == "promised":
                promised = json.loads(rest)
        with RaftLogStore(folder, store_options()) as store:
            for name in LOGS:
                found = found_state(store.log(name), world.models[name].history, promised[name])
                check_log(store.log(name), found)
            store.audit()
        world.store.close()


def test_a_store_survives_kills_of_its_process(tmp_path: Path) -> None:
    campaign(tmp_path, 3, 1)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(4))
def test_a_store_survives_a_hundred_kills_of_its_process(seed: int, tmp_path: Path) -> None:
    campaign(tmp_path, 25, 100 + seed)
