# SPDX-License-Identifier: Apache-2.0
"""The compactor on real stores: cycles, many stores, effects, properties; known answers have their own file."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from compactlib.blobstore import BlobStore, Questions, compact_many
from compactlib.blobstore.compaction.progress.compaction_file import read_log
from compactlib.blobstore.compaction.progress.compaction_log import Phase
from compactlib.blobstore.compaction.sense.statistics import log_statistics
from compactlib.blobstore.errors import (
    BlobConflict,
    BlobMissing,
)
from compactlib.blobstore.index.index_file import write_index
from compactlib.blobstore.index.index_segment import IndexSegment
from compactlib.blobstore.model.placement import ByAge, ByEnd, SurvivorPlacement
from compactlib.blobstore.validity.verdicts import PurgeRules, Verdict
from compactlib.clock import ManualClock
from compactlib.errors import InvalidInput
from compactlib.executors import Executor, LocalExecutor, ProcessExecutor
from compactlib.outcome import Done
from compactlib.runtime import Budget, Observer, RecordingObserver
from tests.blobstore.compaction_stores import (
    RETENTION,
    START,
    answers,
    check_against,
    compact_all,
    delete_some,
    done,
    fill,
    flip,
    garbage_store,
    names,
    open_store,
    plan_of,
)
from tests.blobstore.store_pictures import StorePicture, compare
from tests.harness.open_files import open_files


def test_a_record_without_index_entry_is_not_copied(folder: Path, clock: ManualClock) -> None:
    """The index file is whole and does not name it: an orphan."""
    with garbage_store(folder, clock, dead=lambda number: False, index_max_entries=1000) as store:
        name = store.snapshot().segments[0].name
        entries = list(store.snapshot().entries_of(name))
        part = next(part for part in store.snapshot().index_parts() if part.segment == name)
        write_index(store.files, str(folder), IndexSegment.of_entries(
            name, entries[1:], part.start, part.end, store.incarnation), store.incarnation)
        store.reload_index(name)
        assert [finding.kind for finding in store.verify().findings] == ["orphan"]
        report = compact_all(store)
        assert report.copied_records == sum(report.verdicts.values())
        assert not store.verify().findings
        assert answers(store, 1) == ["Missing"]


# -------------------------------------------------------------------------------------- cycles and swap segments


@pytest.mark.parametrize("swaps", [1, 2, 5, 100])
def test_any_number_of_swap_segments_ends_with_the_same_records(swaps: int, folder: Path,
                                                                   clock: ManualClock) -> None:
    with garbage_store(folder, clock, swap_segments=swaps) as store:
        before = StorePicture.of(store)
        plain = answers(store, 60)
        live = sum(entry.size for info in store.snapshot().segments[:-1]
                   for entry in store.snapshot().entries_of(info.name))
        report = compact_all(store)
        assert live > report.copied_bytes
        assert answers(store, 60) == plain
        check_against(store, before)
        needed = -(-report.copied_bytes // (store.segment_bytes - 80 - 400))
        assert len(report.targets) <= needed
        assert report.cycles == -(-len(report.targets) // swaps)


def test_no_more_than_the_swap_segments_are_on_the_disk_at_once(folder: Path, clock: ManualClock) -> None:
    most = []

    class Counting(Observer):
        def event(self, name: str, fields: object) -> None:
            most.append(len([each for each in os.listdir(folder) if each.endswith(".log")]))

    with garbage_store(folder, clock) as store:
        held = len(store.snapshot().segments)
    with open_store(folder, clock, observer=Counting()) as store:
        compact_all(store)
    assert max(most) <= held


def test_the_room_of_all_sources_is_free_when_compact_returns(folder: Path, clock: ManualClock) -> None:
    with garbage_store(folder, clock, swap_segments=1) as store:
        assert compact_all(store).cycles > 1
        assert not [path for path in open_files(folder) if path.endswith(" (deleted)")]


def test_a_tombstone_outlives_its_put_by_a_compaction_however_many_cycles(folder: Path, clock: ManualClock) -> None:
    """The PUT goes in the first cycle, its tombstone lies in the last."""
    counts = set()
    for swaps in (1, 50):
        place = folder.with_name(f"store{swaps}")
        with garbage_store(place, ManualClock(START), purge_tombstones=True, swap_segments=swaps) as store:
            questions = Questions(seen_by_all_peers=lambda entry: True)
            fill(store, 10, random.Random(3), first=200)
            store.questions = questions
            first = done(store.compact(plan_of(store)))
            assert Verdict.PURGED not in first.verdicts
            fill(store, 10, random.Random(3), first=300)
            second = done(store.compact(plan_of(store)))
            counts.add(second.verdicts[Verdict.PURGED])
            assert answers(store, 2)[1] == "Missing"
    assert counts == {40}


# ------------------------------------------------------------------------------------------- many stores, executors


def contents(folder: Path) -> dict[str, bytes]:
    return {name: (folder / name).read_bytes() for name in os.listdir(folder) if name.endswith((".log", ".index"))}


@pytest.mark.parametrize("executor", [LocalExecutor(3), ProcessExecutor(2)], ids=repr)
def test_every_executor_writes_the_same_bytes_for_many_stores(executor: Executor, tmp_path: Path) -> None:
    folders = [tmp_path / f"{kind}{number}" for kind in ("here", "there") for number in range(2)]
    stores = [garbage_store(folder, ManualClock(START), seed=place % 2, swap_segments=2, count=30)
              for place, folder in enumerate(folders)]
    try:
        for store in stores[:2]:
            compact_all(store)
        found = compact_many([(store, plan_of(store)) for store in stores[2:]], executor=executor)
        assert all(isinstance(outcome, Done) for outcome in found.values())
    finally:
        for store in stores:
            store.close()
    for here, there in zip(folders[:2], folders[2:], strict=True):
        assert contents(here) == contents(there)


def test_one_store_that_fails_does_not_stop_the_others(tmp_path: Path) -> None:
    stores = [garbage_store(tmp_path / f"s{number}", ManualClock(START), seed=number, count=30) for number in range(3)]
    work = [(store, plan_of(store)) for store in stores]
    entry = next(iter(stores[1].snapshot().entries_of(names("0_0")[0])))
    flip(tmp_path / "s1" / "0_0.log", entry.end - 1)
    found = compact_many([*work[:1], (stores[1], plan_of(stores[1], names("0_0"))), *work[2:]])
    kinds = [type(found[str(tmp_path / f"s{number}")]).__name__ for number in range(3)]
    assert kinds == ["Done", "Failed", "Done"]
    for store in stores:
        store.close()


def test_two_plans_for_one_store_at_once(folder: Path, clock: ManualClock) -> None:
    with garbage_store(folder, clock) as store, pytest.raises(InvalidInput, match="two plans"):
        compact_many([(store, plan_of(store)), (store, None)])


# -------------------------------------------------------------------------------------------------- effects, history


def test_the_observer_hears_of_the_effects(folder: Path, clock: ManualClock) -> None:
    observer = RecordingObserver()
    with open_store(folder, clock, observer=observer) as store:
        fill(store, 30, random.Random(0))
        store.put("dying", b"x", ttl_seconds=1)
        fill(store, 20, random.Random(0), first=30)
        delete_some(store, range(20), clock)
        report = compact_all(store)
    told = dict(observer.events)
    assert told["blobstore_expired_gone"]["records"] == 1
    assert told["blobstore_deleted_gone"]["records"] == 20
    moved = [fields for name, fields in observer.events if name == "blobstore_positions_moved"]
    assert [text for fields in moved for text in fields["removed"]] == [str(name) for name in report.sources]
    assert told["blobstore_compaction_done"]["freed_segments"] == report.freed_segments


def test_the_log_is_there_only_while_a_compaction_is(folder: Path, clock: ManualClock) -> None:
    with garbage_store(folder, clock) as store:
        assert read_log(folder) is None
        store.compact(plan_of(store), budget=Budget(total_bytes=10))
        log = read_log(folder)
        assert log is not None
        assert log.phase is Phase.COPY
        done(store.resume())
        assert read_log(folder) is None


# ------------------------------------------------------------------------------------------------------- properties

WORDS = ["put", "put", "ttl put", "delete", "undelete", "ttl", "wait", "compact", "some", "shuffled"]
OPERATIONS = st.lists(st.tuples(st.sampled_from(WORDS), st.integers(0, 12)), max_size=60)


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(OPERATIONS, st.integers(1, 3), st.booleans(), st.sampled_from([None, ByAge(step=1.5), ByEnd(step=1.5)]))
def test_properties_of_random_lives(tmp_path_factory: pytest.TempPathFactory, operations: list[tuple[str, int]],
                                    swaps: int, purge: bool, placement: SurvivorPlacement | None) -> None:
    """Properties 1, 2, 3, 4, 7 and 8 over random histories: `compare` is the judge."""
    clock = ManualClock(START)
    folder = tmp_path_factory.mktemp("lives") / "store"
    put = 0
    with open_store(folder, clock, swap_segments=swaps, purge_tombstones=purge, segment_bytes=1024,
                    capacity_bytes=1024 * 200, placement=placement) as store:
        for word, number in operations:
            try:
                if word == "put":
                    store.put(f"b{put}", bytes(20 * number))
                    put += 1
                elif word == "ttl put":
                    store.put(f"b{put}", bytes(20 * number), ttl_seconds=number * 2)
                    put += 1
                elif word == "delete":
                    store.delete(f"b{number}")
                elif word == "undelete":
                    store.undelete(f"b{number}")
                elif word == "ttl":
                    store.ttl_update(f"b{number}")
                elif word == "wait":
                    clock.advance(number)
                else:
                    compact_and_check(store, every=2 if word == "some" else 1, purge=purge,
                                      order=random.Random(number) if word == "shuffled" else None)
            except (BlobConflict, BlobMissing):
                # What the store refuses is another test's business.
                continue
        compact_and_check(store, every=1, purge=purge)
        plain = answers(store, put)
        comes_to_rest(store)
        assert answers(store, put) == plain
    with open_store(folder, clock) as store:
        assert answers(store, put) == plain


def comes_to_rest(store: BlobStore) -> None:
    """Property 6: what a run leaves, a few more with the same times leave as well."""
    seen: list[list[int]] = []
    for _ in range(4):
        snapshot = store.snapshot()
        seen.append([entry.sequence for info in snapshot.segments for entry in snapshot.entries_of(info.name)])
        if not snapshot.eligible() or (len(seen) > 1 and sorted(seen[-1]) == sorted(seen[-2])):
            return
        done(store.compact(plan_of(store)))
    raise AssertionError(f"four compactions at one time each found something to do: {list(map(len, seen))}")


def compact_and_check(store: BlobStore, *, every: int, purge: bool, order: random.Random | None = None) -> None:
    """Compact every segment, or every second one, and look."""
    chosen = list(store.snapshot().eligible()[::every])
    if not chosen:
        return
    if order is not None:
        order.shuffle(chosen)
    before, now = StorePicture.of(store), store.clock.now()
    statistics = log_statistics(store.snapshot(), now - RETENTION, now, PurgeRules(purge_tombstones=purge))
    report = done(store.compact(plan_of(store, chosen)))
    # Property 5. Each segment's statistics keep a TTL update whose PUT lies in another one of the plan.
    valid = sum(statistics.valid_bytes[name] for name in chosen)
    orphans = report.verdicts[Verdict.ORPHANED]
    assert report.copied_bytes == valid if not orphans else report.copied_bytes <= valid
    after = StorePicture.of(store)
    found = compare(before, after, now - RETENTION, now, rules=PurgeRules(purge_tombstones=purge), victims=chosen)
    assert not found.findings, str(found)
    sound = store.verify()
    assert not sound.findings, str(sound)
    assert len(report.targets) <= len(report.sources)
    assert len(after.segments) == len(before.segments) - report.freed_segments
    store.audit()
    store.audit()
