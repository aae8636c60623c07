# SPDX-License-Identifier: Apache-2.0
"""Whoever stands still at any request, for longer than every grace period, wakes up and harms nothing made since."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from random import Random
from typing import Any

import pytest

from compactlib.clock import ManualClock
from compactlib.errors import CompactlibError
from compactlib.objects import MemoryObjects, ObjectStore
from compactlib.outcome import Failed
from compactlib.staging import CommittedRanges, Repository, StagingOptions
from compactlib.staging.compaction.reclaim.cleanup import TokenCleaner
from compactlib.staging.compaction.reclaim.garbage import collect_garbage
from compactlib.staging.errors import MetaRangeNotFound, RangeNotFound
from compactlib.staging.model.names import repository_partition, token_partition
from compactlib.staging.operations.commit import CommitRequest, commit
from compactlib.staging.operations.listing import ListRequest
from compactlib.staging.operations.read import list_branch
from compactlib.staging.operations.write import put_many
from compactlib.staging.records.branch_store import BranchStore
from compactlib.staging.records.context import StagingContext
from tests.staging.branch_world import MAIN, REPOSITORY, LoggedStore
from tests.staging.faulty_world import WORK, Contents, stores_for
from tests.staging.world import compact_now
from tests.tools.interleave.failure import InterleavingFailed
from tests.tools.interleave.pauses import explore_pauses
from tests.tools.interleave.stage import Stage
from tests.tools.interleave.stores import SteppedObjects, SteppedStore

DAY = 86_400.0
Work = Callable[["World"], object]


class World:
    """The stores as some work finds them; all processes share one clock, which goes on while one stands still.

    Args:
        name: of the work.
        stage: where the processes are stepped.
        suspended: their machine is suspended meanwhile: the steady clock stands still, too.
    """

    def __init__(self, name: str, stage: Stage | None = None, *, suspended: bool = False) -> None:
        store, objects, _ = stores_for(name)
        self.clock = ManualClock(10 * DAY)
        self.store, self.objects = LoggedStore(), MemoryObjects(clock=self.clock)
        for partition, key, value in store.cells():
            self.store.set(partition, key, value)
        for info in objects.list():
            self.objects.create(info.key, objects.get(info.key))
        self.clock.advance(3 * DAY)
        self.stage = stage
        self._suspended = suspended
        self._seed = 10

    def passes(self, seconds: float) -> None:
        """So much time goes by."""
        if self._suspended:
            self.clock.set_now(self.clock.now() + seconds)
        else:
            self.clock.advance(seconds)

    def context(self, *, on_stage: bool = True) -> StagingContext:
        """A process of its own."""
        self._seed += 1
        seed, names = self._seed, iter(range(1_000_000))
        store: Any = self.store
        objects: ObjectStore = self.objects
        if on_stage and self.stage is not None:
            store, objects = SteppedStore(self.store, self.stage), SteppedObjects(self.objects, self.stage)
        committed = CommittedRanges(objects, clock=self.clock, new_name=lambda: f"m-{seed}-{next(names)}")
        return Repository(store, committed, name=REPOSITORY, clock=self.clock, rng=Random(seed),
                           options=StagingOptions(first_backoff_seconds=0)).context


def _create_branch(context: StagingContext) -> object:
    repo = Repository(context.store, context.committed, name=REPOSITORY, clock=context.clock,
                       rng=context.rng)
    repo.create_branch("again", MAIN).put(b"k", b"on the new branch")
    return "made"


def owner(name: str) -> Work:
    def work(world: World) -> object:
        work = _create_branch if name == "create_branch" else WORK[name][1]
        outcome = work(world.context())
        if isinstance(outcome, Failed):
            raise outcome.error
        return outcome

    return work


def cleans(world: World) -> None:
    """Long afterwards, everything that may go is taken away, twice."""
    for _ in range(2):
        world.passes(2 * DAY)
        cleaner = TokenCleaner(world.context(), grace_seconds=3600)
        for outcome in (cleaner.sweep(), cleaner.run(), collect_garbage(world.context(), grace_seconds=DAY)):
            if isinstance(outcome, Failed):
                raise outcome.error


def takes_over(world: World) -> None:
    """Others write, commit and compact, and then everything that may go is taken away."""
    context = world.context()
    put_many(context, MAIN, {b"heir": b"1"})
    compact_now(context)
    put_many(context, MAIN, {b"x": b"2"})
    commit(context, MAIN, CommitRequest(message="the heir's"))
    put_many(context, MAIN, {b"y": b"3"})
    cleans(world)


def abandons(world: World) -> None:
    """All branches go, and everything that they have needed."""
    context = world.context()
    repo = Repository(context.store, context.committed, name=REPOSITORY, clock=context.clock, rng=context.rng)
    for branch in list(repo.branches()):
        repo.delete_branch(branch.name)
    cleans(world)


HEIRS: dict[str, Work] = {"cleans": cleans, "takes over": takes_over}


def everything(world: World) -> dict[str, Contents]:
    """What each branch holds; every record of every HEAD is read as well."""
    context = world.context(on_stage=False)
    found = {}
    for each in context.branches.list():
        page = list_branch(context, each.branch, ListRequest(limit=100))
        found[each.branch] = {entry.key: entry.record.data for entry in page.entries if entry.record is not None}
        head = context.commits.metarange_of(each.record.commit_id)
        assert all(record.data is not None for _, record in context.committed.scan(head))
    return found


def quiet(work: Work, world: World) -> None:
    try:
        work(world)
    except CompactlibError:
        return


def explore_owner(name: str, heir: str, *, both: bool = False, most: int | None = None, suspended: bool = False) -> int:
    setup = "merge" if name == "create_branch" else name
    follows = {**HEIRS, "abandons": abandons}[heir]
    orders = [(owner(name), follows), (follows, owner(name))]
    serial = []
    for order in orders:
        world = World(setup)
        for each in order:
            quiet(each, world)
        serial.append(everything(world))
    alone = World(setup)
    quiet(follows, alone)
    heir_alone = everything(alone)

    def check(world: World, results: Mapping[str, Any]) -> None:
        assert not isinstance(results["heir"], BaseException), results["heir"]
        failed = isinstance(results["owner"], CompactlibError)
        if name.startswith("com"):
            # What a commit or compaction has made itself, and nothing names yet, is no damage if it was collected.
            assert not isinstance(results["owner"], MetaRangeNotFound | RangeNotFound), results["owner"]
        allowed = [*serial, heir_alone] if failed else serial
        for _ in range(2):
            assert everything(world) in allowed, f"{results['owner']!r}: {everything(world)} instead of {allowed}"
            cleans_quietly(world)
        tokens = {token for each in world.context(on_stage=False).branches.list() for token in each.record.tokens}
        left = {each for each, _, _ in world.store.cells()} - {token_partition(token) for token in tokens}
        assert left <= {repository_partition(REPOSITORY)}, f"{results['owner']!r}: nothing finds {left}"
        Repository(world.store, CommittedRanges(world.objects), name=REPOSITORY).audit()

    report = explore_pauses({"owner": owner(name), "heir": follows},
                            lambda stage: World(setup, stage, suspended=suspended), check, both=both,
                            max_schedules=most)
    return report.schedules


def cleans_quietly(world: World) -> None:
    stage, world.stage = world.stage, None
    cleans(world)
    world.stage = stage


NAMES = [*WORK, "create_branch"]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("heir", HEIRS)
def test_an_owner_that_stood_still_at_any_request(name: str, heir: str) -> None:
    assert explore_owner(name, heir) >= 3


@pytest.mark.parametrize("suspended", [False, True])
def test_a_branch_is_made_at_what_is_still_there_however_long_that_took(suspended: bool) -> None:
    assert explore_owner("create_branch", "abandons", suspended=suspended) >= 3


# Resets between two writes of the heir are neither before nor after it, and a collection without any grace period may
# not run while anybody writes.
@pytest.mark.soak
@pytest.mark.parametrize("name", [name for name in NAMES if name != "collect" and "reset" not in name])
def test_an_owner_and_its_heir_that_both_stand_still(name: str) -> None:
    assert explore_owner(name, "takes over", both=True, most=500) > 100


def no_fence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BranchStore, "fence", lambda self, found: found)


def no_claim(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CommittedRanges, "claim", lambda self, metarange_id: None)


@pytest.mark.parametrize("broken", [no_fence, no_claim])
def test_the_tests_above_find_what_is_missing(broken: Callable[[pytest.MonkeyPatch], None],
                                              monkeypatch: pytest.MonkeyPatch) -> None:
    broken(monkeypatch)
    with pytest.raises(InterleavingFailed):
        explore_all("commit", "compact", "compact again")


def explore_all(*names: str) -> None:
    for name in names:
        explore_owner(name, "cleans")
