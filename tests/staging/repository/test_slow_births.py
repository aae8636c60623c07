# SPDX-License-Identifier: Apache-2.0
"""Whoever makes a branch may stand still before its record is written, until its token is taken for forgotten."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable

import attrs
import pytest

from compactlib.kv import MemoryStore
from compactlib.kv.store import KVLimits
from compactlib.staging import Repository, StagingOptions
from compactlib.staging.cleanup import TokenCleaner
from compactlib.staging.names import branch_key
from tests.harness.faulty_store import FaultyStore, KVFault, KVOperation
from tests.staging.world import World, contents

DAY = 86_400.0


class OneCell(MemoryStore):
    """A store that changes one cell at a time."""

    @property
    def limits(self) -> KVLimits:
        return attrs.evolve(super().limits, max_transact=0)


def stands_still(world: World, before_write: list[Callable[[], None]], after_write: list[Callable[[], None]],
                 ) -> Repository:
    """A process that stands still before it writes the record of `new`; what happens then, and just afterwards."""
    state = {"at": 0}

    def choose(operation: KVOperation) -> KVFault | None:
        if state["at"] == 1:
            state["at"] = 2
            for each in after_write:
                each()
        if not state["at"] and operation.changes and operation.key == branch_key("new"):
            state["at"] = 1
            for each in before_write:
                each()
        return None

    return Repository(FaultyStore(world.store, choose), world.committed, clock=world.clock, rng=random.Random(7),
                      options=StagingOptions(first_backoff_seconds=0))


@pytest.mark.parametrize("store", [MemoryStore, OneCell])
def test_a_branch_that_was_long_in_the_making_names_no_dropped_token(store: type[MemoryStore]) -> None:
    world = World(store())
    world.branch({"a": "1"})

    def sweeps() -> None:
        world.clock.advance(2 * DAY)
        TokenCleaner(world.context, orphan_seconds=DAY).sweep()

    new = stands_still(world, [sweeps], []).create_branch("new", "main")
    world.repo.audit()
    assert world.repo.verify().is_sound
    new.put(b"b", b"2")
    TokenCleaner(world.context, grace_seconds=0).run()
    assert contents(new) == {"a": "1", "b": "2"}
    world.repo.audit()


@pytest.mark.parametrize("store", [MemoryStore, OneCell])
def test_a_cleanup_that_looked_before_the_branch_was_there_takes_nothing_from_it(store: type[MemoryStore]) -> None:
    world = World(store())
    world.branch({"a": "1"})
    looked, may_go_on = threading.Event(), threading.Event()

    def choose(operation: KVOperation) -> KVFault | None:
        if operation.partition.startswith(b"stg-"):
            looked.set()
            assert may_go_on.wait(30)
        return None

    slow = Repository(FaultyStore(world.store, choose), world.committed, clock=world.clock, rng=random.Random(8))

    def cleans() -> None:
        TokenCleaner(slow.context, grace_seconds=0).run()
        looked.set()

    cleaner = threading.Thread(target=cleans)

    def sweeps() -> None:
        world.clock.advance(2 * DAY)
        TokenCleaner(world.context, orphan_seconds=DAY).sweep()
        cleaner.start()
        assert looked.wait(30)

    def puts() -> None:
        world.repo.branch("new").put(b"b", b"2")
        may_go_on.set()
        cleaner.join()

    new = stands_still(world, [sweeps], [puts]).create_branch("new", "main")
    if not may_go_on.is_set():
        puts()
    assert contents(new) == {"a": "1", "b": "2"}
    world.repo.audit()


def test_a_branch_whose_maker_ended_before_its_token_was_entered_is_whole_and_the_sweep_enters_it() -> None:
    world = World(OneCell())
    world.branch({"a": "1"})

    def ends(operation: KVOperation) -> KVFault | None:
        return KVFault.FAIL if operation.name == "set" else None

    Repository(FaultyStore(world.store, ends), world.committed, clock=world.clock).create_branch("new", "main")
    new = world.repo.branch("new")
    token = new.record().staging_token
    assert not world.context.tokens.knows(token)
    world.repo.audit()
    new.put(b"b", b"2")
    TokenCleaner(world.context).sweep()
    assert world.context.tokens.knows(token)
    world.clock.advance(2 * DAY)
    world.repo.reclaim()
    assert contents(new) == {"a": "1", "b": "2"}
