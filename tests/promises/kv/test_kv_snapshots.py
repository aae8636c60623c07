# SPDX-License-Identifier: Apache-2.0
"""The snapshot in force has its chunks, whoever deletes leftovers."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from compactlib.kv import MemoryStore, Snapshot, SnapshotStore
from compactlib.testing import Request, StoreInFront


@pytest.mark.parametrize("seed", range(4))
def test_leftovers_that_are_deleted_while_the_same_command_is_saved_again(seed: int) -> None:
    """Another thread deletes them. The new chunks may sort before those of the snapshot in force, or after."""
    store, rng = MemoryStore(), Random(seed)
    snapshots = SnapshotStore(store, rng=rng)

    def step(request: Request, act: Callable[[], Any]) -> Any:
        if request.kind == "set_if":
            snapshots.delete_leftovers()
        return act()

    snapshots.save(1, 5, b"first")
    SnapshotStore(StoreInFront(store, step), rng=rng).save(1, 5, b"second")
    assert snapshots.load() == Snapshot(5, b"second")
