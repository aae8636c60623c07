# SPDX-License-Identifier: Apache-2.0
"""Hard delete: contents that are gone from the disk, progress that lasts, crashes, and room for compactions."""

from __future__ import annotations

import contextlib
import itertools
import random
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from compactlib.blobstore import Blob, BlobStore, Deleted, RecordKind
from compactlib.blobstore.compaction.run.report import HardDeleteReport
from compactlib.blobstore.errors import DeletedForGood
from compactlib.blobstore.log.contents import LogSnapshot
from compactlib.blobstore.log.store_clock import StoreClock
from compactlib.blobstore.model.names import SegmentName
from compactlib.blobstore.model.values import IndexEntry
from compactlib.blobstore.segment.erasure import (
    STATE_NAME,
    Erasure,
    HardDeleteState,
    state_in,
)
from compactlib.blobstore.store import hard_delete
from compactlib.blobstore.store.hard_delete import HardDeleter
from compactlib.clock import ManualClock
from compactlib.errors import BudgetSpent, CorruptData, Unsupported
from compactlib.files import Files
from compactlib.outcome import Done, Failed, Outcome, Skipped
from compactlib.runtime import Budget, RecordingObserver
from compactlib.testing import RecordingFiles, explore_crashes, explore_recovery, record
from tests.blobstore.compaction_stores import EVERYTHING, RETENTION, START, answers, done, fill, open_store, plan_of
from tests.tools.faults.plan import Crash, FailingFiles, Fault

FAR_AHEAD = 1e9
SECRET = b"a secret of forty bytes, and nobody's....."


def secrets_of(folder: Path, clock: ManualClock, *, count: int = 30, **changes: Any) -> BlobStore:
    """A store where the odd blobs are deleted, with their deletes in effect."""
    store = open_store(folder, clock, **changes)
    for number in range(count):
        store.put(f"b{number}", SECRET + b"%d" % number + bytes(40 * (number % 5)))
    for number in range(1, count, 2):
        store.delete(f"b{number}")
    clock.advance(RETENTION + 1)
    fill(store, 12, random.Random(0), first=100)
    return store


def on_disk(folder: Path) -> int:
    """How many secrets the disk still holds."""
    return sum(path.read_bytes().count(SECRET) for path in folder.glob("*.log"))


def run(store: BlobStore, *, budget: Budget | None = None) -> Outcome[HardDeleteReport]:
    return store.hard_delete(budget=Budget() if budget is None else budget)


def report_of(outcome: Outcome[HardDeleteReport]) -> HardDeleteReport:
    assert isinstance(outcome, Done), outcome
    return outcome.stats


def test_the_contents_of_a_blob_that_was_deleted_and_put_again_are_gone_and_the_new_ones_stay(
        folder: Path, clock: ManualClock) -> None:
    with secrets_of(folder, clock) as store:
        for number in (0, 1, 3):
            # One was never deleted: what it held before goes with a compaction.
            store.put(f"b{number}", b"another content", replace=True)
        fill(store, 12, random.Random(1), first=200)
        assert report_of(run(store)).records == 15
        assert on_disk(folder) == 15
        for number in (0, 1, 3):
            found = store.get(f"b{number}")
            assert isinstance(found, Blob)
            assert found.content == b"another content"
        assert store.verify().is_sound
        done(store.compact(plan_of(store)))
        assert on_disk(folder) == 14


def test_the_contents_of_deleted_blobs_are_gone_and_all_else_stays(folder: Path, clock: ManualClock) -> None:
    with secrets_of(folder, clock) as store:
        plain = answers(store, 30)
        assert on_disk(folder) == 30
        report = report_of(run(store))
        assert report.records == 15
        assert on_disk(folder) == 15
        # The note of what was to be overwritten is cleared: opening the store has nothing to make good.
        state = state_in(folder).read()
        assert state is not None
        assert (state.sequence, state.erasures) == (report.sequence, ())
        assert answers(store, 30) == plain
        gone = store.get("b1", EVERYTHING)
        assert isinstance(gone, Deleted)
        assert gone.content_gone
        assert not store.verify().findings
        assert report_of(run(store)).records == 0
        store.audit()
    with open_store(folder, clock) as store:
        assert not store.recovery.damage
        assert answers(store, 30) == plain
        assert not store.verify().findings


def test_a_delete_that_can_still_be_undone_is_let_be(folder: Path, clock: ManualClock) -> None:
    with open_store(folder, clock) as store:
        store.put("b0", SECRET)
        store.delete("b0")
        fill(store, 20, random.Random(0), first=100)
        clock.advance(RETENTION)
        assert report_of(run(store)).records == 0
        store.undelete("b0")
        clock.advance(100)
        report_of(run(store))
        assert isinstance(store.get("b0"), Blob)


def test_what_a_killed_hard_delete_had_begun_is_not_undeleted_under_a_longer_retention(folder: Path,
                                                                                       clock: ManualClock) -> None:
    """Killed at any change; a later owner with a longer retention brings back whole blobs or none."""
    def dies(at: int) -> bool:
        files = FailingFiles(faults=lambda number: Fault.CRASH_BEFORE if number == at else None)
        with contextlib.suppress(Crash), open_store(folder, clock, files=files) as store:
            run(store)
            return False
        return True

    with secrets_of(folder, clock):
        pass
    whole = {path.name: path.read_bytes() for path in folder.iterdir()}
    for at in itertools.count(1):
        for path in list(folder.iterdir()):
            path.unlink()
        for name, data in whole.items():
            (folder / name).write_bytes(data)
        died = dies(at)
        with open_store(folder, clock, deleted_retention_seconds=1e6) as store:
            assert not store.recovery.damage
            for number in range(1, 30, 2):
                with contextlib.suppress(DeletedForGood):
                    store.undelete(f"b{number}")
                    found = store.get(f"b{number}")
                    assert isinstance(found, Blob)
                    assert found.content.startswith(SECRET), (at, number)
            assert not store.verify().findings
        if not died:
            break
    assert at > 10


def test_a_blob_that_lives_again_keeps_its_content(folder: Path, clock: ManualClock) -> None:
    with open_store(folder, clock) as store:
        store.put("b0", SECRET)
        store.delete("b0")
        store.undelete("b0")
        fill(store, 20, random.Random(0), first=100)
        clock.advance(RETENTION + 1)
        assert report_of(run(store)).records == 0
        assert isinstance(store.get("b0"), Blob)


@pytest.mark.parametrize("compacted", [False, True])
def test_progress_lasts_over_restarts_and_compactions(compacted: bool, folder: Path, clock: ManualClock,
                                                      monkeypatch: pytest.MonkeyPatch) -> None:
    """Seed, effect 5: here a compaction does not reset it."""
    monkeypatch.setattr("compactlib.blobstore.store.hard_delete.MAX_BATCH_RECORDS", 4)
    with secrets_of(folder, clock) as store:
        deleter = HardDeleter(store)
        outcome = deleter.run(budget=Budget(total_bytes=1500))
        assert isinstance(outcome, Failed)
        assert isinstance(outcome.error, BudgetSpent)
        deleter.audit()
        reached, left = deleter.sequence, on_disk(folder) - 15
        assert reached > 0
        assert 0 < left < 15
        if compacted:
            done(store.compact(plan_of(store)))
            left = on_disk(folder) - 15
    with open_store(folder, clock) as store:
        deleter = HardDeleter(store)
        deleter.audit()
        assert deleter.sequence == reached
        assert report_of(deleter.run(budget=Budget())).records == left
        deleter.audit()
        assert report_of(deleter.run(budget=Budget())).records == 0
        assert on_disk(folder) == 15


def test_it_gives_way_to_a_compaction_that_is_in_progress(folder: Path, clock: ManualClock) -> None:
    with secrets_of(folder, clock) as store:
        assert isinstance(store.compact(plan_of(store), budget=Budget(total_bytes=10)), Failed)
        outcome = store.hard_delete(budget=Budget())
        assert isinstance(outcome, Skipped)
        assert "waits to be finished (copy)" in outcome.reason
        assert on_disk(folder) == 30
        store.drop_compaction()
        assert report_of(store.hard_delete(budget=Budget())).records == 15


def with_a_wild_delete(folder: Path, clock: ManualClock, **changes: Any) -> BlobStore:
    """A store where a peer's delete, by a clock far ahead, came before those of ten others, which are in effect."""
    store = open_store(folder, clock, **changes)
    store.put("wild", SECRET)
    store.append_replicated(RecordKind.DELETE, "wild", op_time=clock.now() + FAR_AHEAD)
    for number in range(12):
        store.put(f"b{number}", SECRET)
    for number in range(1, 12, 2):
        store.delete(f"b{number}")
    clock.advance(RETENTION + 1)
    fill(store, 12, random.Random(0), first=100)
    return store


def test_a_delete_by_a_clock_far_ahead_holds_up_no_other(folder: Path, clock: ManualClock) -> None:
    with with_a_wild_delete(folder, clock) as store:
        assert report_of(run(store)).records == 6
        assert report_of(run(store)).records == 0
        store.delete("b0")
        clock.advance(RETENTION + 1)
        deleter = HardDeleter(store)
        assert report_of(deleter.run()).records == 1
        store.delete("b2")
        clock.advance(RETENTION + 1)
        assert report_of(deleter.run()).records == 1
        assert on_disk(folder) == 5
        store.audit()
    clock.advance(FAR_AHEAD)
    with open_store(folder, clock) as store:
        # A jump of the clock is believed only after a while.
        clock.advance(86_400.0)
        assert report_of(run(store)).records == 1
        assert on_disk(folder) == 4
        assert report_of(run(store)).sequence > 20
        assert store.verify().is_sound


def test_what_is_still_written_to_holds_up_no_other(folder: Path, clock: ManualClock) -> None:
    with open_store(folder, clock) as store:
        store.put("sealed", SECRET)
        store.close_active_segment()
        store.put("written to", SECRET)
        store.delete("written to")
        store.delete("sealed")
        clock.advance(RETENTION + 1)
        deleter = HardDeleter(store)
        assert report_of(deleter.run()).records == 1
        assert on_disk(folder) == 1
        assert report_of(deleter.run()).records == 0
        store.close_active_segment()
        assert report_of(deleter.run()).records == 1
        assert on_disk(folder) == 0


def test_a_clock_that_is_set_back_takes_back_what_is_in_effect(folder: Path, clock: ManualClock,
                                                               monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hard_delete, "MAX_BATCH_RECORDS", 2)
    with open_store(folder, clock) as store:
        for number in range(8):
            store.put(f"b{number}", SECRET)
        for number in range(8):
            store.delete(f"b{number}")
            clock.advance(1.0)
        fill(store, 30, random.Random(0), first=100)
        clock.advance(RETENTION)
        deleter = HardDeleter(store)
        assert report_of(deleter.run(most_batches=1)).records == 2
        for at, records in ((14.0, 2), (13.0, 0), (16.0, 2), (20.0, 2)):
            monkeypatch.setattr(StoreClock, "now", lambda _, now=START + at: now)
            assert report_of(deleter.run()).records == records


def test_a_content_is_overwritten_once_however_many_deletes_it_had(folder: Path, clock: ManualClock) -> None:
    with open_store(folder, clock) as store:
        store.put("b0", SECRET)
        for _ in range(3):
            store.delete("b0")
            store.undelete("b0")
        store.delete("b0")
        clock.advance(RETENTION + 1)
        store.close_active_segment()
        assert report_of(run(store)).records == 1
        assert on_disk(folder) == 0


def test_two_of_them_take_turns(folder: Path, clock: ManualClock) -> None:
    with secrets_of(folder, clock) as store:
        one, other = (HardDeleter(store) for _ in range(2))
        assert report_of(one.run(budget=Budget())).records == 15
        assert report_of(other.run(budget=Budget())).records == 0
        store.delete("b0")
        clock.advance(RETENTION + 1)
        store.close_active_segment()
        assert report_of(other.run(budget=Budget())).records == 1
        one.audit()
        assert report_of(one.run(budget=Budget())).records == 0
        assert one.sequence == other.sequence
        assert not store.verify().findings


def test_a_budget_ends_it_between_batches(folder: Path, clock: ManualClock) -> None:
    with secrets_of(folder, clock) as store:
        outcome = run(store, budget=Budget(total_bytes=1))
        assert isinstance(outcome, Failed)
        assert isinstance(outcome.error, BudgetSpent)
        assert on_disk(folder) == 30


@pytest.mark.parametrize(("remembered", "most_looks"), [(10_000, 2), (4, 6), (1, 17)])
def test_the_index_is_not_looked_at_anew_for_each_batch(remembered: int, most_looks: int, folder: Path,
                                                        clock: ManualClock, monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[SegmentName] = []
    entries_of = LogSnapshot.entries_of

    def counted(snapshot: LogSnapshot, segment: SegmentName, *, start: int = 0) -> Iterator[IndexEntry]:
        looked.append(segment)
        return entries_of(snapshot, segment, start=start)

    monkeypatch.setattr(LogSnapshot, "entries_of", counted)
    monkeypatch.setattr(hard_delete, "MAX_BATCH_RECORDS", 2)
    monkeypatch.setattr(hard_delete, "MAX_WAITING_DELETES", remembered)
    with secrets_of(folder, clock) as store:
        segments = len(store.snapshot().segments)
        report = report_of(run(store))
        assert (report.records, report.is_whole) == (15, True)
        assert len(looked) <= most_looks * segments
        assert on_disk(folder) == 15


def test_contents_still_in_the_active_segment_wait(folder: Path, clock: ManualClock) -> None:
    with open_store(folder, clock) as store:
        store.put("b0", SECRET)
        store.delete("b0")
        clock.advance(RETENTION + 1)
        assert report_of(run(store)).records == 0
        fill(store, 30, random.Random(0), first=100)
        assert report_of(run(store)).records == 1
        assert on_disk(folder) == 0


def test_erased_records_are_compacted_like_any(folder: Path, clock: ManualClock) -> None:
    with secrets_of(folder, clock) as store:
        report_of(run(store))
        plain = answers(store, 30)
        done(store.compact(plan_of(store)))
        assert answers(store, 30) == plain
        assert not store.verify().findings


@pytest.mark.parametrize("fault", [Fault.REFUSED, Fault.TORN])
def test_what_a_compaction_copies_after_a_refusal_is_overwritten_all_the_same(fault: Fault, tmp_path: Path) -> None:
    """The disk refuses any change of a hard delete, and a compaction by an earlier time moves what was not done."""
    def refuses(at: int) -> bool:
        folder, clock, left = tmp_path / str(at), ManualClock(START), itertools.count(1)
        is_armed = False
        files = FailingFiles(faults=lambda _: fault if is_armed and next(left) == at else None)
        with secrets_of(folder, clock):
            pass
        with open_store(folder, clock, files=files) as store:
            is_armed = True
            outcome = run(store)
            is_armed = False
            done(store.compact(plan_of(store, reference=START)))
            report_of(run(store))
            assert on_disk(folder) == 15, at
            assert report_of(run(store)).records == 0
            assert not store.verify().findings
            store.audit()
        return not isinstance(outcome, Done)

    assert next(at for at in itertools.count(1) if not refuses(at)) > 50


def test_a_damaged_state_is_told_and_begins_anew(folder: Path, clock: ManualClock) -> None:
    with secrets_of(folder, clock) as store:
        report_of(run(store))
    path = folder / STATE_NAME
    path.write_bytes(path.read_bytes()[:-1])
    observer = RecordingObserver()
    with open_store(folder, clock, observer=observer) as store:
        deleter = HardDeleter(store)
        assert deleter.sequence == 0
        assert [name for name, _ in observer.events] == ["blobstore_hard_delete_reset"]
        assert report_of(deleter.run(budget=Budget())).records == 0


def small(folder: Path) -> None:
    secrets_of(folder / "store", ManualClock(START), count=12).close()


def erase(folder: Path, files: Files) -> None:
    with open_store(folder / "store", ManualClock(START + 100), files=files) as store:
        report_of(run(store))


def check(folder: Path, _: Sequence[Any]) -> None:
    """Live blobs are untouched, nothing is damaged, and running it again erases everything."""
    with open_store(folder / "store", ManualClock(START + 100)) as store:
        assert not store.recovery.damage, store.recovery.damage
        live = [store.get(f"b{number}") for number in range(0, 12, 2)]
        assert all(isinstance(answer, Blob) and answer.content.startswith(SECRET) for answer in live)
        for number in range(1, 12, 2):
            assert isinstance(store.get(f"b{number}"), Deleted)
            store.get(f"b{number}", EVERYTHING)
        report = store.verify()
        assert report.is_sound, str(report)
        report_of(run(store))
        # What was deleted by a clock far ahead may be undeleted for long.
        assert on_disk(folder / "store") == 6 + isinstance(store.get("wild", EVERYTHING), Blob)
        if isinstance(store.get("wild"), Deleted):
            store.undelete("wild")
            assert isinstance(store.get("wild"), Blob)
        store.audit()


def small_and_wild(folder: Path) -> None:
    with_a_wild_delete(folder / "store", ManualClock(START)).close()


@pytest.mark.parametrize(("made", "batch"), [(small, 64), (small_and_wild, 64), (small_and_wild, 2)])
def test_a_crash_at_any_operation_damages_nothing(made: Callable[[Path], None], batch: int, tmp_path: Path,
                                                  monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hard_delete, "MAX_BATCH_RECORDS", batch)
    made(tmp_path)
    checked = explore_crashes(record(tmp_path, erase), check, limit_per_point=12)
    assert checked > 10


def test_a_crash_of_its_recovery_damages_nothing(tmp_path: Path) -> None:
    small(tmp_path)

    def recover(folder: Path, files: Files) -> None:
        open_store(folder / "store", ManualClock(START + 100), files=files).close()

    explore_recovery(record(tmp_path, erase), recover, check, seed=0, recoveries=5, limit_per_point=4)


STATE = HardDeleteState(b"an incarnation..", 99, (Erasure(SegmentName(1, 2), 80, 40, b"head" * 20),))


def test_the_state_survives_its_file_and_each_damage_is_found(tmp_path: Path) -> None:
    kept = state_in(tmp_path)
    assert kept.read() is None
    kept.write(STATE)
    assert kept.read() == STATE
    data = (tmp_path / STATE_NAME).read_bytes()
    for place in range(len(data)):
        broken = bytearray(data)
        broken[place] ^= 1
        (tmp_path / STATE_NAME).write_bytes(broken)
        with pytest.raises((CorruptData, Unsupported)):
            kept.read()
        (tmp_path / STATE_NAME).write_bytes(data[:place])
        with pytest.raises(CorruptData):
            kept.read()


def test_the_recorder_sees_every_change(tmp_path: Path) -> None:
    """What the harness does not see cannot be crashed: the whole run goes through `Files`."""
    small(tmp_path)
    files = RecordingFiles(tmp_path)
    erase(tmp_path, files)
    assert on_disk(tmp_path / "store") == 6
