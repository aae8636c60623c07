"""The compactor on real stores: properties 3.9 of the notes, and what it refuses; vectors C have their own file."""

from __future__ import annotations

import errno
import os
import random
import threading
from collections.abc import Generator, Iterable
from pathlib import Path

import attrs
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from compactlib.blobstore.compact_many import compact_many
from compactlib.blobstore.compaction_file import read_log
from compactlib.blobstore.compaction_log import Phase
from compactlib.blobstore.compaction_work import Questions
from compactlib.blobstore.compactor import BlobCompactor
from compactlib.blobstore.errors import (
    BlobConflict,
    BlobMissing,
    CompactionInProgress,
    CompactionOutOfOrder,
)
from compactlib.blobstore.index_file import write_index
from compactlib.blobstore.index_segment import IndexSegment
from compactlib.blobstore.lifetimes import PurgeRules
from compactlib.blobstore.model import RecordKind
from compactlib.blobstore.names import SegmentName
from compactlib.blobstore.statistics import log_statistics
from compactlib.blobstore.store import BlobStore
from compactlib.blobstore.validity import Verdict
from compactlib.blobstore.verify import StorePicture, compare, verify
from compactlib.budget import Budget
from compactlib.clock import ManualClock
from compactlib.errors import CorruptData, DiskFull, InvalidInput
from compactlib.observe import Observer, RecordingObserver
from compactlib.outcome import Done, Failed, Skipped
from compactlib.process_executor import ProcessExecutor
from compactlib.rewrite import Executor, LocalExecutor, RewriteOutcome, RewriteTask
from compactlib.testing import FailingFiles
from tests.blobstore.compaction_stores import (
    EVERYTHING,
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
    segment_names,
    strays,
)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(START)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "store"


def test_r28_a_record_without_index_entry_is_not_copied(folder: Path, clock: ManualClock) -> None:
    """The index file is whole and does not name it: an orphan."""
    with garbage_store(folder, clock, dead=lambda number: False, index_max_entries=1000) as store:
        name = store.snapshot().segments[0].name
        entries = list(store.snapshot().entries_of(name))
        part = next(part for part in store.snapshot().index_parts() if part.segment == name)
        write_index(store.files, str(folder), IndexSegment.of_entries(
            name, entries[1:], part.start, part.end, store.incarnation), store.incarnation)
        store.reload_index(name)
        assert [finding.kind for finding in verify(store).findings] == ["orphan"]
        report = compact_all(store)
        assert report.copied_records == sum(report.verdicts.values())
        assert not verify(store).findings
        assert answers(store, 1) == ["Missing"]


# -------------------------------------------------------------------------------------- cycles and swap segments


@pytest.mark.parametrize("swaps", [1, 2, 5, 100])
def test_w2_any_number_of_swap_segments_ends_with_the_same_records(swaps: int, folder: Path,
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


def test_a_tombstone_outlives_its_put_by_a_compaction_however_many_cycles(folder: Path, clock: ManualClock) -> None:
    """T6: the PUT goes in the first cycle, its tombstone lies in the last."""
    counts = set()
    for swaps in (1, 50):
        place = folder.with_name(f"store{swaps}")
        with garbage_store(place, ManualClock(START), purge_tombstones=True, swap_segments=swaps) as store:
            questions = Questions(seen_by_all_peers=lambda entry: True)
            fill(store, 10, random.Random(3), first=200)
            compactor = BlobCompactor(store, questions)
            first = done(compactor.compact(plan_of(store)))
            assert Verdict.PURGED not in first.verdicts
            fill(store, 10, random.Random(3), first=300)
            second = done(compactor.compact(plan_of(store)))
            counts.add(second.verdicts[Verdict.PURGED])
            assert answers(store, 2)[1] == "Missing"
    assert counts == {40}


# ------------------------------------------------------------------------------------------ stopping and going on


def test_it_is_cancelled_and_goes_on_without_copying_twice(folder: Path, clock: ManualClock) -> None:
    with garbage_store(folder, clock, compaction_buffer_bytes=1) as store:
        before, plain = StorePicture.of(store), answers(store, 60)
        compactor = BlobCompactor(store)
        budget = Budget(total_bytes=1500)
        outcome = compactor.compact(plan_of(store), budget=budget)
        assert isinstance(outcome, Failed)
        assert answers(store, 60) == plain
        spent, stops = budget.spent_bytes, 1
        while isinstance(outcome, Failed):
            budget = Budget(total_bytes=1500)
            outcome = compactor.resume(budget=budget)
            spent += budget.spent_bytes
            stops += 1
            compactor.audit()
        report = done(outcome)
        assert stops > 3
        assert spent == report.copied_bytes
        check_against(store, before)
    assert strays(folder) == []


def test_it_goes_on_after_the_store_was_opened_anew(folder: Path, clock: ManualClock) -> None:
    with garbage_store(folder, clock, compaction_buffer_bytes=1) as store:
        before = StorePicture.of(store)
        budget = Budget(total_bytes=1500)
        assert isinstance(BlobCompactor(store).compact(plan_of(store), budget=budget), Failed)
    with open_store(folder, clock) as store:
        assert store.compaction_recovery.log is not None
        second = Budget()
        report = done(BlobCompactor(store).resume(budget=second))
        assert report.resumed
        assert budget.spent_bytes + second.spent_bytes == report.copied_bytes
        check_against(store, before)


@pytest.mark.parametrize("reopened", [False, True])
def test_what_was_copied_before_is_not_used_if_it_would_be_copied_otherwise_now(reopened: bool, folder: Path,
                                                                              clock: ManualClock) -> None:
    """Blobs have expired since a new segment was whole: the cycle is decided anew."""
    with open_store(folder, clock, swap_segments=9) as store:
        for number in range(40):
            store.put(f"b{number}", bytes(300), ttl_seconds=1000 if number % 3 else None)
        before, began = StorePicture.of(store), clock.now()
        compactor = BlobCompactor(store)
        assert isinstance(compactor.compact(plan_of(store), budget=Budget(total_bytes=4500)), Failed)
        assert compactor.log is not None
        assert len(compactor.log.cycles[-1].targets) == 2
        clock.advance(2000)
        if not reopened:
            report = done(compactor.resume(budget=Budget()))
    if reopened:
        with open_store(folder, clock, swap_segments=9) as store:
            report = done(BlobCompactor(store).resume(budget=Budget()))
    assert report.verdicts[Verdict.EXPIRED] > 20
    with open_store(folder, clock) as store:
        found = compare(before, StorePicture.of(store), began - RETENTION, clock.now())
        assert not found.findings, str(found)
        assert not verify(store).findings
        assert answers(store, 3) == [bytes(300), "Missing", "Missing"]


def test_the_stores_own_temporary_files_are_let_be_while_it_is_open(folder: Path, clock: ManualClock) -> None:
    """Under load, a compaction removed the index file that the store was writing, or failed when that was faster."""
    with garbage_store(folder, clock) as store:
        mine = folder / "5_0.80.index.tmp"
        mine.write_bytes(b"half")
        done(BlobCompactor(store).compact(plan_of(store, names("0_0", "1_0"))))
        assert mine.exists()
    with open_store(folder, clock):
        assert not mine.exists()


def test_an_attempt_elsewhere_that_removes_its_own_file_is_no_failure(folder: Path, clock: ManualClock) -> None:
    class Racing(FailingFiles):
        def unlink(self, path: object) -> None:
            if str(path).endswith(".lent.temp"):
                os.unlink(str(path))
            super().unlink(path)  # type: ignore[arg-type]

    with garbage_store(folder, clock) as store:
        pass
    with open_store(folder, clock, files=Racing()) as store:
        (folder / "0_1.log.abc.lent.temp").write_bytes(b"")
        done(BlobCompactor(store).compact(plan_of(store)))
    assert strays(folder) == []


def test_w9_an_attempt_that_failed_can_be_dropped(folder: Path, clock: ManualClock) -> None:
    with garbage_store(folder, clock) as store:
        before = StorePicture.of(store)
        compactor = BlobCompactor(store)
        assert isinstance(compactor.compact(plan_of(store), budget=Budget(total_bytes=3000)), Failed)
        dropped = done(compactor.drop())
        assert dropped.sources
        assert compactor.log is None
        check_against(store, before)
        compact_all(store)
        check_against(store, before)
    assert strays(folder) == []


def test_what_a_drop_leaves_twice_counts_as_garbage_and_goes_with_the_next_compaction_of_its_segment(
        folder: Path, clock: ManualClock) -> None:
    def held_twice(store: BlobStore) -> dict[SegmentName, int]:
        """Bytes of each segment whose records lie in an earlier segment, too."""
        snapshot, seen = store.snapshot(), set[int]()
        found: dict[SegmentName, int] = {}
        for info in snapshot.segments:
            entries = list(snapshot.entries_of(info.name))
            again = sum(entry.size for entry in entries if entry.sequence in seen)
            found.update({info.name: again} if again else {})
            seen |= {entry.sequence for entry in entries}
        return found

    with garbage_store(folder, clock) as store:
        before, plain = StorePicture.of(store), answers(store, 60)
        compactor = BlobCompactor(store)
        assert isinstance(compactor.compact(plan_of(store), budget=Budget(total_bytes=3000)), Failed)
        dropped = done(compactor.drop())
        ((double, size),) = held_twice(store).items()
        assert double not in dropped.sources
        assert 0 < size < store.segment_bytes
        at = clock.now()
        valid = log_statistics(store.snapshot(), at - RETENTION, at).valid_bytes
        alone = [store.snapshot().history(entry.id) for entry in store.snapshot().entries_of(double)]
        assert valid[double] <= sum(entry.size for history in alone for entry in history
                                    if entry.segment == double) - size
        report = done(compactor.compact(plan_of(store, [double])))
        assert report.verdicts[Verdict.DUPLICATE] > 0
        assert held_twice(store) == {}
        assert answers(store, 60) == plain
        check_against(store, before)


def test_it_waits_while_the_budget_is_paused_and_the_store_goes_on(folder: Path, clock: ManualClock) -> None:
    begun = threading.Event()

    class Begun(Observer):
        def progress(self, progress: object) -> None:
            begun.set()

    with garbage_store(folder, clock) as store:
        compactor = BlobCompactor(store)
        budget = Budget(clock=clock)
        budget.pause()
        found: list[object] = []
        # The pause holds the executor back before its first task.
        thread = threading.Thread(target=lambda: found.append(compactor.compact(plan_of(store), budget=budget)))
        thread.start()
        while compactor.log is None or compactor.log.phase is not Phase.COPY:
            store.get("b0")
        store.put("meanwhile", b"x")
        plain = answers(store, 60)
        with pytest.raises(CompactionInProgress):
            compactor.compact(plan_of(store))
        assert not begun.is_set()
        budget.resume()
        thread.join()
        assert isinstance(found[0], Done)
        assert answers(store, 60) == plain


def test_the_configured_rate_holds(folder: Path, clock: ManualClock) -> None:
    rates = {"compaction_bytes_per_second": 500.0, "compaction_min_bytes_per_second": 500.0}
    with garbage_store(folder, clock, **rates) as store:  # type: ignore[arg-type]
        began = clock.monotonic()
        report = compact_all(store)
        assert clock.monotonic() - began >= 0.9 * report.copied_bytes / 500


def test_writes_during_the_copying_are_not_lost(folder: Path, clock: ManualClock) -> None:
    """Property 8: what is deleted, undeleted, made permanent or put meanwhile counts."""
    with garbage_store(folder, clock) as store:
        store.put("dying", b"x", ttl_seconds=1000)
        fill(store, 10, random.Random(5), first=500)

        class Busy(Observer):
            told = 0

            def progress(self, progress: object) -> None:
                Busy.told += 1
                store.put(f"new{Busy.told}", b"meanwhile")
                if Busy.told == 1:
                    store.delete("b0")
                    store.delete("b3")
                    store.undelete("b3")
                    store.ttl_update("dying")

        compactor = BlobCompactor(store)
        done(compactor.compact(plan_of(store), executor=Telling(Busy())))
        assert Busy.told > 3
        assert answers(store, 1) == ["Deleted"]
        assert type(store.get("b3")).__name__ == "Blob"
        clock.advance(2000)
        assert type(store.get("dying")).__name__ == "Blob"
        assert all(type(store.get(f"new{number}")).__name__ == "Blob" for number in range(1, Busy.told + 1))
        assert not verify(store).findings


@attrs.frozen
class Telling:
    """Runs tasks here and lets another observer hear of them."""

    other: Observer

    def run(self, tasks: Iterable[RewriteTask], *, budget: Budget | None = None,
            observer: Observer | None = None) -> Generator[RewriteOutcome, None, None]:
        yield from LocalExecutor().run(tasks, budget=budget, observer=self.other)


def test_a_blob_that_comes_back_while_it_is_dropped_is_kept(folder: Path, clock: ManualClock) -> None:
    """Only a clock that was set back lets the store undelete what the compaction has dropped."""
    with garbage_store(folder, clock) as store:
        class SettingBack(Observer):
            told = 0

            def progress(self, progress: object) -> None:
                SettingBack.told += 1
                if SettingBack.told == 1:
                    clock.set_now(clock.now() - RETENTION)
                    store.undelete("b1")

        content = store.get("b1", EVERYTHING)
        done(BlobCompactor(store).compact(plan_of(store), executor=Telling(SettingBack())))
        found = store.get("b1")
        assert type(found).__name__ == "Blob"
        assert found.content == content.content  # type: ignore[union-attr]


# -------------------------------------------------------------------------------------------------------- damage


def test_a_damaged_record_is_reported_and_its_segment_left_alone(folder: Path, clock: ManualClock) -> None:
    with garbage_store(folder, clock, dead=lambda number: False) as store:
        plain = answers(store, 60)
        first = store.snapshot().segments[2].name
        entry = next(iter(store.snapshot().entries_of(first)))
        flip(folder / first.log_file, entry.end - 5)
        observer = RecordingObserver()
    with open_store(folder, clock, observer=observer) as store:
        report = compact_all(store)
        assert report.left_out == (first,)
        assert report.damage[0].path.endswith(first.log_file)
        assert report.damage[0].offset == entry.offset
        assert [name for name, _ in observer.events].count("blobstore_damage_found") == 1
        assert str(first) in segment_names(store)
        damaged = int(entry.id[1:])
        with pytest.raises(CorruptData):
            store.get(entry.id)
        others = [number for number in range(60) if number != damaged]
        assert [store.get(f"b{number}").content for number in others] == [  # type: ignore[union-attr]
            plain[number] for number in others]


def test_damage_in_a_dead_record_does_not_matter(folder: Path, clock: ManualClock) -> None:
    with garbage_store(folder, clock) as store:
        before = StorePicture.of(store)
        entry = next(entry for entry in store.snapshot().entries_of(names("0_0")[0]) if entry.id == b"b1")
        flip(folder / "0_0.log", entry.offset + 3)
        assert not compact_all(store).left_out
        check_against(store, before)


def test_every_flipped_byte_of_a_segment_is_reported_or_dead(folder: Path, clock: ManualClock) -> None:
    with garbage_store(folder, clock, count=14) as store:
        pass
    original = (folder / "0_0.log").read_bytes()
    saved = {name: (folder / name).read_bytes() for name in os.listdir(folder) if name != "LOCK"}
    with open_store(folder, clock) as store:
        plain = answers(store, 14)
    for offset in range(0, len(original), 83):
        for name in set(os.listdir(folder)) - {"LOCK"}:
            (folder / name).unlink()
        for name, data in saved.items():
            (folder / name).write_bytes(data)
        flip(folder / "0_0.log", offset)
        with open_store(folder, clock) as store:
            outcome = BlobCompactor(store).compact(plan_of(store))
            damaged = isinstance(outcome, Failed) or done(outcome).left_out or store.recovery.damage
            for number, answer in enumerate(plain):
                try:
                    found = store.get(f"b{number}")
                except CorruptData:
                    assert damaged, offset
                    continue
                content = getattr(found, "content", type(found).__name__)
                assert content == answer or damaged, (offset, number)
                if isinstance(answer, bytes) and isinstance(content, bytes):
                    assert content == answer


# ----------------------------------------------------------------------------------------------- the disk refuses


@pytest.mark.parametrize("fail_at", range(1, 42, 2))
@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO])
def test_a_disk_that_refuses_leaves_a_usable_store_and_the_attempt_goes_on(fail_at: int, error: int, tmp_path: Path,
                                                                          clock: ManualClock) -> None:
    folder = tmp_path / "store"
    with garbage_store(folder, clock, count=24) as store:
        before, plain = StorePicture.of(store), answers(store, 24)
    files = FailingFiles(fail_at=10_000)
    with open_store(folder, clock, files=files) as store:
        compactor = BlobCompactor(store)
        files._fail_at = files.count + fail_at  # noqa: SLF001
        files._errno = error  # noqa: SLF001
        try:
            outcome = compactor.compact(plan_of(store))
        except (DiskFull, OSError):
            outcome = Skipped("it did not begin")
        assert answers(store, 24) == plain
        if compactor.log is not None:
            outcome = compactor.resume()
        if not isinstance(outcome, Done):
            outcome = compactor.compact(plan_of(store))
        done(outcome)
        check_against(store, before)
    assert strays(folder) == []


def test_a_full_disk_while_copying_and_then_dropped(folder: Path, clock: ManualClock) -> None:
    with garbage_store(folder, clock) as store:
        before = StorePicture.of(store)
    files = FailingFiles(fail_at=10_000, sticky=True)
    with open_store(folder, clock, files=files) as store:
        compactor = BlobCompactor(store)
        files._fail_at = files.count + 8  # noqa: SLF001
        outcome = compactor.compact(plan_of(store))
        assert isinstance(outcome, Failed)
        assert isinstance(outcome.error, DiskFull)
        assert compactor.log is not None
        assert compactor.log.phase is Phase.COPY
        check = answers(store, 60)
        files._fail_at = None  # noqa: SLF001
        compactor.drop()
        assert answers(store, 60) == check
        check_against(store, before)
    assert strays(folder) == []


def test_a_commit_under_way_cannot_be_dropped(folder: Path, clock: ManualClock) -> None:
    with garbage_store(folder, clock) as store:
        pass
    refused: list[object] = []

    class RefusingRename(FailingFiles):
        def rename(self, source: object, target: object) -> None:
            if str(target).endswith("_1.log") and not refused:
                refused.append(target)
                raise DiskFull(operation="rename", path=str(source), errno=errno.ENOSPC)
            super().rename(source, target)  # type: ignore[arg-type]

    with open_store(folder, clock, files=RefusingRename()) as store:
        compactor = BlobCompactor(store)
        assert isinstance(compactor.compact(plan_of(store)), Failed)
        with pytest.raises(CompactionOutOfOrder, match="cannot be dropped"):
            compactor.drop()
        done(compactor.resume())


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
        found = compact_many([(BlobCompactor(store), plan_of(store)) for store in stores[2:]], executor=executor)
        assert all(isinstance(outcome, Done) for outcome in found.values())
    finally:
        for store in stores:
            store.close()
    for here, there in zip(folders[:2], folders[2:], strict=True):
        assert contents(here) == contents(there)


def test_one_store_that_fails_does_not_stop_the_others(tmp_path: Path) -> None:
    stores = [garbage_store(tmp_path / f"s{number}", ManualClock(START), seed=number, count=30) for number in range(3)]
    compactors = [BlobCompactor(store) for store in stores]
    work = [(compactor, plan_of(compactor.store)) for compactor in compactors]  # type: ignore[arg-type]
    stores[1].append_replicated(RecordKind.PUT, "b0", b"again", op_time=START)
    fill(stores[1], 10, random.Random(1), first=100)
    found = compact_many([*work[:1], (compactors[1], plan_of(stores[1], names("0_0"))), *work[2:]])
    kinds = [type(found[str(tmp_path / f"s{number}")]).__name__ for number in range(3)]
    assert kinds == ["Done", "Failed", "Done"]
    for store in stores:
        store.close()


def test_two_plans_for_one_store_at_once(folder: Path, clock: ManualClock) -> None:
    with garbage_store(folder, clock) as store, pytest.raises(InvalidInput, match="two plans"):
        compact_many([(BlobCompactor(store), plan_of(store)), (BlobCompactor(store), None)])


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


def test_w12_w13_the_log_is_there_only_while_a_compaction_is(folder: Path, clock: ManualClock) -> None:
    with garbage_store(folder, clock) as store:
        assert read_log(folder) is None
        BlobCompactor(store).compact(plan_of(store), budget=Budget(total_bytes=10))
        log = read_log(folder)
        assert log is not None
        assert log.phase is Phase.COPY
        done(BlobCompactor(store).resume())
        assert read_log(folder) is None


# ------------------------------------------------------------------------------------------------------- properties

WORDS = ["put", "put", "ttl put", "delete", "undelete", "ttl", "wait", "compact", "some"]
OPERATIONS = st.lists(st.tuples(st.sampled_from(WORDS), st.integers(0, 12)), max_size=60)


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(OPERATIONS, st.integers(1, 3), st.booleans())
def test_properties_of_random_lives(tmp_path_factory: pytest.TempPathFactory, operations: list[tuple[str, int]],
                                    swaps: int, purge: bool) -> None:
    """Properties 1, 2, 3, 4, 7 and 8 over random histories: `compare` is the judge."""
    clock = ManualClock(START)
    folder = tmp_path_factory.mktemp("lives") / "store"
    put = 0
    with open_store(folder, clock, swap_segments=swaps, purge_tombstones=purge, segment_bytes=1024,
                    capacity_bytes=1024 * 200) as store:
        compactor = BlobCompactor(store)
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
                    compact_and_check(store, compactor, every=1 if word == "compact" else 2, purge=purge)
            except (BlobConflict, BlobMissing):
                # What the store refuses is another test's business.
                continue
        compact_and_check(store, compactor, every=1, purge=purge)
        plain = answers(store, put)
        comes_to_rest(store, compactor)
        assert answers(store, put) == plain
    with open_store(folder, clock) as store:
        assert answers(store, put) == plain


def comes_to_rest(store: BlobStore, compactor: BlobCompactor) -> None:
    """Property 6: what a run leaves, a few more with the same times leave as well."""
    seen: list[list[int]] = []
    for _ in range(4):
        snapshot = store.snapshot()
        seen.append([entry.sequence for info in snapshot.segments for entry in snapshot.entries_of(info.name)])
        if not snapshot.eligible() or (len(seen) > 1 and sorted(seen[-1]) == sorted(seen[-2])):
            return
        done(compactor.compact(plan_of(store)))
    raise AssertionError(f"four compactions at one time each found something to do: {list(map(len, seen))}")


def compact_and_check(store: BlobStore, compactor: BlobCompactor, *, every: int, purge: bool) -> None:
    """Compact every segment, or every second one, and look."""
    chosen = store.snapshot().eligible()[::every]
    if not chosen:
        return
    before, now = StorePicture.of(store), store.clock.now()
    statistics = log_statistics(store.snapshot(), now - RETENTION, now, PurgeRules(purge_tombstones=purge))
    report = done(compactor.compact(plan_of(store, chosen)))
    # Property 5. Each segment's statistics keep a TTL update whose PUT lies in another one of the plan.
    valid = sum(statistics.valid_bytes[name] for name in chosen)
    orphans = report.verdicts[Verdict.ORPHANED]
    assert report.copied_bytes == valid if not orphans else report.copied_bytes <= valid
    after = StorePicture.of(store)
    found = compare(before, after, now - RETENTION, now, purge_tombstones=purge)
    assert not found.findings, str(found)
    sound = verify(store)
    assert not sound.findings, str(sound)
    assert len(report.targets) <= len(report.sources)
    assert len(after.segments) == len(before.segments) - report.freed_segments
    store.audit()
    compactor.audit()
