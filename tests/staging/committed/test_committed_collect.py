# SPDX-License-Identifier: Apache-2.0
"""Garbage collection of ranges against writers that use the same files again, at every step of either."""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Callable, Iterator

import attrs
import pytest

from compactlib.clock import ManualClock
from compactlib.errors import CompactlibError
from compactlib.objects import Digest, MemoryObjects, ObjectInfo, ObjectRef
from compactlib.staging import CommittedRanges, Record, SplitRule
from compactlib.staging.errors import BeingCollected, MetaRangeNotFound, RangeNotFound
from compactlib.staging.ranges.collect import RangeCollector
from compactlib.staging.ranges.files import RangeFiles
from compactlib.staging.values import Collected, LiveMetaRanges, MetaRangeId, RangeId
from tests.staging.committed.plain_sets import RecordSet
from tests.staging.hooked_objects import HookedObjects

GRACE = 100.0
OLD: RecordSet = {b"key%02d" % number: Record.of(b"%d" % number) for number in range(20)}
NEW: RecordSet = {key: record for key, record in OLD.items() if key < b"key15"}


class World:
    """A store with one branch, and with files of an old content that no branch has."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.objects = MemoryObjects(clock=self.clock)
        names = itertools.count()
        self.new_name = lambda: f"name-{next(names)}"
        self.branch: MetaRangeId | None = None
        self.orphan = self.layer().apply(None, sorted(OLD.items())).metarange_id
        self.clock.advance(10 * GRACE)

    def layer(self, hook: Callable[[str, str], None] | None = None) -> CommittedRanges:
        objects = self.objects if hook is None else HookedObjects(self.objects, hook)
        return CommittedRanges(objects, rule=SplitRule(raggedness=4), clock=self.clock, new_name=self.new_name,
                               cache_bytes=0)

    def live(self, fenced: bool) -> LiveMetaRanges:
        return LiveMetaRanges(needed=frozenset() if self.branch is None else frozenset([self.branch]))

    def collect(self, hook: Callable[[str, str], None] | None = None, *, grace: float = GRACE) -> Collected:
        return RangeCollector(self.layer(hook), self.live, grace).run()

    def write(self, content: RecordSet, hook: Callable[[str, str], None] | None = None) -> None:
        """Make a metarange of files that are there already, for the most part, and move the branch to it."""
        self.branch = self.build(content, hook)

    def build(self, content: RecordSet, hook: Callable[[str, str], None] | None = None) -> MetaRangeId:
        """Make the metarange, but do not move the branch yet."""
        return self.layer(hook).apply(None, sorted(content.items())).metarange_id

    def files(self) -> set[str]:
        return {info.key for info in self.objects.list() if not info.key.startswith(("doomed/", "reused/"))}


def at_step(step: int, interfere: Callable[[], None]) -> tuple[Callable[[str, str], None], list[int]]:
    """A hook that interferes before one step, and the number of steps seen."""
    seen = [0]

    def hook(operation: str, key: str) -> None:
        if seen[0] == step:
            seen[0] += 1
            interfere()
        else:
            seen[0] += 1

    return hook, seen


def test_unreachable_and_old_goes_the_rest_stays() -> None:
    world = World()
    world.write(NEW)
    young = world.layer().apply(world.branch, [(b"young", Record.of(b""))]).metarange_id
    before = world.files()
    done = world.collect()
    assert (done.metaranges_deleted, done.ranges_deleted) == (1, 2)
    assert done.bytes_freed > 0
    assert before - world.files() == {name for name in before if world.orphan in name} | {
        name for name in before if name.endswith(tuple(range_ids_only_in_old()))}
    for metarange_id in (world.branch, young):
        assert dict(world.layer().scan(metarange_id))
    rest = world.collect()
    assert rest == Collected(live=len(world.files()), live_bytes=rest.live_bytes)
    assert rest.live_bytes > 0
    world.clock.advance(2 * GRACE)
    assert world.collect().metaranges_deleted == 1  # the young one has become old
    assert dict(world.layer().scan(world.branch)) == NEW
    with pytest.raises(MetaRangeNotFound):
        world.layer().scan(young)


def range_ids_only_in_old() -> set[RangeId]:
    layer = World().layer()
    one, two = (layer.apply(None, sorted(content.items())).metarange_id for content in (OLD, NEW))
    return ({entry.range_id for entry in layer.ranges_of(one)} - {entry.range_id for entry in layer.ranges_of(two)})


def test_a_compacted_metarange_that_is_empty_stays() -> None:
    world = World()
    world.write({})
    world.clock.advance(10 * GRACE)
    world.collect()
    assert list(world.layer().scan(world.branch)) == []
    assert len(world.files()) == 1


def test_a_writer_at_every_step_of_a_collection_loses_nothing() -> None:
    refused = 0
    for step in itertools.count():
        world = World()

        def write(world: World = world) -> None:
            nonlocal refused
            try:
                world.write(NEW)
            except BeingCollected:
                refused += 1

        hook, seen = at_step(step, write)
        world.collect(hook)
        if seen[0] <= step:
            break
        check_readable(world)
    assert refused > 0  # some steps lie between the doom marks and the deletes
    assert step > 10


def test_a_collection_at_every_step_of_a_writer_loses_nothing() -> None:
    for step in itertools.count():
        world = World()
        hook, seen = at_step(step, lambda world=world: world.collect())  # type: ignore[misc]
        write_or_again(world, hook)
        if seen[0] <= step:
            break
        check_readable(world)
    assert step > 10


def test_a_collection_without_a_grace_takes_no_confirmed_file() -> None:
    refused = 0
    for step in itertools.count():
        world = World()
        hook, seen = at_step(step, lambda world=world: world.collect(grace=0))  # type: ignore[misc]
        try:
            made = world.build({b"new%02d" % number: Record.of(b"1") for number in range(20)}, hook)
        except BeingCollected:
            refused += 1
        else:
            if made in {file.key for file in world.layer().list("metaranges/")}:
                assert len(list(world.layer().scan(made))) == 20
        if seen[0] <= step:
            break
    assert refused > 0


def test_old_leftovers_of_a_cluster_are_collected() -> None:
    world = World()
    world.write(NEW)
    world.objects.create("incoming/old", b"changes of a job that died")
    world.clock.advance(GRACE / 2)
    world.objects.create("incoming/young", b"changes of one that runs")
    world.clock.advance(GRACE / 2)
    world.collect()
    assert [info.key for info in world.objects.list("incoming/")] == ["incoming/young"]


def claimed(world: World, hook: Callable[[str, str], None] | None = None) -> bool:
    """Bring the orphan back, if it is not being collected; its copy in memory does not help."""
    layer = world.layer(hook)
    try:
        layer.claim(world.orphan)
    except (BeingCollected, MetaRangeNotFound):
        return False
    world.branch = world.orphan
    return True


def test_a_claim_during_a_collection_keeps_all_or_is_refused() -> None:
    outcomes = set()
    for step in itertools.count():
        world = World()
        hook, seen = at_step(step, lambda world=world: outcomes.add(claimed(world)))  # type: ignore[misc]
        world.collect(hook)
        if seen[0] <= step:
            break
        check_readable(world, OLD)
    assert step > 10
    assert outcomes == {False, True}


def test_a_collection_during_a_claim_takes_no_claimed_file() -> None:
    for step in itertools.count():
        world = World()
        hook, seen = at_step(step, lambda world=world: world.collect())  # type: ignore[misc]
        claimed(world, hook)
        if seen[0] <= step:
            break
        check_readable(world, OLD)
    assert step >= 3


def write_or_again(world: World, hook: Callable[[str, str], None]) -> None:
    try:
        world.write(NEW, hook)
    except BeingCollected:
        world.write(NEW)


def test_two_collections_and_a_writer_at_every_step_of_each_other() -> None:
    """One collection deletes a file that another has read as old, and a writer creates it again in between."""
    runs = 0
    for step in itertools.count():
        for inner in itertools.count():
            world = World()
            inner_hook, inner_seen = at_step(inner, lambda world=world: world.collect())  # type: ignore[misc]
            built: list[MetaRangeId] = []

            def build(world: World = world, built: list[MetaRangeId] = built,
                      hook: Callable[[str, str], None] = inner_hook) -> None:
                with contextlib.suppress(BeingCollected):
                    built.append(world.build(NEW, hook))

            hook, seen = at_step(step, build)
            world.collect(hook)
            # The branch moves only now, which a collection must allow for.
            world.branch = built[0] if built else None
            if inner_seen[0] <= inner:
                break
            runs += 1
            check_readable(world)
        if seen[0] <= step:
            break
    assert runs > 100


def test_a_file_renewed_during_a_collection_is_kept() -> None:
    world = World()
    has_looked, may_go_on = threading.Event(), threading.Event()

    def wait_before_dooming(operation: str, key: str) -> None:
        if operation == "create" and key.startswith("doomed/"):
            has_looked.set()
            assert may_go_on.wait(60)

    slow = threading.Thread(target=world.collect, args=(wait_before_dooming,))
    slow.start()
    assert has_looked.wait(60)
    world.collect()
    assert not world.files()

    def let_it_end(operation: str, key: str) -> None:
        if operation == "create" and key.startswith("metaranges/"):
            may_go_on.set()
            slow.join()

    world.write(NEW, let_it_end)
    check_readable(world)


def test_a_dead_collection_keeps_writers_away_until_it_is_old() -> None:
    for step in itertools.count():
        world = World()
        steps = itertools.count()

        def die(operation: str, key: str, step: int = step, steps: Iterator[int] = steps) -> None:
            if next(steps) >= step:
                raise OSError("the process died")

        try:
            world.collect(die)
        except OSError:
            pass
        else:
            break
        try:
            world.write(NEW)
        except BeingCollected:
            world.clock.advance(2 * GRACE)
            world.collect()
            world.write(NEW)
        check_readable(world)


def check_readable(world: World, content: RecordSet = NEW) -> None:
    """All files of the branch exist, now and after the next collections."""
    for _ in range(2):
        if world.branch is not None:
            assert dict(world.layer().scan(world.branch)) == content
        world.clock.advance(3 * GRACE)
        world.collect()
    if world.branch is None:
        assert world.files() == set()
    assert not [info for info in world.objects.list("doomed/") if not info.key.startswith("doomed/collection.")]
    assert not list(world.objects.list("reused/"))


def breaks_reuse_marks(monkeypatch: pytest.MonkeyPatch) -> None:
    """The writer does not claim a reused file."""
    create = HookedObjects.create

    def without_marks(self: HookedObjects, key: str, data: bytes | memoryview) -> ObjectRef:
        return ObjectRef(key, 0, Digest.of(b"")) if key.startswith("reused/") else create(self, key, data)

    monkeypatch.setattr(HookedObjects, "create", without_marks)


def breaks_marks_of_metaranges(monkeypatch: pytest.MonkeyPatch) -> None:
    """The collection spares a claimed metarange, and not its ranges."""
    monkeypatch.setattr(RangeCollector, "_parts_if_there", lambda self, metaranges: ())


def breaks_confirmation(monkeypatch: pytest.MonkeyPatch) -> None:
    """The writer does not read the doom marks."""
    monkeypatch.setattr(RangeFiles, "confirm", lambda files, written: None)


def breaks_second_look(monkeypatch: pytest.MonkeyPatch) -> None:
    """The collection relies on the ages that it saw first."""
    look = RangeCollector._sense  # noqa: SLF001 - the mistake replaces it

    def without_ages(self: RangeCollector, *, fenced: bool = False) -> tuple[set[str], list[tuple[str, ObjectInfo]]]:
        needed, files = look(self, fenced=fenced)
        return needed, [(folder, attrs.evolve(file, modified_at=-1e9)) for folder, file in files]

    monkeypatch.setattr(RangeCollector, "_sense", without_ages)


@pytest.mark.parametrize("broken", [breaks_reuse_marks, breaks_marks_of_metaranges, breaks_confirmation,
                                    breaks_second_look])
def test_the_tests_above_find_a_broken_protocol(broken: Callable[[pytest.MonkeyPatch], None],
                                                monkeypatch: pytest.MonkeyPatch) -> None:
    broken(monkeypatch)
    with pytest.raises((CompactlibError, AssertionError)):
        all_of_them()


def all_of_them() -> None:
    test_a_writer_at_every_step_of_a_collection_loses_nothing()
    test_a_collection_at_every_step_of_a_writer_loses_nothing()
    test_a_claim_during_a_collection_keeps_all_or_is_refused()
    test_a_collection_during_a_claim_takes_no_claimed_file()
    test_two_collections_and_a_writer_at_every_step_of_each_other()
    test_a_file_renewed_during_a_collection_is_kept()


def test_a_merge_of_a_collected_source_keeps_its_ranges_or_fails() -> None:
    """The source's branch was deleted, and its files are collected, at every step of the merge."""
    taken = 0
    for step in itertools.count():
        world = World()
        layer = world.layer()
        world.branch = destination = layer.apply(None, [(b"other", Record.of(b""))]).metarange_id
        world.clock.advance(10 * GRACE)
        hook, seen = at_step(step, lambda world=world: world.collect())  # type: ignore[misc]
        try:
            world.branch = world.layer(hook).merge(None, world.orphan, destination).metarange_id
            taken += 1
        except (BeingCollected, MetaRangeNotFound, RangeNotFound):
            pass
        else:
            world.clock.advance(3 * GRACE)
            world.collect()
            assert dict(world.layer().scan(world.branch)) == {**OLD, b"other": Record.of(b"")}
        if seen[0] <= step:
            break
    assert step > 10
    assert taken > 1


@pytest.mark.parametrize("is_needed", [False, True])
def test_a_metarange_collected_during_a_read_fails_only_if_needed(
        is_needed: bool) -> None:
    world = World()
    path = world.layer().path_of_metarange(world.orphan)
    world.branch = world.orphan

    def hook(operation: str, key: str) -> None:
        if (operation, key) == ("get", path) and path in world.files():
            # The branch is deleted, and another collection removes its files; or the file is lost.
            if is_needed:
                world.objects.delete([path])
            else:
                world.branch = None
                world.collect()

    if is_needed:
        with pytest.raises(MetaRangeNotFound):
            world.collect(hook)
    else:
        world.collect(hook)
        assert world.files() == set()
