# SPDX-License-Identifier: Apache-2.0
"""Tables of logs and blob stores, as PySpark asks for them; no session, so no Java, is needed for that."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest

pytest.importorskip("pyspark")

from compactlib.blobstore import BlobReader, BlobStore, BlobStoreConfig, CompactAll
from compactlib.clock import ManualClock
from compactlib.errors import CorruptData, InvalidInput, NotFound, Stale, Unsupported
from compactlib.raftlog import (
    DeadEntry,
    Entry,
    LogOptions,
    LogReader,
    RaftLogStore,
    SeedPolicy,
    SegmentLimits,
    SegmentLog,
    StoreOptions,
)
from compactlib.raftlog.errors import LiveIndexMissing
from compactlib.spark import register

OPTIONS = LogOptions(limits=SegmentLimits(max_entries=10), keep_links_seconds=0)
START = 1_700_000_000.0
CONFIG = BlobStoreConfig(capacity_bytes=1 << 16, segment_bytes=1 << 12, journal_max_entries=0, max_blob_bytes=0,
                         deleted_retention_seconds=0)


class Sources:
    """Keeps what `register` registers, in place of a session."""

    def __init__(self) -> None:
        self.found: dict[str, Any] = {}
        self.dataSource = self
        register(self)  # type: ignore[arg-type]

    def register(self, source: Any) -> None:
        self.found[source.name()] = source


class Table:
    """A table of a store, and its rows as they were planned."""

    def __init__(self, source: str, *folders: Path | str, **options: str) -> None:
        paths = {"path": str(folders[0])} if len(folders) == 1 else {
            "paths": "[" + ", ".join(f'"{folder}"' for folder in folders) + "]"}
        self.source = Sources().found[f"compactlib.{source}"]({**paths, **options})
        self.partitions = pickle.loads(pickle.dumps(self.source.partitions()))

    def rows(self) -> list[dict[str, Any]]:
        return [row for partition in self.partitions for batch in self.source.read(partition)
                for row in batch.to_pylist()]


def make_log(folder: Path, *, snapshot: bool = True) -> Path:
    with SegmentLog(folder, OPTIONS) as log:
        log.append((index, 1 + index // 30, b"%d" % index * (index % 7)) for index in range(1, 76))
        if snapshot:
            log.snapshot(60, range(3, 61, 3))
    return folder


def flip(path: Path, offset: int) -> None:
    data = bytearray(path.read_bytes())
    data[offset] ^= 0xFF
    path.write_bytes(data)


# --- raft logs ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("snapshot", [True, False])
def test_rows_of_a_log_equal_its_entries(snapshot: bool, tmp_path: Path) -> None:
    folder = make_log(tmp_path / "log", snapshot=snapshot)
    rows = Table("raftlog", folder, partition_bytes="1").rows()
    assert [row["index"] for row in rows] == list(range(1, 76))
    with LogReader(folder) as log:
        for row in rows:
            answer = log.read(row["index"])
            assert row["live"] == (not isinstance(answer, DeadEntry))
            if isinstance(answer, Entry):
                assert (answer.term, answer.payload) == (row["term"], row["payload"])
            data = Path(log.path_of(row["segment"])).read_bytes()
            assert data[row["offset"]:row["offset"] + row["length"]] == row["payload"]
    assert {row["store"] for row in rows} == {str(folder)}


def test_neighbouring_segments_share_partitions_up_to_a_size(tmp_path: Path) -> None:
    folder = make_log(tmp_path / "log")
    assert len(Table("raftlog", folder, partition_bytes="1").partitions) == 8
    assert len(Table("raftlog", folder).partitions) == 1


@pytest.mark.parametrize(("first", "last"), [(11, 75), (18, 18), (12, 21), (70, 1000), (500, 600)])
def test_range_reads_the_segments_that_hold_it(first: int, last: int, tmp_path: Path) -> None:
    folder = make_log(tmp_path / "log")
    flip(min(folder.glob("*.segment")), -1)  # damage of another segment is not read
    rows = Table("raftlog", folder, first=str(first), last=str(last)).rows()
    assert [row["index"] for row in rows] == list(range(first, min(last, 75) + 1))


def test_many_logs_are_one_table(tmp_path: Path) -> None:
    folders = [make_log(tmp_path / name) for name in ("a", "b", "c")]
    for table in (Table("raftlog", *folders), Table("raftlog", f"{tmp_path}/*")):
        counts = {str(folder): 0 for folder in folders}
        for row in table.rows():
            counts[row["store"]] += 1
        assert counts == dict.fromkeys(map(str, folders), 75)
    with pytest.raises(NotFound, match="no folder matches"):
        Table("raftlog", f"{tmp_path}/none*")


def test_damage_ends_the_read(tmp_path: Path) -> None:
    folder = make_log(tmp_path / "log")
    flip(min(folder.glob("*.segment")), -1)
    with pytest.raises(CorruptData, match="segment"):
        Table("raftlog", folder).rows()
    counted = Table("raftlog", folder, payload="false").rows()
    assert len(counted) == 75, "payloads that are not read are not checked"
    assert "payload" not in counted[0]


def test_live_entry_that_no_segment_holds_is_named(tmp_path: Path) -> None:
    folder = make_log(tmp_path / "log")
    min(folder.glob("*.segment")).unlink()
    with pytest.raises((LiveIndexMissing, CorruptData)):
        Table("raftlog", folder).rows()


def test_live_entry_that_its_segment_lacks_is_named(tmp_path: Path) -> None:
    folders = [make_log(tmp_path / name, snapshot=False) for name in ("whole", "other")]
    for folder, live in zip(folders, ([*range(3, 61, 3)], [3, *range(9, 61, 3)]), strict=True):
        with SegmentLog(folder, OPTIONS) as log:
            log.snapshot(60, live)
            log.compact(policy=SeedPolicy())
    whole, other = (min(folder.glob("*.segment")) for folder in folders)
    whole.write_bytes(other.read_bytes())
    with pytest.raises((LiveIndexMissing, CorruptData)):
        Table("raftlog", folders[0]).rows()


def test_numbers_that_spark_cannot_hold_are_refused(tmp_path: Path) -> None:
    with SegmentLog(tmp_path / "log", OPTIONS) as log:
        log.append([(1 << 63, 1, b"too far")])
    with pytest.raises(Unsupported, match="index"):
        Table("raftlog", tmp_path / "log").rows()


def test_plan_is_stale_after_a_compaction(tmp_path: Path) -> None:
    folder = make_log(tmp_path / "log")
    table = Table("raftlog", folder)
    with SegmentLog(folder, LogOptions(limits=OPTIONS.limits)) as log:
        log.compact(policy=SeedPolicy())
        with pytest.raises(Stale, match="load the log again"):
            table.rows()
        table = Table("raftlog", folder)
        assert [row["index"] for row in table.rows() if row["live"]] == [*range(3, 61, 3), *range(61, 76)]
        log.snapshot(70, [*range(6, 61, 6), 65])
        log.compact(policy=SeedPolicy())
    with pytest.raises(Stale, match="load the log again"):
        table.rows()


@pytest.mark.parametrize("keep_links_seconds", [0.0, 1e6])
def test_plan_is_stale_when_the_log_is_compacted_meanwhile(keep_links_seconds: float, tmp_path: Path,
                                                           monkeypatch: pytest.MonkeyPatch) -> None:
    folder, path_of = make_log(tmp_path / "log"), LogReader.path_of

    def compacting(reader: LogReader, number: int) -> str:
        if number == 1:
            with SegmentLog(folder, attrs.evolve(OPTIONS, keep_links_seconds=keep_links_seconds)) as log:
                log.snapshot(60, range(3, 61, 9))
                log.compact(policy=SeedPolicy())
        return path_of(reader, number)

    monkeypatch.setattr(LogReader, "path_of", compacting)
    with pytest.raises(Stale, match="load the log again"):
        Table("raftlog", folder).rows()


def test_plan_is_stale_after_the_newest_entries_were_replaced(tmp_path: Path) -> None:
    folder = make_log(tmp_path / "log")
    table = Table("raftlog", folder)
    with SegmentLog(folder, OPTIONS) as log:
        log.append((index, 9, b"another") for index in range(73, 90))
    with pytest.raises(Stale):
        table.rows()


def test_plan_is_stale_after_its_newest_segment_was_rewritten(tmp_path: Path) -> None:
    folder = make_log(tmp_path / "log")
    table = Table("raftlog", folder, first="71")
    with SegmentLog(folder, OPTIONS) as log:
        log.append((index, 9, b"more" * 30) for index in range(76, 99))
        log.snapshot(80, [*range(3, 61, 3), 75])
        log.compact(policy=SeedPolicy())
    with pytest.raises(Stale):
        table.rows()


def test_log_that_grows_is_read_as_planned(tmp_path: Path) -> None:
    folder = make_log(tmp_path / "log")
    table = Table("raftlog", folder)
    with SegmentLog(folder, OPTIONS) as log:
        log.append((index, 9, b"more") for index in range(76, 99))
    assert [row["index"] for row in table.rows()] == list(range(1, 76))


def test_entries_of_a_write_ahead_log_are_rows_too(tmp_path: Path) -> None:
    with RaftLogStore(tmp_path / "store", StoreOptions(background=False)) as store:
        log = store.log("a")
        log.append((index, 1, b"entry %d" % index) for index in range(1, 51))
        log.sync()
        rows = Table("raftlog", tmp_path / "store" / "logs" / "a").rows()
    assert [(row["index"], row["payload"]) for row in rows] == [(n, b"entry %d" % n) for n in range(1, 51)]
    assert {(row["segment"], row["offset"]) for row in rows} == {(None, None)}


@pytest.mark.parametrize(("options", "said"), [
    ({"first": "9", "last": "8"}, "above last"), ({"first": "-1"}, "whole number"),
    ({"colour": "red"}, "unknown option"), ({"payload": "maybe"}, "true or false"),
])
def test_option_that_cannot_be_is_refused(options: dict[str, str], said: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=said):
        Table("raftlog", tmp_path, **options)


# --- blob stores --------------------------------------------------------------------------------------------------


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(START)


@pytest.fixture
def store(tmp_path: Path, clock: ManualClock) -> Iterator[BlobStore]:
    with BlobStore(tmp_path / "blobs", CONFIG, clock=clock) as opened:
        for number in range(40):
            opened.put(b"%d" % number, b"x" * (100 + number * 10), account=number % 3)
        for number in range(0, 40, 2):
            opened.delete(b"%d" % number)
        yield opened


def test_rows_of_a_blob_store_are_its_records(store: BlobStore, tmp_path: Path) -> None:
    rows = Table("blobstore", tmp_path / "blobs", partition_bytes="1").rows()
    assert [row["sequence"] for row in rows] == sorted(row["sequence"] for row in rows)
    puts = [row for row in rows if row["kind"] == "put"]
    assert [(row["id"], row["payload"]) for row in puts] == [
        (b"%d" % number, b"x" * (100 + number * 10)) for number in range(40)]
    assert [row["id"] for row in puts if row["valid"]] == [b"%d" % number for number in range(1, 40, 2)]
    assert [row["segment"] for row in rows] == sorted(row["segment"] for row in rows)
    assert {type(row["segment"]) for row in rows} == {int}
    with BlobReader(tmp_path / "blobs") as reader:
        assert len({row["segment"] for row in rows}) == len(reader.view().segments)


def test_damaged_blob_ends_the_read(store: BlobStore, tmp_path: Path) -> None:
    first = next(row for row in Table("blobstore", tmp_path / "blobs").rows() if row["segment"] == 1)
    (path,) = (tmp_path / "blobs").glob("1_0*.log")
    flip(path, first["offset"] + first["size"] - 20)
    with pytest.raises(CorruptData):
        Table("blobstore", tmp_path / "blobs").rows()


def test_segment_that_was_compacted_away_is_stale(store: BlobStore, clock: ManualClock, tmp_path: Path) -> None:
    table = Table("blobstore", tmp_path / "blobs")
    clock.advance(10)
    assert store.compact(policy=CompactAll(min_used_fraction=0)).bytes_freed
    with pytest.raises(Stale, match="load the store again"):
        table.rows()
