# SPDX-License-Identifier: Apache-2.0
"""What the data source `compactlib.blobstore` plans and reads, without a session; and the look at a store behind it."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from compactlib.blobstore import Blob, BlobStore, NotAStore, SegmentRecords
from compactlib.clock import ManualClock
from compactlib.errors import CorruptData, InvalidInput, Stale
from compactlib.spark.sources.blobstore import BlobOptions, plan_slices, read_slice
from tests.harness.blob_stores import (
    EVERYTHING,
    START,
    fill,
    flip,
    garbage_store,
    open_store,
    plan_of,
    snapshot_of,
)


def options(folder: Path, **given: str) -> BlobOptions:
    return BlobOptions.parse({"path": str(folder), **given})


def rows(wanted: BlobOptions, slices: list[SegmentRecords] | None = None) -> list[dict[str, Any]]:
    planned = plan_slices(wanted) if slices is None else slices
    return [row for part in planned for batch in read_slice(part, wanted) for row in batch.to_pylist()]


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(START)


@pytest.fixture
def store(tmp_path: Path, clock: ManualClock) -> BlobStore:
    """Puts, deletes, blobs that expire, one made permanent, one undeleted; and an end that is not indexed on disk."""
    store = garbage_store(tmp_path / "store", clock, count=40)
    store.put("short", b"s" * 90, ttl_seconds=5, account=3, container=4)
    store.put("kept", b"k" * 91, ttl_seconds=5)
    store.ttl_update("kept")
    store.delete("b0")
    store.undelete("b0")
    clock.advance(60)
    store.flush()
    return store


def test_rows_are_the_records(store: BlobStore) -> None:
    folder = Path(store.folder)
    found = rows(options(folder))
    snapshot = snapshot_of(store)
    entries = [entry for info in snapshot.segments for entry in snapshot.entries_of(info.name)]
    assert [(row["segment"], row["offset"], row["size"], row["id"], row["sequence"]) for row in found] == [
        (str(entry.segment), entry.offset, entry.size, entry.id, entry.sequence) for entry in entries]
    assert {row["kind"] for row in found} == {"put", "delete", "ttl_update", "undelete"}
    for row in found:
        if row["kind"] != "put":
            assert (row["payload"], row["length"]) == (None, 0)
            continue
        answer = store.get(row["id"], EVERYTHING)
        if isinstance(answer, Blob):
            assert row["payload"] == answer.content
        assert len(row["payload"]) == row["length"]
    (short,) = [row for row in found if row["id"] == b"short"]
    assert (short["account"], short["container"], short["expires_ms"] - short["op_time_ms"]) == (3, 4, 5000)


def test_without_payload(store: BlobStore) -> None:
    folder = Path(store.folder)
    wanted = [{name: value for name, value in row.items() if name != "payload"} for row in rows(options(folder))]
    assert rows(options(folder, payload="false")) == wanted


@pytest.mark.parametrize("late", [0.0, 3.0, 30.0, 500.0])
def test_valid_bytes_are_those_of_the_view(store: BlobStore, clock: ManualClock, late: float) -> None:
    clock.advance(late)
    view = store.view()
    found = {str(segment.name): 0 for segment in view.segments}
    for row in rows(options(Path(store.folder), payload="false", now=str(clock.now()),
                            reference_time=str(view.reference_time))):
        found[row["segment"]] += row["size"] * row["valid"]
    assert found == {str(segment.name): segment.valid_bytes for segment in view.segments}


def test_chosen_segments(store: BlobStore) -> None:
    folder = Path(store.folder)
    assert {row["segment"] for row in rows(options(folder, segments="1_0, 2_0"))} == {"1_0", "2_0"}
    with pytest.raises(InvalidInput, match="no segment 77_0"):
        plan_slices(options(folder, segments="77_0"))


def test_batches_end_where_reads_do(tmp_path: Path, clock: ManualClock) -> None:
    big: dict[str, Any] = {"capacity_bytes": 40 << 20, "segment_bytes": 20 << 20}
    with open_store(tmp_path / "store", clock, **big) as store:
        store.put("large", bytes(3 << 20))
        fill(store, 10_000, random.Random(1), largest=300)
        store.flush()
        wanted = options(Path(store.folder))
        batches = [batch for part in plan_slices(wanted) for batch in read_slice(part, wanted)]
        assert sum(batch.num_rows for batch in batches) == 10_001
        assert batches[0].num_rows == 1
        assert max(batch.nbytes for batch in batches[1:]) < 3 << 20


class TestDamage:
    def test_it_ends_the_read_or_comes_in_its_column(self, store: BlobStore) -> None:
        entry = next(snapshot_of(store).entries_of(snapshot_of(store).segments[0].name))
        flip(Path(store.folder) / entry.segment.log_file, entry.end - 6)
        with pytest.raises(CorruptData) as caught:
            rows(options(Path(store.folder)))
        assert (caught.value.offset, caught.value.index) == (entry.offset, entry.sequence)
        found = rows(options(Path(store.folder), damaged="column", payload="false"))
        (bad,) = [row for row in found if row["error"] is not None]
        assert (bad["offset"], bad["segment"]) == (entry.offset, str(entry.segment))
        assert "record CRC" in bad["error"]

    def test_unread_payloads_are_unchecked(self, store: BlobStore) -> None:
        entry = next(snapshot_of(store).entries_of(snapshot_of(store).segments[0].name))
        flip(Path(store.folder) / entry.segment.log_file, entry.end - 6)
        assert len(rows(options(Path(store.folder), payload="false"))) > 40


class TestWhileTheStoreIsUsed:
    def test_a_torn_end_is_not_there_yet(self, store: BlobStore) -> None:
        folder = Path(store.folder)
        before = rows(options(folder, now="0"))
        active = snapshot_of(store).segments[-1].name
        with (folder / active.log_file).open("ab") as out:
            out.write(b"CLBR" + bytes(30))
        assert rows(options(folder, now="0")) == before

    def test_what_was_appended_after_planning_is_left_out(self, store: BlobStore) -> None:
        wanted = options(Path(store.folder), now="0")
        planned = plan_slices(wanted)
        before = rows(wanted, planned)
        fill(store, 3, random.Random(5), first=900)
        store.flush()
        assert rows(wanted, planned) == before
        assert len(rows(wanted)) == len(before) + 3

    def test_a_segment_compacted_away_is_stale(self, store: BlobStore) -> None:
        wanted = options(Path(store.folder))
        planned = plan_slices(wanted)
        store.compact(plan_of(store))
        with pytest.raises(Stale, match="load the store again"):
            rows(wanted, planned)
        assert rows(wanted)

    def test_nothing_is_written(self, store: BlobStore) -> None:
        store.close()
        folder = Path(store.folder)
        before = {path.name: path.stat().st_mtime_ns for path in folder.iterdir()}
        rows(options(folder))
        assert {path.name: path.stat().st_mtime_ns for path in folder.iterdir()} == before

    def test_a_compaction_that_switches_its_files_is_seen_through(self, store: BlobStore) -> None:
        """Before its commit, which the fence is entered for, and after it every valid record is there."""
        folder = Path(store.folder)
        valid = [[row for row in rows(options(folder, now="0", reference_time="0")) if row["valid"]]]

        class Looking:
            def guard(self) -> Any:
                return self

            def __enter__(self) -> None:
                self._look()

            def __exit__(self, *error: object) -> None:
                self._look()

            def _look(self) -> None:
                valid.append([row for row in rows(options(folder, now="0", reference_time="0")) if row["valid"]])

        store.compact(plan_of(store), fence=Looking())
        assert len(valid) > 2
        assert all({row["id"] for row in found} <= {row["id"] for row in valid[0]} for found in valid)


class TestBadInput:
    @pytest.mark.parametrize(("given", "told"), [
        ({"paylod": "true"}, "unknown option 'paylod'"),
        ({"path": ""}, "which store"),
        ({"payload": "maybe"}, "true or false"),
        ({"damaged": "skip"}, "fail or column"),
        ({"now": "soon"}, "seconds since the epoch"),
        ({"reference_time": "inf"}, "seconds since the epoch"),
        ({"segments": "one"}, "not the name of a log segment"),
    ])
    def test_options(self, given: dict[str, str], told: str) -> None:
        with pytest.raises(InvalidInput, match=told):
            BlobOptions.parse({"path": "store", **given})

    def test_no_store(self, tmp_path: Path) -> None:
        with pytest.raises(NotAStore):
            plan_slices(options(tmp_path / "absent"))
        (tmp_path / "file").touch()
        with pytest.raises(NotAStore):
            plan_slices(options(tmp_path))

    def test_an_empty_store(self, tmp_path: Path, clock: ManualClock) -> None:
        open_store(tmp_path / "store", clock).close()
        assert plan_slices(options(tmp_path / "store")) == []
