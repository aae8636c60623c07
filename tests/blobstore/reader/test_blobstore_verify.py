# SPDX-License-Identifier: Apache-2.0
"""The verifier finds what was done to a store, and nothing where nothing was; so does comparing two pictures."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from compactlib.blobstore import BlobReader, Deleted
from compactlib.blobstore.model.names import SegmentName
from compactlib.blobstore.model.values import IndexEntry
from compactlib.blobstore.segment.reader import SegmentFile
from compactlib.blobstore.store.verify import verify
from compactlib.clock import ManualClock
from compactlib.errors import BudgetSpent, CorruptData
from compactlib.outcome import Done
from compactlib.report import VerifyReport
from compactlib.runtime import Budget
from tests.blobstore.compaction_stores import (
    EVERYTHING,
    RETENTION,
    done,
    flip,
    garbage_store,
    names,
    open_store,
    plan_of,
)
from tests.blobstore.store_pictures import StorePicture, compare
from tests.tools.faults.plan import FailingFiles, Fault


def kinds(report: VerifyReport) -> list[str]:
    return sorted({finding.kind for finding in report.findings})


def test_a_sound_store(folder: Path, clock: ManualClock) -> None:
    with garbage_store(folder, clock) as store:
        report = store.verify()
        assert (report.findings, report.is_sound) == ((), True)
        assert report.records == 100
        assert "0 findings in 100 records" in repr(report)


@pytest.mark.parametrize("part", ["header", "id", "content", "checksum"])
def test_a_flipped_byte_of_a_record_is_found_where_it_is(part: str, folder: Path, clock: ManualClock) -> None:
    with garbage_store(folder, clock) as store:
        entry = list(store.snapshot().entries_of(names("1_0")[0]))[2]
        place = {"header": entry.offset + 21, "id": entry.offset + 56, "content": entry.offset + 60,
                 "checksum": entry.end - 1}[part]
        flip(folder / "1_0.log", place)
        report = store.verify()
        assert not report.is_sound
        assert {finding.place for finding in report.findings} == {str(entry.position)}
        assert "damage" in kinds(report)
        assert str(entry.position) in str(report)


def test_a_segment_that_is_cut_or_gone(folder: Path, clock: ManualClock) -> None:
    with garbage_store(folder, clock) as store:
        os.truncate(folder / "1_0.log", 1000)
        (folder / "2_0.log").unlink()
        report = store.verify()
        assert kinds(report) == ["damage", "missing"]
        assert not report.is_sound


def test_leftovers_are_told_and_harmless(folder: Path, clock: ManualClock) -> None:
    with garbage_store(folder, clock) as store:
        (folder / "99_0.80.index").write_bytes(b"")
        (folder / "1_1.log.temp").write_bytes(b"")
        report = store.verify()
        assert [finding.place for finding in report.findings] == ["1_1.log.temp", "99_0.80.index"]
        assert report.is_sound


def test_it_asks_the_budget(folder: Path, clock: ManualClock) -> None:
    with garbage_store(folder, clock) as store, pytest.raises(BudgetSpent):
        verify(store, budget=Budget(total_bytes=3000))


def test_what_a_hard_delete_overwrites_meanwhile_is_no_finding(folder: Path, clock: ManualClock,
                                                               monkeypatch: pytest.MonkeyPatch) -> None:
    read, left = SegmentFile.read, iter(range(1, 10))

    def erasing(file: SegmentFile, offset: int, length: int) -> bytes:
        if next(left, 0) == 2:
            assert isinstance(store.hard_delete(budget=Budget()), Done)
        return read(file, offset, length)

    with open_store(folder, clock, capacity_bytes=64 << 20, segment_bytes=8 << 20) as store:
        store.put("a", bytes([7]) * (3 << 20))
        store.put("b", b"stays")
        store.delete("a")
        store.close_active_segment()
        clock.advance(100.0)
        monkeypatch.setattr(SegmentFile, "read", erasing)
        assert store.verify().is_sound
        monkeypatch.undo()
        assert isinstance(store.get("a", EVERYTHING), Deleted)


class Tearing:
    """Tears one change of the disk."""

    left = 0

    def __call__(self, number: int) -> Fault | None:
        """See `FileFaultChoice`."""
        self.left -= 1
        return Fault.TORN if self.left == 0 else None


def test_what_a_hard_delete_has_torn_is_no_finding_and_other_damage_is(folder: Path, clock: ManualClock) -> None:
    torn = 0
    for at in range(1, 30):
        place, tearing = folder.parent / str(at), Tearing()
        with open_store(place, clock, files=FailingFiles(faults=tearing)) as store:
            store.put("a", b"secret" * 30)
            store.put("b", b"stays" * 30)
            store.delete("a")
            store.close_active_segment()
            clock.advance(100.0)
            tearing.left = at
            refused = store.hard_delete(budget=Budget())
            tearing.left = 0
            head = store.snapshot().history(b"a")[0]
            with BlobReader(place, store.config, clock=clock) as reader:
                assert store.verify().is_sound
                assert reader.verify().is_sound
            with contextlib.suppress(CorruptData):
                store.get("a", EVERYTHING)
            data = (place / head.segment.log_file).read_bytes()
            torn += data[head.offset:head.end].count(b"secret") not in (0, 30)
            flip(place / head.segment.log_file, store.snapshot().history(b"b")[0].end - 5)
            assert [each.kind for each in store.verify().findings] == ["damage"]
        if isinstance(refused, Done):
            break
    assert torn


def test_a_compaction_under_way_is_no_finding(folder: Path, clock: ManualClock) -> None:
    with garbage_store(folder, clock) as store:
        store.compact(plan_of(store), budget=Budget(total_bytes=3000))
        assert store.verify().is_sound


Records = tuple[tuple[IndexEntry, int], ...]


def changed(picture: StorePicture, name: SegmentName, change: Callable[[Records], Records]) -> StorePicture:
    return StorePicture({**picture.segments, name: change(picture.segments[name])})


@pytest.mark.parametrize(("kind", "change"), [
    ("gone", lambda records: records[1:]),
    ("changed", lambda records: ((records[0][0], records[0][1] ^ 1), *records[1:])),
    ("changed", lambda records: ((records[0][0]._replace(op_time_ms=5), records[0][1]), *records[1:])),
    ("order", lambda records: (records[1], records[0], *records[2:])),
    ("extra", lambda records: (*records, (records[0][0]._replace(sequence=2), 7))),
])
def test_what_a_compaction_must_not_do(kind: str, change: Callable[[Records], Records], folder: Path,
                                       clock: ManualClock) -> None:
    with garbage_store(folder, clock) as store:
        before = StorePicture.of(store)
        now = clock.now()
        report = done(store.compact(plan_of(store, names("1_0", "2_0", "3_0"))))
        after = StorePicture.of(store)
        assert compare(before, after, now - RETENTION, now).findings == ()
        broken = changed(after, report.targets[0], change)
        assert kind in kinds(compare(before, broken, now - RETENTION, now))


def test_what_had_to_go_and_is_there(folder: Path, clock: ManualClock) -> None:
    with garbage_store(folder, clock) as store:
        before, now = StorePicture.of(store), clock.now()
        report = done(store.compact(plan_of(store)))
        after = StorePicture.of(store)
        kept = {entry.sequence for records in after.segments.values() for entry, _ in records}
        dead = next(row for row in before.segments[names("1_0")[0]] if row[0].sequence not in kept)
        wrong = changed(after, report.targets[0], lambda records: (*records, dead))
        assert "kept" in kinds(compare(before, wrong, now - RETENTION, now))
        assert kinds(compare(before, after, 0, now)) == ["gone"]


def test_what_expired_while_it_was_copied_may_be_there_or_not(folder: Path, clock: ManualClock) -> None:
    with open_store(folder, clock) as store:
        for number in range(30):
            store.put(f"b{number}", bytes(100), ttl_seconds=10 if number % 2 else None)
        before, began = StorePicture.of(store), clock.now()
        clock.advance(11)
        done(store.compact(plan_of(store)))
        after = StorePicture.of(store)
        assert kinds(compare(before, after, began - RETENTION, began)) == ["gone"]
        assert kinds(compare(before, after, began - RETENTION, began, ended=clock.now())) == []


def test_an_untouched_segment_has_to_stay_as_it_is(folder: Path, clock: ManualClock) -> None:
    with garbage_store(folder, clock) as store:
        before = StorePicture.of(store)
        broken = changed(before, names("2_0")[0], lambda records: records[1:])
        assert kinds(compare(before, broken, 0, clock.now())) == ["changed"]


def test_a_place_taken_twice_or_by_an_older_generation(folder: Path, clock: ManualClock) -> None:
    with garbage_store(folder, clock) as store:
        before = StorePicture.of(store)
        twice = StorePicture({**before.segments, SegmentName(1, 1): ()})
        assert kinds(compare(before, twice, 0, clock.now())) == ["name"]
