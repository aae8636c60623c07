# SPDX-License-Identifier: Apache-2.0
"""Garbage collection of ranges and metaranges: what a branch needs stays, what nobody needs goes."""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Callable, Iterable, Sequence

import attrs
import pytest

from compactlib.clock import ManualClock
from compactlib.errors import InvalidInput
from compactlib.kv import Condition, Delete, MemoryStore, PredicateFailed, Put
from compactlib.kv.errors import TooLarge
from compactlib.objects import MemoryObjects, ObjectStoreFailed
from compactlib.outcome import Done, Failed, Skipped
from compactlib.runtime import RecordingObserver
from compactlib.staging import AlwaysPolicy, Branch, CommittedRanges, Repository, SplitRule, StagingOptions
from compactlib.staging.errors import BeingCollected, MetaRangeNotFound, RangeNotFound
from compactlib.staging.garbage import collect_garbage, live_metaranges
from compactlib.staging.names import CommitId
from tests.harness.faulty_store import FaultyStore, KVFault, KVOperation
from tests.staging.hooked_objects import HookedObjects
from tests.staging.world import World, changes


def test_commits_of_all_branches_and_their_ancestors_are_live() -> None:
    world = World()
    main = world.branch({"a": "1"})
    for number in range(3):
        main.put(b"k", b"%d" % number)
        main.commit("c")
    side = world.repo.create_branch("side", "main")
    side.put(b"s", b"1")
    side.commit("side")
    expected = {commit.metarange_id for branch in (main, side) for _, commit in branch.log()}
    live = live_metaranges(world.context)
    heads = {world.context.commits.metarange_of(branch.record().commit_id) for branch in (main, side)}
    assert live.needed == heads
    assert live.history == expected - heads
    assert len(expected) == 5


def test_a_deleted_branch_leaves_garbage_after_the_grace_period() -> None:
    observer = RecordingObserver()
    world = World()
    world.branch({"a": "1"})
    side = world.repo.create_branch("side", "main")
    side.put(b"s", b"1")
    side.commit("side")
    world.repo.delete_branch("side")
    context = attrs.evolve(world.context, observer=observer)
    assert isinstance(collect_garbage(context, grace_seconds=100), Skipped)
    world.clock.advance(101)
    outcome = collect_garbage(context, grace_seconds=100)
    assert isinstance(outcome, Done)
    assert (outcome.stats.metaranges_deleted, outcome.stats.ranges_deleted) == (1, 1)
    assert observer.counters["staging_ranges_collected", (("repository", "main"),)] == 1
    assert world.repo.branch("main").get(b"a").data == b"1"
    world.repo.audit()


def test_many_commits_and_compactions_leave_what_is_needed() -> None:
    world = World()
    branch = world.branch({"a": "1"})
    for number in range(6):
        branch.put(b"k%d" % number, b"v")
        world.compact()
        if number % 2:
            branch.commit("c")
        world.clock.advance(1000)
        collect_garbage(world.context, grace_seconds=10)
        assert branch.list().keys == (b"a", *(b"k%d" % each for each in range(number + 1)))
        assert [commit.generation for _, commit in branch.log()] == list(range(1 + (number + 1) // 2, 0, -1))
    for commit_id, _ in branch.log():
        assert list(world.repo.at(commit_id).records())


def test_an_error_is_an_outcome_and_nothing_is_deleted_for_it() -> None:
    failing: list[bool] = []

    def choose(operation: KVOperation) -> KVFault | None:
        return KVFault.FAIL if failing and operation.name == "scan" else None

    world = World(FaultyStore(MemoryStore(), choose))
    world.branch({"a": "1"})
    world.clock.advance(1000)
    failing.append(True)
    # Had "the store cannot be read" been taken for "there are no branches", everything would be gone now.
    assert isinstance(collect_garbage(world.context, grace_seconds=1), Failed)
    failing.clear()
    assert world.repo.branch("main").get(b"a").data == b"1"
    with pytest.raises(InvalidInput, match="0 or more"):
        collect_garbage(world.context, grace_seconds=-1)


class Forgotten:
    """A repository with a commit that no branch reaches any more, and two processes: one collects, one uses it again.

    Args:
        step: before which request, of both stores together, something else happens.
    """

    def __init__(self, step: int) -> None:
        self.base = World()
        self.base.branch({"a": "1"})
        side = self.base.repo.create_branch("side", "main")
        side.put(b"s", b"1")
        side.commit("side")
        record = side.record()
        assert record.commit_id is not None
        self.commit_id: CommitId = record.commit_id
        self.base.repo.delete_branch("side")
        self.base.clock.advance(1000)
        self.step = step
        self.seen = 0
        self.interfere: Callable[[], object] = lambda: None

    def collect(self) -> object:
        return collect_garbage(self.base.context, grace_seconds=100)

    def hooked(self) -> World:
        """The repository as a process sees it whose requests are counted; it has nothing in memory."""
        assert isinstance(self.base.objects, MemoryObjects)
        world = World(FaultyStore(self.base.store, lambda operation: self.request()),
                      HookedObjects(self.base.objects, lambda operation, key: self.request()), seed=2)
        world.clock.advance(1000)
        return world

    def request(self) -> None:
        self.seen += 1
        if self.seen == self.step + 1:
            self.interfere()

    def check(self, branch: Branch | None) -> None:
        """What was acknowledged can be read, now and later."""
        for _ in range(2):
            if branch is not None:
                assert World(self.base.store, self.base.objects, seed=3).repo.branch(branch.name).get(b"s").data == b"1"
            self.base.clock.advance(1000)
            self.collect()


def again(world: World, commit_id: CommitId) -> Branch:
    return world.repo.create_branch("again", commit_id)


def reset_to(world: World, commit_id: CommitId) -> Branch:
    main = world.repo.branch("main")
    main.hard_reset(commit_id)
    return main


def import_it(world: World, commit_id: CommitId) -> Branch:
    main = world.repo.branch("main")
    main.commit_metarange(world.repo.commit(commit_id).metarange_id, "import")
    return main


def merge_it(world: World, commit_id: CommitId) -> Branch:
    main = world.repo.branch("main")
    main.merge(commit_id)
    return main


def pick_it(world: World, commit_id: CommitId) -> Branch:
    main = world.repo.branch("main")
    main.cherry_pick(commit_id)
    return main


USES = [again, reset_to, import_it, merge_it, pick_it]


def used(world: World, use: Callable[[World, CommitId], Branch], commit_id: CommitId) -> Branch | None:
    """The branch that begins at the commit again; `None` if its records were collected, or just are."""
    try:
        return use(world, commit_id)
    except (BeingCollected, MetaRangeNotFound):
        return None


@pytest.mark.parametrize("use", USES)
def test_a_commit_that_comes_back_at_any_step_of_a_collection_is_whole_or_refused(
        use: Callable[[World, CommitId], Branch]) -> None:
    outcomes = set()
    for step in itertools.count():
        story = Forgotten(step)
        found: list[Branch | None] = []
        world = World(story.base.store, story.base.objects, seed=2)
        story.interfere = lambda story=story, world=world, found=found: (  # type: ignore[misc]
            found.append(used(world, use, story.commit_id)))
        collect_garbage(story.hooked().context, grace_seconds=100)
        if not found:
            break
        outcomes.add(found[0] is None)
        story.check(found[0])
    assert step > 10
    assert outcomes == {False, True}


@pytest.mark.parametrize("use", USES)
def test_a_collection_at_any_step_of_using_a_commit_again_takes_nothing_from_it(
        use: Callable[[World, CommitId], Branch]) -> None:
    for step in itertools.count():
        story = Forgotten(step)
        story.interfere = story.collect
        story.check(used(story.hooked(), use, story.commit_id))
        if story.seen <= step:
            break
    assert step > 4


@pytest.mark.parametrize("in_memory", ["nothing", "the metarange", "its range"])
@pytest.mark.parametrize("operation", ["merge", "revert", "cherry_pick"])
def test_what_a_collected_commit_changed_is_refused_by_one_name_whatever_is_in_memory(
        operation: str, in_memory: str) -> None:
    story = Forgotten(0)
    world = World(story.base.store, story.base.objects, seed=2)
    view = world.repo.at(story.commit_id)
    if in_memory == "the metarange":
        world.committed.ranges_of(view.metarange_id)
    if in_memory == "its range":
        assert view.get(b"s").data == b"1"
    story.collect()
    with pytest.raises(MetaRangeNotFound, match="collected"):
        getattr(world.repo.branch("main"), operation)(story.commit_id)


def test_who_only_looks_whether_the_records_are_there_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tests above can fail."""
    monkeypatch.setattr("compactlib.staging.ranges.committed.CommittedRanges.claim",
                        lambda self, metarange_id: self.ranges_of(metarange_id))
    with pytest.raises(MetaRangeNotFound):
        test_a_collection_at_any_step_of_using_a_commit_again_takes_nothing_from_it(again)


def test_a_commit_that_comes_back_without_its_ancestors_does_not_stop_the_collections() -> None:
    """What was collected of its history stays gone, and is told; everything else is collected as before."""
    observer = RecordingObserver()
    world = World()
    context = attrs.evolve(world.context, observer=observer)
    world.branch({"a": "1"})
    side = world.repo.create_branch("side", "main")
    side.put(b"p", b"1")
    side.commit("parent")
    world.clock.advance(1000)
    side.put(b"c", b"1")
    side.commit("child")
    commit_id, parent = [each for each, _ in side.log()][:2]
    world.repo.delete_branch("side")
    # The parent's records are old, the child's are young.
    assert isinstance(collect_garbage(context, grace_seconds=100), Done)
    again = world.repo.create_branch("again", commit_id)
    assert again.get(b"c").data == again.get(b"p").data == b"1"
    with pytest.raises(MetaRangeNotFound):
        list(world.repo.at(parent).records())
    again.put(b"x", b"1")
    world.compact("again")
    again.reset()
    world.clock.advance(1000)
    outcome = collect_garbage(context, grace_seconds=100)
    assert isinstance(outcome, Done), outcome
    assert outcome.stats.metaranges_deleted == 1
    assert outcome.stats.gone == 1
    assert [fields["gone"] for name, fields in observer.events if name == "staging_garbage"] == [0, 1]
    assert World(world.store, world.objects, seed=3).repo.branch("again").list().keys == (b"a", b"c", b"p")


def test_a_collection_takes_one_request_for_many_branches_and_few_for_a_long_history() -> None:
    world = World()
    main = world.branch({"a": "1"})
    for number in range(60):
        main.put(b"k", b"%d" % number)
        main.commit("c")
    for number in range(50):
        world.repo.create_branch(f"side-{number}", "main")
    expected = {commit.metarange_id for _, commit in main.log()}
    cold = World(world.store, world.objects).context
    before = len(world.store.operations)
    live = live_metaranges(cold, fenced=True)
    names = [operation.name for operation in world.store.operations[before:]]
    assert live.needed | live.history == expected
    assert (names.count("transact"), names.count("scan"), names.count("get")) == (1, 2, 15)
    assert len(names) == 18


class NarrowStore(MemoryStore):
    """Takes 2,000 bytes in one `transact`, as etcd takes 1.5 MiB."""

    def transact(self, conditions: Iterable[Condition] = (), puts: Iterable[Put] = (),
                 deletes: Iterable[Delete] = ()) -> None:
        puts = list(puts)
        size = sum(len(put.value) for put in puts)
        if size > 2_000:
            raise TooLarge(what="transaction", size_bytes=size, limit_bytes=2_000)
        super().transact(conditions, puts, deletes)


def test_branches_whose_records_are_too_large_for_one_request_are_fenced_one_by_one() -> None:
    world = World(NarrowStore())
    world.branch({"a": "1"})
    for number in range(50):
        world.repo.create_branch(f"side-{number}", "main")
    branches = world.context.branches
    before = {found.branch: found.record.version for found in branches.list()}
    fenced = {found.branch: found.record.version for found in branches.fence(branches.list())}
    assert fenced == {branch: version + 1 for branch, version in before.items()}


@pytest.mark.parametrize("fault", [KVFault.CONFLICT, KVFault.UNKNOWN_DONE, KVFault.UNKNOWN_LOST, KVFault.UNKNOWN_LATE])
def test_branches_are_fenced_one_by_one_when_they_cannot_be_together(fault: KVFault) -> None:
    is_armed = False
    met: list[KVOperation] = []

    def choose(operation: KVOperation) -> KVFault | None:
        if operation.name == "transact" and is_armed and not met:
            met.append(operation)
            return fault
        return None

    store = FaultyStore(MemoryStore(), choose)
    world = World(store)
    world.branch({"a": "1"})
    for name in ("side", "other"):
        world.repo.create_branch(name, "main")
    is_armed = True
    branches = world.context.branches
    before = {found.branch: found for found in branches.list()}
    fenced = {found.branch: found.record for found in branches.fence(before.values())}
    store.settle()
    assert met
    now = {found.branch: found.record for found in branches.list()}
    assert now == fenced
    for name, found in before.items():
        assert now[name].version == found.record.version + 1
        with pytest.raises(PredicateFailed):
            branches.try_update(found, found.record)


def test_a_reclaim_answers_an_outcome_whichever_request_the_store_refuses() -> None:
    def is_refused(at: int) -> bool:
        """Whether there is a request of this number."""
        requests, is_asked = itertools.count(), False
        store = FaultyStore(MemoryStore(), lambda _: KVFault.FAIL if is_asked and next(requests) == at else None)
        world = World(store, options=StagingOptions(owns_ranges=True, range_grace_seconds=100))
        world.branch({"a": "1"}, name="old")
        world.repo.delete_branch("old")
        world.clock.advance(10_000)
        is_asked = True
        assert isinstance(world.repo.reclaim(), Done | Failed)
        return next(requests) > at

    assert sum(itertools.takewhile(bool, map(is_refused, itertools.count()))) > 5


def test_a_collection_that_died_while_the_clock_was_ahead_turns_writers_away_for_no_longer_than_another() -> None:
    def die(operation: str, key: str) -> None:
        if operation.startswith("delete") and "collection" not in key:
            raise SystemExit

    world = World()
    world.branch({"a": "1"}, name="old")
    world.repo.delete_branch("old")
    main = world.branch()
    now = world.clock.now()
    world.clock.set_now(now + 1e8)
    assert isinstance(world.objects, MemoryObjects)
    dying = CommittedRanges(HookedObjects(world.objects, die), clock=world.clock)
    with pytest.raises(SystemExit):
        collect_garbage(attrs.evolve(world.context, committed=dying), grace_seconds=100)
    world.clock.set_now(now)
    main.put(b"a", b"1")
    with pytest.raises(BeingCollected):
        main.commit("the same again")
    for _ in range(2):
        collect_garbage(world.context, grace_seconds=100)
        world.clock.advance(101)
    collect_garbage(world.context, grace_seconds=100)
    assert isinstance(main.commit("the same again"), Done)


def test_a_compaction_whose_result_is_collected_before_it_is_looked_at_gives_way_to_the_collection() -> None:
    clock = ManualClock(1_000.0)
    objects = HookedObjects(MemoryObjects(clock=clock))
    repo = Repository(MemoryStore(), CommittedRanges(objects, clock=clock, cache_bytes=0), clock=clock)
    main = repo.create_branch("main")
    main.put(b"k", b"1")

    def collect(operation: str, key: str) -> None:
        if operation == "get" and key.startswith("metaranges/"):
            objects.hook = lambda operation, key: None
            clock.advance(200)
            assert isinstance(collect_garbage(repo.context, grace_seconds=100), Done)

    objects.hook = collect
    outcome = repo.compact(branch="main", policy=AlwaysPolicy(window_seconds=0))
    assert isinstance(outcome, Failed)
    assert isinstance(outcome.error, BeingCollected)
    assert isinstance(repo.compact(branch="main", policy=AlwaysPolicy(window_seconds=0)), Done)
    assert main.get(b"k").data == b"1"


def commits(main: Branch, side: CommitId) -> object:
    main.delete(b"second")
    return main.commit("beside a collection")


def reverts(main: Branch, side: CommitId) -> object:
    return main.revert(next(each for each, _ in main.log()))


def has_step(make: Callable[[Branch, CommitId], object], step: int, *, is_compacted: bool) -> bool:
    """Whether the work has a request of this number, before which everything that nothing names is collected."""
    requests, is_on = itertools.count(), False

    def request() -> None:
        nonlocal is_on
        if is_on and next(requests) == step:
            is_on = False
            clock.advance(200)
            assert isinstance(collect_garbage(repo.context, grace_seconds=100), Done)

    clock = ManualClock(1_000.0)
    objects = HookedObjects(MemoryObjects(clock=clock), lambda operation, key: request())
    repo = Repository(FaultyStore(MemoryStore(), lambda operation: request()),
                      CommittedRanges(objects, clock=clock, cache_bytes=0), clock=clock,
                      options=StagingOptions(first_backoff_seconds=0))
    repo.create_branch("old").put(b"old", b"1")
    repo.branch("old").commit("c")
    repo.delete_branch("old")
    main = repo.create_branch("main")
    for key in b"first", b"second":
        main.put(key, b"1")
        main.commit("c")
    side = repo.create_branch("side", "main")
    side.put(b"third", b"1")
    side.commit("c")
    main.put(b"fourth", b"1")
    main.commit("c")
    if is_compacted:
        main.put(b"fifth", b"1")
        repo.compact(branch="main", policy=AlwaysPolicy(window_seconds=0))
        if make is not commits:
            main.delete(b"fifth")
    picked = next(each for each, _ in side.log())
    is_on = True
    assert isinstance(make(main, picked), Done)
    assert repo.verify().is_sound
    return not is_on


@pytest.mark.parametrize("is_compacted", [False, True])
@pytest.mark.parametrize("make", [commits, reverts, Branch.merge, Branch.cherry_pick])
def test_a_collection_at_any_step_of_a_commit_or_a_move_is_told_to_nobody_and_takes_nothing(
        make: Callable[[Branch, CommitId], object], is_compacted: bool) -> None:
    assert sum(itertools.takewhile(bool, (has_step(make, step, is_compacted=is_compacted)
                                          for step in itertools.count()))) > 10


class LosesTheFirst(MemoryObjects):
    """Removes all but the first of many, as a store that answers for each object of one request."""

    def delete_many(self, keys: Sequence[str]) -> None:
        super().delete_many(keys[1:])
        raise ObjectStoreFailed(operation="delete", key=keys[0], detail="an internal error")


def test_a_collection_of_which_a_request_failed_for_some_files_leaves_no_metarange_without_its_ranges() -> None:
    clock = ManualClock(1_000_000.0)
    world = World(objects=LosesTheFirst(clock=clock))
    world.branch({"a": "1"})
    side = world.repo.create_branch("side", "main")
    for value in b"1", b"2":
        side.put(b"s", value)
        side.commit("side")
    commits = [commit_id for commit_id, _ in side.log()][:2]
    world.repo.delete_branch("side")
    clock.advance(1000)
    world.clock.advance(1000)
    assert isinstance(collect_garbage(world.context, grace_seconds=100), Failed)
    for commit_id in commits:
        branch = used(World(world.store, world.objects, seed=2), reset_to, commit_id)
        assert branch is None or branch.list().keys == (b"a", b"s")


def test_an_import_on_top_of_what_was_collected_is_refused_whatever_is_in_memory() -> None:
    world = World(rule=SplitRule(max_bytes=100))
    main = world.branch({"a": "1"})
    first = world.metarange({f"k{number}": "x" * 20 for number in range(9)})
    assert len(list(world.committed.scan(first))) == 9
    world.clock.advance(1000)
    other = World(world.store, world.objects, seed=3)
    other.clock.advance(1000)
    assert isinstance(collect_garbage(other.context, grace_seconds=100), Done)
    second = world.committed.apply(first, changes({"l": "1"})).metarange_id
    with pytest.raises(RangeNotFound):
        main.commit_metarange(second, "import")
    assert main.list().keys == (b"a",)
    assert world.repo.verify().is_sound


class TwoCollections:
    """One collection stops before a request; another one runs; a writer makes what they take again, and before one of
    its own requests lets the first one go on.

    Args:
        step: the request of the collection.
        writer_step: that of the writer.
    """

    def __init__(self, step: int, writer_step: int) -> None:
        self.clock = ManualClock(1_000_000.0)
        self.objects, self.store = MemoryObjects(clock=self.clock), MemoryStore()
        self.requests, self.writer_requests = itertools.count(), itertools.count()
        self.step, self.writer_step = step, writer_step
        self.stopped, self.may_go_on = threading.Event(), threading.Event()
        self.has_step = self.has_writer_step = self.is_writing = False

    def process(self, hook: Callable[[], None] = lambda: None) -> Repository:
        committed = CommittedRanges(HookedObjects(self.objects, lambda operation, key: hook()), clock=self.clock)
        return Repository(FaultyStore(self.store, lambda operation: hook()), committed, clock=self.clock,
                          options=StagingOptions(first_backoff_seconds=0))

    def stops(self) -> None:
        if next(self.requests) == self.step:
            self.has_step = True
            self.stopped.set()
            assert self.may_go_on.wait(30)

    def goes_on(self) -> None:
        if self.is_writing and next(self.writer_requests) == self.writer_step:
            self.has_writer_step, self.is_writing = True, False
            self.finish()

    def collects(self) -> None:
        collect_garbage(self.process(self.stops).context, grace_seconds=100)
        self.stopped.set()

    def finish(self) -> None:
        self.may_go_on.set()
        self.slow.join()

    def run(self, *, compacts: bool) -> None:
        repo = self.process()
        for name in "old", "new", "other":
            repo.create_branch(name)
        repo.branch("old").put(b"x", b"1")
        repo.branch("old").commit("c")
        repo.delete_branch("old")
        self.clock.advance(1000)
        self.slow = threading.Thread(target=self.collects)
        self.slow.start()
        assert self.stopped.wait(30)
        collect_garbage(repo.context, grace_seconds=100)
        writer = self.process(self.goes_on)
        writer.branch("other").put(b"y", b"1")
        writer.branch("other").commit("it has seen both collections now")
        self.is_writing = True
        writer.branch("new").put(b"x", b"1")
        with contextlib.suppress(BeingCollected):
            if compacts:
                writer.compact(branch="new", policy=AlwaysPolicy(window_seconds=0))
            else:
                writer.branch("new").commit("c")
        self.is_writing = False
        self.finish()
        assert self.process().verify().is_sound
        assert self.process().branch("new").get(b"x").data == b"1"


@pytest.mark.parametrize("compacts", [pytest.param(False, marks=pytest.mark.soak), True])
def test_what_one_collection_has_deleted_and_a_writer_made_again_another_one_under_way_leaves_alone(
        compacts: bool) -> None:
    for step in itertools.count(10):  # Before that, it has looked at nothing.
        for writer_step in itertools.count(5):
            story = TwoCollections(step, writer_step)
            story.run(compacts=compacts)
            if not story.has_writer_step:
                break
        if not story.has_step:
            break
    assert step > 20
    assert writer_step > 15
