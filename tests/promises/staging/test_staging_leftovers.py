# SPDX-License-Identifier: Apache-2.0
"""A repository deletes unneeded staged records and ranges, and the leftovers of a killed process."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from itertools import pairwise
from random import Random
from typing import Any

import pytest

from compactlib.clock import ManualClock
from compactlib.kv import MemoryStore, Retries
from compactlib.objects import MemoryObjects
from compactlib.staging import (
    AlwaysPolicy,
    CommittedRanges,
    CompactionSensor,
    PressurePolicy,
    Repository,
    SplitRule,
    StagingOptions,
    StagingWorker,
)
from compactlib.staging.errors import BeingCollected, MetaRangeNotFound
from compactlib.testing import Killed, Request, StoreInFront

WEEK = 7 * 86_400.0
OPTIONS = StagingOptions(owns_ranges=True, retries=Retries(10, 0))


class Place:
    """Stores in memory, and what of them a repository takes up."""

    def __init__(self) -> None:
        self.clock = ManualClock(1_700_000_000.0)
        self.kv, self.objects = MemoryStore(), MemoryObjects(clock=self.clock)
        self.before: Callable[[Request], object] = bool
        self._partitions = set[bytes]()
        self._openings = 0

    def open(self) -> Repository:
        self._openings += 1
        names = Random(self._openings)
        ranges = CommittedRanges(self.objects, rule=SplitRule(raggedness=3), clock=self.clock,
                                 new_name=lambda: f"{names.getrandbits(128):032x}")
        return Repository(StoreInFront(self.kv, self._step), ranges, options=OPTIONS, clock=self.clock,
                          rng=Random(self._openings))

    def cells(self) -> int:
        return sum(1 for partition in self._partitions for _ in self.kv.scan(partition))

    def files(self) -> int:
        return sum(1 for _ in self.objects.list())

    def _step(self, request: Request, act: Callable[[], Any]) -> Any:
        if request.partition is not None:
            self._partitions.add(bytes(request.partition))
        self.before(request)
        return act()


def work(repository: Repository, rng: Random) -> None:
    """Write, overwrite and delete some keys, and compact or commit them."""
    branch = repository.branch("main")
    for _ in range(8):
        key = b"key %d" % rng.randrange(12)
        branch.delete(key) if rng.random() < 0.3 else branch.put(key, b"%d" % rng.getrandbits(30))
    if rng.random() < 0.5:
        repository.compact(policy=AlwaysPolicy(window_seconds=0))
    elif rng.random() < 0.5:
        branch.reset()


def contents(repository: Repository) -> dict[bytes, bytes]:
    page = repository.branch("main").list(limit=100)
    return {each.key: each.record.data for each in page.entries if each.record is not None}


@pytest.mark.parametrize("is_killed", [False, True])
def test_work_without_end_leaves_nothing_behind(is_killed: bool) -> None:
    """Staged records take as much space after a hundred rounds as after ten, also if processes are killed."""
    place, rng, taken = Place(), Random(3), list[int]()
    place.open().create_branch("main")
    for number in range(100):
        repository = place.open()
        if is_killed:
            left = rng.randrange(60)

            def end(request: Request) -> None:
                nonlocal left
                left -= 1
                if left < 0:
                    raise Killed(str(request))

            place.before = end
        with contextlib.suppress(Killed):
            work(repository, rng)
        place.before = bool
        if number % 10 == 9:
            repository = place.open()
            repository.branch("main").commit("what there is")
            kept = contents(repository)
            place.clock.advance(WEEK)
            repository.reclaim()
            place.clock.advance(WEEK)
            repository.reclaim()
            assert contents(repository) == kept
            assert repository.verify().is_sound
            taken.append(place.cells())
    assert all(more - less <= 1 for less, more in pairwise(taken)), f"more than a commit each: {taken}"
    repository = place.open()
    repository.delete_branch("main")
    for _ in range(2):
        place.clock.advance(WEEK)
        repository.reclaim()
    assert place.files() <= 2, "ranges that no branch and no commit in use names are still there"


def test_entry_written_late_into_a_cleaned_token_is_removed() -> None:
    """A writer is paused while its token is committed and cleaned up; then it writes into it, twice."""
    place = Place()
    main = place.open().create_branch("main")
    main.put(b"a", b"1")
    late = main.record().staging_token.encode()

    def overtake(request: Request) -> None:
        if request.changes and request.partition == late:
            place.before = bool
            place.open().branch("main").commit("all")
            place.clock.advance(WEEK)
            place.open().reclaim()
            assert not list(place.kv.scan(late))

    place.before = overtake
    main.put(b"b", b"2")
    assert list(place.kv.scan(late)), "it was not late"
    place.clock.advance(WEEK)
    repository = place.open()
    repository.reclaim()
    assert not list(place.kv.scan(late))
    assert contents(repository) == {b"a": b"1", b"b": b"2"}


def test_branch_that_is_made_too_late_of_a_collected_commit_is_refused() -> None:
    """Its creator is paused while the commit is deleted with its branch, and collected."""
    place = Place()
    main = place.open().create_branch("main")
    main.put(b"a", b"1")
    commit_id = main.commit("soon gone").commit_id

    def overtake(request: Request) -> None:
        if request.changes and request.key == b"branches/late":
            place.before = bool
            place.open().delete_branch("main")
            for _ in range(2):
                place.clock.advance(WEEK)
                place.open().reclaim()

    place.before = overtake
    with pytest.raises((MetaRangeNotFound, BeingCollected)):
        place.open().create_branch("late", commit_id)
    assert list(place.open().branches()) == []


def test_compaction_whose_result_was_collected_yields() -> None:
    """It is paused before its last write while a collection removes its files."""
    place = Place()
    repository = place.open()
    main = repository.create_branch("main")
    main.put(b"a", b"1")
    changes = 0

    def overtake(request: Request) -> None:
        nonlocal changes
        changes += request.changes and request.key == b"branches/main"
        if changes == 2:  # the first one sealed the token
            place.before = bool
            for _ in range(2):
                place.clock.advance(WEEK)
                place.open().reclaim()

    place.before = overtake
    with pytest.raises(BeingCollected):
        repository.compact(policy=AlwaysPolicy(window_seconds=0))
    assert contents(place.open()) == {b"a": b"1"}
    assert place.open().verify().is_sound


def test_commit_whose_changes_a_reset_to_no_commit_drops_made_no_changes() -> None:
    """It is paused before its last write while another caller moves HEAD to that of a branch without a commit."""
    place = Place()
    repository = place.open()
    main = repository.create_branch("main")
    repository.create_branch("empty")
    main.put(b"a", b"1")
    main.commit("first")
    main.put(b"b", b"2")

    def overtake(request: Request) -> None:
        if request.changes and bytes(request.key or b"").startswith(b"commits/"):
            place.before = bool
            place.open().branch("main").hard_reset("empty", discard=True)

    place.before = overtake
    report = main.commit("too late")
    assert (report.is_empty, report.commit_id) == (True, None)


def test_damaged_commit_that_no_branch_reaches_does_not_keep_ranges() -> None:
    place = Place()
    repository = place.open()
    repository.create_branch("main").put(b"a", b"1")
    repository.branch("main").commit("kept")
    other = repository.create_branch("other", "main")
    other.put(b"b", b"2")
    lost = b"commits/" + str(other.commit("lost").commit_id).encode()
    repository.delete_branch("other")
    place.kv.set(b"staging/main", lost, b"damaged")
    files = place.files()
    for _ in range(2):
        place.clock.advance(WEEK)
        repository = place.open()
        repository.reclaim()
    assert place.files() < files
    assert contents(repository) == {b"a": b"1"}


def test_worker_begins_anew_with_a_repository_under_the_name_of_a_removed_one() -> None:
    first, second = Place(), Place()
    second.open().create_branch("main").put(b"a", b"1")
    second.open().branch("main").commit("drops a token")
    second.clock.advance(WEEK)
    worker = StagingWorker(clock=first.clock)
    worker.add(first.open())
    worker.run_pending()
    worker.remove("main")
    worker.add(second.open())
    worker.run_pending()
    assert second.open().dropped_tokens() == 0


def test_survey_of_a_worker_passes_over_a_branch_with_a_missing_range_list() -> None:
    place = Place()
    repository = place.open()
    branches = [repository.create_branch(name) for name in ("first", "second")]
    for branch in branches:
        branch.put(b"a", branch.name.encode())
    branches[1].commit("kept")
    kept = {each.key for each in place.objects.list("metaranges/")}
    branches[0].commit("lost")
    branches[1].delete(b"a")
    place.objects.delete([each.key for each in place.objects.list("metaranges/") if each.key not in kept])
    worker = StagingWorker(CompactionSensor(PressurePolicy(deletes=1)), clock=place.clock, reclaim_seconds=None)
    worker.add(place.open())
    worker.run_pending()
    assert [each.branch for each in worker.sensor.take()] == ["second"]
    assert worker.failures == 1


class DyingObjects(MemoryObjects):
    """A store whose process dies once it has written a doom mark with victims: nothing is deleted afterwards."""

    is_dying = is_dead = False

    def _create(self, key: str, data: bytes | memoryview) -> None:
        super()._create(key, data)
        self.is_dead = self.is_dying and key.startswith("doomed/") and len(data) > 0

    def _delete(self, keys: Sequence[str]) -> None:
        if self.is_dead:
            raise Killed("the process of the collection")
        super()._delete(keys)


def test_collection_that_died_under_a_wrong_clock_refuses_writers_for_the_grace_period_only() -> None:
    place = Place()
    place.objects = objects = DyingObjects(clock=place.clock)
    repository = place.open()
    repository.create_branch("main").put(b"a", b"1")
    repository.branch("main").commit("one")
    repository.delete_branch("main")
    repository.create_branch("main").put(b"a", b"1")
    now = place.clock.now()
    place.clock.set_now(now + 500 * WEEK)
    objects.is_dying = True
    with pytest.raises(Killed):
        repository.reclaim()
    place.clock.set_now(now + WEEK)
    objects.is_dying = objects.is_dead = False
    with pytest.raises(BeingCollected):
        place.open().branch("main").commit("the same again")
    place.open().reclaim()
    place.clock.advance(WEEK)
    place.open().reclaim()
    assert place.open().branch("main").commit("the same again").added == 1
