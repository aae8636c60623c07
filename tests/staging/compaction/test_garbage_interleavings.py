# SPDX-License-Identifier: Apache-2.0
"""A commit that no branch reaches is used again while garbage is collected, under every schedule of their requests."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from random import Random
from typing import Any

import pytest

from compactlib.clock import ManualClock
from compactlib.kv import MemoryStore
from compactlib.objects import MemoryObjects, ObjectStore
from compactlib.outcome import Failed
from compactlib.staging import CommittedRanges, Repository
from compactlib.staging.compaction.reclaim.garbage import collect_garbage
from compactlib.staging.errors import BeingCollected, MetaRangeNotFound
from compactlib.staging.model.names import CommitId
from tests.staging.branch_world import LoggedStore
from tests.tools.interleave.explore import explore_schedules, sample_schedules
from tests.tools.interleave.failure import InterleavingFailed
from tests.tools.interleave.stage import Stage
from tests.tools.interleave.stores import SteppedObjects, SteppedStore

GRACE = 100.0


def repo_over(store: Any, objects: ObjectStore, clock: ManualClock, seed: int) -> Repository:
    names = iter(range(1_000_000))
    committed = CommittedRanges(objects, clock=clock, new_name=lambda: f"mark-{seed}-{next(names)}")
    return Repository(store, committed, clock=clock, rng=Random(seed))


def forget() -> tuple[list[tuple[bytes, bytes, bytes]], list[tuple[str, bytes]], CommitId]:
    """`main` at {a}, and a commit {a, p, s} that was on a branch which is gone: the cells, the objects, and its id.

    Its parent {a, p} was on that branch alone, too.
    """
    store, objects = LoggedStore(), MemoryObjects()
    repo = repo_over(store, objects, ManualClock(0.0), 1)
    main = repo.create_branch("main")
    main.put(b"a", b"1")
    main.commit("first")
    side = repo.create_branch("side", "main")
    for key in (b"p", b"s"):
        side.put(key, b"1")
        side.commit("side")
    commit_id = side.record().commit_id
    assert commit_id is not None
    repo.delete_branch("side")
    kept = [(info.key, objects.get(info.key)) for info in objects.list() if not info.key.startswith("reused/")]
    return list(store.cells()), kept, commit_id


CELLS, OBJECTS, FORGOTTEN = forget()


class World:
    """The repository, long afterwards; each actor is a process of its own."""

    def __init__(self, stage: Stage) -> None:
        self.clock = ManualClock(0.0)
        self.store, self.objects = MemoryStore(), MemoryObjects(clock=self.clock)
        for partition, key, value in CELLS:
            self.store.set(partition, key, value)
        for name, data in OBJECTS:
            self.objects.create(name, data)
        self.clock.advance(10 * GRACE)
        self._stage = stage
        self._seed = 1

    def repo(self) -> Repository:
        """A process that takes part."""
        self._seed += 1
        return repo_over(SteppedStore(self.store, self._stage), SteppedObjects(self.objects, self._stage),
                         ManualClock(10 * GRACE), self._seed)

    def after(self) -> Repository:
        """A process that looks at it afterwards."""
        self._seed += 1
        return repo_over(self.store, self.objects, self.clock, 100 + self._seed)


def again(world: World) -> str:
    world.repo().create_branch("again", FORGOTTEN)
    return "again"


def reset_to(world: World) -> str:
    world.repo().branch("main").hard_reset(FORGOTTEN, discard=True)
    return "main"


def collect(world: World) -> object:
    return collect_garbage(world.repo().context, grace_seconds=GRACE)


def check_into(told: Counter[str]) -> Callable[[World, Mapping[str, Any]], None]:
    """Whoever was told that the commit is used again can read it now, and whatever is collected later."""
    def check(world: World, results: Mapping[str, Any]) -> None:
        used = results["use"]
        told[type(used).__name__] += 1
        if not isinstance(used, str):
            assert isinstance(used, (BeingCollected, MetaRangeNotFound)), used
        for _ in range(2):
            if isinstance(used, str):
                assert world.after().branch(used).get(b"s").data == b"1"
            world.clock.advance(3 * GRACE)
            outcome = collect_garbage(world.after().context, grace_seconds=GRACE)
            assert not isinstance(outcome, Failed), outcome
        world.after().audit()
    return check


@pytest.mark.parametrize(("use", "most"), [
    (again, None), (reset_to, 150), pytest.param(reset_to, 5000, marks=pytest.mark.soak)])
def test_using_a_forgotten_commit_against_a_collection_under_every_schedule(use: Callable[[World], str],
                                                                            most: int | None) -> None:
    """A reset tries again while it is being collected, which makes thousands of schedules: the first so many."""
    told: Counter[str] = Counter()
    report = explore_schedules({"use": use, "collect": collect}, World, check_into(told), max_schedules=most)
    assert told["str"] >= 5
    if most is None:
        assert report.complete
        assert {"MetaRangeNotFound", "BeingCollected"} < told.keys()


def test_using_a_forgotten_commit_against_two_collections_at_random() -> None:
    told: Counter[str] = Counter()
    sample_schedules({"use": again, "one": collect, "two": collect}, World, check_into(told), schedules=150,
                     random=Random(1))
    assert told["str"] > 0


def test_looking_whether_it_is_there_is_not_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tests above can fail."""
    monkeypatch.setattr(CommittedRanges, "claim", lambda self, metarange_id: self.ranges_of(metarange_id))
    with pytest.raises(InterleavingFailed):
        explore_schedules({"use": again, "collect": collect}, World, check_into(Counter()))
