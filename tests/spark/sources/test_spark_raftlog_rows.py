# SPDX-License-Identifier: Apache-2.0
"""What the data source plans and reads, without a session."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import attrs
import pytest

from compactlib.errors import CorruptData, InvalidInput, NotFound, Stale, Unsupported
from compactlib.files import LocalFiles
from compactlib.indexset import IndexSet
from compactlib.raftlog import (
    LogOptions,
    LogReader,
    SegmentLimits,
    SegmentLog,
    SnapshotFolder,
    SnapshotMeta,
    StoreOptions,
    open_log,
)
from compactlib.raftlog.errors import LiveIndexMissing, LiveSetLost, NotALog
from compactlib.raftlog.model.snapshot_meta import write_snapshot_meta
from compactlib.spark.sources.raftlog import (
    MAX_BATCH_ROWS,
    LogSlice,
    SegmentSlice,
    SourceOptions,
    plan_slices,
    read_slice,
)
from tests.spark.raftlogs import build_log, expected_rows, flip_byte

LIMIT = 1 << 63
LIMITS = SegmentLimits(max_entries=50)


def options(folder: Path, **given: str) -> SourceOptions:
    return SourceOptions.parse({"path": str(folder), **given})


def segments_of(wanted: SourceOptions) -> list[SegmentSlice]:
    return [part for part in plan_slices(wanted) if isinstance(part, SegmentSlice)]


def rows(wanted: SourceOptions, slices: Sequence[LogSlice] | None = None) -> list[dict[str, Any]]:
    planned = plan_slices(wanted) if slices is None else slices
    return [row for part in planned for batch in read_slice(part, wanted) for row in batch.to_pylist()]


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return build_log(tmp_path / "log")


class TestRows:
    def test_they_are_what_the_log_reads(self, log: Path) -> None:
        found = rows(options(log))
        assert found == expected_rows(log)
        assert {row["live"] for row in found} == {True, False}

    def test_live_rows_are_the_log(self, log: Path) -> None:
        live = [(row["index"], row["term"], row["payload"]) for row in rows(options(log)) if row["live"]]
        with LogReader(log) as reader:
            assert live == [(entry.index, entry.term, entry.payload) for entry in reader.entries()]

    @pytest.mark.parametrize("snapshot", [None, 30, 100, 170])
    def test_live_bytes_are_those_of_the_statistics(self, tmp_path: Path, snapshot: int | None) -> None:
        log = build_log(tmp_path / "log", snapshot=snapshot)
        found: dict[int, tuple[int, int]] = {}
        for row in rows(options(log, payload="false")):
            entries, size = found.get(row["segment"], (0, 0))
            found[row["segment"]] = entries + row["live"], size + row["length"] * row["live"]
        with LogReader(log) as reader:
            assert found == {each.number: (each.live_entries, each.live_bytes) for each in reader.stats()}

    def test_payloads_with_gaps_between_them(self, tmp_path: Path) -> None:
        """What was overwritten stays in the file, between payloads that count."""
        with SegmentLog(tmp_path) as log:
            log.extend((index, 1, b"old %d" % index) for index in range(1, 101))
            log.extend((index, 2, b"new %d" % index) for index in range(50, 61))
        assert rows(options(tmp_path)) == expected_rows(tmp_path)
        assert [row["payload"] for row in rows(options(tmp_path))][48:51] == [b"old 49", b"new 50", b"new 51"]

    def test_without_a_snapshot_all_is_live(self, tmp_path: Path) -> None:
        log = build_log(tmp_path / "log", snapshot=None)
        found = rows(options(log))
        assert found == expected_rows(log)
        assert all(row["live"] for row in found)

    def test_one_slice_per_segment(self, log: Path) -> None:
        with LogReader(log) as reader:
            assert [part.ref for part in segments_of(options(log))] == list(reader.refs)

    def test_without_payload(self, log: Path) -> None:
        wanted = [{name: value for name, value in row.items() if name != "payload"} for row in expected_rows(log)]
        assert rows(options(log, payload="false")) == wanted

    def test_large_segments_come_in_many_batches(self, tmp_path: Path) -> None:
        count = 2 * MAX_BATCH_ROWS + 5
        with SegmentLog(tmp_path, LogOptions(limits=SegmentLimits(max_entries=count))) as log:
            log.extend((index, 1, b"") for index in range(count - 1))
            log.append(count - 1, 1, bytes(3 << 20))
        wanted = options(tmp_path)
        sizes = [batch.num_rows for part in plan_slices(wanted) for batch in read_slice(part, wanted)]
        assert sum(sizes) == count
        assert max(sizes) == MAX_BATCH_ROWS

    def test_an_empty_log(self, tmp_path: Path) -> None:
        SegmentLog(tmp_path).close()
        assert plan_slices(options(tmp_path)) == []


class TestRange:
    @pytest.mark.parametrize(("first", "last"), [(1, 1), (50, 51), (60, 140), (100, 101), (150, 190), (190, 5000)])
    def test_rows_of_a_range(self, log: Path, first: int, last: int) -> None:
        assert rows(options(log, first=str(first), last=str(last))) == expected_rows(log, first, last)

    def test_segments_outside_are_not_planned(self, log: Path) -> None:
        assert [part.ref.number for part in segments_of(options(log, first="60", last="90"))] == [2]
        assert plan_slices(options(log, first="5000")) == []
        assert rows(options(log, first="300", last="400")) == []

    def test_damage_outside_is_not_read(self, log: Path) -> None:
        outside = next(row for row in expected_rows(log) if row["segment"] == 1 and row["length"])
        wanted = expected_rows(log, 51)
        flip_byte(log / "0000000000000001.segment", outside["offset"])
        assert rows(options(log, first="51")) == wanted
        with pytest.raises(CorruptData):
            rows(options(log, last="51"))


class TestDamage:
    @pytest.fixture
    def damaged(self, log: Path) -> dict[str, Any]:
        """The row whose payload is damaged after this."""
        row = next(row for row in expected_rows(log) if row["index"] == 60)
        flip_byte(log / "0000000000000002.segment", row["offset"] + 1)
        return row

    def test_it_fails_the_read_with_file_and_offset(self, log: Path, damaged: dict[str, Any]) -> None:
        with pytest.raises(CorruptData) as caught:
            rows(options(log))
        error = caught.value
        assert (error.path, error.offset, error.index) == (
            str(log / "0000000000000002.segment"), damaged["offset"], 60)

    def test_or_comes_in_a_column(self, log: Path, damaged: dict[str, Any]) -> None:
        wanted = expected_rows_with_error(log, damaged)
        found = rows(options(log, damaged="column"))
        (broken,) = [row for row in found if row["error"] is not None]
        assert f"0000000000000002.segment at offset {damaged['offset']} (index 60)" in broken["error"]
        assert [{**row, "error": None} for row in found] == wanted

    def test_it_can_be_looked_for_without_payloads(self, log: Path, damaged: dict[str, Any]) -> None:
        found = rows(options(log, damaged="column", payload="false"))
        assert "payload" not in found[0]
        assert [row["index"] for row in found if row["error"] is not None] == [60]

    def test_it_is_not_noticed_where_payloads_are_not_read(self, log: Path, damaged: dict[str, Any]) -> None:
        assert [row["index"] for row in rows(options(log, payload="false"))] == [*range(1, 191), 1180]

    def test_a_damaged_index_fails_in_any_case(self, log: Path) -> None:
        flip_byte(log / "0000000000000002.segment", 70)
        with pytest.raises(CorruptData):
            rows(options(log, damaged="column"))

    def test_a_live_entry_that_no_segment_holds(self, log: Path) -> None:
        write_snapshot_meta(LocalFiles(), log, SnapshotMeta(1000, live=IndexSet.from_iterable([5, 195, 300])))
        with pytest.raises(LiveIndexMissing) as caught:
            rows(options(log))
        assert (caught.value.missing, caught.value.first) == (2, 195)
        assert len(rows(options(log, last="100"))) == 100


def expected_rows_with_error(log: Path, damaged: dict[str, Any]) -> list[dict[str, Any]]:
    """What the sound log had, but for the payload of the damaged row."""
    with LogReader(log) as reader:
        state = reader.snapshot
    assert state is not None
    flip_byte(log / "0000000000000002.segment", damaged["offset"] + 1)
    sound = expected_rows(log)
    flip_byte(log / "0000000000000002.segment", damaged["offset"] + 1)
    return [{**row, "payload": None if row["index"] == damaged["index"] else row["payload"], "error": None}
            for row in sound]


class TestLimits:
    @pytest.mark.parametrize(("index", "term", "name"), [(LIMIT, 1, "index"), (7, LIMIT, "term")])
    def test_numbers_beyond_a_long(self, tmp_path: Path, index: int, term: int, name: str) -> None:
        with SegmentLog(tmp_path) as log:
            log.append(5, 1, b"small")
            log.append(index, term, b"large")
        with pytest.raises(Unsupported, match=f"{name} {LIMIT} is larger"):
            rows(options(tmp_path))
        assert [row["payload"] for row in rows(options(tmp_path, last="5"))] == [b"small"]

    def test_the_largest_long(self, tmp_path: Path) -> None:
        with SegmentLog(tmp_path) as log:
            log.append(LIMIT - 1, LIMIT - 1, b"")
        (row,) = rows(options(tmp_path))
        assert (row["index"], row["term"]) == (LIMIT - 1, LIMIT - 1)


class TestBesideACompaction:
    def test_at_the_same_snapshot_nothing_alive_is_lost(self, log: Path) -> None:
        wanted = options(log)
        planned = plan_slices(wanted)
        live = [(row["index"], row["payload"]) for row in expected_rows(log) if row["live"]]
        with SegmentLog(log, LogOptions(limits=LIMITS)) as writer:
            writer.compact(policy=writer.policy)
            assert len(writer.refs) < len(planned)
            found = [(row["index"], row["payload"]) for row in rows(wanted, planned) if row["live"]]
        assert found == live
        assert rows(wanted) == expected_rows(log)

    @pytest.mark.parametrize("keep_links_seconds", [0.0, 60.0])
    def test_at_a_later_snapshot_the_plan_is_stale(self, log: Path, keep_links_seconds: float) -> None:
        wanted = options(log)
        planned = plan_slices(wanted)
        still_live = [row["index"] for row in rows(wanted, planned) if row["live"] and row["index"] <= 150][::5]
        with SegmentLog(log, LogOptions(limits=LIMITS, keep_links_seconds=keep_links_seconds)) as writer:
            writer.record_snapshot(150, live=still_live)
            writer.compact(policy=writer.policy)
            for part in planned[:3]:
                with pytest.raises(Stale, match="load the log again"):
                    rows(wanted, [part])
        assert rows(wanted) == expected_rows(log)

    def test_a_file_that_has_the_number_of_one_that_is_gone_is_another(self, log: Path) -> None:
        """File systems give the number of a removed file to the next one."""
        wanted = options(log)
        planned = segments_of(wanted)
        still_live = [row["index"] for row in rows(wanted, planned) if row["live"] and row["index"] <= 150][::5]
        with SegmentLog(log, LogOptions(limits=LIMITS)) as writer:
            writer.record_snapshot(150, live=still_live)
            writer.compact(policy=writer.policy)
        again = segments_of(wanted)[0]
        assert again.ref.number == planned[0].ref.number
        with pytest.raises(Stale, match="load the log again"):
            rows(wanted, [attrs.evolve(planned[0], inode=again.inode)])

    def test_a_log_that_grows_is_read_as_planned(self, log: Path) -> None:
        wanted = options(log)
        planned, before = plan_slices(wanted), expected_rows(log)
        with SegmentLog(log) as writer:
            writer.append(5000, 4, b"later")
        assert rows(wanted, planned) == before


    @pytest.mark.parametrize("last", [None, 70])
    def test_after_a_take_back_the_plan_is_stale(self, tmp_path: Path, last: int | None) -> None:
        """Rows from before it and from after it came together."""
        with SegmentLog(tmp_path / "log", LogOptions(limits=LIMITS)) as writer:
            writer.extend((index, 1, b"") for index in range(1, 81))
            writer.sync()
            wanted = options(tmp_path / "log", **({} if last is None else {"last": str(last)}))
            planned = plan_slices(wanted)
            writer.extend((index, 2, b"other") for index in range(40, 91))
            writer.sync()
            with pytest.raises(Stale, match="taken back after this read was planned; load the log again"):
                rows(wanted, planned)
            assert [row["term"] for row in rows(wanted)] == [1] * 39 + [2] * ((last or 90) - 39)
            after = plan_slices(wanted)
            writer.append(91, 2, b"later")
            writer.sync()
            assert rows(wanted, after)[-1]["index"] == (last or 90)


class TestOptions:
    @pytest.mark.parametrize(("given", "told"), [
        ({"paylod": "false"}, "unknown option 'paylod'"),
        ({"payload": "no"}, "takes true or false"),
        ({"damaged": "skip"}, "takes fail or column"),
        ({"first": "-1"}, "takes a log index"),
        ({"last": str(1 << 64)}, "takes a log index"),
        ({"first": "٣"}, "takes a log index"),
        ({"first": "9", "last": "8"}, "first is 9"),
        ({"path": ""}, "which log"),
    ])
    def test_what_cannot_be_is_refused(self, given: dict[str, str], told: str) -> None:
        with pytest.raises(InvalidInput, match=told):
            SourceOptions.parse({"path": "/log", **given})

    def test_names_and_words_may_be_in_capitals(self) -> None:
        assert SourceOptions.parse({"PATH": "file:///log", "Payload": "FALSE", "damaged": "Column"}) == SourceOptions(
            folder="/log", payload=False, errors=True)

    def test_a_folder_that_is_no_log(self, tmp_path: Path) -> None:
        with pytest.raises(NotALog):
            plan_slices(options(tmp_path))


# -------------------------------------------------------------------------------------------------- write-ahead logs


def test_large_entries_of_a_write_ahead_log_come_in_many_batches(tmp_path: Path) -> None:
    sizes = [0, 300_000, 400_000, 400_000, 0, 3_000_000, 1, 2]
    with open_log(tmp_path / "store", StoreOptions(background=False)) as log:
        log.append((index, 1, bytes(size)) for index, size in enumerate(sizes, 1))
        log.sync()
        asked = SourceOptions.parse({"path": str(tmp_path / "store/logs/log")})
        [part] = plan_slices(asked)
        batches = [batch.to_pylist() for batch in read_slice(part, asked)]
    assert [[row["length"] for row in batch] for batch in batches] == [sizes[:3], sizes[3:5], sizes[5:6], sizes[6:]]
    assert [row["payload"] for batch in batches for row in batch] == list(map(bytes, sizes))


def test_what_is_in_a_stores_write_ahead_log_is_read_too(tmp_path: Path) -> None:
    """Entries that had been taken back were given as live, and the newest were left out."""
    options = StoreOptions(background=False, log=LogOptions(limits=SegmentLimits(max_entries=16)))
    with open_log(tmp_path / "store", options) as log:
        log.append((index, 1, b"x%d" % index) for index in range(1, 51))
        log.flush()
        log.append_entries(44, 1, ((index, 2, b"y%d" % index) for index in range(45, 80)))
        log.sync()
        log.snapshot(70, [3, 46])
        asked = SourceOptions.parse({"path": str(tmp_path / "store/logs/log")})
        found = rows(asked)
        assert [(row["index"], row["term"], row["payload"]) for row in found if row["live"]] == [tuple(entry) for entry
                                                                                               in log.entries()]
        assert [row["index"] for row in found if row["segment"] is None] == [46, *range(71, 80)]
        parts = plan_slices(asked)
        log.append_entries(74, 2, [(75, 3, b"again")])
        log.snapshot(75, [3])
        with pytest.raises(Stale):
            list(read_slice(parts[-1], asked))
    log_only = rows(SourceOptions.parse({"path": str(tmp_path / "store/logs/log"), "last": "44"}))
    assert all(row["segment"] is not None for row in log_only)


def test_what_was_taken_back_in_a_write_ahead_log_makes_the_plan_stale(tmp_path: Path) -> None:
    options = StoreOptions(background=False, log=LogOptions(limits=SegmentLimits(max_entries=16)))
    with open_log(tmp_path / "store", options) as log:
        log.append((index, 1, b"x") for index in range(1, 21))
        log.flush()
        log.append((index, 1, b"x") for index in range(21, 31))
        log.sync()
        asked = SourceOptions.parse({"path": str(tmp_path / "store/logs/log")})
        parts = plan_slices(asked)
        log.append_entries(10, 1, ((index, 2, b"y") for index in range(11, 41)))
        log.sync()
        with pytest.raises(Stale, match="taken back"):
            rows(asked, parts)
        assert [row["term"] for row in rows(asked)] == [1] * 10 + [2] * 30


# ------------------------------------------------------------------------------------------------------- time travel


class TestAsOf:
    """A log of 100 entries, snapshot 40, checkpoints at 60 and 80."""

    LIVE: ClassVar[dict[int, list[int]]] = {40: [3, 7, 12, 39], 60: [3, 12, 39, 41, 58], 80: [3, 58, 79]}

    @pytest.fixture
    def folders(self, tmp_path: Path) -> tuple[Path, Path]:
        snapshots = SnapshotFolder(tmp_path / "snapshots")
        with SegmentLog(tmp_path / "log", LogOptions(limits=SegmentLimits(max_entries=16))) as log:
            log.extend((index, 1, b"%d" % index) for index in range(1, 101))
            log.record_snapshot(40, self.LIVE[40])
            snapshots.write(self.meta(40), [b"state"])
            for index in (60, 80):
                snapshots.write_checkpoint(self.meta(index), [b"state"])
        return tmp_path / "log", tmp_path / "snapshots"

    def meta(self, index: int) -> SnapshotMeta:
        return SnapshotMeta(index, 1, IndexSet.from_iterable(self.LIVE[index]))

    def live(self, log: Path, **given: str) -> list[int]:
        found = rows(options(log, **given))
        assert all(row["payload"] == b"%d" % row["index"] for row in found if row["live"])
        return [row["index"] for row in found if row["live"]]

    def test_each_snapshot_and_checkpoint_sees_the_log_of_its_time(self, folders: tuple[Path, Path]) -> None:
        log, snapshots = folders
        assert self.live(log) == [*self.LIVE[40], *range(41, 101)]
        for index, live in self.LIVE.items():
            assert self.live(log, as_of=str(index), snapshots=str(snapshots)) == live
            assert rows(options(log, as_of=str(index), snapshots=str(snapshots)))[-1]["index"] == index
        assert self.live(log, as_of="60", snapshots=str(snapshots), first="12", last="41") == [12, 39, 41]
        assert self.live(log, as_of="60", snapshots=str(snapshots), first="61") == []
        assert self.live(log, as_of="40") == self.LIVE[40]

    def test_what_was_live_stays_readable_beside_compactions_up_to_there(self, folders: tuple[Path, Path]) -> None:
        log, snapshots = folders
        with SegmentLog(log, LogOptions(limits=SegmentLimits(max_entries=16), keep_links_seconds=0.0)) as writer:
            writer.compact(policy=writer.policy)
        assert self.live(log, as_of="80", snapshots=str(snapshots)) == self.LIVE[80]
        planned = plan_slices(options(log, as_of="80", snapshots=str(snapshots)))
        with SegmentLog(log) as writer:
            writer.record_snapshot(60, self.LIVE[60])
        found = rows(options(log, as_of="80", snapshots=str(snapshots)), planned)
        assert [row["index"] for row in found if row["live"]] == self.LIVE[80]

    def test_after_a_later_snapshot_it_is_refused(self, folders: tuple[Path, Path]) -> None:
        log, snapshots = folders
        planned = plan_slices(options(log, as_of="60", snapshots=str(snapshots)))
        with SegmentLog(log, LogOptions(limits=SegmentLimits(max_entries=16), keep_links_seconds=0.0)) as writer:
            writer.record_snapshot(80, self.LIVE[80])
            writer.compact(policy=writer.policy)
        with pytest.raises(Stale):
            rows(options(log, as_of="60", snapshots=str(snapshots)), planned)
        with pytest.raises(NotFound, match="as of 60: its last snapshot is 80"):
            rows(options(log, as_of="60", snapshots=str(snapshots)))
        assert self.live(log, as_of="80") == self.LIVE[80]

    def test_what_there_is_not_is_named(self, folders: tuple[Path, Path]) -> None:
        log, snapshots = folders
        with pytest.raises(NotFound, match=r"as of 61.*has \[40, 60, 80\]"):
            rows(options(log, as_of="61", snapshots=str(snapshots)))
        with pytest.raises(NotFound, match="as of 60: its last snapshot is 40"):
            rows(options(log, as_of="60"))
        with pytest.raises(InvalidInput, match="needs option 'as_of'"):
            options(log, snapshots=str(snapshots))
        next(snapshots.glob("*0060-*.live")).unlink()
        with pytest.raises(LiveSetLost):
            rows(options(log, as_of="60", snapshots=str(snapshots)))
