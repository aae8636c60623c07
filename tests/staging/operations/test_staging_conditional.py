# SPDX-License-Identifier: Apache-2.0
"""Conditional writes against each other, step by step: of several who want a key to be absent, one gets it.

Two writers, and a third actor that commits or compacts and cleans up at once: every order of their steps for two, many
random ones for three. On stores with `transact` the data may be the same; on those without it must differ.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import Any

import attrs
import pytest

from compactlib.clock import ManualClock
from compactlib.errors import CompactlibError
from compactlib.kv import KVStore, MemoryStore
from compactlib.objects import MemoryObjects
from compactlib.staging import Branch, CommittedRanges, PreconditionFailed, Repository, StagingOptions
from compactlib.staging.cleanup import TokenCleaner
from tests.staging.world import NOW
from tests.tools.interleave.explore import explore_schedules, sample_schedules
from tests.tools.interleave.stage import Stage
from tests.tools.interleave.stores import SteppedObjects, SteppedStore

OPTIONS = StagingOptions(first_backoff_seconds=0)
LIMITS = MemoryStore().limits
STORES: dict[str, Callable[[], MemoryStore]] = {
    "transact": MemoryStore,
    "no transact": lambda: MemoryStore(limits=attrs.evolve(LIMITS, max_transact=0), predicates="value"),
}


@attrs.frozen
class World:
    """One repository; every actor has an object of its own over it, as if it were a process."""

    stores: tuple[Any, Any]
    behind: tuple[KVStore, MemoryObjects]

    def repo(self, seed: int, *, stepped: bool = True) -> Repository:
        store, objects = self.stores if stepped else self.behind
        clock = ManualClock(1000.0)
        names = random.Random(seed)
        committed = CommittedRanges(objects, clock=clock, new_name=lambda: f"{names.getrandbits(64):016x}")
        return Repository(store, committed, clock=clock, rng=random.Random(seed), options=OPTIONS)

    def main(self, seed: int) -> Branch:
        return self.repo(seed).branch("main")


def make_world(kind: str) -> Callable[[Stage], World]:
    def make(stage: Stage) -> World:
        store, objects = STORES[kind](), MemoryObjects(clock=ManualClock(0.0))
        world = World((SteppedStore(store, stage), SteppedObjects(objects, stage)), (store, objects))
        repo = world.repo(1, stepped=False)
        main = repo.create_branch("main")
        main.put(b"other", b"1")
        main.commit("first")
        main.put(b"other", b"2")
        return world

    return make


def wants(seed: int, data: bytes) -> Callable[[World], str]:
    def act(world: World) -> str:
        try:
            world.main(seed).put_if(b"k", data, None)
        except PreconditionFailed:
            return "refused"
        return "got it"

    return act


def settles(how: str, *, twice: bool = False) -> Callable[[World], None]:
    def act(world: World) -> None:
        repo = world.repo(4)
        for _ in range(1 + twice):
            if how == "commit":
                repo.branch("main").commit("meanwhile")
            else:
                repo.compact(policy=NOW)
            TokenCleaner(repo.context, grace_seconds=0).run()

    return act


def one_has_it(datas: Mapping[str, bytes]) -> Callable[[World, Mapping[str, Any]], None]:
    def check(world: World, results: Mapping[str, Any]) -> None:
        assert not [one for one in results.values() if isinstance(one, CompactlibError)], results
        winners = [name for name in datas if results[name] == "got it"]
        assert len(winners) == 1, results
        assert world.repo(9, stepped=False).branch("main").get(b"k").data == datas[winners[0]]

    return check


@pytest.mark.parametrize("kind", STORES)
def test_of_two_writers_one_gets_the_key_in_every_order(kind: str) -> None:
    datas = {"ann": b"1", "bob": b"1" if kind == "transact" else b"2"}
    actors = {name: wants(10 + number, data) for number, (name, data) in enumerate(datas.items())}
    assert explore_schedules(actors, make_world(kind), one_has_it(datas)).schedules > 1


@pytest.mark.parametrize("how", ["commit", "compact"])
@pytest.mark.parametrize("kind", STORES)
def test_a_writer_gets_the_key_whatever_settles_meanwhile(kind: str, how: str) -> None:
    explore_schedules({"ann": wants(10, b"1"), "settler": settles(how)}, make_world(kind), one_has_it({"ann": b"1"}))


def race(kind: str, how: str, schedules: int, seed: int) -> None:
    datas = {"ann": b"1", "bob": b"1" if kind == "transact" else b"2"}
    actors: dict[str, Callable[[World], object]] = {
        name: wants(10 + number, data) for number, (name, data) in enumerate(datas.items())}
    actors["settler"] = settles(how, twice=True)
    sample_schedules(actors, make_world(kind), one_has_it(datas), schedules=schedules, random=random.Random(seed))


@pytest.mark.parametrize("how", ["commit", "compact"])
@pytest.mark.parametrize("kind", STORES)
def test_of_two_writers_one_gets_the_key_whatever_settles_meanwhile(kind: str, how: str) -> None:
    race(kind, how, 60, 1)


@pytest.mark.soak
@pytest.mark.parametrize("how", ["commit", "compact"])
@pytest.mark.parametrize("kind", STORES)
def test_of_two_writers_one_gets_the_key_in_many_orders(kind: str, how: str) -> None:
    race(kind, how, 10_000, 2)


def adds(seed: int) -> Callable[[World], None]:
    def act(world: World) -> None:
        world.main(seed).update(b"n", lambda record: b"%d" % (1 + int(b"0" if record is None else record.data)))

    return act


def two(world: World, results: Mapping[str, Any]) -> None:
    assert not [one for one in results.values() if one is not None], results
    assert world.repo(9, stepped=False).branch("main").get(b"n").data == b"2"


@pytest.mark.parametrize("how", ["commit", "compact"])
def test_two_updates_are_two_whatever_settles_meanwhile(how: str) -> None:
    explore_schedules({"ann": adds(10), "bob": adds(11)}, make_world("transact"), two)
    sample_schedules({"ann": adds(10), "bob": adds(11), "settler": settles(how, twice=True)}, make_world("transact"),
                     two, schedules=100, random=random.Random(3))
